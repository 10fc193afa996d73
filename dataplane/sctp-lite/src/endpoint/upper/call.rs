//! Implements SCTP's message source and sink on top of an association's sessions.

use super::Upper;
use crate::endpoint::Context;
use crate::endpoint::slot::SessionSlot;
use crate::seam::{
    MessageOutcome, MessageRef, MessageSink, MessageSource, ReceivedMessage, WrittenMessage,
};
use crate::session::ArrivalResult;
use base::Instant;
use ddp::RegionMemory;
use ddp::llp::KeepLimit;
use std::cell::Cell;

/// View of [`Upper`] for one call into SCTP.
pub(in crate::endpoint) struct UpperCall<'a, 'c, M: RegionMemory> {
    upper: &'a mut Upper<M>,
    /// Context for received messages. Without it all messages are refused.
    cx: Option<&'a mut Context<'c, M>>,
    /// Limit on copies of unacknowledged messages: see [`TxBatch::keep_limit`](crate::seam::TxBatch::keep_limit).
    pub(in crate::endpoint) keep_limit: KeepLimit,
    /// True if the CRC32c of a message is computed while the message is copied into the packet: see
    /// [`TxBatch::needs_checksum`](crate::seam::TxBatch::needs_checksum).
    computes_crc: bool,
    /// Cached result of `has_data`, which SCTP calls several times per packet.
    has_data: Cell<Option<bool>>,
}

impl<'a, 'c, M: RegionMemory> UpperCall<'a, 'c, M> {
    /// Creates the view for a call that delivers the messages of a packet.
    pub(in crate::endpoint) fn for_receive(
        upper: &'a mut Upper<M>,
        cx: &'a mut Context<'c, M>,
    ) -> Self {
        let has_data = Cell::new(None);
        upper.dirty.fast_path_slot = None;
        UpperCall { upper, cx: Some(cx), keep_limit: KeepLimit::NONE, computes_crc: true, has_data }
    }

    /// Creates the view for a call that writes packets.
    pub(in crate::endpoint) fn for_transmit(upper: &'a mut Upper<M>, keep_limit: u64) -> Self {
        let (keep, has_data) = (KeepLimit::new(keep_limit), Cell::new(None));
        UpperCall { upper, cx: None, keep_limit: keep, computes_crc: true, has_data }
    }

    /// Sets whether the CRC32c of messages is computed during the copy.
    pub(in crate::endpoint) fn with_crc(self, digests: bool) -> Self {
        UpperCall { computes_crc: digests, ..self }
    }
}

impl<M: RegionMemory> MessageSink for UpperCall<'_, '_, M> {
    fn deliver(&mut self, now: Instant, message: ReceivedMessage<'_>) -> MessageOutcome {
        self.has_data.set(None);
        let Some(cx) = self.cx.as_deref_mut() else { return MessageOutcome::Refused };
        if message.stream >= self.upper.pairs {
            self.upper.stats.unpaired_messages += 1;
            return MessageOutcome::Accepted;
        }
        if let Some(taken) = self.upper.accept_segment(&message, cx) {
            return taken;
        }
        match self.upper.receive_message(now, &message, cx) {
            None => self.upper.receive_first_message(now, &message),
            Some(ArrivalResult::Superseded) => {
                self.upper.drop_slot(message.stream);
                self.upper.receive_first_message(now, &message)
            }
            Some(ArrivalResult::Refused) => MessageOutcome::Refused,
            Some(ArrivalResult::Illegal(_)) => {
                self.upper.stats.illegal += 1;
                MessageOutcome::Accepted
            }
            Some(ArrivalResult::Accepted(_) | ArrivalResult::AfterClose) => {
                MessageOutcome::Accepted
            }
        }
    }

    fn on_restart(&mut self, now: Instant, streams: u16) {
        self.has_data.set(None);
        if let Some(cx) = self.cx.as_deref_mut() {
            self.upper.on_restarted(now, streams, cx);
        }
    }

    fn hold(&mut self, bytes: usize, in_order: bool) -> bool {
        let Some(cx) = self.cx.as_deref_mut() else { return false };
        let reserved = cx.hold.reserve(self.upper.peer, bytes as u64, in_order);
        self.upper.held_bytes += if reserved { bytes as u64 } else { 0 };
        reserved
    }

