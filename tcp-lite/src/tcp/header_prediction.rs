//! Fast path of received segments (header prediction).
//!
//! The fast path applies to the next data segment in order while no data is missing, in two cases:
//! - Nothing is in flight to the peer, as for most segments that a busy data sink receives.
//! - The segment acknowledges the only segment in flight, as in an exchange of requests and replies.
//!
//! The comparisons imply that every check of RFC 9293 §3.10.7.4 and RFC 7323 §5 passes. Only the state that such a
//! segment changes is updated. All other segments take the slow path in `input`.

use base::Instant;

use super::connection::Connection;
use super::drop_reason::DropReason;
use super::receiver::TextOutcome;
use super::segment::{Flags, Segment};
use super::timers::{LossTimer, Timer};
use crate::seam::{SegmentSource, SpanSink};

impl Connection {
    /// Returns true if [`input_fast_path`](Self::input_fast_path) is equivalent to the slow path for this segment.
    /// Requires state ESTABLISHED.
    #[inline]
    pub(super) fn is_predicted(&self, now: Instant, seg: &Segment<'_>) -> bool {
        let stamps = seg.options.timestamps;
        let window = u64::from(seg.window) << self.send.window_shift;
        seg.flags.with(Flags::PSH) == Flags::ACK.with(Flags::PSH)
            && seg.seq == self.recv.nxt.wire()
            && self.recv.is_in_order_text(seg.payload.len())
            && !seg.ce
            && !self.ecn.affects_echo(seg)
            && seg.options.sack.is_empty()
            && (seg.ack == self.send.una.wire() && self.send.is_noop_ack(window)
                || seg.ack == self.send.nxt.wire() && self.is_single_segment_ack(window))
            && (!self.timestamps
                || stamps.is_some_and(|stamps| !self.recv.is_old_timestamp(stamps, now)))
    }

    /// Returns true if an acknowledgement of everything in flight, with this window, affects only the data in flight:
    /// one segment without FIN is in flight, and no ECN or path MTU state depends on its acknowledgement. Not inlined,
    /// like `process_single_segment_ack`: a connection that only receives data calls neither.
    #[inline(never)]
    fn is_single_segment_ack(&self, window: u64) -> bool {
        !self.ecn.expects_exact_echo()
            && self.path.pending_report().is_none()
            && self.send.has_single_segment(window)
    }

    /// Processes the acknowledgement of a segment for which [`is_single_segment_ack`](Self::is_single_segment_ack) is
    /// true.
    #[inline(never)]
    fn process_single_segment_ack(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut impl SegmentSource,
    ) {
        let window = u64::from(seg.window) << self.send.window_shift;
        self.send.on_single_segment_ack(now, self.recv.nxt, window, &self.config);
        self.timers.stop(Timer::Retransmit);
        self.send.loss_timer = LossTimer::Rto;
        self.note_open_window(now, seg);
        up.on_acknowledged(self.send.acknowledged_offset());
    }

    /// Processes a segment for which [`is_predicted`](Self::is_predicted) is true.
    ///
    /// # Errors
    /// [`DropReason::Refused`] if the upper layer accepted none of the payload.
    #[inline]
    pub(super) fn input_fast_path<U: SpanSink + SegmentSource>(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut U,
    ) -> Result<(), DropReason> {
        let start = self.recv.nxt;
        if let Some(stamps) = seg.options.timestamps.filter(|_| self.timestamps) {
            self.recv.record_timestamp(start, stamps, now);
        }
        if seg.ack == self.send.una.wire() {
            self.send.window.update_wl(start, self.send.una);
        } else {
            self.process_single_segment_ack(now, seg, up);
        }
        let text = self.recv.hand_up_next_text(now, seg.payload, &mut self.stats, up);
        if self.recv.is_half_used() {
            self.grow_receive_window(now, up);
        }
        self.recv.ack_now |= self.config.acks.pushed && seg.flags.has(Flags::PSH);
        self.arm_delayed_ack(now);
        match text {
            TextOutcome::Taken => Ok(()),
            TextOutcome::Refused => Err(DropReason::Refused),
        }
    }
}
