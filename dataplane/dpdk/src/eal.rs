//! DPDK's environment (EAL). It is started once per process and never stopped: DPDK could stop it, but would unmap its
//! memory while its interrupt thread may still use the memory.
//!
//! The environment makes the thread that starts it the "main lcore". This crate starts the environment on a temporary
//! thread, so no thread of the caller is pinned, renamed or registered. Workers register themselves after they have
//! pinned themselves.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;
use port_kind::policy::Hugepages;

use crate::error::{EalError, Error, check};
use crate::log::{self, LogLevel};
use crate::pool::Pool;

/// Parameters of the environment.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// Kind of memory for pools and rings: hugepages or ordinary memory.
    pub hugepages: Hugepages,
    /// Memory of all pools and rings together, in MiB. With ordinary memory, this is a limit. With hugepages, DPDK
    /// allocates more when needed.
    pub memory_mib: u32,
    /// Addresses of the usable PCI devices, such as `0000:01:00.0`, each optionally followed by a comma and its
    /// driver's arguments. If empty, the PCI bus is not scanned.
    pub pci: Vec<String>,
    /// True to enable DPDK's telemetry socket.
    pub telemetry: bool,
    /// More arguments for `rte_eal_init`, passed unchanged.
    pub extra: Vec<String>,
    /// Least severe level of the DPDK log lines that are passed to `log`.
    pub log_level: LogLevel,
    /// Function that receives these lines. Any thread may call it, but no caller holds the lock of a queue.
    pub log: fn(LogLevel, &str),
}

impl Default for EalConfig {
    fn default() -> Self {
        EalConfig {
            hugepages: Hugepages::Auto,
            memory_mib: 256,
            pci: Vec::new(),
            telemetry: false,
            extra: Vec::new(),
            log_level: LogLevel::Error,
            log: |_, _| {},
        }
    }
}

/// The running environment. Clones refer to the same environment.
#[derive(Clone)]
pub struct Eal(Arc<Inner>);

struct Inner {
    hugepages: bool,
    statement: String,
    registered: AtomicUsize,
    /// Retired pools: no owner is left, but buffers may still be in use.
    retired: Mutex<Vec<Pool>>,
    /// Serialises creation and removal of devices, because DPDK does not.
    devices: Mutex<()>,
}

static STARTED: AtomicBool = AtomicBool::new(false);
static NEXT_ID: AtomicU32 = AtomicU32::new(0);

/// Returns a number that is unique in this process, for DPDK's process-wide names.
pub fn next_id() -> u32 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Returns the version of the loaded libdpdk, such as `DPDK 22.11.6`. The environment need not be started.
pub fn version() -> &'static str {
    // SAFETY: DPDK returns a NUL-terminated string that is valid as long as the process runs.
    let version = unsafe { std::ffi::CStr::from_ptr(sys::rte_version()) };
    version.to_str().unwrap_or("DPDK")
}

/// Year and month of the release whose headers the bindings were generated from.
const HEADERS: (u32, u32) = (sys::DDPD_HEADERS_YEAR, sys::DDPD_HEADERS_MONTH);

/// Refuses a libdpdk of another release than the headers, because the layout of its structures may differ. Only the
/// bugfix number may differ.
fn check_release(running: &str) -> Result<(), EalError> {
    let mut numbers = running.trim_start_matches("DPDK ").split(['.', '-', '~']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(year)), Some(Ok(month))) if (year, month) == HEADERS => Ok(()),
        _ => Err(EalError::ReleaseMismatch {
            headers: format!("{}.{:02}", HEADERS.0, HEADERS.1),
            running: running.to_owned(),
        }),
    }
}

