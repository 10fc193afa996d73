//! Functions for event channels, and functions that take, acknowledge and name events.

use std::ffi::{CStr, c_char, c_int};

use ibverbs::bindings::ibv_event_type;
use ibverbs::boundary::{minus_one, pointer, store, value};
use ibverbs::errno::EINVAL;
use ibverbs::registry::Object;

use crate::bindings::*;
use crate::id::channel::Channel;
use crate::id::event::Event;
use crate::id::{Id, Phase};

/// `rdma_create_event_channel(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| Channel::create().map(|channel| channel.as_ptr()))
}

/// `rdma_destroy_event_channel(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // The function has no result.
    value((), || {
        let _ = Channel::destroy(channel);
    });
}

/// `rdma_get_cm_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    minus_one(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        let taken = Channel::from_ptr(channel)?.take()?;
        // SAFETY: not NULL, and valid by the contract of C callers.
        unsafe { store(event, taken.as_ptr()) }?;
        Ok(0)
    })
}

/// `rdma_ack_cm_event(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(|| Event::acknowledge(event).map(|()| 0))
}

/// `rdma_event_str(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    name(event).as_ptr()
}

/// `rdma_notify(3)`. The appliance establishes connections by itself, so no event needs to be passed on.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: ibv_event_type) -> c_int {
    minus_one(|| match Id::from_ptr(id)?.lock().phase {
        Phase::Connecting | Phase::Accepting | Phase::Connected | Phase::Ended => Ok(0),
        _ => Err(EINVAL),
    })
}

const fn name(event: rdma_cm_event_type) -> &'static CStr {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    }
}
