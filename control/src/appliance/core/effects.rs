//! Routing between the parts of the control thread: effects of jobs, completions of messages, and the end of streams.
//!
//! The parts do not call each other. A part returns a value, and this module calls the part that the value concerns.
//! Routing is stateless.

use std::time::Instant;

use api::{ApiError, EventKind, JobInfo, Reply, Via};
use dataplane::memory::ring::Kind;
use dataplane::{CloseReason, Command, Event, StreamStats};
use ddp::rdmap::Outcome;
use ddp::{MESSAGE_QUEUE, Qn, StreamId};

use super::Core;
use super::connect::check_spec;
use crate::appliance::attempts::Attempt;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::{Env, api_id};
use crate::appliance::flights::EndContext;
use crate::appliance::jobs::{CompletedMessage, Jobs};
use crate::appliance::links::link_down_sentence;
use crate::appliance::pending::{
    AfterPost, Post, Purpose, StreamsQuery, TakenSlot, Task, stream_ended_error,
};
use crate::appliance::regions::Sink;
use crate::appliance::streams::{
    CompletedPost, Destination, EndedStream, UntaggedHeader, on_rdmap_error,
};
use crate::service::{Actions, Input};

impl Core {
    // --- jobs ---

    /// Runs `call` on the jobs and performs the resulting effects.
    pub(super) fn with_jobs<T>(
        &mut self,
        now: Instant,
        call: impl FnOnce(&mut Jobs, &mut Env, &mut Effects) -> T,
    ) -> T {
        let mut out = Effects::new();
        let answer = call(&mut self.jobs, &mut self.env, &mut out);
        for effect in out {
            self.route(effect, now);
        }
        answer
    }

    fn route(&mut self, effect: Effect, now: Instant) {
        match effect {
            Effect::Open { spec, task, start_key } => {
                self.open(*spec, Purpose::Task(task), start_key, now);
            }
            Effect::Begin { task, stream } => self.begin_task(stream, task, now),
            Effect::Claim { stream, job } => self.streams.claim(stream, job),
            Effect::Release { stream } => self.streams.release(stream),
            Effect::Close { stream, abort } => {
                if abort {
                    self.streams.mark_aborted_by_job(stream);
                }
                self.streams.close(&mut self.env, stream, abort);
            }
            Effect::Send { stream, qn, source, task } => {
                let post = Post::Task { task, bytes: 0 };
                self.streams.send(&mut self.env, stream, qn, source, post);
            }
            Effect::Write { stream, stag, to, source, task, bytes } => {
                let post = Post::Task { task, bytes };
                self.streams.write(&mut self.env, stream, stag, to, source, post);
            }
            Effect::Post { stream, request, region, task, bytes } => {
                let post = Post::Task { task, bytes };
                self.streams.post_rdmap(&mut self.env, stream, request, region, post);
            }
            Effect::Confirm { stream, task } => {
                if !self.streams.confirm(&mut self.env, stream, Post::Task { task, bytes: 0 }) {
                    self.with_jobs(now, |jobs, _, out| jobs.on_unconfirmable(task, now, out));
                }
            }
            Effect::UseRegion { job, name, offset, total } => {
                let memory = self.regions.sink_memory(&name, offset, total);
                let made = memory.map(|memory| (memory, offset));
                self.with_jobs(now, |jobs, _, out| jobs.on_sink_made(job, made, out));
            }
            Effect::AddSink { owner: of, stream, memory, offset, base_to, len, access } => {
                // A job ends with its stream and then needs no sink.
                let Some(pd) = self.streams.pd_of(stream) else { return };
                let sink = Sink { owner: of, stream, pd, memory, offset, base_to, len, access };
                let added = self.regions.add_sink(&mut self.env, sink);
                self.with_jobs(now, |jobs, _, out| jobs.on_sink_added(of, added, out));
            }
            Effect::RemoveSink(stag) => self.regions.remove_sink(&mut self.env, stag),
            Effect::RegionWritten { region, offset, bytes } => {
                self.regions.on_region_written(&mut self.env, region, offset, bytes);
            }
            Effect::PollProgress { job } => self.list_streams(StreamsQuery::Bench(job)),
            Effect::Log(event) => {
                self.env.log.push(event);
            }
        }
    }

