//! CRC32c by carry-less multiplication in 512-bit registers, after Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). Optionally with the copy and the sum of the
//! same bytes.
//!
//! Zeros before a message do not change its CRC, as long as the initial value is not added yet. The partial vector is
//! therefore the first one, and a mask loads zeros for its missing bytes. The last vector ends with the message.
//!
//! ```text
//!   |0 0 0 h h h h h|vector 1|vector 2| ... |vector k-1|     64 bytes each
//!          ^ the state is added to the first 4 bytes of the message
//! ```
//!
//! Each step moves the four accumulators by 256 bytes. The first step takes 1 to 4 vectors, so that a multiple of
//! four remains; unused accumulators begin as zero. At the end one multiplication moves each 128-bit lane to the
//! position of the last lane, and the CRC instruction reduces the XOR of all lanes.

mod inserting;

use core::arch::x86_64::*;

pub(crate) use inserting::pass as pass_inserting;

use crate::pass::{MAX_SUM_LEN, Pass, factors, message_sum, reduce};

const VECTOR: usize = 64;

/// Bytes per step.
const STEP_LEN: usize = 4 * VECTOR;

/// Four vectors: the accumulators, or the input of a step.
type Lanes = [__m512i; 4];

/// Returns true if this CPU has the features that the functions of this module are compiled for.
pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// The engine of [`Path::Avx512`](crate::Path::Avx512).
pub(crate) struct Avx512;

impl Pass for Avx512 {
    // The state is added to the first four bytes.
    const MIN_LEN: usize = 4;

    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx512vnni,vpclmulqdq,pclmulqdq,sse4.2"
    )]
    unsafe fn pass<const COPY: bool, const SUM: bool>(
        crc: u32,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> (u32, u16) {
        debug_assert!(len >= Self::MIN_LEN && (!SUM || len <= MAX_SUM_LEN));
        let vectors = len.div_ceil(VECTOR);
        // Number of zeros before the message in the first vector, 0 to 63.
        let lead = vectors * VECTOR - len;
        let mask = !0u64 << lead;
        // Both pointers may point before the message. For the head, the mask limits accesses to the message.
        let (src, dst) = (src.wrapping_sub(lead), dst.wrapping_sub(lead));
        let state = !crc;
        let mut sums = Sums::new();

        // SAFETY: the mask selects the bytes from `lead` on, the first `VECTOR - lead` bytes of the message. The
        // message has at least that many.
        let head = unsafe { _mm512_maskz_loadu_epi8(mask, src.cast()) };
        if COPY {
            // SAFETY: as above; with `COPY`, the caller's `len` bytes at `dst` may be written.
            unsafe { _mm512_mask_storeu_epi8(dst.cast(), mask, head) };
        }
        if SUM {
            sums.add::<3>(head);
        }
        let take = |at: usize| {
            // SAFETY: every vector but the head, which `at` never selects here, is inside the message.
            let vector = unsafe { _mm512_loadu_si512(src.add(at * VECTOR).cast()) };
            if COPY {
                // SAFETY: as above; with `COPY`, the caller's `len` bytes at `dst` may be written.
                unsafe { _mm512_storeu_si512(dst.add(at * VECTOR).cast(), vector) };
            }
            vector
        };

        // The state is XORed into the first four bytes of the message. If the head is shorter, the rest of the state is
        // XORed into the next vector.
        let head = _mm512_xor_si512(head, _mm512_maskz_expand_epi8(mask, scalar(state)));
        let in_head = VECTOR - lead;
        let mut over = scalar(if in_head < 4 { state >> (8 * in_head) } else { 0 });

        let zero = _mm512_setzero_si512();
        let mut acc = [zero; 4];
        let mut at = (vectors - 1) % 4 + 1;
        match at {
            1 => acc[3] = head,
            2 => {
                let a = take(1);
                acc = [zero, zero, head, a];
            }
            3 => {
                let (a, b) = (take(1), take(2));
                acc = [zero, head, a, b];
            }
            _ => {
                let (a, b, c) = (take(1), take(2), take(3));
                acc = [head, a, b, c];
            }
        }
        if SUM {
            // The head is already summed, without the state.
            if at == 2 {
                sums.add::<0>(acc[3]);
            } else if at == 3 {
                sums.add::<0>(acc[2]);
                sums.add::<1>(acc[3]);
            } else if at == 4 {
                sums.add::<0>(acc[1]);
                sums.add::<1>(acc[2]);
                sums.add::<2>(acc[3]);
            }
        }
        if at > 1 {
            let second = 5 - at;
            acc[1] = _mm512_xor_si512(acc[1], if second == 1 { over } else { zero });
            acc[2] = _mm512_xor_si512(acc[2], if second == 2 { over } else { zero });
            acc[3] = _mm512_xor_si512(acc[3], if second == 3 { over } else { zero });
            over = zero;
        }

        let by = step_factors();
        while at < vectors {
            let new = [take(at), take(at + 1), take(at + 2), take(at + 3)];
            if SUM {
                sums.add_all(&new);
            }
            acc = step(acc, by, [_mm512_xor_si512(new[0], over), new[1], new[2], new[3]]);
            over = zero;
            at += 4;
        }

        let words = if SUM { message_sum(sums.total().into(), lead) } else { 0 };
        (reduce_lanes(acc), words)
    }
}

