//! Ids: creation, addresses, options.

use std::ffi::{c_int, c_void};

use ibverbs::boundary::{minus_one, store, value};
use ibverbs::errno::{EINVAL, ENOSYS, EOPNOTSUPP};
use ibverbs::registry::Object;
use ibverbs::report;

use super::socket_address;
use crate::bindings::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, rdma_cm_id, rdma_event_channel, rdma_port_space, sockaddr,
};
use crate::id::Id;
use crate::id::channel::Channel;

/// `rdma_create_id(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    minus_one(|| {
        if id.is_null() {
            return Err(EINVAL);
        }
        let channel = Channel::from_nullable(channel)?;
        let new = Id::create(channel, context, ps)?;
        // SAFETY: not NULL, and valid by the contract of C callers.
        unsafe { store(id, new.as_ptr()) }?;
        Ok(0)
    })
}

/// `rdma_destroy_id(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| Id::destroy(id).map(|()| 0))
}

/// `rdma_migrate_id(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    minus_one(|| {
        let channel = Channel::from_nullable(channel)?;
        Id::from_ptr(id)?.migrate(channel).map(|()| 0)
    })
}

/// `rdma_bind_addr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or a socket address by the contract of C callers.
        let local = unsafe { socket_address(addr) }?.ok_or(EINVAL)?;
        id.bind(local).map(|()| 0)
    })
}

/// `rdma_resolve_addr(3)`. The appliance answers from its routing table at once, so the time-out has no effect. The
/// connect resolves the neighbour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        // SAFETY: NULL or a socket address by the contract of C callers.
        let local = unsafe { socket_address(src_addr) }?;
        // SAFETY: as above.
        let remote = unsafe { socket_address(dst_addr) }?.ok_or(EINVAL)?;
        id.resolve_address(local, remote).map(|()| 0)
    })
}

/// `rdma_resolve_route(3)`. The time-out has no effect, as in [`rdma_resolve_addr`].
#[unsafe(no_mangle)]
pub extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    minus_one(|| Id::from_ptr(id)?.resolve_route().map(|()| 0))
}

/// `rdma_get_src_port(3)`: in network byte order.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    value(0, || {
        let local = Id::from_ptr(id).ok().and_then(|id| id.source());
        local.map_or(0, |local| local.port().to_be())
    })
}

/// `rdma_get_dst_port(3)`: in network byte order.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    value(0, || {
        let remote = Id::from_ptr(id).ok().and_then(|id| id.destination());
        remote.map_or(0, |remote| remote.port().to_be())
    })
}

/// `rdma_set_option(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    minus_one(|| {
        let id = Id::from_ptr(id)?;
        let (level, name) = (u32::try_from(level), u32::try_from(optname));
        let (Ok(RDMA_OPTION_ID), Ok(name)) = (level, name) else { return Err(ENOSYS) };
        let len = match name {
            RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_ACK_TIMEOUT => 1,
            RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY => size_of::<c_int>(),
            _ => return Err(ENOSYS),
        };
        if optlen != len || optval.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: not NULL, and valid for `optlen` bytes by the contract of C callers.
        let bytes = unsafe { std::slice::from_raw_parts(optval.cast::<u8>(), len) };
        let is_set = bytes.iter().any(|byte| *byte != 0);
        let mut state = id.lock();
        match name {
            RDMA_OPTION_ID_REUSEADDR => state.reuses_address = is_set,
            RDMA_OPTION_ID_AFONLY => state.is_one_family = is_set,
            RDMA_OPTION_ID_TOS if is_set => {
                report::once(
                    "tos",
                    format_args!(
                        "the type of service is a setting of the appliance, not of a program"
                    ),
                );
                return Err(EOPNOTSUPP);
            }
            // The time-out of InfiniBand's acknowledgements has no meaning for TCP and SCTP.
            _ => {}
        }
        Ok(0)
    })
}
