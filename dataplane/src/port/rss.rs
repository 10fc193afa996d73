//! Distribution of flows over a device's queues (receive side scaling, RSS). The device uses the hash key of
//! [`crate::steering`] and the queues of [`RssTable`] as its redirection table.

use dpdk::{DeviceInfo, Rss, SctpRules};

use super::{PortConfig, PortKind};
use crate::steering::SYMMETRIC_KEY;

/// Drivers whose hash over "only the destination address" (`RTE_ETH_RSS_L3_DST_ONLY`) does not include the ports. A
/// rule with this hash would deliver all SCTP packets to one local address to one queue. Without a rule, the device
/// distributes them.
const DRIVERS_WITHOUT_PORTS: [&str; 2] = ["net_ice", "net_iavf"];

/// Number of table entries for a port whose device applies no table. The workers alone use such a table.
const SOFTWARE_ENTRIES: usize = 128;

/// Map from RSS hash to queue of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// Queue indices. The RSS hash modulo the table's length selects the entry. The RSS hash is the Toeplitz hash with
    /// the key [`SYMMETRIC_KEY`](crate::steering::SYMMETRIC_KEY).
    pub queues: Vec<u16>,
    /// True if the device itself delivers every unfragmented TCP segment to the queue that the table selects. Otherwise
    /// a segment may arrive on any queue, and its receiver passes it to the worker that owns its flow.
    pub in_device: bool,
    /// True if the device has rules that deliver SCTP packets to their owner's queue, except fragments and packets in
    /// UDP or ESP. Devices differ in the fields that they hash, so the worker determines the owner of each packet even
    /// if the rules exist.
    pub sctp_rules: bool,
}

/// Returns the RSS request for the device and the resulting table. The request is `None` if the port has one queue, or
/// if the device cannot apply a key and a table.
pub(super) fn choose_rss(
    config: &PortConfig,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> (Option<Rss>, RssTable) {
    if config.queues == 1 {
        return (None, RssTable { queues: vec![0], in_device: true, sctp_rules: false });
    }
    // Only PCI devices apply a key and a table. Some virtual drivers report the capability without effect.
    let able = matches!(config.kind, PortKind::Pci { .. })
        && device.rss_tcp
        && usize::from(device.hash_key_len) >= SYMMETRIC_KEY.len()
        && device.reta_size > 0;
    if !able {
        statements.push(
            "the device does not distribute flows as requested: frames of a flow may arrive at any worker and \
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
    // For a device with a longer key, the 40 bytes are repeated. The hash of a TCP flow does not depend on the
    // repetition.
    let key = SYMMETRIC_KEY.iter().copied().cycle().take(device.hash_key_len.into()).collect();
    let queues = round_robin_table(device.reta_size.into(), config.queues);
    // The owner of an association depends on the local address and both ports, not on the peer's address. The RSS hash
    // of the whole flow may therefore select another queue. Rules in the device steer SCTP packets by the hash of these
    // fields alone.
    let sctp_rules = !DRIVERS_WITHOUT_PORTS.iter().any(|driver| device.driver.starts_with(driver));
    let rss = Rss { key, table: queues.clone(), sctp_rules };
    (Some(rss), RssTable { queues, in_device: true, sctp_rules: false })
}

/// Records in the table whether the started device has the SCTP rules. Adds a statement if any are missing, because
/// none were requested or the device did not accept them.
pub(super) fn apply_rules(table: &mut RssTable, rules: SctpRules, statements: &mut Vec<String>) {
    // Without usable RSS, no rules were requested, and the operator receives another statement. A single queue
    // (index 0 in all entries) needs no rules.
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
        "the device has no rule that steers SCTP packets{family} to their owner: they may arrive at any worker and \
         are forwarded"
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

    /// Chooses RSS for `device`, and applies the rules that the device accepted (`rules`). Returns whether rules were
    /// requested (`None` without RSS), whether the table has them, and the statements about the rules.
    fn choose_and_apply(
        config: &PortConfig,
        device: &DeviceInfo,
        rules: SctpRules,
    ) -> (Option<bool>, bool, Vec<String>) {
        let mut statements = Vec::new();
        let (rss, mut table) = choose_rss(config, device, &mut statements);
        let (before, in_device) = (statements.len(), table.in_device);
        apply_rules(&mut table, rules, &mut statements);
        // The rules do not affect the distribution of TCP segments.
        assert_eq!(table.in_device, in_device);
        (rss.map(|rss| rss.sctp_rules), table.sctp_rules, statements.split_off(before))
    }

    #[test]
    fn device_with_tcp_rss_gets_sctp_rule_request() {
        let port = PortConfig { queues: 4, ..pci() };
        let rules = |v4, v6| SctpRules { v4, v6 };
        let statement = |which: &str| {
            vec![format!(
                "the device has no rule that steers SCTP packets{which} to their owner: they may arrive at any worker \
                 and are forwarded"
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
        // No rule is requested from a driver with which all packets would arrive at one worker.
        for driver in ["net_ice", "net_iavf"] {
            let device = DeviceInfo { driver: driver.into(), ..device() };
            let expected = (Some(false), false, statement(""));
            assert_eq!(choose_and_apply(&port, &device, SctpRules::default()), expected);
        }
        // No rule is requested for a port with one queue, or for a TAP port.
        assert_eq!(
            choose_and_apply(&pci(), &device(), SctpRules::default()),
            (None, false, vec![])
        );
        let tap = PortConfig { kind: PortKind::Tap { device: "t".into() }, ..port };
        assert_eq!(choose_and_apply(&tap, &device(), SctpRules::default()), (None, false, vec![]));
    }
}
