//! Counters of a connection, and a snapshot of its state.

use core::time::Duration;

use base::{Instant, MaybeInstant};
use transport::limits::SenderLimits;
use transport::recorder::{Record, Recorder};
use transport::seq::SeqNumber;

use super::challenge::ChallengeLimit;
use super::state::State;

/// Counters of a connection. They never decrease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Segments received for the connection, including dropped segments.
    pub segments_in: u64,
    /// Segments sent, retransmissions and acknowledgements included.
    pub segments_out: u64,
    /// Bytes of the stream sent for the first time.
    pub bytes_out: u64,
    /// Bytes that the peer has cumulatively acknowledged, the FIN included.
    pub bytes_acknowledged: u64,
    /// Segments sent that only acknowledge: without data, SYN, FIN or RST.
    pub acks_out: u64,
    /// Number of times that pacing delayed a burst.
    pub paced_waits: u64,
    /// Window probes sent (RFC 9293 §3.8.6.1).
    pub window_probes: u64,
    /// Keepalive probes sent (RFC 9293 §3.8.4).
    pub keepalive_probes: u64,
    /// Challenge acknowledgements sent (RFC 5961).
    pub challenge_acks: u64,
    /// Reductions of the congestion window because the peer echoed a CE mark (RFC 3168).
    pub ecn_reductions: u64,
    /// Counters of received data.
    pub recv: ReceiverStats,
    /// Counters of losses and retransmissions.
    pub loss: LossStats,
    /// Counters of the path MTU.
    pub path_mtu: PathMtuStats,
}

/// Counters of received data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiverStats {
    /// Bytes of the stream that the upper layer accepted, each counted once.
    pub bytes: u64,
    /// Bytes accepted beyond a gap; included in `bytes`.
    pub bytes_out_of_order: u64,
    /// Bytes received again after the upper layer accepted them.
    pub bytes_duplicate: u64,
    /// Bytes not accepted: refused by the upper layer, above the limit of out-of-order ranges, or outside the window.
    pub bytes_refused: u64,
    /// Acknowledgements sent with a D-SACK block (RFC 2883).
    pub d_sacks: u64,
    /// Data segments received with a CE mark (RFC 3168).
    pub ecn_marks: u64,
    /// Largest number of bytes beyond gaps at one time, so far.
    pub out_of_order_max: u64,
}

/// Counters of losses, retransmissions, and evidence that they were spurious.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LossStats {
    /// Segments retransmitted, probes included.
    pub segments_retransmitted: u64,
    /// Payload bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Duplicate acknowledgements received (RFC 5681 §2).
    pub duplicate_acks_in: u64,
    /// Fast recoveries: loss recovery entered without a time-out.
    pub fast_recoveries: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Segments that RACK found lost (RFC 8985 §6.2).
    pub segments_lost: u64,
    /// Tail loss probes sent (RFC 8985 §7.3).
    pub tail_loss_probes: u64,
    /// Lost tail segments that a tail loss probe repaired (RFC 8985 §7.4.2).
    pub tail_losses_repaired: u64,
    /// Time-outs undone because F-RTO showed them to be spurious (RFC 5682).
    pub undone_by_frto: u64,
    /// Recoveries and time-outs undone because timestamps showed them to be spurious (RFC 3522).
    pub undone_by_timestamp: u64,
    /// Recoveries and time-outs undone because D-SACK showed them to be spurious (RFC 3708).
    pub undone_by_d_sack: u64,
    /// Acknowledgements received with a D-SACK block (RFC 2883).
    pub d_sacks_in: u64,
    /// D-SACKs that match neither a retransmission of the current loss episode nor a tail loss probe, or that repeat a
    /// report. The network duplicated a segment, or the D-SACK is forged.
    pub d_sacks_ignored: u64,
}

impl LossStats {
    /// Returns the number of congestion window reductions that losses caused.
    fn reductions(&self) -> u64 {
        self.fast_recoveries + self.timeouts + self.tail_losses_repaired
    }
}

/// Counters of the path MTU and its probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathMtuStats {
    /// Reductions of the path MTU.
    pub reductions: u64,
    /// Increases of the path MTU.
    pub raises: u64,
    /// Path MTU probes sent (RFC 4821).
    pub probes: u64,
    /// Path MTU probes lost.
    pub probes_lost: u64,
    /// Black holes found: long segments were lost without an ICMP report (RFC 4821 §7.7).
    pub black_holes: u64,
}

/// Stored counters of a connection. Counters of frequent events are inline. The others are allocated when the first of
/// them is incremented. Values that follow from sequence numbers are not stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) segments_in: u64,
    pub(crate) segments_out: u64,
    pub(crate) acks_out: u64,
    cold: Option<Box<ColdState>>,
    pub(crate) limits: SenderLimits,
}

base::prefetch!(Counters: cold);

