//! The send half of an association (RFC 9260 §6.1, §6.2.1, §6.3, §7): what is in flight, what the peer and
//! the path let us send, and what its SACKs mean.
//!
//! Messages go out unordered and never cut up, pulled from a [`MessageSource`] straight into packets; what
//! remains of one is a record of 32 bytes, and a retransmission asks for the same bytes again.
//!
//! Losses are found and repaired as RFC 8985 and RFC 6937 have it for TCP, the window grows by CUBIC: what
//! RFC 9260 §7.2 asks for, three missing reports and the halves of Reno, is the slower of the two where
//! packets are lost at random. `congestion = NewReno` follows the letter.
//!
//! Its owner calls:
//!
//! ```text
//!  on_sack, on_shutdown      for what the peer acknowledges
//!  handle_timeout(now)       when poll_timeout() has come
//!  wants_packet, write       after a burst of these, or when the source has new data, until either returns false;
//!  written                   then once
//! ```
//!
//! Left out: fragmentation, order within a stream, several paths.

mod acks;
mod board;
mod config;
mod detect;
mod output;
mod record;
mod recover;
mod stats;
mod timers;

use core::time::Duration;
use std::sync::Arc;

use base::Instant;
use transport::congestion::Congestion;
use transport::loss_recovery::{FlightState, LossRecovery};
use transport::pacing::Pace;
use transport::ranges::Range;
use transport::recovery::Phase;
use transport::seq::{ExtSeq, SeqNumber};
use wire::sctp::{COMMON_HEADER_LEN, DATA_HEADER_LEN, SACK_FIXED_LEN, Tsn};

use self::board::Board;
use self::timers::Timers;
use crate::seam::MessageSource;

pub use acks::{Acknowledged, BadSack};
pub use config::SendConfig;
pub use stats::SendStats;
pub use timers::Expired;

/// What a packet needs besides the user data of one message: its header, that of the DATA chunk, and room for
/// a SACK beside it (RFC 9260 §6.9).
const OVERHEAD: usize = COMMON_HEADER_LEN + DATA_HEADER_LEN + SACK_FIXED_LEN;

/// The send half of an association.
#[derive(Debug)]
pub struct Sender {
    board: Board,
    recovery: LossRecovery,
    /// What loss recovery keeps of what is in flight.
    state: FlightState,
    timers: Timers,
    /// The last a_rwnd of the peer.
    a_rwnd: u64,
    /// Longest SCTP packet that the path carries.
    packet_len: usize,
    /// Longest message that an empty packet carries.
    most: usize,
    most_news: bool,
    /// A probe of a closed window is due.
    probe_due: bool,
    /// The window was probed and has not opened since.
    probing: bool,
    /// Packets that may leave at once: Max.Burst, and as many as were acknowledged since the last one left.
    burst: u64,
    /// Probes of a closed window in a row without any answer.
    probes_unanswered: u32,
    /// A SACK came since the last time-out.
    sack_received: bool,
    /// SACKs in a row that lacked what had been reported (RFC 9260 §6.2.1 D iii).
    reneging: u8,
    /// When data was sent last.
    last_sent: Instant,
    /// The congestion window is what stopped the last packet.
    cwnd_limited: bool,
    /// Something was written since the last call of [`written`](Self::written).
    sent: bool,
    config: Arc<SendConfig>,
    stats: SendStats,
}

impl Sender {
    /// For an association whose first TSN is `initial_tsn`, with a peer whose INIT or INIT ACK has this `a_rwnd`,
    /// over a path that carries SCTP packets of `packet_len` bytes.
    pub fn new(
        config: &Arc<SendConfig>,
        initial_tsn: Tsn,
        a_rwnd: u32,
        packet_len: usize,
        now: Instant,
    ) -> Self {
        let una = ExtSeq::initial(SeqNumber(initial_tsn.0));
        let smss = packet_len.saturating_sub(COMMON_HEADER_LEN).max(DATA_HEADER_LEN + 4);
        Sender {
            board: Board::new(una),
            recovery: LossRecovery::new(congestion(config, smss), config),
            state: FlightState::new(),
            timers: Timers::default(),
            a_rwnd: u64::from(a_rwnd),
            packet_len,
            most: most(packet_len),
            most_news: true,
            probe_due: false,
            probing: false,
            burst: u64::from(config.max_burst),
            probes_unanswered: 0,
            sack_received: false,
            reneging: 0,
            last_sent: now,
            cwnd_limited: false,
            sent: false,
            config: config.clone(),
            stats: SendStats::default(),
        }
    }

    /// The TSN that the next new DATA chunk gets.
    pub fn next_tsn(&self) -> Tsn {
        Tsn(self.board.nxt().wire().0)
    }

    /// True when everything that was sent is acknowledged (RFC 9260 §9.2).
    pub fn is_idle(&self) -> bool {
        self.board.is_empty()
    }

