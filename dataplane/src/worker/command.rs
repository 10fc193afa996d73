//! What the control thread asks for.

use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Message, Qn, Stag, StreamId};
use tcp_lite::endpoint::Context;

use super::conn::Stage;
use super::lower::{Answered, Lower, Reach};
use super::{Core, LAST_TURNS, Phase};
use crate::api::{
    Command, CommandError, Event, InterfaceId, ListenerId, NeighbourInfo, PostFailure, Sources,
    Ticket,
};
use crate::io::PortIo;
use crate::memory::Memory;

/// Streams in one [`Event::Streams`].
const STREAMS: usize = 128;

impl<Io: PortIo> Core<Io> {
    pub(super) fn command(&mut self, command: Command, now: Instant) {
        match command {
            Command::AddStag { entry, ticket } => {
                let result = self.tables.add_stag(entry);
                self.done(ticket, result);
            }
            Command::RemoveStag { stag, sources, ticket } => {
                self.remove_stag(stag, sources, ticket, now)
            }
            Command::BindStag { stag, stream, ticket } => self.bind_stag(stag, stream, ticket, now),
            Command::AddListener { listener, ticket } => {
                let result = self.admission.listeners_mut().add(listener);
                self.done(ticket, result);
            }
            Command::RemoveListener { listener, ticket } => self.remove_listener(listener, ticket),
            Command::Credits { listener, more } => {
                self.admission.listeners_mut().add_credits(listener, more)
            }
            Command::Accept { stream, pd, private_data, mut ulp, service } => {
                service.configure(&mut ulp);
                self.serve_by(stream, service, super::rdmap::Echoed::of(&ulp));
                self.answer(stream, now, |mut lower, id, cx| {
                    lower.accept(now, id, pd, &private_data, ulp, cx)
                });
            }
            Command::Reject { stream, private_data } => {
                self.answer(stream, now, |mut lower, _, _| lower.reject(now, &private_data));
            }
            Command::Connect(connect) => self.connect(*connect, now),
            Command::Post { stream, message, region, ticket } => {
                if let Err(reason) = self.post(stream, message, region, ticket) {
                    let failed = Event::PostFailed { stream, ticket, reason };
                    self.control.send(failed);
                }
            }
            Command::PostRdmap { stream, request, region, ticket } => {
                if let Err(reason) = self.post_rdmap(stream, request, region, ticket) {
                    let failed = Event::PostFailed { stream, ticket, reason };
                    self.control.send(failed);
                }
            }
            Command::PostBuffers { stream, qn, buffers } => {
                if let Some(slot) = self.streams.find(stream) {
                    self.give_buffers(slot, qn, buffers);
                    self.touch(slot);
                }
            }
            Command::PeerIsReady { stream } => {
                if let Some(slot) = self.streams.find(stream)
                    && let Some(conn) = self.streams.get_mut(slot)
                {
                    // RFC 5043 §6.2: over SCTP nothing is waited for once the Accept is acknowledged.
                    if let Lower::Tcp(endpoint) = &mut conn.lower {
                        endpoint.peer_is_ready();
                    }
                    self.touch(slot);
                }
            }
            Command::Load { stream, load, ticket } => self.load(stream, load, ticket, now),
            Command::StopLoad { stream } => self.stop_load(stream, now),
            Command::Close { stream, abort } => {
                if let Some(slot) = self.streams.find(stream) {
                    self.close(slot, abort, now);
                }
            }
            Command::ListStreams { ticket } => self.list_streams(ticket, now),
            Command::ListNeighbours { ticket } => self.list_neighbours(ticket),
            Command::Drain => self.drain(now),
            Command::Stop => self.stop(now),
        }
    }

    fn done(&mut self, ticket: Ticket, result: Result<(), CommandError>) {
        self.control.send(Event::Done { ticket, result });
    }

