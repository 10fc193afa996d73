//! `rdma_getaddrinfo` and `rdma_freeaddrinfo`. The structures are C allocations, because programs may replace parts of
//! them.

use std::ffi::{c_char, c_int, c_void};

use ibverbs::bindings::{IBV_QPT_RC, IBV_QPT_UD};
use ibverbs::boundary::{minus_one, value};
use ibverbs::errno::{EINVAL, ENOMEM, Result, set_errno};
use libc::{addrinfo, socklen_t};

use crate::bindings::{
    RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, rdma_addrinfo, sockaddr,
};

/// A result that is freed unless it is returned to the program.
struct Owned(*mut rdma_addrinfo);

/// The list that `getaddrinfo` has returned.
struct Found(*mut addrinfo);

/// `rdma_getaddrinfo(3)`. Returns 0, an error of `getaddrinfo`, or -1 with `errno`. The list has one entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    minus_one(|| {
        // SAFETY: NULL or valid by the contract of C callers.
        let hints = unsafe { hints.as_ref() };
        let is_empty = node.is_null() && service.is_null() && hints.is_none();
        if res.is_null() || is_empty {
            return Err(EINVAL);
        }
        let owned = Owned::new(hints)?;
        // SAFETY: a structure of this module, to which nothing else refers.
        let to = unsafe { &mut *owned.0 };
        if !node.is_null() || !service.is_null() {
            // SAFETY: texts or NULL by the contract of C callers.
            let found = unsafe { resolve(node, service, hints) };
            let found = match found {
                Ok(found) => found,
                Err(code) => return Ok(code),
            };
            // SAFETY: `getaddrinfo` has returned a list with at least one entry.
            let first = unsafe { &*found.0 };
            to.ai_family = first.ai_family;
            let is_passive = to.ai_flags.cast_unsigned() & RAI_PASSIVE != 0;
            let (address, len) = match is_passive {
                true => (&mut to.ai_src_addr, &mut to.ai_src_len),
                false => (&mut to.ai_dst_addr, &mut to.ai_dst_len),
            };
            // SAFETY: an address of the length that `getaddrinfo` has returned.
            unsafe { copy_address(first.ai_addr.cast(), first.ai_addrlen, address, len) }?;
        }
        if let Some(hints) = hints {
            if to.ai_src_addr.is_null() {
                let (address, len) = (&mut to.ai_src_addr, &mut to.ai_src_len);
                // SAFETY: the caller guarantees that `ai_src_addr` is NULL or valid for `ai_src_len` bytes.
                unsafe { copy_address(hints.ai_src_addr, hints.ai_src_len, address, len) }?;
            }
            if to.ai_dst_addr.is_null() {
                let (address, len) = (&mut to.ai_dst_addr, &mut to.ai_dst_len);
                // SAFETY: the caller guarantees that `ai_dst_addr` is NULL or valid for `ai_dst_len` bytes.
                unsafe { copy_address(hints.ai_dst_addr, hints.ai_dst_len, address, len) }?;
            }
        }
        // SAFETY: not NULL, and valid by the contract of C callers.
        unsafe { res.write(owned.release()) };
        Ok(0)
    })
}

/// `rdma_freeaddrinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: NULL, or a list from `rdma_getaddrinfo` by the contract of C callers.
    value((), || unsafe { free(res) });
}

impl Owned {
    /// Allocates a result with the properties of the hints.
    fn new(hints: Option<&rdma_addrinfo>) -> Result<Owned> {
        // SAFETY: a plain allocation, which is zeroed. All zero is a valid value of the structure.
        let new = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
        // SAFETY: NULL, or the new structure.
        let to = unsafe { new.as_mut() }.ok_or(ENOMEM)?;
        let given =
            |value: fn(&rdma_addrinfo) -> c_int| hints.map(value).filter(|value| *value != 0);
        let port_space = given(|hints| hints.ai_port_space);
        to.ai_port_space = port_space.unwrap_or(RDMA_PS_TCP.cast_signed());
        let is_datagram = is_datagram(to.ai_port_space);
        let qp_type = if is_datagram { IBV_QPT_UD } else { IBV_QPT_RC };
        to.ai_qp_type = given(|hints| hints.ai_qp_type).unwrap_or(qp_type.cast_signed());
        to.ai_flags = given(|hints| hints.ai_flags).unwrap_or(0);
        to.ai_family = given(|hints| hints.ai_family).unwrap_or(0);
        Ok(Owned(new))
    }

