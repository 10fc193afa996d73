//! Operations of API clients on streams: put, get, send, ping, atomics, bench.
//!
//! Inputs are the clients' requests, and events of the operations' streams, memory and messages. Requests to other
//! parts of the control thread are returned as [`Effects`].

mod atomics;
mod bench;
mod gets;
mod job;
mod limits;
mod pings;
mod puts;
mod remote_target;
mod sends;
mod staging;
mod transfers;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::{
    ApiError, AtomicSpec, BenchSpec, GetSpec, Input, JobInfo, PingSpec, PutSpec, Responder,
    SendSpec, Via,
};
use base::histogram::Counts;
use base::plural::seconds;
use dataplane::memory::Memory;
use dataplane::{LoadReport, StreamInfo, StreamStats};
use ddp::advert::Advertised;
use ddp::rdmap::Outcome;
use ddp::{Qn, Stag, StreamId};

use self::atomics::Atomics;
use self::bench::{Benches, OpenedStream};
use self::limits::{Limit, Limits};
use self::pings::Pings;
use self::sends::Sends;
use self::transfers::Transfers;
#[cfg(test)]
pub(super) use self::transfers::{INPUT_WAIT, MAX_MESSAGE};
use super::effect::Effects;
use super::env::Env;
use super::loader::LoadedMemory;
use super::pending::{SinkOwner, Task};

/// A completed or failed message of a task.
pub(super) struct CompletedMessage {
    pub task: Task,
    pub stream: StreamId,
    /// Bytes of a job that the message carries.
    pub bytes: u64,
    pub result: Result<Outcome, ApiError>,
}

/// Operations of all kinds, and their time limits.
#[derive(Default)]
pub(super) struct Jobs {
    transfers: Transfers,
    sends: Sends,
    pings: Pings,
    atomics: Atomics,
    benches: Benches,
    limits: Limits,
}

impl Jobs {
    // --- requests ---

    /// Starts a put. Returns its job number. `peer` is the remote address of the put's stream, or the error if the
    /// stream cannot be used.
    pub(super) fn put(
        &mut self,
        env: &mut Env,
        spec: PutSpec,
        peer: Result<String, ApiError>,
        now: Instant,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        let within = time_limit(&spec.via);
        let id = self.transfers.put(env, spec, peer, now, out)?;
        self.limit(Task::Job(id), within, now);
        Ok(id)
    }

    /// Passes the client's input to a put without a file.
    pub(super) fn take_input(
        &mut self,
        env: &mut Env,
        id: u64,
        input: Input,
    ) -> Result<(), ApiError> {
        self.transfers.take_input(env, id, input)
    }

    /// Starts a get, like [`put`](Self::put).
    pub(super) fn get(
        &mut self,
        env: &mut Env,
        spec: GetSpec,
        peer: Result<String, ApiError>,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        let within = time_limit(&spec.via);
        let id = self.transfers.get(env, spec, peer, out)?;
        self.limit(Task::Job(id), within, env.now);
        Ok(id)
    }

    fn limit(&mut self, task: Task, time_limit: Option<Duration>, now: Instant) {
        let Jobs { transfers, sends, pings, atomics, limits, .. } = self;
        limits.add(task, time_limit, now, |task| match task {
            Task::Job(id) => transfers.is_pending(id),
            Task::Send(id) => sends.is_pending(id),
            Task::Ping(id) => pings.is_pending(id),
            Task::Atomic(id) => atomics.is_pending(id),
            Task::Bench(..) => false,
        });
    }

    /// Sends a message. `usable`: an error if the requested stream cannot be used.
    pub(super) fn send(
        &mut self,
        spec: SendSpec,
        usable: Result<(), ApiError>,
        answer: Responder,
        now: Instant,
        out: &mut Effects,
    ) {
        let within = time_limit(&spec.via);
        let id = self.sends.request(spec, usable, answer, now, out);
        self.limit(Task::Send(id), within, now);
    }

    pub(super) fn ping(
        &mut self,
        spec: PingSpec,
        answer: Responder,
        now: Instant,
        out: &mut Effects,
    ) {
        let within = spec.connect.timeout();
        if let Some(id) = self.pings.request(spec, answer, out) {
            self.limit(Task::Ping(id), within, now);
        }
    }

