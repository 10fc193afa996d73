//! Phases of loss recovery: RACK with SACK (RFC 8985), NewReno without SACK (RFC 6582), RFC 6298 after a time-out. The
//! scoreboard marks losses. This module decides when NewReno recovery starts, when each phase ends, and which segment
//! is sent next.

use crate::seq::ExtSeq;

/// Number of duplicate acknowledgements, or of SACKed segments, that indicates a loss (RFC 5681 §3.2, RFC 8985 §6.2).
pub const DUP_THRESH: u32 = 3;

/// Phase of loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No segment is known to be lost.
    Open,
    /// The window is being reduced because of ECN marks (RFC 3168 §6.1.2), until everything below `point` is
    /// acknowledged. No segment is known to be lost.
    Reducing {
        /// SND.NXT at the start of the phase.
        point: ExtSeq,
    },
    /// Fast recovery until everything below `point` is acknowledged (RFC 6675 §5, RecoveryPoint).
    Recovery {
        /// SND.NXT at the start of the phase.
        point: ExtSeq,
    },
    /// After a time-out, until everything below `point` is acknowledged (RFC 6675 §5.1).
    Loss {
        /// SND.NXT at the time-out.
        point: ExtSeq,
    },
}

impl Phase {
    /// Returns the sequence number whose acknowledgement ends the phase; `None` for [`Phase::Open`].
    fn point(self) -> Option<ExtSeq> {
        match self {
            Phase::Open => None,
            Phase::Reducing { point } | Phase::Recovery { point } | Phase::Loss { point } => {
                Some(point)
            }
        }
    }

    /// Returns the phase after an acknowledgement of everything below `una` (RFC 6675 §5 (A), §5.1).
    pub fn after_ack(self, una: ExtSeq) -> Phase {
        if self.point().is_some_and(|point| una >= point) { Phase::Open } else { self }
    }

    /// Returns true in fast recovery and after a time-out.
    pub fn is_recovering(self) -> bool {
        matches!(self, Phase::Recovery { .. } | Phase::Loss { .. })
    }

    /// Returns true while the window is reduced in proportion to delivered bytes (RFC 6937).
    pub fn is_reducing(self) -> bool {
        matches!(self, Phase::Recovery { .. } | Phase::Reducing { .. })
    }
}

/// Returns true if fast recovery starts without SACK: after at least three duplicate acknowledgements of `una` (RFC
/// 6582 §3.2 (2)). `una` must be above `recover`, the end of the last recovery's range.
pub fn must_recover(phase: Phase, dup_acks: u32, una: ExtSeq, recover: ExtSeq) -> bool {
    !phase.is_recovering() && dup_acks >= DUP_THRESH && una > recover
}

/// Kind of the next segment (RFC 6675 §4, NextSeg rules 1 and 2; RFC 8985 replaces the others).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextSeg {
    /// A lost segment, not retransmitted yet.
    Lost,
    /// New data.
    New,
    /// No segment may be sent: none waits, or F-RTO awaits an acknowledgement.
    None,
    /// A segment waits for room in the congestion window.
    CwndFull,
}

/// Inputs to the choice of the next segment.
#[derive(Clone, Copy, Debug)]
pub struct NextSegInputs {
    /// True if a full segment fits the congestion window, or nothing is in flight.
    pub cwnd_open: bool,
    /// True if a retransmission is sent even if the congestion window is full: the first retransmission of a recovery
    /// (RFC 6675 §5 (4.3)).
    pub resend_ignores_cwnd: bool,
    /// True if a lost segment waits for retransmission and the peer's window has room for it.
    pub lost: bool,
    /// True if new data waits and the peer's window has room for it.
    pub new: bool,
    /// New segments that F-RTO may still send to test whether the time-out was spurious; retransmissions wait
    /// (RFC 5682 §2.1 step 2b).
    pub frto_new_left: Option<u8>,
}

impl NextSegInputs {
    /// Returns the kind of the next segment.
    pub fn next_seg(self) -> NextSeg {
        match self {
            NextSegInputs { frto_new_left: Some(0), .. } => NextSeg::None,
            NextSegInputs { frto_new_left: Some(_), new: true, .. } => NextSeg::New,
            NextSegInputs { frto_new_left: Some(_), .. } => NextSeg::None,
            NextSegInputs { lost: true, resend_ignores_cwnd: true, .. } => NextSeg::Lost,
            NextSegInputs { lost: true, cwnd_open: true, .. } => NextSeg::Lost,
            NextSegInputs { new: true, cwnd_open: true, lost: false, .. } => NextSeg::New,
            NextSegInputs { lost: true, .. } | NextSegInputs { new: true, .. } => NextSeg::CwndFull,
            _ => NextSeg::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::SeqNumber;

    fn at(n: u64) -> ExtSeq {
        ExtSeq::initial(SeqNumber(0)).plus(n)
    }

    // RFC 6675 §5 (A), §5.1; RFC 6582 §3.2 (3): full and partial acknowledgements.
    #[test]
    fn phases_end_at_their_point() {
        let point = at(10);
        for phase in [Phase::Recovery { point }, Phase::Loss { point }, Phase::Reducing { point }] {
            assert_eq!(phase.after_ack(at(9)), phase);
            assert_eq!(phase.after_ack(at(10)), Phase::Open);
            assert_eq!(phase.after_ack(at(11)), Phase::Open);
        }
        assert_eq!(Phase::Open.after_ack(at(1)), Phase::Open);
    }

    // RFC 6582 §3.2 (2): conditions for the start of fast recovery.
    #[test]
    fn fast_recovery_starts_once_per_window() {
        let point = at(10);
        assert!(!must_recover(Phase::Open, 2, at(5), at(0)));
        assert!(must_recover(Phase::Open, 3, at(5), at(0)));
        assert!(must_recover(Phase::Reducing { point }, 3, at(5), at(0)));
        assert!(!must_recover(Phase::Open, 3, at(5), at(5)), "duplicates of retransmissions");
        assert!(!must_recover(Phase::Recovery { point }, 3, at(5), at(0)));
        assert!(!must_recover(Phase::Loss { point }, 3, at(5), at(0)));
    }

    // RFC 6675 §4, NextSeg: lost segments precede new data. RFC 5682 §2.1 step 2b: only new data during F-RTO's test.
    #[test]
    fn next_segment_follows_the_rules() {
        let base = NextSegInputs {
            cwnd_open: true,
            resend_ignores_cwnd: false,
            lost: true,
            new: true,
            frto_new_left: None,
        };
        assert_eq!(base.next_seg(), NextSeg::Lost);
        assert_eq!(NextSegInputs { cwnd_open: false, ..base }.next_seg(), NextSeg::CwndFull);
        assert_eq!(
            NextSegInputs { cwnd_open: false, resend_ignores_cwnd: true, ..base }.next_seg(),
            NextSeg::Lost
        );
        let unlost = NextSegInputs { lost: false, ..base };
        assert_eq!(unlost.next_seg(), NextSeg::New);
        assert_eq!(NextSegInputs { cwnd_open: false, ..unlost }.next_seg(), NextSeg::CwndFull);
        assert_eq!(NextSegInputs { new: false, ..unlost }.next_seg(), NextSeg::None);
        assert_eq!(NextSegInputs { frto_new_left: Some(2), ..base }.next_seg(), NextSeg::New);
        assert_eq!(NextSegInputs { frto_new_left: Some(0), ..base }.next_seg(), NextSeg::None);
    }
}
