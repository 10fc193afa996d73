//! The boundary to C: wrappers of exported functions, and checked access to the caller's pointers.
//!
//! A panic is a defect of the library. It becomes `EIO` and does not unwind into the caller.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno::{EINVAL, EIO, ENOMEM, Result, fail, fail_null};

/// Runs the body of a function that returns 0 or a positive error number, the convention of verbs. On an error, also
/// sets `errno`, for programs that print it.
pub fn code(body: impl FnOnce() -> Result<()>) -> c_int {
    match caught(body) {
        Ok(()) => 0,
        Err(value) => {
            fail(value);
            value
        }
    }
}

/// Runs the body of a function that returns a value. On an error, sets `errno` and returns -1.
pub fn minus_one(body: impl FnOnce() -> Result<c_int>) -> c_int {
    caught(body).unwrap_or_else(fail)
}

/// Runs the body of a function that returns a pointer. On an error, sets `errno` and returns NULL.
pub fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    caught(body).unwrap_or_else(fail_null)
}

/// Runs the body of a function that returns a value and no errors. After a panic, returns `default`.
pub fn value<T>(default: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(default)
}

fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO))
}

/// Returns a reference to a structure of the caller.
///
/// # Errors
/// The pointer is NULL.
///
/// # Safety
/// The pointer is NULL or valid, and nothing writes to the structure while the result is used.
pub unsafe fn borrow<'a, T>(from: *const T) -> Result<&'a T> {
    // SAFETY: NULL or valid, as this function's `# Safety` section requires.
    unsafe { from.as_ref() }.ok_or(EINVAL)
}

/// Returns an exclusive reference to a structure of the caller.
///
/// # Errors
/// The pointer is NULL.
///
/// # Safety
/// The pointer is NULL or valid, and nothing else accesses the structure while the result is used.
pub unsafe fn borrow_mut<'a, T>(from: *mut T) -> Result<&'a mut T> {
    // SAFETY: NULL or valid, as this function's `# Safety` section requires.
    unsafe { from.as_mut() }.ok_or(EINVAL)
}

/// Stores a value at a pointer of the caller.
///
/// # Errors
/// The pointer is NULL.
///
/// # Safety
/// The pointer is NULL, or valid for writes.
pub unsafe fn store<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: not NULL, and valid as this function's `# Safety` section requires.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns `count` elements of the caller.
///
/// # Errors
/// `count` is negative, or the pointer is NULL and `count` is not 0.
///
/// # Safety
/// The pointer is NULL or points to `count` elements, which nothing changes while the result is used.
#[inline]
pub unsafe fn elements<'a, T>(first: *const T, count: c_int) -> Result<&'a [T]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if first.is_null() => Err(EINVAL),
        // SAFETY: not NULL, and points to `count` elements as this function's `# Safety` section requires.
        Ok(count) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
        Err(_) => Err(EINVAL),
    }
}

/// Returns a copy of pointers as a NULL-terminated array from `calloc`, which the program frees through this library.
///
/// # Errors
/// `ENOMEM`.
pub fn null_terminated<T>(pointers: &[*mut T]) -> Result<*mut *mut T> {
    // SAFETY: `calloc` has no requirement. The result is checked, has room for the pointers and one more, and is
    // zeroed.
    unsafe {
        let copy = libc::calloc(pointers.len() + 1, size_of::<*mut T>()).cast::<*mut T>();
        if copy.is_null() {
            return Err(ENOMEM);
        }
        copy.copy_from_nonoverlapping(pointers.as_ptr(), pointers.len());
        Ok(copy)
    }
}

/// A C structure that the program may read and write at any time, in an object of this crate.
#[derive(Default)]
#[repr(transparent)]
pub struct Shared<T>(UnsafeCell<T>);

// SAFETY: this crate accesses the structure only through raw pointers and copies of single fields, as C code does.
// Pointers in the structure refer to objects that outlive it, and are not followed by this crate.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.get())
    }
}

impl<T> Shared<T> {
    /// Creates a structure.
    pub fn new(value: T) -> Shared<T> {
        Shared(UnsafeCell::new(value))
    }

    /// Returns the address of the structure for the program.
    pub fn get(&self) -> *mut T {
        self.0.get()
    }

    /// Reads a field.
    #[inline]
    pub fn read<F>(&self, field: impl FnOnce(*mut T) -> *mut F) -> F
    where
        F: Copy,
    {
        // SAFETY: `field`, a function of `fields!`, returns a pointer to a field of the structure, which `self` keeps
        // alive.
        unsafe { field(self.0.get()).read_volatile() }
    }

    /// Writes a field.
    #[inline]
    pub fn write<F>(&self, field: impl FnOnce(*mut T) -> *mut F, value: F)
    where
        F: Copy,
    {
        // SAFETY: as in `read`.
        unsafe { field(self.0.get()).write_volatile(value) };
    }
}

/// Defines functions that return the address of a field, for [`Shared::read`](boundary::Shared::read) and
/// [`Shared::write`](boundary::Shared::write). The last argument is the type of the field, or a type with which the
/// field begins.
#[macro_export]
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $structure:ty, $($field:ident).+, $type:ty;)*) => {
        $($(#[$doc])* #[inline]
        pub fn $name(structure: *mut $structure) -> *mut $type {
            structure.wrapping_byte_add(std::mem::offset_of!($structure, $($field).+)).cast()
        })*
    };
}

/// Fields for [`Shared::read`] and [`Shared::write`].
pub mod fields {
    use std::ffi::{c_int, c_void};

    use crate::bindings::*;

    crate::fields! {
        /// Number of CQs of a channel.
        refcnt: ibv_comp_channel, refcnt, c_int;
        /// State of a QP.
        state: ibv_qp_ex, qp_base.state, ibv_qp_state;
        /// Context of a QP, which the program chose.
        qp_context: ibv_qp_ex, qp_base.qp_context, *mut c_void;
        /// `wr_id` of the next request of a QP.
        next_wr_id: ibv_qp_ex, wr_id, u64;
        /// Flags of the next request of a QP.
        next_wr_flags: ibv_qp_ex, wr_flags, u32;
        /// Context of a CQ, which the program chose.
        cq_context: ibv_cq_ex, cq_context, *mut c_void;
        /// Number of entries of a CQ.
        cqe: ibv_cq_ex, cqe, c_int;
        /// `wr_id` of the polled completion.
        polled_wr_id: ibv_cq_ex, wr_id, u64;
        /// Status of the polled completion.
        polled_status: ibv_cq_ex, status, ibv_wc_status;
        /// STag of a window.
        rkey: ibv_mw, rkey, u32;
        /// PD of a region.
        region_domain: ibv_mr, pd, *mut ibv_pd;
        /// Address of a region.
        region_address: ibv_mr, addr, *mut c_void;
        /// Length of a region.
        region_length: ibv_mr, length, usize;
        /// Local key of a region.
        region_lkey: ibv_mr, lkey, u32;
        /// Remote key of a region.
        region_rkey: ibv_mr, rkey, u32;
    }
}
