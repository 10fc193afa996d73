//! Extended completion queues (`ibv_create_cq_ex`), and the functions by which programs poll them.

use std::ffi::{c_int, c_uint};

use super::post::convert;
use crate::bindings::*;
use crate::boundary::{self, fields};
use crate::errno::{EINVAL, EIO, ENOENT, EOPNOTSUPP};
use crate::objects::channel::CompletionChannel;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::context::Context;
use crate::registry::Object;

/// Fields that a poller can return.
const FIELDS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS) as u64;

/// Creates an extended completion queue.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    boundary::pointer(|| {
        let context = Context::from_ptr(context)?;
        // SAFETY: NULL or valid by the contract of C callers.
        let attr = unsafe { boundary::borrow(attr) }?;
        if attr.comp_vector != 0 {
            return Err(EINVAL);
        }
        let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let unknown_flags = has_flags && attr.flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        if attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
            || attr.wc_flags & !FIELDS != 0
            || unknown_flags
        {
            return Err(EOPNOTSUPP);
        }
        let channel = CompletionChannel::from_nullable(attr.channel)?;
        let cq_context = attr.cq_context;
        let queue = CompletionQueue::create(&context, attr.cqe, channel.as_ref(), cq_context)?;
        let to = queue.as_ptr();
        // SAFETY: the queue was just created, and the program has no pointer to it yet.
        let to_functions = unsafe { &mut *to };
        set_functions(to_functions);
        Ok(to)
    })
}

fn set_functions(queue: &mut ibv_cq_ex) {
    queue.start_poll = Some(start_poll);
    queue.next_poll = Some(next_poll);
    queue.end_poll = Some(end_poll);
    queue.read_opcode = Some(read_opcode);
    queue.read_vendor_err = Some(read_zero);
    queue.read_byte_len = Some(read_byte_len);
    queue.read_imm_data = Some(read_imm_data);
    queue.read_qp_num = Some(read_qp_num);
    queue.read_src_qp = Some(read_zero);
    queue.read_wc_flags = Some(read_wc_flags);
    queue.read_slid = Some(read_zero);
    queue.read_sl = Some(read_zero_byte);
    queue.read_dlid_path_bits = Some(read_zero_byte);
}

/// Locks the queue and takes the first completion. The queue stays locked until [`end_poll`], unless there is no
/// completion.
unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: NULL or valid by the contract of C callers.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return EINVAL;
    }
    // SAFETY: a CQ of this library by the contract of C callers.
    let queue = unsafe { object(queue) };
    queue.gate.enter();
    let taken = take(queue);
    if taken != 0 {
        queue.gate.leave();
    }
    taken
}

/// Takes the next completion.
unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a CQ of this library by the contract of C callers.
    take(unsafe { object(queue) })
}

/// Unlocks the queue.
unsafe extern "C" fn end_poll(queue: *mut ibv_cq_ex) {
    // SAFETY: a CQ of this library by the contract of C callers.
    unsafe { object(queue) }.gate.leave();
}

unsafe extern "C" fn read_opcode(queue: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: a CQ of this library by the contract of C callers.
    current(unsafe { object(queue) }).opcode
}

unsafe extern "C" fn read_byte_len(queue: *mut ibv_cq_ex) -> u32 {
    // SAFETY: a CQ of this library by the contract of C callers.
    current(unsafe { object(queue) }).byte_len
}

/// Returns the immediate data, or the invalidated STag.
unsafe extern "C" fn read_imm_data(queue: *mut ibv_cq_ex) -> __be32 {
    // SAFETY: a CQ of this library by the contract of C callers. Both members of the union are 4 bytes.
    unsafe { current(object(queue)).__bindgen_anon_1.imm_data }
}

unsafe extern "C" fn read_qp_num(queue: *mut ibv_cq_ex) -> u32 {
    // SAFETY: a CQ of this library by the contract of C callers.
    current(unsafe { object(queue) }).qp_num
}

unsafe extern "C" fn read_wc_flags(queue: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: a CQ of this library by the contract of C callers.
    current(unsafe { object(queue) }).wc_flags
}

unsafe extern "C" fn read_zero(_queue: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_byte(_queue: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the object of a pointer.
///
/// # Safety
/// The pointer is a CQ of this library, which is not destroyed while the result is used.
unsafe fn object<'a>(queue: *mut ibv_cq_ex) -> &'a CompletionQueue {
    // SAFETY: as this function's `# Safety` section requires. The structure is the first field.
    unsafe { &*queue.cast::<CompletionQueue>() }
}

fn current(queue: &CompletionQueue) -> ibv_wc {
    queue.current.read(|current| current)
}

/// Takes a completion. Returns `ENOENT` if there is none.
fn take(queue: &CompletionQueue) -> c_int {
    let mut taken = None;
    let polled = queue.poll(1, |completion| taken = Some(convert(completion)));
    let (Ok(_), Some(completion)) = (polled, taken) else {
        return if polled.is_err() { EIO } else { ENOENT };
    };
    let c = queue.c();
    c.write(fields::polled_wr_id, completion.wr_id);
    c.write(fields::polled_status, completion.status);
    queue.current.write(|current| current, completion);
    0
}
