//! DPDK's release and its drivers. A driver is a shared library (plugin), which the EAL loads from the release's driver
//! directory.

use config::PortKind;

use super::finding::{Check, Finding};
use super::host::{Host, Unknown, join_list};
use super::subject::Subject;

const VERSION: Check =
    Check("dpdk", "Releases before the oldest supported one lack functions and drivers.");
const DRIVERS: Check = Check("drivers", "A port whose driver is not loaded cannot be opened.");

/// Oldest supported release: year and month.
const MIN_VERSION: (u32, u32) = (22, 11);

/// Checks that the release of DPDK is not older than the oldest supported one.
pub(super) fn version(subject: &Subject, found: &mut Vec<Finding>) {
    let shown = &subject.dpdk;
    let mut numbers =
        shown.trim_start_matches("DPDK").trim().split(['.', '-']).map(str::parse::<u32>);
    found.push(match (numbers.next(), numbers.next()) {
        (Some(Ok(year)), Some(Ok(month))) if (year, month) >= MIN_VERSION => VERSION.ok(shown),
        (Some(Ok(_)), Some(Ok(_))) => {
            let (year, month) = MIN_VERSION;
            VERSION
                .error(format!("{shown} is older than {year}.{month}"))
                .remedy(format!("install DPDK {year}.{month} or later and build ddpd with it"))
        }
        _ => VERSION.unknown(format!("libdpdk calls its version \"{}\"", shown.escape_debug())),
    });
}

/// Checks that the driver directory contains the drivers of all configured ports.
pub(super) fn drivers(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let (directory, present) = match driver_files(host) {
        Ok(files) => files,
        Err(why) => return found.push(DRIVERS.unknown(why)),
    };
    let has = |driver: &str| {
        let start = format!("librte_{driver}.so");
        present.iter().any(|name| name.starts_with(&start))
    };
    // All packet buffers are in pools of the driver `mempool_ring`, DPDK's default.
    let mut needed = vec!["mempool_ring"];
    for (_, port) in subject.ports() {
        match driver_of_kind(&port.kind) {
            Some(driver) => needed.extend(["bus_vdev", driver]),
            None => needed.push("bus_pci"),
        }
        if let PortKind::Pci { address, .. } = &port.kind {
            match driver_of_device(host, address) {
                Ok(driver) => needed.push(driver),
                Err(why) => found.push(DRIVERS.unknown(format!("port {}: {why}", port.name))),
            }
        }
    }
    needed.sort_unstable();
    needed.dedup();
    let missing: Vec<&str> = needed.iter().copied().filter(|driver| !has(driver)).collect();
    if missing.is_empty() {
        return found.push(DRIVERS.ok(format!("{} in {directory}", join_list(needed))));
    }
    // `-d` loads drivers from any path, not only from the release's driver directory.
    let loads = |config: &config::Config| {
        config.memory.eal_args.iter().any(|argument| argument.starts_with("-d"))
    };
    let seen = format!("{} not in {directory}", join_list(&missing));
    if subject.configs.iter().any(loads) {
        return found.push(DRIVERS.unknown(format!("{seen}, but memory.eal_args loads others")));
    }
    let finding = DRIVERS.error(seen).remedy("install these drivers of the same DPDK release");
    // Debian's package librte-net-tap23 contains librte_net_tap.so.23.
    let abi =
        directory.rsplit('-').next().and_then(|abi| abi.split('.').next()).unwrap_or_default();
    let packages = missing.iter().map(|driver| format!("librte-{}{abi}", driver.replace('_', "-")));
    found.push(match host.exists("/etc/debian_version") {
        true => {
            finding.command(format!("apt-get install {}", packages.collect::<Vec<_>>().join(" ")))
        }
        false => finding,
    });
}

/// Returns the driver of a port kind, or `None` for PCI: there the driver depends on the device.
fn driver_of_kind(kind: &PortKind) -> Option<&'static str> {
    Some(match kind {
        PortKind::Pci { .. } => return None,
        PortKind::AfXdp { .. } => "net_af_xdp",
        PortKind::AfPacket { .. } => "net_af_packet",
        PortKind::Tap { .. } => "net_tap",
        PortKind::Memif { .. } => "net_memif",
        PortKind::VhostUser { .. } => "net_vhost",
        PortKind::Ring { .. } => "net_ring",
        PortKind::Pcap { .. } => "net_pcap",
    })
}

