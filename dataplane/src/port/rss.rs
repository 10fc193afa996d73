//! How a device spreads flows over its queues. The hash itself is [`crate::steering`]'s: the device gets
//! its key, and its table is the one in [`RssTable`].

use dpdk::{DeviceInfo, Rss, SctpRules};

use super::{PortConfig, PortKind};
use crate::steering::SYMMETRIC_KEY;

/// Drivers that read "of the addresses the destination alone" as "and no ports": all SCTP packets to one of our addresses would
/// come to one worker. Without a rule they are spread.
const WITHOUT_PORTS: [&str; 2] = ["net_ice", "net_iavf"];

/// Entries of a table that is software's alone.
const SOFTWARE_ENTRIES: usize = 128;

/// Which of a port's queues a flow belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    /// Queue by the hash modulo the table's length. The hash is Toeplitz's under
    /// [`SYMMETRIC_KEY`](crate::steering::SYMMETRIC_KEY).
    pub queues: Vec<u16>,
    /// True when the device itself brings every unfragmented TCP segment to that queue. Otherwise any
    /// queue may get it, and it must be passed on.
    pub in_device: bool,
    /// True when the device has rules to bring SCTP packets, in neither UDP nor ESP nor fragments, to their owner's queue. What
    /// it hashes for that is not known for certain: of each packet the owner is looked up all the same.
    pub sctp_rules: bool,
}

/// What the device is asked to do, and what comes of it.
pub(super) fn choose(
    config: &PortConfig,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> (Option<Rss>, RssTable) {
    if config.queues == 1 {
        return (None, RssTable { queues: vec![0], in_device: true, sctp_rules: false });
    }
    // Only PCI devices take a key and a table and keep to them; some virtual drivers say they do.
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
                queues: spread(SOFTWARE_ENTRIES, config.queues),
                in_device: false,
                sctp_rules: false,
            },
        );
    }
    // Longer keys go on as they begin; a TCP flow's hash does not reach so far.
    let key = SYMMETRIC_KEY.iter().copied().cycle().take(device.hash_key_len.into()).collect();
    let queues = spread(device.reta_size.into(), config.queues);
    // RSS itself does not find an association's owner, who is the same for all addresses of the peer.
    let sctp_rules = !WITHOUT_PORTS.iter().any(|driver| device.driver.starts_with(driver));
    let rss = Rss { key, table: queues.clone(), sctp_rules };
    (Some(rss), RssTable { queues, in_device: true, sctp_rules: false })
}

/// What the device has answered, once it is started.
pub(super) fn answered(table: &mut RssTable, rules: SctpRules, statements: &mut Vec<String>) {
    // Others are not asked, and have another statement, or one queue.
    if !table.in_device || table.queues.iter().all(|&queue| queue == 0) {
        return;
    }
    table.sctp_rules = rules.v4 && rules.v6;
    let which = match (rules.v4, rules.v6) {
        (true, true) => return,
        (true, false) => " over IPv6",
        (false, true) => " over IPv4",
        (false, false) => "",
    };
    statements.push(format!(
        "the device takes no rule that brings SCTP packets{which} to their owner: they may arrive at any worker \
         and are passed on"
    ));
}

fn spread(entries: usize, queues: u16) -> Vec<u16> {
    (0..queues).cycle().take(entries).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{device, pci};
    use super::*;
    use crate::port::PortConfig;

    /// What is asked of such a device, and what is said once it has answered.
    fn chosen(
        config: &PortConfig,
        device: &DeviceInfo,
        rules: SctpRules,
    ) -> (Option<bool>, bool, Vec<String>) {
        let mut statements = Vec::new();
        let (rss, mut table) = choose(config, device, &mut statements);
        let (before, in_device) = (statements.len(), table.in_device);
        answered(&mut table, rules, &mut statements);
        // Of TCP it says nothing.
        assert_eq!(table.in_device, in_device);
        (rss.map(|rss| rss.sctp_rules), table.sctp_rules, statements.split_off(before))
    }

    #[test]
    fn a_device_that_spreads_tcp_is_asked_for_sctp_rules() {
        let port = PortConfig { queues: 4, ..pci() };
        let rules = |v4, v6| SctpRules { v4, v6 };
        let statement = |which: &str| {
            vec![format!(
                "the device takes no rule that brings SCTP packets{which} to their owner: they may arrive at any \
                 worker and are passed on"
            )]
        };
        assert_eq!(chosen(&port, &device(), rules(true, true)), (Some(true), true, vec![]));
        for (v4, v6, which) in
            [(false, false, ""), (true, false, " over IPv6"), (false, true, " over IPv4")]
        {
            let expected = (Some(true), false, statement(which));
            assert_eq!(chosen(&port, &device(), rules(v4, v6)), expected);
        }
        // Who would bring all of them to one worker is not.
        for driver in ["net_ice", "net_iavf"] {
            let device = DeviceInfo { driver: driver.into(), ..device() };
            let expected = (Some(false), false, statement(""));
            assert_eq!(chosen(&port, &device, SctpRules::default()), expected);
        }
        // With one queue there is nothing to choose, and others than PCI devices are not asked.
        assert_eq!(chosen(&pci(), &device(), SctpRules::default()), (None, false, vec![]));
        let tap = PortConfig { kind: PortKind::Tap { device: "t".into() }, ..port };
        assert_eq!(chosen(&tap, &device(), SctpRules::default()), (None, false, vec![]));
    }
}
