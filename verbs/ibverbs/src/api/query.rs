//! Properties of devices and ports, from the limits of the session.

use std::ffi::{c_char, c_int};

use crate::bindings::*;
use crate::boundary;
use crate::errno::{EINVAL, Result};
use crate::objects::context::Context;
use crate::objects::device::MAX_SGES;

/// Maximum length of a message, bytes.
const MAX_MESSAGE: u32 = 1 << 31;
/// Only partition key of a port: the default one.
const PKEY: u16 = 0xffff;
/// Number of the only port.
const PORT: u8 = 1;

/// Returns the attributes of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    boundary::code(|| {
        let attributes = device_attributes(&*Context::from_ptr(context)?);
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { boundary::store(attr, attributes) }
    })
}

/// Stores the extended attributes of a device: the first `size` bytes, because the caller's structure may be older and
/// shorter.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    boundary::code(|| {
        // SAFETY: NULL or valid by the contract of C callers.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(EINVAL);
        }
        if size < size_of::<ibv_device_attr>() {
            return Err(EINVAL);
        }
        let orig_attr = device_attributes(&*Context::from_ptr(context)?);
        let extended = ibv_device_attr_ex {
            orig_attr,
            device_cap_flags_ex: orig_attr.device_cap_flags.into(),
            phys_port_cnt_ex: 1,
            ..ibv_device_attr_ex::default()
        };
        // SAFETY: NULL, or a structure of `size` bytes, by the contract of C callers.
        unsafe { copy_start(&extended, attr, size) }
    })
}

/// Returns the attributes of a port, without the fields that later versions have added.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // The structure of old programs ends before `port_cap_flags2`.
    let size = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: NULL, or a structure of at least `size` bytes, by the contract of C callers.
    unsafe { query_port_ex(context, port, attr, size) }
}

/// Stores the attributes of a port: the first `size` bytes.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    boundary::code(|| {
        let context = Context::from_ptr(context)?;
        check_port(port.into())?;
        let info = context.device().info();
        let attributes = ibv_port_attr {
            state: if context.instance().is_ended() { IBV_PORT_DOWN } else { IBV_PORT_ACTIVE },
            max_mtu: IBV_MTU_4096,
            active_mtu: context.device().mtu(),
            gid_tbl_len: info.addresses.len() as c_int,
            port_cap_flags: IBV_PORT_CM_SUP,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            // The rate of the link is unknown: reports 1 lane at 2.5 Gbit/s, as drivers do.
            active_width: 1,
            active_speed: 1,
            // Link up.
            phys_state: 5,
            link_layer: IBV_LINK_LAYER_ETHERNET as u8,
            ..ibv_port_attr::default()
        };
        // SAFETY: NULL, or a structure of `size` bytes, by the contract of C callers.
        unsafe { copy_start(&attributes, attr, size) }
    })
}

/// Stores a GID of a port. Returns -1 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut ibv_gid,
) -> c_int {
    boundary::minus_one(|| {
        let context = Context::from_ptr(context)?;
        check_port(port.into())?;
        let gids = context.device().gids();
        let gid = usize::try_from(index).ok().and_then(|index| gids.get(index)).ok_or(EINVAL)?;
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { boundary::store(to, *gid) }?;
        Ok(0)
    })
}

/// Stores an entry of the GID table: the first `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    boundary::code(|| {
        let context = Context::from_ptr(context)?;
        check_port(port)?;
        if flags != 0 {
            return Err(EINVAL);
        }
        let gids = context.device().gids();
        let gid = gids.get(index as usize).ok_or(libc::ENODATA)?;
        // SAFETY: NULL, or a structure of `size` bytes, by the contract of C callers.
        unsafe { copy_start(&gid_entry(*gid, index), entry, size) }
    })
}

/// Stores the GID table in `entries`, which have `size` bytes each. Returns the number of entries, or a negative error
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    let table = || -> Result<isize> {
        let context = Context::from_ptr(context)?;
        let gids = context.device().gids();
        if flags != 0 || most < gids.len() {
            return Err(EINVAL);
        }
        for (index, gid) in gids.iter().enumerate() {
            let to = entries.wrapping_byte_add(index * size);
            // SAFETY: the caller has room for `most` entries of `size` bytes.
            unsafe { copy_start(&gid_entry(*gid, index as u32), to, size) }?;
        }
        Ok(gids.len() as isize)
    };
    boundary::value(-(libc::EIO as isize), || table().unwrap_or_else(|value| -(value as isize)))
}

