//! Functions for memory regions and memory windows. Not supported: an `iova` that differs from the address, DMA-BUF,
//! device memory, and import from other processes.

use std::ffi::{c_int, c_uint, c_void};

use verbs_client::{Operation, SendWork, WindowAccess, WindowBind};

use crate::bindings::*;
use crate::boundary;
use crate::errno::{EINVAL, ENOMEM, EOPNOTSUPP, OrErrno, Result};
use crate::objects::domain::Domain;
use crate::objects::memory::MemoryRegion;
use crate::objects::queue_pair::QueuePair;
use crate::objects::window::MemoryWindow;
use crate::registry::Object;

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract of C callers.
    unsafe { ibv_reg_mr_iova2(domain, address, length, address.addr() as u64, access as c_uint) }
}

/// Registers memory. `iova` must be equal to `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract of C callers.
    unsafe { ibv_reg_mr_iova2(domain, address, length, iova, access as c_uint) }
}

/// Registers memory. `iova` must be equal to `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    boundary::pointer(|| {
        let domain = Domain::from_ptr(domain)?;
        if iova != address.addr() as u64 {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: the contract of C callers.
        Ok(unsafe { MemoryRegion::create(&domain, address, length, access) }?.pointer())
    })
}

/// Refused: DMA-BUF memory of other devices is not supported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _domain: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _descriptor: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    boundary::pointer(|| Err(EOPNOTSUPP))
}

/// Changes a region and returns 0. On an error, leaves the region unchanged and returns `IBV_REREG_MR_ERR_INPUT` or
/// `IBV_REREG_MR_ERR_CMD`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    region: *mut ibv_mr,
    flags: c_int,
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let change = || -> Result<()> {
        let flags = flags as c_uint;
        if flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
            return Err(EINVAL);
        }
        let has = |flag: c_uint| flags & flag != 0;
        let domain = has(IBV_REREG_MR_CHANGE_PD).then(|| Domain::from_ptr(domain)).transpose()?;
        let range = has(IBV_REREG_MR_CHANGE_TRANSLATION).then_some((address, length));
        let access = has(IBV_REREG_MR_CHANGE_ACCESS).then_some(access as c_uint);
        let region = MemoryRegion::from_ptr(region)?;
        // SAFETY: the contract of C callers.
        unsafe { region.change(domain, range, access) }
    };
    match boundary::code(change) {
        0 => 0,
        EINVAL | EOPNOTSUPP => IBV_REREG_MR_ERR_INPUT,
        // The command failed, and the old region is valid.
        _ => IBV_REREG_MR_ERR_CMD,
    }
}

/// Deregisters memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    boundary::code(|| MemoryRegion::destroy(region))
}

/// Refused: objects cannot be shared between processes.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_domain: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    boundary::pointer(|| Err(EOPNOTSUPP))
}

/// Does nothing: there are no imported regions.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_region: *mut ibv_mr) {}

/// Refused: there is no device memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    boundary::pointer(|| Err(EOPNOTSUPP))
}

/// Does nothing: there is no device memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_memory: *mut ibv_dm) {}

/// Allocates a memory window.
pub(crate) unsafe extern "C" fn alloc_mw(domain: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    boundary::pointer(|| Ok(MemoryWindow::create(&Domain::from_ptr(domain)?, kind)?.as_ptr()))
}

/// Deallocates a memory window.
pub(crate) unsafe extern "C" fn dealloc_mw(window: *mut ibv_mw) -> c_int {
    boundary::code(|| MemoryWindow::destroy(window))
}

/// Posts a bind of a window of type 1. Stores the new rkey in the window.
pub(crate) unsafe extern "C" fn bind_mw(
    pair: *mut ibv_qp,
    window: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    boundary::code(|| {
        let (pair, window) = (QueuePair::find(pair)?, MemoryWindow::from_ptr(window)?);
        // SAFETY: NULL or valid by the contract of C callers.
        let bind = unsafe { boundary::borrow(bind) }?;
        if window.kind() != verbs_client::WindowKind::One {
            return Err(EINVAL);
        }
        let rkey = next_key(window.rkey());
        let operation = Operation::BindWindow(binding(rkey, &bind.bind_info)?);
        let signalled = pair.signals_all || bind.send_flags & IBV_SEND_SIGNALED != 0;
        let fence = bind.send_flags & IBV_SEND_FENCE != 0;
        let work = SendWork { wr_id: bind.wr_id, signalled, fence, operation };
        let posted = pair.native().post_sends_with(|writer| {
            if signalled && !pair.has_room(1) {
                return Err(ENOMEM);
            }
            writer.push(&work).or_errno()?;
            pair.count_posted(signalled.into());
            Ok(())
        });
        posted.or_errno()??;
        window.set_rkey(rkey);
        Ok(())
    })
}

/// Returns the rkey of the same window with the next key, which is in the lower 8 bits.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}

/// Returns the native binding of a window. A length of 0 unbinds the window.
pub(crate) fn binding(window: u32, info: &ibv_mw_bind_info) -> Result<WindowBind> {
    let has = |flag: c_uint| info.mw_access_flags & flag != 0;
    let access = WindowAccess {
        remote_write: has(IBV_ACCESS_REMOTE_WRITE),
        remote_read: has(IBV_ACCESS_REMOTE_READ),
        remote_atomic: has(IBV_ACCESS_REMOTE_ATOMIC),
        zero_based: has(IBV_ACCESS_ZERO_BASED),
    };
    if info.length == 0 {
        let access = WindowAccess::default();
        return Ok(WindowBind { window, region: 0, address: 0, len: 0, access });
    }
    // The region's key is read without a look-up: a bind is on the data path.
    // SAFETY: NULL or valid by the contract of C callers.
    let region = unsafe { boundary::borrow(info.mr) }?.lkey;
    Ok(WindowBind { window, region, address: info.addr, len: info.length, access })
}
