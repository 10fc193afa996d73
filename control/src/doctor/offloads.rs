//! Offloads of Linux interfaces that let packet and XDP sockets receive frames longer than the MTU or without
//! checksums.

use std::collections::BTreeSet;

use super::finding::{Check, Finding, quote};
use super::host::{Host, Unknown, join_list};
use super::subject::Subject;

const OFFLOADS: Check = Check(
    "offloads",
    "The kernel leaves checksums out and joins segments on links inside the host: such frames are dropped here.",
);

/// Offloads of the interface itself that coalesce received frames.
const OWN_OFFLOADS: [&str; 2] = ["generic-receive-offload", "large-receive-offload"];
/// Offloads of a veth's peer, which make it send frames without checksums and of up to 64 KiB.
const PEER_OFFLOADS: [&str; 3] =
    ["tx-checksumming", "tcp-segmentation-offload", "generic-segmentation-offload"];

pub(super) fn check(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    for (device, port) in subject.linux_interfaces() {
        // The MTU check reports a missing interface.
        if !host.exists(&format!("/sys/class/net/{device}")) {
            continue;
        }
        let before = found.len();
        let own = format!("port {}: {device}", port.name);
        check_device(host, device, &own, &OWN_OFFLOADS, own_command, found);
        match peer(host, device) {
            Ok(Peer::NotVeth) => {}
            Ok(Peer::SameNamespace(peer)) => {
                let label = format!("port {}: {peer}, the other end of {device}", port.name);
                check_device(host, &peer, &label, &PEER_OFFLOADS, peer_command, found);
            }
            Ok(Peer::OtherNamespace) => found.push(
                OFFLOADS
                    .unknown(format!("{own}: the other end is in another network namespace"))
                    .remedy(format!(
                        "turn its offloads off there: {}, where PEER is its interface",
                        base::veth_peer_offloads_off!()
                    )),
            ),
            Err(why) => found.push(OFFLOADS.unknown(format!("{own}: {why}"))),
        }
        if found.len() == before {
            found.push(OFFLOADS.ok(format!("{own} gets frames as they are on the link")));
        }
    }
}

fn check_device(
    host: &Host,
    device: &str,
    label: &str,
    harmful: &[&str],
    command: fn(device: &str, on: &[&str]) -> String,
    found: &mut Vec<Finding>,
) {
    let on: BTreeSet<String> = match host.offloads(device) {
        Ok(on) => on,
        Err(why) => return found.push(OFFLOADS.unknown(format!("{label}: {why}"))),
    };
    let on: Vec<&str> = harmful.iter().copied().filter(|&name| on.contains(name)).collect();
    if on.is_empty() {
        return;
    }
    let command = command(&quote(device), &on);
    found.push(
        OFFLOADS
            .warning(format!("{label} has {} on", join_list(on)))
            .remedy("turn them off")
            .command(command),
    );
}

/// Returns the command that turns off the offloads in `on` at the port's own interface. The command names no other
/// offload, because the device may lack it.
fn own_command(device: &str, on: &[&str]) -> String {
    let short = |name: &str| match name {
        "generic-receive-offload" => "gro off",
        _ => "lro off",
    };
    let off: Vec<&str> = on.iter().map(|name| short(name)).collect();
    format!("ethtool -K {device} {}", off.join(" "))
}

/// Returns the command that turns off all offloads of `PEER_OFFLOADS` at the other end of a veth.
fn peer_command(device: &str, _: &[&str]) -> String {
    base::veth_peer_offloads_off!().replace("PEER", device)
}

/// The other end of a veth.
enum Peer {
    NotVeth,
    SameNamespace(String),
    OtherNamespace,
}

