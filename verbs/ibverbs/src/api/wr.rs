//! The extended post interface (`ibv_wr_start` and so on). Requests are collected, and posted all or none by
//! `ibv_wr_complete`.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::MutexGuard;

use verbs_client::{AtomicResult, Operation, Payload, Remote, SendWork, Sge, SgeList};

use super::memory::binding;
use super::post::{gather, inline};
use crate::bindings::*;
use crate::boundary::{elements, fields};
use crate::errno::{EINVAL, ENOMEM, EOPNOTSUPP, OrErrno, Result};
use crate::objects::batch::Batch;
use crate::objects::queue_pair::QueuePair;
use verbs_client::lock::lock;

/// Operations of the interface.
pub(crate) const SUPPORTED: u32 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// Returns a structure with the functions of the interface.
pub(crate) fn functions() -> ibv_qp_ex {
    ibv_qp_ex {
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        ..ibv_qp_ex::default()
    }
}

unsafe extern "C" fn wr_start(pair: *mut ibv_qp_ex) {
    // SAFETY: a QP of this library by the contract of C callers.
    let pair = unsafe { object(pair) };
    pair.gate.enter();
    lock(&pair.batch).clear();
}

unsafe extern "C" fn wr_complete(pair: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a QP of this library by the contract of C callers.
    let pair = unsafe { object(pair) };
    let mut batch = lock(&pair.batch);
    let posted = batch.finish().and_then(|(posts, signalled)| {
        if pair.state() == IBV_QPS_RESET {
            return Err(EINVAL);
        }
        let posted = pair.native().post_sends_with(|writer| {
            if !pair.has_room(signalled) {
                return Err(ENOMEM);
            }
            writer.push_batch(posts).or_errno()?;
            pair.count_posted(signalled);
            Ok(())
        });
        posted.or_errno()?
    });
    batch.clear();
    drop(batch);
    pair.gate.leave();
    posted.err().unwrap_or(0)
}

unsafe extern "C" fn wr_abort(pair: *mut ibv_qp_ex) {
    // SAFETY: a QP of this library by the contract of C callers.
    let pair = unsafe { object(pair) };
    lock(&pair.batch).clear();
    pair.gate.leave();
}

unsafe extern "C" fn wr_send(pair: *mut ibv_qp_ex) {
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |solicited| Ok(Operation::Send { payload: nothing(), solicited })) };
}

unsafe extern "C" fn wr_send_inv(pair: *mut ibv_qp_ex, stag: u32) {
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe {
        begin(pair, |solicited| {
            Ok(Operation::SendInvalidate { payload: nothing(), solicited, stag })
        });
    }
}

/// Refused: iWARP has no Send with Immediate.
unsafe extern "C" fn wr_send_imm(pair: *mut ibv_qp_ex, _immediate: __be32) {
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |_| Err(EOPNOTSUPP)) };
}

unsafe extern "C" fn wr_rdma_write(pair: *mut ibv_qp_ex, stag: u32, to: u64) {
    let remote = Remote { stag, to };
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |_| Ok(Operation::Write { remote, payload: nothing() })) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    pair: *mut ibv_qp_ex,
    stag: u32,
    to: u64,
    immediate: __be32,
) {
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe {
        wr_rdma_write(pair, stag, to);
        let flags = object(pair).c().read(fields::next_wr_flags);
        batch(pair).set_immediate(immediate, flags & IBV_SEND_SOLICITED != 0);
    }
}

unsafe extern "C" fn wr_rdma_read(pair: *mut ibv_qp_ex, stag: u32, to: u64) {
    let remote = Remote { stag, to };
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |_| Ok(Operation::Read { remote, sinks: SgeList::default() })) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    pair: *mut ibv_qp_ex,
    stag: u32,
    to: u64,
    compare: u64,
    swap: u64,
) {
    let (remote, result) = (Remote { stag, to }, NO_RESULT);
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |_| Ok(Operation::CompareSwap { remote, compare, swap, result })) };
}

