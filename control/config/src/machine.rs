//! Reads the machine's `/proc`, `/sys` and `/dev`, and collects findings about the machine.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::errors::{ConfigError, ErrorSink, SectionSpan};
use crate::privilege::{self, Capabilities};

/// A finding about the machine, with the key of the configuration that requires the missing part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineFinding {
    /// With this error the appliance does not start or does not work.
    Error(ConfigError),
    /// The appliance will start, but the operator should see the finding.
    Note(ConfigError),
}

/// A machine, identified by the directory that contains its `/proc`, `/sys` and `/dev`: `/`, or another directory in
/// tests.
pub(super) struct Machine {
    pub(super) root: PathBuf,
}

pub(super) struct Findings<'d> {
    pub(super) sink: &'d ErrorSink,
    pub(super) list: Vec<MachineFinding>,
}

impl Findings<'_> {
    pub(super) fn error(&mut self, places: &SectionSpan, key: &str, message: impl Into<String>) {
        self.list.push(MachineFinding::Error(self.sink.error_at(
            places.key_offset(key),
            places.full_key(key),
            message,
        )));
    }

    pub(super) fn note(&mut self, places: &SectionSpan, key: &str, message: impl Into<String>) {
        self.list.push(MachineFinding::Note(self.sink.error_at(
            places.key_offset(key),
            places.full_key(key),
            message,
        )));
    }
}

impl Machine {
    pub(super) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns the effective capabilities of this process; none if they cannot be read.
    pub(super) fn capabilities(&self) -> Capabilities {
        privilege::effective_capabilities(&self.read("proc/self/status").unwrap_or_default())
            .unwrap_or_default()
    }

    /// Returns the free hugepages of all sizes, bytes.
    pub(super) fn free_hugepages(&self) -> u64 {
        self.free_hugepages_of(|_| true)
    }

    /// Returns the bytes in free hugepages of the sizes for which `fits` returns true.
    pub(super) fn free_hugepages_of(&self, fits: impl Fn(u64) -> bool) -> u64 {
        let Ok(sizes) = fs::read_dir(self.root.join("sys/kernel/mm/hugepages")) else { return 0 };
        let mut total = 0u64;
        for entry in sizes.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = name.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB"));
            let size = size.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
            if !fits(size << 10) {
                continue;
            }
            let free = fs::read_to_string(entry.path().join("free_hugepages")).unwrap_or_default();
            let free = free.trim().parse::<u64>().unwrap_or(0);
            total = total.saturating_add(free.saturating_mul(size << 10));
        }
        total
    }
}

pub(super) fn check_parent_writable(
    path: &Path,
    key: &str,
    places: &SectionSpan,
    findings: &mut Findings<'_>,
) {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let shown = parent.display();
    if !parent.is_dir() {
        findings.error(
            places,
            key,
            format!("its directory {shown} does not exist: mkdir -p {shown}"),
        );
    } else if rustix::fs::access(parent, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let message =
            format!("nothing may be created in {shown}: change its mode or choose another");
        findings.error(places, key, message);
    }
}
