//! Capabilities, set-up and counters of a device, and the description of large packets for TSO.

use arrayvec::ArrayVec;
use dpdk_sys as sys;

/// The file descriptor that signals received frames of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IdleFd {
    /// No descriptor is known.
    #[default]
    None,
    /// The packet socket that the driver opened for the queue.
    PacketSocket,
    /// The AF_XDP socket that the driver opened for the queue.
    XdpSocket,
    /// The descriptor that the driver reports for the queue's interrupt.
    QueueInterrupt,
    /// The descriptor to which a vhost-user frontend writes after it has sent.
    VhostKick,
    /// The device's receive interrupt, enabled while the worker sleeps. No descriptor if the device does not start with
    /// the interrupt.
    RxInterrupt,
}

/// A device's capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name of the driver, such as `net_af_packet`.
    pub driver: String,
    /// NUMA node; `None` if the device has none.
    pub numa: Option<u32>,
    /// Maximum number of buffers of a sent packet.
    pub max_tx_segments: u16,
    /// Maximum number of receive queues.
    pub max_rx_queues: u16,
    /// Maximum number of send queues.
    pub max_tx_queues: u16,
    /// Length in bytes of the longest frame that the device can receive according to its driver, frame check sequence
    /// included. Many virtual devices report a lower value than they accept.
    pub max_rx_packet: u32,
    /// Largest MTU in bytes.
    pub max_mtu: u16,
    /// Minimum size of a receive buffer, bytes.
    pub min_rx_buffer: u32,
    /// Entries of the RSS redirection table, 0 without one.
    pub reta_size: u16,
    /// Bytes of the RSS key, 0 without one.
    pub hash_key_len: u8,
    /// True if the device can hash TCP over IPv4 and IPv6 by addresses and ports.
    pub rss_tcp: bool,
    /// Supported receive offloads.
    pub rx: RxOffloads,
    /// Supported send offloads.
    pub tx: TxOffloads,
}

/// Offloads for received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RxOffloads {
    /// Verifies the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Verifies the TCP checksum.
    pub tcp_checksum: bool,
    /// Verifies the SCTP checksum.
    pub sctp_checksum: bool,
    /// Delivers the RSS hash with the frame.
    pub rss_hash: bool,
}

/// Offloads for sent frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TxOffloads {
    /// Fills in the IPv4 header checksum.
    pub ip_checksum: bool,
    /// Fills in the TCP checksum.
    pub tcp_checksum: bool,
    /// Fills in the SCTP checksum.
    pub sctp_checksum: bool,
    /// Sends packets of several buffers.
    pub multi_segments: bool,
    /// Segments large TCP packets (TSO).
    pub tcp_segmentation: bool,
}

/// Segmentation of large TCP packets by a device or a frontend, into segments of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Supported over IPv4.
    pub ipv4: bool,
    /// Supported over IPv6.
    pub ipv6: bool,
    /// Maximum number of segments of one packet.
    pub segments: u16,
    /// True if headers must follow virtio (virtio 1.2 §5.1.6.2): the IPv4 checksum is filled in, and the TCP
    /// pseudo-header's sum includes the length. False for a device, which fills in the IPv4 checksum itself and
    /// requires a sum without the length.
    pub virtio: bool,
}

impl Segmentation {
    /// No segmentation: the value of a device without TSO.
    pub const NONE: Segmentation =
        Segmentation { ipv4: false, ipv6: false, segments: 0, virtio: false };

    /// Returns true if TCP packets of at least one IP version can be segmented.
    pub fn is_any(self) -> bool {
        (self.ipv4 || self.ipv6) && self.segments > 1
    }
}

/// Maximum length of a large packet's headers, bytes.
pub const LARGE_HEADERS: usize = 128;

/// A TCP packet that a device or a frontend segments.
#[derive(Clone, Debug)]
pub struct LargePacket {
    /// Headers, including TCP options. Each merged frame has headers of the same length.
    pub headers: ArrayVec<u8, LARGE_HEADERS>,
    /// True for IPv6, false for IPv4.
    pub ipv6: bool,
    /// Bytes of the link header, tags included.
    pub l2_len: u16,
    /// Bytes of the IP header.
    pub l3_len: u16,
    /// Payload bytes of each segment but the last.
    pub segment_len: u16,
    /// Number of merged frames.
    pub frames: u16,
}

/// Minimum header lengths of a large packet, in bytes: Ethernet, then IPv4 and IPv6, then TCP.
const MIN_L2_LEN: u16 = 14;
const MIN_L3_LEN: [u16; 2] = [20, 40];
const MIN_L4_LEN: u16 = 20;

impl LargePacket {
    /// Returns the length of the TCP header, bytes. Returns `None` if no device could segment the packet: its lengths
    /// contradict each other, segments would be empty, or it has fewer than two frames. The limit [`LARGE_HEADERS`]
    /// ensures that all header lengths fit the fields of an `rte_mbuf` (7, 9 and 8 bits).
    pub(crate) fn l4_len(&self) -> Option<u16> {
        let ip = self.l2_len.checked_add(self.l3_len)?;
        let l4_len = (self.headers.len() as u16).checked_sub(ip)?;
        let has_min_headers = self.l2_len >= MIN_L2_LEN
            && self.l3_len >= MIN_L3_LEN[usize::from(self.ipv6)]
            && l4_len >= MIN_L4_LEN;
        (has_min_headers && self.segment_len > 0 && self.frames > 1).then_some(l4_len)
    }
}

