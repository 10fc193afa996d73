//! Delivery rate (draft-cheng-iccrg-delivery-rate-estimation §3), sampled per transmit run. All segments of a run have
//! the same transmission time, which identifies the run. The record of a segment therefore stores only that time.
//!
//! ```text
//!   runs:  | sent at 1.0 | sent at 1.2 | sent at 1.3 |
//!                             ▲
//!   an acknowledgement whose newest segment was sent at 1.2 gives a sample: from that run to the acknowledgement
//! ```
//!
//! Each run stores the delivery state at its transmission: bytes delivered so far, and the time of the last delivery. A
//! sample contains the bytes delivered from then until the acknowledgement.
//!
//! Used only for a controller that needs samples. Memory is bounded by [`MAX_RUNS`], 64 bytes each.

use std::collections::VecDeque;

use base::{Instant, Nanos};

/// Maximum number of recorded runs. Segments of further runs yield no sample.
const MAX_RUNS: usize = 256;

/// A transmit run: the segments that one poll of the sender sent, all at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Transmission time.
    pub sent_at: Instant,
    /// Bytes sent into the network, retransmissions included.
    pub bytes: u64,
    /// Bytes in flight before the run was sent.
    pub in_flight: u64,
    /// True if the run ended for lack of data while the window had room.
    pub app_limited: bool,
}

/// A delivery-rate sample, taken at an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateSample {
    /// Bytes delivered in `interval`.
    pub delivered: u64,
    /// The longer of the time to send these bytes and the time to acknowledge them.
    pub interval: Nanos,
    /// Bytes in flight when the newest delivered segment was sent, including its run.
    pub in_flight: u64,
    /// Bytes delivered before the newest delivered segment was sent; used to count round trips.
    pub prior_delivered: u64,
    /// Bytes found lost since the newest delivered segment was sent.
    pub lost: u64,
    /// True if the sender lacked data when the newest delivered segment was sent: the path may be faster.
    pub app_limited: bool,
}

impl RateSample {
    /// Returns the rate, bytes per second.
    pub fn rate(&self) -> u64 {
        let nanos = u128::from(self.interval.get().max(1));
        u64::try_from(u128::from(self.delivered) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
    }
}

/// A run, with the delivery state when it was sent.
#[derive(Clone, Copy, Debug)]
struct SentRun {
    sent_at: Instant,
    /// Start of the sending interval: the transmission time of the newest run that was acknowledged before this run was
    /// sent. Equal to `sent_at` if nothing was in flight.
    first_at: Instant,
    /// Bytes delivered before the run, and the time of the last delivery.
    delivered: u64,
    delivered_at: Instant,
    /// Bytes in flight when the run was sent, the run included.
    in_flight: u64,
    /// Bytes found lost before the run was sent.
    lost: u64,
    /// True if the sender lacked data when the run was sent.
    app_limited: bool,
}

/// Runs in flight, and totals of delivery and loss.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    /// Runs in the order of transmission, at most [`MAX_RUNS`].
    runs: VecDeque<SentRun>,
    /// Bytes delivered so far, and the time of the last delivery.
    delivered: u64,
    delivered_at: Instant,
    /// [`SentRun::first_at`] of the next run.
    first_at: Instant,
    /// Bytes found lost so far.
    lost: u64,
    /// Samples are application-limited until this many bytes are delivered.
    app_limited_until: u64,
}

impl Sampler {
    /// Records a run.
    pub(super) fn on_sent(&mut self, run: &Run) {
        if run.in_flight == 0 {
            (self.first_at, self.delivered_at) = (run.sent_at, run.sent_at);
        }
        let in_flight = run.in_flight + run.bytes;
        let sent = SentRun {
            sent_at: run.sent_at,
            first_at: self.first_at,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            in_flight,
            lost: self.lost,
            app_limited: self.app_limited_until > self.delivered,
        };
        let full = self.runs.len() >= MAX_RUNS;
        match self.runs.back_mut().filter(|last| last.sent_at == run.sent_at) {
            Some(last) => last.in_flight = in_flight,
            None if full => {}
            None => self.runs.push_back(sent),
        }
        if run.app_limited {
            self.app_limited_until = self.delivered + in_flight;
        }
    }

