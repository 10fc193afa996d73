//! Listeners with `ulp = "rdmap"`: joins a [`Service`] to its streams, to their memory and to the workers.

use std::time::Instant;

use dataplane::memory::Memory;
use dataplane::{Command, Event, ListenerId, Ticket};
use ddp::TaggedOffset;
use ddp::rdmap::{self, Outcome, Terminate, WorkRequest};
use ddp::{Cookie, MESSAGE_QUEUE, Source, Stag, StreamId};
use std::sync::Arc;

use super::core::Core;
use super::env::api_id;
use super::pending::{AfterPost, Post, TakenSlot, Then};
use super::streams::{State, Stream};
use crate::api::{ApiError, EventKind};
use crate::config::Delivery;
use crate::service::{Action, Actions, Arrival, Input, Place};

impl Core {
    /// A new stream of an RDMAP listener gets its slot; the commands are on their way.
    ///
    /// # Errors
    /// One sentence: there is no memory for it.
    pub(super) fn take_slot(
        &mut self,
        id: StreamId,
        listener: ListenerId,
        pd: ddp::PdId,
    ) -> Result<Option<TakenSlot>, String> {
        let Some(piece) = self.listeners.take_piece(listener)? else { return Ok(None) };
        let number = piece.number;
        let taken = self.regions.take_piece(&mut self.env, piece, id, pd);
        if taken.is_err() {
            self.listeners.free_piece(listener, number);
        }
        taken.map(Some)
    }

    /// A stream with a slot is gone.
    pub(super) fn release_slot(&mut self, stream: &Stream) {
        if let Some(taken) = stream.slot.clone() {
            self.regions.release_slot(&mut self.env, taken);
        }
    }

    pub(super) fn on_slot_cleared(&mut self, taken: &TakenSlot, result: Result<(), String>) {
        if self.regions.on_slot_cleared(&mut self.env, taken, result) {
            self.listeners.free_piece(taken.listener, taken.number);
        }
    }

    /// A stream of an RDMAP listener is being accepted.
    pub(super) fn service_opened(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(&id) else { return };
        let arrival = Arrival {
            peer: stream.remote.ip(),
            slot: stream.slot.as_ref().map(|taken| taken.slot),
            reads: stream.peer_reads,
        };
        if let Some(listener) = stream.listener {
            self.listeners.service_opened(listener, id, arrival);
        }
    }

    pub(super) fn service_closed(
        &mut self,
        id: StreamId,
        listener: Option<ListenerId>,
        now: Instant,
    ) {
        if let Some(listener) = listener {
            let actions = self.listeners.service_closed(listener, id, now);
            self.act(actions);
        }
    }

    fn listener_of(&self, id: StreamId) -> Option<ListenerId> {
        self.streams.get(&id)?.listener
    }

    /// Tells the stream's service, and does what it asks for.
    pub(super) fn serve(&mut self, id: StreamId, input: Input, now: Instant) {
        if let Some(listener) = self.listener_of(id) {
            let actions = self.listeners.service_input(listener, id, input, now);
            self.act(actions);
        }
    }

    pub(super) fn service_timeouts(&mut self, now: Instant) {
        let actions = self.listeners.handle_timeout(now);
        self.act(actions);
    }

    fn act(&mut self, actions: Actions) {
        for (id, action) in actions {
            let Some(stream) = self.streams.get(&id) else { continue };
            let own = stream.slot.as_ref().map(|taken| (taken.slot, taken.memory.clone()));
            let cookie = 0;
            match (action, own) {
                (Action::GiveBack, _) => self.give_back(id, MESSAGE_QUEUE),
                (Action::Send { octets, answers }, _) => {
                    let request =
                        WorkRequest::send(Source::Octets(Arc::from(octets)), Cookie::of(cookie));
                    let after = if answers { AfterPost::GiveBack } else { AfterPost::Nothing };
                    self.post_rdmap(id, request, None, Post::Service(after));
                }
                (Action::WriteOctets { octets, at }, _) => {
                    let source = Source::Octets(Arc::from(octets));
                    let request = write(source, at);
                    self.post_rdmap(id, request, None, Post::Service(AfterPost::Write));
                }
                (Action::Write { len, at }, Some((slot, memory))) => {
                    let source = Source::Region { memory, offset: slot.to, len };
                    let request = write(source, at);
                    let region = Some(slot.stag);
                    self.post_rdmap(id, request, region, Post::Service(AfterPost::Nothing));
                }
                (Action::Read { len, from }, Some((slot, _))) => {
                    let request = WorkRequest::Read {
                        sink_stag: slot.stag,
                        sink_to: TaggedOffset(slot.to),
                        source_stag: from.stag,
                        source_to: TaggedOffset(from.to),
                        len,
                        cookie: Cookie::of(cookie),
                    };
                    let region = Some(slot.stag);
                    self.post_rdmap(id, request, region, Post::Service(AfterPost::Read));
                }
                (Action::Write { .. } | Action::Read { .. }, None) => {
                    self.end_service(id, "the stream has no memory of its own".into());
                }
                (Action::PeerIsReady, _) => {
                    self.env.tell(id.worker(), Command::PeerIsReady { stream: id });
                }
                (Action::End(reason), _) => self.end_service(id, reason),
            }
        }
    }

