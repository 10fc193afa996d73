//! The data path: posts and polls. No memory is allocated, and a system call is made only to wake a sleeping worker.
//!
//! An RDMA Write with Immediate is posted as an RDMA Write, then Immediate Data (RFC 7306 §6). Its 8 bytes are the 4
//! bytes of the program, then the length of the Write in network byte order. A receiver with this library reports the
//! bytes of the program, and the length of the Write that its appliance has placed.

use std::ffi::{c_int, c_uint};

use verbs_client::{
    Carried, Completed, Completion, Error, Inline, Opcode, Operation, Payload, ReceiveWork,
    ReceiveWriter, Remote, SendWork, SendWriter, Sge, SgeList,
};

use super::memory::binding;
use crate::bindings::*;
use crate::boundary::elements;
use crate::errno::{EINVAL, EIO, ENOMEM, EOPNOTSUPP, Result, errno};
use crate::objects::batch::{atomic_result, immediate_data};
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::device::{MAX_INLINE, MAX_SGES};
use crate::objects::queue_pair::QueuePair;
use crate::objects::shared_receives::SharedReceiveQueue;

/// Posts a list of send requests.
pub(crate) unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a QP of this library by the contract of C callers. Its structure is the first field.
    let pair = unsafe { &*pair.cast::<QueuePair>() };
    let mut at = first;
    let posted = is_ready(pair).and_then(|()| {
        let posted = pair.native().post_sends_with(|writer| -> Result<()> {
            // SAFETY: NULL or a request by the contract of C callers.
            while let Some(request) = unsafe { at.as_ref() } {
                // SAFETY: as above.
                unsafe { write_request(writer, request, pair) }?;
                at = request.next;
            }
            Ok(())
        });
        posted.map_err(|error| post_errno(&error))?
    });
    // SAFETY: as above.
    unsafe { finish(posted, at, bad) }
}

/// Posts a list of receives.
pub(crate) unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a QP of this library by the contract of C callers. Its structure is the first field.
    let pair = unsafe { &*pair.cast::<QueuePair>() };
    let mut at = first;
    let posted = is_ready(pair).and_then(|()| {
        let posted = pair.native().post_receives_with(|writer| {
            // SAFETY: a list of requests by the contract of C callers.
            unsafe { write_receives(writer, &mut at) }
        });
        posted.map_err(|error| post_errno(&error))?
    });
    // SAFETY: as above.
    unsafe { finish(posted, at, bad) }
}

/// Posts a list of receives to a shared receive queue.
pub(crate) unsafe extern "C" fn post_srq_recv(
    queue: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: an SRQ of this library by the contract of C callers. Its structure is the first field.
    let queue = unsafe { &*queue.cast::<SharedReceiveQueue>() };
    let mut at = first;
    let posted = queue.native().post_receives_with(|writer| {
        // SAFETY: a list of requests by the contract of C callers.
        unsafe { write_receives(writer, &mut at) }
    });
    let posted = posted.map_err(|error| post_errno(&error)).and_then(|posted| posted);
    // SAFETY: as above.
    unsafe { finish(posted, at, bad) }
}

/// Takes at most `most` completions and returns their number, or a negative number after an error.
pub(crate) unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: a CQ of this library by the contract of C callers. Its structure is the first field.
    let queue = unsafe { &*queue.cast::<CompletionQueue>() };
    let Ok(most) = usize::try_from(most) else { return -EINVAL };
    if to.is_null() && most > 0 {
        return -EINVAL;
    }
    let mut at = to;
    let polled = queue.poll(most, |completion| {
        // SAFETY: the array has `most` elements by the contract of C callers, and `poll` passes at most as many.
        unsafe {
            at.write(convert(completion));
            at = at.add(1);
        }
    });
    match polled {
        Ok(count) => count as c_int,
        Err(_) => -EIO,
    }
}

/// Returns an error if requests cannot be posted in the QP's state.
#[inline]
fn is_ready(pair: &QueuePair) -> Result<()> {
    if pair.state() == IBV_QPS_RESET { Err(EINVAL) } else { Ok(()) }
}

/// Returns 0 or the error. After an error, stores the refused request `at` in `bad`.
///
/// # Safety
/// `bad` is NULL or valid.
#[inline]
unsafe fn finish<T>(posted: Result<()>, at: *mut T, bad: *mut *mut T) -> c_int {
    let Err(value) = posted else { return 0 };
    if !bad.is_null() {
        // SAFETY: valid as this function's `# Safety` section requires.
        unsafe { bad.write(at) };
    }
    value
}