fn peer(host: &Host, device: &str) -> Result<Peer, Unknown> {
    // Interfaces on top of another interface, such as VLAN and macvlan, have a DEVTYPE. A veth has none.
    let has_type = host.text(&format!("/sys/class/net/{device}/uevent"))?.contains("DEVTYPE=");
    // Interface numbers are per namespace: both ends may have the same number.
    if !has_type && host.has_peer_in_other_netns(device)? {
        return Ok(Peer::OtherNamespace);
    }
    let of =
        |device: &str, file: &str| host.number::<u32>(&format!("/sys/class/net/{device}/{file}"));
    let (own, link) = (of(device, "ifindex")?, of(device, "iflink")?);
    if own == link || has_type || host.exists(&format!("/sys/class/net/{device}/device")) {
        return Ok(Peer::NotVeth);
    }
    for name in host.names("/sys/class/net")? {
        // Some entries of this directory are not interfaces.
        let ends = of(&name, "ifindex").and_then(|index| Ok((index, of(&name, "iflink")?)));
        if ends.is_ok_and(|ends| ends == (link, own)) {
            return Ok(Peer::SameNamespace(name));
        }
    }
    Ok(Peer::OtherNamespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{PACKET, Tree, only_finding, subject};

    const OFF: &str = "tx-checksumming: off\ngeneric-receive-offload: off\nlarge-receive-offload: off [fixed]\n\
                       tcp-segmentation-offload: off\ngeneric-segmentation-offload: off\n";

    fn interface(tree: &Tree, name: &str, index: &str, link: &str) {
        tree.file(&format!("sys/class/net/{name}/ifindex"), index);
        tree.file(&format!("sys/class/net/{name}/iflink"), link);
        tree.file(&format!("sys/class/net/{name}/uevent"), "INTERFACE=x\n");
    }

    #[test]
    fn veth_peer_with_tx_checksum_offload_is_a_finding() {
        let mut tree = Tree::new(&[]);
        interface(&tree, "v0", "4\n", "5\n");
        interface(&tree, "v1", "5\n", "4\n");
        tree.ethtool("v0", OFF);
        tree.ethtool("v1", &OFF.replace("tx-checksumming: off", "tx-checksumming: on"));
        let subject = subject("count = 1", PACKET, "");
        let found = tree.run(&subject, check);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].seen, "port p0: v1, the other end of v0 has tx-checksumming on");
        assert_eq!(found[0].command.as_deref(), Some("ethtool -K v1 tx off gso off tso off"));
        tree.ethtool("v1", OFF);
        assert_eq!(only_finding(&tree.run(&subject, check)).0, Severity::Ok);
    }

    /// README, guide, operations and the example file have the command that `ddpd` prints.
    #[test]
    fn documents_have_the_printed_command() {
        let command = base::veth_peer_offloads_off!();
        let documents = [
            include_str!("../../../README.md"),
            include_str!("../../../docs/guide.md"),
            include_str!("../../../docs/operations.md"),
            include_str!("../../../configs/af_packet.toml"),
        ];
        let (start, end) = command.split_once("PEER").unwrap();
        for document in documents {
            assert!(document.contains(command));
            for written in document.split(start).skip(1) {
                let (_device, options) = written.split_once(' ').unwrap();
                assert!(options.starts_with(end.trim_start()), "{start}{}", &written[..60]);
            }
        }
    }

    #[test]
    fn veth_peer_in_other_namespace_is_unknown() {
        let mut tree = Tree::new(&[]);
        tree.ethtool("v0", OFF);
        tree.ethtool("v1", OFF);
        tree.file("made-up/link-netnsid/v0", "");
        interface(&tree, "v1", "5\n", "4\n");
        let subject = subject("count = 1", PACKET, "");
        // The other end's interface index equals the index of this end, or of another local veth.
        for (own, link) in [("4\n", "4\n"), ("4\n", "5\n")] {
            interface(&tree, "v0", own, link);
            let found = tree.run(&subject, check);
            assert_eq!(only_finding(&found).0, Severity::Unknown);
            assert!(found[0].seen.contains("another network namespace"), "{}", found[0].seen);
            assert!(found[0].remedy.as_deref().unwrap().contains("there: ethtool -K PEER tx off"));
        }
    }

    #[test]
    fn receive_coalescing_is_a_finding() {
        let mut tree = Tree::new(&[]);
        interface(&tree, "v0", "4\n", "4\n");
        tree.ethtool(
            "v0",
            &OFF.replace("generic-receive-offload: off", "generic-receive-offload: on"),
        );
        let subject = subject("count = 1", PACKET, "");
        let found = tree.run(&subject, check);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].command.as_deref(), Some("ethtool -K v0 gro off"));
        tree.ethtool("v0", OFF);
        assert_eq!(only_finding(&tree.run(&subject, check)).0, Severity::Ok);
    }

    #[test]
    fn offloads_without_ethtool_are_unknown() {
        let mut tree = Tree::new(&[]);
        let subject = subject("count = 1", PACKET, "");
        assert_eq!(tree.run(&subject, check), [], "the MTU check reports the missing interface");
        interface(&tree, "v0", "4\n", "4\n");
        assert_eq!(only_finding(&tree.run(&subject, check)).0, Severity::Unknown);
        tree.ethtool("v0", OFF);
        interface(&tree, "v0", "4\n", "9\n");
        let found = tree.run(&subject, check);
        assert_eq!(only_finding(&found).0, Severity::Unknown);
        assert!(found[0].seen.contains("another network namespace"));
        interface(&tree, "v0", "4\n", "?\n");
        assert_eq!(only_finding(&tree.run(&subject, check)).0, Severity::Unknown);
    }
}
