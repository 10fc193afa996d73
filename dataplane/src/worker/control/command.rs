//! Handles the control thread's commands. A command with a ticket is answered by an event with this ticket, often
//! [`Event::Done`]. A command without a ticket that names an unknown stream has no effect.
//!
//! Not included: the effects of commands about programs, IPsec and captures ([`programs`](crate::worker::programs),
//! [`protect`](crate::worker::protect), [`receive`](crate::worker::receive)), and lists ([`listing`](super::listing)).

use base::Instant;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Cookie, Message, Stag, StreamId};
use tcp_lite::endpoint::Context;

use crate::api::{
    Command, CommandError, Event, InterfaceId, ListenerId, NeighbourInfo, PostFailure, Service,
    SourceRemoval, Ticket,
};
use crate::io::PortIo;
use crate::memory::Memory;
use crate::net::neighbour::Neighbour;
use crate::worker::flows::conn::{Stage, Stream};
use crate::worker::flows::echo::EchoCount;
use crate::worker::flows::lower_layer::{AnswerError, LowerLayerMut};
use crate::worker::{Core, Env, MAX_RESET_TURNS, Phase};

impl<Io: PortIo> Core<Io> {
    pub(in crate::worker) fn handle_command(&mut self, command: Command, now: Instant) {
        match command {
            Command::AddStag { entry, ticket } => {
                let result = self.env.tables.add_stag(entry);
                self.report_done(ticket, result);
            }
            Command::RemoveStag { stag, removal: sources, ticket } => {
                self.remove_stag(stag, sources, ticket, now)
            }
            Command::BindStag { stag, stream, ticket } => self.bind_stag(stag, stream, ticket, now),
            Command::SetAccess { stag, access, ticket } => {
                let result = self.set_access(stag, access, now);
                self.report_done(ticket, result);
            }
            Command::AddListener { listener, ticket } => {
                let result = self.env.admission.listeners_mut().add(listener);
                self.report_done(ticket, result);
            }
            Command::RemoveListener { listener, ticket } => self.remove_listener(listener, ticket),
            Command::SetPeers { listener, peers, ticket } => {
                self.set_peers(listener, peers, ticket);
            }
            Command::Credits { listener, additional: more } => {
                self.env.admission.listeners_mut().add_credits(listener, more)
            }
            Command::Accept { stream, pd, private_data, mut ulp, service } => {
                service.configure(&mut ulp);
                if let Service::Program(pair) = service
                    && self.configure_pair(pair, &mut ulp).is_err()
                {
                    return self.abort_stream(stream);
                }
                self.set_service(stream, service, EchoCount::new(&ulp));
                self.answer_request(stream, now, |mut lower, id, cx| {
                    lower.accept(now, id, pd, &private_data, ulp, cx)
                });
            }
            Command::Reject { stream, private_data } => {
                self.answer_request(stream, now, |mut lower, _, _| {
                    lower.reject(now, &private_data)
                });
            }
            Command::Connect(connect) => self.connect(*connect, now),
            Command::Post { stream, message, region, ticket } => {
                if let Err(reason) = self.post(stream, message, region, ticket) {
                    let failed = Event::PostFailed { stream, ticket, reason };
                    self.env.control.send(failed);
                }
            }
            Command::PostRdmap { stream, request, region, ticket } => {
                if let Err(reason) = self.post_rdmap(stream, request, region, ticket) {
                    let failed = Event::PostFailed { stream, ticket, reason };
                    self.env.control.send(failed);
                }
            }
            Command::PostBuffers { stream, qn, buffers } => {
                if let Some((mut stream, env)) = self.find(stream) {
                    stream.post_buffers(qn, buffers);
                    env.make_ready(&mut stream);
                }
            }
            Command::PeerReady { stream } => {
                if let Some((mut stream, env)) = self.find(stream) {
                    // RFC 5043 §6.2: over SCTP the endpoint does not wait for a message of the peer, because the
                    // acknowledgement of the Accept suffices. Only a TCP endpoint is therefore notified.
                    if let Some(carrier) = stream.conn.lower.connection() {
                        carrier.endpoint_mut().set_peer_ready();
                    }
                    env.make_ready(&mut stream);
                }
            }
            Command::AddProgram { program, ticket } => {
                let result = self.add_program(*program);
                self.report_done(ticket, result);
            }
            Command::RemoveProgram { program, ticket } => {
                if let Err(error) = self.remove_program(program, ticket) {
                    self.report_done(ticket, Err(error));
                }
            }
            Command::AddCompletionQueue { queue, ticket } => {
                let result = self.add_completion_queue(*queue);
                self.report_done(ticket, result);
            }
            Command::RemoveCompletionQueue { program, number, ticket } => {
                let result = self.remove_completion_queue(program, number);
                self.report_done(ticket, result);
            }
            Command::AddQueuePair { pair, ticket } => {
                let result = self.add_queue_pair(*pair);
                self.report_done(ticket, result);
            }
            Command::RemoveQueuePair { id, ticket } => {
                let result = self.remove_queue_pair(id);
                self.report_done(ticket, result);
            }
            Command::EndQueuePair { id } => self.end_queue_pair(id),
            Command::Window { program, change, ticket } => {
                let result = self.change_window(program, change, now);
                self.report_done(ticket, result);
            }
            Command::WindowBound { id, sequence, is_bound } => {
                self.on_window_bound(id, sequence, is_bound, now);
            }
            Command::CheckRegion { stag, ticket } => {
                let result = self.check_no_windows(stag);
                self.report_done(ticket, result);
            }
            Command::Load { stream, load, ticket } => self.start_load(stream, load, ticket, now),
            Command::StopLoad { stream } => self.stop_load(stream, now),
            Command::Close { stream, abort } => {
                if let Some((mut stream, env)) = self.find(stream) {
                    env.close(&mut stream, abort, now);
                }
            }
            Command::Fail { stream } => {
                if let Some((mut stream, env)) = self.find(stream) {
                    if let Some(mut lower) = stream.lower() {
                        lower.fail_ulp(now, &mut env.tables.context());
                    }
                    env.make_ready(&mut stream);
                }
            }
            Command::AnnounceClose { stream } => {
                if let Some((mut stream, env)) = self.find(stream) {
                    if let Some(mut lower) = stream.lower() {
                        lower.begin_confirmation(now);
                    }
                    env.control.send(Event::Confirming { stream: stream.conn.id });
                    env.make_ready(&mut stream);
                }
            }
            Command::ReleaseRead { stream } => {
                if let Some((mut stream, env)) = self.find(stream) {
                    if let Some(mut lower) = stream.lower() {
                        lower.release_read();
                    }
                    env.make_ready(&mut stream);
                }
            }
            Command::ListStreams { selection: which, ticket } => self.queue_list(which, ticket),
            Command::ListRecordings { streams, ticket } => {
                self.list_recordings(&streams, ticket, now);
            }
            Command::ListNeighbours { ticket } => self.list_neighbours(ticket),
            Command::Sa { change, ticket } => {
                let result = self.change_sa(change, now);
                self.report_done(ticket, result);
            }
            Command::ListSas { ticket } => self.list_sas(ticket),
            Command::Capture { port, tap, ticket } => {
                let result = self.set_tap(port, tap);
                self.report_done(ticket, result);
            }
            Command::PortChanged { port, mac } => self.port_changed(port, mac, now),
            Command::Drain => self.drain(now),
            Command::Stop => self.stop(now),
        }
    }