impl Eal {
    /// Starts the environment, at most once per process. Requires no privilege unless PCI devices are named.
    pub fn start(config: &EalConfig) -> Result<Eal, EalError> {
        check_release(version())?;
        let free = free_hugepage_bytes();
        let enough = free >= u64::from(config.memory_mib) << 20;
        let hugepages = match config.hugepages {
            Hugepages::Auto => enough,
            Hugepages::Require if free == 0 => return Err(EalError::NoHugepages),
            Hugepages::Require => true,
            Hugepages::Never => false,
        };
        let args = arguments(config, hugepages)
            .into_iter()
            .map(|arg| CString::new(arg.clone()).map_err(|_| EalError::Nul(arg)))
            .collect::<Result<Vec<_>, _>>()?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(EalError::AlreadyStarted);
        }
        if log::capture(config.log_level, config.log) != 0 {
            return Err(EalError::Init(Error::new("its log cannot be redirected", 0)));
        }
        std::thread::Builder::new()
            .name("eal-main".into())
            .spawn(move || init(args))
            .map_err(|error| EalError::Thread(error.to_string()))?
            .join()
            .map_err(|_| EalError::Thread("it panicked".into()))??;
        Ok(Eal(Arc::new(Inner {
            hugepages,
            statement: statement(config, hugepages, free),
            registered: AtomicUsize::new(0),
            retired: Mutex::new(Vec::new()),
            devices: Mutex::new(()),
        })))
    }

    /// Returns true if the memory of pools and rings is in hugepages.
    pub fn has_hugepages(&self) -> bool {
        self.0.hugepages
    }

    /// Returns one sentence about the kind of memory of pools and rings, and the reason for it.
    pub fn statement(&self) -> &str {
        &self.0.statement
    }

    /// Registers the calling thread with DPDK, so that each pool has a buffer cache for the thread. Pin the thread
    /// first. At most 127 threads can be registered at a time.
    pub fn register_thread(&self) -> Result<ThreadRegistration, Error> {
        log::clear_recent();
        // The thread is counted as registered before it can fill a cache, and until it can no longer fill one. `sweep`
        // relies on this order.
        self.0.registered.fetch_add(1, Ordering::SeqCst);
        // SAFETY: any thread may call the function, also repeatedly.
        if unsafe { sys::rte_thread_register() } != 0 {
            self.0.registered.fetch_sub(1, Ordering::SeqCst);
            // SAFETY: reads `rte_errno` of this thread.
            let errno = unsafe { sys::ddpd_errno() };
            return Err(Error::new("the thread cannot be registered with DPDK", errno));
        }
        Ok(ThreadRegistration { eal: self.clone(), not_send: PhantomData })
    }

    /// Frees the retired pools whose buffers have all returned. Does nothing while threads are registered.
    pub fn sweep(&self) {
        self.0.sweep();
    }

    /// Returns the number of retired pools that are not freed yet.
    pub fn retired_pools(&self) -> usize {
        self.0.retired().len()
    }

    pub(crate) fn retire(&self, pool: Pool) {
        self.0.retired().push(pool);
        self.0.sweep();
    }

    /// Locks creation and removal of devices. Waits if they are locked.
    pub(crate) fn lock_devices(&self) -> DeviceLock<'_> {
        let guard = self.0.devices.lock().unwrap_or_else(PoisonError::into_inner);
        log::set_quiet(true);
        DeviceLock { _guard: guard }
    }

    /// Locks creation and removal of devices. Returns `None` if they are locked already.
    pub(crate) fn try_lock_devices(&self) -> Option<DeviceLock<'_>> {
        let guard = self.0.devices.try_lock().ok()?;
        log::set_quiet(true);
        Some(DeviceLock { _guard: guard })
    }
}

/// Lock for creation and removal of devices. While the lock is held, log lines are passed on with level debug.
pub(crate) struct DeviceLock<'a> {
    _guard: MutexGuard<'a, ()>,
}

impl Drop for DeviceLock<'_> {
    fn drop(&mut self) {
        log::set_quiet(false);
    }
}

impl fmt::Debug for Eal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eal").field("hugepages", &self.0.hugepages).finish_non_exhaustive()
    }
}

impl Inner {
    fn retired(&self) -> MutexGuard<'_, Vec<Pool>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sweep(&self) {
        let mut retired = self.retired();
        // A registered thread frees into its cache, whose count changes before its content. Other threads free into the
        // pool's ring, whose count changes last. Without registered threads, a full count therefore means that no
        // thread is still inside a free.
        if self.registered.load(Ordering::SeqCst) != 0 {
            return;
        }
        retired.retain(|pool| {
            let whole = pool.is_full();
            if whole {
                // SAFETY: the pool has no owner that could allocate, all its buffers have returned, and no thread is
                // inside a call on the pool (see above).
                unsafe { pool.free() };
            }
            !whole
        });
    }
}

/// Registration of a thread with DPDK, until dropped on the same thread.
pub struct ThreadRegistration {
    eal: Eal,
    not_send: PhantomData<*mut ()>,
}

impl ThreadRegistration {
    /// Returns DPDK's number of the thread (lcore id).
    pub fn lcore(&self) -> u32 {
        // SAFETY: reads the lcore id of this thread.
        u32::try_from(unsafe { sys::ddpd_lcore_id() }).expect("the thread is registered")
    }
}

