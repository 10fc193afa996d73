//! The sandbox: the process drops privileges to limit the damage of an exploited bug.
//!
//! Capabilities, no-new-privileges, Landlock and seccomp are attributes of threads. A new thread inherits them from its
//! creator. DPDK creates threads, hence this order:
//!
//! ```text
//!  main thread, before any other:  capabilities, no_new_privs, Landlock         [`Sandbox::enter`]
//!  EAL and ports start             their threads inherit these
//!  main thread, all threads:       base filter of system calls (TSYNC)          [`Sandbox::filter_all`]
//!  control side, workers start     their threads inherit these
//!  each worker, before its loop:   narrower filter by its kinds of port         [`Sandbox::filter_worker`]
//! ```
//!
//! Features that the kernel lacks are skipped and logged once. A denied call fails with `EPERM` (on a file: `EACCES`).
//! Threads are not killed: an error in the rules must not lose data in flight.

mod files;
mod filter;
mod privileges;
mod state;

pub use state::{SandboxState, state};

use port_kind::MemifRole;

use config::{Config, LogFormat, PortKind, SandboxMode};

/// Sandbox of the process: the rights of its threads.
#[derive(Clone, Debug)]
pub struct Sandbox {
    enabled: bool,
    ports: filter::Ports,
    /// True if the process logs to systemd's journal.
    journald: bool,
}

impl Sandbox {
    /// Returns a sandbox without restrictions.
    pub fn disabled() -> Sandbox {
        Sandbox { enabled: false, ports: filter::Ports::default(), journald: false }
    }

    /// Drops unneeded capabilities, forbids new privileges, and restricts file access to the files that the appliances
    /// need. Must be called while the process has a single thread.
    ///
    /// # Errors
    /// The configurations differ in the sandbox mode, a configured directory cannot be opened, or the kernel refuses a
    /// restriction that it supports. The error is one sentence.
    pub fn enter(configs: &[Config]) -> Result<Sandbox, String> {
        let modes: Vec<SandboxMode> =
            configs.iter().map(|config| config.management.sandbox.mode).collect();
        if modes.windows(2).any(|two| two[0] != two[1]) {
            return Err(
                "management.sandbox.mode: the appliances of one process differ: write the same"
                    .into(),
            );
        }
        if modes.first() != Some(&SandboxMode::On) {
            tracing::info!("sandbox: off, because management.sandbox.mode is \"off\"");
            return Ok(Sandbox::disabled());
        }
        let kinds = || configs.iter().flat_map(|config| &config.ports).map(|port| &port.kind);
        let connects =
            |kind: &PortKind| matches!(kind, PortKind::Memif { role: MemifRole::Client, .. });
        let ports = filter::Ports {
            kinds: kinds().map(PortKind::name).collect(),
            connects_unix: kinds().any(connects),
        };
        let journald =
            configs.iter().any(|config| config.management.log_format == LogFormat::Journald);
        let kept = privileges::drop_unneeded(configs)?;
        rustix::thread::set_no_new_privs(true)
            .map_err(|error| format!("the process cannot give up new privileges: {error}"))?;
        let landlock = files::restrict(configs)?;
        state::set_entered(kept, landlock);
        tracing::info!(
            "sandbox: capabilities {}, files {}",
            state::capability_names(kept),
            landlock
        );
        Ok(Sandbox { enabled: true, ports, journald })
    }

    /// Restricts the system calls of all threads. Must be called after the ports are open, because opening them needs
    /// more calls.
    pub fn filter_all(&self) {
        if !self.enabled {
            return;
        }
        match filter::install_base(&self.ports) {
            Ok(()) => {
                state::set_filtered();
                tracing::info!("sandbox: system calls restricted in all threads");
            }
            Err(error) => tracing::warn!("sandbox: system calls are not restricted: {error}"),
        }
    }

    /// Restricts the calling thread, a worker or the pump of a shared interface, to the system calls of these kinds of
    /// port. Has no effect without the base filter.
    pub fn filter_worker(&self, kinds: &[PortKind]) {
        if !self.enabled || !state::state().seccomp {
            return;
        }
        match filter::install_worker(kinds, self.journald) {
            Ok(()) => state::count_filtered_worker(),
            Err(error) => {
                tracing::warn!("sandbox: a worker has the filter of all threads: {error}")
            }
        }
    }
}