/// Writes a send request.
///
/// # Safety
/// The request is valid, and its inline data is valid for reads.
#[inline]
unsafe fn write_request(
    writer: &mut SendWriter<'_>,
    request: &ibv_send_wr,
    pair: &QueuePair,
) -> Result<()> {
    let flags = request.send_flags;
    let signalled = pair.signals_all || flags & IBV_SEND_SIGNALED != 0;
    let fence = flags & IBV_SEND_FENCE != 0;
    let solicited = flags & IBV_SEND_SOLICITED != 0;
    let wr_id = request.wr_id;
    if signalled && !pair.has_room(1) {
        return Err(ENOMEM);
    }
    // SAFETY: all members of the unions are plain numbers, or pointers that are followed below only for binds.
    let (rdma, atomic, immediate, stag) = unsafe {
        (
            request.wr.rdma,
            request.wr.atomic,
            request.__bindgen_anon_1.imm_data,
            request.__bindgen_anon_1.invalidate_rkey,
        )
    };
    // SAFETY: valid as this function's `# Safety` section requires.
    let payload = || unsafe { payload(request) };
    // SAFETY: as above.
    let list = || unsafe { list(request) };
    let remote = Remote { stag: rdma.rkey, to: rdma.remote_addr };
    let operation = match request.opcode {
        IBV_WR_SEND => Operation::Send { payload: payload()?, solicited },
        IBV_WR_RDMA_WRITE => Operation::Write { remote, payload: payload()? },
        IBV_WR_RDMA_READ => Operation::Read { remote, sinks: list()? },
        IBV_WR_SEND_WITH_INV => Operation::SendInvalidate { payload: payload()?, solicited, stag },
        IBV_WR_ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            remote: Remote { stag: atomic.rkey, to: atomic.remote_addr },
            compare: atomic.compare_add,
            swap: atomic.swap,
            result: atomic_result(&list()?)?,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
            remote: Remote { stag: atomic.rkey, to: atomic.remote_addr },
            add: atomic.compare_add,
            result: atomic_result(&list()?)?,
        },
        IBV_WR_LOCAL_INV => Operation::LocalInvalidate { stag },
        IBV_WR_BIND_MW => {
            // SAFETY: the opcode selects this member of the union.
            let bind = unsafe { request.__bindgen_anon_2.bind_mw };
            Operation::BindWindow(binding(bind.rkey, &bind.bind_info)?)
        }
        IBV_WR_RDMA_WRITE_WITH_IMM => {
            let payload = payload()?;
            let data = immediate_data(immediate, payload.total_len());
            let write = Operation::Write { remote, payload };
            let write = SendWork { wr_id, signalled: false, fence, operation: write };
            let operation = Operation::Immediate { data, solicited };
            let immediate = SendWork { wr_id, signalled, fence: false, operation };
            writer.push_both(&write, &immediate).map_err(|error| post_errno(&error))?;
            pair.count_posted(signalled.into());
            return Ok(());
        }
        IBV_WR_SEND_WITH_IMM | IBV_WR_TSO => return Err(EOPNOTSUPP),
        _ => return Err(EINVAL),
    };
    let work = SendWork { wr_id, signalled, fence, operation };
    writer.push(&work).map_err(|error| post_errno(&error))?;
    if signalled {
        pair.count_posted(1);
    }
    Ok(())
}

/// Writes receives in order. Afterwards `at` is the first request that was not written.
///
/// # Safety
/// `at` is NULL or the first of a list of valid requests.
#[inline]
unsafe fn write_receives(writer: &mut ReceiveWriter<'_>, at: &mut *mut ibv_recv_wr) -> Result<()> {
    // SAFETY: NULL or a request, as this function's `# Safety` section requires.
    while let Some(request) = unsafe { at.as_ref() } {
        // SAFETY: as above.
        let buffers = gather(unsafe { elements(request.sg_list, request.num_sge) }?)?;
        let work = ReceiveWork { wr_id: request.wr_id, buffers };
        writer.push(&work).map_err(|error| post_errno(&error))?;
        *at = request.next;
    }
    Ok(())
}