    /// Aborts a stream whose QP does not exist any more.
    pub(in crate::worker) fn abort_stream(&mut self, stream: StreamId) {
        if let Some((mut stream, env)) = self.find(stream) {
            env.abort(&mut stream);
            env.make_ready(&mut stream);
        }
    }

    pub(in crate::worker) fn report_done(
        &mut self,
        ticket: Ticket,
        result: Result<(), CommandError>,
    ) {
        self.env.control.send(Event::Done { ticket, result });
    }

    /// Answers a peer's request to open a stream. The stream fails if the answer's private data is too long.
    fn answer_request(
        &mut self,
        stream: StreamId,
        now: Instant,
        respond: impl FnOnce(
            LowerLayerMut<'_>,
            StreamId,
            &mut Context<'_, Memory>,
        ) -> Result<(), AnswerError>,
    ) {
        let Some((mut found, env)) = self.find(stream) else { return };
        let Some(lower) = found.lower() else { return };
        if respond(lower, stream, &mut env.tables.context()) == Err(AnswerError::TooLong)
            && let Some(mut lower) = found.lower()
        {
            lower.fail(now, &mut env.tables.context());
        }
        env.make_ready(&mut found);
    }

    /// Removes a region. This worker places no more data in it. `Done` is reported once no post or load uses the
    /// region. With [`SourceRemoval::Abort`], streams whose posts or loads use the region are aborted.
    fn remove_stag(&mut self, stag: Stag, sources: SourceRemoval, ticket: Ticket, now: Instant) {
        self.revoke_from_programs(stag, now);
        let removed = self.env.tables.remove_stag(stag).map(|entry| {
            self.revoke_users(stag, entry.stream, now);
        });
        if self.env.tables.is_source(stag) {
            self.stop_loads_on(stag, now);
        }
        // A load without outstanding messages has ended, and no longer uses the region. Other loads and incomplete
        // posts still use it.
        if !self.env.tables.is_source(stag) {
            return self.report_done(ticket, removed);
        }
        self.env.tables.defer_removal(stag, ticket);
        if sources == SourceRemoval::Abort {
            for slot in self.streams.slots() {
                let Some((mut stream, env)) = self.stream_mut(slot) else { continue };
                let conn = &stream.conn;
                if conn.transient.sources.iter().any(|&(_, s)| s == stag) || conn.has_load_on(stag)
                {
                    env.abort(&mut stream);
                    env.make_ready(&mut stream);
                }
            }
        }
    }

