//! Synchronous endpoints: `rdma_create_ep` and `rdma_get_request`.

use std::ffi::c_int;
use std::sync::Arc;

use ibverbs::bindings::{IBV_QPT_RC, ibv_pd, ibv_qp_init_attr};
use ibverbs::boundary::{Shared, borrow, elements, minus_one, store, value};
use ibverbs::domain::Domain;
use ibverbs::errno::{EINVAL, EOPNOTSUPP, Result};
use ibverbs::registry::Object;

use super::queues::create_pair;
use super::socket_address;
use crate::bindings::{RAI_PASSIVE, RDMA_PS_TCP, rdma_addrinfo, rdma_cm_id, rdma_port_space};
use crate::boundary::fields;
use crate::id::channel::Channel;
use crate::id::event::Event;
use crate::id::{Id, Template};

/// Maximum length of private data in `rdma_addrinfo`, bytes.
const MAX_CONNECT_LEN: usize = 255;

/// `rdma_create_ep(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        if id.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: NULL or valid by the contract of C callers.
        let info = unsafe { borrow(res) }?;
        let port_space = match rdma_port_space::try_from(info.ai_port_space) {
            Ok(0) => RDMA_PS_TCP,
            Ok(port_space) => port_space,
            Err(_) => return Err(EINVAL),
        };
        let new = Id::create(None, std::ptr::null_mut(), port_space)?;
        // SAFETY: `info` and the attributes are valid by the contract of C callers.
        let prepared = unsafe { prepare(&new, info, pd, qp_init_attr) };
        if let Err(error) = prepared {
            new.destroy_pair();
            let pointer = new.as_ptr();
            drop(new);
            // `destroy` neither fails nor waits: the id is in the registry, and no event of it is unacknowledged.
            let _ = Id::destroy(pointer);
            return Err(error);
        }
        // SAFETY: not NULL, and valid by the contract of C callers.
        unsafe { store(id, new.as_ptr()) }?;
        Ok(0)
    })
}

/// Binds a passive endpoint, or resolves the peer of an active one and creates its QP.
///
/// # Safety
/// `info` comes from `rdma_getaddrinfo`, or has parts that are valid in the same way. The attributes are NULL or valid.
unsafe fn prepare(
    id: &Arc<Id>,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: NULL or valid, as this function's `# Safety` section requires.
    let attributes = unsafe { attributes.as_mut() };
    // SAFETY: NULL or a socket address, as above.
    let local = unsafe { socket_address(info.ai_src_addr) }?;
    if info.ai_flags.cast_unsigned() & RAI_PASSIVE != 0 {
        id.bind(local.ok_or(EINVAL)?)?;
        if let Some(attributes) = attributes {
            if attributes.qp_type != 0 && attributes.qp_type != IBV_QPT_RC {
                return Err(EOPNOTSUPP);
            }
            let domain = Domain::from_nullable(pd)?;
            let attributes = Arc::new(Shared::new(*attributes));
            id.lock().child_queues = Some(Template { domain, attributes });
        }
        return Ok(());
    }
    // SAFETY: as above.
    let remote = unsafe { socket_address(info.ai_dst_addr) }?.ok_or(EINVAL)?;
    id.resolve_address(local, remote)?;
    id.resolve_route()?;
    id.acknowledge_own();
    if info.ai_connect_len > MAX_CONNECT_LEN {
        return Err(EINVAL);
    }
    // SAFETY: NULL or valid for the length, as above.
    let data = unsafe { elements(info.ai_connect.cast::<u8>(), info.ai_connect_len as c_int) }?;
    id.lock().private_data = data.to_vec();
    match attributes {
        Some(attributes) => create_pair(id, pd, attributes),
        None => Ok(()),
    }
}

/// `rdma_destroy_ep(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    value((), || {
        let Ok(found) = Id::from_ptr(id) else { return };
        found.destroy_pair();
        found.destroy_shared_receives();
        drop(found);
        // An error means that another thread has destroyed the id.
        let _ = Id::destroy(id);
    });
}

/// `rdma_get_request(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    minus_one(|| {
        let listener = Id::from_ptr(listen)?;
        if id.is_null() {
            return Err(EINVAL);
        }
        let child = request(&listener)?;
        // SAFETY: not NULL, and valid by the contract of C callers.
        unsafe { store(id, child.as_ptr()) }?;
        Ok(0)
    })
}

/// Waits for a connection request, and creates the QP of its id.
fn request(listener: &Arc<Id>) -> Result<Arc<Id>> {
    let (channel, template): (Arc<Channel>, Option<Template>) = {
        let state = listener.lock();
        if !state.is_synchronous {
            return Err(EINVAL);
        }
        (state.channel.clone(), state.child_queues.clone())
    };
    listener.acknowledge_own();
    let event = channel.take()?;
    let Some(child) = event.child().cloned() else {
        let status = event.status();
        listener.c().write(fields::event, event.as_ptr());
        return Err(if status < 0 { -status } else { EINVAL });
    };
    if let Some(Template { domain, attributes }) = template {
        let mut attributes = attributes.read(|attributes| attributes);
        let pd = domain.map_or(std::ptr::null_mut(), |domain| domain.pointer());
        if let Err(error) = create_pair(&child, pd, &mut attributes) {
            // Without a QP the request cannot be accepted: it is rejected.
            let pointers = (event.as_ptr(), child.as_ptr());
            drop((event, child));
            let _ = Event::acknowledge(pointers.0);
            let _ = Id::destroy(pointers.1);
            return Err(error);
        }
    }
    child.c().write(fields::event, event.as_ptr());
    Ok(child)
}
