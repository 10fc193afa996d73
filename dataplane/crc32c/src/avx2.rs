//! CRC32c by carry-less multiplication in 256-bit registers, optionally with the copy and the sum of the same bytes.
//! For CPUs with VPCLMULQDQ and without AVX-512. The method is described at [`crate::avx512`].
//!
//! AVX2 has no masked byte loads. The head, the first 1 to 16 bytes, is moved up to the end of a lane of 16 bytes. Each
//! step of the loop processes eight lanes. The remaining lanes and the accumulators are multiplied by factors that move
//! each of them to the position of the last lane:
//!
//! ```text
//!   |0 0 0 h h h|lane 1| ... |lane 7|   |8 lanes| ... |8 lanes|   |0 to 7 lanes|   |last lane|
//! ```

use core::arch::x86_64::*;

use crate::pass::{MAX_SUM_LEN, Pass, factors, message_sum, reduce};

const LANE: usize = 16;
const VECTOR: usize = 32;
/// Bytes per step of the loop: four accumulators of 32 bytes.
const STEP: usize = 4 * VECTOR;

/// Returns true if this CPU has the features that the functions of this module are compiled for.
pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// The engine of [`Path::Avx2`](crate::Path::Avx2).
pub(crate) struct Avx2;

impl Pass for Avx2 {
    // The minimum is one step of eight lanes and the last lane.
    const MIN_LEN: usize = STEP + LANE;

    #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
    unsafe fn pass<const COPY: bool, const SUM: bool>(
        crc: u32,
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> (u32, u16) {
        debug_assert!(len >= Self::MIN_LEN && (!SUM || len <= MAX_SUM_LEN));
        let lanes = len.div_ceil(LANE);
        // Number of zeros before the message in lane 0, 0 to 15.
        let lead = lanes * LANE - len;
        // Lane 0 may begin before the message: these pointers access the other lanes only.
        let (from, to) = (src.wrapping_sub(lead), dst.wrapping_sub(lead));
        let state = !crc;
        let mut sums = Sums::new();

        // Loads lane `at` (at least 1) and, with `COPY`, copies it: the lane is inside the message. Lane 1 shares
        // `lead` bytes with the first load. These bytes are copied twice, but summed once, as a part of lane 1.
        let one = |at: usize| {
            // SAFETY: `1 <= at < lanes`, so the 16 bytes of the lane are in the caller's `len` bytes at `src`.
            let lane = unsafe { _mm_loadu_si128(from.add(at * LANE).cast()) };
            if COPY {
                // SAFETY: as above; with `COPY`, the caller's `len` bytes at `dst` may be written.
                unsafe { _mm_storeu_si128(to.add(at * LANE).cast(), lane) };
            }
            lane
        };
        let two = |at: usize| {
            // SAFETY: `at >= 1` and `at + 1 < lanes`, so both lanes are in the caller's `len` bytes at `src`.
            let vector = unsafe { _mm256_loadu_si256(from.add(at * LANE).cast()) };
            if COPY {
                // SAFETY: as above; with `COPY`, the caller's `len` bytes at `dst` may be written.
                unsafe { _mm256_storeu_si256(to.add(at * LANE).cast(), vector) };
            }
            vector
        };

        // SAFETY: the caller's `len` bytes at `src` may be read; `len` is at least `MIN_LEN`, which exceeds 16.
        let first = unsafe { _mm_loadu_si128(src.cast()) };
        if COPY {
            // SAFETY: as above; with `COPY`, the caller's `len` bytes at `dst` may be written.
            unsafe { _mm_storeu_si128(dst.cast(), first) };
        }
        // SAFETY: the table has 32 bytes, and the load of 16 begins at `LANE - lead`, at most 16.
        let up = unsafe { _mm_loadu_si128(SHIFT_UP_SHUFFLES.as_ptr().add(LANE - lead).cast()) };
        let second = one(1);
        if SUM {
            sums.add(_mm256_set_m128i(second, _mm_shuffle_epi8(first, up)), 0);
        }
        // The state is XORed into the first four bytes of the message. If the head is shorter, the rest of the state is
        // XORed into the next lane.
        let head = _mm_shuffle_epi8(_mm_xor_si128(first, _mm_cvtsi32_si128(state as i32)), up);
        let in_head = LANE - lead;
        let over = if in_head < 4 { state >> (8 * in_head) } else { 0 };
        let second = _mm_xor_si128(second, _mm_cvtsi32_si128(over as i32));
        let mut acc = [_mm256_set_m128i(second, head), two(2), two(4), two(6)];
        if SUM {
            acc.iter().enumerate().skip(1).for_each(|(i, new)| sums.add(*new, i));
        }

        let by = _mm256_broadcastsi128_si256(_mm_set_epi64x(
            STEP_FACTORS[1] as i64,
            STEP_FACTORS[0] as i64,
        ));
        let last = lanes - 1;
        let mut at = 8;
        while at + 8 <= last {
            // Loads one vector at a time: the sixteen registers cannot hold four more.
            for (i, acc) in acc.iter_mut().enumerate() {
                let new = two(at + 2 * i);
                if SUM {
                    sums.add(new, i);
                }
                *acc = fold_onto(*acc, by, new);
            }
            at += 8;
        }

        // Moves each remaining lane to the position of the last lane.
        let left = last - at;
        let place = |lane: usize| {
            // SAFETY: the load reads the entries `lane` and `lane + 1` of 16, and `lane` is 1 to 14.
            unsafe { _mm256_loadu_si256(LAST_LANE_FACTORS.as_ptr().add(lane).cast()) }
        };
        let zero = _mm256_setzero_si256();
        let mut a = fold_onto(acc[0], place(8 - left), zero);
        let mut b = fold_onto(acc[1], place(10 - left), zero);
        a = fold_onto(acc[2], place(12 - left), a);
        b = fold_onto(acc[3], place(14 - left), b);
        while at + 2 <= last {
            let new = two(at);
            if SUM {
                sums.add(new, 0);
            }
            a = fold_onto(new, place(16 - (last - at)), a);
            at += 2;
        }
        let end = one(last);
        let single = if at < last { one(at) } else { _mm_setzero_si128() };
        if SUM {
            sums.add(_mm256_set_m128i(end, single), 1);
        }
        // `single` is the lane before the last, or zero.
        let by = _mm256_set_epi64x(0, 0, LANE_FACTORS[1] as i64, LANE_FACTORS[0] as i64);
        let onto = _mm256_inserti128_si256::<1>(zero, end);
        b = _mm256_xor_si256(b, fold_onto(_mm256_zextsi128_si256(single), by, onto));

        let words = if SUM { message_sum(sums.total(), lead) } else { 0 };
        (reduce(_mm256_xor_si256(a, b)), words)
    }
}

/// Returns `acc` moved by the distance of `factors`, XOR `addend`.
#[target_feature(enable = "avx2,vpclmulqdq")]
#[inline]
fn fold_onto(acc: __m256i, factors: __m256i, addend: __m256i) -> __m256i {
    let low = _mm256_clmulepi64_epi128::<0x00>(acc, factors);
    let high = _mm256_clmulepi64_epi128::<0x11>(acc, factors);
    _mm256_xor_si256(_mm256_xor_si256(low, high), addend)
}

/// Sums of the words at even and at odd positions. Each has two accumulators, for alternating vectors.
struct Sums {
    even: [__m256i; 2],
    odd: [__m256i; 2],
}

impl Sums {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new() -> Sums {
        let zero = _mm256_setzero_si256();
        Sums { even: [zero; 2], odd: [zero; 2] }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn add(&mut self, vector: __m256i, number: usize) {
        let (even, odd) = (&mut self.even[number % 2], &mut self.odd[number % 2]);
        *even = _mm256_add_epi32(*even, _mm256_and_si256(vector, _mm256_set1_epi32(0xffff)));
        *odd = _mm256_add_epi32(*odd, _mm256_srli_epi32::<16>(vector));
    }

