//! Posted receives (RFC 5041 §5.1.2): memory for the messages to the first untagged queue, one receive for each MSN.
//!
//! ```text
//!   MSN ->   delivered | next ..................... next + receives - 1 | not yet possible
//!                        placed at arrival, each into its own receive
//! ```
//!
//! A receive is consumed when its message is delivered. Its message occupies no pooled buffer of the worker.
//!
//! Streams that share a [`ReceiveSource`] have no receives in advance. Each message takes one receive when its first
//! segment arrives, in order or not. Receives are used in the order of these arrivals, not of MSNs.

use core::fmt;
use std::sync::Arc;

use wire::ddp::{UNTAGGED_HEADER_LEN, UntaggedRepr};

use super::queue::{INLINE_LEN, Queue, check_mo, no_buffer};
use super::{Env, FirstQueueBuffers, Receiver, Segment, Unfinished};
use crate::checks::{FilledReceive, ReceiveUse, Reject, UlpChecks};
use crate::error::PostError;
use crate::llp::{OrderKey, Ulpdu};
use crate::memory::RegionMemory;
use crate::message::Event;
use crate::spans::SpanList;
use crate::stag::StagTable;

/// A receive for one untagged message.
#[derive(Clone, Debug)]
pub struct Receive<M> {
    /// Value of the caller, returned in the event that ends the receive.
    pub cookie: u64,
    /// Memory for the message. Its length is the maximum length of the message.
    pub spans: SpanList<M>,
}

/// A source of receives that several streams share.
pub trait ReceiveSource<M>: fmt::Debug + Send + Sync {
    /// Takes the next receive, whose spans are within their regions; `None` if there is none. `stags`: the worker's
    /// STags, in which the source finds the memory of the receive.
    fn take(&self, stags: &StagTable<M>) -> Option<Receive<M>>;
}

impl<M> Receive<M> {
    /// Returns the maximum length of the message, bytes.
    fn len(&self) -> u32 {
        self.spans.len()
    }
}

impl<M: RegionMemory, E: Copy> Receiver<M, E> {
    /// Posts a receive, after those already posted.
    pub(crate) fn post_receive(&mut self, receive: Receive<M>) -> Result<(), PostError> {
        let is_posted = self.buffers == FirstQueueBuffers::Posted;
        let queue = self.queues.first_mut().filter(|_| is_posted);
        let queue = queue.ok_or(PostError::OtherReceiveMode)?;
        receive.spans.check_bounds()?;
        queue.post_receive()?;
        self.unfinished.receives.push_back(Some(receive));
        Ok(())
    }

    /// Sets the source of receives. Messages that arrive before this call are refused, and the peer sends them again.
    pub(crate) fn set_receive_source(
        &mut self,
        source: Arc<dyn ReceiveSource<M>>,
    ) -> Result<(), PostError> {
        if self.buffers != FirstQueueBuffers::Shared {
            return Err(PostError::OtherReceiveMode);
        }
        self.unfinished.source = Some(source);
        Ok(())
    }

    /// Takes a receive from the shared source for the message whose MSN is `distance` after the next MSN to be
    /// delivered, unless that message already has a receive.
    fn take_receive(
        &mut self,
        distance: usize,
        in_order: bool,
        stags: &StagTable<M>,
    ) -> Result<(), Reject<E>> {
        let Unfinished { receives, source, .. } = &mut *self.unfinished;
        if receives.get(distance).is_some_and(Option::is_some) {
            return Ok(());
        }
        let Some(source) = source else { return Err(Reject::Refused) };
        let Some(receive) = source.take(stags) else {
            // As with an empty queue of posted receives, a receive may be available by the time the segment is in
            // order. A segment beyond a gap is therefore refused, and the peer sends it again.
            return Err(if in_order { no_buffer() } else { Reject::Refused });
        };
        // The queue's maximum bounds `distance`.
        while receives.len() <= distance {
            receives.push_back(None);
        }
        receives[distance] = Some(receive);
        Ok(())
    }

    /// Removes all receives, including those of incomplete messages, and releases their memory. Returns their cookies
    /// in the order of posting. No receive can be posted afterwards.
    pub(crate) fn take_receives(&mut self) -> Vec<u64> {
        if self.buffers == FirstQueueBuffers::Pooled {
            return Vec::new();
        }
        self.queues.iter_mut().take(1).for_each(Queue::shut);
        let Some(unfinished) = self.unfinished.get_mut() else { return Vec::new() };
        unfinished.source = None;
        unfinished.receives.take().into_iter().flatten().map(|receive| receive.cookie).collect()
    }

    /// Empties all posted receives that use a region: no byte is placed in the region from now on. The maximum length
    /// of their messages becomes 0.
    pub(crate) fn revoke_receives(&mut self, memory: &M) {
        let Some(unfinished) = self.unfinished.get_mut() else { return };
        for receive in unfinished.receives.iter_mut().flatten() {
            if receive.spans.uses_memory(memory) {
                receive.spans = SpanList::default();
            }
        }
    }

    /// Returns true if a posted receive uses this region.
    pub(crate) fn uses_memory(&self, memory: &M) -> bool {
        self.unfinished.receives.iter().flatten().any(|receive| receive.spans.uses_memory(memory))
    }

