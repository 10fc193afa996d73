//! Stops the other threads of the process by a real-time signal.
//!
//! ```text
//!  registering thread                            each other thread
//!    episode = odd
//!    tgkill to each thread of /proc/self/task -->  handler: arrived = episode, waits on the futex `episode`
//!    waits until all have arrived
//!    ... copies and replaces memory ...
//!    episode = even, wakes -------------------->   returns from the handler
//! ```
//!
//! A stopped thread waits in the system call `futex`. Neither its code nor the kernel on its behalf writes to memory: a
//! system call that the signal interrupts is restarted later (`SA_RESTART`), or fails with EINTR as with any signal.
//! Stopped threads may hold any lock, also those of the memory allocator. Code that runs meanwhile must not allocate
//! memory.
//!
//! Threads of the kernel's io_uring run no code of the program, and receive no signals. They count as stopped.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;
use rustix::thread::futex;

use super::Failure;

/// Maximum number of threads to stop.
const MAX_THREADS: usize = 8192;
/// Time-out for the arrival of a thread that was signalled. Only a thread that gets no CPU, that blocks the signal, or
/// that is in an uninterruptible system call needs longer than a few milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time-out for a thread that sleeps and blocks the signal. Threads block signals for short times while they create
/// threads or processes, or start. On a busy host they then wait for a CPU, but they do not sleep.
const BLOCKED_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of the episode: one stop and release of all other threads. Odd from the first signal until the release, then
/// even. No two successive episodes have the same number.
static EPISODE: AtomicU32 = AtomicU32::new(0);
/// Number of used entries of [`THREADS`] and [`ARRIVED`].
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Identifiers of the signalled threads.
static THREADS: [AtomicU32; MAX_THREADS] = [const { AtomicU32::new(0) }; MAX_THREADS];
/// Number of the last episode for which the thread of the same index has stopped.
static ARRIVED: [AtomicU32; MAX_THREADS] = [const { AtomicU32::new(0) }; MAX_THREADS];
/// The signal that stops threads; 0: not chosen yet.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Bytes of the kernel's signal set.
const SET: usize = 8;

/// Blocks all signals of the calling thread until drop. A signal handler in this thread could write to memory that is
/// being copied. The system call is used because `pthread_sigmask` leaves out the signals of glibc for `pthread_cancel`
/// and `setuid`.
pub(super) struct Masked(u64);

impl Masked {
    pub(super) fn new() -> Masked {
        Masked(set_mask(u64::MAX))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Sets the blocked signals of the calling thread, and returns the earlier ones.
fn set_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both sets are valid and have the length that is passed.
    let result = unsafe {
        let (new, old) = (&raw const mask, &raw mut old);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, SET)
    };
    debug_assert_eq!(result, 0);
    old
}

/// Returns the blocked signals of the calling thread.
fn blocked() -> u64 {
    let mut mask = 0u64;
    // SAFETY: without a new set the call only stores the present one, in a valid set of the length that is passed.
    let result = unsafe {
        let none = ptr::null::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, none, &raw mut mask, SET)
    };
    debug_assert_eq!(result, 0);
    mask
}

/// Guard during which all other threads are stopped. Its drop releases them.
#[derive(Debug)]
pub(super) struct Stopped {
    any: bool,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if self.any {
            release();
        }
    }
}

/// Returns the signal that stops threads. The first call chooses it and installs its handler. This call must precede
/// [`stop`], and the start of the library's first thread, because the library's threads block all other signals. The
/// caller serialises calls.
pub(super) fn prepare() -> Result<c_int, Failure> {
    let chosen = SIGNAL.load(Ordering::Relaxed);
    if chosen != 0 && handler_of(chosen) == Some(on_signal as *const () as usize) {
        return Ok(chosen);
    }
    // From the highest number down, because programs choose from SIGRTMIN up. Signals that this thread blocks come
    // last: the program may receive them by `signalfd` or `sigwait`.
    let blocked = blocked();
    let is_blocked = |signal: c_int| blocked >> (signal - 1) & 1 == 1;
    let mut signals: Vec<c_int> = (libc::SIGRTMIN()..libc::SIGRTMAX()).rev().collect();
    signals.sort_by_key(|signal| is_blocked(*signal));
    for signal in signals.into_iter().filter(|signal| handler_of(*signal) == Some(libc::SIG_DFL)) {
        // SAFETY: all zero is a valid value of the structure. Its fields are set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: both pointers are valid or NULL. `on_signal` has the signature for `SA_SIGINFO` and makes only calls
        // that are safe in handlers. All signals are blocked while it runs.
        let result = unsafe {
            // `sigfillset` leaves out the signals of glibc.
            ptr::write_bytes(&raw mut action.sa_mask, 0xff, 1);
            libc::sigaction(signal, &action, ptr::null_mut())
        };
        if result == 0 {
            SIGNAL.store(signal, Ordering::Relaxed);
            return Ok(signal);
        }
    }
    Err(Failure::new(Errno::BUSY, "the program uses all real-time signals"))
}