/// Moves the accumulators by one step and adds the vectors `new` of this step. `factors` are [`step_factors`].
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn step(acc: Lanes, factors: __m512i, new: Lanes) -> Lanes {
    let [a, b, c, d] = acc;
    [
        fold_onto(a, factors, new[0]),
        fold_onto(b, factors, new[1]),
        fold_onto(c, factors, new[2]),
        fold_onto(d, factors, new[3]),
    ]
}

#[target_feature(enable = "avx512f")]
#[inline]
fn step_factors() -> __m512i {
    _mm512_broadcast_i32x4(lane(STEP_FACTORS))
}

/// Reduces the accumulators of a complete message to its CRC.
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,pclmulqdq,sse4.2")]
#[inline]
fn reduce_lanes(acc: Lanes) -> u32 {
    let zero = _mm512_setzero_si512();
    // The other lanes are moved to the last lane of the last accumulator.
    let last = _mm512_maskz_mov_epi64(0b1100_0000, acc[3]);
    let a = fold_onto(acc[0], lanes(&LAST_LANE_FACTORS[0]), last);
    let b = fold_onto(acc[1], lanes(&LAST_LANE_FACTORS[1]), zero);
    let a = fold_onto(acc[2], lanes(&LAST_LANE_FACTORS[2]), a);
    let b = fold_onto(acc[3], lanes(&LAST_LANE_FACTORS[3]), b);
    let all = _mm512_xor_si512(a, b);
    let half = _mm256_xor_si256(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
    reduce(half)
}

/// Returns `acc` moved by the distance of `factors`, XOR `addend`.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold_onto(acc: __m512i, factors: __m512i, addend: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(acc, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(acc, factors);
    _mm512_ternarylogic_epi64::<0x96>(low, high, addend)
}

/// Returns `value` in the lowest 32 bits, zeros above.
#[target_feature(enable = "avx512f")]
#[inline]
fn scalar(value: u32) -> __m512i {
    _mm512_zextsi128_si512(_mm_cvtsi32_si128(value as i32))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn lane(by: [u64; 2]) -> __m128i {
    _mm_set_epi64x(by[1] as i64, by[0] as i64)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn lanes(by: &'static [[u64; 2]; 4]) -> __m512i {
    // SAFETY: the table has 64 readable bytes.
    unsafe { _mm512_loadu_si512(by.as_ptr().cast()) }
}

/// Sums of the bytes at even and at odd positions. Each has four accumulators, one per vector of a step.
struct Sums {
    even: [__m512i; 4],
    odd: [__m512i; 4],
}

impl Sums {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn new() -> Sums {
        let zero = _mm512_setzero_si512();
        Sums { even: [zero; 4], odd: [zero; 4] }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    #[inline]
    fn add<const GROUP: usize>(&mut self, vector: __m512i) {
        let (even, odd) = (_mm512_set1_epi32(0x0001_0001), _mm512_set1_epi32(0x0100_0100));
        self.even[GROUP] = _mm512_dpbusd_epi32(self.even[GROUP], vector, even);
        self.odd[GROUP] = _mm512_dpbusd_epi32(self.odd[GROUP], vector, odd);
    }

    /// Adds the four vectors of a step.
    #[target_feature(enable = "avx512f,avx512vnni")]
    #[inline]
    fn add_all(&mut self, vectors: &Lanes) {
        self.add::<0>(vectors[0]);
        self.add::<1>(vectors[1]);
        self.add::<2>(vectors[2]);
        self.add::<3>(vectors[3]);
    }

    /// Returns the sum of the words; below 2^32 for [`MAX_SUM_LEN`] bytes.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn total(self) -> u32 {
        let all = |[a, b, c, d]: [__m512i; 4]| {
            _mm512_add_epi32(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d))
        };
        let words = _mm512_add_epi32(all(self.even), _mm512_slli_epi32::<8>(all(self.odd)));
        _mm512_reduce_add_epi32(words) as u32
    }
}

/// Factors that move a lane by one step of the loop.
const STEP_FACTORS: [u64; 2] = factors(4 * 512);

/// Factors, by accumulator and lane, that move each lane to the last lane of the last accumulator. The factors of this
/// last lane itself are zero.
static LAST_LANE_FACTORS: [[[u64; 2]; 4]; 4] = {
    let mut all = [[[0; 2]; 4]; 4];
    let mut i = 0;
    while i < 15 {
        all[i / 4][i % 4] = factors((15 - i as u32) * 128);
        i += 1;
    }
    all
};
