//! The streams of one worker, found by slot, by id or by flow. Streams in TIME-WAIT are also queued by age. Each stream
//! has one slot. A stream over TCP also has one entry by flow; a session has none, because packets match its
//! association ([`associations`](super::associations)).

use base::Prefetch;
use ddp::StreamId;
use tcp_lite::endpoint::Endpoint;

use super::age_queue::AgeQueue;
use super::carrier::Carrier;
use super::conn::Conn;
use super::lower_layer::LowerLayer;
use crate::flow::{FlowHash, FlowKey, FlowTable, Slab};
use crate::memory::Memory;

pub(in crate::worker) struct Streams {
    slab: Slab<Box<Conn>>,
    /// Slots of the streams over TCP, by flow.
    flows: FlowTable,
    /// The flow that was hashed last, with its hash. Serves as a cache.
    last_hash: Option<(FlowKey, FlowHash)>,
    time_wait: AgeQueue,
}

impl Streams {
    /// Creates the table for at most `limit` streams. `key` seeds the hash of flows.
    pub(in crate::worker) fn new(worker: u16, limit: u32, key: [u8; 16]) -> Self {
        Streams {
            slab: Slab::new(worker, limit),
            flows: FlowTable::new(key),
            last_hash: None,
            time_wait: AgeQueue::default(),
        }
    }

    /// Returns the number of streams in all states, including TIME-WAIT.
    #[inline]
    pub(in crate::worker) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns the number of slots allocated so far, including vacant slots.
    #[inline]
    pub(in crate::worker) fn slot_count(&self) -> usize {
        self.slab.slots()
    }

    #[inline]
    pub(in crate::worker) fn get(&self, slot: u32) -> Option<&Conn> {
        self.slab.get(slot).map(|conn| &**conn)
    }

    /// Calls `hint` for the allocations of a stream that are `steps` pointers away from its slot; see [`Prefetch`].
    #[inline]
    pub(in crate::worker) fn prefetch_slot(
        &self,
        slot: u32,
        steps: u32,
        hint: &mut impl FnMut(*const u8, usize),
    ) {
        if let Some(conn) = self.slab.get(slot) {
            conn.prefetch(steps, hint);
        }
    }

    /// Returns the slot and the stream of the connection with this flow. `hash` is the flow's hash. Slot `candidate` is
    /// tried first and usually matches.
    #[inline]
    pub(in crate::worker) fn find_connection(
        &mut self,
        candidate: Option<u32>,
        hash: FlowHash,
        flow: &FlowKey,
    ) -> Option<(u32, &mut Conn)> {
        let slot = candidate.filter(|&slot| self.matches_flow(slot, flow));
        let slot = slot.or_else(|| self.find_flow(hash, flow))?;
        self.get_mut(slot).map(|conn| (slot, conn))
    }

    #[inline]
    pub(in crate::worker) fn get_mut(&mut self, slot: u32) -> Option<&mut Conn> {
        self.slab.get_mut(slot).map(|conn| &mut **conn)
    }

    /// Returns the TCP connection of the stream in a slot; `None` over SCTP or for a vacant slot.
    pub(in crate::worker) fn carrier_mut(
        &mut self,
        slot: u32,
    ) -> Option<&mut Carrier<Endpoint<Memory>>> {
        self.get_mut(slot)?.lower.connection()
    }

    /// Returns the slot of the stream with this id.
    pub(in crate::worker) fn find_stream(&self, stream: StreamId) -> Option<u32> {
        self.slab.find(stream)
    }

    #[cfg(test)]
    pub(in crate::worker) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.slab.occupied().filter_map(|slot| self.get(slot))
    }

    pub(in crate::worker) fn slots(&self) -> Vec<u32> {
        self.slab.occupied().collect()
    }

    /// Returns the slot and the id for the next stream; `None` if the table is full.
    pub(in crate::worker) fn vacancy(&self) -> Option<(u32, StreamId)> {
        self.slab.vacancy()
    }

    /// Inserts a stream at the slot that [`vacancy`](Self::vacancy) returned.
    pub(in crate::worker) fn insert(&mut self, slot: u32, conn: Conn) -> &mut Conn {
        if let LowerLayer::Tcp(carrier) = &conn.lower {
            self.flows.insert(&carrier.flow(), slot);
        }
        self.slab.insert(Box::new(conn))
    }

    /// Removes the stream in a slot, with its entry by flow.
    pub(in crate::worker) fn remove(&mut self, slot: u32) -> Option<Box<Conn>> {
        let conn = self.slab.remove(slot)?;
        if let LowerLayer::Tcp(carrier) = &conn.lower {
            self.flows.remove(&carrier.flow(), slot);
        }
        Some(conn)
    }

    /// Returns the table of slots by flow, for streams over TCP.
    #[inline]
    pub(in crate::worker) fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// Returns the hash of a flow. A repeated call with the same flow uses the cache.
    #[inline]
    pub(in crate::worker) fn hash(&mut self, flow: &FlowKey) -> FlowHash {
        match self.last_hash {
            Some((known, hash)) if known == *flow => hash,
            _ => {
                let hash = self.flows.hash(flow);
                self.last_hash = Some((*flow, hash));
                hash
            }
        }
    }

    #[inline]
    fn matches_flow(&self, slot: u32, flow: &FlowKey) -> bool {
        self.get(slot).is_some_and(|conn| conn.lower.has_flow(flow))
    }

    fn find_flow(&self, hash: FlowHash, flow: &FlowKey) -> Option<u32> {
        self.flows.find(hash, |slot| self.matches_flow(slot, flow))
    }

    /// Queues a stream that has entered TIME-WAIT, for eviction by age.
    pub(in crate::worker) fn add_time_wait(&mut self, stream: StreamId) {
        let slab = &self.slab;
        self.time_wait.add(stream, |id| slab.find(id).is_some());
    }

    /// Removes the oldest stream in TIME-WAIT from the eviction queue, and returns its slot.
    pub(in crate::worker) fn take_oldest_time_wait(&mut self) -> Option<u32> {
        let slab = &self.slab;
        self.time_wait.take_oldest(|id| slab.find(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_flow_hash_equals_computed_hash() {
        let flow = |remote: [u8; 4], port| FlowKey {
            interface: 0,
            local: ([10, 0, 0, 1], 4791).into(),
            remote: (remote, port).into(),
        };
        let flows = [flow([10, 0, 0, 2], 7), flow([10, 0, 0, 2], 8), flow([10, 0, 0, 3], 7)];
        let mut streams = Streams::new(0, 10, [7; 16]);
        for at in [0, 0, 1, 1, 0, 2, 1, 2, 2] {
            let expected = streams.flows().hash(&flows[at]);
            assert_eq!(streams.hash(&flows[at]), expected);
        }
        let other = FlowKey { interface: 1, ..flows[2] };
        assert_ne!(streams.hash(&flows[2]), streams.hash(&other));
    }
}
