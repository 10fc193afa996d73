//! SCTP's view of the sessions of an association: the two traits of the seam.

use super::Upper;
use crate::endpoint::Context;
use crate::endpoint::slot::SessionSlot;
use crate::seam::{MessageRef, MessageSink, MessageSource, Received, Taken, Written};
use crate::session::Arrival;
use base::Instant;
use ddp::RegionMemory;
use ddp::llp::KeepLimit;
use std::cell::Cell;

/// [`Upper`] for the duration of one call into SCTP.
pub(in crate::endpoint) struct UpperCall<'a, 'c, M: RegionMemory> {
    upper: &'a mut Upper<M>,
    /// Context for received messages. Without it all messages are refused.
    cx: Option<&'a mut Context<'c, M>>,
    /// See [`TxBatch::keep_limit`](crate::seam::TxBatch::keep_limit).
    pub(in crate::endpoint) keep: KeepLimit,
    /// See [`TxBatch::wants_checksum`](crate::seam::TxBatch::wants_checksum).
    digests: bool,
    /// Cached result of `has_data`: SCTP calls it several times per packet.
    has_data: Cell<Option<bool>>,
}

impl<'a, 'c, M: RegionMemory> UpperCall<'a, 'c, M> {
    /// Creates the view for a call that delivers the messages of a packet.
    pub(in crate::endpoint) fn receiving(
        upper: &'a mut Upper<M>,
        cx: &'a mut Context<'c, M>,
    ) -> Self {
        let has_data = Cell::new(None);
        upper.touched.passed = None;
        UpperCall { upper, cx: Some(cx), keep: KeepLimit::NONE, digests: true, has_data }
    }

    /// Creates the view for a call that writes packets.
    pub(in crate::endpoint) fn sending(upper: &'a mut Upper<M>, keep_limit: u64) -> Self {
        let (keep, has_data) = (KeepLimit::new(keep_limit), Cell::new(None));
        UpperCall { upper, cx: None, keep, digests: true, has_data }
    }

    /// Sets whether the CRC32c of messages is to be computed.
    pub(in crate::endpoint) fn digesting(self, digests: bool) -> Self {
        UpperCall { digests, ..self }
    }
}

impl<M: RegionMemory> MessageSink for UpperCall<'_, '_, M> {
    fn message(&mut self, now: Instant, message: Received<'_>) -> Taken {
        self.has_data.set(None);
        let Some(cx) = self.cx.as_deref_mut() else { return Taken::No };
        if message.stream >= self.upper.pairs {
            self.upper.stats.unpaired += 1;
            return Taken::Yes;
        }
        if let Some(taken) = self.upper.take_segment(&message, cx) {
            return taken;
        }
        match self.upper.arrived(now, &message, cx) {
            None => self.upper.begins(now, &message),
            Some(Arrival::Superseded) => {
                self.upper.drop_slot(message.stream);
                self.upper.begins(now, &message)
            }
            Some(Arrival::Refused) => Taken::No,
            Some(Arrival::Illegal(_)) => {
                self.upper.stats.illegal += 1;
                Taken::Yes
            }
            Some(Arrival::Taken(_) | Arrival::Lost) => Taken::Yes,
        }
    }

    fn restarted(&mut self, now: Instant, streams: u16) {
        self.has_data.set(None);
        if let Some(cx) = self.cx.as_deref_mut() {
            self.upper.restarted(now, streams, cx);
        }
    }

    fn hold(&mut self, bytes: usize, in_order: bool) -> bool {
        let Some(cx) = self.cx.as_deref_mut() else { return false };
        let taken = cx.hold.reserve(self.upper.peer, bytes as u64, in_order);
        self.upper.held += if taken { bytes as u64 } else { 0 };
        taken
    }

    fn hold_most(&self) -> u64 {
        self.cx.as_deref().map_or(0, |cx| cx.hold.largest())
    }

    fn release(&mut self, bytes: usize) {
        if let Some(cx) = self.cx.as_deref_mut() {
            self.upper.held -= bytes as u64;
            cx.hold.release(self.upper.peer, bytes as u64);
        }
    }

    fn widen(&mut self, has: u64, more: u64) -> bool {
        let Some(cx) = self.cx.as_deref_mut() else { return false };
        if self.upper.closing_window > 0 {
            return false;
        }
        let granted = cx.hold.windows_mut().widen(has, more);
        self.upper.widened += if granted { more } else { 0 };
        granted
    }

    fn room(&self) -> u32 {
        // Everything is placed at arrival or refused. While a session is paused, the advertised window is
        // closed for all sessions of the association (RFC 9260 §6.2). Data in flight by then is accepted or
        // refused when it arrives.
        match self.cx {
            None if self.upper.closing_window > 0 => 0,
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

    fn next(&mut self, most: usize, out: &mut [u8]) -> Option<Written> {
        self.has_data.set(None);
        self.upper.most = most;
        let mulpdu = self.upper.mulpdu();
        for _ in 0..self.upper.ready.len() {
            let must_wait = !self.keep.allows(self.upper.kept.filled);
            let Upper { slots, ready, kept, .. } = &mut *self.upper;
            let stream = ready.pop_front()?;
            let slot = slots.get_mut(usize::from(stream)).and_then(Option::as_deref_mut);
            let Some(slot) = slot else { continue };
            if must_wait && slot.next_is_kept() {
                self.keep.refuse();
                ready.push_back(stream);
                continue;
            }
            slot.limit_kept(self.keep.bytes(), *kept);
            let awaits = slot.awaits();
            let source = slot.full.as_mut().map(|full| &mut full.stream);
            slot.session.digest(self.digests);
            let written = slot.session.next(source, awaits, mulpdu, out);
            slot.count_kept(kept);
            // A message to be acknowledged at once is usually the last for now.
            slot.ready = written.is_some_and(|w| !w.immediate) || slot.has_data();
            if let Some(mut written) = written {
                // No prediction if another session's message is next, if no message may be kept, or if old
                // memory has to be freed.
                let limit = self.keep.bytes();
                if !ready.is_empty() || !self.keep.allows(kept.filled) || kept.memory > limit {
                    written.behind = None;
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
            if out.len() < most {
                // RFC 5043 §11.2: a message does not wait for others to share its packet; it gets the next
                // packet to itself.
                ready.push_front(stream);
                return None;
            }
            ready.push_back(stream);
        }
        None
    }

    fn again(&mut self, message: MessageRef, out: &mut [u8]) {
        let Some(slot) = self.upper.slot_at(message.stream) else { return };
        let source = slot.full.as_ref().map(|full| &full.stream);
        slot.session.again(source, message, out);
    }

    fn acknowledged(&mut self, message: MessageRef) {
        self.has_data.set(None);
        self.upper.acknowledged(message);
    }

    fn most_changed(&mut self, most: usize) {
        self.upper.most = most;
    }
}
