//! What a connection counts.

use core::time::Duration;

use base::{Instant, MaybeInstant};
use transport::limits::SenderLimits;
use transport::recorder::{Record, Recorder};
use transport::seq::SeqNumber;

use super::challenge::ChallengeLimit;
use super::state::State;

/// Counters of a connection; they only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Segments received that belong to the connection.
    pub segments_in: u64,
    /// Segments sent, retransmissions and acknowledgements included.
    pub segments_out: u64,
    /// Bytes of the stream sent for the first time.
    pub bytes_out: u64,
    /// Bytes cumulatively acknowledged by the peer.
    pub bytes_acknowledged: u64,
    /// Segments without data, SYN, FIN and RST, that only acknowledge.
    pub acks_out: u64,
    /// Times that pacing delayed a burst.
    pub paced_waits: u64,
    /// Probes of a closed window.
    pub window_probes: u64,
    /// Keepalive probes.
    pub keepalive_probes: u64,
    /// Challenge acknowledgements sent (RFC 5961).
    pub challenge_acks: u64,
    /// Times the congestion window was reduced because the peer echoed a mark (RFC 3168).
    pub ecn_reductions: u64,
    /// What was received.
    pub recv: ReceiverStats,
    /// Losses, and what was sent again.
    pub loss: LossStats,
    /// The path's MTU.
    pub path_mtu: PathMtuStats,
}

/// What was received of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiverStats {
    /// Bytes of the stream that the upper layer took, each once.
    pub bytes: u64,
    /// Of these, bytes taken beyond a gap.
    pub bytes_out_of_order: u64,
    /// Bytes received again after they had been taken.
    pub bytes_duplicate: u64,
    /// Bytes in the window that were not taken: by the upper layer or past the bound on ranges.
    pub bytes_refused: u64,
    /// Acknowledgements with D-SACK sent.
    pub d_sacks: u64,
    /// Data segments that the network marked instead of dropping them (RFC 3168).
    pub ecn_marks: u64,
    /// Most bytes ever kept track of beyond a gap.
    pub out_of_order_max: u64,
}

/// Losses, what was sent again, and what showed it to be needless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LossStats {
    /// Segments sent again.
    pub segments_retransmitted: u64,
    /// Bytes sent again.
    pub bytes_retransmitted: u64,
    /// Duplicate acknowledgements received (RFC 5681 §2).
    pub duplicate_acks_in: u64,
    /// Times loss recovery was entered without a time-out.
    pub fast_recoveries: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Segments found lost by time (RFC 8985 §6.2).
    pub segments_lost: u64,
    /// Tail loss probes sent (RFC 8985 §7.3).
    pub tail_loss_probes: u64,
    /// Losses of a last segment that a probe repaired (RFC 8985 §7.4.2).
    pub tail_losses_repaired: u64,
    /// Time-outs that F-RTO showed to be spurious (RFC 5682), undone.
    pub undone_by_frto: u64,
    /// Recoveries and time-outs that timestamps showed to be spurious (RFC 3522), undone.
    pub undone_by_timestamp: u64,
    /// The same by D-SACK (RFC 3708).
    pub undone_by_d_sack: u64,
    /// Acknowledgements with D-SACK received (RFC 2883).
    pub d_sacks_in: u64,
    /// Of these, such that report neither what was sent again in the present loss episode nor a tail loss
    /// probe, or report it twice: duplicates of the network, or forged.
    pub d_sacks_ignored: u64,
}

impl LossStats {
    /// Times the congestion window was reduced for a loss.
    fn reductions(&self) -> u64 {
        self.fast_recoveries + self.timeouts + self.tail_losses_repaired
    }
}

/// Changes of the path's MTU, and the search for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathMtuStats {
    /// Times the path MTU shrank.
    pub reductions: u64,
    /// Times it grew again.
    pub raises: u64,
    /// Probes of it (RFC 4821).
    pub probes: u64,
    /// Of them, lost ones.
    pub probes_lost: u64,
    /// Times that long segments vanished without a report (RFC 4821 §7.7).
    pub black_holes: u64,
}

/// A connection's counters as they are stored: those that every segment changes, and the others, allocated when one
/// is not 0. What follows from the sequence numbers is not counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) segments_in: u64,
    pub(crate) segments_out: u64,
    pub(crate) acks_out: u64,
    rare: Option<Box<Rare>>,
    pub(crate) limits: SenderLimits,
}