/// Counters and state of rare events (cold state).
#[derive(Clone, Debug, Default)]
pub(crate) struct ColdState {
    pub(crate) stats: Stats,
    pub(crate) challenge: Option<ChallengeLimit>,
    /// Time since which the peer's window is closed; unset while it is open.
    closed_since: MaybeInstant,
    /// Sequence number of a reset to send.
    pub(crate) reset: Option<SeqNumber>,
    recorder: Recorder,
}

base::prefetch!(ColdState:);

impl Counters {
    /// Returns the cold state for modification. Allocates it if necessary.
    pub(crate) fn alloc_cold(&mut self) -> &mut ColdState {
        self.cold.get_or_insert_default()
    }

    /// Returns the cold counters for modification. Allocates them if necessary.
    pub(crate) fn cold_stats(&mut self) -> &mut Stats {
        &mut self.alloc_cold().stats
    }

    /// Adds `n` to a cold counter. Allocates the cold counters only if `n` > 0.
    pub(crate) fn add(&mut self, n: u64, counter: impl FnOnce(&mut Stats) -> &mut u64) {
        if n > 0 {
            *counter(self.cold_stats()) += n;
        }
    }

    /// Returns the cold state, if allocated.
    pub(crate) fn cold(&self) -> Option<&ColdState> {
        self.cold.as_deref()
    }

    /// Returns the cold state for modification, if allocated.
    fn cold_mut(&mut self) -> Option<&mut ColdState> {
        self.cold.as_deref_mut()
    }

    /// Adds a record to the flight recorder if `wanted`.
    pub(crate) fn record(&mut self, wanted: bool, record: Record) {
        if wanted {
            self.alloc_cold().recorder.add(record);
        }
    }

    /// Returns the records, oldest first, and the number of older records that were dropped.
    pub(crate) fn records(&self) -> (Vec<Record>, u64) {
        self.cold().map(|rare| rare.recorder.records()).unwrap_or_default()
    }

    /// Frees old records of the flight recorder: see [`Recorder::shrink`].
    pub(crate) fn shrink(&mut self, now: Instant) {
        if let Some(rare) = self.cold_mut() {
            rare.recorder.shrink(now);
        }
    }

    /// Returns the time since which the peer's window is closed; `None` while the window is open.
    pub(crate) fn closed_since(&self) -> Option<Instant> {
        self.cold()?.closed_since.get()
    }

    /// Records that the peer's window is closed. Returns true if it was open before.
    pub(crate) fn on_window_closed(&mut self, now: Instant) -> bool {
        let since = &mut self.alloc_cold().closed_since;
        let news = since.get().is_none();
        if news {
            *since = Some(now).into();
        }
        news
    }

    /// Records that the peer's window is open. Returns true if it was closed before.
    #[inline]
    pub(crate) fn on_window_opened(&mut self) -> bool {
        let Some(rare) = self.cold_mut() else { return false };
        core::mem::take(&mut rare.closed_since).get().is_some()
    }

    /// Returns the number of congestion window reductions for any reason.
    pub(crate) fn window_reductions(&self) -> u64 {
        let reductions = |s: &Stats| s.loss.reductions() + s.ecn_reductions;
        self.cold().map_or(0, |rare| reductions(&rare.stats))
    }

    /// Returns all counters except those that follow from sequence numbers.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            segments_in: self.segments_in,
            segments_out: self.segments_out,
            acks_out: self.acks_out,
            ..self.cold().map(|rare| rare.stats).unwrap_or_default()
        }
    }
}

/// Snapshot of a connection's state, for monitoring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// State (RFC 9293 §3.3.2).
    pub state: State,
    /// Effective MSS: maximum payload bytes of a segment.
    pub emss: usize,
    /// Smoothed round-trip time (RFC 6298 §2); `None` before the first measurement.
    pub srtt: Option<Duration>,
    /// Variation of the round-trip time (RFC 6298 §2); zero before the first measurement.
    pub rttvar: Duration,
    /// Minimum round-trip time of the last 1 to 2 minutes; `None` before the first measurement.
    pub min_rtt: Option<Duration>,
    /// Retransmission time-out with its current backoff.
    pub rto: Duration,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// Pacing rate, bytes per second; `None` if not paced.
    pub pacing_rate: Option<u64>,
    /// SND.WND: window that the peer offers beyond SND.UNA, bytes.
    pub send_window: u64,
    /// Unacknowledged bytes: SND.NXT - SND.UNA.
    pub flight: u64,
    /// Estimated bytes in the network, retransmissions included (RFC 6675 §4, pipe).
    pub in_flight: u64,
    /// Advertised receive window beyond RCV.NXT, bytes.
    pub receive_window: u64,
    /// Number of out-of-order ranges stored.
    pub ranges: usize,
    /// True if both sides use SACK.
    pub sack: bool,
    /// True if both sides use timestamps.
    pub timestamps: bool,
    /// True if data is sent as ECN-capable.
    pub ecn: bool,
    /// Window scale shift of the peer's window; `None` without window scaling.
    pub send_window_shift: Option<u8>,
    /// Window scale shift of our window; 0 without window scaling.
    pub receive_window_shift: u8,
}