    /// Binds a region to a stream, or with `None` to all streams of its domain. Terminates the other streams whose peer
    /// has an RDMA Read from the region in progress: the Read could return data of the new stream's peer.
    fn bind_stag(&mut self, stag: Stag, stream: Option<StreamId>, ticket: Ticket, now: Instant) {
        let result = self.rebind(stag, stream, now);
        self.report_done(ticket, result);
    }

    /// Binds a region to a stream that is being opened, if the region is in domain `pd` and bound to some stream. Other
    /// regions are skipped: they were removed, belong to another domain, or are shared by all streams of their domain.
    pub(in crate::worker) fn bind_for_stream(
        &mut self,
        stag: Stag,
        pd: ddp::PdId,
        stream: StreamId,
        now: Instant,
    ) {
        if self.env.tables.is_bound(stag, pd) {
            // Cannot fail: the STag exists.
            let _ = self.rebind(stag, Some(stream), now);
        }
    }

    fn rebind(
        &mut self,
        stag: Stag,
        stream: Option<StreamId>,
        now: Instant,
    ) -> Result<(), CommandError> {
        let before = self.env.tables.bind_stag(stag, stream)?;
        match (before, stream) {
            (Some(Some(old)), Some(new)) if old != new => {
                self.revoke_users(stag, Some(old), now);
            }
            (Some(None), Some(new)) => self.revoke_all(stag, |id| id != new, now),
            _ => {}
        }
        Ok(())
    }

    /// Sets the access rights of peers to a region. The rights are checked for each placement and each atomic
    /// operation, but for an RDMA Read only at its start (RFC 5041 §8.3.1 (5), (6)). Revoking the right to read
    /// therefore terminates streams with a Read in progress.
    fn set_access(&mut self, stag: Stag, access: Access, now: Instant) -> Result<(), CommandError> {
        let bound = self.env.tables.stag(stag).and_then(|entry| entry.stream);
        let before = self.env.tables.set_access(stag, access)?;
        if before.remote_read() && !access.remote_read() {
            self.revoke_users(stag, bound, now);
        }
        Ok(())
    }

    /// Terminates each stream whose peer has an RDMA Read from this region in progress. `bound` is the stream to which
    /// the region is bound, if any. If the region is bound, [`rebind`](Self::rebind) has already terminated the Reads
    /// of all other streams.
    pub(in crate::worker) fn revoke_users(
        &mut self,
        stag: Stag,
        bound: Option<StreamId>,
        now: Instant,
    ) {
        match bound {
            Some(stream) => {
                if let Some(slot) = self.streams.find_stream(stream) {
                    self.revoke_on(slot, stag, now);
                }
            }
            None => self.revoke_all(stag, |_| true, now),
        }
    }

    /// Terminates each stream that `is_selected` selects and whose peer has an RDMA Read from this region in progress.
    fn revoke_all(&mut self, stag: Stag, is_selected: impl Fn(StreamId) -> bool, now: Instant) {
        for slot in self.streams.slots() {
            if self.streams.get(slot).is_some_and(|conn| is_selected(conn.id)) {
                self.revoke_on(slot, stag, now);
            }
        }
    }

    fn revoke_on(&mut self, slot: u32, stag: Stag, now: Instant) {
        let Some((mut stream, env)) = self.stream_mut(slot) else { return };
        if let Some(mut lower) = stream.lower()
            && lower.revoke_stag(now, stag, &mut env.tables.context())
        {
            env.make_ready(&mut stream);
        }
    }

