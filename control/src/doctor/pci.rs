//! PCI devices: drivers, VFIO and IOMMU groups. Examined only if a `pci` port is configured; without configuration,
//! only if the host has a network card.

use super::finding::{Check, Finding};
use super::host::{Host, Unknown, join_list};
use super::subject::Subject;

const DRIVER: Check =
    Check("pci driver", "DPDK takes a device from VFIO or UIO, or beside its own kernel driver.");
const VFIO: Check = Check("vfio", "Most PCI devices reach DPDK through the kernel's VFIO driver.");
const IOMMU: Check = Check(
    "iommu",
    "VFIO gives a device away only behind an IOMMU, and only with all of its group.",
);

const DEVICES: &str = "/sys/bus/pci/devices";
/// Kernel drivers through which DPDK accesses a device.
const DPDK_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// Kernel drivers that stay bound while DPDK uses the device.
const BIFURCATED: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];

pub(super) fn drivers(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    for (address, port) in subject.pci_addresses() {
        if !host.exists(&format!("{DEVICES}/{address}")) {
            found.push(
                DRIVER
                    .error(format!("port {port}: there is no PCI device {address}"))
                    .remedy("see lspci -D for the addresses"),
            );
            continue;
        }
        let driver = driver(host, address);
        let name = driver.as_deref().unwrap_or("no driver");
        let seen = format!("port {port}: {address} is bound to {name}");
        found.push(match DPDK_DRIVERS.contains(&name) || BIFURCATED.contains(&name) {
            true => DRIVER.ok(seen),
            false => DRIVER
                .error(seen)
                .remedy("bind it to vfio-pci; Linux loses its interface")
                .command(format!("dpdk-devbind.py -b vfio-pci {address}")),
        });
    }
    if subject.configs.is_empty() {
        match network_controllers(host) {
            Ok(cards) if cards.is_empty() => {}
            Ok(cards) => found.push(DRIVER.note(format!("network cards: {}", join_list(cards)))),
            Err(why) => found.push(DRIVER.unknown(why)),
        }
    }
}

pub(super) fn vfio(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    if !is_relevant(host, subject) {
        return;
    }
    if host.exists("/sys/bus/pci/drivers/vfio-pci") {
        return found.push(VFIO.ok("the kernel has vfio-pci"));
    }
    let needed = subject.pci_addresses().into_iter().any(|(address, _)| needs_vfio(host, address));
    let seen = "the kernel has no vfio-pci";
    let finding = if needed { VFIO.error(seen) } else { VFIO.note(seen) };
    found.push(finding.remedy("load the module").command("modprobe vfio-pci"));
}

pub(super) fn iommu(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    if !is_relevant(host, subject) {
        return;
    }
    let remedy = "turn the IOMMU on in the firmware and, with Intel's, add intel_iommu=on iommu=pt to the kernel's command \
                  line; without one, only enable_unsafe_noiommu_mode of the module vfio is left";
    let groups = match host.names("/sys/kernel/iommu_groups") {
        Ok(groups) => groups.len(),
        Err(why) => return found.push(IOMMU.unknown(why)),
    };
    let unsafe_mode = host.text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    let unsafe_mode = unsafe_mode.is_ok_and(|text| text.trim() == "Y");
    let needing: Vec<_> = subject
        .pci_addresses()
        .into_iter()
        .filter(|&(address, _)| needs_vfio(host, address))
        .collect();
    match (groups, needing.is_empty(), unsafe_mode) {
        (0, _, true) => {
            found.push(IOMMU.warning("no groups; VFIO works without, unsafely").remedy(remedy))
        }
        (0, true, _) => found.push(IOMMU.note("no groups").remedy(remedy)),
        (0, ..) => found.push(IOMMU.error("no groups").remedy(remedy)),
        _ => {}
    }
    if groups == 0 {
        return;
    }
    let before = found.len();
    for (address, port) in needing {
        match group_blockers(host, address) {
            Err(why) => found.push(IOMMU.unknown(format!("port {port}: {why}"))),
            Ok((_, others)) if others.is_empty() => {}
            Ok((group, others)) => {
                let devices = others.join(" ");
                found.push(
                    IOMMU
                        .error(format!("port {port}: {address} is in group {group} with {}", join_list(&others)))
                        .remedy("bind these to vfio-pci, too, or to nothing; or put the card into another slot")
                        .command(format!("dpdk-devbind.py -b vfio-pci {devices}")),
                );
            }
        }
    }
    if found.len() == before {
        found.push(IOMMU.ok(format!("{groups} groups")));
    }
}

/// Returns the IOMMU group of a device, and the members that block VFIO: devices, except bridges, that are bound to a
/// driver other than VFIO.
fn group_blockers(host: &Host, address: &str) -> Result<(String, Vec<String>), Unknown> {
    let path = format!("{DEVICES}/{address}/iommu_group");
    let group = host.link(&path).ok_or_else(|| format!("{path} names no group"))?;
    let members = host.names(&format!("/sys/kernel/iommu_groups/{group}/devices"))?;
    let mut blockers = Vec::new();
    for member in members.into_iter().filter(|member| member != address) {
        let class = host.text(&format!("{DEVICES}/{member}/class"))?;
        let bound = driver(host, &member);
        let harmless = matches!(bound.as_deref(), None | Some("vfio-pci" | "pcieport"));
        if !class.starts_with("0x06") && !harmless {
            blockers.push(member);
        }
    }
    Ok((group, blockers))
}