    /// Starts a task on its stream, with the regions that the peer advertised.
    pub(super) fn begin_task(&mut self, stream: StreamId, task: Task, now: Instant) {
        let regions = self.streams.peer_regions(stream).to_vec();
        self.with_jobs(now, |jobs, env, out| jobs.begin(env, task, stream, &regions, now, out));
    }

    /// Returns the address of a job's peer: the address to connect to, or the remote address of an existing stream that
    /// the job may use. `rdmap`: true if an existing stream must be an RDMAP stream.
    pub(super) fn peer_of(&self, via: &Via, rdmap: bool) -> Result<String, ApiError> {
        match via {
            Via::Connect(spec) => check_spec(spec).map(|()| spec.remote.to_string()),
            Via::Stream(id) => self.streams.check_usable(StreamId(id.0), rdmap),
        }
    }

    /// Starts a job. Returns the state of the job.
    pub(super) fn start_job(
        &mut self,
        now: Instant,
        start: impl FnOnce(&mut Jobs, &mut Env, &mut Effects) -> Result<u64, ApiError>,
    ) -> Result<JobInfo, ApiError> {
        let id = self.with_jobs(now, start)?;
        self.jobs.info(&self.env, id, now)
    }

    pub(super) fn cancel_job(&mut self, id: u64, now: Instant) -> Result<JobInfo, ApiError> {
        self.jobs.info(&self.env, id, now)?;
        self.with_jobs(now, |jobs, _, out| jobs.cancel(id, out));
        self.jobs.info(&self.env, id, now)
    }

    // --- messages ---

    /// Handles the result of a posted message. The task or the service that posted the message receives the result.
    /// After an echo, the receive buffer is reposted.
    pub(super) fn on_posted(&mut self, posted: Option<CompletedPost>, now: Instant) {
        let Some(CompletedPost { stream, post, result }) = posted else { return };
        match post {
            Post::Echo { qn } => self.streams.repost_buffer(&mut self.env, stream, Qn(qn)),
            Post::Task { task, bytes } => {
                let completed = CompletedMessage { task, stream, bytes, result };
                self.with_jobs(now, |jobs, env, out| jobs.on_posted(env, completed, now, out));
            }
            Post::Service(after) => self.on_service_posted(stream, after, result, now),
        }
        self.streams.close_if_answered(&mut self.env, stream);
    }

    /// Handles the result of a service's operation. A failure ends the stream. After a success, `after` selects the
    /// next step: none, a repost of the receive buffer, or a notification of the service that its Read or Write is
    /// complete.
    fn on_service_posted(
        &mut self,
        id: StreamId,
        after: AfterPost,
        result: Result<Outcome, ApiError>,
        now: Instant,
    ) {
        match (result, after) {
            (Err(error), _) => self.streams.fail_service(&mut self.env, id, error.message),
            (Ok(_), AfterPost::Ignore) => {}
            (Ok(_), AfterPost::RepostBuffer) => {
                self.streams.repost_buffer(&mut self.env, id, MESSAGE_QUEUE);
            }
            (Ok(_), AfterPost::Read) => self.pass_to_service(id, Input::ReadDone, now),
            (Ok(_), AfterPost::Write) => self.pass_to_service(id, Input::WriteDone, now),
        }
    }

    fn count_untagged(&mut self, data: &[u8]) {
        self.env.tally.untagged_messages += 1;
        self.env.tally.untagged_bytes += data.len() as u64;
    }

