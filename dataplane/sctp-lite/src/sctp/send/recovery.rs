//! Effects of acknowledgements (RFC 8985, RFC 6937, RFC 5682; RFC 9260 §7.2) and time-outs (§6.3.3) on loss recovery
//! and the congestion window. [`transport::loss_recovery`] contains the part shared with TCP.

use base::Instant;
use transport::congestion::Growth;
use transport::loss_recovery::{Ack, DetectedLosses, Scoreboard, UndoProof};
use transport::rack::LossCriterion;
use transport::recorder::{Kind, saturating_bytes};
use transport::seq::ExtSeq;

use super::Sender;
use super::scoreboard::Board;

/// An acknowledgement that the scoreboard has processed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SackInfo {
    pub(super) ack: Ack,
    /// True if the source has new data.
    pub(super) has_data: bool,
    /// True if the Gap Ack Blocks reported new data.
    pub(super) sack_news: bool,
    /// Number of chunks in flight before the acknowledgement.
    pub(super) flight: u64,
}

impl Sender {
    /// Updates loss recovery, burst allowance and timers after the scoreboard has processed an acknowledgement.
    pub(super) fn process_ack(&mut self, info: &mut SackInfo) {
        let SackInfo { ack, has_data, sack_news, .. } = info;
        ack.acked = ack.delivery.bytes;
        ack.duplicate = *sack_news || ack.bare_duplicate;
        ack.can_send_new = *has_data && self.sendable_bytes() > 0;
        self.recover(ack);
        let packets = ack.delivery.bytes.div_ceil(self.smss() as u64);
        if packets > 0 {
            // RFC 9260 §6.1 D: a burst has at most Max.Burst packets plus the packets acknowledged since the last
            // transmission. The packets of several SACKs add up. In slow start, the packets that a SACK acknowledges
            // count twice if pacing spreads the burst.
            let grown = self.config.pacing && self.recovery.cc().in_slow_start();
            let released = packets << u32::from(grown);
            self.burst = self.burst.max(u64::from(self.config.max_burst)) + released;
        }
        self.set_timer_after_ack(ack.now, ack.advanced);
    }

    /// Updates loss recovery and the congestion window.
    fn recover(&mut self, ack: &Ack) {
        let smss = self.smss() as u64;
        let Sender { recovery, state, board, stats, config, .. } = self;
        let (before, config) = (state.phase(), &*config);
        recovery.measure(state, ack, board.una, board.nxt(), smss, config);
        stats.tail_losses_repaired += u64::from(recovery.judge_probe(state, ack));
        recovery.exit_phase(state, board, before, ack);
        let mut growth = Growth::None;
        let mut began = false;
        let undone = recovery.undo_if_spurious(state, board, ack);
        match undone {
            Some(UndoProof::Frto) => stats.undone_by_frto += 1,
            Some(UndoProof::DSack | UndoProof::Timestamp) => stats.undone_by_duplicates += 1,
            None => {
                let found = recovery.find_losses(state, board, ack.now, config);
                stats.lost += found.segments;
                stats.fast_recoveries += u64::from(found.recovery_began);
                began = found.recovery_began;
                growth = recovery.adjust_window(state, board, before, ack, found.segments, smss);
            }
        }
        recovery.finish_ack(state, board, ack, growth, config);
        if began {
            self.note_recovery(ack.now);
        } else if let Some(undone) = undone {
            self.note(ack.now, Kind::Undone, undone as u32, saturating_bytes(self.cwnd()));
        }
    }

    /// Processes the expiry of the reordering timer.
    pub(super) fn on_reorder_timeout(&mut self, now: Instant) {
        let smss = self.smss() as u64;
        let Sender { recovery, state, board, stats, config, .. } = self;
        let found = recovery.on_reorder_timeout(state, board, now, smss, &*config);
        stats.lost += found.segments;
        stats.fast_recoveries += u64::from(found.recovery_began);
        if found.recovery_began {
            self.note_recovery(now);
        }
    }

    /// Processes the expiry of T3-rtx (RFC 9260 §6.3.3, §7.2.3).
    pub(super) fn on_timeout(&mut self, now: Instant) {
        let Sender { recovery, state, board, stats, .. } = self;
        stats.timeouts += 1;
        stats.reneged += u64::from(recovery.on_timeout(state, board, now));
    }
}

impl Scoreboard for Board {
    const FIRST_RESEND_IGNORES_CWND: bool = true;

    #[inline]
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    #[inline]
    fn una(&self) -> ExtSeq {
        self.una
    }

    #[inline]
    fn nxt(&self) -> ExtSeq {
        self.nxt()
    }

    #[inline]
    fn flight(&self) -> u64 {
        self.flight()
    }

    #[inline]
    fn pipe(&self) -> u64 {
        self.pipe()
    }

    #[inline]
    fn segs_sacked(&self) -> u64 {
        self.sacked_packets()
    }

    #[inline]
    fn resent_in_flight(&self) -> bool {
        self.resent_in_flight()
    }

    fn head_sacked(&self) -> bool {
        self.head_sacked()
    }

    #[inline]
    fn detect_losses(
        &mut self,
        criterion: LossCriterion,
        lost: impl FnMut(u64, Instant),
    ) -> DetectedLosses {
        self.detect_losses(criterion, lost)
    }

    fn mark_lost_on_timeout(&mut self, criterion: LossCriterion) {
        self.mark_lost_on_timeout(criterion);
    }

    fn clear_losses(&mut self) {
        self.clear_losses();
    }

    fn clear_sacks(&mut self) {
        self.clear_sacks();
    }
}