    /// Answers a peer's request. One that cannot be answered like that is over.
    fn answer(
        &mut self,
        stream: StreamId,
        now: Instant,
        how: impl FnOnce(Reach<'_>, StreamId, &mut Context<'_, Memory>) -> Result<(), Answered>,
    ) {
        let Some(slot) = self.streams.find(stream) else { return };
        let Some(lower) = self.streams.reach(slot, &mut self.associations) else { return };
        if how(lower, stream, &mut self.tables.context()) == Err(Answered::TooLong)
            && let Some(mut lower) = self.streams.reach(slot, &mut self.associations)
        {
            lower.fail(now, &mut self.tables.context());
        }
        self.touch(slot);
    }

    fn close(&mut self, slot: u32, abort: bool, now: Instant) {
        if abort {
            self.abort(slot);
        } else if let Some(mut lower) = self.streams.reach(slot, &mut self.associations) {
            lower.shutdown(now);
        }
        self.touch(slot);
    }

    /// Ends a stream at once.
    pub(super) fn abort(&mut self, slot: u32) {
        if let Some(mut lower) = self.streams.reach(slot, &mut self.associations) {
            lower.abort(self.now, &mut self.tables.context());
        }
    }

    /// Gives receive buffers back.
    pub(super) fn give_buffers(&mut self, slot: u32, qn: Qn, buffers: u32) {
        if let Some(mut lower) = self.streams.reach(slot, &mut self.associations) {
            // A stream that is ending needs no buffers any more.
            let _ = lower.post_buffers(qn, buffers);
        }
    }

    /// From here on nothing is placed in the region by this worker; the answer waits for messages that
    /// are being sent from it.
    fn remove_stag(&mut self, stag: Stag, sources: Sources, ticket: Ticket, now: Instant) {
        let removed = self.tables.remove_stag(stag);
        self.revoke(stag, |_| true, now);
        self.stop_loads_from(stag, now);
        if !self.tables.is_source(stag) {
            return self.done(ticket, removed);
        }
        self.tables.await_sources(stag, ticket);
        if sources == Sources::Abort {
            let slots = self.streams.slots();
            for slot in slots {
                let Some(conn) = self.streams.get_mut(slot) else { continue };
                if conn.pending.sources.iter().any(|&(_, s)| s == stag) || conn.loads_from(stag) {
                    self.abort(slot);
                    self.touch(slot);
                }
            }
        }
    }

    /// From here on no other stream of this worker reaches the region, by a Read that is under way neither:
    /// it would go on to what the new one's peer writes.
    fn bind_stag(&mut self, stag: Stag, stream: Option<StreamId>, ticket: Ticket, now: Instant) {
        let result = self.rebind(stag, stream, now);
        self.done(ticket, result);
    }

    /// Binds a region of the domain that is bound already to a stream that is being opened. One that has
    /// gone, or that all streams of its domain share by now, is no longer the one that was meant.
    pub(super) fn lend_stag(&mut self, stag: Stag, pd: ddp::PdId, stream: StreamId, now: Instant) {
        if self.tables.is_bound(stag, pd) {
            // It is there.
            let _ = self.rebind(stag, Some(stream), now);
        }
    }

    fn rebind(
        &mut self,
        stag: Stag,
        stream: Option<StreamId>,
        now: Instant,
    ) -> Result<(), CommandError> {
        let before = self.tables.bind_stag(stag, stream)?;
        match (before, stream) {
            (Some(Some(old)), Some(new)) if old != new => {
                self.revoke(stag, |id| id == old, now);
            }
            (Some(None), Some(new)) => self.revoke(stag, |id| id != new, now),
            _ => {}
        }
        Ok(())
    }

    /// No Read of these streams' peers goes on from a region that has ended for them.
    fn revoke(&mut self, stag: Stag, whose: impl Fn(StreamId) -> bool, now: Instant) {
        let slots = self.streams.slots();
        for slot in slots {
            if !self.streams.get(slot).is_some_and(|conn| whose(conn.id)) {
                continue;
            }
            if let Some(mut lower) = self.streams.reach(slot, &mut self.associations)
                && lower.revoked(now, stag, &mut self.tables.context())
            {
                self.touch(slot);
            }
        }
    }

    fn remove_listener(&mut self, listener: ListenerId, ticket: Ticket) {
        let result = self.admission.listeners_mut().remove(listener);
        let slots = self.streams.slots();
        for slot in slots {
            let Some(conn) = self.streams.get_mut(slot) else { continue };
            if conn.stage == Stage::Starting && conn.listener() == Some(listener) {
                self.abort(slot);
                self.touch(slot);
            }
        }
        self.abort_associations_of(listener);
        self.done(ticket, result);
    }

