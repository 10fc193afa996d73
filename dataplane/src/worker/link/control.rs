//! The worker's link to the control thread: command ring, event ring and counters.

use std::sync::Arc;

use base::Instant;
use ddp::StreamId;
use rtrb::Consumer;

use crate::api::{
    Command, Counters, Event, FailedHandshake, HandshakeCount, HandshakeFailure, InterfaceId,
    ListenerId, Transport, WorkerLink,
};
use crate::flow::FlowKey;
use crate::worker::link::event_queue::{Credit, EventQueue, WaitingStream};
use crate::worker::link::handshake_failures::HandshakeFailures;

/// The worker's end of the command and event rings to the control thread.
pub(in crate::worker) struct ControlLink {
    commands: Consumer<Command>,
    events: EventQueue,
    counters: Arc<Counters>,
    /// Number of streams whose end was not reported yet.
    open_streams: u32,
    handshake_failures: Box<HandshakeFailures>,
}

impl ControlLink {
    pub(in crate::worker) fn new(link: WorkerLink) -> Self {
        let WorkerLink { commands, events, control, counters, .. } = link;
        let (events, handshakes) = (EventQueue::new(events, control), Box::default());
        ControlLink { commands, events, counters, open_streams: 0, handshake_failures: handshakes }
    }

    #[inline]
    pub(in crate::worker) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes the next command from the ring, if any.
    #[inline]
    pub(in crate::worker) fn next_command(&mut self) -> Option<Command> {
        let command = self.commands.pop().ok()?;
        self.counters.run.commands.add(1);
        Some(command)
    }

    /// Returns true if a command waits in the ring.
    #[inline]
    pub(in crate::worker) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Sends an event. An event that does not fit into the ring is queued; the order is kept.
    pub(in crate::worker) fn send(&mut self, event: Event) {
        self.events.push(event, &self.counters);
    }

    /// Moves queued events to the ring, and updates the number of events that the control thread has read. Called at
    /// the start of each turn.
    #[inline]
    pub(in crate::worker) fn begin_turn(&mut self) {
        self.events.begin_turn(&self.counters);
    }

    /// Wakes the control thread if events were sent since the last call.
    #[inline]
    pub(in crate::worker) fn notify(&mut self) {
        self.events.notify();
    }

    /// Returns true if no more than the reserved part of the event ring is free.
    #[inline]
    pub(in crate::worker) fn is_congested(&self) -> bool {
        self.events.is_nearly_full()
    }

    /// Returns true if no event waits for room in the event ring.
    pub(in crate::worker) fn is_flushed(&self) -> bool {
        self.events.is_flushed()
    }

    /// Returns true if events wait for room, or streams for event credit. The worker must then poll, because the
    /// control thread does not wake it after reading events.
    pub(in crate::worker) fn has_waiters(&self) -> bool {
        !self.events.is_flushed() || self.events.has_waiting()
    }

    /// Returns the number of events sent so far, which is also the number of the newest event.
    #[inline]
    pub(in crate::worker) fn events_sent(&self) -> u64 {
        self.events.sent()
    }

    /// Returns the number of the newest event that the control thread has read.
    pub(in crate::worker) fn events_read(&self) -> u64 {
        self.events.last_read()
    }

    /// Charges one credit of a stream for each event sent after event number `before`. Returns true if the stream's
    /// credit is used up. The caller then calls [`add_waiting`](Self::add_waiting).
    pub(in crate::worker) fn charge(&mut self, credit: &mut Credit, before: u64) -> bool {
        self.events.charge(credit, before)
    }

    /// Adds a stream to the streams that wait for credit ([`take_waiting`](Self::take_waiting)). `pending` is the
    /// number of events in its endpoint. Returns the number of events that the endpoint may hold while it is paused;
    /// `None` if the stream waits already.
    pub(in crate::worker) fn add_waiting(
        &mut self,
        stream: StreamId,
        credit: &mut Credit,
        pending: usize,
    ) -> Option<u32> {
        let max_held = self.events.add_waiting(stream, credit, pending)?;
        self.counters.run.event_waits.add(1);
        self.counters.run.streams_waiting.set(self.events.streams_waiting() as u64);
        Some(max_held)
    }

    /// Returns the streams that wait for credit, if the control thread has read events since the last call. The caller
    /// passes the streams that still lack credit to [`restore_waiting`](Self::restore_waiting).
    #[inline]
    pub(in crate::worker) fn take_waiting(&mut self) -> Option<Vec<WaitingStream>> {
        self.events.take_waiting()
    }

    /// Restores the streams that still wait for credit.
    pub(in crate::worker) fn restore_waiting(&mut self, streams: Vec<WaitingStream>) {
        self.counters.run.streams_waiting.set(streams.len() as u64);
        self.events.restore_waiting(streams);
    }

    /// Returns true if a stream may send another event.
    pub(in crate::worker) fn has_credit(&self, credit: &Credit) -> bool {
        self.events.has_credit(credit)
    }

    /// Counts a new stream. Its end must be reported.
    pub(in crate::worker) fn add_open_stream(&mut self) {
        self.open_streams += 1;
    }

    /// Removes a stream from the count: its end is reported now, or the stream was never announced.
    pub(in crate::worker) fn remove_open_stream(&mut self) {
        self.open_streams -= 1;
    }

    /// Counts a failed handshake, and reports it if the rate limits and the room in the event ring allow. `detail` is
    /// called only for a report.
    #[cold]
    pub(in crate::worker) fn report_failed_handshake(
        &mut self,
        transport: Transport,
        flow: &FlowKey,
        listener: Option<ListenerId>,
        failure: HandshakeFailure,
        detail: impl FnOnce() -> String,
        now: Instant,
    ) {
        let may_report = !self.events.is_nearly_full();
        let Some(unreported) = self.handshake_failures.record(listener, failure, may_report, now)
        else {
            return;
        };
        let (local, remote, interface) = (flow.local, flow.remote, InterfaceId(flow.interface));
        let detail = detail();
        self.send(Event::HandshakeFailed(Box::new(FailedHandshake {
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

    /// Returns the counts of failed handshakes since the last call.
    pub(in crate::worker) fn take_handshake_counts(&mut self) -> Vec<HandshakeCount> {
        self.handshake_failures.take_counts()
    }

    /// Returns true if the end of every stream was reported.
    pub(in crate::worker) fn has_no_open_streams(&self) -> bool {
        self.open_streams == 0
    }

    /// Returns the number of queued events that did not fit into the ring.
    #[cfg(test)]
    pub(in crate::worker) fn backlog(&self) -> usize {
        self.events.backlog()
    }
}
