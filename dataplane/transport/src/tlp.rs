//! Tail loss probes (RFC 8985 §7): one segment that elicits overdue acknowledgements. At most one probe is outstanding.
//!
//! Not included: the timer, and the choice of the segment to send. Each protocol provides both.

use base::Nanos;

use crate::ranges::Range;
use crate::rtt::RttEstimator;
use crate::seq::ExtSeq;

/// Minimum time beyond a round trip before a probe: the timer granularity of RFC 8985 §7.2. The value covers the delays
/// of a peer that runs the same appliance: its worker, if it sleeps and no descriptor can wake it, polls every 50 µs,
/// and takes several times as long to process a full burst. In slow start, a segment may also wait for earlier bursts.
const GRANULARITY: Nanos = Nanos::from_micros(500);

/// For [`FlightAmount::Single`] and [`FlightAmount::Small`]: minimum time beyond SRTT before a probe, because the peer
/// may delay its acknowledgement. For [`FlightAmount::Large`]: maximum of 4 * RTTVAR.
const COARSE_GRANULARITY: Nanos = Nanos::from_millis(2);

/// TLP.max_ack_delay (RFC 8985 §7.2): the longest delay of the acknowledgement of a lone segment.
const MAX_ACK_DELAY: Nanos = Nanos::from_millis(200);

/// The probe time-out before the first measurement (RFC 8985 §7.2).
const PTO_UNMEASURED: Nanos = Nanos::from_millis(1000);

/// Amount in flight, which decides whether the peer may delay its acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlightAmount {
    /// One segment.
    Single,
    /// Several segments, together at most as long as a full segment. Some peers acknowledge only after more than a full
    /// segment (RFC 9293 §3.8.6.3 SHLD-19).
    Small,
    /// More than a full segment.
    Large,
}

impl FlightAmount {
    /// Classifies `segments` segments with a total of `bytes` bytes. A full segment has `smss` bytes.
    #[inline]
    pub fn new(segments: usize, bytes: u64, smss: u64) -> Self {
        match segments {
            1 => FlightAmount::Single,
            _ if bytes <= smss => FlightAmount::Small,
            _ => FlightAmount::Large,
        }
    }
}

/// Returns the probe time-out by TLP_calc_PTO of RFC 8985 §7.2, not bounded by the RTO: SRTT plus the larger of SRTT
/// and a margin. For [`FlightAmount::Large`], the margin is four times RTTVAR (as in RFC 9002 §6.2.1), at least
/// [`GRANULARITY`] and at most [`COARSE_GRANULARITY`]; otherwise it is [`COARSE_GRANULARITY`]. [`FlightAmount::Single`]
/// adds [`MAX_ACK_DELAY`].
pub fn probe_timeout(rtt: &RttEstimator, awaited: FlightAmount) -> Nanos {
    let Some(srtt) = rtt.srtt() else { return PTO_UNMEASURED };
    let least = match awaited {
        FlightAmount::Large => {
            let variation = rtt.rttvar().get();
            Nanos::new(4 * variation.clamp(GRANULARITY.get() / 4, COARSE_GRANULARITY.get() / 4))
        }
        FlightAmount::Single | FlightAmount::Small => COARSE_GRANULARITY,
    };
    let timeout = srtt.saturating_add(least.max(srtt));
    if awaited == FlightAmount::Single { timeout.saturating_add(MAX_ACK_DELAY) } else { timeout }
}

/// State of tail loss probing (RFC 8985 §5.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct TailLossProbe {
    /// TLP.end_seq: SND.NXT after the outstanding probe; `None` if no probe is outstanding.
    end_seq: Option<ExtSeq>,
    /// The range that the probe retransmitted, if it was a retransmission (TLP.is_retrans).
    resent_range: Option<Range>,
    /// True if no round trip was measured since the last probe.
    unmeasured: bool,
    /// True if a probe is to be sent.
    pub due: bool,
}

/// Facts about an acknowledgement that decide the outcome of a probe.
#[derive(Clone, Copy, Debug)]
pub struct TlpAck {
    /// SEG.ACK, or the number after the Cumulative TSN Ack.
    pub ack: ExtSeq,
    /// True if a D-SACK reports exactly the data that the probe retransmitted.
    pub probe_twice: bool,
    /// True for a duplicate acknowledgement without any SACK block.
    pub bare_duplicate: bool,
}

/// Outcome of a probe (RFC 8985 §7.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlpOutcome {
    /// Undecided, or no loss.
    NoRepair,
    /// The probe repaired the loss of the last segment. Congestion control must react.
    Repaired,
}

