//! The command that disables transmit offloads at the other end of a veth.

/// Expands to the command that makes the other end of a veth send complete frames: with checksums, and no longer than
/// the MTU. `PEER` stands for the interface at that end. A macro, because `concat!` accepts only literals.
#[macro_export]
macro_rules! veth_peer_offloads_off {
    () => {
        "ethtool -K PEER tx off gso off tso off"
    };
}