    /// Starts an atomic operation. `usable`: an error if the requested stream cannot be used.
    pub(super) fn atomic(
        &mut self,
        spec: AtomicSpec,
        usable: Result<(), ApiError>,
        answer: Responder,
        now: Instant,
        out: &mut Effects,
    ) {
        let within = time_limit(&spec.via);
        let id = self.atomics.request(spec, usable, answer, now, out);
        self.limit(Task::Atomic(id), within, now);
    }

    /// Starts a bench. Returns its job number.
    pub(super) fn bench(
        &mut self,
        env: &mut Env,
        spec: BenchSpec,
        now: Instant,
        out: &mut Effects,
    ) -> Result<u64, ApiError> {
        self.benches.request(env, spec, now, out)
    }

    pub(super) fn cancel(&mut self, id: u64, out: &mut Effects) {
        self.transfers.cancel(id, out);
        self.benches.cancel(id, out);
    }

    pub(super) fn cancel_benches(&mut self, out: &mut Effects) {
        self.benches.cancel_all(out);
    }

    /// Renews the lease of a bench whose job a client has requested.
    pub(super) fn renew_lease(&mut self, id: u64, now: Instant) {
        self.benches.renew_lease(id, now);
    }

    // --- streams ---

    /// Starts a task on its stream. `regions`: the regions that the peer advertised.
    pub(super) fn begin(
        &mut self,
        env: &mut Env,
        task: Task,
        stream: StreamId,
        regions: &[Advertised],
        now: Instant,
        out: &mut Effects,
    ) {
        match task {
            Task::Job(id) => self.transfers.begin(env, id, stream, regions, now, out),
            Task::Send(id) => self.sends.begin(id, stream, now, out),
            Task::Ping(id) => self.pings.begin(env, id, stream),
            Task::Atomic(id) => self.atomics.begin(id, stream, regions, now, out),
            Task::Bench(id, since) => {
                let opened = OpenedStream { stream, since, regions };
                self.benches.begin(env, id, opened, now, out);
            }
        }
    }

    /// Records the address at which a task's stream reached the peer.
    pub(super) fn on_reached(&mut self, task: Task, remote: SocketAddr) {
        match task {
            Task::Job(id) => self.transfers.on_reached(id, remote),
            Task::Ping(id) => self.pings.on_reached(id, remote),
            Task::Bench(id, _) => self.benches.on_reached(id, remote),
            Task::Send(_) | Task::Atomic(_) => {}
        }
    }

    /// Ends a task whose stream could not be opened.
    pub(super) fn on_refused(
        &mut self,
        task: Task,
        error: ApiError,
        now: Instant,
        out: &mut Effects,
    ) {
        match task {
            Task::Job(id) => self.transfers.fail(id, error, out),
            Task::Send(id) => self.sends.on_refused(id, error),
            Task::Ping(id) => self.pings.on_refused(id, error),
            Task::Atomic(id) => self.atomics.on_refused(id, error),
            Task::Bench(id, _) => self.benches.on_refused(id, error, now, out),
        }
    }

    /// Handles the completion or failure of a task's message.
    pub(super) fn on_posted(
        &mut self,
        env: &mut Env,
        completed: CompletedMessage,
        now: Instant,
        out: &mut Effects,
    ) {
        let CompletedMessage { task, stream, bytes, result } = completed;
        match task {
            Task::Job(id) => {
                self.transfers.on_posted(env, id, bytes, result.map(drop), now, out);
            }
            Task::Send(id) => self.sends.on_posted(id, stream, result.map(drop), now, out),
            Task::Atomic(id) => self.atomics.on_posted(id, stream, result, now, out),
            Task::Ping(_) => {
                if let Err(error) = result {
                    self.pings.fail(stream, error, out);
                }
            }
            // No action: the workers post the load, and a perftest exchange continues with the server's answer.
            Task::Bench(..) => {}
        }
    }

    /// Handles a task whose stream cannot request a confirmation from the peer.
    pub(super) fn on_unconfirmable(&mut self, task: Task, now: Instant, out: &mut Effects) {
        match task {
            Task::Job(id) => self.transfers.on_unconfirmable(id, now, out),
            Task::Send(id) => self.sends.on_unconfirmable(id, now, out),
            Task::Ping(_) | Task::Atomic(_) | Task::Bench(..) => {}
        }
    }

    /// Handles a Send of the peer. Returns false if the stream is neither the stream of a ping nor the control stream
    /// of a bench.
    pub(super) fn on_received(
        &mut self,
        env: &mut Env,
        stream: StreamId,
        data: &[u8],
        now: Instant,
        out: &mut Effects,
    ) -> bool {
        self.pings.on_received(stream, data, now, out)
            || self.benches.on_received(env, stream, data, now, out)
    }