impl TailLossProbe {
    /// Creates the state before the first probe.
    pub const fn new() -> Self {
        TailLossProbe { end_seq: None, resent_range: None, unmeasured: false, due: false }
    }

    /// Returns true if no probe is outstanding or due.
    pub fn is_idle(&self) -> bool {
        self.end_seq.is_none() && !self.due
    }

    /// Records a round-trip measurement.
    pub fn on_rtt_measured(&mut self) {
        self.unmeasured = false;
    }

    /// Returns true if no probe is outstanding and a round trip was measured since the last probe (RFC 8985 §7.3). The
    /// caller must check that a round trip was ever measured.
    pub fn may_probe(&self) -> bool {
        self.end_seq.is_none() && !self.unmeasured
    }

    /// Records that a probe was sent. `end`: SND.NXT after the probe. `resent`: the range that the probe
    /// retransmitted, `None` for new data.
    pub fn on_probe_sent(&mut self, end: ExtSeq, resent: Option<Range>) {
        *self = TailLossProbe {
            end_seq: Some(end),
            resent_range: resent,
            unmeasured: true,
            due: false,
        };
    }

    /// Returns true if the outstanding probe retransmitted exactly `range`: only a D-SACK of this range proves that the
    /// probe was needless. RFC 8985 §7.4.2 compares the right edge only, so a D-SACK of the last byte would also match.
    pub fn is_probe_range(&self, range: Range) -> bool {
        self.end_seq.is_some() && self.resent_range == Some(range)
    }

    /// Discards the probe at the start of a recovery (RFC 8985 §7.1).
    pub fn reset(&mut self) {
        self.end_seq = None;
        self.resent_range = None;
        self.due = false;
    }

