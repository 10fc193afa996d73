//! Memory regions: the native region with its C structure, `ibv_mr`, and the conversion of access rights.

use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use verbs_client::{Error, MemoryAccess};

use crate::bindings::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, ibv_mr,
};
use crate::boundary::{Shared, fields};
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, OrErrno, Result};
use crate::object;
use crate::objects::context::Context;
use crate::objects::domain::Domain;
use crate::registry::{Object, Use, Users};
use crate::report;
use verbs_client::lock::lock;

/// Rights that a device may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = 0x3ff0_0000;

/// A memory region (MR) of the program's own memory.
#[derive(Debug)]
#[repr(C)]
pub struct MemoryRegion {
    c: Shared<ibv_mr>,
    native: Mutex<Registered>,
    users: Users,
}

/// The native region with its domain, which `ibv_rereg_mr` replaces.
#[derive(Debug)]
struct Registered {
    native: verbs_client::MemoryRegion,
    domain: Use<Domain>,
    access: c_uint,
}

object!(MemoryRegion, ibv_mr);

impl MemoryRegion {
    /// Registers `length` bytes at `address`.
    ///
    /// # Errors
    /// `EINVAL`: the range is empty, or remote write or atomic access is requested without local write. `EOPNOTSUPP`:
    /// the device does not support a right. The errors of the native registration.
    ///
    /// # Safety
    /// The caller of `ibv_reg_mr` owns the memory, and keeps it mapped while it is registered.
    #[allow(unsafe_code)]
    pub unsafe fn create(
        domain: &Arc<Domain>,
        address: *mut c_void,
        length: usize,
        access: c_uint,
    ) -> Result<Arc<MemoryRegion>> {
        // SAFETY: the memory is as the caller's contract requires.
        let registered = unsafe { register(domain, address, length, access) }?;
        let stag = registered.native.stag();
        let c = ibv_mr {
            context: domain.context().as_ptr(),
            pd: domain.pointer(),
            addr: address,
            length,
            handle: 0,
            lkey: stag,
            rkey: stag,
        };
        let native = Mutex::new(registered);
        Ok(MemoryRegion { c: Shared::new(c), native, users: Users::default() }.register())
    }

    /// Deregisters a region.
    ///
    /// # Errors
    /// `EINVAL`: there is no such region. `EBUSY`: memory windows are bound to it.
    pub fn destroy(pointer: *mut ibv_mr) -> Result<()> {
        let region = MemoryRegion::retire(pointer)?;
        let deregistered = lock(&region.native).native.try_deregister().or_errno();
        match deregistered {
            Err(EBUSY) => region.restore(),
            _ => region.unlist(),
        }
        deregistered
    }

    /// Changes the domain, the range or the rights. The region gets new keys, and the old ones become invalid.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create). `EBUSY`: memory windows are bound to the region. The region is then
    /// unchanged.
    ///
    /// # Safety
    /// As [`create`](Self::create).
    #[allow(unsafe_code)]
    pub unsafe fn change(
        &self,
        domain: Option<Arc<Domain>>,
        range: Option<(*mut c_void, usize)>,
        access: Option<c_uint>,
    ) -> Result<()> {
        let mut registered = lock(&self.native);
        let domain = domain.unwrap_or_else(|| registered.domain.object().clone());
        if !Arc::ptr_eq(domain.context(), registered.domain.context()) {
            return Err(EINVAL);
        }
        let (address, length) = range.unwrap_or_else(|| {
            (self.c.read(fields::region_address), self.c.read(fields::region_length))
        });
        let access = access.unwrap_or(registered.access);
        // SAFETY: the memory is as the caller's contract requires.
        let new = unsafe { register(&domain, address, length, access) }?;
        // Refused if memory windows are bound to the old region. The new one is then deregistered by its drop.
        registered.native.try_deregister().or_errno()?;
        let stag = new.native.stag();
        *registered = new;
        self.c.write(fields::region_domain, domain.pointer());
        self.c.write(fields::region_address, address);
        self.c.write(fields::region_length, length);
        self.c.write(fields::region_lkey, stag);
        self.c.write(fields::region_rkey, stag);
        Ok(())
    }

    /// Returns the context.
    pub fn context(&self) -> Arc<Context> {
        lock(&self.native).domain.context().clone()
    }

    /// Returns the address of the C structure.
    pub fn pointer(&self) -> *mut ibv_mr {
        self.c.get()
    }
}

/// Registers memory natively.
///
/// # Safety
/// As [`MemoryRegion::create`].
#[allow(unsafe_code)]
unsafe fn register(
    domain: &Arc<Domain>,
    address: *mut c_void,
    length: usize,
    access: c_uint,
) -> Result<Registered> {
    let rights = rights(access)?;
    let start = NonNull::new(address.cast::<u8>()).ok_or(EINVAL)?;
    if length == 0 {
        return Err(EINVAL);
    }
    // SAFETY: the caller of `ibv_reg_mr` owns the memory, and keeps it mapped while it is registered. The library never
    // reads or writes it through the native region.
    let native = unsafe { domain.native().register(start, length, rights) };
    let native = native.inspect_err(explain).or_errno()?;
    Ok(Registered { native, domain: Use::new(domain), access })
}

/// Prints why memory cannot be registered. The program sees an error number only.
fn explain(error: &Error) {
    if matches!(error, Error::Memory { .. } | Error::ArenaFull(_) | Error::Refused(_)) {
        report::once("registration", format_args!("memory cannot be registered: {error}"));
    }
}

/// Returns the native rights for access flags.
fn rights(access: c_uint) -> Result<MemoryAccess> {
    let known = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_MW_BIND
        | OPTIONAL;
    if access & !known != 0 {
        return Err(EOPNOTSUPP);
    }
    let has = |flag: c_uint| access & flag != 0;
    let rights = MemoryAccess {
        local_write: has(IBV_ACCESS_LOCAL_WRITE),
        remote_write: has(IBV_ACCESS_REMOTE_WRITE),
        remote_read: has(IBV_ACCESS_REMOTE_READ),
        remote_atomic: has(IBV_ACCESS_REMOTE_ATOMIC),
    };
    if (rights.remote_write || rights.remote_atomic) && !rights.local_write {
        return Err(EINVAL);
    }
    Ok(rights)
}