    /// Passes a message to the first client that waits for a message on this queue. Returns the message if no client
    /// waits.
    pub(super) fn take_reply(
        &mut self,
        stream: StreamId,
        qn: Qn,
        data: Vec<u8>,
        now: Instant,
        out: &mut Effects,
    ) -> Option<Vec<u8>> {
        self.sends.take_reply(stream, qn, data, now, out)
    }

    /// Fails the ping on this stream, if any.
    pub(super) fn fail_ping(&mut self, stream: StreamId, error: ApiError, out: &mut Effects) {
        self.pings.fail(stream, error, out);
    }

    /// Ends the acknowledged sends on a stream that has ended, because no reply can arrive. `graceful`: true if the
    /// stream ended gracefully.
    pub(super) fn on_stream_ended(&mut self, stream: StreamId, graceful: bool, error: &ApiError) {
        self.sends.on_stream_ended(stream, graceful, error);
    }

    /// Handles the end of a job's stream. `failed`: the cause, unless the stream ended gracefully.
    pub(super) fn on_job_stream_closed(
        &mut self,
        id: u64,
        stream: StreamId,
        failed: Option<ApiError>,
        stats: &StreamStats,
        now: Instant,
        out: &mut Effects,
    ) {
        self.benches.on_closed(id, stream, failed.as_ref(), now, out);
        self.transfers.on_closed(id, failed, stats, now, out);
    }

    /// Handles the end of a bench's load on one stream.
    pub(super) fn on_load_done(
        &mut self,
        id: u64,
        stream: StreamId,
        report: &LoadReport,
        now: Instant,
        out: &mut Effects,
    ) {
        self.benches.on_load_done(id, stream, report, now, out);
    }

    /// Checks the progress of a bench. `streams`: all streams, as reported by the workers.
    pub(super) fn on_bench_progress(
        &mut self,
        id: u64,
        streams: &HashMap<StreamId, StreamInfo>,
        now: Instant,
        out: &mut Effects,
    ) {
        self.benches.on_progress(id, streams, now, out);
    }

    // --- memory ---

    /// Handles the opened source of a put, or the failure to open it.
    pub(super) fn on_staged(
        &mut self,
        id: u64,
        result: Result<LoadedMemory, String>,
        out: &mut Effects,
    ) {
        self.transfers.on_staged(id, result, out);
    }

    /// Handles a piece of a put's source, or a failed read.
    pub(super) fn on_filled(
        &mut self,
        env: &mut Env,
        id: u64,
        result: Result<LoadedMemory, String>,
        now: Instant,
        out: &mut Effects,
    ) {
        self.transfers.on_filled(env, id, result, now, out);
    }

    /// Handles the memory of a get's sink and the offset in it, or the failure to provide it.
    pub(super) fn on_sink_made(
        &mut self,
        id: u64,
        result: Result<(Memory, u64), ApiError>,
        out: &mut Effects,
    ) {
        self.transfers.on_sink_made(id, result, out);
    }

    /// Handles the result of writing a get's file.
    pub(super) fn on_saved(&mut self, id: u64, result: Result<(), String>, out: &mut Effects) {
        self.transfers.on_saved(id, result, out);
    }

    /// Handles the memory created for a ping, or the failure to create it.
    pub(super) fn on_ping_memory(
        &mut self,
        stream: StreamId,
        result: Result<LoadedMemory, String>,
        out: &mut Effects,
    ) {
        self.pings.on_memory(stream, result, out);
    }

    /// Handles the memory created for a bench, or the failure to create it.
    pub(super) fn on_bench_memory(
        &mut self,
        id: u64,
        result: Result<LoadedMemory, String>,
        out: &mut Effects,
    ) {
        self.benches.on_memory(id, result, out);
    }

    /// Handles the STag of a sink, or its refusal. The registration with the workers is in progress.
    pub(super) fn on_sink_added(
        &mut self,
        owner: SinkOwner,
        result: Result<Stag, ApiError>,
        out: &mut Effects,
    ) {
        match (owner, result) {
            (SinkOwner::Job(id), Ok(stag)) => self.transfers.on_sink_added(id, stag),
            (SinkOwner::Job(id), Err(error)) => self.transfers.fail(id, error, out),
            (SinkOwner::Ping(stream), Ok(stag)) => self.pings.on_sink_added(stream, stag),
            (SinkOwner::Ping(stream), Err(error)) => self.pings.fail(stream, error, out),
            (SinkOwner::Bench(id, stream), Ok(stag)) => {
                self.benches.on_sink_added(id, stream, stag)
            }
            (SinkOwner::Bench(id, _), Err(error)) => self.benches.fail(id, error, out),
        }
    }

