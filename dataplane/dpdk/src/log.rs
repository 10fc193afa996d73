//! Capture of DPDK's log: silent by default, and the lines before a failure are kept for the error.
//!
//! DPDK writes to one stream of the process, from any thread. Lines at warning level or worse are added to a list of
//! [`MAX_RECENT`] lines, from which [`Error`](crate::Error) takes them. Lines that the configured level admits are
//! passed to the sink of [`EalConfig`](crate::EalConfig). While a device is created or removed, drivers log errors
//! about optional features; the sink receives all lines of this time with level debug. If the device fails, its lines
//! appear in the error.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Severity of a line of DPDK's log, the most severe first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// A failure.
    Error,
    /// A possible problem.
    Warning,
    /// Normal but significant.
    Notice,
    /// Informational.
    Info,
    /// Debugging details.
    Debug,
}

impl LogLevel {
    pub(crate) fn to_dpdk(self) -> u32 {
        match self {
            LogLevel::Error => 4,
            LogLevel::Warning => 5,
            LogLevel::Notice => 6,
            LogLevel::Info => 7,
            LogLevel::Debug => 8,
        }
    }

    fn from_dpdk(level: c_int) -> LogLevel {
        match level {
            ..=4 => LogLevel::Error,
            5 => LogLevel::Warning,
            6 => LogLevel::Notice,
            7 => LogLevel::Info,
            _ => LogLevel::Debug,
        }
    }
}

pub(crate) type Sink = fn(LogLevel, &str);

const MAX_RECENT: usize = 8;

struct State {
    sink: Option<(LogLevel, Sink)>,
    recent: VecDeque<String>,
}

static STATE: Mutex<State> = Mutex::new(State { sink: None, recent: VecDeque::new() });

static QUIET: AtomicBool = AtomicBool::new(false);

/// Sets whether further lines are passed to the sink with level debug.
pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Redirects DPDK's log to `sink`. Called once, before the environment starts. Returns 0 or a negative errno.
pub(crate) fn capture(level: LogLevel, sink: Sink) -> c_int {
    STATE.lock().unwrap_or_else(PoisonError::into_inner).sink = Some((level, sink));
    // SAFETY: `emit` is a static function that any thread may call and that does not unwind.
    unsafe {
        dpdk_sys::ddpd_log_level(level.max(LogLevel::Warning).to_dpdk());
        dpdk_sys::ddpd_log_capture(Some(emit))
    }
}

/// Redirects the messages that libbpf and libxdp write to standard error, if the AF_XDP driver is loaded. Called after
/// [`capture`], once drivers are loaded.
pub(crate) fn capture_xdp() {
    // SAFETY: `capture` has passed `emit` to the shim. The libraries stay loaded, because their driver does.
    unsafe { dpdk_sys::ddpd_log_capture_xdp() }
}

/// Takes the lines at warning level or worse since the last call: at most eight, the latest last.
pub(crate) fn take_recent() -> Vec<String> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.recent.drain(..).collect()
}

/// Discards earlier lines, so that an error contains only lines of the failed call.
pub(crate) fn clear_recent() {
    drop(take_recent());
}

unsafe extern "C" fn emit(text: *const c_char, len: usize, level: c_int) {
    // SAFETY: the shim passes a buffer of `len` bytes that is valid until this function returns.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let level = LogLevel::from_dpdk(level);
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        log_line(level, line);
    }
}

/// Prefix of secrets in drivers' arguments. Their values are removed from messages and log lines.
const SECRET: &str = "secret=";

/// Returns `text` without the values of secrets. `text` is a driver's arguments, or a line that may quote them.
pub(crate) fn redact_secrets(text: &str) -> Cow<'_, str> {
    if !text.contains(SECRET) {
        return Cow::Borrowed(text);
    }
    let mut parts = text.split(SECRET);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([',', ' ', ')']).unwrap_or(part.len());
        clean.push_str("secret=(secret)");
        clean.push_str(&part[end..]);
    }
    Cow::Owned(clean)
}

fn log_line(level: LogLevel, line: &str) {
    let line = &*redact_secrets(line);
    let sink = {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        if level <= LogLevel::Warning {
            if state.recent.len() == MAX_RECENT {
                state.recent.pop_front();
            }
            state.recent.push_back(line.to_owned());
        }
        state.sink
    };
    let level = if QUIET.load(Ordering::Relaxed) { LogLevel::Debug } else { level };
    // The sink is called without the lock of `STATE`, because it may log, wait, or panic.
    if let Some((limit, sink)) = sink
        && level <= limit
    {
        // A panic must not unwind into C.
        drop(std::panic::catch_unwind(|| sink(level, line)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_redact_secrets() {
        let args = "role=client,id=0,secret=s3cr3t,bsize=2048";
        assert_eq!(redact_secrets(args), "role=client,id=0,secret=(secret),bsize=2048");
        assert_eq!(redact_secrets("bad: secret=s3cr3t"), "bad: secret=(secret)");
        assert_eq!(
            redact_secrets("(secret=a) (secret=b) c"),
            "(secret=(secret)) (secret=(secret)) c"
        );
        assert_eq!(redact_secrets("socket=/run/m"), "socket=/run/m");
    }
}
