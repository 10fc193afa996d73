//! Listeners with `ulp = "rdmap"`: joins a [`Service`] to its streams, to their memory and to the workers.
//!
//! *Slots.* rping and perftest need memory of their own per stream. The listener's one region is cut into
//! as many equal pieces as it may have streams; each stream gets one, with an STag that only it may use:
//!
//! ```text
//!  free --Incoming, AddStag--> in use --Closed, RemoveStag--> (all workers have let go) --Clear--> free
//! ```
//!
//! so that nobody sees what another stream left, and nothing is placed for a stream that is gone.

use std::time::Instant;

use dataplane::memory::Memory;
use dataplane::{Command, Event, ListenerId, Sources, Ticket};
use ddp::TaggedOffset;
use ddp::rdmap::{self, Outcome, Terminate, WorkRequest};
use ddp::{Access, Cookie, MESSAGE_QUEUE, Source, Stag, StagEntry, StreamId};
use std::sync::Arc;

use super::core::{Core, Loading, Post, Then};
use super::loader::Wanted;
use super::streams::{State, Stream};
use crate::api::{ApiError, EventKind};
use crate::config::{Delivery, RdmapSection, ServiceKind};
use crate::service::{Action, Actions, Arrival, Input, Place, Service, Slot};

/// What one listener keeps for its service.
pub(super) struct Serving {
    pub service: Service,
    /// Pieces of the region that nobody has.
    free: Vec<u32>,
    /// Octets of each.
    each: u64,
}

/// A piece of a listener's region, and the stream that has it.
#[derive(Clone, Debug)]
pub(super) struct TakenSlot {
    pub number: u32,
    pub slot: Slot,
    pub listener: ListenerId,
    /// Not looked up: the listener, and the region, may be gone by the time it is cleared.
    memory: Memory,
    region: String,
    stream: StreamId,
}

/// What follows when an operation of a service is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterPost {
    Nothing,
    /// The receive buffer that it answers is posted again.
    GiveBack,
    /// The service is told.
    Read,
    Write,
}

impl Serving {
    /// For a listener; `region`: octets of the region that is cut into pieces.
    pub(super) fn new(section: &RdmapSection, streams: u32, region: u64) -> Serving {
        // Whole cache lines, so that atomics and copies of one stream leave the next one's alone.
        let each = region / u64::from(streams.max(1)) / 64 * 64;
        let slots = if section.service.has_slots() && each > 0 { streams } else { 0 };
        let service = Service::new(section.service, section.message_size);
        Serving { service, free: (0..slots).rev().collect(), each }
    }
}

impl Core {
    /// The service of a listener's section.
    pub(super) fn serving(&self, section: &crate::config::ListenerSection) -> Option<Serving> {
        let rdmap = section.ulp.rdmap()?;
        let region = section.regions.first().and_then(|name| self.regions.get(name));
        Some(Serving::new(rdmap, section.limits.streams, region.map_or(0, |region| region.len)))
    }

    /// A new stream of an RDMAP listener gets its slot; the commands are on their way with `then`.
    ///
    /// # Errors
    /// One sentence: there is no memory for it.
    pub(super) fn take_slot(
        &mut self,
        id: StreamId,
        listener: ListenerId,
        pd: ddp::PdId,
    ) -> Result<Option<TakenSlot>, String> {
        let Some(found) = self.listener_by_id(listener) else { return Ok(None) };
        let Some(kind) = found.section.ulp.rdmap().map(|rdmap| rdmap.service) else {
            return Ok(None);
        };
        if !kind.has_slots() {
            return Ok(None);
        }
        let name = found.section.regions.first().cloned().unwrap_or_default();
        let Some(serving) = &mut found.serving else { return Ok(None) };
        let each = serving.each;
        let number = serving.free.pop().ok_or("the listener has no memory for another stream")?;
        let stag = self.stags.allocate().map_err(|error| error.to_string());
        let region = self.regions.get_mut(&name).filter(|region| region.is_live());
        let (stag, region) = match (stag, region) {
            (Ok(stag), Some(region)) => (stag, region),
            (stag, _) => {
                self.free_slot(listener, number);
                return Err(stag.err().unwrap_or_else(|| format!("region `{name}` is gone")));
            }
        };
        region.users.insert(id);
        let offset = u64::from(number) * each;
        let access = match kind {
            ServiceKind::Perftest => Access::REMOTE_READ | Access::REMOTE_WRITE,
            _ => Access::NONE,
        };
        let (memory, len) = (region.memory.clone(), each);
        let entry = StagEntry {
            stag,
            pd,
            stream: Some(id),
            base_to: TaggedOffset(offset),
            len,
            access,
            memory: memory.clone(),
            memory_offset: offset,
        };
        self.broadcast(Then::Bound { stream: id }, |ticket| Command::AddStag {
            entry: entry.clone(),
            ticket,
        });
        let slot = Slot { stag, to: offset, len };
        Ok(Some(TakenSlot { number, slot, listener, memory, region: name, stream: id }))
    }

