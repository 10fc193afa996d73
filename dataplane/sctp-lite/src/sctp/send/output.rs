//! Selection of the DATA chunks for the next packet (RFC 9260 §6.1, §6.10): lost chunks first, then new chunks. Each
//! packet is planned and then written. Except for probes, new chunks are limited by the congestion window, the peer's
//! window, the send window and pacing. The end of a round sets the timers.

use core::cell::OnceCell;

use base::Instant;
use transport::congestion::Run;
use transport::limits::Limit;
use transport::recorder::Kind;
use transport::recovery::{NextSeg, NextSegInputs, Phase};
use wire::sctp::{DATA_HEADER_LEN, DataHeader, PacketBuilder, Tsn, chunk_type};

use super::record::{FIRST_IN_PACKET, IMMEDIATE, Record};
use super::scoreboard::Retransmission;
use super::{Round, Sender, single_tsn};
use crate::seam::MessageSource;

/// State at the end of a round. A round is the packets written between `begin_round` and `end_round`.
#[derive(Clone, Copy)]
struct RoundEnd {
    /// True if the congestion window ended the round.
    cwnd_limited: bool,
    /// True if the source has more data.
    has_data: bool,
}

/// Congestion window, in packets, below which each packet requests an immediate SACK.
const FEW_PACKETS: u64 = 2;

/// Content of the next packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Lost chunks. Outside of loss recovery and F-RTO, new messages follow in the same packet.
    Lost,
    /// New messages.
    New,
    /// A tail loss probe (RFC 8985 §7).
    TailProbe,
    /// A window probe (RFC 9260 §6.1 A).
    WindowProbe,
}

/// A new chunk that was written.
#[derive(Clone, Copy)]
struct NewChunk {
    /// Bytes of user data.
    len: u16,
    /// Bytes of user data in the following message of the source; 1 if unknown.
    next_len: u16,
}

impl Sender {
    /// Returns the planned content of the next packet; `None` if no packet may be sent now. If pacing delays the
    /// packet, also sets the pacing timer. [`write`](Self::write) may still find no chunk to write.
    pub fn plan_packet(&mut self, now: Instant, source: &mut impl MessageSource) -> Option<Plan> {
        self.notify_source(source);
        self.next_plan(now, source)
    }

