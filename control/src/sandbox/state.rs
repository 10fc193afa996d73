//! The restrictions in force, for status and metrics. They apply to the whole process.

use std::sync::Mutex;

use config::privilege::Capabilities;

use super::files::LandlockVersion;

static STATE: Mutex<SandboxState> = Mutex::new(SandboxState {
    entered: false,
    capabilities: Vec::new(),
    landlock: 0,
    seccomp: false,
    workers: 0,
});

/// The sandbox of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxState {
    /// True if unneeded capabilities were dropped and new privileges are forbidden.
    pub entered: bool,
    /// Names of the kept capabilities.
    pub capabilities: Vec<String>,
    /// Version of Landlock in force; 0 for none.
    pub landlock: u32,
    /// True if the base filter is in force in all threads.
    pub seccomp: bool,
    /// Number of threads with the narrower filter: workers, and pumps of shared interfaces.
    pub workers: u32,
}

/// Returns the restrictions in force.
pub fn state() -> SandboxState {
    with_state(|state| state.clone())
}

pub(super) fn set_entered(kept: Capabilities, files: LandlockVersion) {
    with_state(|state| {
        state.entered = true;
        state.capabilities = kept.names();
        state.landlock = files.0;
    });
}

pub(super) fn set_filtered() {
    with_state(|state| state.seccomp = true);
}

pub(super) fn count_filtered_worker() {
    with_state(|state| state.workers += 1);
}

/// Returns the names separated by spaces, or `none`.
pub(super) fn capability_names(set: Capabilities) -> String {
    match set.names() {
        names if names.is_empty() => "none".into(),
        names => names.join(" "),
    }
}

fn with_state<T>(change: impl FnOnce(&mut SandboxState) -> T) -> T {
    // Each change is a single step, so a poisoned lock still guards a consistent state.
    change(&mut STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}