    fn post(
        &mut self,
        stream: StreamId,
        mut message: Message<Memory>,
        region: Option<Stag>,
        ticket: Ticket,
    ) -> Result<(), PostFailure> {
        if region.is_some_and(|stag| self.tables.stag(stag).is_none()) {
            return Err(PostFailure::NoRegion);
        }
        let (Message::Tagged { cookie, .. } | Message::Untagged { cookie, .. }) = &mut message;
        *cookie = ticket.0;
        let slot = self.streams.find(stream).ok_or(PostFailure::NoStream)?;
        let mut lower =
            self.streams.reach(slot, &mut self.associations).ok_or(PostFailure::NoStream)?;
        lower.post(message).map_err(PostFailure::Refused)?;
        self.posted(slot, region, ticket);
        Ok(())
    }

    fn post_rdmap(
        &mut self,
        stream: StreamId,
        mut request: WorkRequest<Memory>,
        region: Option<Stag>,
        ticket: Ticket,
    ) -> Result<(), PostFailure> {
        if region.is_some_and(|stag| self.tables.stag(stag).is_none()) {
            return Err(PostFailure::NoRegion);
        }
        let (WorkRequest::Send { cookie, .. }
        | WorkRequest::Write { cookie, .. }
        | WorkRequest::Read { cookie, .. }
        | WorkRequest::Atomic { cookie, .. }
        | WorkRequest::Immediate { cookie, .. }) = &mut request;
        *cookie = ticket.0;
        let slot = self.streams.find(stream).ok_or(PostFailure::NoStream)?;
        let mut lower =
            self.streams.reach(slot, &mut self.associations).ok_or(PostFailure::NoStream)?;
        lower.post_rdmap(request).map_err(PostFailure::Refused)?;
        self.posted(slot, region, ticket);
        Ok(())
    }

    /// A stream has taken what it was asked to send, from this region.
    fn posted(&mut self, slot: u32, region: Option<Stag>, ticket: Ticket) {
        if let Some(stag) = region
            && let Some(conn) = self.streams.get_mut(slot)
        {
            conn.pending.sources.push_back((ticket, stag));
            self.tables.add_source(stag);
        }
        self.touch(slot);
    }

    fn list_streams(&mut self, ticket: Ticket, now: Instant) {
        let conns = self.streams.iter().filter(|conn| conn.stage != Stage::Ended);
        let mut infos = conns.map(|conn| Self::info(conn, &self.associations, now)).peekable();
        loop {
            let streams: Vec<_> = infos.by_ref().take(STREAMS).collect();
            let last = infos.peek().is_none();
            let associations = if last { self.associations.infos() } else { Vec::new() };
            let part = Event::Streams { ticket, streams, associations, last };
            self.control.send(part);
            if last {
                return;
            }
        }
    }

    fn list_neighbours(&mut self, ticket: Ticket) {
        let interfaces = self.network.interfaces().iter();
        let neighbours = interfaces.flat_map(|i| {
            i.neighbours.iter().map(|(address, mac, state)| NeighbourInfo {
                interface: InterfaceId(i.id.0),
                address,
                mac,
                state,
            })
        });
        let neighbours = neighbours.collect();
        self.control.send(Event::Neighbours { ticket, neighbours });
    }

    fn drain(&mut self, now: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        self.phase = Phase::Draining;
        let slots = self.streams.slots();
        for slot in slots {
            match self.streams.get(slot).map(|conn| conn.stage) {
                Some(Stage::Starting | Stage::Announced) => self.close(slot, true, now),
                Some(Stage::Established) => self.close(slot, false, now),
                Some(Stage::Ended) | None => {}
            }
        }
        self.drain_associations(now);
    }

    fn stop(&mut self, now: Instant) {
        self.phase = Phase::Stopping(LAST_TURNS);
        let slots = self.streams.slots();
        for slot in slots {
            self.close(slot, true, now);
        }
        self.abort_associations();
    }
}
