//! The send half of an association (RFC 9260 §6.1, §6.2.1, §6.3, §7): DATA chunks in flight, the peer's receive
//! window, the congestion window, and the processing of SACKs.
//!
//! Messages are sent unordered and unfragmented. A [`MessageSource`] writes them directly into packets. The sender
//! keeps a record of 32 bytes for each unacknowledged message. For a retransmission the source writes the same bytes
//! again.
//!
//! Loss detection and recovery follow RFC 8985 (RACK-TLP) and RFC 6937 (PRR), as in TCP, and the default congestion
//! control is CUBIC. The rules of RFC 9260 §7.2 (three miss indications, window halved) are slower on paths with random
//! loss. `congestion = NewReno` selects the window growth and reduction of Reno.
//!
//! Order of calls:
//!
//! ```text
//!  on_sack, on_shutdown      for the peer's acknowledgements
//!  handle_timeout(now)       when the time returned by poll_timeout() is reached
//!  begin_round               after a burst of these, or when the source has new data;
//!  plan_packet, write        then until plan_packet returns None or write writes no chunk;
//!  end_round                 then once
//! ```
//!
//! Not implemented: fragmentation, ordered delivery, multihoming.

mod acks;
mod config;
mod loss_detection;
mod output;
mod record;
mod recorder;
mod recovery;
mod scoreboard;
mod stats;
mod timers;

use core::cell::OnceCell;
use core::time::Duration;
use std::sync::Arc;

use base::{Instant, Nanos};
use transport::congestion::Congestion;
use transport::limits::{LimitInfo, SenderLimits};
use transport::loss_recovery::{FlightState, LossRecovery};
use transport::pacing::Pace;
use transport::ranges::Range;
use transport::recorder::Recorder;
use transport::recovery::Phase;
use transport::seq::{ExtSeq, SeqNumber};
use transport::stall::Stall;
use wire::sctp::{COMMON_HEADER_LEN, DATA_HEADER_LEN, SACK_FIXED_LEN, Tsn};

use self::scoreboard::Board;
use self::timers::Timers;
use crate::seam::MessageSource;

pub use acks::{AckEffect, BadSack};
pub use config::SendConfig;
pub use output::Plan;
pub use stats::SendStats;
pub use timers::ExpiredTimer;

/// Bytes of a packet without the user data of its message: common header, DATA chunk header, and room for a bundled
/// SACK (RFC 9260 §6.9).
const OVERHEAD: usize = COMMON_HEADER_LEN + DATA_HEADER_LEN + SACK_FIXED_LEN;

/// The send half of an association.
#[derive(Debug)]
pub struct Sender {
    board: Board,
    recovery: LossRecovery,
    /// State of loss recovery for the chunks in flight.
    state: FlightState,
    timers: Timers,
    /// The peer's last a_rwnd, bytes.
    a_rwnd: u64,
    /// Longest SCTP packet that the path carries, bytes.
    packet_len: usize,
    /// Longest message that an empty packet carries, bytes.
    max_message: usize,
    /// True if `max_message` has changed and the source is not notified yet.
    max_message_changed: bool,
    /// True if a window probe is due.
    probe_due: bool,
    /// True if the window was probed and has not opened since.
    probing: bool,
    /// Packets that may be sent at once without pacing: Max.Burst plus packets acknowledged since the last
    /// transmission.
    burst: u64,
    peer_state: PeerState,
    /// Consecutive SACKs that withdrew earlier reports (RFC 9260 §6.2.1 D iii).
    reneging: u8,
    /// Time of the last transmission of data.
    last_sent: Instant,
    round: Round,
    /// True if many streams share the port, which permits longer bursts.
    shared: bool,
    history: History,
    config: Arc<SendConfig>,
    stats: SendStats,
}

/// Responses of the peer: unanswered window probes, received SACKs, and the time of the last progress.
#[derive(Debug)]
struct PeerState {
    /// Number of consecutive window probes without a SACK.
    probes_unanswered: u32,
    /// True if a SACK was received since the last time-out.
    sack_received: bool,
    /// Time of the last progress: data acknowledged, a SACK during window probing, or a transmission with no data in
    /// flight.
    progress_at: Instant,
}

/// History of the sender for diagnostics, without the counters.
#[derive(Debug, Default)]
struct History {
    limits: SenderLimits,
    recorder: Recorder,
}

/// Activity since the last call of [`end_round`](Sender::end_round).
#[derive(Clone, Debug, Default)]
struct Round {
    /// True if the congestion window stopped transmission.
    cwnd_limited: bool,
    /// True if a chunk was written.
    sent: bool,
    /// True if new chunks were written for which the timer is not set yet.
    needs_timer: bool,
    /// Pacing rate and burst, cached at first use: within a round they do not change.
    pace: OnceCell<Option<Pace>>,
}