    /// The peer's program does not speak as the service expects.
    fn end_service(&mut self, id: StreamId, reason: String) {
        if self.streams.get(&id).is_none_or(|stream| stream.state == State::Closing) {
            return;
        }
        let (stream, layer, code) = (api_id(id), "service".to_owned(), String::new());
        self.env.log.push(EventKind::StreamError { stream, layer, code, reason });
        self.hang_up(id, false);
    }

    /// Starts an operation and remembers whose it is.
    pub(super) fn post_rdmap(
        &mut self,
        id: StreamId,
        request: WorkRequest<Memory>,
        region: Option<Stag>,
        post: Post,
    ) {
        let ticket = self.env.tickets.issue(1, Then::Posted { stream: id, post });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.posts.insert(ticket);
        }
        let command = Command::PostRdmap { stream: id, request, region, ticket: Ticket(ticket) };
        self.env.tell(id.worker(), command);
    }

    /// An operation of a service is complete, or will not be.
    pub(super) fn service_posted(
        &mut self,
        id: StreamId,
        after: AfterPost,
        result: Result<Outcome, ApiError>,
        now: Instant,
    ) {
        match (result, after) {
            (Err(error), _) => {
                if self.streams.get(&id).is_some_and(|s| s.state == State::Established) {
                    self.end_service(id, error.message);
                }
            }
            (Ok(_), AfterPost::Nothing) => {}
            (Ok(_), AfterPost::GiveBack) => self.give_back(id, MESSAGE_QUEUE),
            (Ok(_), AfterPost::Read) => self.serve(id, Input::ReadDone, now),
            (Ok(_), AfterPost::Write) => self.serve(id, Input::WriteDone, now),
        }
    }

    /// An event of a stream that speaks RDMAP.
    pub(super) fn on_rdmap(&mut self, event: Event, now: Instant) {
        match event {
            Event::Received { stream, data, invalidated, .. } => {
                if let Some(stag) = invalidated {
                    self.regions.on_invalidated(&mut self.env, stag);
                }
                self.on_received(stream, data, now);
            }
            Event::Immediate { stream, data, .. } => self.on_received(stream, data.to_vec(), now),
            Event::Invalidated { stag, .. } => self.regions.on_invalidated(&mut self.env, stag),
            Event::Completed { ticket, outcome, .. } => self.on_posted(ticket, Ok(outcome), now),
            Event::RdmapError { stream, error } => self.on_rdmap_error(stream, &error),
            Event::Terminated { stream, by_peer, terminate } => {
                self.on_terminated(stream, by_peer, &terminate);
            }
            _ => self.env.tally.unexpected_events += 1,
        }
    }

    /// A Send goes to the client that awaits it, to the stream's service, or where its queue says.
    fn on_received(&mut self, id: StreamId, data: Vec<u8>, now: Instant) {
        self.env.tally.untagged_messages += 1;
        self.env.tally.untagged_octets += data.len() as u64;
        if self.ping_received(id, &data, now) {
            return self.give_back(id, MESSAGE_QUEUE);
        }
        let Some(data) = self.take_reply(id, MESSAGE_QUEUE, data) else {
            return self.give_back(id, MESSAGE_QUEUE);
        };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.received = stream.received.wrapping_add(1);
        let number = stream.received;
        let queue = stream.queues.first().map(|queue| queue.deliver_to.clone());
        let serves = self.listener_of(id).is_some_and(|listener| self.listeners.serves(listener));
        match (serves, queue) {
            (true, _) => self.serve(id, Input::Received(data), now),
            (_, Some(Delivery::Echo)) => {
                let request = WorkRequest::send(Source::Octets(Arc::from(data)), Cookie::of(0));
                self.post_rdmap(id, request, None, Post::Service(AfterPost::GiveBack));
            }
            _ => self.deliver_untagged(id, MESSAGE_QUEUE, ddp::Msn(number), data),
        }
    }

    fn on_rdmap_error(&mut self, id: StreamId, error: &rdmap::Error) {
        self.env.tally.stream_errors += 1;
        let (layer, numbers) = match error {
            rdmap::Error::Ddp(error) => ("ddp", (error.code.error_type(), error.code.code())),
            rdmap::Error::Rdmap(error) => ("rdmap", (error.code.error_type(), error.code.code())),
            rdmap::Error::Llp { error_type, code } => ("mpa", (*error_type, *code)),
            rdmap::Error::InvalidTerminate { .. } => ("rdmap", (0, 0)),
        };
        let code = format!("{}/{:02x}", numbers.0, numbers.1);
        let (stream, layer) = (api_id(id), layer.to_owned());
        tracing::warn!("stream {stream}: {error}");
        self.env.log.push(EventKind::StreamError {
            stream,
            layer,
            code,
            reason: error.to_string(),
        });
    }

    fn on_terminated(&mut self, id: StreamId, by_peer: bool, terminate: &Terminate) {
        let reason = terminate.to_string();
        if by_peer && let Some(stream) = self.streams.get_mut(&id) {
            stream.peer_error = Some(format!("terminated by the peer: {reason}"));
        }
        let Terminate { layer, error_type, code, .. } = *terminate;
        let stream = api_id(id);
        let code = format!("{layer:x}/{error_type:x}/{code:02x}");
        self.env.log.push(EventKind::Terminated { stream, by_peer, code, reason });
    }
}

fn write(source: Source<Memory>, at: Place) -> WorkRequest<Memory> {
    WorkRequest::Write { stag: at.stag, to: TaggedOffset(at.to), source, cookie: Cookie::of(0) }
}