    /// Processes an acknowledgement: TLP_process_ack of RFC 8985 §7.4.2.
    pub fn on_ack(&mut self, info: TlpAck) -> TlpOutcome {
        let Some(end) = self.end_seq.filter(|end| info.ack >= *end) else {
            return TlpOutcome::NoRepair;
        };
        let repaired = info.ack > end;
        let is_retrans = self.resent_range.is_some();
        let both_arrived = info.probe_twice || info.bare_duplicate;
        if !is_retrans || both_arrived || repaired {
            self.end_seq = None;
        }
        if is_retrans && repaired && !info.probe_twice {
            return TlpOutcome::Repaired;
        }
        TlpOutcome::NoRepair
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::TestParameters;
    use crate::seq::SeqNumber;

    const MS: Nanos = Nanos::from_millis(1);

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    fn range(start: u64, end: u64) -> Range {
        Range { start: at(start), end: at(end) }
    }

    fn ack(n: u64) -> TlpAck {
        TlpAck { ack: at(n), probe_twice: false, bare_duplicate: false }
    }

    fn tail_loss_with_probe(is_retrans: bool) -> TailLossProbe {
        let mut tlp = TailLossProbe::new();
        tlp.on_rtt_measured();
        assert!(tlp.may_probe());
        tlp.on_probe_sent(at(100), is_retrans.then_some(range(90, 100)));
        tlp
    }

    /// Returns an estimator with so many equal samples that the variation is small.
    fn estimator_with_rtt(rtt: Nanos) -> RttEstimator {
        let mut estimator = RttEstimator::new(&TestParameters::default());
        (0..100).for_each(|_| estimator.sample(rtt, 1, &TestParameters::default()));
        estimator
    }

    // RFC 8985 §7.2.
    #[test]
    fn probe_timeout_is_two_round_trips() {
        let unmeasured = RttEstimator::new(&TestParameters::default());
        assert_eq!(probe_timeout(&unmeasured, FlightAmount::Large), Nanos::from_millis(1000));
        let far = estimator_with_rtt(30 * MS);
        assert_eq!(probe_timeout(&far, FlightAmount::Large), 60 * MS);
        assert_eq!(probe_timeout(&far, FlightAmount::Single), 260 * MS, "a lone segment may wait");
    }

    // RFC 8985 §7.2: on a path of 40 µs, the time beyond a round trip is the timer granularity, four times RTTVAR, or
    // the delay of the peer's acknowledgement.
    #[test]
    fn probe_timeout_on_short_path_follows_rtt_variation() {
        const US: Nanos = Nanos::from_micros(1);
        let near = estimator_with_rtt(40 * US);
        assert_eq!(probe_timeout(&near, FlightAmount::Large), 540 * US);
        assert_eq!(probe_timeout(&near, FlightAmount::Small), 2040 * US);
        assert_eq!(probe_timeout(&near, FlightAmount::Single), 202040 * US);
        let mut uneven = near;
        let config = TestParameters::default();
        for n in 0..40 {
            uneven.sample(if n % 2 == 0 { 40 * US } else { 440 * US }, 1, &config);
        }
        let timeout = probe_timeout(&uneven, FlightAmount::Large);
        assert!(timeout > 900 * US && timeout < 1500 * US, "{timeout:?}");
        for n in 0..40 {
            uneven.sample(if n % 2 == 0 { 40 * US } else { 9 * MS }, 1, &config);
        }
        let srtt = uneven.srtt().unwrap();
        assert_eq!(
            probe_timeout(&uneven, FlightAmount::Large),
            srtt.saturating_add(srtt.max(2 * MS)),
            "bounded"
        );
    }

    // RFC 9293 §3.8.6.3 SHLD-19: at least every second full segment is acknowledged.
    #[test]
    fn ack_may_be_delayed_for_at_most_a_full_segment() {
        assert_eq!(FlightAmount::new(1, 1000, 1000), FlightAmount::Single);
        assert_eq!(FlightAmount::new(2, 1000, 1000), FlightAmount::Small);
        assert_eq!(FlightAmount::new(2, 1001, 1000), FlightAmount::Large);
    }

    // RFC 8985 §7.3: one probe at a time, and no further probe before a round trip was measured.
    #[test]
    fn second_probe_waits_for_rtt_measurement() {
        let mut tlp = tail_loss_with_probe(false);
        tlp.on_rtt_measured();
        assert!(!tlp.may_probe(), "in flight");
        let mut tlp = tail_loss_with_probe(false);
        assert_eq!(tlp.on_ack(ack(100)), TlpOutcome::NoRepair);
        assert!(!tlp.may_probe(), "nothing measured");
        tlp.on_rtt_measured();
        assert!(tlp.may_probe());
    }

    // RFC 8985 §7.4.2: a probe detects no loss if it carried new data, or if a D-SACK or a duplicate acknowledgement
    // without SACK shows that both copies arrived.
    #[test]
    fn probe_and_original_delivered_is_no_loss() {
        assert_eq!(tail_loss_with_probe(false).on_ack(ack(101)), TlpOutcome::NoRepair);
        let mut tlp = tail_loss_with_probe(true);
        let info = TlpAck { probe_twice: true, ..ack(100) };
        assert_eq!(tlp.on_ack(info), TlpOutcome::NoRepair);
        assert_eq!(tlp.on_ack(ack(200)), TlpOutcome::NoRepair);
        let mut tlp = tail_loss_with_probe(true);
        assert_eq!(tlp.on_ack(ack(100)), TlpOutcome::NoRepair);
        assert_eq!(tlp.on_ack(TlpAck { bare_duplicate: true, ..ack(100) }), TlpOutcome::NoRepair);
        assert_eq!(tlp.on_ack(ack(200)), TlpOutcome::NoRepair);
    }

    // RFC 8985 §7.4.2: a D-SACK matches only the probe's own range, and only while the probe is outstanding.
    #[test]
    fn only_d_sack_of_exact_range_matches_probe() {
        let mut tlp = tail_loss_with_probe(true);
        assert!(tlp.is_probe_range(range(90, 100)));
        for other in [range(99, 100), range(80, 100), range(90, 99), range(1, 10)] {
            assert!(!tlp.is_probe_range(other));
        }
        assert_eq!(tlp.on_ack(ack(101)), TlpOutcome::Repaired);
        assert!(!tlp.is_probe_range(range(90, 100)), "answered");
        assert!(!tail_loss_with_probe(false).is_probe_range(range(90, 100)), "new data");
    }

    // RFC 8985 §7.4.2: if nothing shows that both the original and the probe arrived, one was lost.
    #[test]
    fn ack_beyond_probe_without_d_sack_is_a_repaired_loss() {
        let mut tlp = tail_loss_with_probe(true);
        assert_eq!(tlp.on_ack(ack(99)), TlpOutcome::NoRepair);
        assert_eq!(tlp.on_ack(ack(100)), TlpOutcome::NoRepair);
        assert_eq!(tlp.on_ack(ack(101)), TlpOutcome::Repaired);
        assert_eq!(tlp.on_ack(ack(102)), TlpOutcome::NoRepair, "once");
    }
}
