//! NUMA distance between workers and their ports' devices.

use config::{PortKind, PortSection};

use super::finding::{Check, Finding};
use super::host::{Host, Unknown, join_list};
use super::subject::Subject;

const NUMA: Check = Check(
    "numa",
    "A worker on another node than its port reaches every packet over the link between the nodes.",
);

const NODES: &str = "/sys/devices/system/node";
/// Distance of a node to itself, in the kernel's unit.
const LOCAL: u16 = 10;

pub(super) fn distance(host: &Host, subject: &Subject, found: &mut Vec<Finding>) {
    let nodes = match host.cpus(&format!("{NODES}/online")) {
        Ok(nodes) => nodes.into_iter().collect::<Vec<_>>(),
        Err(why) => return found.push(NUMA.unknown(why)),
    };
    if nodes.len() == 1 {
        return found.push(NUMA.ok(format!("one node ({})", nodes[0])));
    }
    let before = found.len();
    for (config, port) in subject.ports() {
        let Some(path) = device(host, port) else { continue };
        let workers = port.workers.iter().filter_map(|&worker| config.workers.get(worker)?.core);
        match remote_cores(host, &path, workers, &nodes) {
            Err(why) => found.push(NUMA.unknown(format!("port {}: {why}", port.name))),
            Ok((_, far)) if far.is_empty() => {}
            Ok((node, far)) => {
                let shown = far
                    .iter()
                    .map(|(core, on, by)| format!("core {core} on node {on} (distance {by})"));
                found.push(
                    NUMA.warning(format!(
                        "port {} is on node {node}: {}",
                        port.name,
                        join_list(shown)
                    ))
                    .remedy(format!("choose workers.cores of {NODES}/node{node}/cpulist")),
                );
            }
        }
    }
    if found.len() == before {
        found.push(NUMA.ok(format!("nodes {}: no worker is far from its port", join_list(nodes))));
    }
}

/// Returns the file with the NUMA node of a port's device; `None` for a port without hardware.
fn device(host: &Host, port: &PortSection) -> Option<String> {
    match &port.kind {
        PortKind::Pci { address, .. } => Some(format!("/sys/bus/pci/devices/{address}/numa_node")),
        PortKind::AfXdp { device, .. } | PortKind::AfPacket { device } => {
            let path = format!("/sys/class/net/{device}/device");
            host.exists(&path).then(|| format!("{path}/numa_node"))
        }
        PortKind::Tap { .. }
        | PortKind::Memif { .. }
        | PortKind::VhostUser { .. }
        | PortKind::Ring { .. }
        | PortKind::Pcap { .. } => None,
    }
}

/// A core, its node, and the distance between this node and the device's node.
type RemoteCore = (u16, u16, u16);

/// Returns the device's node, and the cores on other nodes.
fn remote_cores(
    host: &Host,
    device: &str,
    cores: impl Iterator<Item = u16>,
    nodes: &[u16],
) -> Result<(u16, Vec<RemoteCore>), Unknown> {
    let node: i32 = host.number(device)?;
    let node = u16::try_from(node)
        .map_err(|_| format!("{device} is {node}: the firmware does not say"))?;
    let path = format!("{NODES}/node{node}/distance");
    let text = host.text(&path)?;
    let distances: Vec<u16> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
    if distances.len() != nodes.len() {
        return Err(format!("{path} has not one number for each of {} nodes", nodes.len()));
    }
    let mut far = Vec::new();
    for core in cores {
        let mut on = None;
        for (&node, &distance) in nodes.iter().zip(&distances) {
            if host.cpus(&format!("{NODES}/node{node}/cpulist"))?.contains(&core) {
                on = Some((node, distance));
            }
        }
        let (on, distance) = on.ok_or_else(|| format!("core {core} is on no node"))?;
        if distance > LOCAL {
            far.push((core, on, distance));
        }
    }
    Ok((node, far))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::doctor::testing::{PACKET, PCI, Tree, only_finding, subject};

    fn two_nodes() -> Tree {
        Tree::new(&[
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/devices/system/node/node1/distance", "21 10\n"),
            ("sys/bus/pci/devices/0000:03:00.0/numa_node", "1\n"),
        ])
    }

    #[test]
    fn worker_on_remote_numa_node_is_a_warning() {
        let tree = two_nodes();
        let found = tree.run(&subject("cores = [3, 4]", PCI, ""), distance);
        assert_eq!(only_finding(&found).0, Severity::Warning);
        assert_eq!(found[0].seen, "port p0 is on node 1: core 3 on node 0 (distance 21)");
        assert_eq!(
            only_finding(&tree.run(&subject("cores = [4, 5]", PCI, ""), distance)).0,
            Severity::Ok
        );
        assert_eq!(
            only_finding(&tree.run(&subject("cores = [3]", PACKET, ""), distance)).0,
            Severity::Ok
        );
    }

    #[test]
    fn unreported_numa_node_is_unknown() {
        let tree = two_nodes();
        let subject = subject("cores = [4]", PCI, "");
        for (path, text) in [
            ("sys/bus/pci/devices/0000:03:00.0/numa_node", "-1\n"),
            ("sys/bus/pci/devices/0000:03:00.0/numa_node", "x"),
            ("sys/devices/system/node/node1/distance", "21\n"),
        ] {
            let tree = two_nodes();
            tree.file(path, text);
            assert_eq!(only_finding(&tree.run(&subject, distance)).0, Severity::Unknown, "{path}");
        }
        tree.file("sys/devices/system/node/online", "0\n");
        assert_eq!(only_finding(&tree.run(&subject, distance)).0, Severity::Ok);
        assert_eq!(only_finding(&Tree::new(&[]).run(&subject, distance)).0, Severity::Unknown);
    }
}
