//! Detects hosts that leave checksums to a device that does not compute them, such as the other end of a veth with
//! checksum offload. All packets of such a host are dropped and its connections time out, so the operator is notified.
//!
//! The checksum field identifies such a packet. In TCP, and in UDP around SCTP, the field contains the sum of the
//! pseudo-header. In SCTP, the field is zero. A corrupted packet has other values there.

use std::net::IpAddr;
use std::time::Duration;

use base::Instant;
use ipsec::ip;

use crate::api::{Event, PortId};
use crate::checksum;
use crate::io::PortIo;
use crate::net::link;
use crate::net::protocol::{TCP, UDP, UDP_HEADER};
use crate::worker::Env;

/// Number of packets of one host within [`WINDOW`] at which the host is reported. The SYN and its retransmissions of a
/// single connect reach this number.
const REPORT_THRESHOLD: u32 = 3;
/// Interval over which packets are counted. A host is reported at most once per interval, unless packets of another
/// host arrive between its own.
const WINDOW: Duration = Duration::from_secs(10);

/// Counts the packets with partial checksums of one host, the sender of the last such packet. A packet of another host
/// restarts the count.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::worker) struct PartialChecksumMonitor(Option<PacketCount>);

#[derive(Clone, Copy, Debug)]
struct PacketCount {
    port: u16,
    source: IpAddr,
    window_start: Instant,
    packets: u32,
}

impl PartialChecksumMonitor {
    /// Counts a packet. Returns true if its host is to be reported now.
    fn count(&mut self, port: u16, source: IpAddr, now: Instant) -> bool {
        let new = PacketCount { port, source, window_start: now, packets: 0 };
        let seen = self.0.get_or_insert(new);
        let same = (seen.port, seen.source) == (port, source);
        if !same || now.saturating_since(seen.window_start) >= WINDOW {
            *seen = new;
        }
        seen.packets = seen.packets.saturating_add(1);
        seen.packets == REPORT_THRESHOLD
    }
}

/// Returns true if the sender has left the checksum of this TCP segment to a device. Called if the checksum is wrong.
/// `addresses` is the sum of both addresses for the pseudo-header.
pub(in crate::worker) fn has_partial_tcp_checksum(addresses: u16, segment: &[u8]) -> bool {
    let sum = checksum::pseudo_header_with_addresses(addresses, TCP, segment.len());
    segment.get(16..18) == Some(&sum.to_be_bytes())
}

/// Returns true if the sender has left the checksum of this SCTP packet to a device. Called if the checksum is wrong.
pub(in crate::worker) fn has_partial_sctp_checksum(packet: &[u8]) -> bool {
    packet.get(8..12) == Some(&[0; 4])
}

/// Returns the sender of a frame, if the sender has left the frame's UDP checksum to a device. Called if a checksum is
/// wrong.
pub(in crate::worker) fn partial_udp_checksum_source(frame: &[u8]) -> Option<IpAddr> {
    let packet = frame.get(link::find_ip(frame)?..)?;
    let upper = ip::upper_layer(packet).filter(|upper| upper.protocol == UDP)?;
    let (source, destination) = ip::addresses(packet)?;
    let datagram = packet.get(upper.at..upper.end)?.first_chunk::<UDP_HEADER>()?;
    let len = u16::from_be_bytes([datagram[4], datagram[5]]);
    let sum = checksum::pseudo_header(source, destination, UDP, len.into());
    (datagram[6..] == sum.to_be_bytes()).then_some(source)
}

impl<Io: PortIo> Env<Io> {
    /// Records a dropped packet whose checksum was left to a device. Reports its sender after [`REPORT_THRESHOLD`]
    /// packets, unless the event ring is nearly full.
    #[cold]
    pub(in crate::worker) fn record_partial_checksum(&mut self, port: u16, source: IpAddr) {
        if self.partial_checksums.count(port, source, self.now) && !self.control.is_congested() {
            self.control.send(Event::UnfinishedChecksums { port: PortId(port), source });
        }
    }
}