    fn remove_listener(&mut self, listener: ListenerId, ticket: Ticket) {
        let has_half_open = self.env.admission.listeners().has_half_open(listener);
        let result = self.env.admission.listeners_mut().remove(listener);
        if has_half_open {
            self.abort_handshakes(listener, |_| true);
        }
        self.report_done(ticket, result);
    }

    fn post(
        &mut self,
        stream: StreamId,
        mut message: Message<Memory>,
        region: Option<Stag>,
        ticket: Ticket,
    ) -> Result<(), PostFailure> {
        if region.is_some_and(|stag| self.env.tables.stag(stag).is_none()) {
            return Err(PostFailure::NoRegion);
        }
        let (Message::Tagged { cookie, .. } | Message::Untagged { cookie, .. }) = &mut message;
        *cookie = Cookie::user(ticket.0);
        let (mut stream, env) = self.find(stream).ok_or(PostFailure::NoStream)?;
        let mut lower = stream.lower().ok_or(PostFailure::NoStream)?;
        lower.post(message).map_err(PostFailure::Refused)?;
        env.record_post(&mut stream, region, ticket);
        Ok(())
    }

    fn post_rdmap(
        &mut self,
        stream: StreamId,
        mut request: WorkRequest<Memory>,
        region: Option<Stag>,
        ticket: Ticket,
    ) -> Result<(), PostFailure> {
        if region.is_some_and(|stag| self.env.tables.stag(stag).is_none()) {
            return Err(PostFailure::NoRegion);
        }
        let (WorkRequest::Send { cookie, .. }
        | WorkRequest::Write { cookie, .. }
        | WorkRequest::Read { cookie, .. }
        | WorkRequest::Atomic { cookie, .. }
        | WorkRequest::Immediate { cookie, .. }) = &mut request;
        *cookie = Cookie::user(ticket.0);
        let (mut stream, env) = self.find(stream).ok_or(PostFailure::NoStream)?;
        let mut lower = stream.lower().ok_or(PostFailure::NoStream)?;
        lower.post_rdmap(request).map_err(PostFailure::Refused)?;
        env.record_post(&mut stream, region, ticket);
        Ok(())
    }

    fn list_neighbours(&mut self, ticket: Ticket) {
        let interfaces = self.env.network.interfaces().iter();
        let neighbours = interfaces.flat_map(|i| {
            i.neighbours.iter().map(|Neighbour { address, mac, state }| NeighbourInfo {
                interface: InterfaceId(i.id.0),
                address,
                mac,
                state,
            })
        });
        let neighbours = neighbours.collect();
        self.env.control.send(Event::Neighbours { ticket, neighbours });
    }

    fn drain(&mut self, now: Instant) {
        if self.env.phase != Phase::Running {
            return;
        }
        self.env.phase = Phase::Draining;
        for slot in self.streams.slots() {
            let Some((mut stream, env)) = self.stream_mut(slot) else { continue };
            let holds_confirmations =
                stream.lower().is_some_and(|lower| lower.holds_confirmations());
            match stream.conn.stage {
                Stage::Starting | Stage::Announced => env.close(&mut stream, true, now),
                // The control thread closes the stream once the received data are written to files.
                Stage::Established if holds_confirmations => {}
                Stage::Established => env.close(&mut stream, false, now),
                Stage::Ended => {}
            }
        }
        self.drain_associations(now);
    }

    fn stop(&mut self, now: Instant) {
        self.env.phase = Phase::Stopping(MAX_RESET_TURNS);
        for slot in self.streams.slots() {
            if let Some((mut stream, env)) = self.stream_mut(slot) {
                env.close(&mut stream, true, now);
            }
        }
        self.abort_associations();
    }
}

impl<Io: PortIo> Env<Io> {
    fn close(&mut self, stream: &mut Stream<'_>, abort: bool, now: Instant) {
        if abort {
            self.abort(stream);
        } else if stream.conn.transient.closing {
            // The stream closes once the last answers of its Echo service are posted.
        } else if let Some(mut lower) = stream.lower() {
            // A graceful close would confirm all received data, including data that the control thread has not written
            // to files yet.
            match lower.is_unconfirmed() {
                true => lower.fail_ulp(now, &mut self.tables.context()),
                false => lower.shutdown(now),
            }
        }
        self.make_ready(stream);
    }

    /// Records the region that a post uses, if any, and makes the stream ready to send.
    fn record_post(&mut self, stream: &mut Stream<'_>, region: Option<Stag>, ticket: Ticket) {
        if let Some(stag) = region {
            stream.conn.transient.sources.push_back((ticket, stag));
            self.tables.add_source(stag);
        }
        self.make_ready(stream);
    }
}
