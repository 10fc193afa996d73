//! Requests of the extended post interface.

use std::ffi::c_int;

use verbs_client::{AtomicResult, Operation, Payload, SendBatch, SendWork, Sge, SgeList};

use crate::bindings::__be32;
use crate::errno::{EINVAL, Result};

/// Requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    posts: SendBatch,
    /// Number of signalled requests in `posts`.
    signalled: u32,
    /// The last request, whose payload the program may still set.
    last: Option<Request>,
    error: Option<c_int>,
}

#[derive(Debug)]
struct Request {
    work: SendWork,
    /// Immediate data of an RDMA Write with Immediate, in network byte order, and the flag for a solicited event.
    immediate: Option<(__be32, bool)>,
}

impl Batch {
    /// Removes all requests. The allocated memory is kept for the next batch.
    pub(crate) fn clear(&mut self) {
        self.posts.clear();
        self.signalled = 0;
        self.last = None;
        self.error = None;
    }

    /// Returns all requests and the number of signalled ones, or the first error.
    pub(crate) fn finish(&mut self) -> Result<(&SendBatch, u32)> {
        self.finish_last();
        self.error.map_or(Ok((&self.posts, self.signalled)), Err)
    }

    /// Begins a request, whose payload may follow.
    pub(crate) fn begin(&mut self, work: SendWork) {
        self.finish_last();
        self.last = Some(Request { work, immediate: None });
    }

    /// Turns the last request, an RDMA Write, into an RDMA Write with Immediate.
    pub(crate) fn set_immediate(&mut self, immediate: __be32, solicited: bool) {
        if let Some(last) = &mut self.last {
            last.immediate = Some((immediate, solicited));
        }
    }

    /// Records an error, which [`finish`](Self::finish) then returns.
    pub(crate) fn fail(&mut self, value: c_int) {
        self.finish_last();
        self.error = self.error.or(Some(value));
    }

    /// Sets the SGEs of the last request.
    pub(crate) fn set_list(&mut self, list: Result<SgeList>) {
        // `last` is empty if the request was refused. The error of the refusal remains.
        let Some(last) = &mut self.last else { return };
        let set = list.and_then(|list| set_list(&mut last.work.operation, list));
        self.error = self.error.or(set.err());
    }

    /// Sets the inline data of the last request.
    pub(crate) fn set_payload(&mut self, payload: Result<Payload>) {
        let Some(last) = &mut self.last else { return };
        let set = payload.and_then(|new| match &mut last.work.operation {
            Operation::Send { payload, .. }
            | Operation::SendInvalidate { payload, .. }
            | Operation::Write { payload, .. } => {
                *payload = new;
                Ok(())
            }
            _ => Err(EINVAL),
        });
        self.error = self.error.or(set.err());
    }

    /// Adds the last request to `posts`: its payload is complete.
    fn finish_last(&mut self) {
        let Some(Request { mut work, immediate }) = self.last.take() else { return };
        self.signalled += u32::from(work.signalled);
        let Some((immediate, solicited)) = immediate else {
            self.posts.push(&work);
            return;
        };
        let length = match &work.operation {
            Operation::Write { payload, .. } => payload.total_len(),
            _ => 0,
        };
        let signalled = std::mem::replace(&mut work.signalled, false);
        self.posts.push(&work);
        let data = immediate_data(immediate, length);
        let operation = Operation::Immediate { data, solicited };
        self.posts.push(&SendWork { wr_id: work.wr_id, signalled, fence: false, operation });
    }
}

/// Sets the SGEs of an operation.
fn set_list(operation: &mut Operation, list: SgeList) -> Result<()> {
    match operation {
        Operation::Send { payload, .. }
        | Operation::SendInvalidate { payload, .. }
        | Operation::Write { payload, .. } => *payload = Payload::Gather(list),
        Operation::Read { sinks, .. } => *sinks = list,
        Operation::CompareSwap { result, .. } | Operation::FetchAdd { result, .. } => {
            *result = atomic_result(&list)?;
        }
        Operation::LocalInvalidate { .. }
        | Operation::BindWindow(_)
        | Operation::Immediate { .. } => return Err(EINVAL),
    }
    Ok(())
}

/// Returns the buffer of an atomic: the only SGE, of 8 bytes.
pub(crate) fn atomic_result(list: &SgeList) -> Result<AtomicResult> {
    match *list.sges() {
        [Sge { address, len: 8, lkey }] => Ok(AtomicResult { address, lkey }),
        _ => Err(EINVAL),
    }
}

/// Returns the Immediate Data of an RDMA Write with Immediate: `immediate`, which is in network byte order, then the
/// length of the Write in bytes.
pub(crate) fn immediate_data(immediate: __be32, length: u32) -> [u8; 8] {
    let mut data = [0; 8];
    data[..4].copy_from_slice(&immediate.to_ne_bytes());
    data[4..].copy_from_slice(&length.to_be_bytes());
    data
}
