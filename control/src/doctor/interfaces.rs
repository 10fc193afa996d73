//! Linux interfaces of ports: their MTU, and configured addresses that the kernel has, too.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use config::PortKind;

use super::finding::{Check, Finding, Severity, quote};
use super::host::{Host, Unknown};
use super::subject::Subject;

const MTU: Check =
    Check("mtu", "The kernel drops frames that are longer than its interface takes.");
const ADDRESSES: Check = Check(
    "addresses",
    "Where the kernel has an address of ours it answers for it, too: it resets our connections.",
);

pub(super) fn mtu(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    for (device, port) in subject.linux_interfaces() {
        let directory = format!("/sys/class/net/{device}");
        if !host.exists(&directory) {
            found.push(
                MTU.error(format!("port {}: there is no interface {device}", port.name))
                    .remedy("see ip link for the names; in another network namespace, start ddpd there (ip netns exec)"),
            );
            continue;
        }
        found.push(match host.number::<u32>(&format!("{directory}/mtu")) {
            Err(why) => MTU.unknown(why),
            Ok(has) if has >= u32::from(port.mtu) => MTU
                .ok(format!("port {}: {device} has {has}, configured are {}", port.name, port.mtu)),
            Ok(has) => MTU
                .error(format!(
                    "port {}: {device} has {has}, configured are {}",
                    port.name, port.mtu
                ))
                .remedy("raise the interface's, or lower the mtu of the port")
                .command(format!("ip link set {} mtu {}", quote(device), port.mtu)),
        });
    }
}

pub(super) fn addresses(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    if subject.configs.is_empty() {
        return;
    }
    let kernel = match kernel_addresses(host) {
        Ok(kernel) => kernel,
        Err(why) => return found.push(ADDRESSES.unknown(why)),
    };
    let before = found.len();
    for config in &subject.configs {
        for interface in &config.interfaces {
            let port = config.ports.iter().find(|port| port.name == interface.port);
            let severity = match port.map(|port| &port.kind) {
                Some(PortKind::AfPacket { .. } | PortKind::AfXdp { .. } | PortKind::Tap { .. }) => {
                    Severity::Error
                }
                Some(PortKind::Pci { .. }) => Severity::Warning,
                // Frames of these ports never reach the kernel.
                Some(
                    PortKind::Memif { .. }
                    | PortKind::VhostUser { .. }
                    | PortKind::Ring { .. }
                    | PortKind::Pcap { .. },
                )
                | None => Severity::Note,
            };
            for net in &interface.addresses {
                let Some(device) = kernel.get(&net.addr()) else { continue };
                let address = net.addr();
                let seen = format!("interface {}: the kernel has {address}, too", interface.name);
                let finding = ADDRESSES.finding(severity, seen).remedy(format!(
                    "remove it from the interface that `ip addr show to {address}` names, or give ours another"
                ));
                found.push(match device {
                    Some((device, prefix)) => finding
                        .command(format!("ip addr del {address}/{prefix} dev {}", quote(device))),
                    None => finding,
                });
            }
        }
    }
    if found.len() == before {
        found.push(ADDRESSES.ok(format!("none of the kernel's {} is ours", kernel.len())));
    }
}

/// Returns the kernel's own addresses, for IPv6 with interface and prefix length.
fn kernel_addresses(host: &Host) -> Result<BTreeMap<IpAddr, Option<(String, u8)>>, Unknown> {
    let mut all = BTreeMap::new();
    let trie = host.text("/proc/net/fib_trie")?;
    let mut last = None;
    for line in trie.lines() {
        if let Some(address) = line.trim().strip_prefix("|-- ") {
            last = Some(
                address
                    .parse::<Ipv4Addr>()
                    .map_err(|_| "/proc/net/fib_trie has no address after |--")?,
            );
        } else if line.trim() == "/32 host LOCAL"
            && let Some(address) = last
        {
            all.insert(IpAddr::V4(address), None);
        }
    }
    // Kernels without IPv6 lack this file.
    let path = "/proc/net/if_inet6";
    if host.exists(path) {
        for line in host.text(path)?.lines() {
            let mut words = line.split_whitespace();
            let address = words.next().filter(|hex| hex.len() == 32);
            let address = address.and_then(|hex| u128::from_str_radix(hex, 16).ok());
            let prefix = words.nth(1).and_then(|hex| u8::from_str_radix(hex, 16).ok());
            let (Some(address), Some(prefix), Some(device)) = (address, prefix, words.nth(2))
            else {
                return Err(format!("{path} has a line without address, prefix and interface"));
            };
            all.insert(IpAddr::V6(Ipv6Addr::from(address)), Some((device.to_owned(), prefix)));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::{PACKET, PCI, RING, Tree, only_finding, subject};

    #[test]
    fn an_interface_with_a_smaller_mtu_is_an_error() {
        let subject = subject("count = 1", &format!("{PACKET}\nmtu = 9000"), "");
        let tree = Tree::new(&[]);
        assert_eq!(only_finding(&tree.run(&subject, mtu)).0, Severity::Error);
        tree.file("sys/class/net/v0/mtu", "1500\n");
        let found = tree.run(&subject, mtu);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].command.as_deref(), Some("ip link set v0 mtu 9000"));
        tree.file("sys/class/net/v0/mtu", "9000\n");
        assert_eq!(only_finding(&tree.run(&subject, mtu)).0, Severity::Ok);
        tree.file("sys/class/net/v0/mtu", "much\n");
        assert_eq!(only_finding(&tree.run(&subject, mtu)).0, Severity::Unknown);
    }

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 192.0.2.0\n        /24 link UNICAST\n     |-- 192.0.2.1\n\
                        \x20       /32 host LOCAL\n";
    const OTHER: &str = "Main:\n     |-- 192.0.2.1\n        /32 universe UNICAST\n     |-- 192.0.2.9\n        /32 host \
                         LOCAL\n";

    #[test]
    fn addresses_assigned_to_the_kernel_are_an_error() {
        let tree = Tree::new(&[("proc/net/fib_trie", TRIE)]);
        let run = |tree: &Tree, port: &str| tree.run(&subject("count = 1", port, ""), addresses);
        let found = run(&tree, PACKET);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].seen, "interface lan: the kernel has 192.0.2.1, too");
        assert_eq!(only_finding(&run(&tree, PCI)).0, Severity::Warning);
        assert_eq!(only_finding(&run(&tree, RING)).0, Severity::Note);
        tree.file("proc/net/fib_trie", OTHER);
        assert_eq!(only_finding(&run(&tree, PACKET)).0, Severity::Ok);
        tree.file("proc/net/if_inet6", "fd000000000000000000000000000001 04 40 00 82     eth0\n");
        let found = run(&tree, PACKET);
        assert_eq!(only_finding(&found).0, Severity::Error);
        assert_eq!(found[0].command.as_deref(), Some("ip addr del fd00::1/64 dev eth0"));
        tree.file("proc/net/if_inet6", "fd00 eth0\n");
        assert_eq!(only_finding(&run(&tree, PACKET)).0, Severity::Unknown);
        assert_eq!(only_finding(&run(&Tree::new(&[]), PACKET)).0, Severity::Unknown);
    }
}
