//! Ports as shown by the API.

use api::{self, Counters, InterfaceInfo, PortStats};
use config::{Config, PortSection};
use dataplane::port::{ChecksumSite, Port};
use dataplane::{InterfaceId, NeighbourInfo};

use super::counters::port_counters;

/// An open port, and its configuration.
#[derive(Debug)]
pub struct PortView {
    /// Handle of the open port.
    pub port: Port,
    /// The port's section of the configuration.
    pub section: PortSection,
}

impl PortView {
    /// Describes the port, its interfaces, and their neighbours.
    pub(super) fn info(&self, config: &Config, neighbours: &[NeighbourInfo]) -> api::PortInfo {
        let info = self.port.info();
        let link = self.port.link();
        let kind = &self.section.kind;
        let sums = info.checksums;
        let all = [
            ("rx-ip-checksum", sums.rx_ip),
            ("rx-tcp-checksum", sums.rx_tcp),
            ("rx-sctp-checksum", sums.rx_sctp),
            ("tx-ip-checksum", sums.tx_ip),
            ("tx-tcp-checksum", sums.tx_tcp),
            ("tx-sctp-checksum", sums.tx_sctp),
        ];
        let sums = all.into_iter().filter(|(_, by)| *by == ChecksumSite::Device);
        let rules = info.rss.sctp_rules.then_some("sctp-rules");
        let cuts = info.segmenter.map(|_| "tcp-segmentation");
        let offloads = sums.map(|(name, _)| name).chain(rules).chain(cuts).map(Into::into);
        api::PortInfo {
            name: info.name.clone(),
            kind: kind.name().into(),
            device: kind.location(),
            driver: info.driver.clone(),
            mac: mac(&self.port.mac()),
            up: link.up,
            speed_mbps: link.mbit_per_s,
            mtu: info.mtu,
            queues: info.queues,
            checksum: checksum_owner(&self.port).into(),
            offloads: offloads.collect(),
            steering: if info.rss.in_device { "rss" } else { "software" }.into(),
            interfaces: self.interfaces(config, neighbours),
            counters: self.counters(),
        }
    }

    pub(super) fn stats(&self) -> PortStats {
        PortStats { port: self.section.name.clone(), counters: self.counters() }
    }

    fn interfaces(&self, config: &Config, neighbours: &[NeighbourInfo]) -> Vec<InterfaceInfo> {
        let is_on_port = |(_, interface): &(usize, &config::InterfaceSection)| {
            interface.port == self.section.name
        };
        let interfaces = config.interfaces.iter().enumerate().filter(is_on_port);
        interfaces
            .map(|(at, interface)| {
                let is_on_interface = |n: &&NeighbourInfo| n.interface == InterfaceId(at as u16);
                let show = |n: &NeighbourInfo| api::NeighbourInfo {
                    address: n.address.to_string(),
                    mac: n.mac.as_ref().map(mac),
                    state: n.state.into(),
                };
                InterfaceInfo {
                    name: interface.name.clone(),
                    vlan: interface.vlan,
                    addresses: interface.addresses.iter().map(ToString::to_string).collect(),
                    mtu: interface.mtu,
                    allow: interface.peers.allow.iter().map(ToString::to_string).collect(),
                    deny: interface.peers.deny.iter().map(ToString::to_string).collect(),
                    neighbours: neighbours.iter().filter(is_on_interface).map(show).collect(),
                }
            })
            .collect()
    }

    fn counters(&self) -> Counters {
        port_counters(&self.port)
    }
}

/// Returns the checksum mode of TCP: `trusted` if checksums are skipped in at least one direction, `offload` if the
/// device computes them in both directions, else `software`.
pub(super) fn checksum_owner(port: &Port) -> &'static str {
    let sums = port.info().checksums;
    match (sums.rx_tcp, sums.tx_tcp) {
        (ChecksumSite::Skipped, _) | (_, ChecksumSite::Skipped) => "trusted",
        (ChecksumSite::Device, ChecksumSite::Device) => "offload",
        _ => "software",
    }
}

pub(super) fn mac(bytes: &[u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::PortKind;

    #[test]
    fn mac_address_and_port_kind_are_formatted() {
        assert_eq!(mac(&[2, 0, 0xab, 0, 0, 0x0f]), "02:00:ab:00:00:0f");
        let kind = PortKind::Ring { link: "wire".into() };
        assert_eq!((kind.name(), kind.location()), ("ring", "wire".into()));
    }
}
