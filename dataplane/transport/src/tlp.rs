//! Tail loss probes (RFC 8985 §7): when acknowledgements are overdue, one segment asks for one.

use base::Nanos;

use crate::ranges::Range;
use crate::seq::ExtSeq;

/// Least wait for a probe: below it the timers of both ends are too coarse. Linux adds two ticks.
const MIN_PTO: Nanos = Nanos::from_millis(2);

/// TLP.max_ack_delay (RFC 8985 §7.2): longest time for which peers delay the acknowledgement of a lone
/// segment.
const MAX_ACK_DELAY: Nanos = Nanos::from_millis(200);

/// The probe time-out before anything was measured (RFC 8985 §7.2).
const PTO_UNMEASURED: Nanos = Nanos::from_millis(1000);

/// TLP_calc_PTO of RFC 8985 §7.2, without the bound by the retransmission time-out. `lone` when one segment
/// is in flight.
pub fn probe_timeout(srtt: Option<Nanos>, lone: bool) -> Nanos {
    let Some(srtt) = srtt else { return PTO_UNMEASURED };
    let delay = if lone { MAX_ACK_DELAY } else { Nanos::ZERO };
    srtt.saturating_mul(2).max(MIN_PTO).saturating_add(delay)
}

/// State of tail loss probing (RFC 8985 §5.3).
#[derive(Clone, Copy, Debug, Default)]
pub struct TailLoss {
    /// TLP.end_seq.
    end_seq: Option<ExtSeq>,
    /// What the probe sent again, if it did (TLP.is_retrans).
    again: Option<Range>,
    /// No round trip was measured since the last probe.
    unmeasured: bool,
    /// A probe is to be sent.
    pub due: bool,
}

/// What an acknowledgement means for a probe.
#[derive(Clone, Copy, Debug)]
pub struct TlpAck {
    /// SEG.ACK, or the number after the Cumulative TSN Ack.
    pub ack: ExtSeq,
    /// It reports that all that the probe sent again came twice.
    pub probe_twice: bool,
    /// A duplicate without any SACK block.
    pub bare_duplicate: bool,
}

/// What became of a probe (RFC 8985 §7.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlpOutcome {
    /// Nothing is known, or nothing was lost.
    Nothing,
    /// The probe repaired the loss of the last segment: congestion control has to react.
    Repaired,
}

impl TailLoss {
    /// No probe was sent.
    pub const fn new() -> Self {
        TailLoss { end_seq: None, again: None, unmeasured: false, due: false }
    }

    /// No answer to a probe is to come, and none is to be sent.
    pub fn is_quiet(&self) -> bool {
        self.end_seq.is_none() && !self.due
    }

    /// A round trip was measured.
    pub fn measured(&mut self) {
        self.unmeasured = false;
    }

    /// The two conditions of RFC 8985 §7.3, once a round trip of the connection was measured.
    pub fn may_probe(&self) -> bool {
        self.end_seq.is_none() && !self.unmeasured
    }

    /// A probe was sent; `end` is SND.NXT after it, `again` what it sent again.
    pub fn sent(&mut self, end: ExtSeq, again: Option<Range>) {
        *self = TailLoss { end_seq: Some(end), again, unmeasured: true, due: false };
    }

    /// True when `range` is what the probe sent again, no more and no less: only a D-SACK of exactly that proves
    /// it needless. RFC 8985 §7.4.2 looks at the right edge alone, which a D-SACK of one byte has, too.
    pub fn is_probe(&self, range: Range) -> bool {
        self.end_seq.is_some() && self.again == Some(range)
    }

    /// Recovery begins (RFC 8985 §7.1).
    pub fn reset(&mut self) {
        self.end_seq = None;
        self.again = None;
        self.due = false;
    }