impl Sender {
    /// Creates the sender of an association. `initial_tsn`: its first TSN. `a_rwnd`: the peer's window from its INIT or
    /// INIT ACK, bytes. `packet_len`: longest SCTP packet of the path, bytes.
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
            max_message: max_message_len(packet_len),
            max_message_changed: true,
            probe_due: false,
            probing: false,
            burst: u64::from(config.max_burst),
            peer_state: PeerState { probes_unanswered: 0, sack_received: false, progress_at: now },
            reneging: 0,
            last_sent: now,
            round: Round::default(),
            shared: false,
            history: History::default(),
            config: config.clone(),
            stats: SendStats::default(),
        }
    }

    /// Returns the TSN of the next new DATA chunk.
    pub fn next_tsn(&self) -> Tsn {
        Tsn(self.board.nxt().wire().0)
    }

    /// Returns true if all data sent is acknowledged (RFC 9260 §9.2).
    pub fn is_idle(&self) -> bool {
        self.board.is_empty()
    }

    /// Returns the number of consecutive time-outs without progress, plus the number of consecutive unanswered window
    /// probes. Both are evidence for a black hole. For diagnostics, see [`unanswered`](Self::unanswered).
    pub fn timeouts_in_a_row(&self) -> u32 {
        self.recovery.consecutive_timeouts().saturating_add(self.peer_state.probes_unanswered)
    }

    /// Returns the number of consecutive unanswered window probes while the peer's window is probed, otherwise the
    /// number of consecutive time-outs. Stall reports and the limit [`Path`](transport::limits::Limit::Path) use this
    /// number.
    fn unanswered(&self) -> u32 {
        match self.probes_window() {
            true => self.peer_state.probes_unanswered,
            false => self.recovery.consecutive_timeouts(),
        }
    }

    /// Returns a report if the association makes no progress. `last`: true if the next error ends the association.
    pub(in crate::sctp) fn stall(&self, now: Instant, last: bool) -> Option<Stall> {
        let silent = now.saturating_since(self.peer_state.progress_at);
        Stall::detect(self.unanswered(), last, silent)
    }

    /// Returns true if no chunk is considered lost and no window probe is unanswered.
    pub fn is_lossless(&self) -> bool {
        self.state.phase() == Phase::Open
            && !self.board.awaits_retransmission()
            && self.peer_state.probes_unanswered == 0
    }

    /// Returns true if the peer has SACKed a message shorter than the oldest message in flight:
    /// evidence that the path drops only long packets.
    pub fn shorter_arrived(&self) -> bool {
        self.board.shorter_arrived()
    }

    /// Resets the exponential backoff of the RTO.
    pub fn reset_backoff(&mut self) {
        self.recovery.rtt_mut().reset_backoff();
    }

    /// Returns the number of messages sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.board.len()
    }

    /// Returns the longest message that a packet carries now, bytes.
    pub fn max_message(&self) -> usize {
        self.max_message
    }

    /// Returns the peer's window in its last SACK, or in its INIT or INIT ACK, bytes.
    pub fn peer_window(&self) -> u64 {
        self.a_rwnd
    }

    /// Returns the congestion window, bytes of DATA chunks.
    pub fn cwnd(&self) -> u64 {
        self.recovery.cc().cwnd()
    }

    /// Returns the estimated bytes of DATA chunks in the network.
    pub fn pipe(&self) -> u64 {
        self.board.pipe()
    }

    /// Returns the shortest round-trip time: the minimum over the last 1 to 2 minutes, or the SRTT if that is shorter;
    /// `None` before the first measurement.
    pub(super) fn base_rtt(&self) -> Option<Nanos> {
        self.recovery.base_rtt()
    }

    /// Returns the smoothed round-trip time (SRTT); `None` before the first measurement.
    pub fn srtt(&self) -> Option<Duration> {
        self.recovery.rtt().srtt().map(Duration::from)
    }

    /// Returns the variation of the round-trip time (RFC 6298 §2); zero before the first measurement.
    pub fn rttvar(&self) -> Duration {
        self.recovery.rtt().rttvar().into()
    }

    /// Returns the shortest round-trip time of the last 1 to 2 minutes; `None` before the first measurement.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.recovery.min_rtt().map(Duration::from)
    }

    /// Returns the slow-start threshold, bytes; `u64::MAX` before the first loss.
    pub fn ssthresh(&self) -> u64 {
        self.recovery.cc().ssthresh()
    }

    /// Returns the pacing rate of bursts, bytes per second; `None` if packets are not paced.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.pace().map(|pace| pace.rate)
    }

    /// Returns the present limit of the sender, and total time under each limit.
    pub fn limits(&self, now: Instant) -> LimitInfo {
        self.history.limits.info(now)
    }

    /// Returns the RTO with its backoff. T1-init, T1-cookie, T2-shutdown and the HEARTBEAT timer also use it (RFC 9260
    /// §8.3).
    pub fn rto(&self) -> Duration {
        self.recovery.rtt().rto(&self.config).into()
    }

    /// Returns the counters.
    pub fn stats(&self) -> SendStats {
        self.stats
    }

    /// Processes a round-trip time measured by a HEARTBEAT (RFC 9260 §8.3) or a handshake without retransmission.
    pub fn on_rtt_sample(&mut self, rtt: Duration) {
        self.recovery.rtt_mut().sample(rtt.into(), 1, &self.config);
        self.state.on_rtt_measured();
    }

    /// Sets the longest SCTP packet of the path to `len` bytes (RFC 9260 §7.3). If the length shrank, messages in
    /// flight that exceed the new maximum are marked lost.
    pub fn set_packet_len(&mut self, len: usize) {
        if len == self.packet_len {
            return;
        }
        let shrank = len < self.packet_len;
        self.packet_len = len;
        self.max_message = max_message_len(len);
        self.max_message_changed = true;
        let smss = self.smss();
        self.recovery.cc_mut().set_smss(smss);
        if shrank {
            self.board.mark_longer_lost(self.max_message);
        }
    }

    /// Returns the longest SCTP packet for the next call of [`write`](Self::write), bytes. A packet that retransmits a
    /// message from before a reduction of the path's limit may exceed this limit; IP must fragment it (RFC 9260 §6.9).
    pub fn packet_len(&self) -> usize {
        let retransmitted_len = self
            .next_retransmission()
            .map_or(0, |index| usize::from(self.board.records[index].len));
        self.packet_len
            .max(COMMON_HEADER_LEN + wire::sctp::padded(DATA_HEADER_LEN + retransmitted_len))
    }

    /// Starts a round of packets. `shared`: many streams share the port, which permits longer bursts.
    #[inline]
    pub fn begin_round(&mut self, shared: bool) {
        self.shared = shared;
        self.round.pace = OnceCell::new();
    }

    /// Returns the bytes of DATA chunks, headers included, in a full packet (PMDCS).
    fn smss(&self) -> usize {
        self.packet_len.saturating_sub(COMMON_HEADER_LEN).max(DATA_HEADER_LEN + 4)
    }

    /// Returns the bytes of new data for which the peer has room (RFC 9260 §6.2.1 B, D ii).
    fn rwnd(&self) -> u64 {
        self.a_rwnd.saturating_sub(self.board.outstanding())
    }

    fn pace(&self) -> Option<Pace> {
        if !self.config.pacing {
            return None;
        }
        self.recovery.pace(self.smss() as u64, self.shared)
    }

    /// Returns pacing rate and burst, computed once per round because of their expensive divisions.
    #[inline]
    fn round_pace(&self) -> Option<Pace> {
        // The pace of a congestion control that measures the delivery rate also depends on the data just sent, so
        // it is not cached.
        if self.recovery.cc().needs_samples() {
            return self.pace();
        }
        let pace = *self.round.pace.get_or_init(|| self.pace());
        debug_assert_eq!(pace, self.pace());
        pace
    }

    /// Notifies the source if `max_message` has changed.
    fn notify_source(&mut self, source: &mut impl MessageSource) {
        if core::mem::take(&mut self.max_message_changed) {
            source.on_max_len_changed(self.max_message);
        }
    }
}

