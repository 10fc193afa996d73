//! Atomic operations of API clients (RFC 7306). The answer is the previous value.

use std::collections::HashMap;
use std::time::Instant;

use api::{
    ApiError, AtomicChoice, AtomicDone, AtomicSpec, RemotePlace, Reply, Responder, UlpChoice, Via,
};
use ddp::advert::Advertised;
use ddp::rdmap::{AtomicOp, Outcome, WorkRequest};
use ddp::{Cookie, StreamId, TaggedOffset};

use super::remote_target::{Need, resolve_target};
use super::sends::{abort_if_opened, end_if_opened};
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::pending::Task;

/// Atomic operations in progress.
#[derive(Default)]
pub(super) struct Atomics {
    pending: HashMap<u64, PendingAtomic>,
    /// Number of the next operation.
    next: u64,
}

/// An atomic operation of an API client that awaits its response.
struct PendingAtomic {
    answer: Responder,
    target: RemotePlace,
    operation: AtomicOp,
    /// True if the stream was opened for this operation and ends with it.
    opened: bool,
    started: Instant,
    /// The stream; `None` until the operation is posted.
    stream: Option<StreamId>,
}

impl Atomics {
    /// Starts an operation. Returns its number. `usable`: an error if the requested stream cannot be used.
    pub(super) fn request(
        &mut self,
        spec: AtomicSpec,
        usable: Result<(), ApiError>,
        answer: Responder,
        now: Instant,
        out: &mut Effects,
    ) -> u64 {
        let AtomicSpec { via, target, operation } = spec;
        let operation = match operation {
            AtomicChoice::FetchAdd { add } => AtomicOp::FetchAdd { add, mask: 0 },
            AtomicChoice::CompareSwap { compare, swap } => {
                AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
            }
            AtomicChoice::Swap { swap } => AtomicOp::swap(swap),
        };
        let opened = matches!(via, Via::Connect(_));
        let pending =
            PendingAtomic { answer, target, operation, opened, started: now, stream: None };
        let id = self.next;
        self.next += 1;
        match (via, usable) {
            (Via::Connect(spec), _) if spec.ulp != UlpChoice::Rdmap => {
                pending.answer.send(Err(ApiError::bad_request("atomics need ulp rdmap")));
            }
            (Via::Connect(spec), _) => {
                self.pending.insert(id, pending);
                let (spec, task) = (Box::new(spec), Task::Atomic(id));
                out.push(Effect::Open { spec, task, start_key: false });
            }
            (Via::Stream(stream), Ok(())) => {
                self.pending.insert(id, pending);
                let (task, stream) = (Task::Atomic(id), StreamId(stream.0));
                out.push(Effect::Begin { task, stream });
            }
            (Via::Stream(_), Err(error)) => pending.answer.send(Err(error)),
        }
        id
    }

    /// Returns true while the operation is in progress.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.pending.contains_key(&id)
    }

    /// Fails a posted operation whose time limit has expired.
    pub(super) fn expire(&mut self, id: u64, time_limit: &str, out: &mut Effects) {
        let Some(stream) = self.pending.get(&id).and_then(|pending| pending.stream) else { return };
        let Some(pending) = self.pending.remove(&id) else { return };
        let sentence =
            format!("not done within {time_limit}: the peer has not answered the operation");
        pending.answer.send(Err(ApiError::timeout(sentence)));
        abort_if_opened(stream, pending.opened, out);
    }

    /// Fails an operation whose stream could not be opened.
    pub(super) fn on_refused(&mut self, id: u64, error: ApiError) {
        if let Some(pending) = self.pending.remove(&id) {
            pending.answer.send(Err(error));
        }
    }

    /// Posts the operation on its established stream, or fails it if the target is invalid.
    pub(super) fn begin(
        &mut self,
        id: u64,
        stream: StreamId,
        regions: &[Advertised],
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let placed = resolve_target(&pending.target, 8, regions, Need::Atomic);
        match placed
            .and_then(|(stag, to)| check_alignment(&pending.target, to).map(|()| (stag, to)))
        {
            Ok((stag, to)) => {
                (pending.started, pending.stream) = (now, Some(stream));
                let (op, to) = (pending.operation, TaggedOffset(to));
                let request = WorkRequest::Atomic { op, stag, to, cookie: Cookie::user(0) };
                let (region, task) = (None, Task::Atomic(id));
                out.push(Effect::Post { stream, request, region, task, bytes: 0 });
            }
            Err(error) => {
                let opened = pending.opened;
                self.on_refused(id, error);
                end_if_opened(stream, opened, out);
            }
        }
    }

    /// Answers the client when its operation has completed or failed.
    pub(super) fn on_posted(
        &mut self,
        id: u64,
        stream: StreamId,
        result: Result<Outcome, ApiError>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(pending) = self.pending.remove(&id) else { return };
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
        end_if_opened(stream, pending.opened, out);
    }
}

/// Checks the alignment: targets of atomic operations are 64-bit aligned (RFC 7306 §5). TOs of an advertised region
/// either are addresses or count from an aligned start. A target in a region is therefore certainly misaligned only if
/// neither its TO nor its offset is aligned. A target given by STag and TO is checked by the peer.
fn check_alignment(target: &RemotePlace, to: u64) -> Result<(), ApiError> {
    match target {
        RemotePlace::Region { name, offset }
            if !offset.is_multiple_of(8) && !to.is_multiple_of(8) =>
        {
            Err(ApiError::bad_request(format!(
                "offset {offset} of the peer's region `{name}` is not 64-bit aligned, as atomics must be"
            )))
        }
        _ => Ok(()),
    }
}
