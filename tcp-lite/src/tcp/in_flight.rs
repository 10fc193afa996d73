//! Segments in flight, as loss recovery needs them: the scoreboard and, without SACK, the estimate from duplicate
//! acknowledgements.

use base::Instant;
use transport::loss_recovery::{DetectedLosses, FlightState, LossRecovery};
use transport::rack::LossCriterion;
use transport::seq::ExtSeq;

use super::scoreboard::Scoreboard;
use super::sender::Sender;

/// The scoreboard, and the variables of the sender that loss recovery needs.
#[derive(Debug)]
pub(super) struct InFlight<'a> {
    board: &'a mut Scoreboard,
    una: ExtSeq,
    nxt: ExtSeq,
    emss: u32,
    sack: bool,
    /// Without SACK: bytes estimated to have left the network, one segment per duplicate acknowledgement.
    reno_sacked: u64,
    /// FlightSize before the first duplicate acknowledgement, bytes; `None` without duplicates.
    flight_before_dups: Option<u64>,
}

impl Sender {
    /// Splits the borrow: loss recovery, flight state, scoreboard.
    #[inline]
    pub(super) fn split_recovery(&mut self) -> (&mut LossRecovery, &mut FlightState, InFlight<'_>) {
        let out = &mut *self.outstanding;
        let board = InFlight {
            board: &mut out.board,
            una: self.una,
            nxt: self.nxt,
            emss: self.size.emss(),
            sack: self.sack,
            reno_sacked: out.reno_sacked,
            flight_before_dups: (self.dup_acks > 0).then_some(out.flight_before_dups),
        };
        (&mut self.recovery, &mut out.state, board)
    }
}

impl transport::loss_recovery::Scoreboard for InFlight<'_> {
    const FIRST_RESEND_IGNORES_CWND: bool = false;

    #[inline]
    fn is_empty(&self) -> bool {
        self.board.is_empty()
    }

    #[inline]
    fn una(&self) -> ExtSeq {
        self.una
    }

    #[inline]
    fn nxt(&self) -> ExtSeq {
        self.nxt
    }

    #[inline]
    fn flight(&self) -> u64 {
        self.nxt.since(self.una)
    }

    #[inline]
    fn pipe(&self) -> u64 {
        self.board.pipe().saturating_sub(self.reno_sacked)
    }

    /// Returns FlightSize without the data sent by limited transmit, bytes (RFC 5681 §3.2 (2)).
    fn flight_at_loss(&self) -> u64 {
        let flight = self.flight();
        let limited = self.flight_before_dups.unwrap_or(flight);
        flight.min(limited.max(self.emss.into()))
    }

    #[inline]
    fn segs_sacked(&self) -> u64 {
        self.board.segs_sacked()
    }

    #[inline]
    fn resent_in_flight(&self) -> bool {
        self.board.resent_in_flight()
    }

    fn head_sacked(&self) -> bool {
        self.board.head_sacked()
    }

    #[inline]
    fn detect_losses(
        &mut self,
        criterion: LossCriterion,
        lost: impl FnMut(u64, Instant),
    ) -> DetectedLosses {
        self.board.detect_losses(criterion, lost)
    }

    fn mark_lost_on_timeout(&mut self, criterion: LossCriterion) {
        if self.sack {
            self.board.mark_lost_on_timeout(criterion);
        } else {
            self.board.mark_all_lost();
        }
    }

    fn clear_losses(&mut self) {
        self.board.clear_losses();
    }

    fn clear_sacks(&mut self) {
        self.board.clear_sacks();
    }
}
