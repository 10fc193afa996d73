//! The send half: segments in flight, the peer's window and the congestion window. The scoreboard has a record of each
//! data segment between SND.UNA and SND.NXT. Acknowledgements are processed in `acks`.

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
    /// State of data in flight. Not allocated in an idle connection.
    pub(crate) outstanding: Lazy<Outstanding>,
    pub(crate) recovery: LossRecovery,
    pub(super) size: SegmentSize,
    /// Window scale shift of the peer's window field, negotiated by the SYNs (RFC 7323 §2.2).
    pub(super) window_shift: u8,
    /// True if the peer uses SACK.
    pub(crate) sack: bool,
    /// Current purpose of the retransmission timer.
    pub(crate) loss_timer: LossTimer,
    /// True if a window probe is due, or a segment below the MSS after the override time-out of silly window avoidance
    /// (RFC 9293 §3.8.6.2.1).
    pub(crate) probe_due: bool,
    /// Counter of unanswered time-outs with a closed window.
    pub(crate) probes: WindowProbeState,
    /// True if the closed window was probed and has not opened since.
    pub(crate) probing: bool,
    /// True after a local close: a FIN follows the data.
    pub(crate) fin_queued: bool,
    pub(crate) fin_sent: bool,
    /// Time of the last transmission of data.
    pub(crate) last_sent: Instant,
    /// Time of the last progress: new data acknowledged, a closed window reported by the peer, or data sent with
    /// nothing in flight.
    pub(crate) progress_at: Instant,
    iss: SeqNumber,
    pub(super) dup_acks: u32,
    /// Longest payload acknowledged before `outstanding` was released, bytes.
    longest_acked: u16,
}

base::prefetch!(Sender: outstanding, recovery);

/// One plus the number of consecutive unanswered time-outs with a closed window. Zero if the peer has reported a closed
/// window since the last time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowProbeState(u8);

impl Default for WindowProbeState {
    fn default() -> Self {
        WindowProbeState(1)
    }
}

impl WindowProbeState {
    /// Records an update of the peer's window; `closed` if its size is zero.
    pub(crate) fn on_window(&mut self, closed: bool) {
        self.0 = if closed { 0 } else { self.0.min(1) };
    }

    /// Records a retransmission time-out; `closed` if the peer's window is closed. Returns true if the peer has
    /// reported a closed window since the last time-out.
    pub(crate) fn on_timeout(&mut self, closed: bool) -> bool {
        let before = self.0;
        self.0 = if closed { before.saturating_add(1) } else { 1 };
        before == 0
    }

    /// Returns the number of consecutive unanswered time-outs with a closed window.
    pub(crate) fn unanswered(self) -> u32 {
        self.0.saturating_sub(1).into()
    }
}

/// State of data in flight. Not allocated in an idle connection.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    pub(crate) board: Scoreboard,
    /// State of loss recovery for the data in flight.
    pub(crate) state: FlightState,
    /// Expiry of the retransmission time-out. The retransmission timer may be set to an earlier tail loss probe or
    /// reordering time-out ([`LossTimer`]).
    pub(crate) rto_at: Instant,
    /// Without SACK: bytes estimated to have left the network, one segment per duplicate acknowledgement.
    pub(super) reno_sacked: u64,
    /// FlightSize before the first duplicate acknowledgement, bytes (RFC 5681 §3.2 (2)).
    pub(super) flight_before_dups: u64,
    /// The variable recover of RFC 6582 §3.2: SND.NXT at the start of the last recovery.
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
    /// Returns true if no data is in flight and no tail loss probe is unanswered.
    pub(crate) fn is_idle(&self) -> bool {
        self.board.is_empty() && self.state.is_probe_idle()
    }
}