    /// Handles the workers' answer to the registration of a sink's STag.
    pub(super) fn on_sink_ready(
        &mut self,
        env: &mut Env,
        owner: SinkOwner,
        result: Result<(), String>,
        now: Instant,
        out: &mut Effects,
    ) {
        match owner {
            SinkOwner::Job(id) => self.transfers.on_sink_ready(env, id, result, now, out),
            SinkOwner::Ping(stream) => self.pings.on_sink_ready(stream, result, now, out),
            SinkOwner::Bench(id, _) => self.benches.on_sink_ready(env, id, result, now, out),
        }
    }

    // --- time ---

    /// Returns the time at which the next timer expires. `None` if no timer is set.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let all = [
            self.sends.poll_timeout(),
            self.pings.poll_timeout(),
            self.benches.poll_timeout(),
            self.transfers.poll_timeout(),
            self.limits.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Fails operations whose time limit has expired. An operation whose stream is still being opened fails with the
    /// open, which has the same time limit.
    pub(super) fn expire_limits(&mut self, now: Instant, out: &mut Effects) {
        for Limit { time_limit: within, task, .. } in self.limits.expired(now) {
            let within = seconds(within);
            match task {
                Task::Job(id) => self.transfers.expire(id, &within, out),
                Task::Send(id) => self.sends.expire(id, &within, out),
                Task::Ping(id) => self.pings.expire(id, &within, out),
                Task::Atomic(id) => self.atomics.expire(id, &within, out),
                Task::Bench(..) => {}
            }
        }
    }

    /// Ends sends whose wait for a reply or for the peer's error has timed out.
    pub(super) fn expire_sends(&mut self, now: Instant, out: &mut Effects) {
        self.sends.handle_timeout(now, out);
    }

    /// Ends transfers whose wait for the peer's error or for the client's input has timed out.
    pub(super) fn expire_transfers(&mut self, now: Instant, out: &mut Effects) {
        self.transfers.handle_timeout(now, out);
    }

    /// Fails pings whose current round has timed out.
    pub(super) fn expire_pings(&mut self, now: Instant, out: &mut Effects) {
        self.pings.handle_timeout(now, out);
    }

    /// Advances benches whose deadlines have expired. Cancels benches whose lease has expired.
    pub(super) fn bench_timeout(&mut self, env: &mut Env, now: Instant, out: &mut Effects) {
        self.benches.handle_timeout(env, now, out);
    }

    // --- queries ---

    /// Returns the histogram of times from posting a message to its reply, nanoseconds.
    pub(super) fn echoes(&self) -> Counts {
        self.sends.echoes.counts()
    }

    /// Returns the histogram of times from posting a Read to its completion, nanoseconds.
    pub(super) fn reads(&self) -> Counts {
        self.transfers.reads.counts()
    }

    /// Returns the number of jobs in progress.
    pub(super) fn running(&self) -> usize {
        self.transfers.running() + self.benches.running()
    }

    pub(super) fn infos(&self, env: &Env, now: Instant) -> Vec<JobInfo> {
        let mut infos = self.transfers.infos(now);
        infos.extend(self.benches.infos(env, now));
        infos.sort_unstable_by_key(|info| info.id);
        infos
    }

    pub(super) fn info(&self, env: &Env, id: u64, now: Instant) -> Result<JobInfo, ApiError> {
        let info = self.transfers.info(id, now).or_else(|| self.benches.info(env, id, now));
        info.ok_or_else(|| ApiError::not_found(format!("there is no job {id}")))
    }
}

/// Returns the time limit of an operation that opens its own stream; `None` on an existing stream.
fn time_limit(via: &Via) -> Option<Duration> {
    match via {
        Via::Connect(spec) => spec.timeout(),
        Via::Stream(_) => None,
    }
}

/// Accessors for tests.
#[cfg(test)]
impl Jobs {
    pub(super) fn is_empty(&self) -> bool {
        self.transfers.jobs.is_empty()
    }
}
