//! Functions for completion channels and completion queues. [`super::post`] and [`super::poller`] have the polls.

use std::ffi::{c_int, c_uint, c_void};

use verbs_client::Request;

use crate::bindings::*;
use crate::boundary;
use crate::errno::{EINVAL, EOPNOTSUPP};
use crate::objects::channel::CompletionChannel;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::context::Context;
use crate::registry::Object;

/// Creates a completion channel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    boundary::pointer(|| Ok(CompletionChannel::create(&Context::from_ptr(context)?)?.as_ptr()))
}

/// Destroys a completion channel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    boundary::code(|| CompletionChannel::destroy(channel))
}

/// Creates a completion queue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    boundary::pointer(|| {
        let context = Context::from_ptr(context)?;
        let channel = CompletionChannel::from_nullable(channel)?;
        let entries = u32::try_from(entries).map_err(|_| EINVAL)?;
        if vector != 0 {
            return Err(EINVAL);
        }
        let queue = CompletionQueue::create(&context, entries, channel.as_ref(), cq_context)?;
        Ok(queue.pointer())
    })
}

/// Changes the size of a completion queue, up to the capacity reserved at its creation.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int {
    boundary::code(|| {
        let queue = CompletionQueue::find(queue)?;
        match u32::try_from(entries) {
            Err(_) | Ok(0) => Err(EINVAL),
            Ok(entries) if entries > queue.native().capacity() => Err(EOPNOTSUPP),
            Ok(_) => {
                queue.set_entries(entries);
                Ok(())
            }
        }
    })
}

/// Destroys a completion queue. Waits until its events are acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    boundary::code(|| CompletionQueue::destroy(queue))
}

/// Takes an event of a channel. Waits for one, unless the descriptor is non-blocking.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    boundary::minus_one(|| {
        let (notified, its_context) = CompletionChannel::from_ptr(channel)?.take()?;
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe {
            boundary::store(queue, notified)?;
            boundary::store(cq_context, its_context)?;
        }
        Ok(0)
    })
}

/// Acknowledges events of a completion queue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    boundary::code(|| {
        CompletionQueue::with_events(queue.cast())?.notifications.acknowledge(count);
        Ok(())
    });
}

/// Requests an event for the next completion, or the next solicited one.
pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited: c_int) -> c_int {
    let request = if solicited == 0 { Request::Next } else { Request::Solicited };
    // SAFETY: a CQ of this library by the contract of C callers. Its structure is the first field.
    let queue = unsafe { &*queue.cast::<CompletionQueue>() };
    queue.arm(request);
    0
}
