//! Detection of stalled senders, whose peer does not answer.

use core::time::Duration;

/// Consecutive time-outs after which a sender counts as stalled.
pub const STALL_TIMEOUTS: u32 = 10;

/// A sender without progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// Consecutive time-outs: retransmissions without an acknowledgement, or probes of a closed window
    /// without an answer.
    pub timeouts: u32,
    /// Time since the last progress: an acknowledgement of new data, an answer to a window probe, or, if later, data
    /// sent with nothing in flight.
    pub silent: Duration,
    /// True if the next time-out reaches the sender's limit, which ends the connection.
    pub last: bool,
}

impl Stall {
    /// Returns the stall after at least [`STALL_TIMEOUTS`] consecutive time-outs, or after any time-out if `last`;
    /// otherwise `None`.
    pub fn detect(timeouts: u32, last: bool, silent: Duration) -> Option<Stall> {
        let stalls = timeouts >= STALL_TIMEOUTS || (timeouts > 0 && last);
        stalls.then_some(Stall { timeouts, silent, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenth_or_last_timeout_is_a_stall() {
        let silent = Duration::from_secs(3);
        let stalls = |timeouts, last| Stall::detect(timeouts, last, silent).is_some();
        let cases = [(0, true), (1, false), (9, false), (1, true), (10, false), (11, true)];
        let want = [false, false, false, true, true, true];
        assert_eq!(cases.map(|(timeouts, last)| stalls(timeouts, last)), want);
    }
}
