//! A simulated host for tests: a directory tree like `/proc` and `/sys`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::Document;

use super::{Finding, Host, Severity, Subject};

/// A tree of files like `/proc` and `/sys`, in a temporary directory.
pub(super) struct Tree {
    dir: tempfile::TempDir,
    offloads: BTreeMap<String, String>,
}

impl Tree {
    pub(super) fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree { dir: tempfile::tempdir().unwrap(), offloads: BTreeMap::new() };
        files.iter().for_each(|(path, text)| tree.file(path, text));
        tree
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// Sets the output of `ethtool -k` for a device.
    pub(super) fn ethtool(&mut self, device: &str, text: &str) {
        self.offloads.insert(device.to_owned(), text.to_owned());
    }

    pub(super) fn host(&self) -> Host {
        Host::with_root(self.dir.path(), self.offloads.clone())
    }

    /// Returns the findings of one check.
    pub(super) fn run(
        &self,
        subject: &Subject,
        check: impl Fn(&Host, &Subject, &mut Vec<Finding>),
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        check(&self.host(), subject, &mut found);
        found
    }
}

/// Returns an appliance's configuration with these workers, this port, one interface, and `more`.
pub(super) fn subject(workers: &str, port: &str, more: &str) -> Subject {
    let text = format!(
        "[workers]\n{workers}\n[[port]]\nname = \"p0\"\n{port}\n[[interface]]\nname = \"lan\"\nport = \"p0\"\n\
         addresses = [\"192.0.2.1/24\", \"fd00::1/64\"]\n{more}\n"
    );
    let document = Document::parse(Path::new("test.toml"), &text).expect("a right configuration");
    Subject { configs: vec![document.config], dpdk: "DPDK 22.11.6".into() }
}

/// An `af_packet` port on `v0`.
pub(super) const PACKET: &str = "kind = \"af_packet\"\ndevice = \"v0\"";
/// A `pci` port with the device 0000:03:00.0.
pub(super) const PCI: &str = "kind = \"pci\"\naddress = \"0000:03:00.0\"";
/// A port that needs nothing from the host.
pub(super) const RING: &str = "kind = \"ring\"\nlink = \"l\"";

/// Returns the only finding. Panics if there are more or fewer.
#[track_caller]
pub(super) fn only_finding(found: &[Finding]) -> (Severity, &Finding) {
    assert_eq!(found.len(), 1, "{found:#?}");
    (found[0].severity, &found[0])
}
