//! Frames of each kind of flood, generated in advance. Any host on the link could send them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::checksum;
use serde::{Deserialize, Serialize};

use crate::end_config::{self, PORT};
use crate::rig_config::{Network, RigConfig, Side};

/// Number of different frames in a flood.
pub const FLOOD_FRAMES: u32 = 4096;
/// Source port of the generator's stream.
pub const LIVE_PORT: u16 = 40_000;
/// Initial sequence number of the generator's stream.
const LIVE_SEQ: u32 = 1000;

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A link-layer address.
pub type MacAddress = [u8; 6];

/// Kind of a flood. Source addresses are random unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// UDP datagrams to the worker.
    Udp,
    /// Data segments that match no stream.
    Data,
    /// Segments with a wrong IP header checksum.
    IpChecksum,
    /// IP packets whose length exceeds their frame.
    Truncated,
    /// Segments of a live stream's flow, with a wrong TCP checksum.
    Checksum,
    /// Segments of a live stream's flow, with random sequence numbers.
    InWindow,
    /// SYNs to the listener.
    Syn,
    /// SYNs to a port without a listener.
    SynClosed,
    /// ACKs that match no stream.
    Ack,
    /// RSTs that match no stream.
    Rst,
    /// FINs that match no stream.
    Fin,
    /// Echo requests.
    Echo,
    /// ARP requests for other hosts' addresses.
    Arp,
    /// ARP requests for the worker's address.
    ArpOurs,
    /// Neighbour solicitations for the worker's address.
    Nd,
    /// First fragments of datagrams.
    Fragment,
    /// First fragments of datagrams, all from one source.
    FragmentOne,
    /// SCTP INITs to the listener.
    Init,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 18] = [
        Kind::Udp,
        Kind::Data,
        Kind::IpChecksum,
        Kind::Truncated,
        Kind::Checksum,
        Kind::InWindow,
        Kind::Syn,
        Kind::SynClosed,
        Kind::Ack,
        Kind::Rst,
        Kind::Fin,
        Kind::Echo,
        Kind::Arp,
        Kind::ArpOurs,
        Kind::Nd,
        Kind::Fragment,
        Kind::FragmentOne,
        Kind::Init,
    ];

    /// Returns the stable name, used in rows and for paths of instruction counts.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Udp => "udp",
            Kind::Data => "data",
            Kind::IpChecksum => "ip-checksum",
            Kind::Truncated => "truncated",
            Kind::Checksum => "checksum",
            Kind::InWindow => "in-window",
            Kind::Syn => "syn",
            Kind::SynClosed => "syn-closed",
            Kind::Ack => "ack",
            Kind::Rst => "rst",
            Kind::Fin => "fin",
            Kind::Echo => "echo",
            Kind::Arp => "arp",
            Kind::ArpOurs => "arp-ours",
            Kind::Nd => "nd",
            Kind::Fragment => "fragment",
            Kind::FragmentOne => "fragment-one",
            Kind::Init => "init",
        }
    }

    /// Returns true if the frames belong to the flow of a stream, which must be opened first.
    pub fn needs_stream(self) -> bool {
        matches!(self, Kind::Checksum | Kind::InWindow)
    }

    /// Returns `rig` with the IP version and the transport protocol of this flood.
    pub fn adapt_rig(self, rig: RigConfig) -> RigConfig {
        let network = Network { v6: self == Kind::Nd, ..rig.network };
        RigConfig { sctp: self == Kind::Init, network, ..rig }
    }
}

/// Link-layer addresses of the frames.
#[derive(Clone, Copy, Debug)]
pub struct LinkAddresses {
    /// The worker's link-layer address.
    pub worker: MacAddress,
    /// The generator's link-layer address.
    pub generator: MacAddress,
}

const WORKER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const STREAM_PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 1, 1);

