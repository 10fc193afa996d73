//! Signals that cancel a transfer: the job is cancelled first, then the process ends by the signal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use super::exit::Exit;

/// Handlers of SIGHUP, SIGINT and SIGTERM, removed on drop. The first signal is recorded; a second signal has its
/// default effect.
pub(super) struct Interrupt {
    signal: Arc<AtomicUsize>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Installs the handlers, except for signals that the parent process set to be ignored (`nohup`, `&` in a script).
    pub(super) fn watch() -> io::Result<Interrupt> {
        let (signal, second) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let mut handlers = Vec::new();
        for number in [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)) {
            handlers.push(flag::register_conditional_default(number, Arc::clone(&second))?);
            handlers.push(flag::register(number, Arc::clone(&second))?);
            handlers.push(flag::register_usize(number, Arc::clone(&signal), number as usize)?);
        }
        Ok(Interrupt { signal, handlers })
    }

    /// Returns the exit code of the signal that arrived, if any.
    pub(super) fn exit(&self) -> Option<Exit> {
        match self.signal.load(Ordering::Relaxed) as i32 {
            0 => None,
            SIGHUP => Some(Exit::HangUp),
            SIGTERM => Some(Exit::Terminate),
            _ => Some(Exit::Interrupt),
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            low_level::unregister(handler);
        }
    }
}

/// Returns true if /proc/self/status lists the signal as ignored; false also if the file cannot be read.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}
