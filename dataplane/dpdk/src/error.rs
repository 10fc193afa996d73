//! Where DPDK's return codes become errors.

use std::ffi::{CStr, c_int};

use crate::log;

/// A call of DPDK that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {} ({errno}){}", strerror(*.errno), appendix(.logged))]
pub struct Error {
    /// What was being done, in words.
    pub what: String,
    /// A positive `errno`, or 0 when DPDK gave none.
    pub errno: i32,
    /// What DPDK logged meanwhile at warning level or worse, the latest last.
    pub logged: Vec<String>,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, errno: c_int) -> Error {
        Error { what: what.into(), errno: errno.abs(), logged: log::take_recent() }
    }
}

/// Turns "0 or a count, or a negative errno" into a result.
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

/// Why the environment cannot start. Each is one sentence for the operator.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EalError {
    /// It can be started once in the life of a process.
    #[error(
        "DPDK's environment is already running in this process, or was; it can be started once"
    )]
    AlreadyStarted,
    /// The library is not the one that this program was built for.
    #[error(
        "this program was built with the headers of DPDK {headers}, and the library is {running}: build it anew \
         (cargo clean -p dpdk-sys)"
    )]
    OtherRelease {
        /// The release of the headers.
        headers: String,
        /// What the library says of itself.
        running: String,
    },
    /// Hugepages were required.
    #[error(
        "no free hugepages, and they are required: reserve some (sysctl vm.nr_hugepages=512) and mount \
         hugetlbfs, or let the configuration do without"
    )]
    NoHugepages,
    /// DPDK takes arguments that end with a NUL.
    #[error("a string for DPDK holds a NUL byte: {0:?}")]
    Nul(String),
    /// `rte_eal_init` failed.
    #[error("DPDK's environment does not start: {0}")]
    Init(Error),
    /// The thread that starts it could not be made.
    #[error("the thread that starts DPDK's environment cannot be made: {0}")]
    Thread(String),
}

/// Why a device does not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// Its packet buffers do not fit into the environment's memory.
    #[error("{0}")]
    Pool(Error),
    /// The device refuses.
    #[error("{0}")]
    Device(Error),
}
