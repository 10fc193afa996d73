//! Drops frames received on a device before the kernel processes them, with a separate nftables table of family
//! `netdev`. The kernel removes the table when the socket that created it is closed. Packet sockets receive a
//! frame before the drop.

use super::netlink::{Message, Protocol, Socket};

/// An nftables table that drops the frames received on a device. Dropping this value removes the table.
#[derive(Debug)]
pub(super) struct Filter {
    /// Owner of the table. The kernel removes the table when this socket is closed.
    _socket: Socket,
}

const SUBSYSTEM: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const FAMILY: u8 = libc::NFPROTO_NETDEV as u8;
/// Flag of a table that is removed when the socket that created the table is closed (`NFT_TABLE_F_OWNER`).
const OWNER: u32 = 2;
/// Types of the attributes of tables, chains and hooks (`linux/netfilter/nf_tables.h`).
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
/// Runs before other chains at the same hook.
const PRIORITY: i32 = -500;

impl Filter {
    /// Drops frames received on `device` until the returned value is dropped.
    pub(super) fn install(device: &str) -> Result<Filter, String> {
        let failed = |error: std::io::Error| {
            format!(
                "nftables cannot keep the kernel off {device} (it takes CAP_NET_ADMIN, and Linux 5.12 with the family \
                 netdev): {error}"
            )
        };
        let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
        socket.request(&batch(device)).map_err(failed)?;
        Ok(Filter { _socket: socket })
    }
}

/// Returns the name of a device's table.
fn name(device: &str) -> String {
    format!("ddpd-{device}")
}

fn batch(device: &str) -> [Message; 4] {
    let table = name(device);
    let bound = |kind: i32| {
        let [high, low] = SUBSYSTEM.to_be_bytes();
        Message::new(kind as u16, 0, &[0, 0, high, low])
    };
    let of_tables = |kind: i32| {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        Message::new(SUBSYSTEM << 8 | kind as u16, flags, &[FAMILY, 0, 0, 0])
    };
    let hook = Message::default()
        .attribute(HOOK_NUMBER, &(libc::NF_NETDEV_INGRESS as u32).to_be_bytes())
        .attribute(HOOK_PRIORITY, &PRIORITY.to_be_bytes())
        .text(HOOK_DEVICE, device);
    [
        bound(libc::NFNL_MSG_BATCH_BEGIN),
        of_tables(libc::NFT_MSG_NEWTABLE)
            .text(TABLE_NAME, &table)
            .attribute(TABLE_FLAGS, &OWNER.to_be_bytes()),
        of_tables(libc::NFT_MSG_NEWCHAIN)
            .text(CHAIN_TABLE, &table)
            .text(CHAIN_NAME, "ingress")
            .nested(CHAIN_HOOK, &hook)
            .attribute(CHAIN_POLICY, &(libc::NF_DROP as u32).to_be_bytes())
            .text(CHAIN_TYPE, "filter"),
        bound(libc::NFNL_MSG_BATCH_END),
    ]
}
