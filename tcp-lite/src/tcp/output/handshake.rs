//! Transmission before and after data transfer: SYN, SYN-ACK, acknowledgements in SYN-RECEIVED, resets.

use base::Instant;
use transport::recorder::Kind;
use transport::seq::SeqNumber;

use super::super::connection::Connection;
use super::super::receiver::Receiver;
use super::super::record::Header;
use super::super::segment::{Flags, Options, Timestamps};
use super::super::state::State;
use super::super::timers::Timer;
use crate::seam::TxBatch;

impl Connection {
    #[cold]
    pub(super) fn transmit_handshake(&mut self, now: Instant, room: u64, tx: &mut impl TxBatch) {
        match self.state {
            State::SynSent => self.send_syn(now, room, tx),
            State::SynReceived => {
                self.send_syn(now, room, tx);
                self.send_handshake_ack(now, tx);
            }
            _ => {}
        }
    }

    #[cold]
    pub(super) fn send_reset(&mut self, now: Instant, seq: SeqNumber, tx: &mut impl TxBatch) {
        let mut seg = self.empty_segment(now, self.send.nxt, Flags::RST, 0);
        seg.seq = seq;
        seg.flags = Flags::RST.with(Flags::ACK);
        if !matches!(self.state, State::Closed) || !self.timestamps {
            seg.options = Options::default();
        }
        if self.state != State::Closed {
            // Reset that answers an unacceptable acknowledgement: <SEQ=SEG.ACK><CTL=RST>.
            seg.flags = Flags::RST;
            seg.ack = SeqNumber(0);
        }
        if self.emit_segment_ecn(&seg, self.ecn.is_reset_capable(), tx) {
            self.stats.alloc_cold().reset = None;
            if self.state != State::Closed {
                self.note_header(now, Kind::ResetSent, &Header::from_segment(&seg));
            } // in CLOSED the reset was recorded when it was scheduled
        }
    }

    /// Sends `<SEQ=ISS><CTL=SYN>`, or `<SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>` (RFC 9293 §3.10.1, §3.10.7.2).
    fn send_syn(&mut self, now: Instant, room: u64, tx: &mut impl TxBatch) {
        if !self.syn.due {
            return;
        }
        let reply = self.state == State::SynReceived;
        let window = Receiver::syn_window(u64::from(self.config.receive_window), room);
        let flags = Flags::SYN.with(self.ecn.syn_flags(reply));
        let mut seg = self.empty_segment(now, self.send.iss(), flags, window);
        let config = &self.config;
        // RFC 7323 §2.2, §3.2, RFC 2018 §2: a SYN offers all configured options, a SYN-ACK only the options that the
        // peer's SYN also offered.
        let stamps = if reply { self.timestamps } else { config.extensions.timestamps };
        let scale = if reply { self.window_scaling } else { config.extensions.window_scale };
        seg.options = Options {
            mss: Some(self.syn.mss), // RFC 9293 §3.7.1 SHLD-5
            window_scale: scale.then(|| config.window_shift()),
            sack_permitted: if reply { self.send.sack } else { config.extensions.sack },
            timestamps: stamps.then(|| Timestamps {
                val: self.ts_now(now),
                ecr: if reply { self.recv.ts_recent() } else { 0 },
            }),
            ..Options::default()
        };
        if !reply {
            seg.flags = flags;
            seg.ack = SeqNumber(0);
        }
        if !self.emit_segment_ecn(&seg, self.ecn.is_syn_capable(reply), tx) {
            return;
        }
        self.syn.due = false;
        self.syn.window = window;
        self.syn.lost |= self.timers.is_set(Timer::Retransmit);
        if reply {
            self.recv.on_window_offered(window);
            self.recv.ack_now = false; // the SYN-ACK carries the acknowledgement
        }
        if !self.timers.is_set(Timer::Retransmit) {
            self.send.last_sent = now;
            self.timers.set(Timer::Retransmit, now + self.send.recovery.rtt().rto(&self.config));
        }
    }

    /// Sends `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>` in SYN-RECEIVED, for a segment outside the window (RFC 9293
    /// §3.10.7.4, first check). Offers only the window that our SYN offered, because the peer's address is not proven.
    fn send_handshake_ack(&mut self, now: Instant, tx: &mut impl TxBatch) {
        if !self.recv.ack_now || self.syn.due {
            return;
        }
        let window = self.syn.window >> self.recv.shift;
        let seg = self.empty_segment(now, self.send.nxt, Flags::default(), window);
        if self.emit_segment(&seg, tx) {
            self.stats.acks_out += 1;
            self.on_ack_sent(true);
        }
    }
}
