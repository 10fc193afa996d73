//! Loss recovery: RFC 6675 with SACK, RFC 6582 (NewReno) without, RFC 6298 after a time-out. What is
//! lost is the scoreboard's business; here is when recovery starts and ends, and what to send next.

use super::scoreboard::DUP_THRESH;
use super::seq::ExtSeq;

/// Where loss recovery stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing is known to be lost.
    Open,
    /// Fast recovery until everything below `point` is acknowledged (RFC 6675 §5, RecoveryPoint).
    Recovery {
        /// SND.NXT when it started.
        point: ExtSeq,
        /// RescueRxt: one more rescue when SND.UNA is above (RFC 6675 §4, NextSeg rule 4).
        rescue_above: ExtSeq,
    },
    /// After a time-out, until everything below `point` is acknowledged (RFC 6675 §5.1).
    Loss {
        /// SND.NXT at the time-out.
        point: ExtSeq,
    },
}

impl Phase {
    /// The phase once everything below `una` is acknowledged: RFC 6675 §5 (A), §5.1.
    pub(crate) fn after_ack(self, una: ExtSeq) -> Phase {
        match self {
            Phase::Recovery { point, .. } | Phase::Loss { point } if una >= point => Phase::Open,
            other => other,
        }
    }

    /// Whether to enter fast recovery: three duplicate acknowledgements, or the oldest segment lost by
    /// what was SACKed (RFC 6675 §5 (1), (2)); never again before the recovery point (§5.1).
    pub(crate) fn must_recover(self, dup_acks: u32, head_lost: bool) -> bool {
        self == Phase::Open && (dup_acks >= DUP_THRESH || head_lost)
    }
}

/// Which kind of segment is next (RFC 6675 §4, NextSeg).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextSeg {
    /// Rule 1: lost and not sent again.
    Lost,
    /// Rule 2: never sent.
    New,
    /// Rule 3: maybe lost.
    Doubtful,
    /// Rule 4: the last one, once per recovery.
    Rescue,
    /// Rule 5: nothing.
    None,
    /// Something would be sent, but the congestion window is full.
    CwndFull,
}

/// What is known when the next segment is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) phase: Phase,
    pub(crate) una: ExtSeq,
    /// A full segment fits the congestion window, or nothing is in flight.
    pub(crate) cwnd_open: bool,
    /// The first retransmission of a recovery goes whatever the window (RFC 6675 §5 (4.3)).
    pub(crate) force: bool,
    /// Something lost waits, within the peer's window.
    pub(crate) lost: bool,
    /// New data waits, and the peer's window has room for it.
    pub(crate) new: bool,
    pub(crate) sack: bool,
}

impl Choice {
    /// NextSeg of RFC 6675 §4. Rules 3 and 4 hold in fast recovery with SACK only.
    pub(crate) fn next(self) -> NextSeg {
        let last_resort = match self.phase {
            Phase::Recovery { rescue_above, .. } if self.sack => Some(self.una > rescue_above),
            _ => None,
        };
        match self {
            Choice { lost: true, force: true, .. } => NextSeg::Lost,
            Choice { lost: true, cwnd_open: true, .. } => NextSeg::Lost,
            Choice { lost: true, .. } => NextSeg::CwndFull,
            Choice { new: true, cwnd_open: true, .. } => NextSeg::New,
            Choice { new: true, .. } => NextSeg::CwndFull,
            Choice { cwnd_open: true, .. } => match last_resort {
                None => NextSeg::None,
                Some(false) => NextSeg::Doubtful,
                Some(true) => NextSeg::Rescue,
            },
            _ => NextSeg::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::seq::SeqNumber;

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    const RECOVERY: fn() -> Phase = || Phase::Recovery { point: at(10), rescue_above: at(3) };

    // RFC 6675 §5 (A), §5.1; RFC 6582 §3.2 (3): full and partial acknowledgements.
    #[test]
    fn phases_end_at_the_recovery_point() {
        assert_eq!(RECOVERY().after_ack(at(9)), RECOVERY());
        assert_eq!(RECOVERY().after_ack(at(10)), Phase::Open);
        assert_eq!(Phase::Loss { point: at(10) }.after_ack(at(9)), Phase::Loss { point: at(10) });
        assert_eq!(Phase::Loss { point: at(10) }.after_ack(at(11)), Phase::Open);
        assert_eq!(Phase::Open.after_ack(at(1)), Phase::Open);
    }

    // RFC 6675 §5 (1), (2), §5.1: starts, legal and illegal.
    #[test]
    fn recovery_starts_once() {
        assert!(!Phase::Open.must_recover(2, false));
        assert!(Phase::Open.must_recover(3, false));
        assert!(Phase::Open.must_recover(1, true));
        assert!(!RECOVERY().must_recover(3, true));
        assert!(!Phase::Loss { point: at(10) }.must_recover(3, true));
    }

    // RFC 6675 §4, NextSeg: the order of the rules.
    #[test]
    fn next_segment_follows_the_rules() {
        let base = Choice {
            phase: RECOVERY(),
            una: at(2),
            cwnd_open: true,
            force: false,
            lost: true,
            new: true,
            sack: true,
        };
        assert_eq!(base.next(), NextSeg::Lost);
        assert_eq!(Choice { cwnd_open: false, ..base }.next(), NextSeg::CwndFull);
        assert_eq!(Choice { cwnd_open: false, force: true, ..base }.next(), NextSeg::Lost);
        let unlost = Choice { lost: false, ..base };
        assert_eq!(unlost.next(), NextSeg::New);
        assert_eq!(Choice { cwnd_open: false, ..unlost }.next(), NextSeg::CwndFull);
        let idle = Choice { new: false, ..unlost };
        assert_eq!(idle.next(), NextSeg::Doubtful);
        assert_eq!(Choice { una: at(4), ..idle }.next(), NextSeg::Rescue);
        assert_eq!(Choice { sack: false, ..idle }.next(), NextSeg::None);
        assert_eq!(Choice { cwnd_open: false, ..idle }.next(), NextSeg::None);
        assert_eq!(Choice { phase: Phase::Open, ..idle }.next(), NextSeg::None);
    }
}
