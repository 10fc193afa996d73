//! Pings: rounds of rping, with this end as the client.
//!
//! A ping has its own stream, and memory that is accessible only on this stream:
//!
//! ```text
//!  Connect -> memory created -> AddStag -> rounds -> answer, Close, RemoveStag
//!  any step: error, time-out, or end of the client's connection -> error as answer; abort of the stream, RemoveStag
//! ```

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, PingReport, PingSpec, Reply, Responder, UlpChoice};
use base::Nanos;
use base::plural::seconds;
use dataplane::memory::Memory;
use ddp::rdmap::WorkRequest;
use ddp::{Access, Cookie, RegionMemory as _, Source, Stag, StreamId};

use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::loader::{LoadTask, LoadedMemory};
use crate::appliance::pending::{Loading, SinkOwner, Task};
use crate::service::Slot;
use crate::service::ping::{MAX_SIZE, Ping, Step};

/// Maximum number of rounds per request. Bounds the memory, because the time of each round is stored.
const MAX_ROUNDS: u32 = 100_000;
/// Maximum time-out of a round.
const MAX_ROUND_TIME: Duration = Duration::from_secs(60);

/// Pings in progress.
#[derive(Default)]
pub(super) struct Pings {
    /// Pings whose stream is being opened, by ping number.
    opening: HashMap<u64, PendingPing>,
    /// Pings with an established stream.
    running: HashMap<StreamId, PendingPing>,
    next: u64,
}

/// A ping in progress.
struct PendingPing {
    id: u64,
    answer: Responder,
    remote: String,
    /// Number of rounds.
    count: u32,
    /// Length of the data of a round, bytes.
    size: u32,
    /// Time-out of a round.
    timeout: Duration,
    memory: Option<Memory>,
    stag: Option<Stag>,
    session: Option<Ping>,
    /// Deadline of the current round.
    deadline: Option<Instant>,
}

impl Pings {
    pub(super) fn request(
        &mut self,
        spec: PingSpec,
        answer: Responder,
        out: &mut Effects,
    ) -> Option<u64> {
        let PingSpec { connect, count, size, timeout_us } = spec;
        let timeout = Duration::from_micros(timeout_us);
        let refusal = if connect.ulp != UlpChoice::Rdmap {
            Some("rping needs RDMAP: ulp must be rdmap".to_owned())
        } else if !(1..=MAX_ROUNDS).contains(&count) || !(1..=MAX_SIZE).contains(&size) {
            Some(format!("count must be from 1 to {MAX_ROUNDS}, size from 1 to {MAX_SIZE}"))
        } else if timeout.is_zero() || timeout > MAX_ROUND_TIME {
            Some("timeout_us must be from 1 to 60000000".to_owned())
        } else {
            None
        };
        if let Some(sentence) = refusal {
            answer.send(Err(ApiError::bad_request(sentence)));
            return None;
        }
        let pending = PendingPing {
            id: self.next,
            answer,
            remote: connect.remote.to_string(),
            count,
            size,
            timeout,
            memory: None,
            stag: None,
            session: None,
            deadline: None,
        };
        let id = self.next;
        self.next += 1;
        self.opening.insert(id, pending);
        let (spec, task) = (Box::new(connect), Task::Ping(id));
        out.push(Effect::Open { spec, task, start_key: false });
        Some(id)
    }

