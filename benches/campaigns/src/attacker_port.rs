//! The attacker on the link: sends raw frames through an `af_packet` port and receives the appliance's answers.
//!
//! The port answers ARP requests and neighbour solicitations for every address except the good peers' and the kernel's.
//! It is also the appliance's gateway to all other networks. The appliance's packets to spoofed source addresses thus
//! arrive at this port and are counted.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use dataplane::port::{ChecksumMode, Port, PortConfig, PortFactory, PortKind, PortQueue, RxBatch};
use dpdk::{Eal, EalConfig, Hugepages, LogLevel};
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Icmpv6Header, Icmpv6Type, IpNumber,
    NetSlice, SlicedPacket, TransportSlice, icmpv6,
};
use load::frames::Mac;
use load::frames::build::{self, FragmentFields, FrameAddresses};
use load::stream_watch::{Flow, StreamPosition, StreamWatch};

use crate::testbed;

/// The attacker's hardware address. Only the attacker uses it, so frames to it are answers to an attack.
pub(crate) const MAC: Mac = [2, 0, 0, 0, 0x66, 0x66];
/// Frames sent between two polls of the receive queue.
const POLL_BURST: u64 = 32;
/// Minimum time between two bursts. Limits the rate to about 32,000 frames a second.
const BURST_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of answers in the inbox; a full inbox drops its oldest answer.
const MAX_INBOX: usize = 1024;

/// Number and bytes of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Traffic {
    pub(crate) frames: u64,
    /// Bytes, including the Ethernet header.
    pub(crate) bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }

    /// Returns the growth since `before`.
    pub(crate) fn since_sample(self, before: Traffic) -> Traffic {
        Traffic { frames: self.frames - before.frames, bytes: self.bytes - before.bytes }
    }
}

/// An answer of the appliance.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Address to which the appliance sent the packet.
    pub(crate) destination: IpAddr,
    /// Protocol number of the IP payload.
    pub(crate) protocol: IpNumber,
    /// Bytes after the IP header.
    pub(crate) payload: Vec<u8>,
}

/// The attacker's port and its observations.
pub(crate) struct AttackerPort {
    queue: PortQueue,
    start: Instant,
    burst_start: Instant,
    appliance: Mac,
    /// Frames sent by attacks, cumulative.
    pub(crate) sent: Traffic,
    /// IP packets received at [`MAC`] except neighbour solicitations, cumulative.
    pub(crate) answers: Traffic,
    /// The newest answers, at most [`MAX_INBOX`].
    pub(crate) inbox: VecDeque<Answer>,
    watch: StreamWatch,
    /// Newest observed SCTP association: addresses and ports of the good peer and of the appliance, and the
    /// verification tag of packets to the good peer.
    pub(crate) association: Option<(SocketAddr, SocketAddr, u32)>,
    /// Keeps the device open. Declared after `queue`, because fields are dropped in the order of declaration.
    _port: Port,
}

impl AttackerPort {
    /// Opens the port on `device`.
    pub(crate) fn open(device: &str, appliance: Mac) -> Result<AttackerPort> {
        let kind = PortKind::AfPacket { device: device.to_owned() };
        let config = PortConfig {
            checksum: ChecksumMode::Software,
            rx_descriptors: 1024,
            tx_descriptors: 512,
            // The good peer's port uses the same interface.
            shares_interface: true,
            ..PortConfig::new("attacker", kind)
        };
        let eal = EalConfig {
            hugepages: Hugepages::Never,
            memory_mib: 64 + (config.pool_bytes() >> 20) as u32,
            log_level: LogLevel::Error,
            ..EalConfig::default()
        };
        let mut port = PortFactory::new(Eal::start(&eal)?).open(&config)?;
        let queue = port.take_queues().pop().context("a port without a queue")?;
        let now = Instant::now();
        Ok(AttackerPort {
            queue,
            start: now,
            burst_start: now,
            appliance,
            sent: Traffic::default(),
            answers: Traffic::default(),
            inbox: VecDeque::new(),
            watch: StreamWatch::default(),
            association: None,
            _port: port,
        })
    }

    /// Returns the addresses of a packet from `source` to `destination`, sent to the appliance's hardware address.
    pub(crate) fn frame_ends(&self, source: IpAddr, destination: IpAddr) -> FrameAddresses {
        FrameAddresses { source_mac: MAC, destination_mac: self.appliance, source, destination }
    }

    /// Sends an IP packet to the appliance, as a fragment if `fragment` is given.
    pub(crate) fn send_ip(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        protocol: IpNumber,
        fragment: Option<&FragmentFields>,
        payload: &[u8],
    ) -> Result<()> {
        let packet = build::packet(source, destination, protocol, 64, fragment, payload)?;
        let frame = build::frame(&self.frame_ends(source, destination), &packet)?;
        self.send_frame(&frame)
    }

    /// Sends and counts a frame. At most [`POLL_BURST`] frames are sent per [`BURST_INTERVAL`].
    pub(crate) fn send_frame(&mut self, frame: &[u8]) -> Result<()> {
        self.sent.add(frame.len());
        self.enqueue(frame)?;
        if self.sent.frames.is_multiple_of(POLL_BURST) {
            self.queue.flush();
            self.receive();
            let due = self.burst_start + BURST_INTERVAL;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.burst_start = Instant::now();
        }
        Ok(())
    }

