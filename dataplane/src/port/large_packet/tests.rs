//! Tests that a device which segments a large packet reproduces the merged frames. The device is modelled by
//! [`segment`], which implements segmentation offload independently of [`plan_large_packet`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::*;

const DEVICE: Segmentation = Segmentation { ipv4: true, ipv6: true, segments: 64, virtio: false };
const VIRTIO: Segmentation = Segmentation { virtio: true, ..DEVICE };

/// The fields of a TCP segment as a worker writes it. Tests vary them.
#[derive(Clone, Debug)]
struct Spec {
    v6: bool,
    vlan: Option<u16>,
    port: u16,
    seq: u32,
    ack: u32,
    window: u16,
    flags: u8,
    options: Vec<u8>,
    urgent: u16,
    tos: u8,
    ttl: u8,
    fragment: [u8; 2],
    ipv4_options: bool,
    protocol: u8,
    len: usize,
    /// Number of padding bytes after the IP packet.
    padding: usize,
}

impl Spec {
    fn new(v6: bool, vlan: Option<u16>, len: usize) -> Spec {
        Spec {
            v6,
            vlan,
            port: 4420,
            seq: 0xffff_f000,
            ack: 7,
            window: 500,
            flags: 0x10,
            options: vec![1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4],
            urgent: 0,
            tos: 0,
            ttl: 64,
            fragment: [0x40, 0],
            ipv4_options: false,
            protocol: 6,
            len,
            padding: 0,
        }
    }

    fn next(&self) -> Spec {
        Spec { seq: self.seq.wrapping_add(self.len as u32), ..self.clone() }
    }

