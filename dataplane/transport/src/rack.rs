//! RACK (RFC 8985 §6): a segment is lost when a segment sent later has arrived and the reordering window has
//! passed. This module keeps RACK's state; [`detect`](mod@crate::detect) applies it to the segments in
//! flight.

use base::{Blank, Instant, Lazy, Nanos};

use crate::delivery::{Delivery, Transmission};
use crate::recovery::DUP_THRESH;
use crate::seq::ExtSeq;

/// Recoveries without D-SACK after which the reordering window shrinks to its initial width (RFC 8985 §6.2 step 4).
const REO_WND_PERSIST: u8 = 16;

/// Window of RACK.min_RTT: one minute, in units of 2^26 ns. The minimum covers the last 1 to 2 windows.
const MIN_RTT_WINDOW: u32 = (60_000_000_000_u64 >> 26) as u32;

/// The state of RACK (RFC 8985 §5.3).
#[derive(Clone, Debug)]
pub struct Rack {
    track: Lazy<Track>,
    /// RACK.min_RTT, the shortest round-trip time of the last 1 to 2 minutes.
    min_rtt: MinRtt,
    /// RACK.reordering_seen: true once a segment sent once arrived after later segments.
    reordering_seen: bool,
    /// RACK.reo_wnd_mult: the reordering window in quarters of RACK.min_RTT.
    reo_wnd_mult: u8,
    /// RACK.reo_wnd_persist: recoveries until `reo_wnd_mult` is reset to 1.
    reo_wnd_persist: u8,
}

base::prefetch!(Rack: track);

/// State that is meaningful only while segments are in flight.
#[derive(Clone, Copy, Debug)]
struct Track {
    /// RACK.segment, the latest transmission that has arrived: RACK.xmit_ts and RACK.end_seq.
    latest: Transmission,
    /// RACK.rtt, the round-trip time of the most recently delivered transmission.
    rtt: Nanos,
    /// RACK.fack, the highest number that was acknowledged or SACKed.
    fack: ExtSeq,
    /// RACK.dsack_round: SND.NXT when a D-SACK last widened the reordering window.
    dsack_round: ExtSeq,
}

base::prefetch!(Track:);

impl Blank for Track {
    fn blank() -> &'static Self {
        static BLANK: Track = Track {
            latest: Transmission { at: Instant::ZERO, end: ExtSeq::NONE },
            rtt: Nanos::ZERO,
            fack: ExtSeq::NONE,
            dsack_round: ExtSeq::NONE,
        };
        &BLANK
    }
}

/// The criterion for a lost segment, as of `now`.
#[derive(Clone, Copy, Debug)]
pub struct LossCriterion {
    /// The latest transmission that has arrived: only a segment sent before it can be lost.
    pub latest: Transmission,
    /// Time from a segment's transmission until it counts as lost: RACK.rtt + RACK.reo_wnd.
    pub timeout: Nanos,
    /// The current time.
    pub now: Instant,
}

impl LossCriterion {
    /// Returns the time at which a segment that was not SACKed counts as lost (RFC 8985 §6.2 step 5). `None` if no
    /// later transmission has arrived.
    pub fn lost_at(&self, sent: Transmission) -> Option<Instant> {
        (self.latest > sent).then(|| sent.at + self.timeout)
    }
}

impl Default for Rack {
    fn default() -> Self {
        Rack::new()
    }
}

impl Rack {
    /// Creates the state before the first transmission.
    pub fn new() -> Self {
        Rack {
            track: Lazy::new(),
            min_rtt: MinRtt::default(),
            reordering_seen: false,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
        }
    }

    /// Returns RACK.fack, the highest number that was acknowledged or SACKed.
    pub fn fack(&self) -> ExtSeq {
        self.track.fack
    }

    /// Returns RACK.min_RTT; `None` before the first measurement.
    pub fn min_rtt(&self) -> Option<Nanos> {
        self.min_rtt.get()
    }

    /// Processes a round-trip measurement (RFC 8985 §6.2 step 1). `rtt`: the shortest round-trip time that the
    /// acknowledgement shows.
    pub fn on_rtt_measured(&mut self, now: Instant, rtt: Nanos) {
        self.min_rtt.sample(now, rtt);
    }