/// Returns the handler of a signal.
fn handler_of(signal: c_int) -> Option<usize> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call stores the present action at a valid pointer.
    let result = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the call has succeeded and has thus initialised the action.
    (result == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}

/// Stops all threads of the process except the calling one and `except`. Allocates nothing. The caller serialises
/// calls.
pub(super) fn stop(except: u32) -> Result<Stopped, Failure> {
    let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let system = |error| Failure::new(error, "the threads of the process cannot be listed");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = rustix::fs::open(c"/proc/self/task", flags, Mode::empty()).map_err(system)?;
    COUNT.store(0, Ordering::Relaxed);
    let mut stopped = Stopped { any: false };
    // Threads that are not stopped yet may create threads: lists all threads again until none is new.
    loop {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        rustix::fs::seek(&tasks, SeekFrom::Start(0)).map_err(system)?;
        let mut entries = RawDir::new(&tasks, &mut buffer);
        let mut is_new = false;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(system)?;
            let name = entry.file_name().to_bytes();
            let Some(thread) = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if thread != this && thread != except && slot(thread).is_none() {
                if !std::mem::replace(&mut stopped.any, true) {
                    EPISODE.fetch_add(1, Ordering::SeqCst);
                }
                signal(thread)?;
                is_new = true;
            }
        }
        if !is_new {
            return Ok(stopped);
        }
        wait_for_arrivals()?;
    }
}

/// Adds a thread to the table and sends it the signal.
fn signal(thread: u32) -> Result<(), Failure> {
    let slot = COUNT.load(Ordering::Relaxed) as usize;
    if slot == MAX_THREADS {
        return Err(Failure::new(Errno::AGAIN, "the program has too many threads"));
    }
    THREADS[slot].store(thread, Ordering::Relaxed);
    ARRIVED[slot].store(0, Ordering::Relaxed);
    COUNT.store(slot as u32 + 1, Ordering::SeqCst);
    match send(thread, SIGNAL.load(Ordering::Relaxed)) {
        // The thread has ended.
        Err(Errno::SRCH) => {
            ARRIVED[slot].store(EPISODE.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(())
        }
        result => result.map_err(|error| Failure::new(error, "a thread cannot be stopped")),
    }
}

fn send(thread: u32, signal: c_int) -> Result<(), Errno> {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call sends a signal to a thread of this process, with a handler of this library, or signal 0.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    if result == 0 {
        return Ok(());
    }
    // SAFETY: the C library returns a valid pointer to the errno of the calling thread.
    Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
}

/// Waits until all threads of the table are stopped or have ended.
fn wait_for_arrivals() -> Result<(), Failure> {
    let episode = EPISODE.load(Ordering::Relaxed);
    let start = Instant::now();
    for slot in 0..COUNT.load(Ordering::Relaxed) as usize {
        let mut rounds = 0u32;
        let mut asleep_since = None;
        while ARRIVED[slot].load(Ordering::Acquire) != episode {
            rounds += 1;
            match rounds {
                ..64 => std::hint::spin_loop(),
                64..1024 => rustix::thread::sched_yield(),
                _ => {
                    let thread = THREADS[slot].load(Ordering::Relaxed);
                    let state = find_state(thread);
                    if matches!(state, ThreadState::Ended | ThreadState::Kernel) {
                        break;
                    }
                    if state != ThreadState::Blocked {
                        asleep_since = None;
                    } else if asleep_since.get_or_insert_with(Instant::now).elapsed()
                        > BLOCKED_TIMEOUT
                    {
                        let reason = "a thread of the program blocks all signals";
                        return Err(Failure::new(Errno::BUSY, reason));
                    }
                    if start.elapsed() > TIMEOUT {
                        let reason = "a thread of the program does not respond";
                        return Err(Failure::new(Errno::BUSY, reason));
                    }
                    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000 };
                    let _ = rustix::thread::nanosleep(&pause);
                }
            }
        }
    }
    Ok(())
}

