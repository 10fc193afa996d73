//! Ports that the kernel must not use as ephemeral ports: `net.ipv4.ip_local_reserved_ports`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use config::LocalPorts;

const FILE: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Ports that this process has reserved. Dropping the value releases the ports.
#[derive(Debug)]
pub(super) struct ReservedPorts {
    file: PathBuf,
    ports: BTreeSet<u16>,
}

impl ReservedPorts {
    /// Reserves the ports. Returns `None` if the kernel refuses; the log then names the remedy.
    pub(super) fn reserve(ports: LocalPorts) -> Option<ReservedPorts> {
        ReservedPorts::reserve_in(Path::new(FILE), ports)
            .inspect_err(|error| {
                tracing::warn!(
                    "the kernel may open connections from {ports}, which are ours: {FILE} cannot be written ({error}): \
                     sysctl -w net.ipv4.ip_local_reserved_ports={ports}"
                );
            })
            .ok()
    }

    fn reserve_in(file: &Path, ports: LocalPorts) -> io::Result<ReservedPorts> {
        let mut all = read(file)?;
        // Ports that were reserved before must stay reserved on drop.
        let own: BTreeSet<u16> = ports.iter().filter(|port| all.insert(*port)).collect();
        write(file, &all)?;
        Ok(ReservedPorts { file: file.to_owned(), ports: own })
    }
}

impl Drop for ReservedPorts {
    fn drop(&mut self) {
        let undone = read(&self.file).and_then(|mut all| {
            all.retain(|port| !self.ports.contains(port));
            write(&self.file, &all)
        });
        if let Err(error) = undone {
            tracing::warn!("the ports of streams stay in {}: {error}", self.file.display());
        }
    }
}

fn read(file: &Path) -> io::Result<BTreeSet<u16>> {
    let text = fs::read_to_string(file)?;
    let wrong = || io::Error::other(format!("it has {:?}", text.trim()));
    let mut all = BTreeSet::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
        all.extend(port(first)?..=port(last)?);
    }
    Ok(all)
}

fn write(file: &Path, ports: &BTreeSet<u16>) -> io::Result<()> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for &port in ports {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    let ranges: Vec<String> =
        ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
    fs::write(file, ranges.join(",") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_releases_only_the_ports_it_reserved() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ports");
        fs::write(&file, "80,100-200\n").unwrap();
        let ports = LocalPorts::new(150, 300).unwrap();
        let held = ReservedPorts::reserve_in(&file, ports).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "80-80,100-300\n");
        // Another process changes the list in the meantime.
        fs::write(&file, "80,100-300,9000").unwrap();
        drop(held);
        assert_eq!(fs::read_to_string(&file).unwrap(), "80-80,100-200,9000-9000\n");
        fs::write(&file, "\n").unwrap();
        drop(ReservedPorts::reserve_in(&file, ports).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "\n");
    }

    #[test]
    fn malformed_reserved_ports_file_is_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ports");
        fs::write(&file, "80-x\n").unwrap();
        let error =
            ReservedPorts::reserve_in(&file, LocalPorts::default()).unwrap_err().to_string();
        assert!(error.contains("80-x"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "80-x\n");
    }
}