/// Stores the type of a GID: InfiniBand, as for all iWARP devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: std::ffi::c_uint,
    kind: *mut std::ffi::c_uint,
) -> c_int {
    boundary::minus_one(|| {
        let context = Context::from_ptr(context)?;
        check_port(port.into())?;
        context.device().gids().get(index as usize).ok_or(EINVAL)?;
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { boundary::store(kind, 0) }?;
        Ok(0)
    })
}

/// Stores a partition key of a port. Returns -1 on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    to: *mut u16,
) -> c_int {
    boundary::minus_one(|| {
        Context::from_ptr(context)?;
        check_port(port.into())?;
        if index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: NULL or valid by the contract of C callers.
        unsafe { boundary::store(to, PKEY.to_be()) }?;
        Ok(0)
    })
}

/// Returns the index of a partition key, or -1 on an error.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int {
    boundary::minus_one(|| {
        Context::from_ptr(context)?;
        check_port(port.into())?;
        if u16::from_be(key) == PKEY { Ok(0) } else { Err(EINVAL) }
    })
}

fn check_port(port: u32) -> Result<()> {
    if port == u32::from(PORT) { Ok(()) } else { Err(EINVAL) }
}

fn gid_entry(gid: ibv_gid, index: u32) -> ibv_gid_entry {
    let gid_type = IBV_GID_TYPE_IB;
    ibv_gid_entry { gid, gid_index: index, port_num: PORT.into(), gid_type, ndev_ifindex: 0 }
}

fn device_attributes(context: &Context) -> ibv_device_attr {
    let limits = context.session().limits();
    let int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    let guid = context.device().guid();
    let mut attributes = ibv_device_attr {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: limits.memory_bytes,
        page_size_cap: verbs_client::page::size() as u64,
        // No vendor ID: with one, programs would use special features of that vendor's devices.
        vendor_id: 0,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: int(limits.queue_pairs),
        max_qp_wr: int(limits.posts),
        device_cap_flags: IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | IBV_DEVICE_MEM_MGT_EXTENSIONS,
        max_sge: MAX_SGES as c_int,
        max_sge_rd: MAX_SGES as c_int,
        max_cq: int(limits.completion_queues),
        max_cqe: int(limits.completions),
        max_mr: int(limits.memory_regions),
        // Domains have no separate limit.
        max_pd: int(limits.memory_regions),
        max_qp_rd_atom: limits.depths.ird.into(),
        max_res_rd_atom: int(u32::from(limits.depths.ird).saturating_mul(limits.queue_pairs)),
        max_qp_init_rd_atom: limits.depths.ord.into(),
        // Atomics of all QPs of the appliance are atomic with respect to each other, but not to accesses of the
        // program.
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: int(limits.memory_regions),
        max_srq: int(limits.queue_pairs),
        max_srq_wr: int(limits.posts),
        max_srq_sge: MAX_SGES as c_int,
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..ibv_device_attr::default()
    };
    let version = env!("CARGO_PKG_VERSION").bytes();
    attributes.fw_ver.iter_mut().zip(version).for_each(|(to, byte)| *to = byte as c_char);
    attributes
}

/// Copies the first `size` bytes of `from` to the caller's structure. If `from` is shorter, fills the rest with zeros.
///
/// # Safety
/// `to` is NULL or has room for `size` bytes.
unsafe fn copy_start<T: Copy>(from: &T, to: *mut T, size: usize) -> Result<()> {
    if to.is_null() {
        return Err(EINVAL);
    }
    let to = to.cast::<u8>();
    let known = size.min(size_of::<T>());
    // SAFETY: `known` is at most the size of `from` and at most `size`. `to` is valid for writes of `size` bytes, as
    // this function's `# Safety` section requires, and does not overlap `from`, a structure of this library.
    unsafe {
        to.copy_from_nonoverlapping(std::ptr::from_ref(from).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}