/// Parameters of receive-side scaling: hash key and redirection table.
#[derive(Clone, Debug)]
pub struct Rss {
    /// Hash key, [`DeviceInfo::hash_key_len`] bytes.
    pub key: Vec<u8>,
    /// Queue numbers, indexed by the low bits of the hash; [`DeviceInfo::reta_size`] entries.
    pub table: Vec<u16>,
    /// True to request rules by which the device distributes SCTP packets to the queues of this table. The hash covers
    /// the destination address and both ports. [`SctpRules`] reports which rules the device accepted.
    pub sctp_rules: bool,
}

/// IP versions for which a device has accepted [SCTP rules](Rss::sctp_rules).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SctpRules {
    /// SCTP over IPv4.
    pub v4: bool,
    /// SCTP over IPv6.
    pub v6: bool,
}

/// Set-up of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Number of RX queues, and of TX queues.
    pub queues: u16,
    /// Receive descriptors per queue, rounded to a number that the device supports.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, rounded to a number that the device supports.
    pub tx_descriptors: u16,
    /// MTU in bytes: largest IP packet.
    pub mtu: u16,
    /// True to set the MTU in the driver. False for virtual devices that have no MTU, or would set the MTU of the
    /// kernel's interface.
    pub set_mtu: bool,
    /// Receive offloads to enable; the device must support them.
    pub rx: RxOffloads,
    /// Send offloads to enable; the device must support them.
    pub tx: TxOffloads,
    /// Distribution of flows over the queues; `None` without RSS.
    pub rss: Option<Rss>,
    /// True to receive frames for all addresses.
    pub promiscuous: bool,
    /// True to receive all multicast frames, some of which neighbour discovery requires.
    pub all_multicast: bool,
    /// Descriptor on which an idle worker waits.
    pub idle: IdleFd,
    /// True to start even without a peer, and to retry while the link is down (memif clients).
    pub reconnect: bool,
    /// True to restrict files and sockets that the driver creates to this process's user.
    pub private_files: bool,
}

/// Counters of a device since it was opened or recreated. Counters that the driver does not keep are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames lost because no descriptor was free.
    pub rx_missed: u64,
    /// Damaged frames received.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Failed buffer allocations on receipt.
    pub rx_no_buffer: u64,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// True if the driver reports a link. The link of a virtual port is up while a peer is connected.
    pub up: bool,
    /// Speed in Mbit/s, if known.
    pub mbit_per_s: Option<u32>,
}

impl RxOffloads {
    pub(crate) fn bits(self) -> u64 {
        bit(self.ip_checksum, sys::DDPD_RX_IPV4_CKSUM)
            | bit(self.tcp_checksum, sys::DDPD_RX_TCP_CKSUM)
            | bit(self.sctp_checksum, sys::DDPD_RX_SCTP_CKSUM)
            | bit(self.rss_hash, sys::DDPD_RX_RSS_HASH)
    }
}

impl TxOffloads {
    pub(crate) fn bits(self) -> u64 {
        bit(self.ip_checksum, sys::DDPD_TX_IPV4_CKSUM)
            | bit(self.tcp_checksum, sys::DDPD_TX_TCP_CKSUM)
            | bit(self.sctp_checksum, sys::DDPD_TX_SCTP_CKSUM)
            | bit(self.multi_segments, sys::DDPD_TX_MULTI_SEGS)
            | bit(self.tcp_segmentation, sys::DDPD_TX_TCP_TSO)
    }
}

fn bit(on: bool, flag: sys::ddpd_flags) -> u64 {
    if on { u64::from(flag) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packet_with_contradictory_lengths_is_not_segmented() {
        let good = LargePacket {
            headers: [0; 66].into_iter().collect(),
            ipv6: false,
            l2_len: 14,
            l3_len: 20,
            segment_len: 1000,
            frames: 2,
        };
        assert_eq!(good.l4_len(), Some(32));
        assert_eq!(
            LargePacket { ipv6: true, l2_len: 6, l3_len: 40, ..good.clone() }.l4_len(),
            None
        );
        for (l2_len, l3_len) in [
            (14, 19),
            (13, 20),
            (14, 33),
            (14, 52),
            (14, 53),
            (66, 20),
            (u16::MAX, 20),
            (14, u16::MAX),
        ] {
            let wrong = LargePacket { l2_len, l3_len, ..good.clone() };
            assert_eq!(wrong.l4_len(), None, "{l2_len} {l3_len}");
        }
        let wrong = [
            LargePacket { headers: ArrayVec::new(), ..good.clone() },
            LargePacket { segment_len: 0, ..good.clone() },
            LargePacket { frames: 1, ..good.clone() },
            LargePacket { frames: 0, ..good.clone() },
            LargePacket { ipv6: true, ..good.clone() },
        ];
        for wrong in wrong {
            assert_eq!(wrong.l4_len(), None, "{wrong:?}");
        }
        // Headers of the maximum length fit the fields of an `rte_mbuf`.
        let headers: ArrayVec<u8, LARGE_HEADERS> = [0; LARGE_HEADERS].into_iter().collect();
        for (l2_len, l3_len) in [(88, 20), (14, 94), (14, 20)] {
            let most = LargePacket { headers: headers.clone(), l2_len, l3_len, ..good.clone() };
            let l4_len = most.l4_len().unwrap();
            assert!(l2_len < 1 << 7 && l3_len < 1 << 9 && l4_len < 1 << 8);
        }
    }
}
