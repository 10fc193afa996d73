//! Senders whose peer does not answer: when that is worth a report.

use core::time::Duration;

/// Time-outs in a row after which a sender has stalled.
pub const TIMEOUTS: u32 = 10;

/// A sender that makes no progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// Time-outs in a row: retransmissions without an acknowledgement, or probes of a closed window without an answer.
    pub timeouts: u32,
    /// Time since the peer acknowledged something new, or since data was sent with nothing in flight.
    pub silent: Duration,
    /// By the limits of the sender its next time-out ends it.
    pub last: bool,
}

impl Stall {
    /// `None` for fewer than [`TIMEOUTS`] in a row, unless the limits of the sender leave no more.
    pub fn of(timeouts: u32, last: bool, silent: Duration) -> Option<Stall> {
        let stalls = timeouts >= TIMEOUTS || (timeouts > 0 && last);
        stalls.then_some(Stall { timeouts, silent, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenth_timeout_or_the_last_that_the_limits_leave_is_a_stall() {
        let silent = Duration::from_secs(3);
        let stalls = |timeouts, last| Stall::of(timeouts, last, silent).is_some();
        let cases = [(0, true), (1, false), (9, false), (1, true), (10, false), (11, true)];
        let want = [false, false, false, true, true, true];
        assert_eq!(cases.map(|(timeouts, last)| stalls(timeouts, last)), want);
    }
}