    /// Processes the delivery report of an acknowledgement: steps 2 and 3 of RFC 8985 §6.2.
    pub fn on_delivery(&mut self, now: Instant, delivery: &Delivery) {
        if delivery.bytes == 0 && delivery.latest.is_none() && !delivery.reordered {
            return;
        }
        let track = &mut *self.track;
        if let Some(sent) = delivery.latest {
            track.rtt = now.nanos_since(sent.at);
            track.latest = track.latest.max(sent);
        }
        track.fack = track.fack.max(delivery.highest);
        self.reordering_seen |= delivery.reordered;
    }

    /// Has the same effect as [`on_delivery`](Self::on_delivery) if everything in flight was one segment, sent once.
    #[inline]
    pub fn on_single_ack(&mut self, now: Instant, sent: Transmission) {
        let track = &mut *self.track;
        track.rtt = now.nanos_since(sent.at);
        track.latest = track.latest.max(sent);
        track.fack = track.fack.max(sent.end);
    }

    /// Processes an acknowledgement with D-SACK (RFC 8985 §6.2 step 4): widens the reordering window at most once per
    /// round trip.
    pub fn on_d_sack(&mut self, una: ExtSeq, nxt: ExtSeq) {
        if una >= self.track.dsack_round {
            self.track.dsack_round = nxt;
            self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Processes the end of fast recovery or of the recovery from a time-out (RFC 8985 §6.2 step 4).
    pub fn on_recovered(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    /// Returns RACK.reo_wnd (RFC 8985 §6.2 step 4): the time after RACK.rtt until a segment counts as lost.
    fn reo_wnd(&self, recovering: bool, segs_sacked: u64, srtt: Nanos) -> Nanos {
        if !self.reordering_seen && (recovering || segs_sacked >= u64::from(DUP_THRESH)) {
            return Nanos::ZERO;
        }
        let min_rtt = self.min_rtt.get().unwrap_or(srtt);
        (min_rtt / 4).saturating_mul(self.reo_wnd_mult.into()).min(srtt)
    }

    /// Returns the loss criterion as of `now` (RFC 8985 §6.2 steps 4 and 5). `segs_sacked`: number of SACKed segments
    /// in flight (RACK.segs_sacked).
    pub fn criterion(
        &self,
        now: Instant,
        recovering: bool,
        segs_sacked: u64,
        srtt: Nanos,
    ) -> LossCriterion {
        let reo_wnd = self.reo_wnd(recovering, segs_sacked, srtt);
        let track = &*self.track;
        let timeout = track.rtt.saturating_add(reo_wnd);
        LossCriterion { latest: track.latest, timeout, now }
    }

    /// Frees state needed only while segments are in flight.
    pub fn shrink(&mut self) {
        self.track.release();
    }

    /// Returns true if a segment sent once arrived after later segments.
    #[cfg(test)]
    pub fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }
}

/// The shortest round-trip time of the last 1 to 2 [`MIN_RTT_WINDOW`]s, in units of 64 ns; zero before the first
/// measurement.
#[derive(Clone, Copy, Debug, Default)]
struct MinRtt {
    /// The minimum of the previous and the current window.
    best: u32,
    /// The minimum of the current window.
    recent: u32,
    /// Start of the current window, in units of 2^26 ns.
    since: u32,
}

impl MinRtt {
    fn sample(&mut self, now: Instant, rtt: Nanos) {
        let rtt = u32::try_from(rtt.get() / 64).unwrap_or(u32::MAX).max(1);
        let now = (now.as_nanos() >> 26) as u32;
        if self.best == 0 || now.wrapping_sub(self.since) >= MIN_RTT_WINDOW {
            self.best = if self.best == 0 { rtt } else { self.recent };
            self.recent = rtt;
            self.since = now;
        }
        self.recent = self.recent.min(rtt);
        self.best = self.best.min(rtt);
    }

    fn get(&self) -> Option<Nanos> {
        (self.best > 0).then(|| Nanos::new(64 * u64::from(self.best)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::delivery::AckKind;
    use super::*;
    use crate::seq::SeqNumber;

    const MS: Nanos = Nanos::from_millis(1);

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    fn rack() -> Rack {
        let mut rack = Rack::new();
        rack.on_rtt_measured(Instant::ZERO, 40 * MS);
        rack
    }

    fn deliver(rack: &mut Rack, now: u64, sent_ms: u64, end: u64) {
        let now = Instant::from_millis(now);
        let mut d = Delivery::new(now, None, rack.min_rtt(), rack.fack());
        let sent = Transmission { at: Instant::from_millis(sent_ms), end: at(end) };
        d.add_segment(sent, false, AckKind::Sack);
        rack.on_delivery(now, &d);
    }

    // RFC 8985 §6.2 step 4: the reordering window is a quarter of the shortest round trip, at most SRTT. It is zero in
    // recovery or when enough later segments have arrived, unless reordering was seen.
    #[test]
    fn reo_wnd_is_quarter_of_min_rtt_or_zero() {
        let mut rack = rack();
        assert_eq!(rack.reo_wnd(false, 2, 50 * MS), 10 * MS);
        assert_eq!(rack.reo_wnd(false, 3, 50 * MS), Nanos::ZERO);
        assert_eq!(rack.reo_wnd(true, 1, 50 * MS), Nanos::ZERO);
        deliver(&mut rack, 50, 1, 20);
        deliver(&mut rack, 51, 1, 10);
        assert!(rack.reordering_seen());
        assert_eq!(rack.reo_wnd(true, 3, 50 * MS), 10 * MS);
        assert_eq!(rack.reo_wnd(true, 3, 6 * MS), 6 * MS);
    }

    // RFC 8985 §6.2 step 4: each round trip with a D-SACK widens the reordering window by one step, for 16 recoveries.
    #[test]
    fn d_sacks_widen_reo_wnd_for_16_recoveries() {
        let mut rack = rack();
        rack.reordering_seen = true;
        rack.on_d_sack(at(10), at(100));
        rack.on_d_sack(at(50), at(150));
        assert_eq!(rack.reo_wnd(true, 0, 100 * MS), 20 * MS, "once in a round trip");
        rack.on_d_sack(at(100), at(200));
        assert_eq!(rack.reo_wnd(true, 0, 100 * MS), 30 * MS);
        for _ in 0..15 {
            rack.on_recovered();
        }
        assert_eq!(rack.reo_wnd(true, 0, 100 * MS), 30 * MS);
        rack.on_recovered();
        assert_eq!(rack.reo_wnd(true, 0, 100 * MS), 10 * MS);
    }

    // RFC 8985 §6.2 step 5.
    #[test]
    fn segment_is_lost_after_later_delivery_and_reo_wnd() {
        let mut rack = rack();
        deliver(&mut rack, 60, 20, 50); // RACK.rtt 40 ms
        let criterion = rack.criterion(Instant::from_millis(60), false, 1, 40 * MS);
        let sent = |ms, end| Transmission { at: Instant::from_millis(ms), end: at(end) };
        assert_eq!(criterion.lost_at(sent(20, 40)), Some(Instant::from_millis(70)));
        assert_eq!(criterion.lost_at(sent(10, 90)), Some(Instant::from_millis(60)));
        assert_eq!(criterion.lost_at(sent(20, 60)), None, "same time, higher number");
        assert_eq!(criterion.lost_at(sent(21, 10)), None, "sent later");
    }

    // RFC 8985 §6.2 step 2: a segment sent earlier does not move RACK.segment backwards.
    #[test]
    fn older_delivery_keeps_latest_transmission() {
        let mut rack = rack();
        deliver(&mut rack, 60, 20, 50);
        deliver(&mut rack, 65, 10, 20);
        assert_eq!(rack.track.latest.at, Instant::from_millis(20));
        assert_eq!(rack.track.rtt, 55 * MS);
    }

    // RFC 8985 §6.2 step 1: the minimum covers a time window. A lasting increase of the round-trip time therefore
    // raises the minimum.
    #[test]
    fn min_rtt_expires_after_its_window() {
        let mut min = MinRtt::default();
        assert_eq!(min.get(), None);
        min.sample(Instant::from_millis(0), 10 * MS);
        min.sample(Instant::from_millis(1000), 50 * MS);
        assert_eq!(min.get(), Some(10 * MS));
        for second in 1..130 {
            min.sample(Instant::from_millis(1000 * second), 50 * MS);
        }
        assert_eq!(min.get(), Some(50 * MS));
    }

    #[test]
    fn shrink_frees_flight_state_and_keeps_min_rtt() {
        let mut rack = rack();
        deliver(&mut rack, 50, 1, 20);
        assert_eq!(rack.fack(), at(20));
        rack.shrink();
        assert_eq!((rack.fack(), rack.min_rtt()), (ExtSeq::NONE, Some(40 * MS)));
    }
}