/// Reason why a thread has not arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ThreadState {
    /// The thread has ended. A main thread that has ended stays as a zombie.
    Ended,
    /// A worker thread of the kernel's io_uring.
    Kernel,
    /// The thread sleeps and blocks the signal.
    Blocked,
    Other,
}

/// Finds the state of a thread. Allocates nothing.
fn find_state(thread: u32) -> ThreadState {
    if send(thread, 0) == Err(Errno::SRCH) {
        return ThreadState::Ended;
    }
    let mut stat = [0u8; 4096];
    let mut status = [0u8; 4096];
    let stat = read_task(thread, b"/stat", &mut stat);
    let status = read_task(thread, b"/status", &mut status);
    let (Some(stat), Some(status)) = (stat, status) else { return ThreadState::Ended };
    parse_state(stat, status, SIGNAL.load(Ordering::Relaxed))
}

/// Reads a file of `/proc/self/task/THREAD` and returns its first bytes. Returns `None` if the thread has ended.
fn read_task<'a>(thread: u32, name: &[u8], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = [0u8; 48];
    let mut len = 0;
    let mut push = |bytes: &[u8]| {
        path[len..len + bytes.len()].copy_from_slice(bytes);
        len += bytes.len();
    };
    push(b"/proc/self/task/");
    let mut digits = [0u8; 10];
    let mut rest = thread;
    let mut at = digits.len();
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    push(&digits[at..]);
    push(name);
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut *text).ok()?;
    Some(&text[..len])
}

/// Returns the state of a thread by its files `status` and `stat`: `number (name) state parent group session tty
/// foreground flags ...`.
fn parse_state(stat: &[u8], status: &[u8], signal: c_int) -> ThreadState {
    /// Flags of worker threads: `PF_IO_WORKER` and `PF_USER_WORKER` of `linux/sched.h`.
    const WORKER: u64 = 0x10 | 0x4000;
    // The name may contain spaces and parentheses.
    let Some(end) = stat.iter().rposition(|byte| *byte == b')') else { return ThreadState::Other };
    let mut fields = stat[end + 1..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let state = fields.next();
    if matches!(state, Some(b"Z" | b"X")) {
        return ThreadState::Ended;
    }
    let flags = fields.nth(5).and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
    if flags.is_some_and(|flags: u64| flags & WORKER != 0) {
        return ThreadState::Kernel;
    }
    let is_blocked = |mask: u64| signal > 0 && mask >> (signal - 1) & 1 != 0;
    match state {
        Some(b"S") if parse_blocked(status).is_some_and(is_blocked) => ThreadState::Blocked,
        _ => ThreadState::Other,
    }
}

/// Returns the blocked signals of a thread by its file `status`.
fn parse_blocked(status: &[u8]) -> Option<u64> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let mask = lines.find_map(|line| line.strip_prefix(b"SigBlk:\t"))?;
    u64::from_str_radix(std::str::from_utf8(mask).ok()?, 16).ok()
}

