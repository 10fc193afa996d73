//! Distribution of flows over a device's queues (RSS). The device gets the hash key of [`crate::steering`] and
//! the table of [`RssTable`].

use dpdk::{DeviceInfo, Rss, SctpRules};

use super::{PortConfig, PortKind};
use crate::steering::SYMMETRIC_KEY;

/// Drivers that interpret "only the destination address" as "without ports". With a rule, all SCTP packets to one local
/// address would arrive on one queue. Without a rule they are distributed.
const DRIVERS_WITHOUT_PORTS: [&str; 2] = ["net_ice", "net_iavf"];

/// Entries of a software-only table.
const SOFTWARE_ENTRIES: usize = 128;

/// The queue of each flow of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// Queue numbers, indexed by the hash modulo the table's length. The hash is Toeplitz's under
    /// [`SYMMETRIC_KEY`](crate::steering::SYMMETRIC_KEY).
    pub queues: Vec<u16>,
    /// True if the device itself delivers every unfragmented TCP segment to that queue. Otherwise a segment may
    /// arrive on any queue and must be passed to its owner.
    pub in_device: bool,
    /// True if the device has rules that deliver SCTP packets to their owner's queue (except in UDP, ESP and
    /// fragments). It is not certain which fields a device hashes, so the owner of each packet is looked up anyway.
    pub sctp_rules: bool,
}

/// Returns the RSS request for the device and the resulting table.
pub(super) fn choose_rss(
    config: &PortConfig,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> (Option<Rss>, RssTable) {
    if config.queues == 1 {
        return (None, RssTable { queues: vec![0], in_device: true, sctp_rules: false });
    }
    // Only PCI devices apply a key and a table; some virtual drivers claim to.
    let able = matches!(config.kind, PortKind::Pci { .. })
        && device.rss_tcp
        && usize::from(device.hash_key_len) >= SYMMETRIC_KEY.len()
        && device.reta_size > 0;
    if !able {
        statements.push(
            "the device does not spread flows as we ask: frames of a flow may arrive at any worker and \
             are passed on to its owner"
                .to_owned(),
        );
        return (
            None,
            RssTable {
                queues: round_robin_table(SOFTWARE_ENTRIES, config.queues),
                in_device: false,
                sctp_rules: false,
            },
        );
    }
    // A longer key repeats the 40 bytes. The hash input of a TCP flow does not reach the repetition.
    let key = SYMMETRIC_KEY.iter().copied().cycle().take(device.hash_key_len.into()).collect();
    let queues = round_robin_table(device.reta_size.into(), config.queues);
    // The owner of an association depends on the local address and both ports, not on the peer's address, so the RSS
    // hash of the whole flow may select another queue. Rules in the device steer SCTP packets by the hash of these
    // fields alone.
    let sctp_rules = !DRIVERS_WITHOUT_PORTS.iter().any(|driver| device.driver.starts_with(driver));
    let rss = Rss { key, table: queues.clone(), sctp_rules };
    (Some(rss), RssTable { queues, in_device: true, sctp_rules: false })
}

/// Enters the rules that the started device accepted into the table, and adds a statement on missing ones.
pub(super) fn apply_rules(table: &mut RssTable, rules: SctpRules, statements: &mut Vec<String>) {
    // Devices without usable RSS got no request and have another statement. A single queue needs no rules.
    if !table.in_device || table.queues.iter().all(|&queue| queue == 0) {
        return;
    }
    table.sctp_rules = rules.v4 && rules.v6;
    let family = match (rules.v4, rules.v6) {
        (true, true) => return,
        (true, false) => " over IPv6",
        (false, true) => " over IPv4",
        (false, false) => "",
    };
    statements.push(format!(
        "the device takes no rule that brings SCTP packets{family} to their owner: they may arrive at any worker \
         and are passed on"
    ));
}

fn round_robin_table(entries: usize, queues: u16) -> Vec<u16> {
    (0..queues).cycle().take(entries).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{device, pci};
    use super::*;
    use crate::port::PortConfig;

    /// Returns the rule request to `device`, and the resulting `sctp_rules` and statements after the device's answer.
    fn choose_and_apply(
        config: &PortConfig,
        device: &DeviceInfo,
        rules: SctpRules,
    ) -> (Option<bool>, bool, Vec<String>) {
        let mut statements = Vec::new();
        let (rss, mut table) = choose_rss(config, device, &mut statements);
        let (before, in_device) = (statements.len(), table.in_device);
        apply_rules(&mut table, rules, &mut statements);
        // TCP does not depend on the rules.
        assert_eq!(table.in_device, in_device);
        (rss.map(|rss| rss.sctp_rules), table.sctp_rules, statements.split_off(before))
    }

    #[test]
    fn device_with_tcp_rss_gets_sctp_rule_request() {
        let port = PortConfig { queues: 4, ..pci() };
        let rules = |v4, v6| SctpRules { v4, v6 };
        let statement = |which: &str| {
            vec![format!(
                "the device takes no rule that brings SCTP packets{which} to their owner: they may arrive at any \
                 worker and are passed on"
            )]
        };
        assert_eq!(
            choose_and_apply(&port, &device(), rules(true, true)),
            (Some(true), true, vec![])
        );
        for (v4, v6, which) in
            [(false, false, ""), (true, false, " over IPv6"), (false, true, " over IPv4")]
        {
            let expected = (Some(true), false, statement(which));
            assert_eq!(choose_and_apply(&port, &device(), rules(v4, v6)), expected);
        }
        // Drivers whose rule would deliver all packets to one worker get no request.
        for driver in ["net_ice", "net_iavf"] {
            let device = DeviceInfo { driver: driver.into(), ..device() };
            let expected = (Some(false), false, statement(""));
            assert_eq!(choose_and_apply(&port, &device, SctpRules::default()), expected);
        }
        // A port with one queue and a TAP port get no request.
        assert_eq!(
            choose_and_apply(&pci(), &device(), SctpRules::default()),
            (None, false, vec![])
        );
        let tap = PortConfig { kind: PortKind::Tap { device: "t".into() }, ..port };
        assert_eq!(choose_and_apply(&tap, &device(), SctpRules::default()), (None, false, vec![]));
    }
}
