//! Allocation of STags: random, nonzero and unpredictable. A released STag is not reused before [`QUARANTINE`] others
//! have been released.
//!
//! A peer may use an STag after its region was removed. If another region had the same STag by then, the peer's bytes
//! would be placed there. Released STags are therefore quarantined.

use std::collections::{HashSet, VecDeque};

use wire::ddp::Stag;

/// Maximum number of quarantined STags. The quarantine of memory windows is separate and has the same size.
pub const QUARANTINE: usize = 65_536;

/// Maximum number of draws for one STag. The quarantines hold at most 2^16 + 2^24 of the 2^32 values, so even a second
/// draw is rare.
const MAX_DRAWS: usize = 64;

/// Reason why no STag was allocated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StagError {
    /// The system's random source failed.
    #[error("the system's random source cannot be read: {0}")]
    Random(String),
    /// The random source repeats values.
    #[error("no unused STag in {MAX_DRAWS} draws")]
    Exhausted,
}

/// STags in use and STags in quarantine. A memory window has all 256 STags with the same upper 24 bits.
#[derive(Debug, Default)]
pub struct StagAllocator {
    stags: Numbers,
    /// Upper 24 bits of the STags of memory windows.
    windows: Numbers,
}

/// Numbers in use, and those in quarantine.
#[derive(Debug, Default)]
struct Numbers {
    live: HashSet<u32>,
    quarantined: HashSet<u32>,
    quarantine_order: VecDeque<u32>,
}

impl StagAllocator {
    /// Allocates a random STag that is neither in use nor quarantined.
    pub fn allocate(&mut self) -> Result<Stag, StagError> {
        self.allocate_from(draw)
    }

    /// Allocates a memory window. Returns the upper 24 bits of its STags; none of these STags is in use or quarantined.
    pub fn allocate_window(&mut self) -> Result<u32, StagError> {
        self.allocate_window_from(draw)
    }

    /// Moves an STag to quarantine. Returns false if it was not in use.
    pub fn release(&mut self, stag: Stag) -> bool {
        self.stags.release(stag.0)
    }

    /// Moves the STags of a memory window to quarantine. Returns false if they were not in use.
    pub fn release_window(&mut self, window: u32) -> bool {
        self.windows.release(window)
    }

    /// Returns the number of STags in use plus the number of memory windows in use.
    pub fn live(&self) -> usize {
        self.stags.live.len() + self.windows.live.len()
    }

    fn allocate_from(
        &mut self,
        mut draw: impl FnMut() -> Result<u32, StagError>,
    ) -> Result<Stag, StagError> {
        for _ in 0..MAX_DRAWS {
            let candidate = draw()?;
            // Zero is excluded, because initiators use it for "none". RFC 5040 §8.1.1 (8) requires values that are
            // difficult to predict.
            if candidate != 0
                && !self.windows.contains(candidate >> 8)
                && self.stags.insert(candidate)
            {
                return Ok(Stag(candidate));
            }
        }
        Err(StagError::Exhausted)
    }

    fn allocate_window_from(
        &mut self,
        mut draw: impl FnMut() -> Result<u32, StagError>,
    ) -> Result<u32, StagError> {
        for _ in 0..MAX_DRAWS {
            let candidate = draw()? >> 8;
            let mut stags = (0..256).map(|key| candidate << 8 | key);
            let is_free = candidate != 0 && !stags.any(|stag| self.stags.contains(stag));
            if is_free && self.windows.insert(candidate) {
                return Ok(candidate);
            }
        }
        Err(StagError::Exhausted)
    }
}

impl Numbers {
    /// Returns true if the number is in use or quarantined.
    fn contains(&self, number: u32) -> bool {
        self.live.contains(&number) || self.quarantined.contains(&number)
    }

    /// Adds a number to those in use. Returns false if it is in use or quarantined already.
    fn insert(&mut self, number: u32) -> bool {
        !self.quarantined.contains(&number) && self.live.insert(number)
    }

    /// Moves a number to quarantine. Returns false if it was not in use.
    fn release(&mut self, number: u32) -> bool {
        if !self.live.remove(&number) {
            return false;
        }
        self.quarantined.insert(number);
        self.quarantine_order.push_back(number);
        if self.quarantine_order.len() > QUARANTINE
            && let Some(oldest) = self.quarantine_order.pop_front()
        {
            self.quarantined.remove(&oldest);
        }
        true
    }
}

/// Draws a random number from the system's random source.
fn draw() -> Result<u32, StagError> {
    getrandom::u32().map_err(|error| StagError::Random(error.to_string()))
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
    fn window_stags_are_not_allocated_otherwise() {
        let mut stags = StagAllocator::default();
        assert_eq!(stags.allocate_from(scripted_source(&[0x0107])), Ok(Stag(0x0107)));
        let draws = [0x00ff, 0x01ff, 0x02ff];
        assert_eq!(stags.allocate_window_from(scripted_source(&draws)), Ok(2));
        assert_eq!(stags.allocate_window_from(scripted_source(&[0x0200, 0x0300])), Ok(3));
        assert_eq!(stags.allocate_from(scripted_source(&[0x0255, 0x0455])), Ok(Stag(0x0455)));
        assert_eq!(stags.live(), 4);
        assert!(stags.release_window(2) && !stags.release_window(2));
        // Quarantined numbers are not used either.
        assert_eq!(stags.allocate_window_from(scripted_source(&[0x02ff, 0x05ff])), Ok(5));
        assert_eq!(stags.allocate_from(scripted_source(&[0x0255, 0x0655])), Ok(Stag(0x0655)));
        stags.release(Stag(0x0107));
        assert_eq!(stags.allocate_window_from(scripted_source(&[0x01ff, 0x07ff])), Ok(7));
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

    // RFC 5040 §8.1.1 (8): "difficult to predict". A counter, a constant step and a repeated sequence are predictable.
    #[test]
    fn numbers_of_the_system_are_not_predictable() {
        let draw = || {
            let mut stags = StagAllocator::default();
            (0..1000).map(|_| stags.allocate().unwrap().0).collect::<Vec<u32>>()
        };
        let (numbers, again) = (draw(), draw());
        for bit in 0..32 {
            // The number of ones is within ten standard deviations of 500.
            let ones = numbers.iter().filter(|number| *number >> bit & 1 == 1).count();
            assert!((340..=660).contains(&ones), "bit {bit} is 1 in {ones} of 1000 numbers");
        }
        let steps = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        assert!(steps.collect::<HashSet<_>>().len() > 990, "steps repeat");
        let known: HashSet<u32> = numbers.into_iter().collect();
        let same = again.iter().filter(|number| known.contains(number)).count();
        assert!(same < 10, "{same} of 1000 numbers are the same in a second allocator");
    }

    #[test]
    fn numbers_of_the_system_differ() {
        let mut stags = StagAllocator::default();
        let drawn: HashSet<u32> = (0..1000).map(|_| stags.allocate().unwrap().0).collect();
        assert_eq!(drawn.len(), 1000);
        assert!(!drawn.contains(&0));
    }
}
