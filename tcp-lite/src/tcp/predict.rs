//! Fast path of received segments (header prediction). It takes the next segment in order, with nothing
//! missing, in two cases. Either the peer only sends and nothing is in flight to it: most segments of a busy
//! data sink. Or the segment acknowledges the single one in flight: requests and replies. The comparisons
//! here imply that every check of RFC 9293 §3.10.7.4 and of RFC 7323 §5 passes, and only the state that such
//! a segment changes is updated. All other segments take the slow path, `input`.

use base::Instant;

use super::connection::Connection;
use super::drop_reason::DropReason;
use super::receiver::Text;
use super::segment::{Flags, Segment};
use super::timers::{LossTimer, Timer};
use crate::seam::{SegmentSource, SpanSink};

impl Connection {
    /// True if [`input_next`](Self::input_next) is equivalent to the slow path for this segment. Requires
    /// state ESTABLISHED.
    #[inline]
    pub(super) fn is_next(&self, now: Instant, seg: &Segment<'_>) -> bool {
        let stamps = seg.options.timestamps;
        let window = u64::from(seg.window) << self.send.window_shift;
        seg.flags.with(Flags::PSH) == Flags::ACK.with(Flags::PSH)
            && seg.seq == self.recv.nxt.wire()
            && self.recv.is_plain(seg.payload.len())
            && !seg.ce
            && !self.ecn.concerns(seg)
            && seg.options.sack.is_empty()
            && (seg.ack == self.send.una.wire() && self.send.is_quiet(window)
                || seg.ack == self.send.nxt.wire() && self.is_answered(window))
            && (!self.timestamps || stamps.is_some_and(|stamps| !self.recv.is_old(stamps, now)))
    }

    /// True if an acknowledgement of everything in flight, with this window, has no other effect. One segment
    /// is in flight, without FIN, and no other state depends on it. Neither this nor `answered` is inlined,
    /// because the case of a peer that only sends does not need them.
    #[inline(never)]
    fn is_answered(&self, window: u64) -> bool {
        !self.ecn.measures() && self.path.pending().is_none() && self.send.is_lone(window)
    }

    /// Processes the acknowledgement of a segment for which [`is_answered`](Self::is_answered) is true.
    #[inline(never)]
    fn answered(&mut self, now: Instant, seg: &Segment<'_>, up: &mut impl SegmentSource) {
        let window = u64::from(seg.window) << self.send.window_shift;
        self.send.on_ack_of_lone(now, self.recv.nxt, window, &self.config);
        self.timers.stop(Timer::Retransmit);
        self.send.loss_timer = LossTimer::Rto;
        self.note_open_window(now, seg);
        up.acknowledged(self.send.acknowledged_offset());
    }

    /// Processes a segment for which [`is_next`](Self::is_next) is true.
    ///
    /// # Errors
    /// The upper layer took none of the text.
    #[inline]
    pub(super) fn input_next<U: SpanSink + SegmentSource>(
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
            self.send.window.note(start, self.send.una);
        } else {
            self.answered(now, seg, up);
        }
        let text = self.recv.next_text(now, seg.payload, &self.config, &mut self.stats, up);
        if self.recv.is_half_used() {
            self.widen(now, up);
        }
        self.recv.ack_now |= self.config.acks.pushed && seg.flags.has(Flags::PSH);
        self.arm_delayed_ack(now);
        match text {
            Text::Taken => Ok(()),
            Text::Refused => Err(DropReason::Refused),
        }
    }
}