    fn addresses(&self) -> (IpAddr, IpAddr) {
        if self.v6 {
            let at = |n| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n);
            return (at(1).into(), at(2).into());
        }
        (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into())
    }

    fn emit(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0]);
            frame.extend(vlan.to_be_bytes());
        }
        let mut tcp = [3260_u16, self.port].map(u16::to_be_bytes).concat();
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(5 + self.options.len() as u8 / 4) << 4, self.flags]);
        tcp.extend([self.window, 0, self.urgent].map(u16::to_be_bytes).concat());
        tcp.extend(&self.options);
        tcp.extend((0..self.len).map(|i| (i * 7 + self.seq as usize) as u8));
        let (from, to) = self.addresses();
        let sum = checksum::segment(from, to, 6, &tcp);
        tcp[TCP_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        let mut ip = Vec::new();
        if self.v6 {
            ip.extend([0x60 | self.tos >> 4, self.tos << 4, 0, 9]);
            ip.extend((tcp.len() as u16).to_be_bytes());
            ip.extend([self.protocol, self.ttl]);
        } else {
            let words = if self.ipv4_options { 6 } else { 5 };
            ip.extend([0x40 | words, self.tos]);
            ip.extend((tcp.len() as u16 + u16::from(words) * 4).to_be_bytes());
            ip.extend([0, 0, self.fragment[0], self.fragment[1]]);
            ip.extend([self.ttl, self.protocol, 0, 0]);
        }
        for address in [from, to] {
            match address {
                IpAddr::V4(address) => ip.extend(address.octets()),
                IpAddr::V6(address) => ip.extend(address.octets()),
            }
        }
        if !self.v6 {
            if self.ipv4_options {
                ip.extend([1; 4]);
            }
            let sum = !checksum::sum(&ip);
            ip[V4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(ip);
        frame.extend(tcp);
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// Returns true if the segment may be part of a large packet.
    fn is_mergeable(&self) -> bool {
        self.flags & !0x59 == 0
            && self.flags & 0x10 != 0
            && self.protocol == 6
            && self.padding == 0
            && (self.v6 || self.fragment == [0x40, 0] && !self.ipv4_options)
    }

    /// Returns the number of segments at the front of `all` that can be merged. `self` is the first of them. Implements
    /// the rules of `large_packet.rs` independently.
    fn mergeable_run(&self, all: &[Spec], max_segments: usize) -> usize {
        if !self.is_mergeable() || self.flags & 0x09 != 0 || self.len < MIN_SEGMENT {
            return 1;
        }
        let headers = self.emit().len() - self.len;
        let mut want = self.next();
        let mut total = headers + self.len;
        let mut count = 1;
        for spec in &all[1..] {
            total += spec.len;
            let same = Spec { len: self.len, flags: spec.flags & !0x09, ..spec.clone() };
            let same = format!("{same:?}") == format!("{want:?}");
            if !same
                || spec.len == 0
                || spec.len > self.len
                || total > MAX_BYTES
                || count == max_segments
            {
                break;
            }
            count += 1;
            want = want.next();
            if spec.len < self.len || spec.flags & 0x09 != 0 {
                break;
            }
        }
        count
    }
}

/// Returns the frames that a device sends for a large packet. `virtio` is true to segment as a virtio device does.
fn segment(packet: &LargePacket, payload: &[u8], virtio: bool) -> Vec<Vec<u8>> {
    let (l2, l4) = (usize::from(packet.l2_len), usize::from(packet.l2_len + packet.l3_len));
    let size = usize::from(packet.segment_len);
    let count = payload.len().div_ceil(size);
    let whole = (packet.headers.len() - l4 + payload.len()) as u16;
    let ip = &packet.headers[l2..l4];
    if packet.ipv6 {
        assert_eq!(ip[4..6], whole.to_be_bytes());
    } else {
        assert_eq!(ip[2..4], (whole + 20).to_be_bytes());
        assert_eq!(checksum::sum(ip) == 0xffff, virtio, "IPv4's checksum");
        assert!(virtio || ip[10..12] == [0, 0]);
    }
    let at = l4 + 16;
    let pseudo = u16::from_be_bytes([packet.headers[at], packet.headers[at + 1]]);
    // In ones' complement arithmetic, adding the inverted length subtracts the length from the sum.
    let without = if virtio { checksum::add(pseudo, !whole) } else { pseudo };
    let cuts = payload.chunks(size).enumerate().map(|(i, payload)| {
        let mut frame = [&packet.headers, payload].concat();
        let len = (frame.len() - l4) as u16;
        if packet.ipv6 {
            frame[l2 + 4..l2 + 6].copy_from_slice(&len.to_be_bytes());
        } else {
            frame[l2 + 2..l2 + 4].copy_from_slice(&(len + 20).to_be_bytes());
            frame[l2 + 4..l2 + 6].copy_from_slice(&(i as u16).to_be_bytes());
            frame[l2 + 10..l2 + 12].fill(0);
            let sum = !checksum::sum(&frame[l2..l4]);
            frame[l2 + 10..l2 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let seq: [u8; 4] = frame[l4 + 4..l4 + 8].try_into().unwrap();
        let seq = u32::from_be_bytes(seq).wrapping_add((i * size) as u32);
        frame[l4 + 4..l4 + 8].copy_from_slice(&seq.to_be_bytes());
        if i + 1 < count {
            frame[l4 + 13] &= !0x09;
        }
        frame[at..at + 2].copy_from_slice(&checksum::add(without, len).to_be_bytes());
        let sum = !checksum::sum(&frame[l4..]);
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        frame
    });
    cuts.collect()
}

/// Returns the frame with IPv4's identification and checksum set to zero. Asserts that the checksum was correct.
fn without_id_and_checksum(frame: &[u8], spec: &Spec) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if !spec.v6 {
        let l2 = if spec.vlan.is_some() { 18 } else { 14 };
        let words = usize::from(frame[l2] & 0xf);
        assert_eq!(checksum::sum(&frame[l2..l2 + words * 4]), 0xffff);
        frame[l2 + 4..l2 + 6].fill(0);
        frame[l2 + 10..l2 + 12].fill(0);
    }
    frame
}

/// Merges the segments, cuts the large packets, and compares the result with the segments. Returns the number of
/// segments in each packet.
fn merge_and_segment(specs: &[Spec], cuts: Segmentation) -> Vec<usize> {
    let frames: Vec<Vec<u8>> = specs.iter().map(Spec::emit).collect();
    let (mut at, mut runs) = (0, Vec::new());
    while at < frames.len() {
        let packet = plan_large_packet(&frames[at..], |frame| Some(frame), cuts);
        let count = packet.as_ref().map_or(1, |packet| usize::from(packet.frames));
        assert_eq!(
            count,
            specs[at].mergeable_run(&specs[at..], cuts.segments.into()),
            "{:#?}",
            &specs[at..specs.len().min(at + count + 1)]
        );
        if let Some(packet) = packet {
            let end = packet.headers.len();
            let payload: Vec<u8> =
                frames[at..at + count].iter().flat_map(|frame| &frame[end..]).copied().collect();
            let again = segment(&packet, &payload, cuts.virtio);
            assert_eq!(again.len(), count);
            for i in 0..count {
                let spec = &specs[at + i];
                assert_eq!(
                    without_id_and_checksum(&again[i], spec),
                    without_id_and_checksum(&frames[at + i], spec),
                    "{i}: {spec:?}"
                );
            }
        }
        runs.push(count);
        at += count;
    }
    runs
}

/// The state of a pseudo-random number generator (SplitMix64). Each test case has its own fixed seed.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// Number of variants of [`change`]. Each variant changes one property of a segment, which then differs from the
/// previous segment.
const CHANGES: u64 = 24;

fn change(spec: &mut Spec, variant: u64) {
    match variant {
        0 => spec.seq = spec.seq.wrapping_add(1),
        1 => spec.seq = spec.seq.wrapping_sub(spec.len as u32),
        2 => spec.ack = spec.ack.wrapping_add(1000),
        3 => spec.window ^= 1,
        4 => spec.options[11] ^= 1,
        5 => spec.options.truncate(spec.options.len().saturating_sub(4)),
        6 => spec.flags |= 0x08,
        7 => spec.flags |= 0x01,
        8 => spec.flags |= 0x80,
        9 => spec.flags ^= 0x40,
        10 => spec.flags |= 0x20,
        11 => spec.flags |= 0x04,
        12 => spec.flags |= 0x02,
        13 => spec.flags &= !0x10,
        14 => spec.tos ^= 2,
        15 => spec.tos ^= 3,
        16 => spec.ttl ^= 1,
        17 => spec.port ^= 1,
        18 => spec.len -= 1,
        19 => spec.len += 8,
        20 => spec.len = 0,
        // IPv6's header has no fragment field.
        21 if spec.v6 => (),
        21 => spec.fragment = [0x20, 0],
        22 => spec.protocol = 50,
        _ => spec.vlan = if spec.vlan.is_some() { None } else { Some(9) },
    }
}

#[test]
fn merged_packet_segments_into_originals() {
    let (mut merged, mut alone, mut ended) = (0, 0, 0);
    for seed in 0..2000 {
        let mut numbers = SplitMix64(seed);
        let len = [256, 1428, 1448, 1460, 8948][numbers.next_below(5) as usize];
        let mut spec = Spec::new(seed % 2 == 1, (seed % 4 > 1).then_some(77), len);
        if numbers.next_below(3) == 0 {
            spec.options.clear();
        }
        let mut specs = Vec::new();
        for _ in 0..1 + numbers.next_below(100) {
            let mut this = spec.clone();
            if numbers.next_below(12) == 0 {
                let variant = numbers.next_below(CHANGES);
                if !(spec.options.is_empty() && (4..6).contains(&variant)) {
                    change(&mut this, variant);
                }
                // Some changes also apply to the following segments, others to this segment only.
                if numbers.next_below(2) == 0 && (2..5).contains(&variant) {
                    spec = this.clone();
                }
            }
            spec.seq = this.seq.wrapping_add(this.len as u32);
            specs.push(this);
        }
        let runs =
            merge_and_segment(&specs, if numbers.next_below(2) == 0 { DEVICE } else { VIRTIO });
        merged += runs.iter().filter(|run| **run > 1).sum::<usize>();
        alone += runs.iter().filter(|run| **run == 1).count();
        ended += runs.iter().filter(|run| **run > 20).count();
    }
    // The test is meaningful only if merged segments, unmerged segments and long runs all occur often.
    assert!(merged > 50_000 && alone > 5000 && ended > 500, "{merged} {alone} {ended}");
}

#[test]
fn each_header_change_ends_large_packet() {
    for v6 in [false, true] {
        for variant in 0..CHANGES {
            let first = Spec::new(v6, None, 1448);
            let mut specs = vec![first.clone(), first.next(), first.next().next()];
            change(&mut specs[1], variant);
            let runs = merge_and_segment(&specs, VIRTIO);
            // A segment with PSH, FIN or a shorter payload is the last of its packet. IPv6 has no fragment field.
            let expected = match variant {
                6 | 7 | 18 => vec![2, 1],
                21 if v6 => vec![3],
                _ => vec![1, 1, 1],
            };
            assert_eq!(runs, expected, "change {variant}");
        }
    }
}

#[test]
fn large_packets_stay_within_bounds() {
    let sequence = |first: Spec, count: usize| {
        std::iter::successors(Some(first), |spec| Some(spec.next())).take(count).collect::<Vec<_>>()
    };
    let usual = Spec::new(false, None, 1448);
    // A large packet has at most 45 of these segments: 46 would exceed 65,535 bytes with their headers.
    assert_eq!(merge_and_segment(&sequence(usual.clone(), 100), DEVICE), [45, 45, 10]);
    let jumbo = Spec::new(true, Some(5), 8948);
    assert_eq!(merge_and_segment(&sequence(jumbo, 16), VIRTIO), [7, 7, 2]);
    // The device cuts at most 8 segments.
    let few = Segmentation { segments: 8, ..DEVICE };
    assert_eq!(merge_and_segment(&sequence(usual.clone(), 20), few), [8, 8, 4]);
    // Segments below the minimum payload are not merged.
    let small = Spec { len: MIN_SEGMENT - 1, ..usual.clone() };
    assert_eq!(merge_and_segment(&sequence(small, 3), DEVICE), [1, 1, 1]);
    // Frames with padding or IP options, which workers do not send, are not merged.
    for change in [|s: &mut Spec| s.padding = 2, |s: &mut Spec| s.ipv4_options = true] {
        let mut specs = sequence(usual.clone(), 3);
        specs.iter_mut().for_each(change);
        assert_eq!(merge_and_segment(&specs, DEVICE), [1, 1, 1]);
    }
}

#[test]
fn unsupported_ip_version_is_not_merged() {
    for v6 in [false, true] {
        let first = Spec::new(v6, None, 1448);
        let frames = [first.emit(), first.next().emit()];
        let merges = |cuts| plan_large_packet(&frames, |frame| Some(frame), cuts).is_some();
        assert!(merges(DEVICE));
        assert_eq!(merges(Segmentation { ipv4: false, ..DEVICE }), v6);
        assert_eq!(merges(Segmentation { ipv6: false, ..DEVICE }), !v6);
        assert!(!merges(Segmentation::NONE));
        // A frame for which `bytes` returns `None` is not merged.
        let others = |which: usize| {
            let all: Vec<_> = (0..2).map(|i| (i, frames[i].clone())).collect();
            let ours = |f: &(usize, Vec<u8>)| f.0 != which;
            plan_large_packet(&all, |f| ours(f).then_some(&*f.1), DEVICE).is_some()
        };
        assert_eq!([0, 1, 2].map(others), [false, false, true]);
    }
}

#[test]
fn truncated_frames_are_not_merged() {
    for (v6, vlan) in [(false, None), (true, None), (false, Some(1)), (true, Some(1))] {
        let frame = Spec::new(v6, vlan, 300).emit();
        assert!(Layout::parse(&frame).is_some());
        for len in 0..frame.len() {
            assert!(Layout::parse(&frame[..len]).is_none(), "{len}");
        }
        // IPv4 options shift the TCP header. A frame with options is refused even if the bytes at the usual offsets
        // look like a TCP header. IPv6 frames have no such options.
        let options = Spec { ipv4_options: true, ack: 0x5010_0000, ..Spec::new(v6, vlan, 300) };
        assert_eq!(Layout::parse(&options.emit()).is_some(), v6);
        // A data offset of 0 or 16 bytes is below the minimum; a data offset with a flag in its low bits is refused,
        // too.
        let at = frame.len() - 300 - 32 + DATA_OFFSET;
        for offset in [0, 0x40, 0x50 | 1] {
            let mut frame = frame.clone();
            frame[at] = offset;
            assert!(Layout::parse(&frame).is_none(), "{offset:x}");
        }
    }
}
