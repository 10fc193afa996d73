//! SEGMENT ARRIVES (RFC 9293 §3.10.7), with the checks of RFC 5961 and RFC 7323, in the RFC's order.
//!
//! Not included: LISTEN, a state of the owner's listener; loss recovery (`acks`); received ranges (`receiver`). Answers
//! are only scheduled: `output` sends them.

use core::time::Duration;

use base::Instant;
use transport::congestion::EcnEcho;
use transport::recorder::{Kind, saturating_bytes};
use transport::right_sizing::WindowUsage;
use transport::seq::ExtSeq;

use super::acks::AckInfo;
use super::challenge::ChallengeLimit;
use super::connection::{CloseReason, Connection, Event};
use super::drop_reason::DropReason;
use super::ecn::EchoAction;
use super::receiver::TextOutcome;
use super::record::Header;
use super::segment::{Flags, Segment};
use super::state::{State, Transition};
use super::timers::Timer;
use super::window::{Acceptance, acceptance};
use crate::seam::{SegmentSource, SpanSink};

impl Connection {
    /// Processes a received segment of this connection (RFC 9293 §3.10.7). Passes new bytes to `up` at once. The next
    /// [`poll_transmit`](Self::poll_transmit) sends the acknowledgement or reset that is due.
    ///
    /// # Errors
    /// The reason why the segment was dropped, entirely or in part.
    pub fn input<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut U,
    ) -> Result<(), DropReason> {
        let fast_path = self.state == State::Established && self.is_predicted(now, seg);
        self.input_on_path(fast_path, now, seg, up)
    }

    /// Processes a segment on the fast path ([`header_prediction`](super::header_prediction)) if `fast_path`, else on
    /// the slow path.
    #[inline]
    pub(super) fn input_on_path<U: SpanSink + SegmentSource>(
        &mut self,
        fast_path: bool,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut U,
    ) -> Result<(), DropReason> {
        self.stats.segments_in += 1;
        match self.state {
            _ if fast_path => self.input_fast_path(now, seg, up)?,
            State::Closed => return Err(DropReason::Closed),
            State::SynSent => self.input_syn_sent(now, seg, up)?,
            _ => self.input_slow_path(now, seg, up)?,
        }
        self.last_received = now;
        self.keepalive.unanswered = 0;
        Ok(())
    }

    // --- SYN-SENT (RFC 9293 §3.10.7.3) --------------------------------------------------------------

    fn input_syn_sent<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut U,
    ) -> Result<(), DropReason> {
        let acked = seg.flags.has(Flags::ACK);
        if acked {
            let ack = self.send.una.nearest(seg.ack);
            if ack <= self.send.iss() || ack > self.send.nxt {
                if !seg.flags.has(Flags::RST) {
                    self.schedule_reset(seg.ack);
                }
                return Err(DropReason::BadAck);
            }
        }
        if seg.flags.has(Flags::RST) {
            if !acked {
                return Err(DropReason::BlindReset);
            }
            if self.ecn.withdraw() {
                // RFC 3168 §6.1.1.1: the peer may have refused only the ECN flags, so a SYN without them follows.
                self.syn.due = true;
                self.timers.stop(Timer::Retransmit);
                return Ok(());
            }
            self.note_header(now, Kind::ResetReceived, &Header::from_segment(seg));
            self.delete(CloseReason::Refused);
            return Ok(());
        }
        if !seg.flags.has(Flags::SYN) {
            return Err(DropReason::NoAck); // RFC 9293 §3.10.7.3, fifth check
        }
        self.negotiate(seg, now);
        self.recv.on_window_offered(self.syn.window);
        if !acked {
            // Simultaneous open (RFC 9293 §3.5, figure 7). Data on the SYN is ignored; the peer retransmits it.
            self.transition(Transition::SynArrived);
            self.syn.due = true;
            self.timers.stop(Timer::Retransmit);
            return Ok(());
        }
        self.measure_syn(now, seg);
        self.enter_established(now);
        self.recv.ack_now = true;
        self.announce_emss(up);
        // RFC 9293 §3.10.7.3, fourth check: processing continues at the sixth check of §3.10.7.4, with data and FIN.
        self.process_text_and_fin(now, seg, self.recv.irs().plus(1), up)
    }

    /// Takes a round-trip sample of our SYN, if the SYN was sent once or the echoed timestamp identifies the
    /// transmission (RFC 6298 §3, RFC 7323 §4.1).
    ///
    /// After a retransmission a peer may echo the timestamp of an earlier SYN, or answer the last SYN only when its own
    /// timer expires. Such a sample includes time-outs. Samples above the initial RTO are therefore ignored, and the
    /// RTO for data begins at three seconds (RFC 6298 §5.7).
    fn measure_syn(&mut self, now: Instant, seg: &Segment<'_>) {
        if self.syn.unmeasured {
            return;
        }
        let rtt = if self.syn.lost {
            let echoed = self.echoed_ms(now, seg);
            let rtt = echoed.map(|ms| Duration::from_millis((now.as_millis() - ms).max(1)));
            rtt.filter(|&rtt| rtt <= self.config.rto.initial)
        } else {
            Some(now.saturating_since(self.send.last_sent))
        };
        if let Some(rtt) = rtt {
            self.send.recovery.rtt_mut().sample(rtt.into(), 1, &self.config);
        }
    }

    // --- other states (RFC 9293 §3.10.7.4) ----------------------------------------------------------

    fn input_slow_path<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut U,
    ) -> Result<(), DropReason> {
        let mut start = self.recv.nxt.nearest(seg.seq);
        let mut syn = seg.flags.has(Flags::SYN);
        if self.state == State::SynReceived && syn && start == self.recv.irs() {
            if !seg.flags.has(Flags::ACK) {
                self.syn.due = true; // our SYN-ACK was lost
                let stamps = seg.options.timestamps.filter(|_| self.timestamps);
                if let Some(stamps) =
                    stamps.filter(|&stamps| !self.recv.is_old_timestamp(stamps, now))
                {
                    self.recv.record_timestamp(start, stamps, now); // RFC 7323 §4.3 (2)
                }
                return Err(DropReason::UnexpectedSyn);
            }
            // Simultaneous open: the SYN is trimmed, and the acknowledgement is processed (RFC 9293 appendix A.2).
            start = start.plus(1);
            syn = false;
        }
        self.check_timestamp(now, seg)?;
        let len = seg.payload.len() as u32 + u32::from(syn) + u32::from(seg.flags.has(Flags::FIN));
        let accepted = acceptance(start, len, self.recv.nxt, self.recv.edge);
        let reset_at_edge = accepted == Acceptance::AtEdge && seg.flags.has(Flags::RST);
        if accepted == Acceptance::Unacceptable || reset_at_edge {
            return Err(self.on_unacceptable(now, seg, start, len));
        }
        if seg.flags.has(Flags::RST) {
            return self.on_reset(now, seg, start);
        }
        if syn {
            return Err(self.on_syn(now));
        }
        self.check_ack(now, seg)?;
        if let Some(stamps) = seg.options.timestamps.filter(|_| self.timestamps) {
            self.recv.record_timestamp(start, stamps, now);
        }
        self.process_ack(now, seg, start, up);
        if accepted == Acceptance::AckOnly {
            self.recv.ack_now = true;
            return Err(DropReason::OutOfWindow);
        }
        self.process_text_and_fin(now, seg, start, up)
    }

    /// Checks the timestamp of a segment (RFC 7323 §3.2, §5.3 R1).
    fn check_timestamp(&mut self, now: Instant, seg: &Segment<'_>) -> Result<(), DropReason> {
        if !self.timestamps || seg.flags.has(Flags::RST) {
            return Ok(());
        }
        let Some(stamps) = seg.options.timestamps else {
            // RFC 5961 §4: a SYN is challenged even without a timestamp, because the peer may have restarted.
            let syn = seg.flags.has(Flags::SYN);
            return if syn { Ok(()) } else { Err(DropReason::NoTimestamp) };
        };
        if self.recv.is_old_timestamp(stamps, now) {
            // RFC 2883 §4: D-SACK also reports an original segment that arrives after its retransmission.
            let start = self.recv.nxt.nearest(seg.seq);
            self.recv.note_duplicate(start, start.plus(seg.payload.len() as u64));
            self.schedule_ack(now, seg.payload.is_empty());
            return Err(DropReason::OldTimestamp);
        }
        Ok(())
    }

    /// Handles a segment that failed the first check: schedules an acknowledgement, unless the segment is
    /// a reset.
    fn on_unacceptable(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        start: ExtSeq,
        len: u32,
    ) -> DropReason {
        if seg.flags.has(Flags::RST) {
            return DropReason::OutOfWindow; // RFC 5961 §3: dropped silently
        }
        if self.state == State::TimeWait
            && seg.flags.has(Flags::FIN)
            && start.plus(u64::from(len)) == self.recv.nxt
        {
            // A retransmitted FIN restarts the 2 MSL time-out.
            self.timers.set(Timer::Wait, now + self.config.limits.time_wait);
        }
        let again = self.recv.nxt.since(start).min(seg.payload.len() as u64);
        self.stats.add(again, |s| &mut s.recv.bytes_duplicate);
        self.recv.note_duplicate(start, start.plus(seg.payload.len() as u64));
        if seg.flags.has(Flags::SYN) {
            // RFC 5961 §4, RFC 9293 §3.10.7.4: a SYN outside the window is answered only with a challenge ACK, even in
            // SYN-RECEIVED.
            self.send_challenge(now);
            return DropReason::UnexpectedSyn;
        }
        self.schedule_ack(now, seg.payload.is_empty());
        DropReason::OutOfWindow
    }

    /// Schedules an acknowledgement. If `limited`, the rate limit of challenge acknowledgements applies. Callers set
    /// `limited` for segments without data, so that two ends cannot answer each other for ever.
    fn schedule_ack(&mut self, now: Instant, limited: bool) {
        if !limited || self.may_challenge(now) {
            self.recv.ack_now = true;
        }
    }

    /// Takes one challenge acknowledgement from the budget of this second (RFC 5961 §7). Returns false if none is left.
    fn may_challenge(&mut self, now: Instant) -> bool {
        let limit =
            self.stats.alloc_cold().challenge.get_or_insert_with(|| ChallengeLimit::new(now));
        limit.try_acquire(now, self.config.challenge_acks_per_second)
    }

    /// Schedules a challenge acknowledgement, if the rate limit allows. Only the true peer can react to the challenge
    /// (RFC 5961 §3.2, §4.2, §5.2).
    fn send_challenge(&mut self, now: Instant) {
        if self.may_challenge(now) {
            self.stats.cold_stats().challenge_acks += 1;
            self.recv.ack_now = true;
        }
    }

    /// Second check: processes a reset in the window. A reset is accepted at RCV.NXT only (RFC 5961 §3.2).
    fn on_reset(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        start: ExtSeq,
    ) -> Result<(), DropReason> {
        if start != self.recv.nxt {
            self.send_challenge(now);
            return Err(DropReason::BlindReset);
        }
        let reason = match self.state {
            State::SynReceived if !self.passive => CloseReason::Refused,
            // Both FINs were sent. The connection ends normally if at most our FIN is unacknowledged.
            State::Closing | State::LastAck if self.send.flight() <= 1 => CloseReason::Normal,
            _ => CloseReason::Reset,
        };
        self.note_header(now, Kind::ResetReceived, &Header::from_segment(seg));
        self.delete(reason);
        Ok(())
    }

    /// Fourth check: processes a SYN in the window of an existing connection.
    fn on_syn(&mut self, now: Instant) -> DropReason {
        if self.state == State::SynReceived && self.passive {
            self.delete(CloseReason::Reset); // RFC 9293: back to LISTEN, a state of the listener
        } else {
            self.send_challenge(now);
        }
        DropReason::UnexpectedSyn
    }

    /// Fifth check: returns an error if the acknowledgement is missing or unacceptable.
    fn check_ack(&mut self, now: Instant, seg: &Segment<'_>) -> Result<(), DropReason> {
        if !seg.flags.has(Flags::ACK) {
            return Err(DropReason::NoAck);
        }
        let ack = self.send.una.nearest(seg.ack);
        if self.state == State::SynReceived {
            if ack <= self.send.una || ack > self.send.nxt {
                self.schedule_reset(seg.ack);
                return Err(DropReason::BadAck);
            }
        } else if !self.send.is_acceptable(ack) {
            self.send_challenge(now);
            return Err(DropReason::BadAck);
        }
        Ok(())
    }

    /// Fifth check: processes an acceptable acknowledgement.
    fn process_ack<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        start: ExtSeq,
        up: &mut U,
    ) {
        let ack = self.send.una.nearest(seg.ack);
        let window = u64::from(seg.window) << self.send.window_shift;
        if self.state == State::SynReceived {
            self.measure_syn(now, seg);
            self.enter_established(now);
            self.send.window.set(start, ack, window);
            self.announce_emss(up);
            return;
        }
        if ack < self.send.una {
            return; // an old acknowledgement changes nothing
        }
        let marked = self.ecn.sends_ect() && seg.flags.has(Flags::ECE);
        if self.ecn.expects_exact_echo() && ack > self.send.una {
            let acked = ack.since(self.send.una);
            self.send.recovery.on_echo(&EcnEcho { ack, nxt: self.send.nxt, acked, marked });
        }
        if self.ecn.must_reduce_cwnd(seg, ack, self.send.nxt) {
            self.reduce_for_ecn(now);
        }
        if ack == self.send.una && self.send.is_noop_ack(window) && seg.options.sack.is_empty() {
            // Nothing is in flight and the window is unchanged: usual if the peer only sends data.
            return self.send.window.update_wl(start, ack);
        }
        let info = AckInfo {
            seq: start,
            ack,
            window,
            bare: seg.seq_len() == 0,
            blocks: if self.send.sack { &seg.options.sack } else { &[] },
            echoed_ms: self.echoed_ms(now, seg),
            has_data: self.state.may_send() && up.has_data(),
            marked,
        };
        let advanced = self.send.on_ack(now, info, &self.config, &mut self.stats);
        self.loss_timer_after_ack(now, advanced);
        self.update_path_after_ack(now);
        if self.send.window.is_closed() {
            if self.stats.on_window_closed(now) {
                self.note_header(now, Kind::WindowClosed, &Header::from_segment(seg));
            }
        } else {
            self.note_open_window(now, seg);
        }
        if advanced {
            up.on_acknowledged(self.send.acknowledged_offset());
            if self.send.fin_sent && self.send.una == self.send.nxt {
                self.on_fin_acked(now);
            }
        }
    }

    /// Records that the peer's window has opened, if it was closed.
    #[inline]
    pub(super) fn note_open_window(&mut self, now: Instant, seg: &Segment<'_>) {
        if self.stats.on_window_opened() {
            self.note_header(now, Kind::WindowOpened, &Header::from_segment(seg));
        }
    }

    /// Reduces the congestion window because the peer echoed a CE mark (RFC 3168 §6.1.2), unless loss recovery has
    /// already reduced it.
    fn reduce_for_ecn(&mut self, now: Instant) {
        if self.send.on_ecn_congestion() {
            self.stats.cold_stats().ecn_reductions += 1;
            let cwnd = saturating_bytes(self.send.recovery.cc().cwnd());
            self.note(now, Kind::Marked, self.send.una.wire().0, cwnd);
        }
    }

    /// Returns the time at which we sent the timestamp that `seg` echoes, in [`Instant::as_millis`] (RFC 7323 §4.1).
    /// `None` without timestamps, or if that time is in the future or before zero.
    fn echoed_ms(&self, now: Instant, seg: &Segment<'_>) -> Option<u64> {
        let stamps = seg.options.timestamps.filter(|_| self.timestamps)?;
        let age = self.ts_now(now).wrapping_sub(stamps.ecr);
        if age >= 1 << 31 {
            return None;
        }
        now.as_millis().checked_sub(u64::from(age))
    }

    fn on_fin_acked(&mut self, now: Instant) {
        match self.state {
            State::FinWait1 => {
                self.transition(Transition::FinAcked);
                self.timers.set(Timer::Wait, now + self.config.limits.fin_wait_2);
            }
            State::Closing => self.enter_time_wait(now, Transition::FinAcked),
            State::LastAck => {
                self.transition(Transition::FinAcked);
                self.cancel_pending();
                self.push_event(Event::Closed(CloseReason::Normal));
            }
            _ => {}
        }
    }

    /// Seventh and eighth check: processes data and FIN.
    fn process_text_and_fin<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        start: ExtSeq,
        up: &mut U,
    ) -> Result<(), DropReason> {
        if !self.state.may_receive() {
            // After the peer's FIN, or in CLOSED, data or a FIN is an error.
            if seg.seq_len() > 0 {
                self.recv.ack_now = self.state != State::Closed;
                return Err(DropReason::PastFin);
            }
            return Ok(());
        }
        if self.state == State::FinWait2 && seg.seq_len() > 0 {
            self.timers.set(Timer::Wait, now + self.config.limits.fin_wait_2);
        }
        let end = start.plus(seg.payload.len() as u64);
        let past_fin = !seg.payload.is_empty() && self.recv.fin().is_some_and(|fin| end > fin);
        let mut text = TextOutcome::Taken;
        if !seg.payload.is_empty() {
            self.stats.add(seg.ce.into(), |s| &mut s.recv.ecn_marks);
            if self.ecn.affects_echo(seg) {
                self.process_ce_mark(seg);
            }
            let (config, stats) = (&self.config, &mut self.stats);
            text = self.recv.hand_up_text(now, start, seg.payload, config, stats, up);
            if self.recv.is_half_used() {
                self.grow_receive_window(now, up);
            }
            self.recv.ack_now |= self.config.acks.pushed && seg.flags.has(Flags::PSH);
        }
        // RFC 9293 §3.10.7.4, first check: a FIN beyond the window is trimmed.
        let fin = seg.flags.has(Flags::FIN) && end < self.recv.edge.max(self.recv.nxt.plus(1));
        if fin && !self.recv.record_fin(end) || past_fin {
            self.recv.ack_now = true;
            return Err(DropReason::PastFin);
        }
        if self.recv.take_fin() {
            self.on_fin(now, seg);
        }
        self.arm_delayed_ack(now);
        match text {
            TextOutcome::Taken => Ok(()),
            TextOutcome::Refused => Err(DropReason::Refused),
        }
    }

    /// Grows the receive window if the peer uses more than half of it per round trip. The upper layer must have room
    /// for the larger window and allow the growth. Called after half of the window was received. Decides at most once
    /// per round trip.
    #[cold]
    pub(super) fn grow_receive_window(&mut self, now: Instant, up: &mut impl SpanSink) {
        if let (Some(next), Some(rtt)) =
            (self.recv.next_window(&self.config), self.send.recovery.base_rtt())
        {
            let (grown, increase) = (self.recv.growth(&self.config), self.recv.growth_to(next));
            match self.recv.window_usage(now, rtt) {
                WindowUsage::Early => return,
                WindowUsage::Tight if up.room() >= next && up.grow_window(grown, increase) => {
                    self.recv.grow(next)
                }
                WindowUsage::Tight | WindowUsage::Ample => {}
            }
        }
        self.recv.restart_measurement(now);
    }

    /// Processes the CE mark of a data segment, or its absence, before the data is passed to the upper layer.
    fn process_ce_mark(&mut self, seg: &Segment<'_>) {
        match self.ecn.on_data(seg) {
            EchoAction::NoAction => {}
            EchoAction::AckNow => self.recv.ack_now = true,
            EchoAction::Changed { old_echo: was } => {
                self.recv.schedule_earlier_ack(was);
                self.recv.ack_now = true;
            }
        }
    }

    /// Starts the delayed-acknowledgement timer, unless an acknowledgement is due now (RFC 9293 §3.8.6.3 MUST-40, RFC
    /// 5681 §4.2).
    pub(super) fn arm_delayed_ack(&mut self, now: Instant) {
        if self.recv.ack_now || self.recv.unacked_segments == 0 {
            return;
        }
        if self.config.acks.delay.is_zero() {
            self.recv.ack_now = true;
        } else if !self.timers.is_set(Timer::DelayedAck) {
            self.timers.set(Timer::DelayedAck, now + self.config.acks.delay);
        }
    }

    fn on_fin(&mut self, now: Instant, seg: &Segment<'_>) {
        let from = self.state;
        self.note_fin(now, Kind::FinReceived, &Header::from_segment(seg));
        if self.state == State::FinWait2 {
            self.enter_time_wait(now, Transition::FinArrived);
        } else {
            self.transition(Transition::FinArrived);
            self.push_event(Event::RemoteClosed);
        }
        self.note_state(now, from);
    }

    /// Enters TIME-WAIT for the configured 2 MSL (RFC 9293 §3.6.1 MUST-13).
    fn enter_time_wait(&mut self, now: Instant, by: Transition) {
        if self.state == State::FinWait2 {
            self.push_event(Event::RemoteClosed);
        }
        self.transition(by);
        self.timers.stop_all();
        self.timers.set(Timer::Wait, now + self.config.limits.time_wait);
        self.push_event(Event::Closed(CloseReason::Normal));
    }

    /// Notifies the upper layer if the effective MSS has changed.
    pub(super) fn announce_emss(&mut self, up: &mut impl SegmentSource) {
        if self.send.size.take_change() {
            up.on_emss_changed(self.send.emss());
        }
    }
}
