//! Errors of DPDK, and their conversion from return codes.

use std::ffi::{CStr, c_int};

use crate::log;

/// A failed call of DPDK, with the last lines of DPDK's log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {} ({errno}){}", strerror(*.errno), appendix(.logged))]
pub struct Error {
    /// The failure in words, or the name of the failed function.
    pub what: String,
    /// A positive `errno`, or 0 if DPDK reported none.
    pub errno: i32,
    /// Up to eight lines of DPDK's log at warning level or worse, the latest last.
    pub logged: Vec<String>,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, errno: c_int) -> Error {
        Error { what: what.into(), errno: errno.abs(), logged: log::take_recent() }
    }
}

/// Converts a return code to a result: 0 or a count is success, a negative errno is an error.
pub(crate) fn check(what: impl Into<String>, code: c_int) -> Result<u32, Error> {
    u32::try_from(code).map_err(|_| Error::new(what, code))
}

fn strerror(errno: i32) -> String {
    if errno == 0 {
        return "no reason given".to_owned();
    }
    // SAFETY: rte_strerror accepts any number. The returned string is NUL-terminated, static or in a buffer of this
    // thread, and is copied at once.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno)) }.to_string_lossy().into_owned()
}

fn appendix(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("; DPDK says: {}", lines.join(" / ")) }
}

/// Reason why the environment cannot start. The message is one sentence for the operator.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EalError {
    /// The environment was started before. Only one start per process is possible.
    #[error(
        "DPDK's environment is already running in this process, or was; it can be started once"
    )]
    AlreadyStarted,
    /// The loaded library is of another release than the headers of this program's build.
    #[error(
        "this program was built with the headers of DPDK {headers}, and the library is {running}: rebuild it \
         (cargo clean -p dpdk-sys)"
    )]
    ReleaseMismatch {
        /// Release of the headers.
        headers: String,
        /// Release reported by the library.
        running: String,
    },
    /// Hugepages are required, but none is free.
    #[error(
        "no free hugepages, and they are required: reserve some (sysctl vm.nr_hugepages=512) and mount \
         hugetlbfs, or let the configuration do without"
    )]
    NoHugepages,
    /// A string for DPDK contains a NUL byte, but DPDK's arguments are NUL-terminated.
    #[error("a string for DPDK contains a NUL byte: {0:?}")]
    Nul(String),
    /// `rte_eal_init` failed.
    #[error("DPDK's environment does not start: {0}")]
    Init(Error),
    /// The thread that starts the environment could not be created, or panicked.
    #[error("the thread that starts DPDK's environment cannot be created: {0}")]
    Thread(String),
}

/// Reason why a device does not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The device's pool of packet buffers cannot be created, usually for lack of memory.
    #[error("{0}")]
    Pool(Error),
    /// The device or its driver refuses the set-up or the start.
    #[error("{0}")]
    Device(Error),
}