impl Sender {
    pub(crate) fn new(iss: SeqNumber, mss: u16, config: &Config, now: Instant) -> Self {
        let first = ExtSeq::initial(iss);
        Sender {
            una: first,
            nxt: first,
            window: PeerWindow::new(first),
            outstanding: Lazy::new(),
            recovery: LossRecovery::new(
                congestion(config, usize::from(mss), config.initial_window),
                config,
            ),
            size: SegmentSize::new(mss),
            window_shift: 0,
            sack: false,
            loss_timer: LossTimer::Rto,
            probe_due: false,
            probes: WindowProbeState::default(),
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

    /// Prepares data transfer after our SYN was acknowledged. `syn_lost`: the SYN was retransmitted.
    pub(crate) fn on_established(&mut self, config: &Config, syn_lost: bool) {
        self.una = self.iss().plus(1);
        self.nxt = self.una;
        if syn_lost {
            self.recovery.rtt_mut().on_syn_loss();
        }
        // RFC 5681 §3.1: the initial window is one segment if the SYN was lost.
        let segments = if syn_lost { 1 } else { config.initial_window };
        self.recovery.restart(congestion(config, self.emss(), segments));
        self.size.announce();
    }

    /// Returns ISS, our initial sequence number.
    pub(crate) fn iss(&self) -> ExtSeq {
        ExtSeq::initial(self.iss)
    }

    /// Returns the stream offset of a sequence number: zero for the first byte after the SYN.
    pub(crate) fn offset(&self, seq: ExtSeq) -> u64 {
        seq.since(self.iss().plus(1))
    }

    /// Returns the number of stream bytes sent at least once, without the FIN.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.offset(self.nxt).saturating_sub(self.fin_sent.into())
    }

    /// Returns the stream offset up to which all bytes are acknowledged, without the FIN.
    pub(crate) fn acknowledged_offset(&self) -> u64 {
        self.offset(self.una) - u64::from(self.fin_sent && self.una == self.nxt)
    }

    /// Returns SND.NXT - SND.UNA, in bytes.
    pub(crate) fn flight(&self) -> u64 {
        self.nxt.since(self.una)
    }

    /// Returns the estimated bytes in the network (RFC 6675 §4, pipe).
    pub(crate) fn pipe(&self) -> u64 {
        self.outstanding.board.pipe().saturating_sub(self.outstanding.reno_sacked)
    }

    /// Returns the right edge of the peer's window.
    pub(crate) fn right_edge(&self) -> ExtSeq {
        self.una.plus(self.window.size().into())
    }

    /// Returns the usable window, bytes. Zero if the peer shrank its window below the bytes in flight (RFC 9293 §3.8.6
    /// MUST-34).
    ///
    /// The configured send window limits the result, too (RFC 9293 §3.9.1.2, send queue limits), because unacknowledged
    /// data needs memory. The congestion window alone does not bound this memory: a peer that SACKs all segments but
    /// the first keeps the congestion window open.
    pub(crate) fn usable_window(&self) -> u64 {
        let own = self.una.plus(self.recovery.cc().send_window());
        self.right_edge().min(own).since(self.nxt)
    }

    /// Returns true if the congestion window has room for a full segment, or nothing is in the network (RFC 6675 §5
    /// (C)).
    pub(crate) fn has_cwnd_room(&self) -> bool {
        let pipe = self.pipe();
        pipe == 0 || pipe + u64::from(self.size.emss()) <= self.recovery.cc().cwnd()
    }

    /// Returns pacing rate and burst, or `None` if pacing is disabled or not useful. `shared`: many streams share the
    /// port.
    pub(crate) fn pace(&self, config: &Config, shared: bool) -> Option<Pace> {
        if !config.pacing {
            return None;
        }
        self.recovery.pace(self.size.emss().into(), shared)
    }

    /// Returns true on paths with a minimum round trip of at least [`pacing::MIN_RTT`], where every segment may carry
    /// PSH. A receiver with delayed acknowledgements answers a pushed segment at once, so the ACK clock does not send
    /// pairs of segments into a full queue. On shorter paths PSH would only keep the receiver from merging segments
    /// (GRO). Before the first acknowledgement of data the round trip of the handshake decides.
    pub(crate) fn needs_single_acks(&self) -> bool {
        let base = self.recovery.min_rtt().or(self.recovery.rtt().srtt());
        base.is_some_and(|rtt| rtt >= pacing::MIN_RTT)
    }

    /// Updates pacing and recovery after `bytes` of sequence space were sent. `shared`: many streams share the port.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, shared: bool, config: &Config) {
        if let Some(pace) = self.pace(config, shared) {
            self.outstanding.state.on_paced_sent(now, bytes, pace);
        }
        self.recovery.on_sent(bytes);
    }

    /// Returns the sequence number for a segment without data: SND.NXT, or the right edge of the peer's window if that
    /// is less. The peer then accepts the segment (RFC 9293 appendix A.2).
    pub(crate) fn control_seq(&self) -> ExtSeq {
        if self.una == self.iss() {
            return self.nxt; // a SYN needs no window
        }
        self.nxt.min(self.right_edge()).max(self.una)
    }

    /// Returns the longest payload acknowledged as one segment, bytes (RFC 5927 §7.2, maxsizeacked).
    pub(crate) fn longest_acked(&self) -> u16 {
        self.longest_acked.max(self.outstanding.board.longest_acked())
    }

    /// Frees the state of data in flight if nothing is in flight. Called after more than one RTO without transmission,
    /// and in TIME-WAIT and CLOSED.
    pub(crate) fn shrink(&mut self) {
        if self.outstanding.is_idle() && self.una == self.nxt {
            self.longest_acked = self.longest_acked();
            self.outstanding.release();
            self.recovery.shrink();
        }
    }

    // --- segment size -------------------------------------------------------------------------------

    /// Returns the effective MSS: maximum payload bytes of a segment.
    #[inline]
    pub(crate) fn emss(&self) -> usize {
        self.size.emss() as usize
    }

    /// Sets the path's MSS (RFC 1191). If the effective MSS shrank, marks longer segments lost and returns true.
    pub(crate) fn set_path_mss(&mut self, mss: u16) -> bool {
        let before = self.emss();
        let changed = self.size.set_path_mss(mss);
        let emss = self.emss();
        if changed {
            self.recovery.cc_mut().set_smss(emss);
        }
        let shrank = emss < before;
        if shrank && let Some(out) = self.outstanding.get_mut() {
            out.board.mark_longer_lost(emss);
        }
        shrank
    }
}

fn congestion(config: &Config, smss: usize, segments: u32) -> Congestion {
    Congestion::new(config.congestion, config.send_window, smss, segments)
        .with_pacing(config.pacing)
}