/// Returns the driver of a device by its vendor, for vendors whose devices all have the same driver.
fn driver_of_device(host: &Host, address: &str) -> Result<&'static str, Unknown> {
    let vendor = host.text(&format!("/sys/bus/pci/devices/{address}/vendor"))?;
    Ok(match vendor.trim() {
        "0x15b3" => "net_mlx5",
        "0x1af4" => "net_virtio",
        "0x14e4" => "net_bnxt",
        "0x15ad" => "net_vmxnet3",
        "0x1d0f" => "net_ena",
        other => {
            let other = other.chars().take(10).collect::<String>();
            let other = other.escape_debug();
            return Err(format!(
                "which driver {address} of vendor {other} needs: see DPDK's guide"
            ));
        }
    })
}

/// Returns the driver directory of the release and its contents. The path of the loaded library contains location and
/// ABI: `/usr/lib/librte_eal.so.23.0` belongs to `/usr/lib/dpdk/pmds-23.0`.
fn driver_files(host: &Host) -> Result<(String, Vec<String>), Unknown> {
    let maps = host.text("/proc/self/maps")?;
    let mut libraries = maps.lines().filter_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit_once("/librte_eal.so.")
    });
    let (location, abi) = libraries.next().ok_or("libdpdk is not loaded as a shared library")?;
    let choices = [format!("{location}/dpdk/pmds-{abi}"), format!("{location}/dpdk-pmds-{abi}")];
    let mut there = choices.iter().filter(|directory| host.exists(directory));
    let directory =
        there.next().ok_or_else(|| format!("there is no {}", choices.join(" and no ")))?;
    Ok((directory.clone(), host.names(directory)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{PACKET, PCI, Tree, only_finding, subject};

    const MAPS: (&str, &str) = (
        "proc/self/maps",
        "7f00-7f01 r--p 00000000 fe:00 7 [heap]\n7f00-7f01 r--p 0 fe:00 12   /usr/lib/librte_eal.so.23.0\n",
    );

    fn driver_file(name: &str) -> String {
        format!("usr/lib/dpdk/pmds-23.0/librte_{name}.so.23.0")
    }

    #[test]
    fn releases_before_the_oldest_are_errors() {
        let of = |version: &str| {
            let mut found = Vec::new();
            super::version(&Subject { dpdk: version.into(), ..Subject::default() }, &mut found);
            only_finding(&found).0
        };
        assert_eq!(of("DPDK 22.11.6"), Severity::Ok);
        assert_eq!(of("DPDK 24.11.0-rc1"), Severity::Ok);
        assert_eq!(of("DPDK 21.11.2"), Severity::Error);
        assert_eq!(of("DPDK"), Severity::Unknown);
    }

    #[test]
    fn missing_driver_is_an_error_with_its_package() {
        let tree = Tree::new(&[MAPS, ("etc/debian_version", "12.5\n")]);
        ["mempool_ring", "bus_vdev"].iter().for_each(|name| tree.file(&driver_file(name), ""));
        let subject = subject("count = 1", PACKET, "");
        let found = tree.run(&subject, drivers);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].seen, "net_af_packet not in /usr/lib/dpdk/pmds-23.0");
        assert_eq!(found[0].command.as_deref(), Some("apt-get install librte-net-af-packet23"));
        tree.file(&driver_file("net_af_packet"), "");
        assert_eq!(only_finding(&tree.run(&subject, drivers)).0, Severity::Ok);
    }

    #[test]
    fn unreadable_driver_directory_is_unknown() {
        let subject = subject("count = 1", PCI, "");
        assert_eq!(only_finding(&Tree::new(&[]).run(&subject, drivers)).0, Severity::Unknown);
        let tree = Tree::new(&[("proc/self/maps", "0-1 r-xp 0 0:0 1 /usr/bin/ddpd\n")]);
        assert_eq!(only_finding(&tree.run(&subject, drivers)).0, Severity::Unknown);
        assert_eq!(only_finding(&Tree::new(&[MAPS]).run(&subject, drivers)).0, Severity::Unknown);
    }

    #[test]
    fn a_pci_device_has_the_driver_of_its_vendor() {
        let tree = Tree::new(&[MAPS, ("sys/bus/pci/devices/0000:03:00.0/vendor", "0x15b3\n")]);
        ["mempool_ring", "bus_pci"].iter().for_each(|name| tree.file(&driver_file(name), ""));
        let subject = subject("count = 1", PCI, "");
        assert!(only_finding(&tree.run(&subject, drivers)).1.seen.starts_with("net_mlx5 not in"));
        tree.file(&driver_file("net_mlx5"), "");
        assert_eq!(only_finding(&tree.run(&subject, drivers)).0, Severity::Ok);
        tree.file("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1234\n");
        assert_eq!(tree.run(&subject, drivers)[0].severity, Severity::Unknown);
    }
}
