//! The send half: segments in flight, the peer's window and the congestion window. Acknowledgements are processed in
//! `acks`.

use base::{Blank, Instant, Lazy};
use transport::congestion::Congestion;
use transport::loss_recovery::{FlightState, LossRecovery};
use transport::pacing::{self, Pace};
use transport::seq::{ExtSeq, SeqNumber};

use super::config::Config;
use super::peer_window::PeerWindow;
use super::scoreboard::Scoreboard;
use super::segment_size::SegmentSize;
use super::timers::LossTimer;

/// The send half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    /// SND.UNA.
    pub(crate) una: ExtSeq,
    /// SND.NXT.
    pub(crate) nxt: ExtSeq,
    pub(crate) window: PeerWindow,
    /// What matters only while something is in flight.
    pub(crate) out: Lazy<Outstanding>,
    pub(crate) recovery: LossRecovery,
    pub(super) size: SegmentSize,
    /// Shift of the peer's window field, as the SYNs settled it (RFC 7323 §2.2).
    pub(super) window_shift: u8,
    /// The peer uses SACK.
    pub(crate) sack: bool,
    /// What the retransmission timer is set for.
    pub(crate) loss_timer: LossTimer,
    /// A probe of a closed window, or a small segment against silly window avoidance, is due.
    pub(crate) probe_due: bool,
    /// Answers of a peer whose window is closed.
    pub(crate) probes: Probes,
    /// The window was probed and has not opened since.
    pub(crate) probing: bool,
    /// A FIN follows the data.
    pub(crate) fin_queued: bool,
    pub(crate) fin_sent: bool,
    /// When data was sent last.
    pub(crate) last_sent: Instant,
    /// When the peer acknowledged something new last, or something was sent with nothing in flight.
    pub(crate) progress_at: Instant,
    iss: SeqNumber,
    pub(super) dup_acks: u32,
    /// Longest payload that was acknowledged before `out` was released.
    longest_acked: u16,
}

base::prefetch!(Sender: out, recovery);

/// Answers of a peer whose window is closed: 0 if it has answered since the last time-out, else one more than the
/// time-outs in a row without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Probes(u8);

impl Default for Probes {
    fn default() -> Self {
        Probes(1)
    }
}

impl Probes {
    /// The peer has set its window.
    pub(crate) fn on_window(&mut self, closed: bool) {
        self.0 = if closed { 0 } else { self.0.min(1) };
    }

    /// A retransmission time-out. Returns whether the peer has answered, with its window closed, since the last one.
    pub(crate) fn on_timeout(&mut self, closed: bool) -> bool {
        let before = self.0;
        self.0 = if closed { before.saturating_add(1) } else { 1 };
        before == 0
    }

    /// Time-outs in a row with the window closed and without an answer.
    pub(crate) fn unanswered(self) -> u32 {
        self.0.saturating_sub(1).into()
    }
}

/// What matters only while something is in flight: it is blank in a connection that is idle.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    pub(crate) board: Scoreboard,
    /// What loss recovery keeps of it.
    pub(crate) state: FlightState,
    /// When the retransmission timer expires unless another [`LossTimer`] replaces it.
    pub(crate) rto_at: Instant,
    /// Bytes that have left the network by the count of duplicate acknowledgements, without SACK.
    pub(super) reno_sacked: u64,
    /// What was in flight before the first duplicate acknowledgement (RFC 5681 §3.2 (2)).
    pub(super) flight_before_dups: u64,
    /// SND.NXT when the last recovery began (RFC 6582 §3.2, recover).
    pub(super) recover: ExtSeq,
}

base::prefetch!(Outstanding: board);

impl Blank for Outstanding {
    fn blank() -> &'static Self {
        static BLANK: Outstanding = Outstanding {
            board: Scoreboard::new(),
            state: FlightState::new(),
            rto_at: Instant::ZERO,
            reno_sacked: 0,
            flight_before_dups: 0,
            recover: ExtSeq::NONE,
        };
        &BLANK
    }
}

impl Outstanding {
    /// Nothing is in flight, and no answer to a probe is to come.
    pub(crate) fn is_quiet(&self) -> bool {
        self.board.is_empty() && self.state.is_probe_quiet()
    }
}

impl Sender {
    pub(crate) fn new(iss: SeqNumber, mss: u16, config: &Config, now: Instant) -> Self {
        let first = ExtSeq::initial(iss);
        Sender {
            una: first,
            nxt: first,
            window: PeerWindow::new(first),
            out: Lazy::new(),
            recovery: LossRecovery::new(
                congestion(config, usize::from(mss), config.initial_window),
                config,
            ),
            size: SegmentSize::new(mss),
            window_shift: 0,
            sack: false,
            loss_timer: LossTimer::Rto,
            probe_due: false,
            probes: Probes::default(),
            probing: false,
            fin_queued: false,
            fin_sent: false,
            last_sent: now,
            progress_at: now,
            iss,
            dup_acks: 0,
            longest_acked: 0,
        }
    }

