//! Loss recovery's interface to the segments in flight.

use base::Instant;

use crate::rack::LossCriterion;
use crate::seq::ExtSeq;

/// Result of a search for losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DetectedLosses {
    /// Segments or chunks newly found lost.
    pub segments: u64,
    /// Lost segments that signal congestion: all except probes of the path MTU.
    pub congestion_segments: u64,
    /// Time of the next search (RFC 8985 §6.2: the reordering timer).
    pub next_search_at: Option<Instant>,
}

/// The segments in flight, in sequence order. Amounts are bytes.
pub trait Scoreboard {
    /// True if the first retransmission of a recovery is sent even if the congestion window is full, as SCTP requires
    /// (RFC 9260 §7.2.4 (3)). False for TCP: proportional rate reduction (RFC 6937) leaves room for one segment.
    const FIRST_RESEND_IGNORES_CWND: bool;

    /// Returns true if nothing is in flight.
    fn is_empty(&self) -> bool;
    /// Returns SND.UNA, or the TSN after SCTP's Cumulative TSN Ack Point.
    fn una(&self) -> ExtSeq;
    /// Returns SND.NXT, or SCTP's next TSN.
    fn nxt(&self) -> ExtSeq;
    /// Returns the bytes sent and not acknowledged.
    fn flight(&self) -> u64;
    /// Returns the bytes estimated to be in the network (RFC 6675 §4).
    fn pipe(&self) -> u64;
    /// Returns FlightSize for the reduction after a loss, bytes. Excludes segments sent by Limited Transmit (RFC 5681
    /// §3.2 step 2).
    fn flight_at_loss(&self) -> u64 {
        self.flight()
    }
    /// Returns RACK.segs_sacked, the number of SACKed segments in flight (RFC 8985 §5.3).
    fn segs_sacked(&self) -> u64;
    /// Returns true if a retransmission may be in the network.
    fn resent_in_flight(&self) -> bool;
    /// Returns true if the oldest segment is SACKed but not acknowledged. At a time-out, this means that the peer has
    /// reneged.
    fn head_sacked(&self) -> bool;
    /// Marks newly lost segments: RACK_detect_loss of RFC 8985 §6.2. `lost` receives the length and transmission time
    /// of each segment found lost.
    fn detect_losses(
        &mut self,
        criterion: LossCriterion,
        lost: impl FnMut(u64, Instant),
    ) -> DetectedLosses;
    /// Marks the segments that are lost at a time-out (RFC 8985 §6.3).
    fn mark_lost_on_timeout(&mut self, criterion: LossCriterion);
    /// Clears all loss marks: the losses were spurious.
    fn clear_losses(&mut self);
    /// Discards all SACK reports.
    fn clear_sacks(&mut self);
}
