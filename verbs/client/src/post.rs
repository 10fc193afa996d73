//! Functions that create operations for [`QueuePair`](crate::QueuePair) posts. Each operation is signalled, has no
//! fence and the `wr_id` 0. Struct update syntax (`..`) sets other values.
//!
//! ```
//! use verbs_client::post;
//! use verbs_client::{Remote, SendWork};
//!
//! let remote = Remote { stag: 0x100, to: 0 };
//! let work = SendWork { wr_id: 7, signalled: false, ..post::write(remote, post::inline(b"0123")?) };
//! # assert_eq!(work.wr_id, 7);
//! # Ok::<(), verbs_client::Error>(())
//! ```

use verbs_layout::work::{
    AtomicResult, Inline, Operation, Payload, ReceiveWork, Remote, SendWork, Sge, SgeList,
};

use crate::error::Error;
use crate::region::MemoryRegion;

/// Returns a payload that the worker gathers from `sges`, in order: at most 6
/// ([`MAX_SGES`](verbs_layout::work::MAX_SGES)).
///
/// # Errors
/// There are more than `MAX_SGES` SGEs, or their lengths add up to 2³² bytes or more.
pub fn gather(sges: &[Sge]) -> Result<Payload, Error> {
    Ok(Payload::Gather(SgeList::new(sges)?))
}

/// Returns a payload of at most 256 bytes ([`MAX_INLINE`](verbs_layout::work::MAX_INLINE)). This call copies them: the
/// caller may reuse `bytes` at once.
///
/// # Errors
/// There are more than `MAX_INLINE` bytes.
pub fn inline(bytes: &[u8]) -> Result<Payload, Error> {
    Ok(Payload::Inline(Inline::new(bytes)?))
}

/// Returns a Send, which completes a Receive of the peer.
pub fn send(payload: Payload) -> SendWork {
    work(Operation::Send { payload, solicited: false })
}

/// Returns a Send with Solicited Event, which notifies a peer that requested
/// [`Request::Solicited`](crate::Request::Solicited).
pub fn send_solicited(payload: Payload) -> SendWork {
    work(Operation::Send { payload, solicited: true })
}

/// Returns a Send with Invalidate: the peer invalidates its own `stag` when it receives the message.
pub fn send_invalidate(payload: Payload, stag: u32) -> SendWork {
    work(Operation::SendInvalidate { payload, solicited: false, stag })
}

/// Returns an RDMA Write of `payload` to the peer's memory from `remote` on.
pub fn write(remote: Remote, payload: Payload) -> SendWork {
    work(Operation::Write { remote, payload })
}

/// Returns an RDMA Read of the peer's memory from `remote` on into `sinks`, at most 6 SGEs
/// ([`MAX_SGES`](verbs_layout::work::MAX_SGES)). The Read is as long as all sinks together.
///
/// # Errors
/// There are more than `MAX_SGES` SGEs, or their lengths add up to 2³² bytes or more.
pub fn read(remote: Remote, sinks: &[Sge]) -> Result<SendWork, Error> {
    Ok(work(Operation::Read { remote, sinks: SgeList::new(sinks)? }))
}

/// Returns an atomic that replaces the peer's 8 bytes at `remote` with `swap` if they are equal to `compare`. The
/// former value of the 8 bytes is stored at offset `at` of `result`.
///
/// The peer's 8 bytes must be aligned to 8 bytes. Otherwise the peer ends the connection with Terminate 0/2/07:
/// layer RDMAP, error type 2, code 7 (RFC 7306 §8.2).
///
/// # Errors
/// The 8 bytes at offset `at` are not within `result`.
pub fn compare_swap(
    remote: Remote,
    compare: u64,
    swap: u64,
    result: &MemoryRegion,
    at: usize,
) -> Result<SendWork, Error> {
    let result = atomic_result(result, at)?;
    Ok(work(Operation::CompareSwap { remote, compare, swap, result }))
}

/// Returns an atomic that adds `add` to the peer's 8 bytes at `remote`. The former value of the 8 bytes is stored at
/// offset `at` of `result`.
///
/// The peer's 8 bytes must be aligned to 8 bytes. Otherwise the peer ends the connection with Terminate 0/2/07:
/// layer RDMAP, error type 2, code 7 (RFC 7306 §8.2).
///
/// # Errors
/// The 8 bytes at offset `at` are not within `result`.
pub fn fetch_add(
    remote: Remote,
    add: u64,
    result: &MemoryRegion,
    at: usize,
) -> Result<SendWork, Error> {
    Ok(work(Operation::FetchAdd { remote, add, result: atomic_result(result, at)? }))
}

/// Returns a message of 8 bytes of Immediate Data (RFC 7306 §6). It completes a Receive of the peer after the data of
/// all earlier Writes is placed.
pub fn immediate(data: [u8; 8]) -> SendWork {
    work(Operation::Immediate { data, solicited: false })
}

/// Returns an operation that invalidates `stag`, the STag of a [`MemoryWindow`](crate::MemoryWindow) of type 2 that was
/// bound by the QP to which the operation is posted. The operation completes after all earlier operations of the QP.
pub fn local_invalidate(stag: u32) -> SendWork {
    work(Operation::LocalInvalidate { stag })
}

/// Returns a Receive of one message into `buffers`, at most 6 SGEs ([`MAX_SGES`](verbs_layout::work::MAX_SGES)).
///
/// # Errors
/// There are more than `MAX_SGES` SGEs, or their lengths add up to 2³² bytes or more.
pub fn receive(wr_id: u64, buffers: &[Sge]) -> Result<ReceiveWork, Error> {
    Ok(ReceiveWork { wr_id, buffers: SgeList::new(buffers)? })
}

fn work(operation: Operation) -> SendWork {
    SendWork { wr_id: 0, signalled: true, fence: false, operation }
}

fn atomic_result(region: &MemoryRegion, at: usize) -> Result<AtomicResult, Error> {
    let end = at.checked_add(8).ok_or(Error::Argument("the range is not within the region"))?;
    let sge = region.sge(at..end)?;
    Ok(AtomicResult { address: sge.address, lkey: sge.lkey })
}
