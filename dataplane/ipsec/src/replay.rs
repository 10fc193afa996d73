//! The anti-replay window (RFC 4303 §3.4.3) and the high half of ESN (appendix A2).
//!
//! A ring of 64-bit words holds one bit per sequence number. The ring has one word more than the window needs, so the
//! first and last word of a window never share a slot. [`Window::check`] does not change the window; [`Window::update`]
//! is called after the ICV is verified.

use std::num::NonZeroU16;

/// Smallest window, in packets.
pub const WINDOW_MIN: u16 = 64;
/// Largest window, in packets.
pub const WINDOW_MAX: u16 = 4096;

/// Reasons to refuse a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// Below the window.
    TooOld,
    /// In the window and already received.
    Duplicate,
    /// Zero, or outside the 64-bit space: no sender uses it (RFC 4303 §3.3.3).
    Impossible,
}

/// The anti-replay window of one inbound SA, [`WINDOW_MIN`] to [`WINDOW_MAX`] packets long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    top: u64,
    size: u64,
    words: Box<[u64]>,
}

impl Window {
    /// Returns a window of `size` packets; `None` if `size` is outside `WINDOW_MIN..=WINDOW_MAX`.
    pub fn new(size: NonZeroU16) -> Option<Self> {
        let size = size.get();
        (WINDOW_MIN..=WINDOW_MAX).contains(&size).then(|| Self {
            top: 0,
            size: u64::from(size),
            words: vec![0; usize::from(size).div_ceil(64) + 1].into(),
        })
    }

    /// Returns the highest authenticated sequence number; 0 before the first.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// Returns the size in packets.
    pub fn size(&self) -> u16 {
        self.size as u16
    }

    /// Continues after another receiver: all sequence numbers up to `top` count as received.
    pub fn resume(&mut self, top: u64) {
        self.top = top;
        self.words.fill(u64::MAX);
        let (word, bit) = self.slot(top);
        // Bits above `top` in its word are future sequence numbers.
        self.words[word] = u64::MAX >> (63 - bit);
    }

    /// Returns a window of `size` packets that refuses all sequence numbers that `self` refuses. `None` if `size` is
    /// outside `WINDOW_MIN..=WINDOW_MAX`.
    pub fn resized(&self, size: NonZeroU16) -> Option<Self> {
        let mut window = Self::new(size)?;
        window.resume(self.top);
        let oldest = self.top.saturating_sub(window.size - 1).max(1);
        for seq in (oldest..=self.top).filter(|&seq| self.check(seq).is_ok()) {
            let (word, bit) = window.slot(seq);
            window.words[word] &= !(1 << bit);
        }
        Some(window)
    }

    /// Returns the 64-bit sequence number for `low` (RFC 4303 appendix A2.2); without ESN `low` itself.
    ///
    /// # Errors
    /// [`ReplayError::Impossible`]: the number would be negative or exceed 64 bits.
    pub fn extend(&self, low: u32, esn: bool) -> Result<u64, ReplayError> {
        if !esn {
            return Ok(u64::from(low));
        }
        let (top_high, top_low) = ((self.top >> 32) as u32, self.top as u32);
        let bottom = top_low.wrapping_sub(self.size as u32 - 1);
        let high = if u64::from(top_low) >= self.size - 1 {
            // Case A: the window lies within one subspace, a range of 2^32 sequence numbers with the same high half.
            if low >= bottom { Some(top_high) } else { top_high.checked_add(1) }
        } else if low >= bottom {
            // Case B: the window spans two subspaces.
            top_high.checked_sub(1)
        } else {
            Some(top_high)
        };
        high.map(|high| u64::from(high) << 32 | u64::from(low)).ok_or(ReplayError::Impossible)
    }

    /// Checks that `seq` is not zero, not received before and not below the window.
    pub fn check(&self, seq: u64) -> Result<(), ReplayError> {
        if seq == 0 {
            return Err(ReplayError::Impossible);
        }
        if seq > self.top {
            return Ok(());
        }
        if self.top - seq >= self.size {
            return Err(ReplayError::TooOld);
        }
        let (word, bit) = self.slot(seq);
        if self.words[word] >> bit & 1 == 1 { Err(ReplayError::Duplicate) } else { Ok(()) }
    }

    /// Marks `seq` as received. Call it only after [`Self::check`] and verification of the ICV (RFC 4303 §3.4.3).
    pub fn update(&mut self, seq: u64) {
        if seq > self.top {
            let steps = ((seq >> 6) - (self.top >> 6)).min(self.words.len() as u64);
            for step in 0..steps {
                let (word, _) = self.slot(((seq >> 6) - step) << 6);
                self.words[word] = 0;
            }
            self.top = seq;
        }
        let (word, bit) = self.slot(seq);
        self.words[word] |= 1 << bit;
    }

    fn slot(&self, seq: u64) -> (usize, u32) {
        (((seq >> 6) % self.words.len() as u64) as usize, (seq & 63) as u32)
    }
}