/// Returns the initial congestion state (RFC 9260 §7.2.1), with the lower bound of ssthresh (§7.2.3).
fn congestion(config: &SendConfig, smss: usize) -> Congestion {
    let segments = config.initial_packets(smss);
    Congestion::new(config.congestion, config.send_window, smss, segments)
        .with_floor(4)
        .with_pacing(config.pacing)
}

/// Returns the range that contains only `tsn`.
fn single_tsn(tsn: ExtSeq) -> Range {
    Range { start: tsn, end: tsn.plus(1) }
}

/// Returns the length of the longest message for packets of `packet_len` bytes, a multiple of four. Room is left for a
/// SACK, unless a message of [`LOWEST_MAX_MESSAGE`] bytes would then not fit.
fn max_message_len(packet_len: usize) -> usize {
    let without_sack = packet_len.saturating_sub(COMMON_HEADER_LEN + DATA_HEADER_LEN);
    packet_len.saturating_sub(OVERHEAD).max(without_sack.min(LOWEST_MAX_MESSAGE)).max(4) & !3
}

/// Lower bound of the longest message, bytes, padded: a DDP-SSN and the minimum MULPDU (RFC 5043 §9).
const LOWEST_MAX_MESSAGE: usize = wire::sctp::padded(2 + wire::sctp::ddp::MIN_MESSAGE);

#[cfg(test)]
mod tests;
