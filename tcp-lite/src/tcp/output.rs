//! Transmission: SYNs, retransmissions, new data, probes, acknowledgements, resets. In ESTABLISHED, a poll sends
//! acknowledgements of an earlier CE state, a window probe or tail loss probe, then lost segments before new data, a
//! keepalive probe, and last the current acknowledgement.
//!
//! Not included: which segments are lost (`scoreboard`), the computation of windows (`window`), and the encoding of
//! segments (`segment`).

mod handshake;
mod run;

#[cfg(test)]
pub(super) use run::switch;

use base::{Instant, Nanos};
use transport::congestion::Run;
use transport::limits::Limit;
use transport::recorder::Kind;
use transport::recovery::{NextSeg, NextSegInputs};
use transport::seq::ExtSeq;
use wire::crc32c::Sum;

use super::connection::Connection;
use super::record::Header;
use super::scoreboard::Resend;
use super::segment::{Flags, HEADER_LEN, Segment, TIMESTAMPS_LEN};
use super::state::{State, Transition};
use super::timers::Timer;
use super::window::{SendRoom, send_room};
use crate::seam::{SegmentSource, SpanSink, TxBatch};

/// Override time-out of silly window avoidance: delay of a segment that is cut to a small window (RFC 9293 §3.8.6.2.1:
/// 0.1 to 1 s).
const SWS_OVERRIDE_TIMEOUT: Nanos = Nanos::from_millis(200);

/// Properties of a written header of new data.
#[derive(Clone, Copy)]
struct WrittenHeader {
    fin: bool,
    /// Internet checksum of the segment without the pseudo-header, if the source knows the payload's checksum.
    sum: Option<Sum>,
}

/// Result of an attempt to send one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SendOutcome {
    Sent,
    /// No segment is due, none fits the peer's window, or the source declined to fill a segment.
    Declined,
    /// The congestion window is full.
    CwndFull,
    /// Pacing defers the next burst until this time.
    Paced(Instant),
    /// The batch has no buffer left.
    BatchFull,
}

