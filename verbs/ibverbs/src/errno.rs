//! Error numbers of verbs. Functions of this crate return positive numbers in `Err`.

use std::ffi::c_int;

pub use libc::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAGAIN, EBUSY, ECONNABORTED, ECONNREFUSED, ECONNRESET,
    EFAULT, EHOSTUNREACH, EINTR, EINVAL, EIO, EISCONN, EMSGSIZE, ENETUNREACH, ENODEV, ENOENT,
    ENOMEM, ENOSYS, ENOTCONN, EOPNOTSUPP, EOVERFLOW, EPERM, EPIPE, EPROTO, EPROTONOSUPPORT,
    ESHUTDOWN, ETIMEDOUT,
};
use verbs_client::{Error, RefusalKind};

/// Result of a function. The error is a positive error number.
pub type Result<T> = std::result::Result<T, c_int>;

/// Returns the error number of a native error.
#[allow(clippy::match_same_arms, reason = "one line per error")]
pub fn errno(error: &Error) -> c_int {
    match error {
        Error::Connect { error, .. }
        | Error::System { error, .. }
        | Error::Memory { error, .. } => error.raw_os_error(),
        Error::Disconnected(_) | Error::Protocol(_) => EIO,
        Error::Refused(refusal) => match refusal.kind {
            RefusalKind::Invalid => EINVAL,
            RefusalKind::NotFound => EINVAL,
            RefusalKind::InUse => EBUSY,
            RefusalKind::Limit | RefusalKind::NoMemory => ENOMEM,
            RefusalKind::NotAllowed => EPERM,
            RefusalKind::Unreachable => EHOSTUNREACH,
            RefusalKind::Version => EPROTONOSUPPORT,
            RefusalKind::Draining => ESHUTDOWN,
        },
        Error::Argument(_) | Error::State(_) | Error::Descriptor(_) => EINVAL,
        Error::Full | Error::ArenaFull(_) => ENOMEM,
        Error::Queue(_) | Error::CompletionQueue(_) => EIO,
        Error::Rejected { .. } => ECONNREFUSED,
        Error::ConnectFailed { unreachable: true, .. } => EHOSTUNREACH,
        Error::ConnectFailed { .. } => ECONNABORTED,
        Error::Ended(_) => ENOTCONN,
        Error::TimedOut => ETIMEDOUT,
        Error::Forked => EPERM,
        _ => EINVAL,
    }
}

/// Conversion of native results.
pub trait OrErrno<T> {
    /// Replaces a native error with its error number.
    ///
    /// # Errors
    /// The error number of the native error.
    fn or_errno(self) -> Result<T>;
}

impl<T> OrErrno<T> for std::result::Result<T, Error> {
    fn or_errno(self) -> Result<T> {
        self.map_err(|error| errno(&error))
    }
}

/// Sets the thread's `errno`.
pub fn set_errno(value: c_int) {
    errno_of_thread::set(value);
}

/// Sets the thread's `errno` and returns -1.
pub fn fail(value: c_int) -> c_int {
    set_errno(value);
    -1
}

/// Sets the thread's `errno` and returns NULL.
pub fn fail_null<T>(value: c_int) -> *mut T {
    set_errno(value);
    std::ptr::null_mut()
}

#[allow(unsafe_code)]
mod errno_of_thread {
    pub(super) fn set(value: std::ffi::c_int) {
        // SAFETY: the C library returns a valid pointer to the errno of the calling thread.
        unsafe { *libc::__errno_location() = value };
    }
}