/// Returns a deterministic hash of `n`. Consecutive inputs give distant values.
fn hash(n: u32) -> u32 {
    (u64::from(n).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Returns the address of the `n`-th pseudo-random host on the worker's link.
fn random_host(n: u32) -> Ipv4Addr {
    let n = hash(n);
    Ipv4Addr::new(10, 9, 2 + (n % 250) as u8, 1 + (n >> 8) as u8 % 250)
}

/// Fields of a TCP header that differ between frames.
struct TcpFields {
    source_port: u16,
    destination_port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
}

impl LinkAddresses {
    /// Returns the [`FLOOD_FRAMES`] frames of a flood.
    pub fn flood_frames(&self, kind: Kind) -> Vec<Vec<u8>> {
        (0..FLOOD_FRAMES).map(|n| self.frame(kind, n)).collect()
    }

    fn frame(&self, kind: Kind, n: u32) -> Vec<u8> {
        let (who, port) = (random_host(n), 1024 + hash(n) as u16 % 60_000);
        let seq = hash(n + FLOOD_FRAMES);
        let unmatched =
            |flags| TcpFields { source_port: port, destination_port: PORT, seq, ack: 9, flags };
        let tcp = |flags, text: &[u8]| self.tcp(who, unmatched(flags), text);
        let closed =
            |flags| self.tcp(who, TcpFields { destination_port: 9, ..unmatched(flags) }, &[]);
        match kind {
            Kind::Udp => self.ipv4(who, 17, &[4, 0, 0, 9, 0, 26, 0, 0].repeat(3)),
            Kind::Data => tcp(ACK, b"unknown"),
            Kind::IpChecksum => corrupt(tcp(ACK, &[]), 24),
            Kind::Truncated => {
                let mut frame = tcp(ACK, &[7; 30]);
                frame.truncate(60);
                frame
            }
            Kind::Checksum => corrupt(self.live_segment(LIVE_SEQ + 1, 0, ACK, &[7; 6]), 50),
            Kind::InWindow => self.live_segment(seq, hash(n), ACK, &[7; 6]),
            Kind::Syn => tcp(SYN, &[]),
            Kind::SynClosed => closed(SYN),
            Kind::Ack => tcp(ACK, &[]),
            Kind::Rst => tcp(RST, &[]),
            Kind::Fin => tcp(FIN | ACK, &[]),
            Kind::Echo => {
                let mut message = vec![8, 0, 0, 0, 0, 1, 0, n as u8];
                message.resize(40, 7);
                self.ipv4(who, ICMP, &with_checksum(message, 2, 0))
            }
            Kind::Arp => self.arp(who, Ipv4Addr::new(10, 9, 0, 2)),
            Kind::ArpOurs => self.arp(who, WORKER_ADDRESS),
            Kind::Nd => self.solicitation(n),
            Kind::Fragment => self.fragment(who, n as u16),
            Kind::FragmentOne => self.fragment(STREAM_PEER, n as u16),
            Kind::Init => self.init(who, port, seq),
        }
    }

    /// Returns a broadcast ARP request for the worker's address. From the request, the worker learns the MAC address of
    /// the generator's host.
    pub fn gratuitous_arp(&self) -> Vec<u8> {
        self.arp(STREAM_PEER, WORKER_ADDRESS)
    }

    /// Returns the SYN of the generator's stream.
    pub fn syn(&self) -> Vec<u8> {
        self.live_segment(LIVE_SEQ, 0, SYN, &[])
    }

    /// Returns the ACK that completes the handshake if `frame` is the worker's SYN-ACK, otherwise `None`.
    pub fn ack_of(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let port = LIVE_PORT.to_be_bytes();
        let answer = frame.len() >= 54 && frame[12..14] == [8, 0] && frame[36..38] == port;
        let seq = u32::from_be_bytes(*frame.get(38..)?.first_chunk()?).wrapping_add(1);
        let ack = || self.live_segment(LIVE_SEQ + 1, seq, ACK, &[]);
        (answer && frame[47] == SYN | ACK).then(ack)
    }

    fn ethernet(&self, ether_type: [u8; 2], packet: &[u8]) -> Vec<u8> {
        let mut frame = [&self.worker[..], &self.generator, &ether_type, packet].concat();
        frame.resize(frame.len().max(60), 0);
        frame
    }

    fn ipv4(&self, from: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        self.ipv4_fragment(from, protocol, 0, 0x4000, payload)
    }

    fn ipv4_fragment(
        &self,
        from: Ipv4Addr,
        protocol: u8,
        id: u16,
        cut: u16,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut header = vec![0x45, 0];
        header.extend((20 + payload.len() as u16).to_be_bytes());
        header.extend(id.to_be_bytes());
        header.extend(cut.to_be_bytes());
        header.extend([64, protocol, 0, 0]);
        header.extend(from.octets());
        header.extend(WORKER_ADDRESS.octets());
        self.ethernet([8, 0], &[with_checksum(header, 10, 0), payload.to_vec()].concat())
    }

    /// Builds a segment of the generator's stream.
    fn live_segment(&self, seq: u32, ack: u32, flags: u8, text: &[u8]) -> Vec<u8> {
        let (source_port, destination_port) = (LIVE_PORT, PORT);
        let fields = TcpFields { source_port, destination_port, seq, ack, flags };
        self.tcp(STREAM_PEER, fields, text)
    }

    fn tcp(&self, from: Ipv4Addr, fields: TcpFields, text: &[u8]) -> Vec<u8> {
        let mut segment = Vec::new();
        segment.extend(fields.source_port.to_be_bytes());
        segment.extend(fields.destination_port.to_be_bytes());
        segment.extend(fields.seq.to_be_bytes());
        segment.extend(fields.ack.to_be_bytes());
        segment.extend([0x50, fields.flags, 0x20, 0, 0, 0, 0, 0]);
        segment.extend(text);
        if fields.flags & SYN != 0 {
            segment[12] = 0x60;
            segment.extend([2, 4, 5, 0xb4]);
        }
        let (from_ip, worker) = (IpAddr::V4(from), IpAddr::V4(WORKER_ADDRESS));
        let pseudo = checksum::pseudo_header(from_ip, worker, TCP, segment.len());
        self.ipv4(from, TCP, &with_checksum(segment, 16, pseudo))
    }

    fn arp(&self, from: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
        packet.extend(self.generator);
        packet.extend(from.octets());
        packet.extend([0; 6]);
        packet.extend(target.octets());
        let mut frame = self.ethernet([8, 6], &packet);
        frame[..6].fill(0xff);
        frame
    }

    /// Builds a neighbour solicitation with the source link-layer address option (RFC 4861 §4.3).
    fn solicitation(&self, n: u32) -> Vec<u8> {
        let network = Network { v6: true, ..Network::default() };
        let rig = RigConfig { network, ..RigConfig::default() };
        let IpAddr::V6(us) = end_config::side_address(&rig, Side::Responder) else {
            return Vec::new();
        };
        let from = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 2, hash(n) as u16);
        let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
        message.extend(us.octets());
        message.extend([1, 1]);
        message.extend(self.generator);
        let pseudo = checksum::pseudo_header(from.into(), us.into(), ICMPV6, message.len());
        let message = with_checksum(message, 2, pseudo);
        let mut packet = vec![0x60, 0, 0, 0, 0, message.len() as u8, ICMPV6, 255];
        packet.extend(from.octets());
        packet.extend(us.octets());
        packet.extend(message);
        self.ethernet([0x86, 0xdd], &packet)
    }

    fn fragment(&self, from: Ipv4Addr, id: u16) -> Vec<u8> {
        self.ipv4_fragment(from, TCP, id, 0x2000, &[9; 64])
    }

    /// Builds an INIT with DDP's adaptation indication (RFC 9260 §3.3.2).
    fn init(&self, from: Ipv4Addr, port: u16, tag: u32) -> Vec<u8> {
        let mut packet = Vec::new();
        packet.extend(port.to_be_bytes());
        packet.extend(PORT.to_be_bytes());
        packet.extend([0; 8]);
        packet.extend([1, 0, 0, 28]);
        packet.extend((tag | 1).to_be_bytes());
        packet.extend([0, 1, 0, 0, 0, 8, 0, 8, 0, 0, 0, 1, 0xc0, 6, 0, 8, 0, 0, 0, 1]);
        let sum = wire::sctp::checksum(&packet);
        packet[8..12].copy_from_slice(&sum);
        self.ipv4(from, SCTP, &packet)
    }
}

/// Writes the Internet checksum at offset `at`, over all bytes and the partial sum `pseudo`.
fn with_checksum(mut bytes: Vec<u8>, at: usize, pseudo: u16) -> Vec<u8> {
    let sum = !checksum::add(checksum::sum(&bytes), pseudo);
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn corrupt(mut frame: Vec<u8>, at: usize) -> Vec<u8> {
    frame[at] ^= 0x55;
    frame
}
