//! Rate limit of challenge acknowledgements (RFC 5961 §7).

use base::Instant;

/// Number of challenge acknowledgements of one connection in the current second. A global limit would be a side
/// channel: an attacker could detect on its own connection that another connection has sent challenges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChallengeLimit {
    /// Start of the current second.
    since: Instant,
    sent: u32,
}

impl ChallengeLimit {
    pub(crate) fn new(now: Instant) -> Self {
        ChallengeLimit { since: now, sent: 0 }
    }

    /// Counts a challenge acknowledgement if this second's limit allows one. Returns false if it does not.
    pub(crate) fn try_acquire(&mut self, now: Instant, per_second: u32) -> bool {
        if now.saturating_since(self.since).as_secs() >= 1 {
            *self = ChallengeLimit::new(now);
        }
        let allowed = self.sent < per_second;
        self.sent += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_acks_are_limited_per_second() {
        let mut limit = ChallengeLimit::new(Instant::ZERO);
        let allowed = |limit: &mut ChallengeLimit, at| {
            (0..100).filter(|_| limit.try_acquire(Instant::from_millis(at), 10)).count()
        };
        assert_eq!(allowed(&mut limit, 0), 10);
        assert_eq!(allowed(&mut limit, 999), 0);
        assert_eq!(allowed(&mut limit, 1000), 10);
    }
}
