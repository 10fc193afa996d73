//! Linux interfaces of ports: their MTU, and configured addresses that the kernel also has.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use config::{Config, ConfigError, InterfaceSection, MachineFinding, PortKind};
use ipnet::IpNet;

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
            found.extend(shared_addresses(&kernel, config, interface));
        }
    }
    if found.len() == before {
        found.push(ADDRESSES.ok(format!("none of the kernel's {} is ours", kernel.len())));
    }
}

/// Returns the findings about addresses for `ddpd check`, with the sentences of `ddpd doctor`. Interfaces with `host`
/// are omitted: their addresses belong on the TAP, and another check of `ddpd check` finds them on other devices.
pub(super) fn check_addresses(host: &Host, config: &Config) -> Vec<MachineFinding> {
    let error = |interface: &InterfaceSection, message: String| ConfigError {
        file: config.file.clone(),
        line: config
            .source
            .line("interface", std::slice::from_ref(&interface.name), "addresses")
            .unwrap_or(0),
        key: "interface.addresses".into(),
        message,
    };
    let own = || config.interfaces.iter().filter(|interface| interface.host.is_none());
    let kernel = match kernel_addresses(host) {
        Ok(kernel) => kernel,
        Err(why) => {
            let note = |first| MachineFinding::Note(error(first, format!("not compared: {why}")));
            return own().next().map(note).into_iter().collect();
        }
    };
    let mut list = Vec::new();
    for interface in own() {
        for finding in shared_addresses(&kernel, config, interface) {
            let remedy = finding.remedy.map_or(String::new(), |remedy| format!(": {remedy}"));
            let error = error(interface, format!("{}{remedy}", finding.seen));
            list.push(match finding.severity {
                Severity::Error => MachineFinding::Error(error),
                _ => MachineFinding::Note(error),
            });
        }
    }
    list
}

/// Returns a finding for each address of an interface that the kernel also has.
fn shared_addresses(
    kernel: &KernelAddresses,
    config: &Config,
    interface: &InterfaceSection,
) -> Vec<Finding> {
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
    let finding = |net: &IpNet| {
        let address = net.addr();
        let device = kernel.get(&address)?;
        let seen = format!("interface {}: the kernel has {address}, too", interface.name);
        let finding = ADDRESSES.finding(severity, seen).remedy(format!(
            "remove it from the interface that `ip addr show to {address}` names, or give ours another"
        ));
        Some(match device {
            Some((device, prefix)) => {
                finding.command(format!("ip addr del {address}/{prefix} dev {}", quote(device)))
            }
            None => finding,
        })
    };
    interface.addresses.iter().filter_map(finding).collect()
}

/// The kernel's addresses; for IPv6 with interface and prefix length.
type KernelAddresses = BTreeMap<IpAddr, Option<(String, u8)>>;

/// Returns the addresses that are assigned in the kernel. Needs no privilege.
fn kernel_addresses(host: &Host) -> Result<KernelAddresses, Unknown> {
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

    #[test]
    fn check_reports_addresses_of_the_kernel_with_line_and_remedy() {
        let tree = Tree::new(&[("proc/net/fib_trie", TRIE)]);
        let run = |tree: &Tree, port: &str, more: &str| {
            check_addresses(&tree.host(), &subject("count = 1", port, more).configs[0])
        };
        let found = run(&tree, PACKET, "");
        let [MachineFinding::Error(error)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            error.to_string(),
            "test.toml:10: interface.addresses: interface lan: the kernel has 192.0.2.1, too: remove it from the interface \
             that `ip addr show to 192.0.2.1` names, or give ours another"
        );
        for port in [PCI, RING] {
            assert!(matches!(run(&tree, port, "")[..], [MachineFinding::Note(_)]), "{port}");
        }
        // `ddpd` itself gives these addresses to the kernel, on its TAP.
        let shared = "host = \"tap\"\nlocal_ports = \"20000-29999\"";
        assert_eq!(run(&tree, PACKET, shared), []);
        tree.file("proc/net/fib_trie", OTHER);
        assert_eq!(run(&tree, PACKET, ""), []);
        let found = run(&Tree::new(&[]), PACKET, "");
        let [MachineFinding::Note(note)] = &found[..] else { panic!("{found:?}") };
        assert!(note.message.starts_with("not compared: /proc/net/fib_trie"), "{note}");
    }
}