    /// Our SYN is acknowledged: data may flow.
    pub(crate) fn established(&mut self, config: &Config, syn_lost: bool) {
        self.una = self.iss().plus(1);
        self.nxt = self.una;
        if syn_lost {
            self.recovery.rtt_mut().after_syn_loss();
        }
        // RFC 5681 §3.1: one segment when the SYN was lost.
        let segments = if syn_lost { 1 } else { config.initial_window };
        self.recovery.restart(congestion(config, self.emss(), segments));
        self.size.announce();
    }

    /// ISS.
    pub(crate) fn iss(&self) -> ExtSeq {
        ExtSeq::initial(self.iss)
    }

    /// Stream offset of a sequence number: zero for the first byte after the SYN.
    pub(crate) fn offset(&self, seq: ExtSeq) -> u64 {
        seq.since(self.iss().plus(1))
    }

    /// Bytes sent at least once.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset(self.nxt).saturating_sub(self.fin_sent.into())
    }

    /// Bytes acknowledged, the FIN not counted.
    pub(crate) fn acknowledged_offset(&self) -> u64 {
        self.offset(self.una) - u64::from(self.fin_sent && self.una == self.nxt)
    }

    /// Sequence space sent and not acknowledged.
    pub(crate) fn flight(&self) -> u64 {
        self.nxt.since(self.una)
    }

    /// What is thought to be in the network.
    pub(crate) fn pipe(&self) -> u64 {
        self.out.board.pipe().saturating_sub(self.out.reno_sacked)
    }

    /// The right edge of the peer's window.
    pub(crate) fn right_edge(&self) -> ExtSeq {
        self.una.plus(self.window.size().into())
    }

    /// The usable window; none when the peer shrank it below what is in flight (RFC 9293 §3.8.6 MUST-34).
    ///
    /// A peer that reports by SACK all but the first segment keeps the congestion window open: the send window
    /// bounds what is kept for it (RFC 9293 §3.9.1.2, send queue limits).
    pub(crate) fn usable(&self) -> u64 {
        let own = self.una.plus(self.recovery.cc().send_window());
        self.right_edge().min(own).since(self.nxt)
    }

    /// True when the congestion window takes a full segment (RFC 6675 §5 (C)).
    pub(crate) fn cwnd_open(&self) -> bool {
        let pipe = self.pipe();
        pipe == 0 || pipe + u64::from(self.size.emss()) <= self.recovery.cc().cwnd()
    }

    /// How fast to send, if paced; `shared`: many streams share the port.
    pub(crate) fn pace(&self, config: &Config, shared: bool) -> Option<Pace> {
        if !config.pacing {
            return None;
        }
        self.recovery.pace(self.size.emss().into(), shared)
    }

    /// True on paths where every segment is to be acknowledged, by PSH: a receiver with delayed
    /// acknowledgements answers a pushed segment at once, so that the ACK clock does not send pairs into a full
    /// queue. On short paths it would only keep the receiver from merging segments (GRO), however long a queue
    /// makes their round trips. Before data is acknowledged the handshake has measured the path.
    pub(crate) fn wants_single_acks(&self) -> bool {
        let base = self.recovery.min_rtt().or(self.recovery.rtt().srtt());
        base.is_some_and(|rtt| rtt >= pacing::MIN_RTT)
    }

    /// A segment of `bytes` was sent; `shared`: many streams share the port.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, shared: bool, config: &Config) {
        if let Some(pace) = self.pace(config, shared) {
            self.out.state.on_paced_sent(now, bytes, pace);
        }
        self.recovery.on_sent(bytes);
    }

    /// Sequence number of a segment without data: SND.NXT, or where the peer's window ends when that is
    /// less, so that it is acceptable there (RFC 9293 appendix A.2).
    pub(crate) fn control_seq(&self) -> ExtSeq {
        if self.una == self.iss() {
            return self.nxt; // the SYN, which needs no window
        }
        self.nxt.min(self.right_edge()).max(self.una)
    }

    /// Longest payload that was acknowledged at once, bytes (RFC 5927 §7.2, maxsizeacked).
    pub(crate) fn longest_acked(&self) -> u16 {
        self.longest_acked.max(self.out.board.longest_acked())
    }

    /// Nothing was sent for a while, `rto` at least: frees what only matters while something is in flight.
    pub(crate) fn shrink(&mut self) {
        if self.out.is_quiet() && self.una == self.nxt {
            self.longest_acked = self.longest_acked();
            self.out.release();
            self.recovery.shrink();
        }
    }

    // --- segment size -------------------------------------------------------------------------------

    /// Effective MSS: bytes of payload in a segment.
    #[inline]
    pub(crate) fn emss(&self) -> usize {
        self.size.emss() as usize
    }

    /// The path takes segments of `mss` (RFC 1191). Returns whether the effective MSS shrank.
    pub(crate) fn set_path_mss(&mut self, mss: u16) -> bool {
        let before = self.emss();
        let changed = self.size.set_path_mss(mss);
        let emss = self.emss();
        if changed {
            self.recovery.cc_mut().set_smss(emss);
        }
        let shrank = emss < before;
        if shrank && let Some(out) = self.out.get_mut() {
            out.board.mark_longer_lost(emss);
        }
        shrank
    }
}

fn congestion(config: &Config, smss: usize, segments: u32) -> Congestion {
    Congestion::new(config.congestion, config.send_window, smss, segments)
        .with_pacing(config.pacing)
}
