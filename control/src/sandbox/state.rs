//! The restrictions in force, for the status and the metrics. They apply to the whole process.

use std::sync::Mutex;

use config::privilege::Capabilities;

use super::files::Files;

static STATE: Mutex<SandboxState> = Mutex::new(SandboxState {
    entered: false,
    capabilities: Vec::new(),
    landlock: 0,
    seccomp: false,
    workers: 0,
});

/// The restrictions in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxState {
    /// New privileges and unneeded capabilities were given up.
    pub entered: bool,
    /// Capabilities that the process kept.
    pub capabilities: Vec<String>,
    /// Version of Landlock's interface that restricts files; 0 for none.
    pub landlock: u32,
    /// The base filter is in force in all threads.
    pub seccomp: bool,
    /// Workers with a narrower filter.
    pub workers: u32,
}

/// Returns the restrictions in force now.
pub fn state() -> SandboxState {
    locked(|state| state.clone())
}

pub(super) fn entered(kept: Capabilities, files: Files) {
    locked(|state| {
        state.entered = true;
        state.capabilities = kept.names();
        state.landlock = files.0;
    });
}

pub(super) fn filtered() {
    locked(|state| state.seccomp = true);
}

pub(super) fn worker_filtered() {
    locked(|state| state.workers += 1);
}

/// Returns the names, or `none`.
pub(super) fn listed(set: Capabilities) -> String {
    match set.names() {
        names if names.is_empty() => "none".into(),
        names => names.join(" "),
    }
}

fn locked<T>(change: impl FnOnce(&mut SandboxState) -> T) -> T {
    // Each change is a single step, so a poisoned lock still guards a consistent state.
    change(&mut STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}
