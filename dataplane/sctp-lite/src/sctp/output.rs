//! Transmission of an association's packets (RFC 9260 §6.1, §6.10). In each packet, DATA follows the control chunks
//! that are due. Chunks without room stay due for the next packet. [`super::send`] selects the DATA chunks.

use core::time::Duration;

use base::Instant;
use wire::sctp::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, CommonHeader, PacketBuilder, Parameter, Tag, chunk_type,
    padded, parameter_type,
};

use super::association::Association;
use super::pending::DueChunks;
use super::single_chunk::{SendOutcome, send_packet};
use super::state::{State, Transition};
use super::timers::Timer;
use crate::seam::{MessageSink, MessageSource, TxBatch};

impl Association {
    /// Writes the packets that are due. Called after a burst of [`input`](Self::input) and
    /// [`handle_timeout`](Self::handle_timeout), and when the upper layer has new data or room.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        upper: &mut (impl MessageSource + MessageSink),
        tx: &mut impl TxBatch,
    ) {
        if !self.send_single_chunk_packets(now, tx) {
            return;
        }
        match self.state {
            State::Closed => {}
            State::CookieWait => self.send_init(now, tx),
            State::CookieEchoed => self.send_cookie(now, tx),
            _ => {
                let head = CommonHeader::new(self.identity.ends.ports(), self.identity.peer_tag);
                self.sender.begin_round(tx.is_shared());
                while self.send_packet(now, &head, upper, tx) {}
                if self.path.is_reduced() && !self.sender.is_idle() {
                    self.send_probe(now, tx);
                }
                if self.state.sends_data() {
                    self.sender.end_round(now, upper);
                }
            }
        }
    }

    /// Sends the pending reply, and the last packet of a closed association (an ABORT or SHUTDOWN COMPLETE), each in a
    /// separate packet. Returns false if `tx` has no room. A packet above the maximum reply length is dropped, so that
    /// it does not block other packets.
    fn send_single_chunk_packets(&mut self, now: Instant, tx: &mut impl TxBatch) -> bool {
        if self.send_reply(now, tx) == SendOutcome::NoRoom {
            return false;
        }
        let Some(last_packet) = &self.pending_replies.last_packet else { return true };
        match last_packet.send(&self.identity.ends, tx) {
            SendOutcome::Sent => self.stats.packets_out += 1,
            SendOutcome::TooLong => self.stats.unsent += 1,
            SendOutcome::NoRoom => return false,
        }
        self.pending_replies.last_packet = None;
        self.timers.stop(Timer::LastPacket);
        true
    }

    /// Sends the pending reply. Returns [`SendOutcome::Sent`] if there is none.
    fn send_reply(&mut self, now: Instant, tx: &mut impl TxBatch) -> SendOutcome {
        let Some(reply) = &self.pending_replies.reply else { return SendOutcome::Sent };
        let outcome = reply.send(&self.secrets, &self.config, &self.identity.ends, now, tx);
        match outcome {
            SendOutcome::Sent => self.stats.packets_out += 1,
            SendOutcome::TooLong => self.stats.unsent += 1,
            SendOutcome::NoRoom => return outcome,
        }
        self.pending_replies.reply = None;
        outcome
    }

    /// Sends only the reply to a packet that is not [`verified`](super::InputResult::verified). The owner sends the
    /// reply to the source of that packet, which may differ from the association's peer address (RFC 9260 §5.1 B, RFC
    /// 6951 §5.4). If `tx` has no room, the reply is dropped.
    pub fn poll_reply(&mut self, now: Instant, tx: &mut impl TxBatch) {
        if self.send_reply(now, tx) == SendOutcome::NoRoom {
            self.pending_replies.reply = None;
            self.stats.unsent += 1;
        }
    }

    /// Drops the reply to a packet that is not [`verified`](super::InputResult::verified), because the owner has
    /// reached its limit of replies.
    pub fn drop_reply(&mut self) {
        self.stats.unsent += u64::from(self.pending_replies.reply.take().is_some());
    }

    /// Sends an INIT (RFC 9260 §5.1 A).
    fn send_init(&mut self, now: Instant, tx: &mut impl TxBatch) {
        if !self.due_chunks.setup {
            return;
        }
        let kind = match self.identity.ends.remote.is_ipv4() {
            true => parameter_type::IPV4,
            false => parameter_type::IPV6,
        };
        let kind = kind.to_be_bytes();
        let millis = |longer: Duration| longer.as_millis().min(u128::from(u32::MAX)) as u32;
        // RFC 5043 §11.1; RFC 9260 §3.3.2.1.5: one address family is supported.
        let parameters = [
            Parameter::SupportedAddressTypes(&kind),
            Parameter::Adaptation(self.config.adaptation),
            Parameter::CookiePreservative(self.handshake.preservative.map_or(0, millis)),
        ];
        let parameters = &parameters[..if self.handshake.preservative.is_some() { 3 } else { 2 }];
        let header = self.init_header();
        // RFC 9260 §8.5.1 A: an INIT has a tag of zero.
        match send_packet(&self.identity.ends, Tag::NONE, tx, |packet| {
            packet.init(&header, parameters)
        }) {
            SendOutcome::Sent => {
                self.stats.packets_out += 1;
                self.on_setup_sent(now);
            }
            // The INIT stays due. `queue_setup` started the timer when the INIT became due.
            SendOutcome::NoRoom => {}
            SendOutcome::TooLong => self.stats.unsent += 1,
        }
    }

    /// Sends a COOKIE ECHO (RFC 9260 §5.1 C). It is the first chunk of each packet until the COOKIE ACK arrives.
    fn send_cookie(&mut self, now: Instant, tx: &mut impl TxBatch) {
        if !self.due_chunks.setup && self.pending_replies.heartbeats.is_empty() {
            return;
        }
        // RFC 9260 §6.9: a cookie cannot be split, so the packet may be longer than the path carries.
        let checksum = tx.needs_checksum();
        let min_len = COMMON_HEADER_LEN + CHUNK_HEADER_LEN + padded(self.handshake.cookie.len());
        let Some(out) = tx.reserve_packet(self.sender.packet_len().max(min_len)) else { return };
        let mut packet =
            PacketBuilder::new(out, self.identity.ends.ports(), self.identity.peer_tag);
        // The chunk fits: its length was checked when the cookie arrived.
        if packet.cookie_echo(&self.handshake.cookie).is_err() {
            return;
        }
        self.write_error_and_heartbeat_ack(&mut packet);
        self.stats.unsent += self.pending_replies.heartbeats.len() as u64;
        self.pending_replies.heartbeats.clear();
        let len = packet.finish_with(checksum);
        tx.commit(len);
        self.stats.packets_out += 1;
        if self.due_chunks.setup {
            self.on_setup_sent(now);
        }
    }

    /// Processes the transmission of INIT or COOKIE ECHO: starts the timer for the reply.
    fn on_setup_sent(&mut self, now: Instant) {
        self.due_chunks.setup = false;
        self.handshake.sent = (self.handshake.attempts == 0).then_some(now);
        self.timers.set(Timer::Setup, now + self.backed_off_rto());
    }

    /// Returns the RTO, doubled for each retransmission of the INIT, COOKIE ECHO, SHUTDOWN or SHUTDOWN ACK, but at most
    /// `max_rto` (RFC 9260 §6.3.3; §5.1.6, §9.2).
    pub(super) fn backed_off_rto(&self) -> Duration {
        (self.sender.rto() * (1 << self.handshake.attempts.min(16))).min(self.config.send.max_rto)
    }

    /// Continues a shutdown once all data is sent and acknowledged (RFC 9260 §9.2).
    fn advance_shutdown(&mut self, source: &impl MessageSource) {
        let transition = match self.state {
            State::ShutdownPending => Transition::ShutdownSent,
            State::ShutdownReceived => Transition::ShutdownAckSent,
            _ => return,
        };
        if self.sender.is_idle() && !source.has_data() {
            self.continue_shutdown(transition);
        }
    }

    /// Enters the next state of the shutdown, and makes its SHUTDOWN or SHUTDOWN ACK due.
    pub(super) fn continue_shutdown(&mut self, transition: Transition) {
        if self.transition_to(transition) {
            self.due_chunks.shutdown = true;
            self.handshake.attempts = 0;
            // RFC 9260 §8.3: no HEARTBEAT is sent after SHUTDOWN or SHUTDOWN ACK.
            self.timers.stop(Timer::Heartbeat);
            self.due_chunks.heartbeat = false;
        }
    }

    /// Sends one packet. Returns false if no chunk is due, none can be written, or the batch has no room.
    fn send_packet(
        &mut self,
        now: Instant,
        head: &CommonHeader,
        upper: &mut (impl MessageSource + MessageSink),
        tx: &mut impl TxBatch,
    ) -> bool {
        self.advance_shutdown(upper);
        let room = upper.free_space();
        let sends_data = self.state.sends_data();
        let plan = if sends_data { self.sender.plan_packet(now, upper) } else { None };
        let data = plan.is_some();
        let acknowledges = self.state.receives_data();
        let sack_due = acknowledges && self.receiver.sack_due(room);
        let control = self.due_chunks != DueChunks::NONE
            || !self.pending_replies.causes.is_empty()
            || !self.pending_replies.heartbeats.is_empty();
        if !(control || sack_due || data) {
            return false;
        }
        let checksum = tx.needs_checksum();
        let Some(out) = tx.reserve_packet(self.sender.packet_len()) else { return false };
        let mut packet = PacketBuilder::with_header(out, head);
        if control {
            self.write_chunks_before_sack(now, &mut packet);
        }
        // RFC 9260 §6.1, §6.2: a delayed SACK is bundled with DATA. A SACK with gaps is bundled with a SHUTDOWN, which
        // cannot report gaps.
        let bundled = data || (self.due_chunks.shutdown && self.receiver.has_gaps());
        if sack_due || (acknowledges && bundled && self.receiver.is_unacknowledged()) {
            // If the SACK does not fit after the preceding chunks, it stays due for the next packet.
            let _ = self.receiver.write_sack(room, &mut packet);
        }
        if control {
            self.write_shutdown(now, &mut packet);
        }
        let data = plan.is_some_and(|plan| self.sender.write(now, plan, &mut packet, upper) > 0);
        if packet.is_empty() {
            // The pending chunks do not fit into an empty packet, so they can never be sent.
            self.stats.unsent += u64::from(!self.pending_replies.causes.is_empty())
                + self.pending_replies.heartbeats.len() as u64;
            self.pending_replies.causes.clear();
            self.pending_replies.heartbeats.clear();
            return false;
        }
        let len = packet.finish_with(checksum);
        tx.commit(len);
        self.stats.packets_out += 1;
        if data {
            self.liveness.data_sent = now;
            self.path.on_data_sent(len);
        }
        true
    }

    /// Writes the chunks before a SACK. Chunks that do not fit remain due.
    fn write_chunks_before_sack(&mut self, now: Instant, packet: &mut PacketBuilder<'_>) {
        // RFC 9260 §5.1 D: the COOKIE ACK is the first chunk.
        if self.due_chunks.cookie_ack && packet.cookie_ack().is_ok() {
            self.due_chunks.cookie_ack = false;
        }
        self.write_error_and_heartbeat_ack(packet);
        if self.due_chunks.heartbeat {
            let info = self.next_heartbeat(now);
            self.due_chunks.heartbeat = packet.heartbeat(&info).is_err();
        }
    }

    /// Writes ERROR and HEARTBEAT ACK chunks.
    fn write_error_and_heartbeat_ack(&mut self, packet: &mut PacketBuilder<'_>) {
        if !self.pending_replies.causes.is_empty()
            && packet.push_chunk(chunk_type::ERROR, 0, self.pending_replies.causes.bytes()).is_ok()
        {
            self.pending_replies.causes.clear();
            self.stats.errors_out += 1;
        }
        while let Some(value) = self.pending_replies.heartbeats.first() {
            if packet.heartbeat_ack(value).is_err() {
                break;
            }
            self.pending_replies.heartbeats.remove(0);
        }
        if self.pending_replies.heartbeats.is_empty() {
            self.pending_replies.heartbeats = Vec::new();
        }
    }

    /// Writes SHUTDOWN or SHUTDOWN ACK (RFC 9260 §9.2).
    fn write_shutdown(&mut self, now: Instant, packet: &mut PacketBuilder<'_>) {
        if !self.due_chunks.shutdown {
            return;
        }
        let written = match self.state {
            State::ShutdownSent => packet.shutdown(self.receiver.cumulative_tsn()),
            State::ShutdownAckSent => packet.shutdown_ack(),
            _ => Ok(()),
        };
        if written.is_ok() {
            self.receiver.on_shutdown_sent();
            self.due_chunks.shutdown = false;
            self.timers.set(Timer::Shutdown, now + self.backed_off_rto());
        }
    }
}
