//! Operations to be posted, as values. Each is signalled, without a fence, and has the number 0; a struct update
//! changes that.
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

/// Returns a payload of bytes of memory regions, at most 6 SGEs.
///
/// # Errors
/// There are more SGEs, or 2³² bytes or more.
pub fn gather(sges: &[Sge]) -> Result<Payload, Error> {
    Ok(Payload::Gather(SgeList::new(sges)?))
}

/// Returns a payload of at most 256 bytes, which are copied when they are posted.
///
/// # Errors
/// There are more bytes.
pub fn inline(bytes: &[u8]) -> Result<Payload, Error> {
    Ok(Payload::Inline(Inline::new(bytes)?))
}

/// Returns a Send.
pub fn send(payload: Payload) -> SendWork {
    work(Operation::Send { payload, solicited: false })
}

/// Returns a Send with Solicited Event.
pub fn send_solicited(payload: Payload) -> SendWork {
    work(Operation::Send { payload, solicited: true })
}

/// Returns a Send with Invalidate of an STag of the peer.
pub fn send_invalidate(payload: Payload, stag: u32) -> SendWork {
    work(Operation::SendInvalidate { payload, solicited: false, stag })
}

/// Returns an RDMA Write.
pub fn write(remote: Remote, payload: Payload) -> SendWork {
    work(Operation::Write { remote, payload })
}

/// Returns an RDMA Read of as many bytes as the SGEs have.
///
/// # Errors
/// There are more than 6 SGEs, or 2³² bytes or more.
pub fn read(remote: Remote, sinks: &[Sge]) -> Result<SendWork, Error> {
    Ok(work(Operation::Read { remote, sinks: SgeList::new(sinks)? }))
}

/// Returns an atomic that stores `swap` at the peer if the value there is `compare`. Its former value is stored at
/// offset `at` of `result`.
///
/// # Errors
/// The 8 bytes are not within the region.
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

/// Returns an atomic that adds `add` to the value at the peer. Its former value is stored at offset `at` of `result`.
///
/// # Errors
/// The 8 bytes are not within the region.
pub fn fetch_add(
    remote: Remote,
    add: u64,
    result: &MemoryRegion,
    at: usize,
) -> Result<SendWork, Error> {
    Ok(work(Operation::FetchAdd { remote, add, result: atomic_result(result, at)? }))
}

/// Returns Immediate Data (RFC 7306 §6). It completes a Receive of the peer, after all data of earlier Writes.
pub fn immediate(data: [u8; 8]) -> SendWork {
    work(Operation::Immediate { data, solicited: false })
}

/// Returns an invalidation of an STag of this side.
pub fn local_invalidate(stag: u32) -> SendWork {
    work(Operation::LocalInvalidate { stag })
}

/// Returns a Receive of one message into at most 6 SGEs.
///
/// # Errors
/// There are more SGEs, or 2³² bytes or more.
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