    fn max_hold(&self) -> u64 {
        self.cx.as_deref().map_or(0, |cx| cx.hold.guaranteed_bytes())
    }

    fn release(&mut self, bytes: usize) {
        if let Some(cx) = self.cx.as_deref_mut() {
            self.upper.held_bytes -= bytes as u64;
            cx.hold.release(self.upper.peer, bytes as u64);
        }
    }

    fn grow_window(&mut self, grown: u64, increase: u64) -> bool {
        let Some(cx) = self.cx.as_deref_mut() else { return false };
        if self.upper.window_closers > 0 {
            return false;
        }
        let granted = cx.hold.windows_mut().widen(grown, increase);
        self.upper.window_growth += if granted { increase } else { 0 };
        granted
    }

    fn free_space(&self) -> u32 {
        // Without `cx`, in transmission: the window to advertise. It is zero for all sessions of the association while
        // one of them is paused (RFC 9260 §6.2). With `cx`, in reception: unlimited, because each message is placed or
        // refused on arrival, also while the advertised window is zero.
        match self.cx {
            None if self.upper.window_closers > 0 => 0,
            _ => u32::MAX,
        }
    }
}

impl<M: RegionMemory> MessageSource for UpperCall<'_, '_, M> {
    fn has_data(&self) -> bool {
        let has_data = |stream: &u16| {
            let slot = self.upper.slots.get(usize::from(*stream));
            slot.and_then(Option::as_deref).is_some_and(SessionSlot::has_data)
        };
        let known = self.has_data.get();
        let known = known.unwrap_or_else(|| self.upper.ready.iter().any(has_data));
        self.has_data.set(Some(known));
        known
    }

    fn next(&mut self, max_len: usize, out: &mut [u8]) -> Option<WrittenMessage> {
        self.has_data.set(None);
        self.upper.max_message = max_len;
        let mulpdu = self.upper.mulpdu();
        for _ in 0..self.upper.ready.len() {
            let must_wait = !self.keep_limit.allows(self.upper.kept.used);
            let Upper { slots, ready, kept, .. } = &mut *self.upper;
            let stream = ready.pop_front()?;
            let slot = slots.get_mut(usize::from(stream)).and_then(Option::as_deref_mut);
            let Some(slot) = slot else { continue };
            if must_wait && slot.next_is_kept() {
                self.keep_limit.refuse();
                ready.push_back(stream);
                continue;
            }
            slot.limit_kept(self.keep_limit.bytes(), *kept);
            let awaits = slot.is_close_waiting();
            let source = slot.accepted.as_mut().map(|full| &mut full.stream);
            slot.session.set_crc(self.computes_crc);
            let written = slot.session.next(source, awaits, mulpdu, out);
            slot.count_kept(kept);
            // A message without the I bit is not the last: the session has more data. The I bit is normally set on the
            // last message only, so `has_data` is called for messages with the I bit.
            slot.ready = written.is_some_and(|w| !w.immediate) || slot.has_data();
            if let Some(mut written) = written {
                // The next length is not predicted if another session may be next, no further message may be kept, or
                // the kept memory exceeds its limit.
                let limit = self.keep_limit.bytes();
                if !ready.is_empty() || !self.keep_limit.allows(kept.used) || kept.memory > limit {
                    written.next_len = None;
                }
                if slot.ready {
                    ready.push_back(stream);
                    self.has_data.set(Some(true));
                }
                return Some(written);
            }
            if !slot.ready {
                continue;
            }
            if out.len() < max_len {
                // The message does not fit the rest of this packet, and begins the next packet (RFC 5043 §11.2).
                ready.push_front(stream);
                return None;
            }
            ready.push_back(stream);
        }
        None
    }

    fn rewrite(&mut self, message: MessageRef, out: &mut [u8]) {
        let Some(slot) = self.upper.slot_at(message.stream) else { return };
        let source = slot.accepted.as_ref().map(|full| &full.stream);
        slot.session.rewrite(source, message, out);
    }

    fn on_acknowledged(&mut self, message: MessageRef) {
        self.has_data.set(None);
        self.upper.on_acknowledged(message);
    }

    fn on_max_len_changed(&mut self, max_len: usize) {
        self.upper.max_message = max_len;
    }
}