    fn enqueue(&mut self, frame: &[u8]) -> Result<()> {
        let mut buffer = self.queue.alloc();
        for _ in 0..1000 {
            if buffer.is_some() {
                break;
            }
            self.queue.flush();
            std::thread::sleep(Duration::from_micros(100));
            buffer = self.queue.alloc();
        }
        let mut buffer = buffer.context("the attacker's port has no free buffer")?;
        buffer.append(frame.len()).context("a frame longer than a buffer")?.copy_from_slice(frame);
        if self.queue.free_tx_slots() == 0 {
            self.queue.flush();
        }
        self.queue.tx(buffer);
        Ok(())
    }

    /// Receives all waiting frames. Answers address resolution, counts and stores the appliance's answers, and records
    /// the sequence state of the good peers' streams.
    pub(crate) fn receive(&mut self) {
        self.queue.flush();
        loop {
            let mut batch = RxBatch::new();
            let now = base::Instant::from_nanos(self.start.elapsed().as_nanos() as u64);
            if self.queue.rx_burst(now, &mut batch) == 0 {
                break;
            }
            for frame in batch {
                self.input(frame.data());
            }
        }
        self.queue.flush();
    }

    /// Waits at most `time` for an answer that `pick` accepts. Discards earlier answers. `None` if none arrives in
    /// time.
    pub(crate) fn wait_answer<T>(
        &mut self,
        time: Duration,
        mut pick: impl FnMut(&Answer) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + time;
        loop {
            self.receive();
            while let Some(answer) = self.inbox.pop_front() {
                if let Some(picked) = pick(&answer) {
                    return Some(picked);
                }
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Returns the appliance's SND.NXT, RCV.NXT and timestamps on a good peer's TCP stream, from the newest frame that
    /// the appliance sent on the stream. `None` if no such frame was seen.
    pub(crate) fn position(&mut self, flow: &Flow) -> Option<StreamPosition> {
        self.receive();
        self.watch.position(flow)
    }

    fn input(&mut self, frame: &[u8]) {
        if frame.len() < 14 || frame[6..12] != self.appliance {
            return;
        }
        if frame[12..14] == [8, 6] {
            return self.answer_arp(frame);
        }
        let Ok(packet) = SlicedPacket::from_ethernet(frame) else { return };
        let (to, payload) = match &packet.net {
            Some(NetSlice::Ipv4(ip)) => {
                (IpAddr::V4(ip.header().destination_addr()), ip.payload().clone())
            }
            Some(NetSlice::Ipv6(ip)) => {
                (IpAddr::V6(ip.header().destination_addr()), ip.payload().clone())
            }
            _ => return,
        };
        if let (IpNumber::IPV6_ICMP, [135, ..], 24..) =
            (payload.ip_number, payload.payload, payload.payload.len())
        {
            return self.answer_solicitation(frame, payload.payload);
        }
        if frame[..6] == MAC {
            self.answers.add(frame.len());
            if self.inbox.len() == MAX_INBOX {
                self.inbox.pop_front();
            }
            let (protocol, payload) = (payload.ip_number, payload.payload.to_vec());
            self.inbox.push_back(Answer { destination: to, protocol, payload });
        } else if matches!(packet.transport, Some(TransportSlice::Tcp(_))) {
            self.watch.observe(frame);
        } else if payload.ip_number == IpNumber::SCTP && payload.payload.len() > 12 {
            let bytes = payload.payload;
            let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let tag = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let here = SocketAddr::new(testbed::TARGET_V4.into(), port(0));
            self.association = Some((SocketAddr::new(to, port(2)), here, tag));
        }
    }

    /// Answers an ARP request for any address that is not reserved for a good peer or the kernel.
    fn answer_arp(&mut self, frame: &[u8]) {
        let Some(arp) = frame.get(14..42) else { return };
        let target = Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]);
        if arp[6..8] != [0, 1] || testbed::is_reserved(target.into()) {
            return;
        }
        let answer = ArpPacket::new(
            ArpHardwareId::ETHERNET,
            EtherType::IPV4,
            ArpOperation::REPLY,
            &MAC,
            &target.octets(),
            &arp[8..14],
            &arp[14..18],
        );
        let Ok(answer) = answer else { return };
        if let Ok(frame) = build::ethernet(MAC, self.appliance, EtherType::ARP, &answer.to_bytes())
        {
            // The answer may be lost, as on a wire: the appliance repeats its request.
            let _ = self.enqueue(&frame);
        }
    }

    fn answer_solicitation(&mut self, frame: &[u8], message: &[u8]) {
        let Ok(target) = <[u8; 16]>::try_from(&message[8..24]) else { return };
        let target = Ipv6Addr::from(target);
        let source: Option<[u8; 16]> = frame.get(22..38).and_then(|bytes| bytes.try_into().ok());
        let (Some(source), false) =
            (source.map(Ipv6Addr::from), testbed::is_reserved(target.into()))
        else {
            return;
        };
        // Probes of the appliance's duplicate address detection must stay unanswered.
        if source.is_unspecified() {
            return;
        }
        let flags = icmpv6::NeighborAdvertisementHeader {
            router: false,
            solicited: true,
            r#override: true,
        };
        let mut body = target.octets().to_vec();
        body.extend([2, 1]);
        body.extend(MAC);
        let kind = Icmpv6Type::NeighborAdvertisement(flags);
        let Ok(header) = Icmpv6Header::with_checksum(kind, target.octets(), source.octets(), &body)
        else {
            return;
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend(body);
        let ends = self.frame_ends(target.into(), source.into());
        let frame =
            build::packet(ends.source, ends.destination, IpNumber::IPV6_ICMP, 255, None, &bytes)
                .and_then(|packet| build::frame(&ends, &packet));
        if let Ok(frame) = frame {
            let _ = self.enqueue(&frame);
        }
    }
}
