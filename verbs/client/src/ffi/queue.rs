//! C functions for completion channels, completion queues, queue pairs and posts.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use verbs_layout::completion::Request;

use super::types::{CBind, CCompletion, CReceive, CSend};
use super::{NULL, borrow, close, give, guard, timeout};
use crate::channel::CompletionChannel;
use crate::completion_queue::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::queue_pair::{QueuePair, QueuePairConfig};
use crate::session::Session;
use crate::shared_receives::SharedReceiveQueue;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_channel_create(
    session: *const Session,
    channel: *mut *mut CompletionChannel,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe { give(channel, || borrow(session)?.create_channel()) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_channel_destroy(channel: *mut CompletionChannel) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(channel) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_channel_fd(channel: *const CompletionChannel) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| Ok(unsafe { borrow(channel) }?.as_fd().as_raw_fd()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_channel_wait(
    channel: *const CompletionChannel,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| Ok(unsafe { borrow(channel) }?.wait(timeout(timeout_ms))?.into()))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_cq_create(
    session: *const Session,
    entries: u32,
    channel: *const CompletionChannel,
    queue: *mut *mut CompletionQueue,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`. `as_ref` converts a
    // NULL channel to `None`: a CQ without a channel.
    guard(|| unsafe {
        give(queue, || borrow(session)?.create_completion_queue(entries, channel.as_ref()))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_cq_destroy(queue: *mut CompletionQueue) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(queue) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_cq_number(queue: *const CompletionQueue) -> u32 {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(queue) }.map_or(u32::MAX, CompletionQueue::number)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_cq_poll(
    queue: *const CompletionQueue,
    completions: *mut CCompletion,
    most: u32,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let queue = unsafe { borrow(queue) }?;
        if completions.is_null() && most > 0 {
            return Err(NULL);
        }
        let most = most.min(c_int::MAX as u32) as usize;
        let mut at = completions;
        let taken = queue.poll_each(most, |completion| {
            // SAFETY: `completions` has room for `most` entries, and `poll_each` calls this closure at most `most`
            // times.
            unsafe {
                at.write(CCompletion::new(&completion));
                at = at.add(1);
            }
        })?;
        Ok(taken as c_int)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_cq_arm(
    queue: *const CompletionQueue,
    solicited: c_int,
) -> c_int {
    guard(|| {
        let request = if solicited != 0 { Request::Solicited } else { Request::Next };
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        unsafe { borrow(queue) }?.arm(request)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_cq_next(
    queue: *const CompletionQueue,
    timeout_ms: c_int,
    completion: *mut CCompletion,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let queue = unsafe { borrow(queue) }?;
        if completion.is_null() {
            return Err(NULL);
        }
        let Some(next) = queue.next(timeout(timeout_ms))? else { return Ok(0) };
        // SAFETY: not NULL, checked above, and writable by the contract of C callers in `ffi/mod.rs`.
        unsafe { completion.write(CCompletion::new(&next)) };
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_qp_create(
    domain: *const ProtectionDomain,
    send_completions: *const CompletionQueue,
    receive_completions: *const CompletionQueue,
    max_sends: u32,
    max_receives: u32,
    copy_sources: c_int,
    pair: *mut *mut QueuePair,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe {
        give(pair, || {
            borrow(domain)?.create_queue_pair(&QueuePairConfig {
                send_completions: borrow(send_completions)?,
                receive_completions: borrow(receive_completions)?,
                max_sends,
                max_receives,
                copy_sources: copy_sources != 0,
                shared_receives: None,
            })
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_qp_destroy(pair: *mut QueuePair) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(pair) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_qp_number(pair: *const QueuePair) -> u32 {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(pair) }.map_or(u32::MAX, QueuePair::number)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_post_send(
    pair: *const QueuePair,
    send: *const CSend,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let (pair, work) = unsafe { (borrow(pair)?, borrow(send)?.work()?) };
        pair.post_send(&work)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_post_receive(
    pair: *const QueuePair,
    receive: *const CReceive,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let (pair, work) = unsafe { (borrow(pair)?, borrow(receive)?.work()?) };
        pair.post_receive(&work)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_post_bind(
    pair: *const QueuePair,
    bind: *const CBind,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let (pair, work) = unsafe { (borrow(pair)?, borrow(bind)?.work()?) };
        pair.post_send(&work)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "the signature of `ddpd_qp_create` with one more argument"
)]
pub(super) unsafe extern "C" fn ddpd_qp_create_shared(
    domain: *const ProtectionDomain,
    send_completions: *const CompletionQueue,
    receive_completions: *const CompletionQueue,
    max_sends: u32,
    max_receives: u32,
    copy_sources: c_int,
    receives: *const SharedReceiveQueue,
    pair: *mut *mut QueuePair,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe {
        give(pair, || {
            borrow(domain)?.create_queue_pair(&QueuePairConfig {
                send_completions: borrow(send_completions)?,
                receive_completions: borrow(receive_completions)?,
                max_sends,
                max_receives,
                copy_sources: copy_sources != 0,
                shared_receives: Some(borrow(receives)?),
            })
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_srq_create(
    domain: *const ProtectionDomain,
    max_receives: u32,
    queue: *mut *mut SharedReceiveQueue,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe { give(queue, || borrow(domain)?.create_shared_receive_queue(max_receives)) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_srq_destroy(queue: *mut SharedReceiveQueue) {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { close(queue) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_srq_number(queue: *const SharedReceiveQueue) -> u32 {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    unsafe { borrow(queue) }.map_or(u32::MAX, SharedReceiveQueue::number)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_srq_set_limit(
    queue: *const SharedReceiveQueue,
    limit: u32,
) -> c_int {
    // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
    guard(|| unsafe { borrow(queue)?.set_limit(limit).map(|()| 0) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ddpd_srq_post_receive(
    queue: *const SharedReceiveQueue,
    receive: *const CReceive,
) -> c_int {
    guard(|| {
        // SAFETY: handles and pointers are NULL or valid by the contract of C callers in `ffi/mod.rs`; NULL is checked.
        let (queue, work) = unsafe { (borrow(queue)?, borrow(receive)?.work()?) };
        queue.post_receive(&work)?;
        Ok(0)
    })
}