fn release() {
    EPISODE.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(&EPISODE, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Returns the index of a thread in the table.
fn slot(thread: u32) -> Option<usize> {
    let count = (COUNT.load(Ordering::SeqCst) as usize).min(MAX_THREADS);
    THREADS[..count].iter().position(|other| other.load(Ordering::Relaxed) == thread)
}

/// The signal's handler. A signal outside of an episode, left from an episode that has failed, is ignored.
extern "C" fn on_signal(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    let episode = EPISODE.load(Ordering::SeqCst);
    if episode.is_multiple_of(2) {
        return;
    }
    let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    if let Some(slot) = slot(this) {
        arrive(&ARRIVED[slot], episode);
    }
}

/// Stores `episode` and waits until `EPISODE` has another value, without a write to the stack in between: the stack may
/// be among the memory that is copied and replaced.
#[cfg(target_arch = "x86_64")]
fn arrive(arrived: &AtomicU32, episode: u32) {
    // SAFETY: `arrived` is valid for writes: an atomic of this module. The system call is a wait on the private futex
    // `EPISODE`, a static, without time-out. `syscall` clobbers rax, rcx and r11. The stack is not used.
    unsafe {
        std::arch::asm!(
            "mov dword ptr [{arrived}], edx",
            "2:",
            "mov eax, {futex}",
            "syscall",
            "cmp dword ptr [rdi], edx",
            "je 2b",
            arrived = in(reg) arrived.as_ptr(),
            futex = const libc::SYS_futex,
            in("rdi") EPISODE.as_ptr(),
            in("rsi") libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            in("edx") episode,
            in("r10") ptr::null::<libc::timespec>(),
            out("rax") _,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
}

/// See the function for x86_64.
#[cfg(target_arch = "aarch64")]
fn arrive(arrived: &AtomicU32, episode: u32) {
    // SAFETY: as for x86_64. `svc` changes x0 only.
    unsafe {
        std::arch::asm!(
            "stlr {episode:w}, [{arrived}]",
            "2:",
            "mov x0, {at}",
            "svc 0",
            "ldar {now:w}, [{at}]",
            "cmp {now:w}, {episode:w}",
            "b.eq 2b",
            arrived = in(reg) arrived.as_ptr(),
            at = in(reg) EPISODE.as_ptr(),
            episode = in(reg) episode,
            now = out(reg) _,
            in("x8") libc::SYS_futex,
            out("x0") _,
            in("x1") libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            in("x2") u64::from(episode),
            in("x3") ptr::null::<libc::timespec>(),
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `check` with the identifier of a thread that blocks all signals and runs `work` until `check` has returned.
    fn with_blocking_thread(
        work: impl FnOnce(std::sync::mpsc::Receiver<()>) + Send + 'static,
        check: impl FnOnce(u32),
    ) {
        use std::sync::mpsc::channel;
        prepare().unwrap();
        let (send, receive) = channel();
        let (end, is_ended) = channel();
        let blocking = std::thread::spawn(move || {
            let _masked = Masked::new();
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            work(is_ended);
        });
        check(receive.recv().unwrap());
        drop(end);
        blocking.join().unwrap();
    }

    #[test]
    fn sleeping_thread_that_blocks_all_signals_is_found() {
        let sleep = |is_ended: std::sync::mpsc::Receiver<()>| {
            let _ = is_ended.recv();
        };
        with_blocking_thread(sleep, |thread| {
            let deadline = Instant::now() + Duration::from_secs(30);
            while find_state(thread) != ThreadState::Blocked {
                assert!(Instant::now() < deadline, "the thread does not sleep");
                std::thread::yield_now();
            }
        });
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(find_state(own), ThreadState::Other);
        assert_eq!(find_state(u32::MAX >> 1), ThreadState::Ended);
    }

    #[test]
    fn runnable_thread_that_blocks_all_signals_is_waited_for() {
        use std::sync::mpsc::TryRecvError;
        let spin = |is_ended: std::sync::mpsc::Receiver<()>| {
            while is_ended.try_recv() == Err(TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        };
        with_blocking_thread(spin, |thread| assert_eq!(find_state(thread), ThreadState::Other));
    }

    #[test]
    fn state_of_a_thread_follows_its_files() {
        let state = |name: &str, letter: &str, flags: u64, mask: u64| {
            let stat = format!("17 ({name}) {letter} 1 17 17 0 -1 {flags} 0 0");
            let status = format!("Name:\tx\nSigBlk:\t{mask:016x}\n");
            parse_state(stat.as_bytes(), status.as_bytes(), 64)
        };
        assert_eq!(state("a) Z (b", "S", 4194304, 0), ThreadState::Other);
        assert_eq!(state("main", "Z", 4194304, 0), ThreadState::Ended);
        assert_eq!(state("iou-wrk-17", "S", 0x10 | 4194304, u64::MAX), ThreadState::Kernel);
        assert_eq!(state("iou-sqp-17", "S", 0x4000 | 4194304, u64::MAX), ThreadState::Kernel);
        assert_eq!(state("main", "S", 4194304, 1 << 63), ThreadState::Blocked);
        assert_eq!(state("main", "S", 4194304, !(1 << 63)), ThreadState::Other);
        // A thread that gets no CPU while it starts, and one in a system call that cannot be interrupted.
        assert_eq!(state("main", "R", 4194304, u64::MAX), ThreadState::Other);
        assert_eq!(state("main", "D", 4194304, u64::MAX), ThreadState::Other);
        assert_eq!(parse_state(b"", b"", 64), ThreadState::Other);
    }

    #[test]
    fn all_signals_but_kill_and_stop_are_blocked_while_masked() {
        let masked = Masked::new();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        drop(masked);
        assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(!status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
    }
}