unsafe extern "C" fn wr_atomic_fetch_add(pair: *mut ibv_qp_ex, stag: u32, to: u64, add: u64) {
    let (remote, result) = (Remote { stag, to }, NO_RESULT);
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |_| Ok(Operation::FetchAdd { remote, add, result })) };
}

unsafe extern "C" fn wr_local_inv(pair: *mut ibv_qp_ex, stag: u32) {
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe { begin(pair, |_| Ok(Operation::LocalInvalidate { stag })) };
}

unsafe extern "C" fn wr_bind_mw(
    pair: *mut ibv_qp_ex,
    _window: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: a QP of this library, and NULL or a valid structure, by the contract of C callers.
    unsafe {
        begin(pair, |_| Ok(Operation::BindWindow(binding(rkey, crate::boundary::borrow(info)?)?)));
    }
}

unsafe extern "C" fn wr_set_sge(pair: *mut ibv_qp_ex, lkey: u32, address: u64, len: u32) {
    // SAFETY: a QP of this library by the contract of C callers.
    unsafe {
        batch(pair).set_list(SgeList::new(&[Sge { address, len, lkey }]).map_err(|_| EINVAL))
    };
}

unsafe extern "C" fn wr_set_sge_list(pair: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let count = c_int::try_from(count).unwrap_or(-1);
    // SAFETY: a QP of this library, and `count` elements, by the contract of C callers.
    unsafe { batch(pair).set_list(elements(list, count).and_then(gather)) };
}

unsafe extern "C" fn wr_set_inline_data(pair: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    // SAFETY: a QP of this library, and valid memory, by the contract of C callers.
    unsafe { batch(pair).set_payload(inline(std::iter::once((address as u64, length)))) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    pair: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let count = c_int::try_from(count).unwrap_or(-1);
    // SAFETY: a QP of this library, `count` elements and valid memory, by the contract of C callers.
    unsafe {
        let payload = elements(list, count)
            .and_then(|list| inline(list.iter().map(|buf| (buf.addr as u64, buf.length))));
        batch(pair).set_payload(payload);
    }
}

/// Buffer of an atomic before the program has set it.
const NO_RESULT: AtomicResult = AtomicResult { address: 0, lkey: 0 };

fn nothing() -> Payload {
    Payload::Gather(SgeList::default())
}

/// Returns the object of a pointer.
///
/// # Safety
/// The pointer is a QP of this library, which is not destroyed while the result is used.
unsafe fn object<'a>(pair: *mut ibv_qp_ex) -> &'a QueuePair {
    // SAFETY: as this function's `# Safety` section requires. The structure is the first field.
    unsafe { &*pair.cast::<QueuePair>() }
}

/// Begins a request with the `wr_id` and flags that the program has set. `make` is called with the flag for a solicited
/// event.
///
/// # Safety
/// As [`object`].
unsafe fn begin(pair: *mut ibv_qp_ex, make: impl FnOnce(bool) -> Result<Operation>) {
    // SAFETY: as this function's `# Safety` section requires.
    let pair = unsafe { object(pair) };
    let (wr_id, flags) = (pair.c().read(fields::next_wr_id), pair.c().read(fields::next_wr_flags));
    let has = |flag: c_uint| flags & flag != 0;
    let mut batch = lock(&pair.batch);
    match make(has(IBV_SEND_SOLICITED)) {
        Ok(operation) => {
            let signalled = pair.signals_all || has(IBV_SEND_SIGNALED);
            let fence = has(IBV_SEND_FENCE);
            batch.begin(SendWork { wr_id, signalled, fence, operation });
        }
        Err(value) => batch.fail(value),
    }
}

/// Returns the locked batch of a QP.
///
/// # Safety
/// As [`object`].
unsafe fn batch<'a>(pair: *mut ibv_qp_ex) -> MutexGuard<'a, Batch> {
    // SAFETY: as this function's `# Safety` section requires.
    lock(unsafe { &object(pair).batch })
}
