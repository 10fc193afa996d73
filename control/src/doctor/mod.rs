//! `ddpd doctor`: checks the host against configurations, or for an appliance in general.
//!
//! `ddpd check` reports errors that keep an appliance from starting or working. `ddpd doctor` also reports causes of
//! slow or wrong operation: cores, NUMA nodes, offloads, clocks. It opens no device and changes no setting: remedies
//! are only printed.
//!
//! [`Host`] performs all reads of `/proc` and `/sys`, with a bounded length. An unreadable or unexpected file is a
//! finding of severity [`Severity::Unknown`], never [`Severity::Ok`].

mod cores;
mod cpu;
mod disk;
mod dpdk;
mod finding;
mod host;
mod hugepages;
mod interfaces;
mod numa;
mod offloads;
mod pci;
mod process;
mod programs;
mod report;
mod sockets;
mod subject;
#[cfg(test)]
mod testing;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use config::{Config, MachineFinding};
use daemon::DoctorFormat;
pub use finding::{Finding, Severity};
pub use host::Host;
pub use subject::Subject;

/// Examines the host for these configuration files, or in general if there are none, and prints the findings to `out`.
/// The exit code is 1 if a finding is an error.
///
/// # Errors
/// Outer: a configuration cannot be read. Inner: writing the output failed.
pub fn run(
    files: &[PathBuf],
    format: DoctorFormat,
    dpdk: &str,
    out: &mut dyn Write,
) -> Result<io::Result<ExitCode>, String> {
    let documents = config::load_all(files).map_err(|errors| errors.to_string())?;
    let configs = documents.into_iter().map(|document| document.config).collect();
    let findings = examine(&Host::local(), &Subject { configs, dpdk: dpdk.to_owned() });
    let printed = match format {
        DoctorFormat::Text => report::text(&findings, out),
        DoctorFormat::Json => report::json(&findings, out),
        DoctorFormat::Script => report::script(&findings, out),
    };
    let failed = findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(printed.map(|()| if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }))
}

/// Compares the addresses of a configuration with the kernel's addresses, for `ddpd check`.
pub fn check_addresses(config: &Config) -> Vec<MachineFinding> {
    interfaces::check_addresses(&Host::local(), config)
}

/// Runs all checks, in the order of the report.
pub fn examine(host: &Host, subject: &Subject) -> Vec<Finding> {
    let mut found = Vec::new();
    dpdk::version(subject, &mut found);
    dpdk::drivers(host, subject, &mut found);
    process::capabilities(host, subject, &mut found);
    process::locked_memory(host, subject, &mut found);
    process::open_files(host, subject, &mut found);
    hugepages::check(host, subject, &mut found);
    cores::check_available(host, subject, &mut found);
    cores::check_isolation(host, subject, &mut found);
    cores::check_siblings(host, subject, &mut found);
    cpu::governor(host, subject, &mut found);
    cpu::clock(host, &mut found);
    numa::distance(host, subject, &mut found);
    pci::drivers(host, subject, &mut found);
    pci::vfio(host, subject, &mut found);
    pci::iommu(host, subject, &mut found);
    interfaces::mtu(host, subject, &mut found);
    offloads::check(host, subject, &mut found);
    interfaces::addresses(host, subject, &mut found);
    sockets::management(host, subject, &mut found);
    sockets::listen(host, subject, &mut found);
    programs::socket(host, subject, &mut found);
    programs::memory(host, subject, &mut found);
    disk::space(host, subject, &mut found);
    found
}