    /// Passes a message to the client that waits for a reply, and reposts the message's buffer. Returns the message if
    /// no client waits.
    fn take_reply(&mut self, id: StreamId, qn: Qn, data: Vec<u8>, now: Instant) -> Option<Vec<u8>> {
        let rest = self.with_jobs(now, |jobs, _, out| jobs.take_reply(id, qn, data, now, out));
        if rest.is_none() {
            self.streams.repost_buffer(&mut self.env, id, qn);
        }
        rest
    }

    /// Handles an untagged message of a bare DDP stream.
    pub(super) fn on_untagged(
        &mut self,
        id: StreamId,
        message: UntaggedHeader,
        data: Vec<u8>,
        now: Instant,
    ) {
        let qn = message.qn;
        self.count_untagged(&data);
        if !self.streams.contains(id) {
            return;
        }
        if !self.streams.has_queue(id, qn) {
            return self.streams.on_last_message(&mut self.env, id, &data);
        }
        let Some(data) = self.take_reply(id, qn, data, now) else { return };
        let listener = self.streams.listener_of(id);
        let name = listener.and_then(|listener| self.listeners.name_of(listener));
        let file = listener.and_then(|listener| self.listeners.file_of(listener, qn.0));
        let to = Destination { name, file };
        self.streams.on_untagged(&mut self.env, id, message, data, to);
    }

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
            Event::Completed { ticket, outcome, .. } => {
                let posted = self.streams.on_posted(&mut self.env, ticket, Ok(outcome));
                self.on_posted(posted, now);
            }
            Event::RdmapError { stream, error } => on_rdmap_error(&mut self.env, stream, &error),
            Event::Terminated { stream, by_peer, terminate } => {
                self.streams.on_terminated(&mut self.env, stream, by_peer, &terminate);
            }
            _ => self.env.tally.unexpected_events += 1,
        }
    }

    /// Passes a Send to the job or client that waits for it, to the stream's service, or to the configured destination
    /// of the message queue.
    fn on_received(&mut self, id: StreamId, data: Vec<u8>, now: Instant) {
        self.count_untagged(&data);
        if self.with_jobs(now, |jobs, env, out| jobs.on_received(env, id, &data, now, out)) {
            return self.streams.repost_buffer(&mut self.env, id, MESSAGE_QUEUE);
        }
        let Some(data) = self.take_reply(id, MESSAGE_QUEUE, data, now) else { return };
        let Some(number) = self.streams.count_send(id) else { return };
        let listener = self.streams.listener_of(id);
        if listener.is_some_and(|listener| self.listeners.has_service(listener)) {
            return self.pass_to_service(id, Input::Received(data), now);
        }
        let name = listener.and_then(|listener| self.listeners.name_of(listener));
        let file = listener.and_then(|l| self.listeners.file_of(l, MESSAGE_QUEUE.0));
        let to = Destination { name, file };
        self.streams.on_send(&mut self.env, id, number, data, to);
    }

    // --- services ---

    /// Passes an input to the stream's service and performs the resulting actions.
    pub(super) fn pass_to_service(&mut self, id: StreamId, input: Input, now: Instant) {
        if let Some(listener) = self.streams.listener_of(id) {
            let actions = self.listeners.service_input(listener, id, input, now);
            self.queue_actions(actions);
        }
    }

    pub(super) fn queue_actions(&mut self, actions: Actions) {
        for (id, action) in actions {
            self.streams.perform(&mut self.env, id, action);
        }
    }

    pub(super) fn on_slot_cleared(&mut self, taken: &TakenSlot, result: Result<(), String>) {
        if self.regions.on_slot_cleared(&mut self.env, taken, result) {
            self.listeners.free_slot(taken.listener, taken.number);
        }
    }

    // --- links and stream aborts ---

    /// Polls the link states of the ports, if due. Aborts the streams of ports whose link has been down too long.
    pub(super) fn poll_links(&mut self, now: Instant) {
        for port in self.links.poll(&mut self.env, now) {
            self.end_streams_of(port);
        }
    }

    /// Handles a link change of the port with this index in `config.ports`. Aborts the port's streams if the link has
    /// been down too long.
    #[cfg(test)]
    pub(in crate::appliance) fn on_link(&mut self, port: usize, up: bool, now: Instant) {
        if self.links.on_link(&mut self.env, port, up, now) {
            self.end_streams_of(port);
        }
    }

    /// Records the fault of a port's Linux interface; `None` clears the fault.
    #[cfg(test)]
    pub(in crate::appliance) fn on_fault(
        &mut self,
        port: usize,
        fault: Option<(dataplane::port::DeviceFault, String)>,
    ) {
        self.links.on_fault(&mut self.env, port, fault);
    }

    /// Aborts the streams of a port whose link has been down too long.
    fn end_streams_of(&mut self, port: usize) {
        let name = self.env.context.config.ports[port].name.clone();
        self.streams.abort_on(&mut self.env, &link_down_sentence(&name), |env, interface| {
            let interfaces = &env.context.config.interfaces;
            interfaces.get(usize::from(interface.0)).is_some_and(|i| i.port == name)
        });
    }

    pub(super) fn on_closed(
        &mut self,
        id: StreamId,
        reason: &CloseReason,
        stats: &StreamStats,
        now: Instant,
    ) {
        let Some(ended) = self.streams.on_closed(&mut self.env, id, reason, stats) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        self.programs.on_closed(&mut self.env, id, ended.graceful, &ended.error.message);
        let EndedStream { listener, remote, regions, slot, job, posts, waiting, error, .. } = ended;
        if ended.rejected {
            // A rejected stream consumed a credit of the listener. The end of the stream returns the credit.
            if let Some(listener) = listener {
                self.env.send_command(id.worker(), Command::Credits { listener, additional: 1 });
            }
            return self.flights.discard(id);
        }
        let ending = EndContext {
            listener: listener.and_then(|listener| self.listeners.name_of(listener)),
            job,
            sentence: &error.message,
            graceful: ended.graceful,
        };
        let bounds = self.recorder_bounds();
        self.flights.on_ended(id, reason, stats, &ending, bounds, now);
        if ended.never_established {
            let listener = listener.and_then(|listener| self.listeners.name_of(listener));
            let (transport, local) = (reason.transport(), ended.local);
            let attempt = Attempt { listener, transport, local, remote };
            self.env.report_not_established(&attempt, reason, now);
        }
        self.regions.announce(&mut self.env, &regions, id, Kind::Closed);
        self.regions.release(&mut self.env, &regions, id);
        if let Some(listener) = listener {
            let actions = self.listeners.service_closed(listener, id, now);
            self.queue_actions(actions);
        }
        if let Some(taken) = slot {
            self.regions.release_slot(&mut self.env, taken);
        }
        let ping = stream_ended_error(error.clone());
        self.with_jobs(now, |jobs, _, out| jobs.fail_ping(id, ping, out));
        if let Some(listener) = listener {
            self.listeners.on_stream_closed(&mut self.env, listener, remote.ip());
        }
        let counts = stats.ddp();
        self.env.log.push(EventKind::StreamClosed {
            stream: api_id(id),
            reason: ended.sentence,
            placed: counts.placed_in_order_bytes + counts.placed_out_of_order_bytes,
            sent: stats.bytes_acknowledged(),
        });
        for post in posts {
            let result = Err(error.clone());
            self.on_posted(Some(CompletedPost { stream: id, post, result }), now);
        }
        self.jobs.on_stream_ended(id, ended.graceful, &error);
        if let Some(job) = job {
            // An acknowledgement shows that the peer's TCP has received the bytes, not that they were placed. Only a
            // graceful end without a last message proves placement.
            let failed = (!ended.graceful).then_some(error);
            self.with_jobs(now, |jobs, _, out| {
                jobs.on_job_stream_closed(job, id, failed, stats, now, out);
            });
        }
        waiting.into_iter().for_each(|answer| answer.send(Ok(Reply::EMPTY)));
    }
}
