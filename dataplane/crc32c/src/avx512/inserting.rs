//! One pass that copies, inserts words between the bytes of the source, and computes CRC and sum of the copy.
//!
//! All lengths and offsets are multiples of four bytes, one word. Each step, including the first, has four vectors. The
//! words of the first step before the message are zero, and are neither loaded nor stored.
//!
//! ```text
//!   |0 0 0 0|0 0 0 h|vector|vector|   |4 vectors| ... |4 vectors|
//!                  ^ the state is added to the first word of the message
//! ```
//!
//! A step has 64 words. From the first inserted word on, every second step has an inserted word, at the same position
//! in the step. In a step with an inserted word, the source bytes after this word are read from 4 bytes earlier.

use core::arch::x86_64::*;

use super::{Lanes, STEP_LEN, Sums, VECTOR, reduce_lanes, step, step_factors};
use crate::inserts::Inserts;
use crate::pass::message_sum;

/// Steps from one inserted word to the next.
const STEPS_PER_INSERT: usize = Inserts::INTERVAL / STEP_LEN;

const _: () = assert!(Inserts::INTERVAL.is_multiple_of(STEP_LEN));

/// Writes a copy of `len` bytes, with words inserted. Returns its CRC, and with `SUM` the folded sum of its
/// little-endian words.
///
/// # Safety
/// The CPU supports the features that the engine is compiled for. `len` and the offset of the first inserted word are
/// multiples of 4; `len` is at least 4 and at most [`MAX_SUM_LEN`](crate::pass::MAX_SUM_LEN). [`Inserts::source_len`]
/// bytes may be read at `src`, and `len` written at `dst`, without overlap.
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx512vnni,vpclmulqdq,pclmulqdq,sse4.2"
)]
pub(crate) unsafe fn pass<const SUM: bool>(
    crc: u32,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    inserts: Inserts,
) -> (u32, u16) {
    // Bytes of the first step before the message.
    let lead = len.next_multiple_of(STEP_LEN) - len;
    let place = inserts.first_offset().saturating_add(lead) % STEP_LEN;
    // SAFETY: `pass_at` has the same requirements as this function, whose caller meets them.
    unsafe {
        match place / VECTOR {
            0 => pass_at::<SUM, 0>(crc, src, dst, len, inserts),
            1 => pass_at::<SUM, 1>(crc, src, dst, len, inserts),
            2 => pass_at::<SUM, 2>(crc, src, dst, len, inserts),
            _ => pass_at::<SUM, 3>(crc, src, dst, len, inserts),
        }
    }
}

/// Performs a [`pass`] whose inserted words are in vector `VECTOR_OF_WORD` of a step.
///
/// # Safety
/// The requirements of [`pass`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx512vnni,vpclmulqdq,pclmulqdq,sse4.2"
)]
unsafe fn pass_at<const SUM: bool, const VECTOR_OF_WORD: usize>(
    crc: u32,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    inserts: Inserts,
) -> (u32, u16) {
    let steps = len.div_ceil(STEP_LEN);
    let lead = steps * STEP_LEN - len;
    let next = inserts.first_offset().saturating_add(lead);
    let mut words = InsertingCopy {
        from: src.wrapping_sub(lead),
        to: dst.wrapping_sub(lead),
        steps_before_insert: next / STEP_LEN,
        insert_mask: 1 << (next % VECTOR / Inserts::LEN),
        inserts,
    };
    let (mut sums, by) = (Sums::new(), step_factors());

    let first = lead / Inserts::LEN;
    // SAFETY: the mask selects the words after the `lead` bytes. These words are in the message, which may be read and
    // written.
    let mut acc = unsafe { words.step::<true, VECTOR_OF_WORD>(!0 << first) };
    if SUM {
        sums.add_all(&acc);
    }
    let state = 1_u64 << first;
    for (i, vector) in acc.iter_mut().enumerate() {
        let state = _mm512_maskz_set1_epi32((state >> (16 * i)) as u16, !crc as i32);
        *vector = _mm512_xor_si512(*vector, state);
    }
    for _ in 1..steps {
        // SAFETY: all steps after the first are completely inside the message, which may be read and written.
        let new = unsafe { words.step::<false, VECTOR_OF_WORD>(!0) };
        if SUM {
            sums.add_all(&new);
        }
        acc = step(acc, by, new);
    }
    (reduce_lanes(acc), if SUM { message_sum(sums.total().into(), lead) } else { 0 })
}

/// State of the copy: positions of the next step, and the next word to insert.
struct InsertingCopy {
    /// Source of the first word of the next step.
    from: *const u8,
    to: *mut u8,
    /// Number of steps until the step with the next inserted word.
    steps_before_insert: usize,
    /// Bit of the inserted word in the mask of its vector.
    insert_mask: u16,
    inserts: Inserts,
}

impl InsertingCopy {
    /// Copies the next step, 64 words, and returns them. With `FIRST`, copies only the words that the mask `message`
    /// selects.
    ///
    /// # Safety
    /// The requirements of [`pass`].
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn step<const FIRST: bool, const VECTOR_OF_WORD: usize>(
        &mut self,
        message: u64,
    ) -> Lanes {
        let (from, to, word) = (self.from, self.to, self.inserts.first_word());
        let has_word = self.steps_before_insert == 0;
        self.from = from.wrapping_add(STEP_LEN);
        self.to = to.wrapping_add(STEP_LEN);
        if has_word {
            self.from = self.from.wrapping_sub(Inserts::LEN);
            self.steps_before_insert = STEPS_PER_INSERT;
            self.inserts.advance();
        }
        self.steps_before_insert -= 1;
        let mut all = [_mm512_setzero_si512(); 4];
        for (i, vector) in all.iter_mut().enumerate() {
            let inside = (message >> (16 * i)) as u16;
            if FIRST && inside == 0 {
                continue;
            }
            let (from, to) = (from.wrapping_add(i * VECTOR), to.wrapping_add(i * VECTOR));
            let behind = from.wrapping_sub(Inserts::LEN);
            // SAFETY: with `FIRST`, the masks select only words inside the message; without it, the whole vector is
            // inside. Words after the inserted word are read from one word earlier, their position in the source.
            unsafe {
                *vector = if !has_word || i < VECTOR_OF_WORD {
                    load::<FIRST>(inside, from)
                } else if i > VECTOR_OF_WORD {
                    load::<FIRST>(inside, behind)
                } else {
                    let front = self.insert_mask - 1;
                    let rest = !(front | self.insert_mask);
                    let vector = _mm512_maskz_loadu_epi32(inside & front, from.cast());
                    let vector = _mm512_mask_loadu_epi32(vector, inside & rest, behind.cast());
                    _mm512_mask_set1_epi32(vector, inside & self.insert_mask, word as i32)
                };
                match FIRST {
                    true => _mm512_mask_storeu_epi32(to.cast(), inside, *vector),
                    false => _mm512_storeu_si512(to.cast(), *vector),
                }
            }
        }
        all
    }
}

/// Loads a vector; with `MASKED`, only the words of `mask`.
///
/// # Safety
/// The loaded words may be read.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load<const MASKED: bool>(mask: u16, from: *const u8) -> __m512i {
    // SAFETY: the loaded words may be read, as the caller guarantees; masked words are not loaded.
    unsafe {
        match MASKED {
            true => _mm512_maskz_loadu_epi32(mask, from.cast()),
            false => _mm512_loadu_si512(from.cast()),
        }
    }
}
