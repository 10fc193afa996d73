//! The command for offloads at the other end of a veth.

/// Expands to the command that makes the other end of a veth send complete frames: with checksums, and no longer than
/// the MTU. `PEER` stands for its interface. A macro, so that `concat!` accepts it.
#[macro_export]
macro_rules! veth_peer_offloads_off {
    () => {
        "ethtool -K PEER tx off gso off tso off"
    };
}