    /// Returns the sum of the words; below 2^32 for [`MAX_SUM_LEN`] bytes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn total(self) -> u64 {
        let all = _mm256_add_epi32(
            _mm256_add_epi32(self.even[0], self.even[1]),
            _mm256_add_epi32(self.odd[0], self.odd[1]),
        );
        let half = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
        let half = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
        (_mm_cvtsi128_si32(half) as u32 as u64) + (_mm_extract_epi32::<1>(half) as u32 as u64)
    }
}

/// Shuffle masks: the mask at offset `16 - n` moves bytes up by `n` and fills with zeros.
static SHIFT_UP_SHUFFLES: [i8; 2 * LANE] = {
    let mut up = [-1; 2 * LANE];
    let mut i = 0;
    while i < LANE {
        up[LANE + i] = i as i8;
        i += 1;
    }
    up
};

/// Factors that move a lane by one step of the loop.
const STEP_FACTORS: [u64; 2] = factors(STEP as u32 * 8);

/// Factors that move a lane by 16 bytes.
const LANE_FACTORS: [u64; 2] = LAST_LANE_FACTORS[15];

/// Factors that move each of the lanes 0 to 15 to lane 16, the last lane.
static LAST_LANE_FACTORS: [[u64; 2]; 16] = {
    let mut all = [[0; 2]; 16];
    let mut i = 0;
    while i < 16 {
        all[i] = factors((16 - i as u32) * 128);
        i += 1;
    }
    all
};
