//! How a device spreads flows over its queues. The hash itself is [`crate::steering`]'s: the device gets
//! its key, and its table is the one in [`RssTable`].

use dpdk::{DeviceInfo, Rss};

use super::{PortConfig, PortKind};
use crate::steering::SYMMETRIC_KEY;

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
}

/// What the device is asked to do, and what comes of it.
pub(super) fn choose(
    config: &PortConfig,
    device: &DeviceInfo,
    statements: &mut Vec<String>,
) -> (Option<Rss>, RssTable) {
    if config.queues == 1 {
        return (None, RssTable { queues: vec![0], in_device: true });
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
            RssTable { queues: spread(SOFTWARE_ENTRIES, config.queues), in_device: false },
        );
    }
    // Longer keys go on as they begin; a TCP flow's hash does not reach so far.
    let key = SYMMETRIC_KEY.iter().copied().cycle().take(device.hash_key_len.into()).collect();
    let queues = spread(device.reta_size.into(), config.queues);
    (Some(Rss { key, table: queues.clone() }), RssTable { queues, in_device: true })
}

fn spread(entries: usize, queues: u16) -> Vec<u16> {
    (0..queues).cycle().take(entries).collect()
}