    /// Time-outs in a row without progress, and probes of a closed window in a row without an answer.
    pub fn timeouts_in_a_row(&self) -> u32 {
        self.recovery.timeouts_in_a_row().saturating_add(self.probes_unanswered)
    }

    /// True while nothing is thought to be lost.
    pub fn is_lossless(&self) -> bool {
        self.state.phase() == Phase::Open
            && !self.board.awaits_retransmission()
            && self.probes_unanswered == 0
    }

    /// True when the peer has reported messages that are shorter than the oldest one, which it lacks.
    pub fn shorter_arrived(&self) -> bool {
        self.board.shorter_arrived()
    }

    /// The next time-out is as if the last ones had not been.
    pub fn forget_backoff(&mut self) {
        self.recovery.rtt_mut().forget_backoff();
    }

    /// Messages that are sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.board.len()
    }

    /// Longest message that a packet carries now, bytes.
    pub fn most(&self) -> usize {
        self.most
    }

    /// The peer's window as the last SACK had it, bytes.
    pub fn peer_window(&self) -> u64 {
        self.a_rwnd
    }

    /// Congestion window, bytes of DATA chunks.
    pub fn cwnd(&self) -> u64 {
        self.recovery.cc().cwnd()
    }

    /// Bytes of DATA chunks that are thought to be in the network.
    pub fn pipe(&self) -> u64 {
        self.board.pipe()
    }

    /// Smoothed round trip, once measured.
    pub fn srtt(&self) -> Option<Duration> {
        self.recovery.rtt().srtt().map(Duration::from)
    }

    /// RTO: also of T1 and T2, and part of the interval of HEARTBEATs (RFC 9260 §8.3).
    pub fn rto(&self) -> Duration {
        self.recovery.rtt().rto(&self.config).into()
    }

    /// What was counted.
    pub fn stats(&self) -> SendStats {
        self.stats
    }

    /// A round trip was measured by a HEARTBEAT (RFC 9260 §8.3), or by a handshake without retransmission.
    pub fn measured(&mut self, rtt: Duration) {
        self.recovery.rtt_mut().sample(rtt.into(), 1, &self.config);
        self.state.measured();
    }

    /// The path carries SCTP packets of `len` bytes from now on (RFC 9260 §7.3): what was longer is lost.
    pub fn set_packet_len(&mut self, len: usize) {
        if len == self.packet_len {
            return;
        }
        let shrank = len < self.packet_len;
        self.packet_len = len;
        self.most = most(len);
        self.most_news = true;
        let smss = self.smss();
        self.recovery.cc_mut().set_smss(smss);
        if shrank {
            self.board.mark_longer_lost(self.most);
        }
    }

    /// Longest SCTP packet for the next call of [`write`](Self::write): what the path carries, or more when
    /// a message has to go again that was sent when it carried more. Such a packet has to be fragmented by IP
    /// (RFC 9260 §6.9).
    pub fn packet_len(&self) -> usize {
        let again = self.next_again().map_or(0, |index| usize::from(self.board.records[index].len));
        self.packet_len.max(COMMON_HEADER_LEN + wire::sctp::padded(DATA_HEADER_LEN + again))
    }

    /// Bytes of the DATA chunks of a full packet (PMDCS).
    fn smss(&self) -> usize {
        self.packet_len.saturating_sub(COMMON_HEADER_LEN).max(DATA_HEADER_LEN + 4)
    }

    /// Room that the peer has for new data (RFC 9260 §6.2.1 B, D ii).
    fn rwnd(&self) -> u64 {
        self.a_rwnd.saturating_sub(self.board.outstanding())
    }

    fn pace(&self) -> Option<Pace> {
        if !self.config.pacing {
            return None;
        }
        self.recovery.pace(self.smss() as u64)
    }

    /// Notifies the source of what changed.
    fn announce(&mut self, source: &mut impl MessageSource) {
        if core::mem::take(&mut self.most_news) {
            source.most_changed(self.most);
        }
    }
}

/// RFC 9260 §7.2.1; §7.2.3 for the floor.
fn congestion(config: &SendConfig, smss: usize) -> Congestion {
    let segments = config.initial_packets(smss);
    Congestion::new(config.congestion, config.send_window, smss, segments).with_floor(4)
}

/// The range of one TSN.
fn one(tsn: ExtSeq) -> Range {
    Range { start: tsn, end: tsn.plus(1) }
}

/// Longest message in a packet of `packet_len` bytes, a multiple of four: with room for a SACK, unless a
/// DDP segment of the least size that any path carries would not fit then (RFC 5043 §9).
fn most(packet_len: usize) -> usize {
    let alone = packet_len.saturating_sub(COMMON_HEADER_LEN + DATA_HEADER_LEN);
    packet_len.saturating_sub(OVERHEAD).max(alone.min(LEAST)).max(4) & !3
}

/// Bytes that a message may have on every path, if a packet carries them at all.
const LEAST: usize = wire::sctp::padded(2 + wire::sctp::ddp::MIN_MESSAGE);

#[cfg(test)]
mod tests;
