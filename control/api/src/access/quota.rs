//! Rate limit of audit lines about calls without effect: a token bucket per user, and the number of omitted calls.
//!
//! A local user can make a million refused calls in half a minute. Each user may cause [`BURST`] lines at once and
//! [`TOKENS_PER_SECOND`] lines per second. Every [`REPORT_INTERVAL`], one line for each user with omitted calls reports
//! their number.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Capacity of a user's bucket, lines.
const BURST: f64 = 64.0;
/// Refill rate of a user's bucket, lines per second.
const TOKENS_PER_SECOND: f64 = 2.0;
/// Time between two reports of omitted calls.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of users with their own bucket. Further users share one bucket.
const MAX_USERS: usize = 256;

/// Token buckets by user.
#[derive(Debug)]
pub(super) struct LineQuota {
    /// Buckets by user id. The key `None` is the bucket of all users beyond [`MAX_USERS`].
    buckets: HashMap<Option<u32>, Bucket>,
    last_report: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    refilled_at: Instant,
    omitted: u64,
}

/// Number of omitted calls of one user.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OmittedCalls {
    /// User id; `None` for all users that share a bucket.
    pub(super) uid: Option<u32>,
    /// Number of omitted calls since the last report.
    pub(super) calls: u64,
}

impl Bucket {
    /// Adds the tokens for the time since the last refill.
    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.refilled_at).as_secs_f64();
        (self.tokens, self.refilled_at) =
            ((self.tokens + seconds * TOKENS_PER_SECOND).min(BURST), now);
    }
}

impl LineQuota {
    pub(super) fn new(now: Instant) -> LineQuota {
        LineQuota { buckets: HashMap::new(), last_report: now }
    }

    /// Takes a token from the user's bucket. Returns true if a line records the call; otherwise the call is counted as
    /// omitted. The first call of a user with their own bucket is always recorded.
    pub(super) fn admit(&mut self, uid: u32, now: Instant) -> bool {
        if self.buckets.is_empty() {
            self.last_report = now;
        }
        let bucket = self.bucket(uid, now);
        bucket.refill(now);
        if bucket.tokens < 1.0 {
            bucket.omitted += 1;
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    /// Counts an admitted call as omitted, because the queue had no space for its line. The token is not returned.
    pub(super) fn count_omitted(&mut self, uid: u32, now: Instant) {
        self.bucket(uid, now).omitted += 1;
    }

    fn bucket(&mut self, uid: u32, now: Instant) -> &mut Bucket {
        let own = self.buckets.contains_key(&Some(uid)) || self.buckets.len() < MAX_USERS;
        let full = || Bucket { tokens: BURST, refilled_at: now, omitted: 0 };
        self.buckets.entry(own.then_some(uid)).or_insert_with(full)
    }

    /// Returns the time at which [`report`](Self::report) is due; `None` while no bucket is in use.
    pub(super) fn report_due(&self) -> Option<Instant> {
        (!self.buckets.is_empty()).then(|| self.last_report + REPORT_INTERVAL)
    }

    /// Returns the number of omitted calls per user if a report is due, otherwise an empty list.
    pub(super) fn report(&mut self, now: Instant) -> Vec<OmittedCalls> {
        match self.report_due() {
            Some(due) if due <= now => self.report_all(now),
            _ => Vec::new(),
        }
    }

    /// Returns the number of omitted calls per user, whether or not a report is due. Resets these numbers, and removes
    /// users without omitted calls whose bucket is full.
    pub(super) fn report_all(&mut self, now: Instant) -> Vec<OmittedCalls> {
        self.last_report = now;
        let mut left_out = Vec::new();
        self.buckets.retain(|&uid, bucket| {
            bucket.refill(now);
            let calls = std::mem::take(&mut bucket.omitted);
            if calls > 0 {
                left_out.push(OmittedCalls { uid, calls });
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

    fn admitted(quota: &mut LineQuota, uid: u32, calls: u32, now: Instant) -> usize {
        (0..calls).filter(|_| quota.admit(uid, now)).count()
    }

    #[test]
    fn each_user_has_own_burst_and_rate() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut quota = LineQuota::new(start);
        assert_eq!(admitted(&mut quota, 7, 1_000_000, start), 64);
        assert_eq!(admitted(&mut quota, 7, 1000, start + second), 2);
        assert_eq!(admitted(&mut quota, 8, 10, start + second), 10);
        assert_eq!(quota.report_due(), Some(start + REPORT_INTERVAL));
        assert_eq!(quota.report(start + second), []);
        let reported = quota.report(start + REPORT_INTERVAL);
        assert_eq!(reported, [OmittedCalls { uid: Some(7), calls: 999_936 + 998 }]);
    }

    #[test]
    fn full_bucket_is_freed_after_last_report() {
        let mut now = Instant::now();
        let mut quota = LineQuota::new(now);
        admitted(&mut quota, 7, 65, now);
        let mut reports = 0;
        while let Some(due) = quota.report_due() {
            now = due;
            reports += quota.report(now).len();
        }
        assert_eq!((reports, quota.buckets.len()), (1, 0));
    }

    #[test]
    fn users_beyond_the_bound_share_a_bucket() {
        let now = Instant::now();
        let mut quota = LineQuota::new(now);
        for uid in 0..10_000 {
            quota.admit(uid, now);
        }
        assert_eq!(quota.buckets.len(), MAX_USERS + 1);
        let shared = 10_000 - MAX_USERS as u64 - BURST as u64;
        assert_eq!(quota.report_all(now), [OmittedCalls { uid: None, calls: shared }]);
    }
}
