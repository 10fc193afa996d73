//! Choice of STags: random, nonzero, not guessable and not reused soon.
//!
//! A peer may continue to use an STag after the region has been removed. If another region had the
//! number at once, the peer's bytes would be placed there. Released numbers are therefore
//! quarantined, and available again only after many other releases.

use std::collections::{HashSet, VecDeque};

use wire::ddp::Stag;

/// Number of released STags that stay in quarantine.
pub const QUARANTINE: usize = 65_536;

/// Most draws for one STag. With 2^32 numbers and at most a few hundred thousand unavailable, even
/// one repetition is rare.
const MAX_DRAWS: usize = 64;

/// Reason for which no STag was allocated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StagError {
    /// The system's random source failed.
    #[error("the system's random source cannot be read: {0}")]
    Random(String),
    /// The random source repeats its values.
    #[error("no unused STag in {MAX_DRAWS} draws")]
    Exhausted,
}

/// Live STags, and those in quarantine.
#[derive(Debug, Default)]
pub struct StagAllocator {
    live: HashSet<u32>,
    quarantined: HashSet<u32>,
    quarantine_order: VecDeque<u32>,
}

impl StagAllocator {
    /// Returns a number from the system's random source that is neither live nor quarantined.
    pub fn allocate(&mut self) -> Result<Stag, StagError> {
        self.allocate_from(|| {
            getrandom::u32().map_err(|error| StagError::Random(error.to_string()))
        })
    }

    /// Puts a live STag into quarantine. Returns false if it was not live.
    pub fn release(&mut self, stag: Stag) -> bool {
        if !self.live.remove(&stag.0) {
            return false;
        }
        self.quarantined.insert(stag.0);
        self.quarantine_order.push_back(stag.0);
        if self.quarantine_order.len() > QUARANTINE
            && let Some(oldest) = self.quarantine_order.pop_front()
        {
            self.quarantined.remove(&oldest);
        }
        true
    }

    /// Returns the number of live STags.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    fn allocate_from(
        &mut self,
        mut draw: impl FnMut() -> Result<u32, StagError>,
    ) -> Result<Stag, StagError> {
        for _ in 0..MAX_DRAWS {
            let candidate = draw()?;
            // Zero is excluded: initiators use it as "none" (RFC 5042 §6.4 requires unpredictable
            // values).
            if candidate != 0
                && !self.quarantined.contains(&candidate)
                && self.live.insert(candidate)
            {
                return Ok(Stag(candidate));
            }
        }
        Err(StagError::Exhausted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripted_source(numbers: &[u32]) -> impl FnMut() -> Result<u32, StagError> {
        let mut numbers = numbers.iter().copied();
        move || numbers.next().ok_or(StagError::Exhausted)
    }

    #[test]
    fn zero_live_and_quarantined_stags_are_skipped() {
        let mut stags = StagAllocator::default();
        assert_eq!(stags.allocate_from(scripted_source(&[0, 7])), Ok(Stag(7)));
        assert_eq!(stags.allocate_from(scripted_source(&[7, 9])), Ok(Stag(9)));
        assert!(stags.release(Stag(7)));
        assert_eq!(stags.allocate_from(scripted_source(&[7, 9, 11])), Ok(Stag(11)));
        assert_eq!(stags.live(), 2);
    }

    #[test]
    fn released_stag_is_reused_only_after_quarantine() {
        let mut stags = StagAllocator::default();
        assert_eq!(stags.allocate_from(scripted_source(&[1])), Ok(Stag(1)));
        stags.release(Stag(1));
        for n in 0..QUARANTINE as u32 {
            assert_eq!(
                stags.allocate_from(scripted_source(&[1, n + 2])),
                Ok(Stag(n + 2)),
                "round {n}"
            );
            stags.release(Stag(n + 2));
        }
        assert_eq!(stags.allocate_from(scripted_source(&[1])), Ok(Stag(1)));
    }

    #[test]
    fn repeating_random_source_is_an_error() {
        let mut stags = StagAllocator::default();
        assert_eq!(stags.allocate_from(|| Ok(5)), Ok(Stag(5)));
        assert_eq!(stags.allocate_from(|| Ok(5)), Err(StagError::Exhausted));
    }

    #[test]
    fn release_of_unknown_stag_is_ignored() {
        let mut stags = StagAllocator::default();
        assert!(!stags.release(Stag(3)));
        assert_eq!(stags.allocate_from(scripted_source(&[3])), Ok(Stag(3)));
    }

    // RFC 5040 §8.1.1 (8): "hard to predict". A counter, a constant step or a repeated sequence
    // would be predictable.
    #[test]
    fn numbers_of_the_system_are_not_predictable() {
        let draw = || {
            let mut stags = StagAllocator::default();
            (0..1000).map(|_| stags.allocate().unwrap().0).collect::<Vec<u32>>()
        };
        let (numbers, again) = (draw(), draw());
        for bit in 0..32 {
            // Ten standard deviations from one half.
            let ones = numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
            assert!((340..=660).contains(&ones), "bit {bit} is 1 in {ones} of 1000 numbers");
        }
        let steps = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        assert!(steps.collect::<HashSet<_>>().len() > 990, "steps repeat");
        let known: HashSet<u32> = numbers.into_iter().collect();
        let same = again.iter().filter(|number| known.contains(number)).count();
        assert!(same < 10, "{same} of 1000 numbers are the same in another process");
    }

    #[test]
    fn numbers_of_the_system_differ() {
        let mut stags = StagAllocator::default();
        let drawn: HashSet<u32> = (0..1000).map(|_| stags.allocate().unwrap().0).collect();
        assert_eq!(drawn.len(), 1000);
        assert!(!drawn.contains(&0));
    }
}
