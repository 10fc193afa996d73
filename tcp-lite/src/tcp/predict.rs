//! The short way of a received segment: the next one in order of a peer that only sends, with nothing missing and nothing in
//! flight the other way. Most segments that a busy data sink receives are such. Each check of RFC 9293 §3.10.7.4 and of RFC
//! 7323 §5 passes then, by what is compared here, and only what such a segment changes is done. What differs in
//! anything takes the long way, `input`.

use base::Instant;

use super::connection::Connection;
use super::drop_reason::DropReason;
use super::receiver::Text;
use super::segment::{Flags, Segment};
use crate::seam::SpanSink;

impl Connection {
    /// True when [`input_next`](Self::input_next) does with a segment what the long way would do. The state is
    /// ESTABLISHED.
    #[inline]
    pub(super) fn is_next(&self, now: Instant, seg: &Segment<'_>) -> bool {
        let stamps = seg.options.timestamps;
        let window = u64::from(seg.window) << self.send.window_shift;
        seg.flags.with(Flags::PSH) == Flags::ACK.with(Flags::PSH)
            && seg.seq == self.recv.nxt.wire()
            && seg.ack == self.send.una.wire()
            && self.recv.is_plain(seg.payload.len())
            && !seg.ce
            && !self.ecn.concerns(seg)
            && seg.options.sack.is_empty()
            && self.send.is_quiet(window)
            && (!self.timestamps || stamps.is_some_and(|stamps| !self.recv.is_old(stamps, now)))
    }

    /// Takes a segment for which [`is_next`](Self::is_next).
    ///
    /// # Errors
    /// The upper layer took nothing of it.
    #[inline]
    pub(super) fn input_next(
        &mut self,
        now: Instant,
        seg: &Segment<'_>,
        up: &mut impl SpanSink,
    ) -> Result<(), DropReason> {
        let start = self.recv.nxt;
        if let Some(stamps) = seg.options.timestamps.filter(|_| self.timestamps) {
            self.recv.record_timestamp(start, stamps, now);
        }
        self.send.window.note(start, self.send.una);
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
