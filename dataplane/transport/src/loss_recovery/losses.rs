//! Losses and other signs of congestion: RACK's search, the start of a recovery, ECN marks, time-outs.

use base::Instant;

use super::LossRecovery;
use super::flight_state::FlightState;
use super::scoreboard::{DetectedLosses, Scoreboard};
use crate::congestion::Cause;
use crate::episode::Episode;
use crate::frto::Frto;
use crate::parameters::Parameters;
use crate::rack::LossCriterion;
use crate::recovery::Phase;

/// Result of a search for losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct LossesFound {
    /// Segments or chunks newly found lost.
    pub segments: u64,
    /// True if fast recovery began because of these losses.
    pub recovery_began: bool,
}

impl LossRecovery {
    /// Searches for losses and sets the reordering timer: RACK_detect_loss_and_arm_timer of RFC 8985 §6.2. Begins fast
    /// recovery if a lost segment signals congestion and no recovery is in progress.
    #[inline]
    pub fn find_losses(
        &mut self,
        state: &mut FlightState,
        board: &mut impl Scoreboard,
        now: Instant,
        config: &impl Parameters,
    ) -> LossesFound {
        if board.is_empty() {
            state.reorder_at = None;
            return LossesFound::default();
        }
        self.find_losses_in_flight(state, board, now, config)
    }

    fn find_losses_in_flight(
        &mut self,
        state: &mut FlightState,
        board: &mut impl Scoreboard,
        now: Instant,
        config: &impl Parameters,
    ) -> LossesFound {
        let mut found = self.detect(state, board, now);
        let recovery_began = found.congestion_segments > 0 && !state.phase.is_recovering();
        if recovery_began {
            self.enter_recovery(state, board);
            // In recovery the reordering window may be zero (RFC 8985 §6.2 step 4), so more segments may count as lost.
            let more = self.detect(state, board, now);
            found.segments += more.segments;
            found.next_search_at = more.next_search_at;
        }
        state.reorder_at = found.next_search_at.map(|at| at.min(now + self.rtt.rto(config)));
        LossesFound { segments: found.segments, recovery_began }
    }

    fn detect(
        &mut self,
        state: &FlightState,
        board: &mut impl Scoreboard,
        now: Instant,
    ) -> DetectedLosses {
        let criterion = self.criterion(state, board, now);
        let cc = &mut self.cc;
        board.detect_losses(criterion, |bytes, sent_at| cc.on_segment_lost(bytes, sent_at))
    }

    /// Returns RACK's criterion for a loss as of `now`.
    fn criterion(
        &self,
        state: &FlightState,
        board: &impl Scoreboard,
        now: Instant,
    ) -> LossCriterion {
        let srtt = self.rtt.srtt().unwrap_or_default();
        self.rack.criterion(now, state.phase.is_recovering(), board.segs_sacked(), srtt)
    }

    /// Begins fast recovery (RFC 6675 §5 (4), RFC 6582 §3.2 (2), RFC 6937 §3; RFC 9260 §7.2.4 (2), (3), (6)).
    pub fn enter_recovery<B: Scoreboard>(&mut self, state: &mut FlightState, board: &B) {
        let flight = board.flight();
        state.tlp.reset();
        if let (Phase::Reducing { .. }, Some(episode)) = (state.phase, &mut self.episode) {
            // The saved state includes the reduction by ECN, which an undo therefore keeps (RFC 3168 §6.1.2).
            episode.prior = self.cc.save();
            self.cc.on_loss_after_marks(flight);
        } else {
            self.episode = Some(Box::new(Episode::new(self.cc.save(), flight, false)));
            self.cc.on_loss(board.flight_at_loss());
        }
        state.phase = Phase::Recovery { point: board.nxt() };
        state.resend_ignores_cwnd |= B::FIRST_RESEND_IGNORES_CWND;
    }

    /// Processes an expiry of the reordering timer: searches for losses, and sets the congestion window if a recovery
    /// begins.
    pub fn on_reorder_timeout(
        &mut self,
        state: &mut FlightState,
        board: &mut impl Scoreboard,
        now: Instant,
        smss: u64,
        config: &impl Parameters,
    ) -> LossesFound {
        let was_open = !state.phase.is_reducing();
        let found = self.find_losses(state, board, now, config);
        if was_open && state.phase.is_reducing() {
            self.reduce(board, 0, false, smss);
        }
        found
    }

    /// Processes an echo of a Congestion Experienced mark (RFC 3168 §6.1.2). Reduces the congestion window at most
    /// once per round trip, and returns true if it was reduced. The owner then sends CWR.
    pub fn on_marks(&mut self, state: &mut FlightState, board: &impl Scoreboard) -> bool {
        if state.phase != Phase::Open || board.is_empty() {
            return false; // the window is reduced already, or nothing is in flight
        }
        let flight = board.flight();
        self.episode = Some(Box::new(Episode::new(self.cc.save(), flight, false)));
        self.cc.on_marks(flight);
        state.phase = Phase::Reducing { point: board.nxt() };
        true
    }

    /// Processes an expiry of the retransmission timer (RFC 6298 §5.4 to §5.6, RFC 6675 §5.1, RFC 8985 §6.3; RFC 9260
    /// §6.3.3, §7.2.3). Returns true if the peer has reneged.
    pub fn on_timeout(
        &mut self,
        state: &mut FlightState,
        board: &mut impl Scoreboard,
        now: Instant,
    ) -> bool {
        // The controller must not reduce the window twice for the same window of data.
        let reduced = match state.phase {
            _ if self.consecutive_timeouts() > 0 => Some(Cause::Timeout),
            Phase::Recovery { .. } => Some(Cause::Loss),
            Phase::Reducing { .. } => Some(Cause::Marks),
            Phase::Open | Phase::Loss { .. } => None,
        };
        let flight = board.flight();
        if reduced.is_none() {
            let mut episode = Episode::new(self.cc.save(), flight, true);
            episode.frto = Frto::Retransmitted;
            self.episode = Some(Box::new(episode));
        } else if let Some(episode) = &mut self.episode {
            episode.frto = Frto::Off; // RFC 5682 §2.1 step 1: no test after an earlier reduction
            episode.end_point = None;
        }
        self.cc.on_timeout(flight, reduced);
        let reneged = board.head_sacked();
        if reneged {
            board.clear_sacks(); // RFC 2018 §8
        }
        let criterion = self.criterion(state, board, now);
        board.mark_lost_on_timeout(criterion);
        state.phase = Phase::Loss { point: board.nxt() };
        state.tlp.reset();
        state.reorder_at = None;
        state.resend_ignores_cwnd = true;
        self.on_unanswered();
        reneged
    }
}
