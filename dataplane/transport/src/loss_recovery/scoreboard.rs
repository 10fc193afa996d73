//! The interface of loss recovery to the segments in flight.

use base::Instant;

use crate::rack::LossCriterion;
use crate::seq::ExtSeq;

/// What a search for losses found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detected {
    /// Segments or chunks that are lost and were not before.
    pub segments: u64,
    /// Of these, such that are a sign of congestion: all but probes of the path MTU.
    pub congestion: u64,
    /// When to look again (RFC 8985 §6.2: the reordering timer).
    pub again_at: Option<Instant>,
}

/// What is in flight, in the order of its numbers. Amounts are bytes.
pub trait Scoreboard {
    /// Whether the first retransmission of a recovery is sent even if the congestion window is full (RFC 9260
    /// §7.2.4 (3)). With RFC 6937 the window has room for it.
    const FIRST_RESEND_IGNORES_CWND: bool;

    /// Nothing is in flight.
    fn is_empty(&self) -> bool;
    /// SND.UNA, or the TSN after the cumulative one.
    fn una(&self) -> ExtSeq;
    /// SND.NXT, or the next TSN.
    fn nxt(&self) -> ExtSeq;
    /// All that is sent and not acknowledged.
    fn flight(&self) -> u64;
    /// What is thought to be in the network (RFC 6675 §4).
    fn pipe(&self) -> u64;
    /// The flight from which a loss reduces the window.
    fn flight_at_loss(&self) -> u64 {
        self.flight()
    }
    /// RACK.segs_sacked (RFC 8985 §5.2).
    fn segs_sacked(&self) -> u64;
    /// A retransmission may be in the network.
    fn resent_in_flight(&self) -> bool;
    /// The oldest was reported as received and is not acknowledged: at a time-out, the peer has reneged.
    fn head_sacked(&self) -> bool;
    /// RACK_detect_loss of RFC 8985 §6.2; `lost` gets the length of each segment that is lost, and when it was sent.
    fn detect_losses(
        &mut self,
        criterion: LossCriterion,
        lost: impl FnMut(u64, Instant),
    ) -> Detected;
    /// What is lost at a time-out (RFC 8985 §6.3).
    fn mark_lost_on_timeout(&mut self, criterion: LossCriterion);
    /// What was thought lost was not.
    fn forget_losses(&mut self);
    /// Nothing of what was reported counts any more.
    fn forget_sacks(&mut self);
}