    /// A stream with a slot is gone: no worker may use it any more, then it is cleared.
    pub(super) fn release_slot(&mut self, stream: &Stream) {
        let Some(taken) = stream.slot.clone() else { return };
        let (stag, sources) = (taken.slot.stag, Sources::Wait);
        self.broadcast(Then::SlotFreed { taken }, |ticket| Command::RemoveStag {
            stag,
            sources,
            ticket,
        });
    }

    pub(super) fn on_slot_freed(&mut self, taken: TakenSlot) {
        let Slot { stag, to, len } = taken.slot;
        self.stags.release(stag);
        let octets = to..to.saturating_add(len);
        self.load(Wanted::Clear(vec![(taken.memory.clone(), octets)]), Loading::ClearSlot(taken));
    }

    pub(super) fn on_slot_cleared(&mut self, taken: &TakenSlot, result: Result<(), String>) {
        if let Err(reason) = result {
            return self.warn(format!("region {} loses a piece: {reason}", taken.region));
        }
        if let Some(region) = self.regions.get_mut(&taken.region) {
            region.users.remove(&taken.stream);
        }
        self.free_slot(taken.listener, taken.number);
    }

    fn free_slot(&mut self, listener: ListenerId, number: u32) {
        if let Some(serving) = self.listener_by_id(listener).and_then(|l| l.serving.as_mut()) {
            serving.free.push(number);
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
        if let Some(serving) = self.serving_of(id) {
            serving.service.opened(id, arrival);
        }
    }

    pub(super) fn service_closed(
        &mut self,
        id: StreamId,
        listener: Option<ListenerId>,
        now: Instant,
    ) {
        let mut actions = Actions::new();
        let listener = listener.and_then(|listener| self.listener_by_id(listener));
        if let Some(serving) = listener.and_then(|listener| listener.serving.as_mut()) {
            serving.service.closed(id, now, &mut actions);
        }
        self.act(actions);
    }

    fn serving_of(&mut self, id: StreamId) -> Option<&mut Serving> {
        let listener = self.streams.get(&id)?.listener?;
        self.listener_by_id(listener)?.serving.as_mut()
    }

    /// Tells the stream's service, and does what it asks for.
    pub(super) fn serve(&mut self, id: StreamId, input: Input, now: Instant) {
        let mut actions = Actions::new();
        if let Some(serving) = self.serving_of(id) {
            serving.service.input(id, input, now, &mut actions);
        }
        self.act(actions);
    }

    /// When the next service wants to be called.
    pub(super) fn next_service_deadline(&self) -> Option<Instant> {
        let all = self.listeners.values().chain(&self.retired);
        all.filter_map(|listener| listener.serving.as_ref()?.service.poll_timeout()).min()
    }

    pub(super) fn service_timeouts(&mut self, now: Instant) {
        let mut actions = Actions::new();
        let all = self.listeners.values_mut().chain(&mut self.retired);
        for serving in all.filter_map(|listener| listener.serving.as_mut()) {
            serving.service.handle_timeout(now, &mut actions);
        }
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
                    self.tell(id.worker(), Command::PeerIsReady { stream: id });
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
        let (stream, layer, code) = (Core::api_id(id), "service".to_owned(), String::new());
        self.log.push(EventKind::StreamError { stream, layer, code, reason });
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
        let ticket = self.tickets.issue(1, Then::Posted { stream: id, post });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.posts.insert(ticket);
        }
        let command = Command::PostRdmap { stream: id, request, region, ticket: Ticket(ticket) };
        self.tell(id.worker(), command);
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
                    self.on_invalidated(stag);
                }
                self.on_received(stream, data, now);
            }
            Event::Immediate { stream, data, .. } => self.on_received(stream, data.to_vec(), now),
            Event::Invalidated { stag, .. } => self.on_invalidated(stag),
            Event::Completed { ticket, outcome, .. } => self.on_posted(ticket, Ok(outcome), now),
            Event::RdmapError { stream, error } => self.on_rdmap_error(stream, &error),
            Event::Terminated { stream, by_peer, terminate } => {
                self.on_terminated(stream, by_peer, &terminate);
            }
            _ => self.tally.unexpected_events += 1,
        }
    }

    /// A Send goes to the client that awaits it, to the stream's service, or where its queue says.
    fn on_received(&mut self, id: StreamId, data: Vec<u8>, now: Instant) {
        self.tally.untagged_messages += 1;
        self.tally.untagged_octets += data.len() as u64;
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
        let serves = self.serving_of(id).map(|s| !matches!(s.service, Service::Passive));
        match (serves, queue) {
            (Some(true), _) => self.serve(id, Input::Received(data), now),
            (_, Some(Delivery::Echo)) => {
                let request = WorkRequest::send(Source::Octets(Arc::from(data)), Cookie::of(0));
                self.post_rdmap(id, request, None, Post::Service(AfterPost::GiveBack));
            }
            _ => self.deliver_untagged(id, MESSAGE_QUEUE, ddp::Msn(number), data),
        }
    }

    /// The peer has ended an STag of its own. The region goes on with another one, for other streams.
    fn on_invalidated(&mut self, stag: Stag) {
        let Some(name) = self.by_stag.get(&stag).cloned() else { return };
        let fresh = match self.stags.allocate() {
            Ok(fresh) => fresh,
            Err(error) => return self.warn(format!("region {name} keeps a dead STag: {error}")),
        };
        let Some(region) = self.regions.get_mut(&name).filter(|region| region.is_live()) else {
            return;
        };
        region.stag = fresh;
        let entry = StagEntry { stream: Some(super::core::NOBODY), ..region.entry() };
        self.by_stag.remove(&stag);
        self.by_stag.insert(fresh, name.clone());
        self.stags.release(stag);
        let sources = Sources::Wait;
        self.broadcast_all(
            Then::Nothing,
            &[&|ticket| Command::RemoveStag { stag, sources, ticket }, &|ticket| {
                Command::AddStag { entry: entry.clone(), ticket }
            }],
        );
        self.log.push(EventKind::StagInvalidated { region: name });
    }

    fn on_rdmap_error(&mut self, id: StreamId, error: &rdmap::Error) {
        self.tally.stream_errors += 1;
        let (layer, numbers) = match error {
            rdmap::Error::Ddp(error) => ("ddp", (error.code.error_type(), error.code.code())),
            rdmap::Error::Rdmap(error) => ("rdmap", (error.code.error_type(), error.code.code())),
            rdmap::Error::Llp { error_type, code } => ("mpa", (*error_type, *code)),
            rdmap::Error::InvalidTerminate { .. } => ("rdmap", (0, 0)),
        };
        let code = format!("{}/{:02x}", numbers.0, numbers.1);
        let (stream, layer) = (Core::api_id(id), layer.to_owned());
        tracing::warn!("stream {stream}: {error}");
        self.log.push(EventKind::StreamError { stream, layer, code, reason: error.to_string() });
    }

    fn on_terminated(&mut self, id: StreamId, by_peer: bool, terminate: &Terminate) {
        let reason = terminate.to_string();
        if by_peer && let Some(stream) = self.streams.get_mut(&id) {
            stream.peer_error = Some(format!("terminated by the peer: {reason}"));
        }
        let Terminate { layer, error_type, code, .. } = *terminate;
        let stream = Core::api_id(id);
        let code = format!("{layer:x}/{error_type:x}/{code:02x}");
        self.log.push(EventKind::Terminated { stream, by_peer, code, reason });
    }
}

fn write(source: Source<Memory>, at: Place) -> WorkRequest<Memory> {
    WorkRequest::Write { stag: at.stag, to: TaggedOffset(at.to), source, cookie: Cookie::of(0) }
}
