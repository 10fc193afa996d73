//! Conversion of DPDK's return codes to errors.

use std::ffi::{CStr, c_int};

use crate::log;

/// A failed call of DPDK.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {} ({errno}){}", strerror(*.errno), appendix(.logged))]
pub struct Error {
    /// The attempted action, in words.
    pub what: String,
    /// A positive `errno`, or 0 if DPDK gave none.
    pub errno: i32,
    /// DPDK's log lines of the call at warning level or worse, the latest last.
    pub logged: Vec<String>,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, errno: c_int) -> Error {
        Error { what: what.into(), errno: errno.abs(), logged: log::take_recent() }
    }
}

/// Converts a return code (0 or a count, or a negative errno) to a result.
pub(crate) fn check(what: impl Into<String>, code: c_int) -> Result<u32, Error> {
    u32::try_from(code).map_err(|_| Error::new(what, code))
}

fn strerror(errno: i32) -> String {
    if errno == 0 {
        return "no reason given".to_owned();
    }
    // SAFETY: rte_strerror takes any number and returns a NUL-terminated string that is static or in
    // this thread's own buffer; it is copied at once.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno)) }.to_string_lossy().into_owned()
}

fn appendix(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("; DPDK says: {}", lines.join(" / ")) }
}

/// Reason why the environment cannot start. Each is one sentence for the operator.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EalError {
    /// The environment was started before: it can be started once per process.
    #[error(
        "DPDK's environment is already running in this process, or was; it can be started once"
    )]
    AlreadyStarted,
    /// The library is of another release than this program was built for.
    #[error(
        "this program was built with the headers of DPDK {headers}, and the library is {running}: build it anew \
         (cargo clean -p dpdk-sys)"
    )]
    ReleaseMismatch {
        /// Release of the headers.
        headers: String,
        /// Release reported by the library.
        running: String,
    },
    /// Hugepages were required.
    #[error(
        "no free hugepages, and they are required: reserve some (sysctl vm.nr_hugepages=512) and mount \
         hugetlbfs, or let the configuration do without"
    )]
    NoHugepages,
    /// A string contains a NUL byte, but DPDK's arguments are NUL-terminated.
    #[error("a string for DPDK holds a NUL byte: {0:?}")]
    Nul(String),
    /// `rte_eal_init` failed.
    #[error("DPDK's environment does not start: {0}")]
    Init(Error),
    /// The thread that starts the environment could not be created.
    #[error("the thread that starts DPDK's environment cannot be made: {0}")]
    Thread(String),
}

/// Reason why a device does not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The device's packet buffers do not fit into the environment's memory.
    #[error("{0}")]
    Pool(Error),
    /// The device or its driver refuses.
    #[error("{0}")]
    Device(Error),
}
