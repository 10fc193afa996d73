//! A small seeded generator (SplitMix64). One seed yields the same sequence on every machine and in every release. Not
//! suitable for secrets.

use crate::Probability;

/// Seeded pseudo-random numbers; unsuitable for numbers that an attacker must not guess.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns a generator with the seed `seed`.
    pub const fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must not be zero. The bias is below 2^-32 for bounds up to 2^32.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number below `bound`. If `bound` is zero, returns zero and does not advance the sequence.
    pub fn next_below_or_zero(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_below(bound) }
    }

    /// Returns true with this probability. Probabilities 0 and 1 do not advance the sequence.
    pub fn chance(&mut self, p: Probability) -> bool {
        if p.is_never() {
            return false;
        }
        if p.is_always() {
            return true;
        }
        // 53 bits are exact as f64.
        ((self.next_u64() >> 11) as f64) < p.get() * (1u64 << 53) as f64
    }
}