/// Returns the payload of a request: SGEs, or a copy of inline data.
///
/// # Safety
/// The request is valid, and its inline data is valid for reads.
#[inline]
unsafe fn payload(request: &ibv_send_wr) -> Result<Payload> {
    if request.send_flags & IBV_SEND_INLINE == 0 {
        // SAFETY: as this function's `# Safety` section requires.
        return Ok(Payload::Gather(unsafe { list(request) }?));
    }
    // SAFETY: as above.
    let sges = unsafe { elements(request.sg_list, request.num_sge) }?;
    let pieces = sges.iter().map(|sge| (sge.addr, sge.length as usize));
    // SAFETY: as above.
    unsafe { inline(pieces) }
}

/// Returns a copy of pieces of the program's memory as inline data.
///
/// # Safety
/// The pieces are valid for reads.
pub(crate) unsafe fn inline(pieces: impl Iterator<Item = (u64, usize)>) -> Result<Payload> {
    let mut bytes = [0; MAX_INLINE as usize];
    let mut used = 0;
    for (address, length) in pieces.filter(|(_, length)| *length > 0) {
        let to = bytes[used..].get_mut(..length).ok_or(EINVAL)?;
        let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: `length` bytes at `from` are valid for reads, as this function's `# Safety` section requires, and
        // `to` has as many.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, length) };
        used += length;
    }
    Ok(Payload::Inline(Inline::new(&bytes[..used]).map_err(|_| EINVAL)?))
}

/// Returns the SGEs of a request.
///
/// # Safety
/// The request is valid.
#[inline]
unsafe fn list(request: &ibv_send_wr) -> Result<SgeList> {
    // SAFETY: as this function's `# Safety` section requires.
    gather(unsafe { elements(request.sg_list, request.num_sge) }?)
}

/// Converts a list of SGEs.
#[inline]
pub(crate) fn gather(sges: &[ibv_sge]) -> Result<SgeList> {
    let mut list = [Sge::default(); MAX_SGES as usize];
    let list = list.get_mut(..sges.len()).ok_or(EINVAL)?;
    for (to, from) in list.iter_mut().zip(sges) {
        *to = Sge { address: from.addr, len: from.length, lkey: from.lkey };
    }
    SgeList::new(list).map_err(|_| EINVAL)
}

/// Returns the error number of a refused post.
#[cold]
fn post_errno(error: &Error) -> c_int {
    errno(error)
}

/// Returns the C form of a completion.
#[inline]
pub(crate) fn convert(completion: &Completion) -> ibv_wc {
    let mut to = ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as c_uint,
        opcode: opcode(completion),
        vendor_err: 0,
        byte_len: completion.byte_len,
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: 0 },
        qp_num: completion.qp_number,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    if let Completed::Received { carried, .. } = completion.completed {
        match carried {
            Carried::Nothing => {}
            Carried::Invalidated(stag) => {
                to.wc_flags = IBV_WC_WITH_INV;
                to.__bindgen_anon_1 = ibv_wc__bindgen_ty_1 { invalidated_rkey: stag };
            }
            Carried::Immediate(data) => {
                // `byte_len` is the length of the Write that the appliance has placed, not the one that the peer claims.
                let [a, b, c, d, ..] = data;
                let immediate = u32::from_ne_bytes([a, b, c, d]);
                to.wc_flags = IBV_WC_WITH_IMM;
                to.__bindgen_anon_1 = ibv_wc__bindgen_ty_1 { imm_data: immediate };
            }
        }
    }
    to
}

/// Returns the opcode of a completion.
#[inline]
fn opcode(completion: &Completion) -> ibv_wc_opcode {
    match completion.completed {
        Completed::Sent(opcode) => match opcode {
            Opcode::Send | Opcode::SendInvalidate => IBV_WC_SEND,
            Opcode::Write | Opcode::Immediate => IBV_WC_RDMA_WRITE,
            Opcode::Read => IBV_WC_RDMA_READ,
            Opcode::LocalInvalidate => IBV_WC_LOCAL_INV,
            Opcode::BindWindow => IBV_WC_BIND_MW,
            Opcode::CompareSwap => IBV_WC_COMP_SWAP,
            Opcode::FetchAdd => IBV_WC_FETCH_ADD,
        },
        Completed::Received { carried: Carried::Immediate(_), .. } => IBV_WC_RECV_RDMA_WITH_IMM,
        Completed::Received { .. } => IBV_WC_RECV,
    }
}