/// Returns true if a `pci` port is configured. Without configuration, returns true if the host has a network card.
fn is_relevant(host: &Host, subject: &Subject) -> bool {
    // `drivers` reports a failure to list the cards.
    let any_card = || network_controllers(host).is_ok_and(|cards| !cards.is_empty());
    !subject.pci_addresses().is_empty() || (subject.configs.is_empty() && any_card())
}

fn needs_vfio(host: &Host, address: &str) -> bool {
    let driver = driver(host, address);
    !driver.is_some_and(|name| {
        name != "vfio-pci" && [DPDK_DRIVERS, BIFURCATED].concat().contains(&name.as_str())
    })
}

fn driver(host: &Host, address: &str) -> Option<String> {
    host.link(&format!("{DEVICES}/{address}/driver"))
}

/// Returns the network controllers, each with its driver; empty without a PCI bus.
fn network_controllers(host: &Host) -> Result<Vec<String>, Unknown> {
    if !host.exists(DEVICES) {
        return Ok(Vec::new());
    }
    let mut cards = Vec::new();
    for address in host.names(DEVICES)? {
        if host.text(&format!("{DEVICES}/{address}/class"))?.starts_with("0x02") {
            let driver = driver(host, &address);
            cards.push(format!("{address} ({})", driver.as_deref().unwrap_or("no driver")));
        }
    }
    Ok(cards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{PCI, RING, Tree, only_finding, subject};

    const CARD: &str = "sys/bus/pci/devices/0000:03:00.0";

    /// Builds a host with the card, bound to this driver.
    fn card(driver: Option<&str>) -> Tree {
        let tree = Tree::new(&[(&format!("{CARD}/class"), "0x020000\n")]);
        if let Some(driver) = driver {
            tree.link(&format!("{CARD}/driver"), &format!("../../drivers/{driver}"));
        }
        tree
    }

    #[test]
    fn device_bound_to_kernel_driver_is_an_error() {
        let subject = subject("count = 1", PCI, "");
        let found = card(Some("ixgbe")).run(&subject, drivers);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].command.as_deref(), Some("dpdk-devbind.py -b vfio-pci 0000:03:00.0"));
        assert_eq!(only_finding(&card(None).run(&subject, drivers)).0, Severity::Error);
        assert_eq!(only_finding(&Tree::new(&[]).run(&subject, drivers)).0, Severity::Error);
        assert_eq!(only_finding(&card(Some("vfio-pci")).run(&subject, drivers)).0, Severity::Ok);
        assert_eq!(only_finding(&card(Some("mlx5_core")).run(&subject, drivers)).0, Severity::Ok);
        assert_eq!(
            only_finding(&card(Some("e1000e")).run(&Subject::default(), drivers)).0,
            Severity::Note
        );
    }

    #[test]
    fn vfio_is_needed_except_for_bifurcated_drivers() {
        let subject = subject("count = 1", PCI, "");
        assert_eq!(only_finding(&card(Some("ixgbe")).run(&subject, vfio)).0, Severity::Error);
        assert_eq!(only_finding(&card(Some("mlx5_core")).run(&subject, vfio)).0, Severity::Note);
        assert_eq!(
            only_finding(&card(Some("ixgbe")).run(&Subject::default(), vfio)).0,
            Severity::Note
        );
        let tree = card(Some("vfio-pci"));
        tree.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        assert_eq!(only_finding(&tree.run(&subject, vfio)).0, Severity::Ok);
    }

    #[test]
    fn pci_checks_are_silent_without_pci_devices() {
        let ring = subject("count = 1", RING, "");
        for check in [drivers, vfio, iommu] {
            assert_eq!(card(None).run(&ring, check), []);
            assert_eq!(Tree::new(&[]).run(&Subject::default(), check), []);
        }
    }

    #[test]
    fn vfio_without_iommu_is_an_error() {
        let subject = subject("count = 1", PCI, "");
        let tree = card(Some("vfio-pci"));
        assert_eq!(only_finding(&tree.run(&subject, iommu)).0, Severity::Unknown);
        std::fs::create_dir_all(tree.path("sys/kernel/iommu_groups")).unwrap();
        assert_eq!(only_finding(&tree.run(&subject, iommu)).0, Severity::Error);
        tree.file("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
        assert_eq!(only_finding(&tree.run(&subject, iommu)).0, Severity::Warning);
    }

    #[test]
    fn iommu_group_shared_with_kernel_driver_is_an_error() {
        let subject = subject("count = 1", PCI, "");
        let tree = card(Some("vfio-pci"));
        tree.file("sys/kernel/iommu_groups/7/devices/0000:03:00.0", "");
        tree.link(&format!("{CARD}/iommu_group"), "../../../kernel/iommu_groups/7");
        assert_eq!(only_finding(&tree.run(&subject, iommu)).0, Severity::Ok);
        tree.file("sys/kernel/iommu_groups/7/devices/0000:03:00.1", "");
        tree.file("sys/bus/pci/devices/0000:03:00.1/class", "0x020000\n");
        tree.link("sys/bus/pci/devices/0000:03:00.1/driver", "../../drivers/ixgbe");
        let found = tree.run(&subject, iommu);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].seen, "port p0: 0000:03:00.0 is in group 7 with 0000:03:00.1");
        tree.file("sys/bus/pci/devices/0000:03:00.1/class", "0x060400\n");
        assert_eq!(only_finding(&tree.run(&subject, iommu)).0, Severity::Ok);
    }
}