    /// Adds the DATA chunks planned by [`plan_packet`](Self::plan_packet) to a packet. Returns the number of chunks
    /// added; zero if none is available or fits.
    pub fn write(
        &mut self,
        now: Instant,
        plan: Plan,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> usize {
        // A smaller congestion window after idle time may change the plan.
        let plan = match self.restart_after_idle(now, source) {
            true => self.next_plan(now, source),
            false => Some(plan),
        };
        let before = self.board.pipe();
        let chunks = match plan {
            None => 0,
            Some(Plan::Lost) => self.write_lost(now, packet, source),
            Some(Plan::New) => self.write_new(now, packet, source),
            Some(Plan::TailProbe) => self.write_tail_probe(now, packet, source),
            Some(Plan::WindowProbe) => self.write_window_probe(now, packet, source),
        };
        if chunks > 0 {
            self.last_sent = now;
            self.burst = self.burst.saturating_sub(1);
            let bytes = self.board.pipe() - before;
            if self.recovery.cc().needs_samples() {
                let app_limited = !source.has_data() && !self.board.awaits_retransmission();
                let run = Run { sent_at: now, bytes, in_flight: before, app_limited };
                self.recovery.cc_mut().on_sent(&run);
            }
            if let Some(pace) = self.round_pace() {
                self.state.on_paced_sent(now, bytes, pace);
            }
            self.recovery.on_sent(bytes);
            self.round.sent = true;
        } else if plan == Some(Plan::New) {
            self.recovery.cancel_frto();
            self.round.pace = OnceCell::new();
        }
        chunks
    }

    /// Ends a round of packets: sets timers, and records the limit that ended the round.
    pub fn end_round(&mut self, now: Instant, source: &mut impl MessageSource) {
        let Round { cwnd_limited: limited, sent, needs_timer, .. } =
            core::mem::take(&mut self.round);
        if needs_timer {
            self.set_timer_after_send(now);
        }
        if sent || limited {
            self.note_usage(now, limited);
        }
        let has_data = source.has_data();
        self.note_limit(now, RoundEnd { cwnd_limited: limited, has_data });
        if self.board.is_empty() {
            if has_data {
                self.arm_window_probe(now);
            } else {
                self.state.on_pause();
            }
        } else if self.are_timers_stopped() {
            self.restart_rto(now); // RFC 9260 §6.3.2 R1
        }
    }

    /// Records the limit that ended the round. Does nothing if this and the previous round ended for lack of data.
    #[inline]
    fn note_limit(&mut self, now: Instant, end: RoundEnd) {
        let lost = self.board.awaits_retransmission();
        if end.has_data || lost || self.unanswered() > 0 || self.history.limits.is_limited() {
            let limit = self.current_limit(now, end, lost);
            self.history.limits.note(now, limit, self.stats.bytes_acknowledged);
        }
    }

    /// Returns the limit that ended the round. `lost`: true if a chunk awaits its retransmission.
    fn current_limit(&self, now: Instant, end: RoundEnd, lost: bool) -> Limit {
        match () {
            () if self.unanswered() > 0 => Limit::Path,
            () if !end.has_data && !lost => Limit::Application,
            () if end.cwnd_limited => Limit::CongestionWindow,
            () if self.timers.pace.is_some_and(|at| at > now) => Limit::Pacing,
            // A message of `max_message` bytes exceeds the peer's window or the send window. A full record list is
            // reported as the send window.
            () if !lost && self.sendable_bytes() < self.max_message => {
                let peer =
                    self.board.len() < self.max_records() && self.rwnd() <= self.send_window_left();
                if peer { Limit::PeerWindow } else { Limit::SendWindow }
            }
            // Max.Burst packets (RFC 9260 §6.1 D) were sent in one burst; pacing is off.
            () if self.burst == 0 && self.board.pipe() > 0 && self.pace().is_none() => {
                Limit::Pacing
            }
            () => Limit::Port,
        }
    }

    fn next_plan(&mut self, now: Instant, source: &mut impl MessageSource) -> Option<Plan> {
        if self.probe_due {
            return Some(Plan::WindowProbe);
        }
        if self.state.is_probe_due() {
            return Some(Plan::TailProbe);
        }
        let has_data = source.has_data();
        let choice = NextSegInputs {
            cwnd_open: self.cwnd_open(),
            resend_ignores_cwnd: self.state.resend_ignores_cwnd(),
            lost: self.board.awaits_retransmission(),
            new: has_data && self.sendable_bytes() > 0,
            frto_new_left: self.recovery.frto_new_left(),
        };
        let plan = match choice.next_seg() {
            NextSeg::Lost => Some(Plan::Lost),
            NextSeg::New => Some(Plan::New),
            NextSeg::CwndFull => {
                self.round.cwnd_limited = true;
                self.state.on_pause();
                None
            }
            NextSeg::None => None,
        };
        if plan.is_none() {
            // Unused burst allowance is limited to Max.Burst.
            self.burst = self.burst.min(u64::from(self.config.max_burst));
            return plan;
        }
        if self.state.resend_ignores_cwnd() {
            return plan;
        }
        match self.round_pace() {
            Some(_) => {
                if let Some(at) = self.state.paced_until(now) {
                    self.stats.paced_waits += 1;
                    self.timers.pace = Some(at);
                    self.state.on_paced_wait();
                    return None;
                }
            }
            // RFC 9260 §6.1 D: with no packet in the network, Max.Burst packets may be sent.
            None if self.board.pipe() == 0 => {
                self.burst = self.burst.max(u64::from(self.config.max_burst));
            }
            None if self.burst == 0 => return None,
            None => {}
        }
        plan
    }

    /// Returns true if the congestion window permits another packet. RFC 9260 §6.1 B: one packet may exceed the window.
    /// In recovery (RFC 6937) and after a time-out (RFC 9260 §7.2.3) the window is rounded to the nearest number of
    /// packets.
    fn cwnd_open(&self) -> bool {
        let pipe = self.board.pipe();
        let slack = if self.state.phase() == Phase::Open { 0 } else { self.smss() as u64 / 2 };
        pipe == 0 || pipe + slack < self.recovery.cc().cwnd()
    }

    fn max_records(&self) -> usize {
        self.config.max_records.min(usize::from(u16::MAX))
    }

    /// Returns the bytes of new user data that the peer's window (RFC 9260 §6.1 A) and the send window permit now. Zero
    /// if the record list is full. The congestion window is not considered. Without the send window, a peer that SACKs
    /// all chunks but the first could keep the other two windows open, and unacknowledged data would be unlimited.
    pub(super) fn sendable_bytes(&self) -> usize {
        if self.board.len() >= self.max_records() {
            return 0;
        }
        usize::try_from(self.rwnd().min(self.send_window_left())).unwrap_or(usize::MAX)
    }

    /// Returns the bytes of user data for which the send window has room, after the chunks in flight with their headers
    /// and the header of the next chunk.
    fn send_window_left(&self) -> u64 {
        let used = self.board.flight() + DATA_HEADER_LEN as u64;
        self.recovery.cc().send_window().saturating_sub(used)
    }

    /// Returns the index of the chunk that the next packet retransmits; `None` if there is none. A tail loss probe
    /// sends new data instead, if available.
    pub(super) fn next_retransmission(&self) -> Option<usize> {
        match () {
            () if self.probe_due => (!self.board.is_empty()).then_some(0),
            () if self.state.is_probe_due() => self.board.last_unsacked(),
            () => self.board.next_lost(),
        }
    }

    // --- retransmissions ----------------------------------------------------------------------------

    /// Writes as many lost chunks as fit, in TSN order (RFC 9260 §6.1 C, §6.3.3 E3, §6.10). Outside of loss recovery
    /// and F-RTO, new messages follow in the same packet.
    fn write_lost(
        &mut self,
        now: Instant,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> usize {
        let mut chunks = 0;
        let mut last = None;
        while let Some(index) = self.board.next_lost() {
            let kind = if chunks == 0 { Retransmission::First } else { Retransmission::Bundled };
            if last.is_some_and(|last| index <= last)
                || !self.write_retransmission(now, index, kind, packet, source)
            {
                return chunks;
            }
            chunks += 1;
            last = Some(index);
        }
        if self.state.phase() == Phase::Open && self.recovery.frto_new_left().is_none() {
            chunks += self.fill_with_new(now, chunks, packet, source);
        }
        chunks
    }

    fn write_retransmission(
        &mut self,
        now: Instant,
        index: usize,
        kind: Retransmission,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> bool {
        let record = self.board.records[index];
        let len = usize::from(record.len);
        if packet.max_data_len() < len {
            return false;
        }
        source.rewrite(record.message(), &mut packet.data_buffer()[..len]);
        let mut header = self.header(self.board.tsn(index).wire().0, &record);
        // RFC 9260 §6.1: the I bit requests an immediate SACK, because possibly no later packet elicits one.
        header.immediate |= self.config.immediate_sack_at_end;
        if packet.push_data(&header, len).is_err() {
            return false;
        }
        self.board.on_retransmitted(index, now, kind);
        self.state.on_resend();
        self.stats.retransmitted += 1;
        self.stats.bytes_retransmitted += len as u64;
        let event = match kind {
            _ if self.a_rwnd == 0 => Kind::WindowProbe,
            Retransmission::Probe => Kind::TailProbe,
            Retransmission::First | Retransmission::Bundled => Kind::Resent,
        };
        self.note_chunk(now, event, chunk_type::DATA, header.tsn.0, len);
        if !self.recovery.is_settled() {
            let sends = self.board.records[index].sends;
            self.recovery.on_resent(now, single_tsn(self.board.tsn(index)), sends);
        }
        if index == 0 {
            self.restart_rto(now); // RFC 9260 §6.1, §7.2.4 (4): the oldest chunk was resent
        }
        true
    }

    // --- new data -----------------------------------------------------------------------------------

    fn write_new(
        &mut self,
        now: Instant,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> usize {
        let chunks = self.fill_with_new(now, 0, packet, source);
        if chunks > 0 {
            self.recovery.on_new_sent();
        }
        chunks
    }

    /// Adds new messages until the packet, a window or the record limit is full, or the source has none. The packet
    /// already contains `chunks_before` DATA chunks. Returns the number added.
    fn fill_with_new(
        &mut self,
        now: Instant,
        chunks_before: usize,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> usize {
        let (mut chunks, mut min_len) = (0, 1);
        let mut window = self.sendable_bytes();
        while self.board.len() < self.max_records() {
            let room = self.packet_space(packet).min(window);
            if room < min_len {
                break;
            }
            let opens = chunks_before + chunks == 0;
            let Some(written) = self.write_message(now, room, opens, packet, source) else { break };
            window -= usize::from(written.len);
            min_len = usize::from(written.next_len);
            chunks += 1;
        }
        self.round.needs_timer |= chunks > 0;
        chunks
    }

    /// Returns the bytes of user data that a new chunk in a packet can carry.
    fn packet_space(&self, packet: &PacketBuilder<'_>) -> usize {
        // A packet may exceed the path's limit for a retransmission; new chunks must not use the excess.
        let path = self.packet_len.saturating_sub(packet.len() + DATA_HEADER_LEN) & !3;
        packet.max_data_len().min(path).min(self.max_message)
    }

    /// Writes one new message of at most `room` bytes; `room` is at least 1. `opens`: the chunk is the first of its
    /// packet. Returns `None` if the source has no message that fits. The caller sets `round.needs_timer`, so that
    /// [`set_timer_after_send`](Self::set_timer_after_send) is called once per round.
    fn write_message(
        &mut self,
        now: Instant,
        room: usize,
        opens: bool,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> Option<NewChunk> {
        let written = source.next(self.max_message, &mut packet.data_buffer()[..room])?;
        let len = usize::from(written.message.len);
        let mut marks = if opens { FIRST_IN_PACKET } else { 0 };
        if written.immediate || self.requests_sack(source) {
            marks |= IMMEDIATE;
        }
        let record = Record {
            sent_at: now,
            tag: written.message.tag,
            ppid: written.ppid,
            stream: written.message.stream,
            len: written.message.len,
            marks,
            sends: 1,
        };
        let header = self.header(self.board.nxt().wire().0, &record);
        // Fails if the source returns a length of zero or more than the room.
        let pushed = match written.crc {
            Some(crc) => packet.push_digested(&header, len, crc),
            None => packet.push_data(&header, len),
        };
        pushed.ok()?;
        self.board.push(record);
        self.stats.chunks += 1;
        self.stats.bytes += len as u64;
        Some(NewChunk { len: written.message.len, next_len: written.next_len.unwrap_or(1) })
    }

    /// Returns true if the chunk requests an immediate SACK (RFC 9260 §6.1): no data follows, or the congestion window
    /// is below [`FEW_PACKETS`].
    fn requests_sack(&self, source: &impl MessageSource) -> bool {
        let few = self.recovery.cc().cwnd() < FEW_PACKETS * self.smss() as u64;
        self.config.immediate_sack_at_end && (few || !source.has_data())
    }

    fn header(&self, tsn: u32, record: &Record) -> DataHeader {
        DataHeader {
            tsn: Tsn(tsn),
            stream: record.stream,
            ssn: 0,
            ppid: record.ppid,
            immediate: record.has_mark(IMMEDIATE),
            // RFC 5043: all messages are unordered and unfragmented.
            unordered: true,
            begin: true,
            end: true,
        }
    }

    // --- probes -------------------------------------------------------------------------------------

    /// Writes a tail loss probe (TLP_send_probe, RFC 8985 §7.3), regardless of the congestion window. Sends new data if
    /// available and within the peer's window, otherwise the last chunk that is not SACKed. Sends nothing while the
    /// peer's window is closed.
    fn write_tail_probe(
        &mut self,
        now: Instant,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> usize {
        if self.board.is_empty() || self.a_rwnd == 0 {
            self.state.cancel_probe();
            return 0;
        }
        let tsn = self.next_tsn().0;
        let mut chunks = self.fill_with_new(now, 0, packet, source);
        if chunks > 0 {
            let len = self.board.records[self.board.len() - chunks].len;
            self.note_chunk(now, Kind::TailProbe, chunk_type::DATA, tsn, len.into());
        }
        let mut resent_range = None;
        if chunks == 0
            && let Some(last) = self.board.last_unsacked()
            && self.write_retransmission(now, last, Retransmission::Probe, packet, source)
        {
            chunks = 1;
            resent_range = Some(single_tsn(self.board.tsn(last)));
        }
        if chunks > 0 {
            self.state.on_probe_sent(self.board.nxt(), resent_range);
            self.stats.tail_loss_probes += 1;
            self.restart_rto(now);
        } else if packet.is_empty() {
            self.state.cancel_probe();
        }
        chunks
    }

    /// Writes a window probe (RFC 9260 §6.1 A): retransmits the oldest chunk in flight, or sends one new message if
    /// there is none.
    fn write_window_probe(
        &mut self,
        now: Instant,
        packet: &mut PacketBuilder<'_>,
        source: &mut impl MessageSource,
    ) -> usize {
        let sent = if self.board.is_empty() {
            let tsn = self.next_tsn().0;
            let room = self.packet_space(packet);
            let written = match room {
                0 => None,
                _ => self.write_message(now, room, true, packet, source),
            };
            self.round.needs_timer |= written.is_some();
            if let Some(NewChunk { len, .. }) = written {
                let len = len.into();
                self.note_chunk(now, Kind::WindowProbe, chunk_type::DATA, tsn, len);
            }
            written.is_some()
        } else {
            self.write_retransmission(now, 0, Retransmission::Probe, packet, source)
        };
        if sent {
            self.probe_due = false;
            self.probing = true;
            self.stats.window_probes += 1;
        } else if packet.is_empty() {
            self.probe_due = false;
        }
        usize::from(sent)
    }

    // --- window usage ------------------------------------------------------------------------------

    /// If the sender was idle, reduces the congestion window once for each RTO since the last transmission of data (RFC
    /// 9260 §7.2.1: by half). Returns true if an RTO has passed.
    fn restart_after_idle(&mut self, now: Instant, source: &mut impl MessageSource) -> bool {
        if !self.board.is_empty() || !source.has_data() {
            return false;
        }
        let rto = self.recovery.rtt().rto(&self.config).get().max(1);
        let idle = now.nanos_since(self.last_sent).get() / rto;
        if idle > 0 {
            self.last_sent = now;
            self.recovery.cc_mut().decay(u32::try_from(idle).unwrap_or(u32::MAX), 4);
            self.round.pace = OnceCell::new();
        }
        idle > 0
    }

    /// Reports to loss recovery whether the congestion window was fully used; loss recovery reduces an unused window
    /// (RFC 2861 §3.2, RFC 7661 §4.3).
    fn note_usage(&mut self, now: Instant, limited: bool) {
        let smss = self.smss();
        let Sender { recovery, state, board, config, .. } = self;
        let config = &*config;
        let min_window = || config.initial_packets(smss);
        recovery.note_usage(state, board, now, limited, min_window, config);
    }
}