    /// Validates and places one segment of the queue with posted receives. Delivers the message if the segment is in
    /// order and completes it.
    pub(super) fn accept_into_receive<C: UlpChecks<Code = E>>(
        &mut self,
        key: OrderKey,
        in_order: bool,
        segment: &Segment,
        header: &UntaggedRepr,
        ulpdu: Ulpdu<'_>,
        env: &mut Env<'_, M, C>,
    ) -> Result<(), Reject<E>> {
        let len = segment.len;
        let usage = env.checks.receive_use(header, len);
        let queue = &self.queues[usize::from(segment.queue)];
        let distance = queue.check_receive(header.msn, in_order, usage)? as usize;
        let is_shared = self.buffers == FirstQueueBuffers::Shared;
        if is_shared && matches!(usage, ReceiveUse::Placed | ReceiveUse::Inline) {
            self.take_receive(distance, in_order, env.stags)?;
        }
        let size = match usage {
            ReceiveUse::Placed => self.receive(distance).map_or(0, Receive::len),
            // The ULP checks the length of the message.
            ReceiveUse::Inline => u32::MAX,
            ReceiveUse::Ready | ReceiveUse::Undecided => 0,
        };
        check_mo(header.mo.0, len, size)?;
        let queue = &mut self.queues[usize::from(segment.queue)];
        if in_order && queue.would_complete(header) {
            env.checks.admit(&segment.header, len)?;
            self.version = Some(segment.header.version());
            self.place_receive(usage, distance, header, ulpdu);
            let data = match usage {
                ReceiveUse::Inline => inline_bytes(ulpdu),
                _ => Vec::new(),
            };
            self.count_placed(len, true, env.counters);
            let message = CompleteMessage { usage, data, mixed: false };
            self.deliver_receive(segment, header, ulpdu.first_byte(), message, env);
            return Ok(());
        }
        queue.begin_receive(key, header, in_order, usage)?;
        env.checks.admit(&segment.header, len)?;
        let complete = in_order && self.advance_or_grow(segment, env)?;
        self.place_receive(usage, distance, header, ulpdu);
        if usage == ReceiveUse::Inline {
            let pieces = ulpdu.pieces_from(UNTAGGED_HEADER_LEN);
            self.queues[usize::from(segment.queue)].place_inline(header, pieces);
        }
        self.count_placed(len, in_order, env.counters);
        if complete {
            self.deliver_assembled(segment, header, ulpdu.first_byte(), env);
        }
        Ok(())
    }

    /// Returns the receive of the message whose MSN is `distance` after the next MSN to be delivered.
    fn receive(&self, distance: usize) -> Option<&Receive<M>> {
        self.unfinished.receives.get(distance)?.as_ref()
    }

    /// Copies the payload into the memory of the receive that [`receive`](Self::receive) returns for `distance`.
    fn place_receive(
        &self,
        usage: ReceiveUse,
        distance: usize,
        header: &UntaggedRepr,
        ulpdu: Ulpdu<'_>,
    ) {
        let receive = self.receive(distance);
        let Some(receive) = receive.filter(|_| usage == ReceiveUse::Placed) else { return };
        let at = u64::from(header.mo.0);
        match ulpdu.front_piece().filter(|front| front.len() == ulpdu.len()) {
            Some(whole) => receive.spans.write(at, &whole[UNTAGGED_HEADER_LEN..]),
            None => {
                let len = ulpdu.len() - UNTAGGED_HEADER_LEN;
                receive.spans.write_pieces(at, len, ulpdu.pieces_from(UNTAGGED_HEADER_LEN));
            }
        }
    }

    /// Delivers the reassembled message at the front of the queue with posted receives.
    pub(super) fn deliver_assembled_receive<C: UlpChecks<Code = E>>(
        &mut self,
        segment: &Segment,
        header: &UntaggedRepr,
        control: u8,
        env: &mut Env<'_, M, C>,
    ) {
        let usage = env.checks.receive_use(header, segment.len);
        let queue = &mut self.queues[usize::from(segment.queue)];
        let account = self.unfinished.account_of(self.peer);
        let (data, mixed) = queue.finish_receive(env.buffers, account);
        let message = CompleteMessage { usage, data, mixed };
        self.deliver_receive(segment, header, control, message, env);
    }

    /// Delivers a message, and consumes its receive.
    fn deliver_receive<C: UlpChecks<Code = E>>(
        &mut self,
        segment: &Segment,
        header: &UntaggedRepr,
        control: u8,
        message: CompleteMessage,
        env: &mut Env<'_, M, C>,
    ) {
        let queue = &mut self.queues[usize::from(segment.queue)];
        // RFC 5041 §4.1: the last segment has the highest MO.
        let len = header.mo.0 + segment.len;
        let receive = if message.usage == ReceiveUse::Ready {
            queue.skip_message();
            None
        } else {
            match self.buffers == FirstQueueBuffers::Shared {
                true => queue.skip_message(),
                false => queue.consume_buffer(),
            }
            let unfinished = self.unfinished.get_mut();
            let receive = unfinished.and_then(|unfinished| unfinished.receives.pop_front());
            // No receive is left after `take_receives`, which has flushed the receive of this message.
            let Some(receive) = receive.flatten() else { return };
            Some(FilledReceive { cookie: receive.cookie, len, mixed: message.mixed })
        };
        env.checks.on_delivered(header, control, segment.len, receive);
        let &UntaggedRepr { rsvd_ulp, qn, msn, .. } = header;
        env.counters.untagged_delivered += 1;
        env.counters.delivered_bytes += u64::from(len);
        env.events.push_back(Event::UntaggedDelivered { qn, msn, data: message.data, rsvd_ulp });
    }
}

/// A complete message for a posted receive.
struct CompleteMessage {
    usage: ReceiveUse,
    /// Bytes of Immediate Data, which is not placed.
    data: Vec<u8>,
    /// True if some of its segments are placed and others are not.
    mixed: bool,
}

/// Returns the first bytes of the payload, at most [`INLINE_LEN`].
fn inline_bytes(ulpdu: Ulpdu<'_>) -> Vec<u8> {
    let pieces = ulpdu.pieces_from(UNTAGGED_HEADER_LEN);
    pieces.flatten().copied().take(INLINE_LEN).collect()
}
