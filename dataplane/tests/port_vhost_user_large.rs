//! Large packets of a vhost-user port. A frontend that negotiated TSO receives them whole, with a virtio header.
//! Another frontend receives segments with checksums. Frames that are pending while the frontend changes are sent in
//! the form that the next frontend negotiated.

mod port_common;
#[path = "port_common/raw.rs"]
mod raw;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use dataplane::checksum;
use dataplane::port::{
    ChecksumMode, Port, PortConfig, PortKind, PortQueue, SegmentationMode, Segmenter,
};
use raw::Raw;
use vhost::VhostBackend;

/// Feature bit VIRTIO_NET_F_GUEST_TSO4.
const TSO4: u64 = 1 << 7;
/// Feature bit VIRTIO_NET_F_GUEST_TSO6.
const TSO6: u64 = 1 << 8;
/// Feature bit VIRTIO_NET_F_MRG_RXBUF.
const MERGED: u64 = 1 << 15;
/// All feature bits for large packets: the bits above and VIRTIO_NET_F_GUEST_CSUM.
const LARGE: u64 = 1 << 1 | TSO4 | TSO6 | MERGED;
/// Payload bytes of a segment.
const EMSS: usize = 1448;

/// Returns `count` segments of one flow. The last segment has `last` bytes of payload and PSH.
fn segments(v6: bool, tagged: bool, count: usize, last: usize) -> Vec<Vec<u8>> {
    let at = |n| match v6 {
        true => IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)),
        false => Ipv4Addr::new(10, 0, 0, n as u8).into(),
    };
    let (from, to) = (at(1), at(2));
    let segment = |i: usize| {
        let len = if i + 1 == count { last } else { EMSS };
        let mut tcp = [3260_u16, 4420].map(u16::to_be_bytes).concat();
        tcp.extend((u32::MAX - 5000).wrapping_add((i * EMSS) as u32).to_be_bytes());
        tcp.extend([0, 0, 0, 9, 0x80, if i + 1 == count { 0x18 } else { 0x10 }, 1, 0, 0, 0, 0, 0]);
        tcp.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        tcp.extend(port_common::pattern(EMSS + i).split_off(EMSS + i - len));
        let sum = checksum::segment(from, to, 6, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [[2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]].concat();
        if tagged {
            frame.extend([0x81, 0, 0, 42]);
        }
        let mut ip = Vec::new();
        if v6 {
            frame.extend([0x86, 0xdd]);
            ip.extend([0x60, 0, 0, 0]);
            ip.extend((tcp.len() as u16).to_be_bytes());
            ip.extend([6, 64]);
        } else {
            frame.extend([8, 0]);
            ip.extend([0x45, 0]);
            ip.extend((20 + tcp.len() as u16).to_be_bytes());
            ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        }
        for address in [from, to] {
            match address {
                IpAddr::V4(address) => ip.extend(address.octets()),
                IpAddr::V6(address) => ip.extend(address.octets()),
            }
        }
        if !v6 {
            let sum = !checksum::sum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        [frame, ip, tcp].concat()
    };
    (0..count).map(segment).collect()
}

fn send(queue: &mut PortQueue, frames: &[Vec<u8>]) {
    for bytes in frames {
        let mut frame = queue.alloc().expect("a free buffer");
        frame.append(bytes.len()).expect("it fits").copy_from_slice(bytes);
        queue.tx(frame);
    }
    queue.flush();
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Asserts that `packet` is the large packet merged from `frames`.
fn assert_large_packet(header: &[u8], packet: &[u8], frames: &[Vec<u8>]) {
    let tagged = frames[0][12] == 0x81;
    let l2 = if tagged { 18 } else { 14 };
    let v6 = frames[0][l2] >> 4 == 6;
    let l4 = l2 + if v6 { 40 } else { 20 };
    let end = l4 + 32;
    // Virtio 1.2 §5.1.6: flags VIRTIO_NET_HDR_F_NEEDS_CSUM, gso_type VIRTIO_NET_HDR_GSO_TCPV4 or _TCPV6.
    assert_eq!(header[..2], [1, if v6 { 4 } else { 1 }]);
    assert_eq!(
        [2, 4, 6, 8].map(|at| read_u16(header, at)),
        [end as u16, EMSS as u16, l4 as u16, 16]
    );
    let payload: Vec<u8> = frames.iter().flat_map(|frame| &frame[end..]).copied().collect();
    assert_eq!(packet.len(), end + payload.len());
    assert_eq!(packet[end..], payload);
    let len = if v6 { 4..6 } else { 2..4 };
    let whole = packet.len() - if v6 { l4 } else { l2 };
    assert_eq!(packet[l2..][len.clone()], (whole as u16).to_be_bytes());
    if !v6 {
        assert_eq!(checksum::sum(&packet[l2..l4]), 0xffff, "IPv4's checksum");
    }
    // Virtio 1.2 §5.1.6.2: the checksum field contains the sum of the pseudo-header. The sum of the bytes from
    // csum_start on is then the correct checksum, on which a kernel that forwards the packet relies.
    let (at, frame) = (l4 + 16, &frames[0]);
    let sum = !checksum::sum(&packet[l4..]);
    let mut filled = packet.to_vec();
    filled[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    let addresses = &frame[l2 + if v6 { 8 } else { 12 }..l4];
    let pseudo =
        checksum::pseudo_header_with_addresses(checksum::sum(addresses), 6, packet.len() - l4);
    assert_eq!(checksum::add(pseudo, checksum::sum(&filled[l4..])), 0xffff, "TCP's checksum");
    // All other bytes come from the first segment, and the flags from the last.
    assert_eq!(packet[..l2], frame[..l2]);
    assert_eq!(packet[l4..l4 + 13], frame[l4..l4 + 13]);
    assert_eq!(packet[l4 + 13], frames[frames.len() - 1][l4 + 13]);
    assert_eq!(packet[l4 + 18..end], frame[l4 + 18..end]);
}

struct Fixture {
    port: Port,
    queue: PortQueue,
}

impl Fixture {
    fn open(ports: &dataplane::port::PortFactory, socket: &Path, off: bool) -> Fixture {
        let kind = PortKind::VhostUser { socket: socket.to_owned() };
        let mut config = PortConfig::new("v", kind);
        assert_eq!(config.segmentation, SegmentationMode::Offload, "it is the default");
        if off {
            config.segmentation = SegmentationMode::Software;
        }
        let mut port = ports.open(&config).unwrap();
        let queue = port_common::only_queue(&mut port);
        Fixture { port, queue }
    }

    fn connect(&self, socket: &Path, features: u64) -> Raw {
        let raw = Raw::connect_with(socket, features);
        raw.settle();
        port_common::wait_until("the frontend is connected", || self.port.link().up);
        raw
    }

    fn disconnect(&self, raw: Raw) {
        drop(raw);
        port_common::wait_until("the frontend is disconnected", || !self.port.link().up);
    }
}

// Virtio 1.2 §5.1.3: VIRTIO_NET_F_HOST_TSO4 and _HOST_TSO6 are not offered, because the port receives no large packets.
fn only_negotiated_features_are_offered(test: &Fixture, socket: &Path) {
    let raw = test.connect(socket, LARGE);
    assert_eq!(raw.frontend.get_features().unwrap() & (LARGE | 1 << 11 | 1 << 12), LARGE);
    test.disconnect(raw);
}

fn large_packets_reach_frontend(test: &mut Fixture, socket: &Path) {
    let free = test.port.free_buffers();
    for (v6, tagged) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut raw = test.connect(socket, LARGE);
        raw.offer(255);
        // Two flows, one with a short last segment. Bytes above 64 KiB are sent in a second packet.
        let [first, second] = [segments(v6, tagged, 60, 700), segments(!v6, tagged, 3, EMSS)];
        let before = *test.queue.counters();
        send(&mut test.queue, &[&first[..], &second, &second[2..]].concat());
        let packets = raw.packets();
        assert_eq!(packets.len(), 4);
        assert_large_packet(&packets[0].0, &packets[0].1, &first[..45]);
        assert_large_packet(&packets[1].0, &packets[1].1, &first[45..]);
        assert_large_packet(&packets[2].0, &packets[2].1, &second);
        assert_eq!((packets[3].0[..10].to_vec(), &packets[3].1), (vec![0; 10], &second[2]));
        // The frame counters count segments, not large packets.
        let after = *test.queue.counters();
        let bytes: usize = first.iter().chain(&second).chain(&second[2..]).map(Vec::len).sum();
        assert_eq!(after.tx_frames - before.tx_frames, 64);
        assert_eq!(after.tx_bytes - before.tx_bytes, bytes as u64);
        assert_eq!(after.tx_large - before.tx_large, 3);
        test.disconnect(raw);
    }
    port_common::assert_no_leak(&test.port, free);
}

/// A frontend with fewer features receives the segments unchanged.
fn unnegotiated_gso_sends_segments(test: &mut Fixture, socket: &Path, features: u64, v6: bool) {
    let mut raw = test.connect(socket, features);
    raw.offer(255);
    let before = test.queue.counters().tx_large;
    let frames = segments(v6, false, 50, 999);
    send(&mut test.queue, &frames);
    let got: Vec<_> = raw.packets();
    assert!(got.iter().all(|(header, _)| header[..10] == [0; 10]));
    assert_eq!(got.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>(), frames);
    assert_eq!(test.queue.counters().tx_large, before);
    test.disconnect(raw);
}

/// Frames that a frontend did not accept are sent to the next frontend in the form that the next frontend negotiated:
/// as large packets or as segments. Without a next frontend they are dropped and counted.
fn pending_frames_follow_frontend(test: &mut Fixture, socket: &Path) {
    let frames = segments(false, false, 100, EMSS);
    let free = test.port.free_buffers();
    for (found_down, next) in [(false, 0), (false, LARGE), (true, 0)] {
        let mut raw = test.connect(socket, LARGE);
        // The ring has space for one packet of 64 KiB and a part of the next.
        raw.offer(20);
        send(&mut test.queue, &frames);
        for _ in 0..3 {
            test.queue.flush();
        }
        let packets = raw.packets();
        assert_eq!(packets.len(), 1);
        assert_large_packet(&packets[0].0, &packets[0].1, &frames[..45]);
        assert_eq!(test.queue.pending(), 55);
        let dropped = test.queue.counters().tx_dropped;
        if found_down {
            test.disconnect(raw);
            test.queue.flush();
            assert_eq!((test.queue.pending(), test.queue.counters().tx_dropped), (0, dropped + 55));
            continue;
        }
        drop(raw);
        let mut raw = test.connect(socket, next);
        raw.offer(255);
        port_common::wait_until("the queue accepts frames", || {
            test.queue.flush();
            test.queue.pending() == 0
        });
        assert_eq!(test.queue.counters().tx_dropped, dropped);
        let packets = raw.packets();
        if next == LARGE {
            assert_eq!(packets.len(), 2);
            assert_large_packet(&packets[0].0, &packets[0].1, &frames[45..90]);
            assert_large_packet(&packets[1].0, &packets[1].1, &frames[90..]);
        } else {
            let got: Vec<_> = packets.into_iter().map(|(_, bytes)| bytes).collect();
            assert_eq!(got, frames[45..]);
        }
        test.disconnect(raw);
    }
    port_common::assert_no_leak(&test.port, free);
}

/// A large packet waits while the ring has too little space for it. With enough space it is sent whole.
fn full_ring_delays_large_packet(test: &mut Fixture, socket: &Path) {
    let frames = segments(true, false, 44, EMSS);
    let mut raw = test.connect(socket, LARGE);
    raw.offer(10);
    send(&mut test.queue, &frames);
    for _ in 0..10 {
        test.queue.flush();
    }
    assert_eq!((test.queue.pending(), raw.packets().len()), (44, 0));
    raw.offer_from(10, 20);
    test.queue.flush();
    let packets = raw.packets();
    assert_eq!((test.queue.pending(), packets.len()), (0, 1));
    assert_large_packet(&packets[0].0, &packets[0].1, &frames);
    test.disconnect(raw);
}

/// A ring whose buffers can never hold a large packet receives segments instead.
fn small_buffers_get_segments(test: &mut Fixture, socket: &Path) {
    let frames = segments(false, false, 44, EMSS);
    let mut raw = test.connect(socket, LARGE);
    raw.offer_sized(200, 0, 255);
    send(&mut test.queue, &frames);
    let mut got = Vec::new();
    for flush in 0_u32.. {
        test.queue.flush();
        for (header, bytes) in raw.packets() {
            assert_eq!(header[..10], [0; 10]);
            got.push(bytes);
        }
        if got.len() == 20 {
            break;
        }
        assert!(flush < 20 * 65, "{} frames", got.len());
    }
    assert_eq!(got, frames[..20]);
    test.disconnect(raw);
    test.queue.flush();
}

#[test]
fn large_packets_go_only_to_gso_frontends() {
    let ports = port_common::ports();
    let directory = std::env::temp_dir().join(format!("ddpd-vhost-large-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let socket = directory.join("socket");
    let mut test = Fixture::open(&ports, &socket, false);
    assert_eq!(test.port.info().segmenter, Some(Segmenter::Frontend));
    only_negotiated_features_are_offered(&test, &socket);
    large_packets_reach_frontend(&mut test, &socket);
    unnegotiated_gso_sends_segments(&mut test, &socket, 0, false);
    unnegotiated_gso_sends_segments(&mut test, &socket, LARGE & !MERGED, false);
    unnegotiated_gso_sends_segments(&mut test, &socket, LARGE & !TSO4, false);
    unnegotiated_gso_sends_segments(&mut test, &socket, LARGE & !TSO6, true);
    pending_frames_follow_frontend(&mut test, &socket);
    full_ring_delays_large_packet(&mut test, &socket);
    small_buffers_get_segments(&mut test, &socket);
    drop(test);
    let mut test = Fixture::open(&ports, &socket, true);
    assert_eq!(test.port.info().segmenter, None);
    unnegotiated_gso_sends_segments(&mut test, &socket, LARGE, false);
    drop(test);
    // Without checksum offload, the port merges no segments into large packets.
    for checksum in [ChecksumMode::Software, ChecksumMode::Trusted] {
        let kind = PortKind::VhostUser { socket: socket.clone() };
        let port = ports.open(&PortConfig { checksum, ..PortConfig::new("v", kind) }).unwrap();
        assert_eq!(port.info().segmenter, None);
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