impl fmt::Debug for ThreadRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThreadRegistration({})", self.lcore())
    }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        // SAFETY: this thread registered itself. The value is not `Send`, so it is dropped on the same thread.
        unsafe { sys::rte_thread_unregister() };
        self.eal.0.registered.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls `rte_eal_init`. The calling thread becomes the main lcore.
fn init(args: Vec<CString>) -> Result<(), EalError> {
    let count = args.len() as c_int;
    // DPDK keeps pointers to its arguments and permutes the array, so both are leaked.
    let args: &'static mut [*mut c_char] =
        Vec::leak(args.into_iter().map(CString::into_raw).collect::<Vec<_>>());
    // SAFETY: an array of `count` NUL-terminated strings; array and strings have static lifetime.
    let code = unsafe { sys::rte_eal_init(count, args.as_mut_ptr()) };
    // SAFETY: reads `rte_errno` of this thread.
    let errno = unsafe { sys::ddpd_errno() };
    log::capture_xdp();
    check("rte_eal_init", if code < 0 { -errno.max(1) } else { 0 }).map_err(EalError::Init)?;
    exclude_from_core_dumps()
}

/// Excludes the memory of packet buffers from core dumps. Called once, after the start.
fn exclude_from_core_dumps() -> Result<(), EalError> {
    // SAFETY: the environment has been started, and this is the only call.
    let advised = unsafe { sys::ddpd_leave_out_of_core_dumps() };
    check("leaving packet buffers out of core dumps", advised).map(|_| ()).map_err(EalError::Init)
}

fn arguments(config: &EalConfig, hugepages: bool) -> Vec<String> {
    // The main lcore may run on all CPUs that this process may use.
    let mut args = vec!["ddpd".to_owned(), "--lcores".into(), format!("0@({})", allowed_cpus())];
    if !config.telemetry {
        args.push("--no-telemetry".into());
    }
    // The prefix need not be unique: no memory is shared through files.
    args.push("--file-prefix=ddpd".into());
    if hugepages {
        args.push("--in-memory".into());
    } else {
        args.extend(["--no-huge".into(), "-m".into(), config.memory_mib.to_string()]);
        args.push("--no-shconf".into());
    }
    if config.pci.is_empty() {
        args.extend(["--no-pci".into(), "--iova-mode=va".into()]);
    }
    for address in &config.pci {
        args.extend(["-a".into(), address.clone()]);
    }
    args.extend(config.extra.iter().cloned());
    args
}

/// Returns the CPUs that this process may use, in DPDK's list format; `0` if unknown.
fn allowed_cpus() -> String {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(line.trim().to_owned())
        })
        .unwrap_or_else(|| "0".to_owned())
}

fn statement(config: &EalConfig, hugepages: bool, free: u64) -> String {
    let free = free >> 20;
    if hugepages {
        return format!("packet buffers are in hugepages ({free} MiB are free)");
    }
    let why = match config.hugepages {
        Hugepages::Never => "as configured".to_owned(),
        _ => format!("{free} MiB of hugepages are free, {} MiB are required", config.memory_mib),
    };
    format!("packet buffers are in ordinary memory, at most {} MiB ({why})", config.memory_mib)
}

/// Returns the bytes in free hugepages of all sizes and NUMA nodes. Reserved hugepages are not counted.
fn free_hugepage_bytes() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    sizes
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let read = |file: &str| -> Option<u64> {
                std::fs::read_to_string(Path::new(&entry.path()).join(file))
                    .ok()?
                    .trim()
                    .parse()
                    .ok()
            };
            Some((read("free_hugepages")?.saturating_sub(read("resv_hugepages")?)) * kib * 1024)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_match_loaded_library_release() {
        check_release(version()).expect("one release");
    }

    #[test]
    fn telemetry_is_off_by_default() {
        let off = |telemetry| {
            let config = EalConfig { telemetry, ..EalConfig::default() };
            arguments(&config, false).iter().any(|argument| argument == "--no-telemetry")
        };
        assert!(off(false));
        assert!(!off(true));
    }

    #[test]
    fn library_of_other_release_is_refused() {
        let (year, month) = HEADERS;
        check_release(&format!("DPDK {year}.{month:02}.99")).expect("a bugfix release");
        for other in [
            format!("DPDK {}.{month:02}.1", year + 1),
            format!("DPDK {year}.{:02}.0", month % 12 + 1),
            "DPDK".into(),
        ] {
            let error = check_release(&other).expect_err("refused").to_string();
            assert!(error.contains(&other) && error.contains("cargo clean -p dpdk-sys"), "{error}");
        }
    }
}
