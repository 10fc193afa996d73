//! The streams of one worker by slot, name and flow, and those in TIME-WAIT by age.

use ddp::StreamId;

use super::by_age::ByAge;
use super::conn::Conn;
use super::lower::Reach;
use super::sctp::Associations;
use crate::flow::{FlowHash, FlowKey, FlowTable, Slab};

/// The streams.
pub(super) struct Streams {
    slab: Slab<Box<Conn>>,
    /// Those over TCP.
    flows: FlowTable,
    time_wait: ByAge,
}

impl Streams {
    /// At most `limit` streams of a worker. `key` seeds the hash of flows.
    pub(super) fn new(worker: u16, limit: u32, key: [u8; 16]) -> Self {
        Streams {
            slab: Slab::new(worker, limit),
            flows: FlowTable::new(key),
            time_wait: ByAge::default(),
        }
    }

    /// Streams, those in TIME-WAIT included.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Slots that have ever been used.
    pub(super) fn places(&self) -> usize {
        self.slab.places()
    }

    /// The stream in a slot.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Conn> {
        self.slab.get(slot).map(|conn| &**conn)
    }

    /// The same, to change it.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Conn> {
        self.slab.get_mut(slot).map(|conn| &mut **conn)
    }

    /// The lower layer of the stream in a slot, if it is there.
    pub(super) fn reach<'a>(
        &'a mut self,
        slot: u32,
        associations: &'a mut Associations,
    ) -> Option<Reach<'a>> {
        self.get_mut(slot)?.lower.reach(associations)
    }

    /// The slot of a stream.
    pub(super) fn find(&self, stream: StreamId) -> Option<u32> {
        self.slab.find(stream)
    }

    /// All streams.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.slab.occupied().filter_map(|slot| self.get(slot))
    }

    /// The slots of all streams.
    pub(super) fn slots(&self) -> Vec<u32> {
        self.slab.occupied().collect()
    }

    /// Slot and name of the next stream; `None` when all places are taken.
    pub(super) fn vacancy(&self) -> Option<(u32, StreamId)> {
        self.slab.vacancy()
    }

    /// Puts a stream in the vacant slot, for which the caller has asked. `flow`: that of its connection, if it has one
    /// of its own.
    pub(super) fn insert(&mut self, slot: u32, flow: Option<&FlowKey>, conn: Conn) -> &mut Conn {
        if let Some(flow) = flow {
            self.flows.insert(flow, slot);
        }
        self.slab.insert(Box::new(conn))
    }

    /// Takes a stream out.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Conn>> {
        self.slab.remove(slot)
    }

    /// Takes the flow of a stream that is taken out of the table.
    pub(super) fn remove_flow(&mut self, slot: u32, flow: &FlowKey) {
        self.flows.remove(flow, slot);
    }

    /// The table of the flows of connections.
    #[inline]
    pub(super) fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// True when the flow is that of the stream in this slot.
    #[inline]
    pub(super) fn is_flow(&self, slot: u32, flow: &FlowKey) -> bool {
        self.get(slot).is_some_and(|conn| conn.flow() == *flow)
    }

    /// The slot of a flow, whose hash is `hash`.
    pub(super) fn find_flow(&self, hash: FlowHash, flow: &FlowKey) -> Option<u32> {
        self.flows.find(hash, |slot| self.is_flow(slot, flow))
    }

    /// A stream has come to TIME-WAIT.
    pub(super) fn add_time_wait(&mut self, stream: StreamId) {
        let slab = &self.slab;
        self.time_wait.add(stream, |id| slab.find(id).is_some());
    }

    /// Takes out the stream that is in TIME-WAIT for longest; its slot.
    pub(super) fn oldest_time_wait(&mut self) -> Option<u32> {
        let slab = &self.slab;
        self.time_wait.oldest(|id| slab.find(id))
    }
}