base::prefetch!(Counts: rare);

/// What is counted, and remembered, of what seldom happens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rare {
    pub(crate) stats: Stats,
    pub(crate) challenge: Option<ChallengeLimit>,
    /// When the peer closed its window, while it is closed.
    closed_since: MaybeInstant,
    /// A reset is to be sent, with this sequence number.
    pub(crate) reset: Option<SeqNumber>,
    recorder: Recorder,
}

base::prefetch!(Rare:);

impl Counts {
    /// What seldom happens, to be changed.
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The counters of it, to be changed.
    pub(crate) fn more(&mut self) -> &mut Stats {
        &mut self.rare().stats
    }

    /// Adds `n` to one of them.
    pub(crate) fn add(&mut self, n: u64, of: impl FnOnce(&mut Stats) -> &mut u64) {
        if n > 0 {
            *of(self.more()) += n;
        }
    }

    /// What seldom happens, if it has.
    pub(crate) fn seen(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// The same, to be changed.
    fn seen_mut(&mut self) -> Option<&mut Rare> {
        self.rare.as_deref_mut()
    }

    /// Records what happened, if that is `wanted`.
    pub(crate) fn record(&mut self, wanted: bool, record: Record) {
        if wanted {
            self.rare().recorder.add(record);
        }
    }

    /// What was recorded, the oldest first, and how many older records were left out.
    pub(crate) fn records(&self) -> (Vec<Record>, u64) {
        self.seen().map(|rare| rare.recorder.records()).unwrap_or_default()
    }

    /// Frees records that are old.
    pub(crate) fn shrink(&mut self, now: Instant) {
        if let Some(rare) = self.seen_mut() {
            rare.recorder.shrink(now);
        }
    }

    /// When the peer closed its window, while it is closed.
    pub(crate) fn closed_since(&self) -> Option<Instant> {
        self.seen()?.closed_since.get()
    }

    /// The peer's window is closed. Returns whether that is new.
    pub(crate) fn window_closed(&mut self, now: Instant) -> bool {
        let since = &mut self.rare().closed_since;
        let news = since.get().is_none();
        if news {
            *since = Some(now).into();
        }
        news
    }

    /// It is open. Returns whether that is new.
    #[inline]
    pub(crate) fn window_opened(&mut self) -> bool {
        let Some(rare) = self.seen_mut() else { return false };
        core::mem::take(&mut rare.closed_since).get().is_some()
    }

    /// Times the congestion window was reduced, for whatever reason.
    pub(crate) fn window_reductions(&self) -> u64 {
        let reductions = |s: &Stats| s.loss.reductions() + s.ecn_reductions;
        self.seen().map_or(0, |rare| reductions(&rare.stats))
    }

    /// All but what follows from the sequence numbers.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            segments_in: self.segments_in,
            segments_out: self.segments_out,
            acks_out: self.acks_out,
            ..self.seen().map(|rare| rare.stats).unwrap_or_default()
        }
    }
}

/// The present condition of a connection, for people and tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// State.
    pub state: State,
    /// Effective maximum segment size, bytes of payload.
    pub emss: usize,
    /// Smoothed round-trip time, once measured.
    pub srtt: Option<Duration>,
    /// Its variation (RFC 6298 §2); zero before the first measurement.
    pub rttvar: Duration,
    /// The shortest round trip of the last minutes, once measured.
    pub min_rtt: Option<Duration>,
    /// Retransmission time-out with its present backing off.
    pub rto: Duration,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; `u64::MAX` before the first loss.
    pub ssthresh: u64,
    /// Bytes per second at which bursts leave, while they are paced.
    pub pacing_rate: Option<u64>,
    /// Window the peer grants beyond what it acknowledged, bytes.
    pub send_window: u64,
    /// Bytes sent and not acknowledged.
    pub flight: u64,
    /// Of these, bytes that are thought to be in the network.
    pub in_flight: u64,
    /// Window last advertised to the peer, bytes.
    pub receive_window: u64,
    /// Ranges taken beyond a gap.
    pub ranges: usize,
    /// Both sides use SACK.
    pub sack: bool,
    /// Both sides use timestamps.
    pub timestamps: bool,
    /// Both sides use ECN.
    pub ecn: bool,
    /// Shift the peer applies to its window; `None` without window scaling.
    pub send_window_shift: Option<u8>,
    /// Shift we apply to ours.
    pub receive_window_shift: u8,
}
