//! Rate limit of audit lines about calls without effect: a token bucket for each user, and the
//! number of calls without a line.
//!
//! A local user can make a million refused calls in half a minute. Each user gets [`BURST`] lines,
//! and [`PER_SECOND`] more. Every [`REPORT_EVERY`] one line has the number of a user's other calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of a user in a row.
const BURST: f64 = 64.0;
/// Further lines of a user in a second.
const PER_SECOND: f64 = 2.0;
/// Time between two lines with the number of calls that have none.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Users with a bucket of their own; further ones share one.
const USERS: usize = 256;

/// Token buckets by user.
#[derive(Debug)]
pub(super) struct Quota {
    /// `None` is for users beyond [`USERS`].
    buckets: HashMap<Option<u32>, Bucket>,
    reported: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
    left_out: u64,
}

/// Calls of a user without a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// User id; `None` combines several users.
    pub(super) uid: Option<u32>,
    /// Calls since the last such report.
    pub(super) calls: u64,
}

impl Bucket {
    /// Adds the tokens since the last call.
    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + seconds * PER_SECOND).min(BURST), now);
    }
}

impl Quota {
    pub(super) fn new(now: Instant) -> Quota {
        Quota { buckets: HashMap::new(), reported: now }
    }

    /// Returns true if a call of this user gets a line. The first call of a user does.
    pub(super) fn admits(&mut self, uid: u32, now: Instant) -> bool {
        if self.buckets.is_empty() {
            self.reported = now;
        }
        let bucket = self.bucket(uid, now);
        bucket.refill(now);
        if bucket.tokens < 1.0 {
            bucket.left_out += 1;
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    /// Takes the line of an admitted call back: it found no room.
    pub(super) fn leave_out(&mut self, uid: u32, now: Instant) {
        self.bucket(uid, now).left_out += 1;
    }

    fn bucket(&mut self, uid: u32, now: Instant) -> &mut Bucket {
        let own = self.buckets.contains_key(&Some(uid)) || self.buckets.len() < USERS;
        let full = || Bucket { tokens: BURST, at: now, left_out: 0 };
        self.buckets.entry(own.then_some(uid)).or_insert_with(full)
    }

    /// Returns the time at which [`report`](Self::report) is due; `None` while no bucket is in use.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.buckets.is_empty()).then(|| self.reported + REPORT_EVERY)
    }

    /// Returns the numbers of calls without a line, if they are due, and forgets users whose buckets are full.
    pub(super) fn report(&mut self, now: Instant) -> Vec<LeftOut> {
        match self.due() {
            Some(due) if due <= now => self.report_all(now),
            _ => Vec::new(),
        }
    }

    /// Returns all reports, due or not.
    pub(super) fn report_all(&mut self, now: Instant) -> Vec<LeftOut> {
        self.reported = now;
        let mut left_out = Vec::new();
        self.buckets.retain(|&uid, bucket| {
            bucket.refill(now);
            let calls = std::mem::take(&mut bucket.left_out);
            if calls > 0 {
                left_out.push(LeftOut { uid, calls });
            }
            calls > 0 || bucket.tokens < BURST
        });
        left_out.sort_unstable_by_key(|report| report.uid);
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(quota: &mut Quota, uid: u32, calls: u32, now: Instant) -> usize {
        (0..calls).filter(|_| quota.admits(uid, now)).count()
    }

    #[test]
    fn a_user_has_a_burst_and_a_rate_and_the_others_have_their_own() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut quota = Quota::new(start);
        assert_eq!(admitted(&mut quota, 7, 1_000_000, start), 64);
        assert_eq!(admitted(&mut quota, 7, 1000, start + second), 2);
        assert_eq!(admitted(&mut quota, 8, 10, start + second), 10);
        assert_eq!(quota.due(), Some(start + REPORT_EVERY));
        assert_eq!(quota.report(start + second), []);
        let reported = quota.report(start + REPORT_EVERY);
        assert_eq!(reported, [LeftOut { uid: Some(7), calls: 999_936 + 998 }]);
    }

    #[test]
    fn a_user_with_a_full_bucket_is_forgotten_after_the_last_report() {
        let mut now = Instant::now();
        let mut quota = Quota::new(now);
        admitted(&mut quota, 7, 65, now);
        let mut reports = 0;
        while let Some(due) = quota.due() {
            now = due;
            reports += quota.report(now).len();
        }
        assert_eq!((reports, quota.buckets.len()), (1, 0));
    }

    #[test]
    fn users_beyond_the_bound_share_a_bucket() {
        let now = Instant::now();
        let mut quota = Quota::new(now);
        for uid in 0..10_000 {
            quota.admits(uid, now);
        }
        assert_eq!(quota.buckets.len(), USERS + 1);
        let shared = 10_000 - USERS as u64 - BURST as u64;
        assert_eq!(quota.report_all(now), [LeftOut { uid: None, calls: shared }]);
    }
}
