//! The C interface: `ddpd_*` functions with opaque handles, declared in `include/ddpd.h`. Functions that can fail
//! return 0 or a positive number, or a negative errno. After an error [`ddpd_last_error`] returns its message. The
//! caller owns a handle until it calls the handle's `_close` or `_destroy` function. Accepting or rejecting a
//! connection request consumes its handle. Handles may be closed in any order.
//!
//! Contract of C callers, for all functions: a handle is NULL, or came from this library and was not closed. Any other
//! pointer is NULL, or points to as many elements as its count says, which stay valid during the call. A text ends with
//! a NUL.
#![allow(unsafe_code)]

mod connection;
mod memory;
mod queue;
mod session;
#[cfg(test)]
mod tests;
mod types;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::Error;
use verbs_session::message::RefusalKind;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Returns the message of this thread's last error, valid until the thread's next call of this library.
#[unsafe(no_mangle)]
extern "C" fn ddpd_last_error() -> *const c_char {
    LAST_ERROR.with(|error| error.borrow().as_ptr())
}

/// Runs the body of a C function. An error becomes a negative errno, with its message for [`ddpd_last_error`]. A panic,
/// which is a defect of the library, becomes `-EIO` and does not unwind into the caller.
fn guard(body: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            remember(&error.to_string());
            -errno(&error).raw_os_error()
        }
        Err(_) => {
            remember("the library has a defect");
            -Errno::IO.raw_os_error()
        }
    }
}

fn remember(message: &str) {
    let text = message.replace('\0', " ");
    LAST_ERROR.with(|error| *error.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// Returns the errno that C callers receive for an error.
fn errno(error: &Error) -> Errno {
    match error {
        Error::Connect { error, .. }
        | Error::System { error, .. }
        | Error::Memory { error, .. } => *error,
        Error::Disconnected(_) => Errno::CONNRESET,
        Error::Refused(refusal) => match refusal.kind {
            RefusalKind::Invalid => Errno::INVAL,
            RefusalKind::NotFound => Errno::NOENT,
            RefusalKind::InUse => Errno::BUSY,
            RefusalKind::Limit => Errno::DQUOT,
            RefusalKind::NoMemory => Errno::NOMEM,
            RefusalKind::NotAllowed => Errno::ACCESS,
            RefusalKind::Unreachable => Errno::HOSTUNREACH,
            RefusalKind::Version => Errno::PROTONOSUPPORT,
            RefusalKind::Draining => Errno::SHUTDOWN,
        },
        Error::Protocol(_) => Errno::PROTO,
        Error::Argument(_) | Error::State(_) | Error::Descriptor(_) => Errno::INVAL,
        Error::Full => Errno::AGAIN,
        Error::Queue(_) | Error::CompletionQueue(_) => Errno::IO,
        Error::ArenaFull(_) => Errno::NOMEM,
        Error::Rejected { .. } => Errno::CONNREFUSED,
        Error::ConnectFailed { unreachable: true, .. } => Errno::HOSTUNREACH,
        Error::ConnectFailed { refused: true, .. } => Errno::CONNREFUSED,
        Error::ConnectFailed { .. } => Errno::CONNABORTED,
        Error::Ended(_) => Errno::PIPE,
        Error::TimedOut => Errno::TIMEDOUT,
        Error::Forked => Errno::PERM,
    }
}

const NULL: Error = Error::Argument("a pointer is NULL");

/// Returns a reference to the object of a handle, or an error if the handle is NULL.
///
/// # Safety
/// The handle is NULL or valid, as the contract of C callers requires, and is not closed while the result is used.
unsafe fn borrow<'a, T>(handle: *const T) -> Result<&'a T, Error> {
    // SAFETY: the handle is NULL or valid, as this function's `# Safety` section requires. `as_ref` checks for NULL.
    unsafe { handle.as_ref() }.ok_or(NULL)
}

/// Creates an object with `make`, stores its handle at `to` and returns 0. Returns an error if `to` is NULL.
///
/// # Safety
/// `to` is NULL or writable.
unsafe fn give<T>(
    to: *mut *mut T,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<c_int, Error> {
    if to.is_null() {
        return Err(NULL);
    }
    let value = Box::into_raw(Box::new(make()?));
    // SAFETY: not NULL, checked above, and writable as this function's `# Safety` section requires.
    unsafe { to.write(value) };
    Ok(0)
}

/// Drops the object of a handle, which may be NULL.
///
/// # Safety
/// The handle is NULL, or came from this library and was not closed. It is not used afterwards.
unsafe fn close<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the handle came from `Box::into_raw` in this library, and is closed only once.
        let object = unsafe { Box::from_raw(handle) };
        // A panic in the drop is a defect of the library. It is not reported, because the function returns no error,
        // and must not unwind into the caller.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(object)));
    }
}

/// Moves the object out of a handle, which is invalid afterwards. Returns an error if the handle is NULL.
///
/// # Safety
/// The requirements of [`close`].
unsafe fn take<T>(handle: *mut T) -> Result<T, Error> {
    if handle.is_null() {
        return Err(NULL);
    }
    // SAFETY: the handle came from `Box::into_raw` in this library, and is taken only once.
    Ok(*unsafe { Box::from_raw(handle) })
}

/// Returns the `count` elements at `first`. NULL is an error unless `count` is 0.
///
/// # Safety
/// `first` is NULL or points to `count` elements, which stay valid while the result is used.
unsafe fn elements<'a, T>(first: *const T, count: u32) -> Result<&'a [T], Error> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(NULL),
        // SAFETY: not NULL, and points to `count` elements as this function's `# Safety` section requires.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(first, count as usize) }),
    }
}

/// Returns a UTF-8 text of the caller, or an error if it is NULL or not UTF-8.
///
/// # Safety
/// `text` is NULL, or ends with a NUL and stays valid while the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(NULL);
    }
    // SAFETY: not NULL, and ends with a NUL as this function's `# Safety` section requires.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::Argument("a text is not UTF-8"))
}

/// Copies a text to `to`, cut to `to.len() - 1` bytes, and fills the rest with NULs.
fn copy_text(text: &str, to: &mut [c_char]) {
    to.fill(0);
    let room = to.len().saturating_sub(1);
    to.iter_mut().zip(text.bytes().take(room)).for_each(|(to, byte)| *to = byte as c_char);
}

/// Converts a time-out in milliseconds. Returns `None`, no time-out, for a negative value.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}