    fn release(self) -> *mut rdma_addrinfo {
        let pointer = self.0;
        std::mem::forget(self);
        pointer
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: a structure of this module that was not returned.
        unsafe { free(self.0) };
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: a list from `getaddrinfo`, which is freed once.
        unsafe { libc::freeaddrinfo(self.0) };
    }
}

fn is_datagram(port_space: c_int) -> bool {
    matches!(port_space.cast_unsigned(), RDMA_PS_UDP | RDMA_PS_IPOIB)
}

/// Resolves a name and a service.
///
/// # Errors
/// The error of `getaddrinfo`, with `errno`.
///
/// # Safety
/// `node` and `service` are texts or NULL.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> std::result::Result<Found, c_int> {
    // SAFETY: all zero is a valid value of the structure.
    let mut wanted: addrinfo = unsafe { std::mem::zeroed() };
    let flags = hints.map_or(0, |hints| hints.ai_flags.cast_unsigned());
    if flags & RAI_PASSIVE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & RAI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    wanted.ai_family = hints.map_or(0, |hints| hints.ai_family);
    let is_datagram = hints.is_some_and(|hints| is_datagram(hints.ai_port_space));
    (wanted.ai_socktype, wanted.ai_protocol) = match is_datagram {
        true => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        false => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
    };
    let mut list = std::ptr::null_mut();
    // SAFETY: texts or NULL, as this function's `# Safety` section requires. The other pointers are valid.
    match unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) } {
        0 => Ok(Found(list)),
        code => {
            match code {
                libc::EAI_SYSTEM => {} // `errno` is set
                libc::EAI_MEMORY => set_errno(ENOMEM),
                libc::EAI_AGAIN => set_errno(libc::EAGAIN),
                libc::EAI_FAMILY => set_errno(libc::EAFNOSUPPORT),
                libc::EAI_NONAME => set_errno(libc::EADDRNOTAVAIL),
                _ => set_errno(EINVAL),
            }
            Err(code)
        }
    }
}

/// Stores a copy of an address; nothing for NULL.
///
/// # Safety
/// `from` is NULL, or valid for `len` bytes.
unsafe fn copy_address(
    from: *const sockaddr,
    len: socklen_t,
    to: &mut *mut sockaddr,
    to_len: &mut socklen_t,
) -> Result<()> {
    if from.is_null() || len == 0 {
        return Ok(());
    }
    let size = len as usize;
    // SAFETY: a plain allocation. NULL is checked.
    let copy = unsafe { libc::malloc(size) };
    if copy.is_null() {
        return Err(ENOMEM);
    }
    // SAFETY: `from` is valid for `len` bytes, as this function's `# Safety` section requires, and the copy is new.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<c_void>(), copy, size) };
    (*to, *to_len) = (copy.cast(), len);
    Ok(())
}

/// Frees a list with all of its parts.
///
/// # Safety
/// NULL, or a list whose parts are NULL or from `malloc`.
unsafe fn free(mut at: *mut rdma_addrinfo) {
    // SAFETY: NULL or an entry, as this function's `# Safety` section requires.
    while let Some(entry) = unsafe { at.as_ref() } {
        let next = entry.ai_next;
        let parts: [*mut c_void; 6] = [
            entry.ai_src_addr.cast(),
            entry.ai_dst_addr.cast(),
            entry.ai_src_canonname.cast(),
            entry.ai_dst_canonname.cast(),
            entry.ai_route,
            entry.ai_connect,
        ];
        for part in parts.into_iter().chain([at.cast()]) {
            // SAFETY: NULL or from `malloc`, as this function's `# Safety` section requires.
            unsafe { libc::free(part) };
        }
        at = next;
    }
}
