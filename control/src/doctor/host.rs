//! The host as seen in the files below a root directory: `/`, or a simulated tree in tests.
//!
//! Reads are bounded. Unexpected contents are an error with a reason, reported as unknown.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use config::privilege::{self, Capabilities};

/// Maximum length of a file or of a program's output, bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of entries of a directory.
const MAX_ENTRIES: usize = 4096;
/// Possible paths of ethtool. Its directory is not in every user's `PATH`.
const ETHTOOL: [&str; 4] =
    ["/usr/sbin/ethtool", "/sbin/ethtool", "/usr/bin/ethtool", "/usr/local/sbin/ethtool"];

/// The reason why a value is unknown.
pub(super) type Unknown = String;

/// A host, read through the files below its root directory.
pub struct Host {
    root: PathBuf,
    offloads: Offloads,
}

/// Source of an interface's offloads, which the kernel reports only through ioctl or netlink.
enum Offloads {
    Ethtool,
    #[cfg(test)]
    Recorded(BTreeMap<String, String>),
}

impl Host {
    /// Returns the host on which this program runs.
    pub fn local() -> Host {
        Host { root: PathBuf::from("/"), offloads: Offloads::Ethtool }
    }

    #[cfg(test)]
    pub(super) fn with_root(root: &Path, offloads: BTreeMap<String, String>) -> Host {
        Host { root: root.to_owned(), offloads: Offloads::Recorded(offloads) }
    }

    /// Returns the path of a file of the host. A relative path starts at the working directory, in a simulated tree at
    /// its root.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        match path.strip_prefix("/") {
            Ok(below) => self.root.join(below),
            Err(_) if self.root == Path::new("/") => path.to_owned(),
            Err(_) => self.root.join(path),
        }
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Reads a text file.
    pub(super) fn text(&self, path: &str) -> Result<String, Unknown> {
        let file = File::open(self.path(path))
            .map_err(|error| format!("{path} cannot be read: {error}"))?;
        read_bounded(file, path)
    }

    /// Reads a file that contains one integer.
    pub(super) fn number<T: std::str::FromStr>(&self, path: &str) -> Result<T, Unknown> {
        let text = self.text(path)?;
        text.trim().parse().map_err(|_| format!("{path} holds {}, no number", quote_excerpt(&text)))
    }

    /// Returns the sorted names in a directory.
    pub(super) fn names(&self, path: &str) -> Result<Vec<String>, Unknown> {
        let entries = std::fs::read_dir(self.path(path))
            .map_err(|error| format!("{path} cannot be read: {error}"))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| format!("{path} cannot be read: {error}"))?;
            if names.len() == MAX_ENTRIES {
                return Err(format!("{path} has more than {MAX_ENTRIES} entries"));
            }
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the last component of a symbolic link's target; `None` if the link does not exist.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Parses a file with a list of processors or nodes, such as `0-3,8`. An empty file is the empty set.
    pub(super) fn cpus(&self, path: &str) -> Result<BTreeSet<u16>, Unknown> {
        let text = self.text(path)?;
        cpu_list(&text)
            .ok_or_else(|| format!("{path} holds {}, no list of numbers", quote_excerpt(&text)))
    }

    /// Returns the value of the line `name: value` in `/proc/self/status`.
    pub(super) fn status(&self, name: &str) -> Result<String, Unknown> {
        let text = self.text("/proc/self/status")?;
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = values.next().ok_or_else(|| format!("/proc/self/status has no {name}"))?;
        Ok(value.trim().to_owned())
    }

    /// Returns the effective capabilities of this process.
    pub(super) fn capabilities(&self) -> Result<Capabilities, Unknown> {
        privilege::effective_capabilities(&self.text("/proc/self/status")?)
    }

    /// Returns true if the peer of a device, such as a veth, is in another network namespace.
    pub(super) fn has_peer_in_other_netns(&self, device: &str) -> Result<bool, Unknown> {
        match &self.offloads {
            Offloads::Ethtool => crate::host::has_peer_in_other_netns(device),
            #[cfg(test)]
            Offloads::Recorded(_) => Ok(self.exists(&format!("/made-up/link-netnsid/{device}"))),
        }
    }

    /// Returns the enabled offloads of an interface, by ethtool's names.
    pub(super) fn offloads(&self, device: &str) -> Result<BTreeSet<String>, Unknown> {
        let text = match &self.offloads {
            Offloads::Ethtool => ethtool(device)?,
            #[cfg(test)]
            Offloads::Recorded(texts) => texts.get(device).cloned().ok_or("ethtool is missing")?,
        };
        let states: Vec<_> = text.lines().filter_map(|line| line.trim().split_once(": ")).collect();
        if !states.iter().any(|&(name, _)| name == "tx-checksumming") {
            return Err(format!("ethtool -k {device} does not name tx-checksumming"));
        }
        let on =
            states.into_iter().filter(|(_, state)| state.split_whitespace().next() == Some("on"));
        Ok(on.map(|(name, _)| name.to_owned()).collect())
    }
}

