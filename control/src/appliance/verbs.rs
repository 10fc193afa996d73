//! RDMAP operations of API clients besides `put` and `get`: rounds of rping as its client, and atomics.
//!
//! A run of pings has a stream of its own, with memory that only this stream may use:
//!
//! ```text
//!  Connect -> memory made -> AddStag -> rounds -> answer, Close, RemoveStag
//! ```

use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use ddp::rdmap::{AtomicOp, Outcome, WorkRequest};
use ddp::{Access, Cookie, RegionMemory as _, Source, Stag, StreamId, TaggedOffset};
use std::sync::Arc;

use super::connect::Purpose;
use super::core::Core;
use super::env::api_id;
use super::jobs::{Need, place};
use super::loader::{Loaded, Wanted};
use super::pending::{Loading, Post, SinkOf};
use super::regions::Sink;
use super::streams::State;
use crate::api::{
    Answer, ApiError, AtomicChoice, AtomicDone, AtomicSpec, PingReport, PingSpec, PutTarget, Reply,
    UlpChoice, Via,
};
use crate::service::Slot;
use crate::service::ping::{MAX_SIZE, Ping, Step};

/// Most rounds of one request: their times are kept.
const MAX_ROUNDS: u32 = 100_000;
/// Longest time that a client may give to one round.
const MAX_ROUND_TIME: Duration = Duration::from_secs(60);

/// A run of pings.
pub(super) struct PendingPing {
    pub answer: Answer,
    remote: String,
    count: u32,
    size: u32,
    timeout: Duration,
    memory: Option<Memory>,
    stag: Option<Stag>,
    session: Option<Ping>,
    deadline: Option<Instant>,
}

/// An atomic operation.
pub(super) struct PendingAtomic {
    pub answer: Answer,
    target: PutTarget,
    operation: AtomicOp,
    opened: bool,
    started: Instant,
}