    /// Processes an acknowledgement of `delivered` bytes, the newest of them sent at `newest`. Returns no sample if
    /// that run is not recorded, or if the interval is shorter than a round trip.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        delivered: u64,
        newest: Option<Instant>,
        min_rtt: Option<Nanos>,
    ) -> Option<RateSample> {
        if delivered == 0 {
            return None;
        }
        self.delivered += delivered;
        self.delivered_at = now;
        let run = self.find_run(newest?)?;
        // Drops older runs, whose samples would be outdated.
        self.runs.retain(|other| other.sent_at >= run.sent_at);
        self.first_at = run.sent_at;
        let sending = run.sent_at.nanos_since(run.first_at);
        let interval = sending.max(now.nanos_since(run.delivered_at));
        // Draft §3.3: an interval below a round trip (acknowledgements bunched together) does not measure the path.
        if interval == Nanos::ZERO || min_rtt.is_some_and(|rtt| interval < rtt) {
            return None;
        }
        Some(RateSample {
            delivered: self.delivered - run.delivered,
            interval,
            in_flight: run.in_flight,
            prior_delivered: run.delivered,
            lost: self.lost - run.lost,
            app_limited: run.app_limited,
        })
    }

    /// Counts a lost segment of `bytes` that was sent at `sent_at`. Returns the bytes in flight at that time, if
    /// recorded.
    pub(super) fn on_lost(&mut self, bytes: u64, sent_at: Instant) -> Option<u64> {
        self.lost += bytes;
        self.find_run(sent_at).map(|run| run.in_flight)
    }

    fn find_run(&self, at: Instant) -> Option<SentRun> {
        let found = self.runs.binary_search_by_key(&at, |run| run.sent_at).ok()?;
        self.runs.get(found).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn run(ms: u64, bytes: u64, in_flight: u64) -> Run {
        Run { sent_at: MS(ms), bytes, in_flight, app_limited: false }
    }

    fn sampler() -> Sampler {
        let mut sampler = Sampler::default();
        sampler.on_sent(&run(1000, 10_000, 0));
        sampler.on_sent(&run(1010, 10_000, 10_000));
        sampler
    }

    // draft-cheng-iccrg-delivery-rate-estimation §3.1: bytes delivered over the longer of sending time and
    // acknowledgement time.
    #[test]
    fn rate_sample_counts_delivery_since_run_was_sent() {
        let mut sampler = sampler();
        let first = sampler.on_ack(MS(1100), 10_000, Some(MS(1000)), None).unwrap();
        assert_eq!((first.delivered, first.interval), (10_000, Nanos::from_millis(100)));
        assert_eq!((first.rate(), first.in_flight, first.prior_delivered), (100_000, 10_000, 0));
        sampler.on_sent(&run(1100, 20_000, 10_000));
        let second = sampler.on_ack(MS(1110), 10_000, Some(MS(1010)), None).unwrap();
        assert_eq!((second.delivered, second.in_flight), (20_000, 20_000));
        let third = sampler.on_ack(MS(1200), 20_000, Some(MS(1100)), None).unwrap();
        assert_eq!((third.delivered, third.interval), (30_000, Nanos::from_millis(100)));
        assert_eq!(third.prior_delivered, 10_000);
    }

    #[test]
    fn segments_sent_together_share_a_run_and_runs_are_bounded() {
        let mut sampler = sampler();
        sampler.on_sent(&run(1010, 5_000, 20_000));
        assert_eq!((sampler.runs.len(), sampler.runs[1].in_flight), (2, 25_000));
        for ms in 0..1000 {
            sampler.on_sent(&run(2000 + ms, 1, 25_000));
        }
        assert_eq!(sampler.runs.len(), MAX_RUNS);
    }

    #[test]
    fn app_limited_mark_lasts_until_flight_is_delivered() {
        let mut sampler = Sampler::default();
        sampler.on_sent(&Run { app_limited: true, ..run(1000, 10_000, 0) });
        sampler.on_sent(&run(1001, 10_000, 10_000));
        let limited = |sample: Option<RateSample>| sample.unwrap().app_limited;
        assert!(!limited(sampler.on_ack(MS(1100), 5_000, Some(MS(1000)), None)));
        assert!(limited(sampler.on_ack(MS(1101), 10_000, Some(MS(1001)), None)));
        sampler.on_sent(&run(1101, 10_000, 5_000));
        assert!(!limited(sampler.on_ack(MS(1201), 10_000, Some(MS(1101)), None)));
    }

    #[test]
    fn losses_are_counted_against_the_run() {
        let mut sampler = sampler();
        assert_eq!(sampler.on_lost(1_000, MS(1000)), Some(10_000));
        assert_eq!(sampler.on_lost(1_000, MS(999)), None);
        let sample = sampler.on_ack(MS(1100), 10_000, Some(MS(1010)), None).unwrap();
        assert_eq!(sample.lost, 2_000);
    }

    #[test]
    fn interval_below_min_rtt_gives_no_rate_sample() {
        let min_rtt = Some(Nanos::from_millis(50));
        assert_eq!(sampler().on_ack(MS(1040), 10_000, Some(MS(1000)), min_rtt), None);
        assert!(sampler().on_ack(MS(1050), 10_000, Some(MS(1000)), min_rtt).is_some());
    }
}
