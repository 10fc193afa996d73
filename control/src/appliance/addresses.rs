//! The addresses of a peer in an active open: addresses that remain to be tried, and the failures of earlier addresses.
//!
//! Addresses are tried in sequence. Each address except the last has an equal share of the remaining time, at most 5 s.
//! Parallel attempts 250 ms apart (RFC 8305) are not used, because they would block each other if the peer's region
//! admits one stream at a time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dataplane::InterfaceId;

use api::ApiError;

/// Time limit of an attempt while untried addresses remain. Allows two retransmissions of a SYN, after 1 and 3 s (RFC
/// 6298 §2).
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// An address, and the interface that reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) remote: SocketAddr,
    pub(super) interface: InterfaceId,
}

/// Addresses that remain to be tried, and the failures so far.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    remaining: VecDeque<Candidate>,
    /// One sentence per address that failed or was not tried.
    failures: Vec<String>,
    /// Deadline of the entire open, set by the first attempt.
    deadline: Option<Instant>,
}

impl Addresses {
    /// Creates the list. `next`: addresses in the order of attempts. `failures`: one reason per address that is not
    /// tried.
    pub(super) fn new(next: Vec<Candidate>, failures: Vec<String>) -> Self {
        Self { remaining: next.into(), failures, deadline: None }
    }

    /// Returns the time-out of the attempt that begins now. `total`: time-out of the entire open.
    pub(super) fn attempt_timeout(&mut self, now: Instant, total: Duration) -> Duration {
        let until = *self.deadline.get_or_insert(now + total);
        let remaining_time = until.saturating_duration_since(now);
        match u32::try_from(self.remaining.len()) {
            Ok(0) => remaining_time,
            others => {
                ATTEMPT_TIMEOUT.min(remaining_time / others.unwrap_or(u32::MAX).saturating_add(1))
            }
        }
    }

    /// Removes and returns the next address. `None` if no address is left.
    pub(super) fn pop(&mut self) -> Option<Candidate> {
        self.remaining.pop_front()
    }

    /// Records the error of a failed attempt.
    pub(super) fn fail(&mut self, error: &ApiError) {
        self.failures.push(error.message.clone());
    }

    /// Returns the error with which the open fails: `last`, the error of the last attempt. If several addresses failed,
    /// its message is replaced by a list of the failures of all addresses.
    pub(super) fn conclude(&self, last: ApiError) -> ApiError {
        if self.failures.len() < 2 {
            return last;
        }
        let (number, each) = (self.failures.len(), self.failures.join("; "));
        let message = format!("none of the peer's {number} addresses can be reached: {each}");
        ApiError { message, ..last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::appliance::pending::CONNECT_TIMEOUT;

    fn addresses(number: u16) -> Addresses {
        let remote = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let one = |port| Candidate { remote: remote(port), interface: InterfaceId(0) };
        Addresses::new((0..number).map(one).collect(), Vec::new())
    }

    #[test]
    fn silent_addresses_share_the_connect_timeout() {
        let start = Instant::now();
        for (number, first) in [(1, 30_000), (2, 5000), (6, 5000), (10, 3000), (32, 937)] {
            let (mut addresses, mut now) = (addresses(number), start);
            let mut shares = Vec::new();
            while addresses.pop().is_some() {
                let share = addresses.attempt_timeout(now, CONNECT_TIMEOUT);
                now += share;
                shares.push(share);
            }
            assert_eq!(shares[0].as_millis(), first, "{number} addresses");
            assert!(shares.iter().all(|&share| share >= shares[0]), "{shares:?}");
            assert_eq!(now - start, CONNECT_TIMEOUT, "the last address has the remaining time");
        }
    }

    #[test]
    fn single_failure_is_reported_unchanged() {
        let error = ApiError::timeout("192.0.2.1:0: timed out");
        let mut addresses = addresses(0);
        addresses.fail(&error);
        assert_eq!(addresses.conclude(error.clone()), error);
        let refused = ApiError::peer_refused("192.0.2.1:1: refused").with_hint(Some("a hint"));
        addresses.fail(&refused);
        let all = addresses.conclude(refused);
        let sentence = "none of the peer's 2 addresses can be reached: 192.0.2.1:0: timed out; 192.0.2.1:1: refused";
        assert_eq!((all.message.as_str(), all.hint.as_deref()), (sentence, Some("a hint")));
    }
}