impl Core {
    pub(super) fn ping(&mut self, spec: PingSpec, answer: Answer) {
        let PingSpec { connect, count, size, timeout_us } = spec;
        let timeout = Duration::from_micros(timeout_us);
        let wrong = if connect.ulp != UlpChoice::Rdmap {
            Some("rping speaks RDMAP: ulp must be rdmap".to_owned())
        } else if !(1..=MAX_ROUNDS).contains(&count) || !(1..=MAX_SIZE).contains(&size) {
            Some(format!("count must be from 1 to {MAX_ROUNDS}, size from 1 to {MAX_SIZE}"))
        } else if timeout.is_zero() || timeout > MAX_ROUND_TIME {
            Some("timeout_us must be from 1 to 60000000".to_owned())
        } else {
            None
        };
        if let Some(sentence) = wrong {
            return answer.send(Err(ApiError::bad_request(sentence)));
        }
        let pending = PendingPing {
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
        self.open(connect, Purpose::Ping(Box::new(pending)), false);
    }

    pub(super) fn ping_connected(&mut self, id: StreamId, pending: PendingPing) {
        let octets = 2 * u64::from(pending.size);
        self.pings.insert(id, pending);
        self.env.load(Wanted::Scratch(octets), Loading::Ping(id));
    }

    pub(super) fn on_ping_memory(&mut self, id: StreamId, result: Result<Loaded, String>) {
        let Some(stream) = self.streams.get(&id) else { return };
        let pd = stream.pd;
        if !self.pings.contains_key(&id) {
            return;
        }
        let loaded = match result {
            Ok(loaded) => loaded,
            Err(sentence) => return self.fail_ping(id, ApiError::unavailable(sentence)),
        };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (memory, len) = (loaded.memory, loaded.len);
        let of = SinkOf::Ping(id);
        let sink = Sink { of, stream: id, pd, memory: memory.clone(), offset: 0, len, access };
        let stag = match self.regions.add_sink(&mut self.env, sink) {
            Ok(stag) => stag,
            Err(error) => return self.fail_ping(id, error),
        };
        if let Some(pending) = self.pings.get_mut(&id) {
            pending.memory = Some(memory);
            pending.stag = Some(stag);
        }
    }

    pub(super) fn on_ping_ready(&mut self, id: StreamId, result: Result<(), String>, now: Instant) {
        if let Err(reason) = result {
            return self.fail_ping(id, ApiError::internal(reason));
        }
        let Some(pending) = self.pings.get_mut(&id) else { return };
        let Some(stag) = pending.stag else { return };
        let slot = Slot { stag, to: 0, len: 2 * u64::from(pending.size) };
        let mut session = Ping::new(slot, pending.size, pending.count);
        let step = session.begin(now);
        pending.session = Some(session);
        self.ping_step(id, step, now);
    }

    /// A Send of the peer; false if it is not for a run of pings.
    pub(super) fn ping_received(&mut self, id: StreamId, data: &[u8], now: Instant) -> bool {
        let Some(pending) = self.pings.get_mut(&id) else { return false };
        match &mut pending.session {
            Some(session) => {
                let step = session.received(data, now);
                self.ping_step(id, step, now);
            }
            None => {
                let sentence = "the peer is no rping server: a Send before the first round";
                self.fail_ping(id, ApiError::peer_refused(sentence));
            }
        }
        true
    }

    fn ping_step(&mut self, id: StreamId, step: Step, now: Instant) {
        let Some(pending) = self.pings.get_mut(&id) else { return };
        let (Some(session), Some(memory)) = (&mut pending.session, &pending.memory) else { return };
        if pending.answer.is_abandoned() {
            return self.fail_ping(id, ApiError::unavailable("nobody waits for it any more"));
        }
        let octets = match step {
            Step::Begin(octets) => {
                let pattern = session.pattern();
                memory.write(0, &pattern);
                memory.write(session.sink(), &vec![0; pattern.len()]);
                pending.deadline = Some(now + pending.timeout);
                octets
            }
            Step::Send(octets) => octets,
            Step::Compare | Step::CompareLast => {
                let pattern = session.pattern();
                let mut seen = vec![0; pattern.len()];
                memory.read(session.sink(), &mut seen);
                if let Some(at) = pattern.iter().zip(&seen).position(|(a, b)| a != b) {
                    let round = session.rounds();
                    let sentence = format!("round {round}: octet {at} came back changed");
                    return self.fail_ping(id, ApiError::peer_refused(sentence));
                }
                if step == Step::CompareLast {
                    return self.finish_ping(id);
                }
                let next = session.begin(now);
                return self.ping_step(id, next, now);
            }
            Step::Failed(sentence) => {
                let sentence = format!("the peer is no rping server: {sentence}");
                return self.fail_ping(id, ApiError::peer_refused(sentence));
            }
        };
        let request = WorkRequest::send(Source::Octets(Arc::from(octets)), Cookie::of(0));
        self.post_rdmap(id, request, None, Post::Ping);
    }

    fn finish_ping(&mut self, id: StreamId) {
        let Some(pending) = self.end_ping(id, false) else { return };
        let times = pending.session.as_ref().map(Ping::times).unwrap_or_default();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
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

    /// Gives a run of pings up, if there is one on this stream.
    pub(super) fn fail_ping(&mut self, id: StreamId, error: ApiError) {
        if let Some(pending) = self.end_ping(id, true) {
            let rounds = pending.session.as_ref().map_or(0, Ping::rounds);
            let message = format!("after {rounds} of {} rounds: {}", pending.count, error.message);
            pending.answer.send(Err(ApiError { message, ..error }));
        }
    }

    fn end_ping(&mut self, id: StreamId, abort: bool) -> Option<PendingPing> {
        let pending = self.pings.remove(&id)?;
        self.hang_up(id, abort);
        if let Some(stag) = pending.stag {
            self.regions.remove_sink(&mut self.env, stag);
        }
        Some(pending)
    }

    pub(super) fn next_ping_deadline(&self) -> Option<Instant> {
        self.pings.values().filter_map(|pending| pending.deadline).min()
    }

    pub(super) fn expire_pings(&mut self, now: Instant) {
        let late = |pending: &PendingPing| pending.deadline.is_some_and(|at| at <= now);
        let late: Vec<StreamId> =
            self.pings.iter().filter(|(_, p)| late(p)).map(|(&id, _)| id).collect();
        for id in late {
            self.fail_ping(id, ApiError::timeout("no answer in time"));
        }
    }

    pub(super) fn atomic(&mut self, spec: AtomicSpec, answer: Answer, now: Instant) {
        let AtomicSpec { via, target, operation } = spec;
        let operation = match operation {
            AtomicChoice::FetchAdd { add } => AtomicOp::FetchAdd { add, mask: 0 },
            AtomicChoice::CompareSwap { compare, swap } => {
                AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
            }
            AtomicChoice::Swap { swap } => AtomicOp::swap(swap),
        };
        let opened = matches!(via, Via::Connect(_));
        let pending = PendingAtomic { answer, target, operation, opened, started: now };
        match via {
            Via::Connect(spec) if spec.ulp != UlpChoice::Rdmap => {
                pending.answer.send(Err(ApiError::bad_request("atomics need ulp rdmap")));
            }
            Via::Connect(spec) => self.open(spec, Purpose::Atomic(Box::new(pending)), false),
            Via::Stream(id) => {
                let id = StreamId(id.0);
                match self.usable(id, true) {
                    Ok(_) => self.post_atomic(id, pending, now),
                    Err(error) => pending.answer.send(Err(error)),
                }
            }
        }
    }

    pub(super) fn post_atomic(&mut self, id: StreamId, mut pending: PendingAtomic, now: Instant) {
        let known = self.streams.get(&id);
        let regions = known.map(|stream| stream.peer_regions.as_slice()).unwrap_or_default();
        let placed = place(&pending.target, 8, regions, Need::Atomic);
        match placed.and_then(|(stag, to)| aligned(&pending.target, to).map(|()| (stag, to))) {
            Ok((stag, to)) => {
                pending.started = now;
                let (op, to) = (pending.operation, TaggedOffset(to));
                let request = WorkRequest::Atomic { op, stag, to, cookie: Cookie::of(0) };
                self.post_rdmap(id, request, None, Post::Atomic(Box::new(pending)));
            }
            Err(error) => {
                pending.answer.send(Err(error));
                self.end_if_opened(id, pending.opened);
            }
        }
    }

    pub(super) fn atomic_posted(
        &mut self,
        id: StreamId,
        pending: PendingAtomic,
        result: Result<Outcome, ApiError>,
        now: Instant,
    ) {
        let reply = match result {
            Ok(Outcome::Atomic { original }) => {
                let time = now.duration_since(pending.started).as_micros();
                let time_us = u64::try_from(time).unwrap_or(u64::MAX);
                Ok(Reply::Atomic(AtomicDone { original: original.to_string(), time_us }))
            }
            Ok(_) => Err(ApiError::internal("the operation was not the atomic one")),
            Err(error) => Err(error),
        };
        pending.answer.send(reply);
        self.end_if_opened(id, pending.opened);
    }

    /// The peer of a stream that stands and that no job has. `rdmap`: it must speak RDMAP.
    pub(super) fn usable(&self, id: StreamId, rdmap: bool) -> Result<String, ApiError> {
        let shown = api_id(id);
        let conflict = |sentence: String| Err(ApiError::conflict(sentence));
        match self.streams.get(&id) {
            None => Err(ApiError::not_found(format!("there is no stream {shown}"))),
            Some(stream) if stream.state != State::Established => {
                conflict(format!("stream {shown} is not open"))
            }
            Some(stream) if stream.job.is_some() => {
                conflict(format!("stream {shown} is used by another job"))
            }
            Some(stream) if rdmap && !stream.rdmap => {
                conflict(format!("stream {shown} speaks bare DDP: it has no Reads and no atomics"))
            }
            Some(stream) => Ok(stream.remote.to_string()),
        }
    }
}

/// RFC 7306 §5: the memory of an atomic operation is 64-bit aligned. What a bare TO stands for only the peer
/// knows; an advertised region begins where memory is aligned, or its TOs are addresses.
fn aligned(target: &PutTarget, to: u64) -> Result<(), ApiError> {
    match target {
        PutTarget::Region { name, offset }
            if !offset.is_multiple_of(8) && !to.is_multiple_of(8) =>
        {
            Err(ApiError::bad_request(format!(
                "offset {offset} of the peer's region `{name}` is not 64-bit aligned, as atomics must be"
            )))
        }
        _ => Ok(()),
    }
}