    /// TLP_process_ack of RFC 8985 §7.4.2.
    pub fn on_ack(&mut self, info: TlpAck) -> TlpOutcome {
        let Some(end) = self.end_seq.filter(|end| info.ack >= *end) else {
            return TlpOutcome::Nothing;
        };
        let repaired = info.ack > end;
        let is_retrans = self.again.is_some();
        let both_arrived = info.probe_twice || info.bare_duplicate;
        if !is_retrans || both_arrived || repaired {
            self.end_seq = None;
        }
        if is_retrans && repaired && !info.probe_twice {
            return TlpOutcome::Repaired;
        }
        TlpOutcome::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn probed(is_retrans: bool) -> TailLoss {
        let mut tlp = TailLoss::new();
        tlp.measured();
        assert!(tlp.may_probe());
        tlp.sent(at(100), is_retrans.then_some(range(90, 100)));
        tlp
    }

    // RFC 8985 §7.2.
    #[test]
    fn the_timeout_is_two_round_trips() {
        assert_eq!(probe_timeout(None, false), Nanos::from_millis(1000));
        assert_eq!(probe_timeout(Some(30 * MS), false), 60 * MS);
        assert_eq!(probe_timeout(Some(30 * MS), true), 260 * MS, "a lone segment may wait");
        assert_eq!(probe_timeout(Some(MS / 50), false), 2 * MS, "not below the timers");
    }

    // RFC 8985 §7.3: one probe at a time, and not again before a measurement.
    #[test]
    fn one_probe_until_a_measurement() {
        let mut tlp = probed(false);
        tlp.measured();
        assert!(!tlp.may_probe(), "in flight");
        let mut tlp = probed(false);
        assert_eq!(tlp.on_ack(ack(100)), TlpOutcome::Nothing);
        assert!(!tlp.may_probe(), "nothing measured");
        tlp.measured();
        assert!(tlp.may_probe());
    }

    // RFC 8985 §7.4.2: new data as a probe, D-SACK, a bare duplicate: nothing was lost.
    #[test]
    fn no_loss_when_both_arrived() {
        assert_eq!(probed(false).on_ack(ack(101)), TlpOutcome::Nothing);
        let mut tlp = probed(true);
        let info = TlpAck { probe_twice: true, ..ack(100) };
        assert_eq!(tlp.on_ack(info), TlpOutcome::Nothing);
        assert_eq!(tlp.on_ack(ack(200)), TlpOutcome::Nothing);
        let mut tlp = probed(true);
        assert_eq!(tlp.on_ack(ack(100)), TlpOutcome::Nothing);
        assert_eq!(tlp.on_ack(TlpAck { bare_duplicate: true, ..ack(100) }), TlpOutcome::Nothing);
        assert_eq!(tlp.on_ack(ack(200)), TlpOutcome::Nothing);
    }

    // RFC 8985 §7.4.2: its own range, while its answer is awaited.
    #[test]
    fn only_its_own_range_tells_of_a_probe() {
        let mut tlp = probed(true);
        assert!(tlp.is_probe(range(90, 100)));
        for other in [range(99, 100), range(80, 100), range(90, 99), range(1, 10)] {
            assert!(!tlp.is_probe(other));
        }
        assert_eq!(tlp.on_ack(ack(101)), TlpOutcome::Repaired);
        assert!(!tlp.is_probe(range(90, 100)), "answered");
        assert!(!probed(false).is_probe(range(90, 100)), "new data");
    }

    // RFC 8985 §7.4.2: no sign that both arrived: one was lost.
    #[test]
    fn a_repaired_loss_is_a_loss() {
        let mut tlp = probed(true);
        assert_eq!(tlp.on_ack(ack(99)), TlpOutcome::Nothing);
        assert_eq!(tlp.on_ack(ack(100)), TlpOutcome::Nothing);
        assert_eq!(tlp.on_ack(ack(101)), TlpOutcome::Repaired);
        assert_eq!(tlp.on_ack(ack(102)), TlpOutcome::Nothing, "once");
    }
}