    /// Returns true while the ping is in progress.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.opening.contains_key(&id) || self.running.values().any(|pending| pending.id == id)
    }

    /// Fails a ping whose time limit has expired.
    pub(super) fn expire(&mut self, id: u64, time_limit: &str, out: &mut Effects) {
        let Some((&stream, _)) = self.running.iter().find(|(_, p)| p.id == id) else { return };
        let sentence = format!("not done within {time_limit}: the rounds that are left");
        self.fail(stream, ApiError::timeout(sentence), out);
    }

    /// Records the address at which the ping's stream reached the peer.
    pub(super) fn on_reached(&mut self, id: u64, remote: SocketAddr) {
        if let Some(pending) = self.opening.get_mut(&id) {
            pending.remote = remote.to_string();
        }
    }

    /// Fails a ping whose stream could not be opened.
    pub(super) fn on_refused(&mut self, id: u64, error: ApiError) {
        if let Some(pending) = self.opening.remove(&id) {
            pending.answer.send(Err(error));
        }
    }

    /// Requests memory for a ping whose stream was established.
    pub(super) fn begin(&mut self, env: &mut Env, id: u64, stream: StreamId) {
        let Some(pending) = self.opening.remove(&id) else { return };
        let bytes = 2 * u64::from(pending.size);
        self.running.insert(stream, pending);
        env.load(LoadTask::Scratch(bytes), Loading::Ping(stream));
    }

    /// Registers the ping's memory with the workers.
    pub(super) fn on_memory(
        &mut self,
        stream: StreamId,
        result: Result<LoadedMemory, String>,
        out: &mut Effects,
    ) {
        let Some(pending) = self.running.get_mut(&stream) else { return };
        let LoadedMemory { memory, len, .. } = match result {
            Ok(loaded) => loaded,
            Err(sentence) => return self.fail(stream, ApiError::unavailable(sentence), out),
        };
        pending.memory = Some(memory.clone());
        let (of, access) = (SinkOwner::Ping(stream), Access::REMOTE_READ | Access::REMOTE_WRITE);
        out.push(Effect::AddSink { owner: of, stream, memory, offset: 0, base_to: 0, len, access });
    }

    /// Records the STag of the ping's memory.
    pub(super) fn on_sink_added(&mut self, stream: StreamId, stag: Stag) {
        if let Some(pending) = self.running.get_mut(&stream) {
            pending.stag = Some(stag);
        }
    }

    pub(super) fn on_sink_ready(
        &mut self,
        id: StreamId,
        result: Result<(), String>,
        now: Instant,
        out: &mut Effects,
    ) {
        if let Err(reason) = result {
            return self.fail(id, ApiError::internal(reason), out);
        }
        let Some(pending) = self.running.get_mut(&id) else { return };
        let Some(stag) = pending.stag else { return };
        let slot = Slot { stag, to: 0, len: 2 * u64::from(pending.size) };
        let mut session = Ping::new(slot, pending.size, pending.count);
        let step = session.begin(now);
        pending.session = Some(session);
        self.step(id, step, now, out);
    }

    /// Handles a Send of the peer. Returns false if the stream does not belong to a ping.
    pub(super) fn on_received(
        &mut self,
        id: StreamId,
        data: &[u8],
        now: Instant,
        out: &mut Effects,
    ) -> bool {
        let Some(pending) = self.running.get_mut(&id) else { return false };
        match &mut pending.session {
            Some(session) => {
                let step = session.on_received(data, now);
                self.step(id, step, now, out);
            }
            None => {
                let sentence = "the peer is no rping server: a Send before the first round";
                self.fail(id, ApiError::peer_refused(sentence), out);
            }
        }
        true
    }

    fn step(&mut self, id: StreamId, step: Step, now: Instant, out: &mut Effects) {
        let Some(pending) = self.running.get_mut(&id) else { return };
        let (Some(session), Some(memory)) = (&mut pending.session, &pending.memory) else { return };
        if pending.answer.is_abandoned() {
            return self.fail(id, ApiError::unavailable("the client has disconnected"), out);
        }
        let bytes = match step {
            Step::Begin(bytes) => {
                let pattern = session.pattern();
                memory.write(0, &pattern);
                memory.write(session.sink_offset(), &vec![0; pattern.len()]);
                pending.deadline = Some(now + pending.timeout);
                bytes
            }
            Step::Send(bytes) => bytes,
            Step::Compare | Step::CompareLast => {
                let pattern = session.pattern();
                let mut seen = vec![0; pattern.len()];
                memory.read(session.sink_offset(), &mut seen);
                if let Some(at) = pattern.iter().zip(&seen).position(|(a, b)| a != b) {
                    let round = session.rounds();
                    let sentence = format!("round {round}: byte {at} came back changed");
                    return self.fail(id, ApiError::peer_refused(sentence), out);
                }
                if step == Step::CompareLast {
                    return self.finish(id, out);
                }
                let next = session.begin(now);
                return self.step(id, next, now, out);
            }
            Step::Failed(sentence) => {
                let sentence = format!("the peer is no rping server: {sentence}");
                return self.fail(id, ApiError::peer_refused(sentence), out);
            }
        };
        let request = WorkRequest::send(Source::Bytes(Arc::from(bytes)), Cookie::user(0));
        let (stream, region, task) = (id, None, Task::Ping(pending.id));
        out.push(Effect::Post { stream, request, region, task, bytes: 0 });
    }

    fn finish(&mut self, id: StreamId, out: &mut Effects) {
        let Some(pending) = self.end(id, false, out) else { return };
        let times = pending.session.as_ref().map(Ping::times).unwrap_or_default();
        let nanos = |time: Duration| Nanos::from(time).get();
        pending.answer.send(Ok(Reply::Ping(PingReport {
            remote: pending.remote,
            rounds: times.rounds,
            size: pending.size,
            min_ns: nanos(times.min),
            mean_ns: nanos(times.mean),
            median_ns: nanos(times.median),
            p99_ns: nanos(times.p99),
            max_ns: nanos(times.max),
        })));
    }

    /// Fails the ping on this stream, if any.
    pub(super) fn fail(&mut self, id: StreamId, error: ApiError, out: &mut Effects) {
        if let Some(pending) = self.end(id, true, out) {
            let rounds = pending.session.as_ref().map_or(0, Ping::rounds);
            let message = format!("after {rounds} of {} rounds: {}", pending.count, error.message);
            pending.answer.send(Err(ApiError { message, ..error }));
        }
    }

    /// Ends a ping: closes its stream (`abort`: resets it) and revokes the STag of its memory. Returns the ping, which
    /// the caller answers.
    fn end(&mut self, id: StreamId, abort: bool, out: &mut Effects) -> Option<PendingPing> {
        let pending = self.running.remove(&id)?;
        out.push(Effect::Close { stream: id, abort });
        if let Some(stag) = pending.stag {
            out.push(Effect::RemoveSink(stag));
        }
        Some(pending)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.running.values().filter_map(|pending| pending.deadline).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Effects) {
        let is_expired = |pending: &PendingPing| pending.deadline.is_some_and(|at| at <= now);
        let expired: Vec<StreamId> =
            self.running.iter().filter(|(_, p)| is_expired(p)).map(|(&id, _)| id).collect();
        for id in expired {
            let timeout = self.running.get(&id).map(|pending| pending.timeout).unwrap_or_default();
            let timeout = seconds(timeout);
            let sentence = format!("no answer of the rping server within {timeout}");
            let hint = "at another appliance, ping needs a listener with service = \"rping\": see configs/rdmap.toml";
            self.fail(id, ApiError::timeout(sentence).with_hint(Some(hint)), out);
        }
    }
}
