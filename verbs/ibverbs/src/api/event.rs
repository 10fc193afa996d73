//! Functions that take and acknowledge the asynchronous events of a context.

use std::ffi::c_int;

use crate::bindings::*;
use crate::boundary;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::context::Context;
use crate::objects::events::Source;
use crate::objects::queue_pair::QueuePair;
use crate::objects::shared_receives::SharedReceiveQueue;
use crate::registry::Object;

/// Takes the next event. Waits for one, unless the descriptor is non-blocking.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    to: *mut ibv_async_event,
) -> c_int {
    boundary::minus_one(|| {
        let context = Context::from_ptr(context)?;
        let event = loop {
            let (kind, source) = context.events().take()?;
            // The event is dropped if its object was destroyed meanwhile.
            if let Some(element) = element(&source) {
                break ibv_async_event { element, event_type: kind };
            }
        };
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { boundary::store(to, event) }?;
        Ok(0)
    })
}

/// Acknowledges an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    boundary::code(|| {
        // SAFETY: NULL or valid by the contract of C callers.
        let event = unsafe { boundary::borrow(event) }?;
        // SAFETY: all members of the union are pointers, which are looked up and not followed, or a port number in the
        // first bytes.
        let (pair, queue, shared) =
            unsafe { (event.element.qp, event.element.cq, event.element.srq) };
        match event.event_type {
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                QueuePair::with_events(pair.cast())?.events.acknowledge(1);
            }
            IBV_EVENT_CQ_ERR => {
                CompletionQueue::with_events(queue.cast())?.async_events.acknowledge(1);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                SharedReceiveQueue::with_events(shared)?.events.acknowledge(1);
            }
            _ => {}
        }
        Ok(())
    });
}

/// Returns the element of an event and counts the event at its object; `None` if the object is destroyed.
fn element(source: &Source) -> Option<ibv_async_event__bindgen_ty_1> {
    let Some(source) = source else {
        return Some(ibv_async_event__bindgen_ty_1 { port_num: 1 });
    };
    let source = source.upgrade()?;
    source.taken_events().take().then(|| source.element())
}
