//! Processing of acknowledgements (RFC 5681, RFC 6298, RFC 8985) and its effects on loss recovery. The part shared with
//! SCTP is in [`transport::loss_recovery`].

use base::{Instant, Nanos};
use transport::congestion::Growth;
use transport::delivery::{Delivery, Transmission};
use transport::loss_recovery::{Ack, DsackOrigin, LossesFound, UndoProof};
use transport::ranges::Range;
use transport::recorder::{Kind, Record, saturating_bytes};
use transport::recovery::{Phase, must_recover};
use transport::seq::{ExtSeq, SeqNumber};

use super::config::Config;
use super::sender::Sender;
use super::stats::Counters;

/// Fields of a received segment that concern data in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckInfo<'a> {
    /// SEG.SEQ, in the peer's space.
    pub(crate) seq: ExtSeq,
    /// SEG.ACK, from SND.UNA to SND.NXT.
    pub(crate) ack: ExtSeq,
    /// SEG.WND, scaled, bytes.
    pub(crate) window: u64,
    /// True if the segment has no data, no SYN and no FIN.
    pub(crate) bare: bool,
    /// Left and right edges of the SACK blocks; empty unless both ends use SACK.
    pub(crate) blocks: &'a [(SeqNumber, SeqNumber)],
    /// Time at which the echoed timestamp was sent, in milliseconds ([`Instant::as_millis`]).
    pub(crate) echoed_ms: Option<u64>,
    /// True if the source has new data and the state allows sending it.
    pub(crate) has_data: bool,
    /// True if the segment echoes a congestion mark and ECN is in use (RFC 3168 §6.1.2).
    pub(crate) marked: bool,
}

impl Sender {
    /// Returns true if SND.UNA - MAX.SND.WND <= `ack` <= SND.NXT (RFC 5961 §5).
    pub(crate) fn is_acceptable(&self, ack: ExtSeq) -> bool {
        self.una.minus(self.window.largest().into()) <= ack && ack <= self.nxt
    }