impl Connection {
    /// Writes the segments that are due: SYN or reset, retransmissions, new data within the windows, probes, and
    /// usually at most one acknowledgement. Several acknowledgements are sent if the peer has no SACK and counts
    /// duplicates, or with DCTCP if the CE mark has changed (RFC 8257 §3.2).
    pub fn poll_transmit<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) {
        if let Some(seq) = self.stats.cold().and_then(|rare| rare.reset) {
            self.send_reset(now, seq, tx);
        }
        if matches!(self.state, State::Closed | State::SynSent | State::SynReceived) {
            return self.transmit_handshake(now, up.room(), tx);
        }
        self.announce_emss(up);
        self.send_earlier_acks(now, tx);
        if self.state.may_retransmit() {
            self.send_data(now, up, tx);
        }
        self.send_keepalive(now, up.room(), tx);
        self.send_acks(now, up.room(), tx);
    }

    // --- data ---------------------------------------------------------------------------------------

    fn send_data<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) {
        if self.send.outstanding.board.is_empty() {
            // RFC 5681 §4.1: after more than one RTO without transmission, the congestion window restarts.
            let idle = now.nanos_since(self.send.last_sent);
            if idle > self.send.recovery.rtt().rto(&self.config) && up.has_data() {
                self.send.recovery.cc_mut().restart_after_idle(self.config.initial_window);
            }
        }
        if self.send.probe_due && self.send.window.is_closed() {
            self.send_probe(now, up, tx);
        }
        if self.send.outstanding.state.is_probe_due() {
            self.send_tail_probe(now, up, tx);
        }
        let (before, nxt, in_flight) = (self.send.last_sent, self.send.nxt, self.send.pipe());
        let stopped_by = loop {
            if let Some(stopped_by) = self.send_run(now, up, tx) {
                break stopped_by;
            }
            match self.send_next(now, up, tx) {
                SendOutcome::Sent => self.send.last_sent = now,
                stopped_by => break stopped_by,
            }
        };
        if self.send.nxt != nxt {
            // The timer is set once per burst, because all its segments have the same time of transmission.
            self.loss_timer_after_send(now);
        }
        if let SendOutcome::Paced(at) = stopped_by {
            self.stats.cold_stats().paced_waits += 1;
            self.timers.set(Timer::Pace, at);
            self.send.outstanding.state.on_paced_wait();
        }
        let has_data = up.has_data();
        if self.send.recovery.cc().needs_samples() && self.send.pipe() > in_flight {
            let bytes = self.send.pipe() - in_flight;
            let app_limited = stopped_by == SendOutcome::Declined && !has_data;
            self.send.recovery.cc_mut().on_sent(&Run {
                sent_at: now,
                bytes,
                in_flight,
                app_limited,
            });
        }
        let limited = stopped_by == SendOutcome::CwndFull;
        if limited {
            self.send.outstanding.state.on_pause();
        }
        if limited || self.send.last_sent != before {
            self.note_usage(now, limited);
        }
        self.note_limit(now, stopped_by, has_data);
        self.arm_send_timers(now, has_data);
    }

    /// Records the limit that stopped transmission. Records nothing if both this limit and the previous limit are the
    /// application.
    #[inline]
    fn note_limit(&mut self, now: Instant, stopped_by: SendOutcome, has_data: bool) {
        let waits = has_data || self.unanswered_timeouts() > 0;
        if waits || stopped_by != SendOutcome::Declined || self.stats.limits.is_limited() {
            self.record_limit(now, stopped_by, has_data);
        }
    }

    #[inline(never)]
    fn record_limit(&mut self, now: Instant, stopped_by: SendOutcome, has_data: bool) {
        let limit = self.current_limit(stopped_by, has_data);
        self.stats.limits.note(now, limit, self.send.acknowledged_offset());
    }

    fn current_limit(&self, stopped_by: SendOutcome, has_data: bool) -> Limit {
        match stopped_by {
            _ if self.unanswered_timeouts() > 0 => Limit::Path,
            SendOutcome::CwndFull => Limit::CongestionWindow,
            SendOutcome::Paced(_) => Limit::Pacing,
            SendOutcome::BatchFull => Limit::Port,
            _ if !has_data || self.new_data_room() != SendRoom::Closed => Limit::Application,
            _ if self.send.outstanding.board.len() < self.config.max_records()
                && self.send.right_edge().since(self.send.nxt) == self.send.usable_window() =>
            {
                Limit::PeerWindow
            }
            _ => Limit::SendWindow,
        }
    }

    /// Reports to loss recovery whether the congestion window limits the sender (RFC 2861 §3.2, RFC 7661 §4.3).
    fn note_usage(&mut self, now: Instant, limited: bool) {
        let config = &self.config;
        let (recovery, state, board) = self.send.split_recovery();
        recovery.note_usage(state, &board, now, limited, || config.initial_window, config);
    }

    /// Sends the next segment: lost segments first, then new data (RFC 6675 §4, NextSeg).
    fn send_next<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let has_data = self.state.may_send() && up.has_data();
        let lost = self.next_lost_in_window();
        let room = self.new_data_room();
        let choice = NextSegInputs {
            cwnd_open: self.send.has_cwnd_room(),
            resend_ignores_cwnd: self.send.outstanding.state.resend_ignores_cwnd(),
            lost: lost.is_some(),
            new: has_data && room != SendRoom::Closed,
            frto_new_left: self.send.recovery.frto_new_left(),
        };
        let next = choice.next_seg();
        if self.is_fin_next(has_data, next) {
            return self.send_fin(now, up, tx);
        }
        let paced = matches!(next, NextSeg::Lost | NextSeg::New)
            && !self.send.outstanding.state.resend_ignores_cwnd();
        if paced
            && let Some(at) = self.send.outstanding.state.paced_until(now)
            && self.send.pace(&self.config, tx.is_shared()).is_some()
        {
            return SendOutcome::Paced(at);
        }
        let sent = match (next, lost) {
            (NextSeg::Lost, Some(resend)) => self.resend(now, resend, false, up, tx),
            (NextSeg::New, _) => self.send_new(now, room, up, tx),
            (NextSeg::CwndFull, _) => SendOutcome::CwndFull,
            _ => SendOutcome::Declined,
        };
        if sent == SendOutcome::Declined
            && choice.frto_new_left.is_some()
            && self.send.recovery.cancel_frto()
        {
            // RFC 5682 §2.1 step 2b: there is no new data to send, so F-RTO ends and the usual recovery continues.
            return self.send_next(now, up, tx);
        }
        sent
    }

    /// Returns the room for new data in the peer's window and our send window; `Closed` if all records are in use.
    fn new_data_room(&self) -> SendRoom {
        if self.send.outstanding.board.len() >= self.config.max_records() {
            return SendRoom::Closed;
        }
        send_room(
            self.send.usable_window(),
            self.send.emss(),
            self.send.window.largest().into(),
            self.send.flight(),
            self.send.probe_due,
        )
    }

    /// Returns the next lost segment that begins left of the right edge of the peer's window. The window may have
    /// shrunk below other lost segments (RFC 9293 §3.8.6 SHLD-16).
    fn next_lost_in_window(&mut self) -> Option<Resend> {
        if self.send.window.is_closed() {
            return None; // window probes retransmit the oldest segment
        }
        let resend = self.send.outstanding.board.next_lost()?;
        (resend.start < self.send.right_edge()).then_some(resend)
    }

    /// Returns true if the next segment is a FIN without data. Neither the congestion window nor the peer's window
    /// applies to the FIN. A peer whose window has no room for the FIN acknowledges only the data, and the FIN is
    /// retransmitted.
    fn is_fin_next(&self, has_data: bool, next: NextSeg) -> bool {
        self.send.fin_queued
            && !self.send.fin_sent
            && !has_data
            && self.state.may_send()
            && !matches!(next, NextSeg::Lost)
    }

    fn send_new<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        room: SendRoom,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let in_flight = self.send.flight() > 0;
        let (room, may_decline) = match room {
            SendRoom::Use(room) => (room, in_flight),
            SendRoom::IfWhole(room) => (room, true),
            SendRoom::Closed => return SendOutcome::Declined,
        };
        match self.send_path_probe(now, up, tx) {
            SendOutcome::Declined => self.write_new(now, room, may_decline, up, tx),
            sent => sent,
        }
    }

    /// Sends new data in a segment longer than the effective MSS, if a path MTU probe is due (RFC 4821 §7.4).
    fn send_path_probe<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let Some(room) = self.due_probe_len(now) else { return SendOutcome::Declined };
        let header_len = self.header_len();
        let Some(out) = tx.reserve_segment(header_len + room) else {
            return SendOutcome::BatchFull;
        };
        let start = self.send.nxt;
        let payload = &mut out[header_len..header_len + room];
        let len = up.fill_probe(self.send.offset(start), self.send.emss(), payload).min(room);
        if len == 0 {
            return SendOutcome::Declined;
        }
        let head = self.write_new_header(now, len, up, out);
        self.commit_new(now, len, head, tx);
        if len > self.send.emss() {
            self.on_path_probe_sent(now, start, len);
        }
        SendOutcome::Sent
    }

    /// Sends one segment of new data, at most `room` bytes. `may_decline`: the source may decline `room` bytes and wait
    /// for more.
    fn write_new<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        room: usize,
        may_decline: bool,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let header_len = self.header_len();
        let Some(out) = tx.reserve_segment(header_len + room) else {
            return SendOutcome::BatchFull;
        };
        let offset = self.send.offset(self.send.nxt);
        let payload = &mut out[header_len..header_len + room];
        let len = up.fill(offset, self.send.emss(), may_decline, payload).min(room);
        if len == 0 {
            return SendOutcome::Declined;
        }
        let head = self.write_new_header(now, len, up, out);
        self.commit_new(now, len, head, tx);
        SendOutcome::Sent
    }

    /// Returns true if every new segment has PSH. The last segment always has PSH (RFC 9293 §3.9.1.2 MUST-61).
    fn pushes_all(&self) -> bool {
        self.config.push_segments && self.send.needs_single_acks()
    }

    /// Writes the header of a segment with `len` bytes of new data.
    fn write_new_header(
        &mut self,
        now: Instant,
        len: usize,
        up: &(impl SegmentSource + SpanSink),
        out: &mut [u8],
    ) -> WrittenHeader {
        let last = !up.has_data();
        let fin = last && self.send.fin_queued && self.send.usable_window() > len as u64;
        let push = last || self.pushes_all();
        let mut flags = if fin { Flags::FIN } else { Flags::default() };
        if !self.send.window.is_closed() {
            flags = flags.with(self.ecn.data_flags(self.stats.window_reductions()));
        }
        let window = self.recv.advertise(up.room());
        let header = self.data_header(now, flags, window);
        let fields = header.write(self.send.nxt.wire(), push, out);
        WrittenHeader { fin, sum: up.text_sum().map(|text| Sum::from_fields(fields).concat(text)) }
    }

    /// Commits a written segment of new data and records it as sent.
    fn commit_new(&mut self, now: Instant, len: usize, head: WrittenHeader, tx: &mut impl TxBatch) {
        if self.ecn.sends_ect() && !self.send.window.is_closed() {
            tx.set_ecn_capable(); // RFC 3168 §6.1.5, §6.1.6: only new data, not window probes
        }
        tx.commit_with_sum(self.header_len() + len, head.sum);
        self.stats.segments_out += 1;
        self.record_new_sent(now, len, head.fin, tx);
    }

    fn send_fin<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let window = self.recv.advertise(up.room());
        let seg = self.empty_segment(now, self.send.nxt, Flags::FIN, window);
        if !self.emit_segment(&seg, tx) {
            return SendOutcome::BatchFull;
        }
        self.record_new_sent(now, 0, true, tx);
        SendOutcome::Sent
    }

    /// Records new data as sent. The caller sets the retransmission timer, once per burst.
    fn record_new_sent(&mut self, now: Instant, len: usize, fin: bool, tx: &impl TxBatch) {
        if self.send.outstanding.board.is_empty() {
            self.send.progress_at = now;
        }
        self.send.outstanding.board.push(self.send.nxt, len as u16, fin, now);
        let bytes = len as u64 + u64::from(fin);
        self.send.nxt = self.send.nxt.plus(bytes);
        self.send.probe_due = false;
        self.send.on_sent(now, bytes, tx.is_shared(), &self.config);
        self.send.recovery.on_new_sent();
        self.on_ack_sent(false);
        if fin {
            self.send.fin_sent = true;
            let from = self.state;
            self.transition(Transition::FinSent);
            let seq = self.send.nxt.minus(bytes).wire();
            let (ack, window) = (self.recv.nxt.wire(), self.offered_window());
            let flags = Flags::FIN.with(Flags::ACK);
            self.note_fin(now, Kind::FinSent, &Header { seq, ack, flags, window, len });
            self.note_state(now, from);
        }
    }

    /// Retransmits a segment: the same bytes at the same boundaries. The segment is cut only if the effective MSS or
    /// the peer's window has shrunk below its length.
    fn resend<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        resend: Resend,
        probe: bool,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let in_window = self.send.right_edge().since(resend.start).max(1);
        let most = self.send.emss().min(usize::try_from(in_window).unwrap_or(usize::MAX));
        self.write_retransmission(now, resend, most, probe, up, tx)
    }

    /// Writes the retransmission of a segment, with at most `most` bytes of payload. `probe`: the retransmission is a
    /// window probe or a tail loss probe.
    fn write_retransmission<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        mut resend: Resend,
        most: usize,
        probe: bool,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> SendOutcome {
        let header_len = self.header_len();
        let Some(out) = tx.reserve_segment(header_len + resend.len.min(most)) else {
            return SendOutcome::BatchFull;
        };
        if resend.len > most {
            let at = up.cut_len(self.send.offset(resend.start), most).clamp(1, most);
            resend = self.send.outstanding.board.cut(resend, at);
        }
        if resend.len > 0 {
            let payload = &mut out[header_len..header_len + resend.len];
            up.refill(self.send.offset(resend.start), payload);
        }
        let mut flags = if resend.len > 0 { Flags::PSH } else { Flags::default() };
        if resend.fin {
            flags = flags.with(Flags::FIN);
        }
        let window = self.recv.advertise(up.room());
        let header = self.data_header(now, flags, window);
        let _fields = header.write(resend.start.wire(), false, out);
        tx.commit(header_len + resend.len);
        let kind = match probe {
            _ if self.send.window.is_closed() => Kind::WindowProbe,
            true => Kind::TailProbe,
            false => Kind::Resent,
        };
        let (seq, ack) = (resend.start.wire(), self.recv.nxt.wire());
        let flags = flags.with(Flags::ACK);
        self.note_header(now, kind, &Header { seq, ack, flags, window, len: resend.len });
        self.send.outstanding.board.record_resent(resend, now, probe);
        self.send.outstanding.state.on_resend();
        let bytes = resend.len as u64 + u64::from(resend.fin);
        self.send.on_sent(now, bytes, tx.is_shared(), &self.config);
        if !self.send.recovery.is_settled()
            && let Some((range, sends)) = self.send.outstanding.board.transmissions_at(resend.index)
        {
            self.send.recovery.on_resent(now, range, sends);
        }
        self.stats.segments_out += 1;
        self.stats.cold_stats().loss.segments_retransmitted += 1;
        self.stats.cold_stats().loss.bytes_retransmitted += resend.len as u64;
        self.on_ack_sent(false);
        if resend.start == self.send.una {
            // RFC 6675 §6 allows each retransmission of a recovery to restart the time-out. Here only the
            // retransmission of the oldest segment does.
            self.restart_rto(now);
        }
        SendOutcome::Sent
    }

    /// Sends a tail loss probe (RFC 8985 §7.3, TLP_send_probe): new data that fits the peer's window, else the last
    /// segment that is not SACKed. The congestion window does not apply.
    fn send_tail_probe<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) {
        if self.send.outstanding.board.is_empty() || self.send.window.is_closed() {
            self.send.outstanding.state.cancel_probe();
            return;
        }
        let mut sent = SendOutcome::Declined;
        if self.state.may_send() && up.has_data() {
            let (start, fin_sent) = self.probe_baseline();
            sent = self.send_new(now, self.new_data_room(), up, tx);
            if sent == SendOutcome::Sent {
                self.note_new_probe(now, Kind::TailProbe, start, fin_sent);
            }
        }
        let mut resent = None;
        if sent == SendOutcome::Declined
            && let Some(last) = self.send.outstanding.board.last_unsacked()
        {
            sent = self.resend(now, last, true, up, tx);
            // The segment may have been cut, so the range of the retransmission is the segment's current range.
            resent =
                self.send.outstanding.board.transmissions_at(last.index).map(|(range, _)| range);
        }
        match sent {
            SendOutcome::Sent => {
                self.send.last_sent = now;
                self.send.outstanding.state.on_probe_sent(self.send.nxt, resent);
                self.stats.cold_stats().loss.tail_loss_probes += 1;
            }
            SendOutcome::BatchFull => return,
            _ => self.send.outstanding.state.cancel_probe(),
        }
        self.restart_rto(now);
    }

    /// Probes a closed window with the oldest unacknowledged segment or, with nothing in flight, one byte of new data
    /// (RFC 9293 §3.8.6.1 MUST-36).
    fn send_probe<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) {
        let sent = match self.send.outstanding.board.head() {
            Some(head) => self.write_retransmission(now, head, self.send.emss(), true, up, tx),
            None if up.has_data() && self.state.may_send() => {
                let (start, fin_sent) = self.probe_baseline();
                let sent = self.write_new(now, 1, false, up, tx);
                if sent == SendOutcome::Sent {
                    self.loss_timer_after_send(now);
                    self.note_new_probe(now, Kind::WindowProbe, start, fin_sent);
                }
                sent
            }
            None => SendOutcome::Declined,
        };
        if sent == SendOutcome::Sent {
            self.send.probe_due = false;
            self.send.probing = true;
            self.stats.cold_stats().window_probes += 1;
        }
    }

    /// Returns SND.NXT and whether the FIN was sent, for [`note_new_probe`](Self::note_new_probe). Called before a
    /// probe of new data is sent.
    fn probe_baseline(&self) -> (ExtSeq, bool) {
        (self.send.nxt, self.send.fin_sent)
    }

    /// Records a probe of new data, which may include the FIN. `start` and `fin_sent` are the result of
    /// [`probe_baseline`](Self::probe_baseline).
    #[cold]
    fn note_new_probe(&mut self, now: Instant, kind: Kind, start: ExtSeq, fin_sent: bool) {
        let fin = self.send.fin_sent && !fin_sent;
        let len = self.send.nxt.since(start) as usize - usize::from(fin);
        let (seq, ack) = (start.wire(), self.recv.nxt.wire());
        let fin = if fin { Flags::FIN } else { Flags::default() };
        let (flags, window) = (Flags::PSH.with(Flags::ACK).with(fin), self.offered_window());
        self.note_header(now, kind, &Header { seq, ack, flags, window, len });
    }

    fn arm_send_timers(&mut self, now: Instant, has_data: bool) {
        if !self.send.outstanding.board.is_empty() {
            self.timers.stop(Timer::Persist);
            if !self.timers.is_set(Timer::Retransmit) {
                self.restart_rto(now); // RFC 6298 §5.1
            }
        } else if !has_data {
            // With `get_mut`, a stream that only receives allocates no flight state.
            if let Some(out) = self.send.outstanding.get_mut() {
                out.state.on_pause();
            }
        } else if self.state.may_send() && !self.timers.is_set(Timer::Persist) {
            // Nothing is in flight, and data is unsent because the window is closed or too small.
            let wait = match self.send.usable_window() {
                0 => self.send.recovery.rtt().rto(&self.config),
                _ => SWS_OVERRIDE_TIMEOUT,
            };
            self.timers.set(Timer::Persist, now + wait);
        }
    }

    // --- acknowledgements ---------------------------------------------------------------------------

    /// Sends a keepalive probe if due. The probe has sequence number SND.NXT - 1, which the peer has already received,
    /// and no data. The peer therefore answers (RFC 9293 §3.8.4 SHLD-12).
    fn send_keepalive(&mut self, now: Instant, room: u64, tx: &mut impl TxBatch) {
        if !self.keepalive.due {
            return;
        }
        let window = self.recv.advertise(room);
        let seg = self.empty_segment(now, self.send.nxt.minus(1), Flags::default(), window);
        if self.emit_segment(&seg, tx) {
            self.keepalive.due = false;
            self.stats.cold_stats().keepalive_probes += 1;
        }
    }

    /// Sends the pending acknowledgements of segments before a change of the CE mark (RFC 8257 §3.2).
    fn send_earlier_acks(&mut self, now: Instant, tx: &mut impl TxBatch) {
        while let Some(earlier) = self.recv.earlier_ack() {
            let flags = Flags::default();
            let mut seg = self.empty_segment(now, self.send.control_seq(), flags, earlier.window);
            seg.ack = earlier.ack.wire();
            seg.flags = Flags::ACK.with(if earlier.echo { Flags::ECE } else { flags });
            if !self.emit_segment(&seg, tx) {
                return;
            }
            self.recv.on_earlier_ack_sent(earlier);
            self.stats.acks_out += 1;
        }
    }

    fn send_acks(&mut self, now: Instant, room: u64, tx: &mut impl TxBatch) {
        if self.state.may_receive() && !self.recv.ack_now && self.recv.is_window_update_due(room) {
            self.recv.ack_now = true;
        }
        // RFC 5681 §4.2: a peer without SACK receives one duplicate acknowledgement per segment that arrived beyond a
        // gap.
        let mut owed = if self.send.sack { 1 } else { self.recv.owed_dup_acks.max(1) };
        self.recv.owed_dup_acks = 0;
        while self.recv.ack_now && owed > 0 {
            let window = self.recv.advertise(room);
            let mut seg =
                self.empty_segment(now, self.send.control_seq(), Flags::default(), window);
            let d_sack = self.recv.has_d_sack();
            if self.send.sack {
                seg.options.sack = self.recv.sack_blocks(); // RFC 2018 §4
            }
            if !self.emit_segment(&seg, tx) {
                self.recv.owed_dup_acks = owed;
                return;
            }
            self.stats.acks_out += 1;
            self.stats.add(d_sack.into(), |s| &mut s.recv.d_sacks);
            owed -= 1;
            if owed == 0 {
                self.on_ack_sent(true);
            }
        }
    }

    fn on_ack_sent(&mut self, pure: bool) {
        self.recv.on_ack_sent(pure);
        if !self.recv.ack_now {
            self.timers.stop(Timer::DelayedAck);
        }
    }

    // --- writing ------------------------------------------------------------------------------------

    fn header_len(&self) -> usize {
        HEADER_LEN + if self.timestamps { TIMESTAMPS_LEN } else { 0 }
    }

    /// Writes a segment without payload. Returns false if the batch is full.
    fn emit_segment(&mut self, seg: &Segment<'_>, tx: &mut impl TxBatch) -> bool {
        self.emit_segment_ecn(seg, false, tx)
    }

    /// Writes a segment without payload, as ECN-capable if `capable`. Returns false if the batch is full.
    fn emit_segment_ecn(
        &mut self,
        seg: &Segment<'_>,
        capable: bool,
        tx: &mut impl TxBatch,
    ) -> bool {
        let Some(out) = tx.reserve_segment(seg.wire_len()) else { return false };
        let len = seg.emit(out);
        if capable {
            tx.set_ecn_capable();
        }
        tx.commit(len);
        self.stats.segments_out += 1;
        true
    }
}
