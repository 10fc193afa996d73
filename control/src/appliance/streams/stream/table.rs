//! All streams, by number, and the number of streams in each state.

use ddp::StreamId;

use super::{State, Stream};
use crate::appliance::objects::Objects;

#[derive(Default)]
pub(in crate::appliance::streams) struct StreamTable {
    streams: Objects<StreamId, Stream>,
    /// Number of streams in each state, in the order of [`State`].
    counts: [usize; State::COUNT],
}

impl StreamTable {
    pub(in crate::appliance::streams) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(in crate::appliance::streams) fn count(&self, state: State) -> usize {
        self.counts[state as usize]
    }

    pub(in crate::appliance::streams) fn contains_key(&self, id: &StreamId) -> bool {
        self.streams.contains_key(id)
    }

    pub(in crate::appliance::streams) fn get(&self, id: &StreamId) -> Option<&Stream> {
        self.streams.get(id)
    }

    pub(in crate::appliance::streams) fn get_mut(&mut self, id: &StreamId) -> Option<&mut Stream> {
        self.streams.get_mut(id)
    }

    /// Inserts a stream. Replaces a stream that has the same number.
    pub(in crate::appliance::streams) fn insert(&mut self, id: StreamId, stream: Stream) {
        self.counts[stream.state as usize] += 1;
        if let Some(old) = self.streams.insert(id, stream) {
            self.counts[old.state as usize] -= 1;
        }
    }

    pub(in crate::appliance::streams) fn remove(&mut self, id: &StreamId) -> Option<Stream> {
        let stream = self.streams.remove(id)?;
        self.counts[stream.state as usize] -= 1;
        Some(stream)
    }

    /// Changes the state of a stream. Returns the previous state, or `None` if the stream does not exist.
    pub(in crate::appliance::streams) fn set_state(
        &mut self,
        id: StreamId,
        state: State,
    ) -> Option<State> {
        let stream = self.streams.get_mut(&id)?;
        let before = std::mem::replace(&mut stream.state, state);
        self.counts[before as usize] -= 1;
        self.counts[state as usize] += 1;
        Some(before)
    }

    /// Returns the streams with numbers greater than `after`, in order.
    pub(in crate::appliance::streams) fn after(
        &self,
        after: Option<StreamId>,
    ) -> impl Iterator<Item = StreamId> {
        self.streams.after(after.as_ref()).map(|(&id, _)| id)
    }

    /// Returns all streams, ordered by number.
    pub(in crate::appliance::streams) fn iter(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        self.streams.iter().map(|(&id, stream)| (id, stream))
    }
}