    /// Processes an acceptable acknowledgement (RFC 9293 §3.10.7.4, fifth check). Returns true if it
    /// acknowledged new data.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        info: AckInfo<'_>,
        config: &Config,
        stats: &mut Counters,
    ) -> bool {
        if self.outstanding.is_idle() && self.recovery.is_settled() {
            self.on_ack_without_flight(now, info, stats);
            return false;
        }
        let before = self.outstanding.state.phase();
        let flight = self.flight();
        let (mut ack, newly_sacked) = self.update_scoreboard(now, info, stats);
        self.sample_rtt(&ack, config);
        let window_moved = self.update_window(now, info);
        // RFC 5681 §2: definition of a duplicate acknowledgement. With SACK, new SACK information defines it instead.
        let bare =
            !ack.advanced && info.ack == self.una && flight > 0 && info.bare && !window_moved;
        let duplicate = if self.sack { newly_sacked } else { bare };
        if duplicate {
            self.on_duplicate_ack(flight, stats);
        }
        ack.bare_duplicate =
            info.blocks.is_empty() && info.bare && !ack.advanced && (duplicate || flight > 0);
        // RFC 5682 §3.1 step 3a: a peer that refuses data beyond a gap has nothing to SACK. Such a peer's bare
        // duplicates therefore count.
        ack.duplicate = duplicate || bare;
        ack.can_send_new = info.has_data && self.usable_window() > 0;
        self.recover(before, &ack, config, stats);
        ack.advanced
    }

    /// Applies an acknowledgement to loss recovery and to the congestion window.
    fn recover(&mut self, before: Phase, ack: &Ack, config: &Config, stats: &mut Counters) {
        let smss = u64::from(self.size.emss());
        let (recovery, state, board) = self.split_recovery();
        let repaired = recovery.judge_probe(state, ack);
        let over = recovery.exit_phase(state, &board, before, ack);
        stats.add(repaired.into(), |s| &mut s.loss.tail_losses_repaired);
        if ack.advanced {
            self.on_una_advanced(before, over, ack);
        }
        let (recovery, state, mut board) = self.split_recovery();
        let undone = recovery.undo_if_spurious(state, &mut board, ack);
        let mut growth = Growth::None;
        match undone {
            Some(undone) => self.on_undone(ack.now, undone, config, stats),
            None => {
                let lost = self.find_losses(ack.now, config, stats);
                let (recovery, state, board) = self.split_recovery();
                growth = recovery.adjust_window(state, &board, before, ack, lost, smss);
            }
        }
        let (recovery, state, board) = self.split_recovery();
        recovery.finish_ack(state, &board, ack, growth, config);
    }

    /// Processes an acknowledgement with nothing in flight, which can update the window and carry a D-SACK.
    fn on_ack_without_flight(&mut self, now: Instant, info: AckInfo<'_>, stats: &mut Counters) {
        if let Some(range) = self.find_d_sack(info) {
            self.on_d_sack(range, stats);
        }
        self.update_window(now, info);
    }

    /// Updates the scoreboard. Returns a summary of the acknowledgement, and true if its SACK blocks report data for
    /// the first time.
    fn update_scoreboard(
        &mut self,
        now: Instant,
        info: AckInfo<'_>,
        stats: &mut Counters,
    ) -> (Ack, bool) {
        let before = self.flight();
        let mut delivery = self.recovery.new_delivery(now, info.echoed_ms);
        let d_sack = self.find_d_sack(info);
        let advanced = info.ack > self.una;
        if advanced {
            self.outstanding.board.acknowledge(info.ack, &mut delivery);
            self.una = info.ack;
            self.progress_at = now;
            self.recovery.on_progress();
            self.dup_acks = 0;
        }
        let newly_sacked = self.apply_sack_blocks(info, &mut delivery);
        delivery.highest = delivery.highest.max(self.una);
        self.recovery.on_delivery(now, &delivery);
        let origin = d_sack.map(|range| self.on_d_sack(range, stats));
        let echoed_ms = info.echoed_ms.filter(|_| advanced);
        // An acknowledgement with D-SACK gives no round-trip sample. A duplicate segment does not update the peer's
        // TS.Recent, so the echoed timestamp may be arbitrarily old (RFC 7323 §4.3).
        let echoed_rtt = echoed_ms.filter(|_| origin.is_none());
        let acked = before - self.flight();
        let ack = Ack {
            now,
            ack: info.ack,
            delivery,
            advanced,
            flight_before: before,
            acked,
            marked: if info.marked { acked } else { 0 },
            echoed_ms,
            echoed_rtt: echoed_rtt.map(|ms| Nanos::from_millis((now.as_millis() - ms).max(1))),
            resent_twice: advanced && origin.is_some_and(|of| of.resent),
            probe_twice: origin.is_some_and(|of| of.probe),
            bare_duplicate: false,
            duplicate: false,
            can_send_new: false,
            sack: self.sack,
        };
        (ack, newly_sacked)
    }

    /// Applies SACK blocks. Skips D-SACKs and invalid or old blocks (RFC 2018 §5). Returns true if the blocks report
    /// data for the first time.
    fn apply_sack_blocks(&mut self, info: AckInfo<'_>, delivery: &mut Delivery) -> bool {
        let mut newly_sacked = false;
        for (left, right) in info.blocks {
            let (start, end) = (self.una.nearest(*left), self.una.nearest(*right));
            if self.una <= start && start < end && end <= self.nxt {
                newly_sacked |= self.outstanding.board.sack(start, end, delivery);
            }
        }
        newly_sacked
    }

    /// Returns the D-SACK block: the first block, if it is below the acknowledgement number or inside the second block
    /// (RFC 2883 §4). A first block is ignored if it begins below SND.UNA by more than the peer's largest window and
    /// more than 64 KiB.
    fn find_d_sack(&self, info: AckInfo<'_>) -> Option<Range> {
        let block = |i: usize| {
            let (left, right) = info.blocks.get(i)?;
            let (start, end) = (self.una.nearest(*left), self.una.nearest(*right));
            (start < end && end <= self.nxt).then_some(Range { start, end })
        };
        let first = block(0)?;
        let below = first.end <= info.ack;
        let inside = block(1).is_some_and(|b| b.start <= first.start && first.end <= b.end);
        let recent = first.start >= self.una.minus(self.window.largest().max(1 << 16).into());
        ((below || inside) && recent).then_some(first)
    }

    /// Processes a D-SACK: the peer received `range` twice. Returns the retransmission that explains the D-SACK, if
    /// any.
    fn on_d_sack(&mut self, range: Range, stats: &mut Counters) -> DsackOrigin {
        stats.cold_stats().loss.d_sacks_in += 1;
        let arrived = range.end <= self.una || self.outstanding.board.has_sacked(range);
        let origin =
            self.recovery.on_d_sack(&self.outstanding.state, range, arrived, self.una, self.nxt);
        stats.cold_stats().loss.d_sacks_ignored += u64::from(origin.is_unexplained());
        origin
    }

    /// Takes a round-trip sample, by Karn's algorithm (RFC 6298 §3) or by the echoed timestamp (RFC 7323 §4.1).
    fn sample_rtt(&mut self, ack: &Ack, config: &Config) {
        let smss = u64::from(self.size.emss());
        self.recovery.measure(&mut self.outstanding.state, ack, self.una, self.nxt, smss, config);
    }

    /// Updates the peer's window. Returns true if its size changed. The opening of a probed window also resets the
    /// backoff and marks all data in flight as lost.
    fn update_window(&mut self, now: Instant, info: AckInfo<'_>) -> bool {
        if info.ack < self.una || !self.window.accepts_update(info.seq, info.ack) {
            return false;
        }
        let changed = u64::from(self.window.size()) != info.window;
        let opened = self.window.is_closed() && info.window > 0;
        self.window.set(info.seq, info.ack, info.window);
        self.probes.on_window(self.window.is_closed());
        if self.window.is_closed() {
            self.progress_at = now; // RFC 9293 §3.8.6.1 MUST-37: an answer is progress
        }
        if opened {
            self.probe_due = false;
        }
        if opened && self.probing {
            // The peer refused data while its window was closed: retransmit that data now.
            self.probing = false;
            self.recovery.rtt_mut().reset_backoff();
            if let Some(out) = self.outstanding.get_mut() {
                out.board.mark_all_lost();
            }
        }
        changed
    }

    /// Returns true if an acknowledgement of no new data with this window changes nothing. The window is then open and
    /// unchanged, no data is in flight, no loss is suspected, and no probe is unanswered.
    pub(crate) fn is_noop_ack(&self, window: u64) -> bool {
        self.flight() == 0
            && window == u64::from(self.window.size())
            && window > 0
            && self.outstanding.state.phase() == Phase::Open
            && self.outstanding.state.is_probe_idle()
            && self.recovery.is_settled()
    }

    /// Returns true if [`on_single_segment_ack`](Self::on_single_segment_ack) may process an acknowledgement of all
    /// data in flight. One segment is then in flight, nothing was lost or probed, and the window was open and stays
    /// open with `window`.
    #[inline]
    pub(crate) fn has_single_segment(&self, window: u64) -> bool {
        window > 0
            && !self.window.is_closed()
            && self.outstanding.board.has_single_segment()
            && self.recovery.accepts_single_ack(&self.outstanding.state)
    }

    /// Processes an acknowledgement of all data in flight, as [`on_ack`](Self::on_ack) does, but faster. Requires
    /// [`has_single_segment`](Self::has_single_segment). `seq` and `window` are the segment's SEG.SEQ and scaled
    /// SEG.WND.
    #[inline]
    pub(crate) fn on_single_segment_ack(
        &mut self,
        now: Instant,
        seq: ExtSeq,
        window: u64,
        config: &Config,
    ) {
        let (bytes, smss) = (self.flight(), u64::from(self.size.emss()));
        let out = &mut *self.outstanding;
        let Some(at) = out.board.acknowledge_single(self.nxt) else { return };
        out.reno_sacked = 0;
        self.una = self.nxt;
        self.progress_at = now;
        self.dup_acks = 0;
        let sent = Transmission { at, end: self.una };
        self.recovery.on_single_ack(&mut out.state, now, sent, bytes, smss, config);
        if self.window.accepts_update(seq, self.una) {
            self.window.set(seq, self.una, window);
        }
    }

    fn on_duplicate_ack(&mut self, flight: u64, stats: &mut Counters) {
        stats.cold_stats().loss.duplicate_acks_in += 1;
        self.dup_acks = self.dup_acks.saturating_add(1);
        if self.dup_acks == 1 {
            self.outstanding.flight_before_dups = flight;
        }
        if !self.sack {
            // RFC 5682 §2.1 step 3a: after a time-out only data sent since then can cause duplicate ACKs.
            let most = match self.outstanding.state.phase() {
                Phase::Loss { point } => self.nxt.since(point),
                _ => self.flight().saturating_sub(u64::from(self.size.emss())),
            };
            self.outstanding.reno_sacked =
                (self.outstanding.reno_sacked + u64::from(self.size.emss())).min(most);
        }
    }

    // --- recovery -----------------------------------------------------------------------------------

    /// Handles an advance of SND.UNA. `over` is true if the acknowledgement ended the recovery. Without SACK a partial
    /// acknowledgement means that the next segment is also lost (RFC 6582 §3.2 (3)).
    fn on_una_advanced(&mut self, before: Phase, over: bool, ack: &Ack) {
        let smss = u64::from(self.size.emss());
        match before {
            Phase::Recovery { .. } if !over && !self.sack => {
                let rest = ack.delivery.bytes.saturating_sub(smss);
                self.outstanding.reno_sacked = self.outstanding.reno_sacked.saturating_sub(rest);
                self.outstanding.board.mark_head_lost();
                self.outstanding.state.allow_resend_beyond_cwnd();
            }
            Phase::Recovery { .. } if !over => {}
            _ => self.outstanding.reno_sacked = 0,
        }
    }

    /// Counts and records that the window reduction of a spurious loss was undone.
    fn on_undone(
        &mut self,
        now: Instant,
        undone: UndoProof,
        config: &Config,
        stats: &mut Counters,
    ) {
        let cwnd = saturating_bytes(self.recovery.cc().cwnd());
        stats.record(config.recorder, Record::new(now, Kind::Undone, undone as u32, cwnd));
        match undone {
            UndoProof::Frto => stats.cold_stats().loss.undone_by_frto += 1,
            UndoProof::Timestamp => stats.cold_stats().loss.undone_by_timestamp += 1,
            UndoProof::DSack => stats.cold_stats().loss.undone_by_d_sack += 1,
        }
        self.outstanding.reno_sacked = 0;
        self.dup_acks = 0;
    }

    // --- loss ---------------------------------------------------------------------------------------

    /// Finds losses after an acknowledgement. Returns the number of segments newly found lost. Without SACK, lost path
    /// MTU probes are not counted.
    fn find_losses(&mut self, now: Instant, config: &Config, stats: &mut Counters) -> u64 {
        if self.sack {
            let (recovery, state, mut board) = self.split_recovery();
            let found = recovery.find_losses(state, &mut board, now, config);
            return self.count_losses(now, found, config, stats);
        }
        let due = !self.outstanding.board.is_empty()
            && must_recover(
                self.outstanding.state.phase(),
                self.dup_acks,
                self.una,
                self.outstanding.recover,
            );
        if !due {
            return 0;
        }
        if self.outstanding.board.head_is_probe() {
            // RFC 4821 §7.6.2: the loss of a probe alone is not a sign of congestion.
            self.outstanding.board.mark_head_lost();
            self.dup_acks = 0;
            return 0;
        }
        let (recovery, state, board) = self.split_recovery();
        recovery.enter_recovery(state, &board);
        state.allow_resend_beyond_cwnd();
        let found = LossesFound { segments: 0, recovery_began: true };
        self.count_losses(now, found, config, stats);
        self.outstanding.board.mark_head_lost();
        1
    }

    /// Counts newly found losses and a new recovery. Returns the number of lost segments.
    #[inline]
    fn count_losses(
        &mut self,
        now: Instant,
        found: LossesFound,
        config: &Config,
        stats: &mut Counters,
    ) -> u64 {
        let LossesFound { segments, recovery_began } = found;
        stats.add(segments, |s| &mut s.loss.segments_lost);
        if recovery_began {
            stats.cold_stats().loss.fast_recoveries += 1;
            self.outstanding.recover = self.nxt;
            let (flight, cwnd) =
                (saturating_bytes(self.flight()), saturating_bytes(self.recovery.cc().cwnd()));
            stats.record(config.recorder, Record::new(now, Kind::Recovery, flight, cwnd));
        }
        segments
    }

    /// Handles the expiry of the reordering timer (RFC 8985 §6.2 step 5).
    pub(crate) fn on_reorder_timeout(
        &mut self,
        now: Instant,
        config: &Config,
        stats: &mut Counters,
    ) {
        let smss = u64::from(self.size.emss());
        let (recovery, state, mut board) = self.split_recovery();
        let found = recovery.on_reorder_timeout(state, &mut board, now, smss, config);
        self.count_losses(now, found, config, stats);
    }

    /// Handles the peer's echo of a CE mark (RFC 3168 §6.1.2). Returns true if the window was reduced, so that CWR must
    /// be sent.
    pub(crate) fn on_ecn_congestion(&mut self) -> bool {
        if self.outstanding.board.is_empty() {
            return false; // nothing is in flight; the early return avoids an allocation
        }
        let (recovery, state, board) = self.split_recovery();
        recovery.on_marks(state, &board)
    }

    /// Handles the expiry of the retransmission timer.
    pub(crate) fn on_timeout(&mut self, now: Instant, stats: &mut Counters) {
        stats.cold_stats().loss.timeouts += 1;
        let (recovery, state, mut board) = self.split_recovery();
        recovery.on_timeout(state, &mut board, now);
        self.outstanding.recover = self.nxt;
        self.dup_acks = 0;
        self.outstanding.reno_sacked = 0;
    }
}
