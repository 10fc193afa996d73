//! The worker's link to the control thread: commands in, events out, counters beside them.

use std::sync::Arc;

use base::Instant;
use ddp::StreamId;
use rtrb::Consumer;

use super::event::{Credit, Events, Waiting};
use super::handshakes::Handshakes;
use crate::api::{
    Command, Counters, Event, HandshakeCount, HandshakeFailed, HandshakeFailure, InterfaceId,
    ListenerId, Transport, WorkerLink,
};
use crate::flow::FlowKey;

/// The worker's end of the rings to the control thread.
pub(super) struct ControlLink {
    commands: Consumer<Command>,
    events: Events,
    counters: Arc<Counters>,
    /// Streams whose end has not been reported yet.
    open_streams: u32,
    handshakes: Box<Handshakes>,
}

impl ControlLink {
    pub(super) fn new(link: WorkerLink) -> Self {
        let WorkerLink { commands, events, control, counters, .. } = link;
        let (events, handshakes) = (Events::new(events, control), Box::default());
        ControlLink { commands, events, counters, open_streams: 0, handshakes }
    }

    /// The worker's counters.
    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The next command.
    #[inline]
    pub(super) fn next_command(&mut self) -> Option<Command> {
        let command = self.commands.pop().ok()?;
        self.counters.run.commands.add(1);
        Some(command)
    }

    /// True when there is a command.
    #[inline]
    pub(super) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Sends an event; what does not fit in the ring waits here.
    pub(super) fn send(&mut self, event: Event) {
        self.events.push(event, &self.counters);
    }

    /// Called at the begin of a turn: moves waiting events to the ring, and reads how many the control thread has
    /// taken.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.events.begin_turn(&self.counters);
    }

    /// Wakes the control thread if there are new events.
    #[inline]
    pub(super) fn notify(&mut self) {
        self.events.notify();
    }

    /// True when the ring has no more than the room that is kept for live streams.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.events.is_short()
    }

    /// True when no event waits for room in the ring.
    pub(super) fn is_flushed(&self) -> bool {
        self.events.is_flushed()
    }

    /// True when events wait for room, or streams for credit: the control thread does not wake the worker when it takes
    /// events.
    pub(super) fn awaits_room(&self) -> bool {
        !self.events.is_flushed() || self.events.are_awaited()
    }

    /// Events sent so far.
    #[inline]
    pub(super) fn events_sent(&self) -> u64 {
        self.events.sent()
    }

    /// Number of the newest event that the control thread has taken.
    pub(super) fn events_taken(&self) -> u64 {
        self.events.taken()
    }

    /// Charges a stream for the events since number `before`. True when its credit is used up: it must
    /// [`wait`](Self::wait).
    pub(super) fn charge(&mut self, credit: &mut Credit, before: u64) -> bool {
        self.events.charge(credit, before)
    }

    /// A stream, which has so many events in its endpoint, is among the [`waiting_streams`](Self::waiting_streams). If
    /// it was not yet, it must be paused, and may have as many there as this returns.
    pub(super) fn wait(
        &mut self,
        stream: StreamId,
        credit: &mut Credit,
        pending: usize,
    ) -> Option<u32> {
        let most = self.events.wait(stream, credit, pending)?;
        self.counters.run.event_waits.add(1);
        self.counters.run.streams_waiting.set(self.events.streams_waiting() as u64);
        Some(most)
    }

    /// Streams that wait for credit, if the control thread has taken events since they were examined last. Those that
    /// still have none come back by [`keep_waiting`](Self::keep_waiting).
    #[inline]
    pub(super) fn waiting_streams(&mut self) -> Option<Vec<Waiting>> {
        self.events.take_waiting()
    }

    /// These streams wait on.
    pub(super) fn keep_waiting(&mut self, streams: Vec<Waiting>) {
        self.counters.run.streams_waiting.set(streams.len() as u64);
        self.events.put_waiting(streams);
    }

    /// True when a stream may send another event.
    pub(super) fn has_credit(&self, credit: &Credit) -> bool {
        self.events.has_credit(credit)
    }

    /// A stream begins.
    pub(super) fn stream_begins(&mut self) {
        self.open_streams += 1;
    }

    /// A stream's end was reported, or the control thread never knew the stream.
    pub(super) fn stream_ended(&mut self) {
        self.open_streams -= 1;
    }

    /// A peer did not become a stream: it is counted, and reported if there is room for it.
    #[cold]
    pub(super) fn handshake_failed(
        &mut self,
        (transport, flow): (Transport, &FlowKey),
        listener: Option<ListenerId>,
        failure: HandshakeFailure,
        detail: impl FnOnce() -> String,
        now: Instant,
    ) {
        let may_report = !self.events.is_short();
        let Some(unreported) = self.handshakes.failed(listener, failure, may_report, now) else {
            return;
        };
        let (local, remote, interface) = (flow.local, flow.remote, InterfaceId(flow.interface));
        let detail = detail();
        self.send(Event::HandshakeFailed(Box::new(HandshakeFailed {
            listener,
            interface,
            transport,
            local,
            remote,
            failure,
            detail,
            unreported,
        })));
    }

    /// How often handshakes failed since this was called last.
    pub(super) fn take_handshakes(&mut self) -> Vec<HandshakeCount> {
        self.handshakes.take_counts()
    }

    /// True when the control thread knows of the end of every stream.
    pub(super) fn knows_all_ends(&self) -> bool {
        self.open_streams == 0
    }

    /// Events that wait for room in the ring.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.events.backlog()
    }
}
