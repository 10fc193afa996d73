//! The worker's link to the control thread: the command ring, the event ring and the counters.

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
    /// Streams whose end is not yet reported.
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

    /// Takes the next command.
    #[inline]
    pub(super) fn next_command(&mut self) -> Option<Command> {
        let command = self.commands.pop().ok()?;
        self.counters.run.commands.add(1);
        Some(command)
    }

    /// True if a command waits.
    #[inline]
    pub(super) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Sends an event. Events that do not fit into the ring are queued here.
    pub(super) fn send(&mut self, event: Event) {
        self.events.push(event, &self.counters);
    }

    /// Moves queued events to the ring and updates the number of events read. Called at the start of a turn.
    #[inline]
    pub(super) fn begin_turn(&mut self) {
        self.events.begin_turn(&self.counters);
    }

    /// Wakes the control thread if there are new events.
    #[inline]
    pub(super) fn notify(&mut self) {
        self.events.notify();
    }

    /// True if only the reserved part of the ring is free.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.events.is_short()
    }

    /// True if all events are in the ring.
    pub(super) fn is_flushed(&self) -> bool {
        self.events.is_flushed()
    }

    /// True if events wait for room or streams for credit. The worker must poll then: the control thread does not
    /// wake it after reading events.
    pub(super) fn awaits_room(&self) -> bool {
        !self.events.is_flushed() || self.events.are_awaited()
    }

    /// Events sent so far.
    #[inline]
    pub(super) fn events_sent(&self) -> u64 {
        self.events.sent()
    }

    /// Number of the newest event read by the control thread.
    pub(super) fn events_taken(&self) -> u64 {
        self.events.taken()
    }

    /// Charges the events after number `before` to a stream. Returns whether its credit is used up; the stream
    /// must then [`wait`](Self::wait).
    pub(super) fn charge(&mut self, credit: &mut Credit, before: u64) -> bool {
        self.events.charge(credit, before)
    }

    /// Adds a stream with `pending` events in its endpoint to the [`waiting_streams`](Self::waiting_streams).
    /// Returns how many events the endpoint may hold while paused; `None` if the stream waits already.
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

    /// Returns the streams that wait for credit, if the control thread has read events since the last call. Those
    /// still without credit must return by [`keep_waiting`](Self::keep_waiting).
    #[inline]
    pub(super) fn waiting_streams(&mut self) -> Option<Vec<Waiting>> {
        self.events.take_waiting()
    }

    /// Puts back streams that still wait for credit.
    pub(super) fn keep_waiting(&mut self, streams: Vec<Waiting>) {
        self.counters.run.streams_waiting.set(streams.len() as u64);
        self.events.put_waiting(streams);
    }

    /// True if a stream may send another event.
    pub(super) fn has_credit(&self, credit: &Credit) -> bool {
        self.events.has_credit(credit)
    }

    /// Counts a new stream.
    pub(super) fn stream_begins(&mut self) {
        self.open_streams += 1;
    }

    /// Counts the end of a stream, reported or never announced.
    pub(super) fn stream_ended(&mut self) {
        self.open_streams -= 1;
    }

    /// Counts a failed handshake, and reports it if the limits and the ring allow.
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

    /// Returns and clears the counts of failed handshakes.
    pub(super) fn take_handshakes(&mut self) -> Vec<HandshakeCount> {
        self.handshakes.take_counts()
    }

    /// True if the end of every stream is reported.
    pub(super) fn knows_all_ends(&self) -> bool {
        self.open_streams == 0
    }

    /// Events queued because the ring is full.
    #[cfg(test)]
    pub(super) fn backlog(&self) -> usize {
        self.events.backlog()
    }
}