fn ethtool(device: &str) -> Result<String, Unknown> {
    let program = ETHTOOL.into_iter().find(|path| Path::new(path).exists());
    let program =
        program.ok_or("ethtool is not installed, and the kernel tells offloads to it only")?;
    if device.starts_with('-') {
        return Err(format!("ethtool would take the name {device} for an option"));
    }
    let failed = |error: std::io::Error| format!("{program} cannot be run: {error}");
    let mut child = Command::new(program)
        .args(["-k", device])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let text = child.stdout.take().map(|out| read_bounded(out, "the output of ethtool"));
    let status = child.wait().map_err(failed)?;
    match text {
        Some(text) if status.success() => text,
        _ => Err(format!("ethtool -k {device} failed ({status})")),
    }
}

fn read_bounded(reader: impl Read, source: &str) -> Result<String, Unknown> {
    let mut bytes = Vec::new();
    reader
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("{source} cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("{source} has more than {MAX_BYTES} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{source} is no text"))
}

/// Quotes at most 40 characters of a file for a message.
fn quote_excerpt(text: &str) -> String {
    format!("\"{}\"", text.trim().chars().take(40).collect::<String>().escape_debug())
}

/// Parses a list of numbers and ranges in Linux's format. `None` for any other text.
pub(super) fn cpu_list(text: &str) -> Option<BTreeSet<u16>> {
    let text = text.trim();
    // Older kernels print `(null)` for an unset list.
    if text.is_empty() || text == "(null)" {
        return Some(BTreeSet::new());
    }
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        if first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Formats items as a list: `2, 3`.
pub(super) fn join_list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::Tree;

    #[test]
    fn malformed_system_file_is_unknown() {
        let tree = Tree::new(&[("sys/a", "seven\n"), ("sys/list", "0-3,8\n"), ("sys/back", "3-1")]);
        let host = tree.host();
        assert_eq!(host.number::<u64>("/sys/a"), Err("/sys/a holds \"seven\", no number".into()));
        assert_eq!(
            host.cpus("/sys/list").unwrap().into_iter().collect::<Vec<_>>(),
            [0, 1, 2, 3, 8]
        );
        assert!(host.cpus("/sys/back").unwrap_err().contains("no list"));
        assert!(host.cpus("/sys/a").unwrap_err().contains("no list"));
        assert!(host.text("/sys/none").unwrap_err().contains("cannot be read"));
        assert_eq!(cpu_list("(null)\n"), Some(BTreeSet::new()));
        assert_eq!(cpu_list("70000"), None);
    }

    #[test]
    fn oversized_and_non_utf8_files_are_unknown() {
        let long = "x".repeat(MAX_BYTES as usize + 1);
        let tree = Tree::new(&[("proc/long", &long)]);
        assert!(tree.host().text("/proc/long").unwrap_err().contains("more than 1048576 bytes"));
        std::fs::write(tree.path("proc/bytes"), [0xff, 0xfe]).unwrap();
        assert_eq!(tree.host().text("/proc/bytes"), Err("/proc/bytes is no text".into()));
    }

    #[test]
    fn enabled_offloads_are_parsed_from_ethtool() {
        let mut tree = Tree::new(&[]);
        tree.ethtool(
            "v0",
            "Features for v0:\ntx-checksumming: on\n\ttx-checksum-ip: on [fixed]\nrx: off\n",
        );
        let on = tree.host().offloads("v0").unwrap();
        assert_eq!(on.into_iter().collect::<Vec<_>>(), ["tx-checksum-ip", "tx-checksumming"]);
        assert!(tree.host().offloads("v1").is_err());
        tree.ethtool("v0", "no such thing");
        assert!(tree.host().offloads("v0").is_err());
    }
}
