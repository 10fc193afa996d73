//! Tests of the profiles: valid frames with valid checksums, except for the intended defect of each profile.

use etherparse::{
    ArpOperation, Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice, icmpv4, icmpv6,
};
use wire::{crc32c, mpa};

use super::*;

const COUNT: usize = 400;

fn plan(v6: bool) -> Plan {
    let (sources, destination, remote) = if v6 {
        ("2001:2:1::/64", "[2001:2::1]:7174", "[2001:2::9]:40000")
    } else {
        ("198.19.0.0/16", "198.18.0.1:7174", "198.18.0.9:40000")
    };
    let destination = destination.parse().unwrap();
    Plan {
        source_mac: [2, 0, 0, 0, 0, 5],
        destination_mac: [2, 0, 0, 0, 0, 1],
        sources: sources.parse().unwrap(),
        one_source: false,
        destination,
        stream: Some(Stream {
            local: destination,
            remote: remote.parse().unwrap(),
            next_seq: 0xffff_f000,
            ack: 77,
            timestamps: Some((5, 6)),
            marker: Some(300),
        }),
        capture: crate::capture::parse(&include_bytes!("../../captures/siw-write.pcap")[..])
            .unwrap(),
    }
}

fn generate(profile: Profile, v6: bool) -> Vec<Vec<u8>> {
    frames(profile, &plan(v6), COUNT, 7).unwrap()
}

/// Returns each profile with each IP version that it supports.
fn profiles_and_versions() -> impl Iterator<Item = (Profile, bool)> {
    Profile::value_variants()
        .iter()
        .flat_map(|profile| [(*profile, false), (*profile, true)])
        .filter(|(profile, v6)| profile.supports_ip(*v6))
}

/// Returns the Internet checksum over `pieces`; 0 if they contain their correct checksum. All pieces but the last have
/// an even length.
fn internet_checksum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for pair in pieces.concat().chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

struct Parsed<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &'a [u8],
    fragment: bool,
    hops: u8,
    addresses: Vec<u8>,
}

/// Parses the IP packet of a frame independently of `etherparse`. Checks the length and the IPv4 header checksum.
fn parse(frame: &[u8]) -> Parsed<'_> {
    let ip = &frame[14..];
    if frame[12..14] == [0x08, 0x00] {
        assert_eq!(ip[0], 0x45);
        assert_eq!(internet_checksum(&[&ip[..20]]), 0, "the header's checksum");
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        assert!(total == ip.len() || frame.len() == MIN_FRAME && total < ip.len());
        let source: [u8; 4] = ip[12..16].try_into().unwrap();
        let destination: [u8; 4] = ip[16..20].try_into().unwrap();
        return Parsed {
            source: source.into(),
            destination: destination.into(),
            protocol: ip[9],
            payload: &ip[20..total],
            fragment: u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0,
            hops: ip[8],
            addresses: ip[12..20].to_vec(),
        };
    }
    assert_eq!(frame[12..14], [0x86, 0xdd]);
    assert_eq!(ip[0] >> 4, 6);
    let total = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    assert!(total == ip.len() || frame.len() == MIN_FRAME && total < ip.len());
    let source: [u8; 16] = ip[8..24].try_into().unwrap();
    let destination: [u8; 16] = ip[24..40].try_into().unwrap();
    let fragment = ip[6] == 44;
    let (protocol, from) = if fragment { (ip[40], 48) } else { (ip[6], 40) };
    Parsed {
        source: source.into(),
        destination: destination.into(),
        protocol,
        payload: &ip[from..total],
        fragment,
        hops: ip[7],
        addresses: ip[8..40].to_vec(),
    }
}

/// Returns true if the checksum of SCTP, ICMP, TCP or UDP is correct.
fn has_valid_checksum(packet: &Parsed<'_>) -> bool {
    let pseudo = [
        &packet.addresses[..],
        &(packet.payload.len() as u32).to_be_bytes(),
        &[0, 0, 0, packet.protocol],
    ]
    .concat();
    match packet.protocol {
        // SCTP: CRC32c with the field set to zero (RFC 9260 §6.8).
        132 => {
            let mut zeroed = packet.payload.to_vec();
            zeroed[8..12].fill(0);
            crc32c::field(&zeroed) == packet.payload[8..12]
        }
        1 => internet_checksum(&[packet.payload]) == 0,
        _ => internet_checksum(&[&pseudo, packet.payload]) == 0,
    }
}

fn tcp_payload(frame: &[u8]) -> (etherparse::TcpHeader, Vec<u8>) {
    match SlicedPacket::from_ethernet(frame).unwrap().transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.to_header(), tcp.payload().to_vec()),
        other => panic!("{other:?}"),
    }
}

fn has_valid_crc(fpdu: &[u8]) -> bool {
    let (bytes, crc) = fpdu.split_at(fpdu.len() - mpa::CRC_LEN);
    crc32c::field(bytes) == crc
}

#[test]
fn frame_counts_sizes_and_seeds_are_honoured() {
    for (profile, v6) in profiles_and_versions() {
        let plan = plan(v6);
        let first = frames(profile, &plan, COUNT, 7).unwrap();
        assert_eq!(first.len(), COUNT, "{profile:?}");
        assert!(
            first.iter().all(|frame| (MIN_FRAME..=MAX_FRAME).contains(&frame.len())),
            "{profile:?}"
        );
        assert_eq!(frames(profile, &plan, COUNT, 7).unwrap(), first, "{profile:?}: the same seed");
        assert_ne!(frames(profile, &plan, COUNT, 8).unwrap(), first, "{profile:?}: another seed");
        assert!(frames(profile, &plan, 0, 7).unwrap().is_empty());
    }
}

#[test]
fn frames_have_valid_checksums_except_bad_checksum_profile() {
    for (profile, v6) in profiles_and_versions() {
        for frame in generate(profile, v6) {
            let sliced = SlicedPacket::from_ethernet(&frame)
                .unwrap_or_else(|error| panic!("{profile:?}: {error}"));
            if profile == Profile::ArpFlood {
                assert!(matches!(sliced.net, Some(NetSlice::Arp(_))));
                continue;
            }
            let packet = parse(&frame);
            // A fragment's checksum covers the whole datagram, most of which never arrives.
            if packet.fragment {
                continue;
            }
            assert_eq!(
                has_valid_checksum(&packet),
                profile != Profile::InWindowChecksum,
                "{profile:?} v6 {v6}"
            );
        }
    }
}

#[test]
fn wrong_ip_version_is_refused() {
    for (profile, v6) in [(Profile::ArpFlood, true), (Profile::NdFlood, false)] {
        let error = frames(profile, &plan(v6), 1, 1).unwrap_err();
        assert!(error.to_string().contains("has no frames"), "{error}");
    }
    let mixed = Plan { sources: plan(true).sources, ..plan(false) };
    assert!(frames(Profile::SynFlood, &mixed, 1, 1).is_err());
}

#[test]
fn stream_that_does_not_match_plan_is_refused() {
    let none = Plan { stream: None, ..plan(false) };
    let other = Plan { destination: "198.18.0.2:1".parse().unwrap(), ..plan(false) };
    for profile in
        Profile::value_variants().iter().copied().filter(|profile| profile.needs_stream())
    {
        assert!(frames(profile, &none, 1, 1).unwrap_err().to_string().contains("needs a stream"));
        assert!(frames(profile, &other, 1, 1).unwrap_err().to_string().contains("local end"));
    }
    let mut unknown = plan(false);
    unknown.stream.as_mut().unwrap().marker = None;
    assert!(
        frames(Profile::InWindowMarker, &unknown, 1, 1).unwrap_err().to_string().contains("marker")
    );
}

#[test]
fn sources_are_random_in_prefix_or_fixed() {
    for (profile, v6) in profiles_and_versions() {
        if profile.needs_stream() || matches!(profile, Profile::ArpFlood) {
            continue;
        }
        let random = plan(v6);
        let one = Plan { one_source: true, ..plan(v6) };
        let seen: Vec<_> = frames(profile, &random, COUNT, 7)
            .unwrap()
            .iter()
            .map(|frame| parse(frame).source)
            .collect();
        assert!(seen.iter().all(|source| random.sources.contains(source)), "{profile:?}");
        let different = seen.iter().collect::<std::collections::HashSet<_>>().len();
        // The capture has two flows of more than a dozen segments each, so a replay has few sources.
        assert!(
            different > if profile == Profile::PcapReplay { 10 } else { 300 },
            "{profile:?}: {different} sources"
        );
        let seen = frames(profile, &one, COUNT, 7).unwrap();
        assert!(seen.iter().all(|frame| parse(frame).source == one.sources.addr()), "{profile:?}");
        assert!(seen.iter().all(|frame| frame[6..12] == one.source_mac), "{profile:?}");
    }
}

#[test]
fn sources_cover_every_host_of_small_prefix() {
    for (sources, expected) in [
        ("192.0.2.5/32", vec!["192.0.2.5"]),
        ("192.0.2.4/31", vec!["192.0.2.4", "192.0.2.5"]),
        ("192.0.2.4/30", vec!["192.0.2.5", "192.0.2.6"]),
    ] {
        let plan = Plan { sources: sources.parse().unwrap(), ..plan(false) };
        let seen: std::collections::BTreeSet<_> = frames(Profile::AckFlood, &plan, 50, 1)
            .unwrap()
            .iter()
            .map(|frame| parse(frame).source.to_string())
            .collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
    }
    let all = Plan { sources: "::/0".parse().unwrap(), ..plan(true) };
    assert_eq!(frames(Profile::AckFlood, &all, 5, 1).unwrap().len(), 5);
}

#[test]
fn line_frames_have_their_sizes_and_avoid_the_listener() {
    for (profile, v6, sizes) in [
        (Profile::Line64, false, vec![60]),
        (Profile::Line64, true, vec![62, 74]),
        (Profile::Line1518, false, vec![1514]),
        (Profile::Line1518, true, vec![1514]),
        (Profile::LineImix, false, vec![60, 590, 1514]),
        (Profile::LineImix, true, vec![62, 74, 590, 1514]),
    ] {
        let (mut udp, mut tcp, mut seen) = (0, 0, std::collections::BTreeSet::new());
        for frame in generate(profile, v6) {
            seen.insert(frame.len());
            let port = match SlicedPacket::from_ethernet(&frame).unwrap().transport {
                Some(TransportSlice::Udp(datagram)) => {
                    udp += 1;
                    datagram.destination_port()
                }
                Some(TransportSlice::Tcp(segment)) => {
                    tcp += 1;
                    segment.destination_port()
                }
                other => panic!("{other:?}"),
            };
            assert_ne!(port, 7174);
        }
        assert_eq!((udp, tcp), (COUNT / 2, COUNT / 2), "{profile:?}");
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), sizes, "{profile:?} v6 {v6}");
    }
    let sizes: Vec<_> =
        frames(Profile::LineImix, &plan(false), 1200, 7).unwrap().iter().map(Vec::len).collect();
    let of = |size| sizes.iter().filter(|len| **len == size).count();
    assert_eq!((of(60), of(590), of(1514)), (700, 400, 100));
}

#[test]
fn segments_without_data_have_their_flags() {
    for v6 in [false, true] {
        for (profile, expected) in [
            (Profile::SynFlood, ["syn"].as_slice()),
            (Profile::AckFlood, &["ack"]),
            (Profile::FinFlood, &["fin+ack"]),
            (Profile::RstFlood, &["rst", "rst+ack"]),
        ] {
            let mut seen = std::collections::BTreeSet::new();
            for frame in generate(profile, v6) {
                let (header, payload) = tcp_payload(&frame);
                assert!(payload.is_empty());
                assert_eq!(header.destination_port, 7174);
                let flags = [
                    ("syn", header.syn),
                    ("fin", header.fin),
                    ("rst", header.rst),
                    ("ack", header.ack),
                ];
                seen.insert(
                    flags
                        .iter()
                        .filter(|flag| flag.1)
                        .map(|flag| flag.0)
                        .collect::<Vec<_>>()
                        .join("+"),
                );
            }
            assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected, "{profile:?}");
        }
    }
}

#[test]
fn fpdus_of_unknown_flow_are_complete_and_valid() {
    for v6 in [false, true] {
        for frame in generate(Profile::UnknownFlow, v6) {
            let (header, payload) = tcp_payload(&frame);
            assert!(header.ack && header.psh && header.destination_port == 7174);
            let ulpdu = usize::from(u16::from_be_bytes([payload[0], payload[1]]));
            assert_eq!(mpa::fpdu_len(ulpdu), payload.len());
            assert!(has_valid_crc(&payload));
            assert!(wire::ddp::HeaderRepr::parse(&payload[2..]).is_ok());
        }
    }
}

#[test]
fn forged_segments_match_stream_and_have_one_defect() {
    for v6 in [false, true] {
        let stream = plan(v6).stream.unwrap();
        for profile in [
            Profile::InWindow,
            Profile::InWindowChecksum,
            Profile::InWindowCrc,
            Profile::InWindowMarker,
        ] {
            let mut far = 0;
            for frame in generate(profile, v6) {
                let packet = parse(&frame);
                let (header, payload) = tcp_payload(&frame);
                assert_eq!(
                    (packet.source, header.source_port),
                    (stream.remote.ip(), stream.remote.port())
                );
                assert_eq!(
                    (packet.destination, header.destination_port),
                    (stream.local.ip(), stream.local.port())
                );
                assert_eq!(header.acknowledgment_number, stream.ack);
                assert_eq!(has_valid_checksum(&packet), profile != Profile::InWindowChecksum);
                assert_eq!(has_valid_crc(&payload), profile != Profile::InWindowCrc, "{profile:?}");
                far += usize::from(header.sequence_number.wrapping_sub(stream.next_seq) > 65535);
            }
            assert_eq!(
                far > COUNT / 2,
                profile == Profile::InWindow,
                "{profile:?}: {far} far from the window"
            );
            assert!(far == 0 || profile == Profile::InWindow);
        }
    }
}

/// The segments of a run are consecutive from `next_seq` on, and their markers are at the stream's marker positions.
#[test]
fn forged_segments_are_consecutive_with_stream_markers() {
    let stream = plan(false).stream.unwrap();
    let mut expected = 0usize;
    for frame in &generate(Profile::InWindowChecksum, false)[..16] {
        let (header, payload) = tcp_payload(frame);
        let offset = header.sequence_number.wrapping_sub(stream.next_seq) as usize;
        assert_eq!(offset, expected);
        let mut plain = Vec::new();
        let mut length_at = None;
        let mut at = 0;
        while at < payload.len() {
            if (offset + at) % 512 == 300 {
                let pointer = usize::from(u16::from_be_bytes([payload[at + 2], payload[at + 3]]));
                assert_eq!(pointer, length_at.map_or(0, |start| at - start));
                at += 4;
                continue;
            }
            length_at.get_or_insert(at);
            plain.push(payload[at]);
            at += 1;
        }
        assert_eq!(
            plain.len(),
            mpa::fpdu_len(usize::from(u16::from_be_bytes([plain[0], plain[1]])))
        );
        expected += payload.len();
    }
    assert_eq!(
        tcp_payload(&generate(Profile::InWindowChecksum, false)[16]).0.sequence_number,
        stream.next_seq
    );
}

#[test]
fn bad_markers_have_wrong_fpdu_pointer() {
    for at in [0, 4, 300, 508] {
        let mut plan = plan(false);
        plan.stream.as_mut().unwrap().marker = Some(at);
        for frame in frames(Profile::InWindowMarker, &plan, COUNT, 7).unwrap() {
            let (header, payload) = tcp_payload(&frame);
            assert_eq!(header.sequence_number, plan.stream.unwrap().next_seq);
            let at = usize::from(at);
            let pointer = u16::from_be_bytes([payload[at + 2], payload[at + 3]]);
            assert_ne!(usize::from(pointer), at, "the FPDU begins at 0");
            assert_eq!(pointer % 4, 0);
            // The next marker is correct.
            let next = at + 512;
            let start = if at == 0 { 4 } else { 0 };
            assert_eq!(
                u16::from_be_bytes([payload[next + 2], payload[next + 3]]) as usize,
                next - start
            );
        }
    }
}

#[test]
fn icmp_flood_is_one_third_echo_two_thirds_errors() {
    for v6 in [false, true] {
        let (mut echo, mut unreachable, mut too_big) = (0, 0, 0);
        for frame in generate(Profile::IcmpFlood, v6) {
            let source = parse(&frame).source;
            let quoted = |bytes: &[u8]| {
                let (from, to): (IpAddr, IpAddr) = if v6 {
                    (
                        <[u8; 16]>::try_from(&bytes[8..24]).unwrap().into(),
                        <[u8; 16]>::try_from(&bytes[24..40]).unwrap().into(),
                    )
                } else {
                    (
                        <[u8; 4]>::try_from(&bytes[12..16]).unwrap().into(),
                        <[u8; 4]>::try_from(&bytes[16..20]).unwrap().into(),
                    )
                };
                assert_eq!((from, to), (plan(v6).destination.ip(), source));
                let tcp = if v6 { &bytes[40..] } else { &bytes[20..] };
                assert_eq!(tcp[..2], 7174u16.to_be_bytes());
            };
            match SlicedPacket::from_ethernet(&frame).unwrap().transport {
                Some(TransportSlice::Icmpv4(icmp)) => match icmp.icmp_type() {
                    Icmpv4Type::EchoRequest(_) => echo += 1,
                    Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port) => {
                        unreachable += 1;
                        quoted(icmp.payload());
                    }
                    Icmpv4Type::DestinationUnreachable(_) => {
                        too_big += 1;
                        quoted(icmp.payload());
                    }
                    other => panic!("{other:?}"),
                },
                Some(TransportSlice::Icmpv6(icmp)) => match icmp.icmp_type() {
                    Icmpv6Type::EchoRequest(_) => echo += 1,
                    Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port) => {
                        unreachable += 1;
                        quoted(icmp.payload());
                    }
                    Icmpv6Type::PacketTooBig { .. } => {
                        too_big += 1;
                        quoted(icmp.payload());
                    }
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((echo, unreachable, too_big), (134, 133, 133));
    }
}

#[test]
fn arp_flood_is_half_requests_half_replies() {
    let plan = plan(false);
    let (mut requests, mut replies) = (0, 0);
    for frame in generate(Profile::ArpFlood, false) {
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Arp(arp)) = sliced.net else { panic!("{sliced:?}") };
        assert_eq!(arp.sender_hw_addr(), &frame[6..12]);
        let sender = IpAddr::from(<[u8; 4]>::try_from(arp.sender_protocol_addr()).unwrap());
        assert!(plan.sources.contains(&sender));
        assert_eq!(arp.target_protocol_addr(), [198, 18, 0, 1]);
        if arp.operation() == ArpOperation::REQUEST {
            requests += 1;
            assert_eq!(frame[..6], [0xff; 6]);
        } else {
            replies += 1;
            assert_eq!(frame[..6], plan.destination_mac);
        }
    }
    assert_eq!((requests, replies), (COUNT / 2, COUNT / 2));
}

#[test]
fn neighbour_discovery_is_valid() {
    let (mut solicitations, mut advertisements) = (0, 0);
    for frame in generate(Profile::NdFlood, true) {
        let packet = parse(&frame);
        assert_eq!(packet.hops, 255);
        assert_eq!(packet.payload[26..32], frame[6..12], "the link-layer address is the sender's");
        let target = <[u8; 16]>::try_from(&packet.payload[8..24]).unwrap();
        match packet.payload[0] {
            135 => {
                solicitations += 1;
                assert_eq!(packet.destination.to_string(), "ff02::1:ff00:1");
                assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0, 0, 1]);
                assert_eq!(IpAddr::from(target), plan(true).destination.ip());
            }
            136 => {
                advertisements += 1;
                assert_eq!(IpAddr::from(target), packet.source);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((solicitations, advertisements), (COUNT / 2, COUNT / 2));
}

#[test]
fn fragment_flood_has_first_and_middle_fragments() {
    for v6 in [false, true] {
        let mut ids = std::collections::HashSet::new();
        let (mut first, mut middle) = (0, 0);
        for frame in generate(Profile::FragmentFlood, v6) {
            let packet = parse(&frame);
            assert!(packet.fragment);
            assert!(
                packet.payload.len().is_multiple_of(8),
                "all but the last are multiples of 8 bytes"
            );
            let ip = &frame[14..];
            let (offset, more, id) = if v6 {
                let field = u16::from_be_bytes([ip[42], ip[43]]);
                (field >> 3, field & 1 == 1, u32::from_be_bytes([ip[44], ip[45], ip[46], ip[47]]))
            } else {
                let field = u16::from_be_bytes([ip[6], ip[7]]);
                (field & 0x1fff, field & 0x2000 != 0, u32::from(u16::from_be_bytes([ip[4], ip[5]])))
            };
            assert!(more);
            assert!(
                usize::from(offset) * 8 + packet.payload.len() <= 65515,
                "the datagram has a legal length"
            );
            ids.insert((packet.source, id));
            if offset == 0 { first += 1 } else { middle += 1 }
        }
        assert_eq!((first, middle), (COUNT / 2, COUNT / 2));
        assert_eq!(ids.len(), COUNT, "no two of one datagram");
    }
}

#[test]
fn init_flood_chunks_are_valid() {
    for v6 in [false, true] {
        for frame in generate(Profile::InitFlood, v6) {
            let packet = parse(&frame);
            assert_eq!(packet.protocol, 132);
            assert_eq!(packet.payload[2..4], 7174u16.to_be_bytes());
            assert_eq!(packet.payload[4..8], [0; 4], "the tag is zero");
            assert_eq!(packet.payload[12], 1, "INIT");
            assert_ne!(packet.payload[16..20], [0; 4], "the initiate tag is not zero");
        }
    }
}

#[test]
fn replay_starts_new_flows_and_keeps_payload() {
    for v6 in [false, true] {
        let capture = plan(v6).capture;
        let clients = ["10.77.0.2"];
        let sent: Vec<_> = capture
            .iter()
            .filter(|frame| frame[12..14] == [8, 0] && frame[23] == 6)
            .filter(|frame| clients.contains(&parse(frame).source.to_string().as_str()))
            .collect();
        assert!(sent.len() > 20, "{}", sent.len());
        let replayed = frames(Profile::PcapReplay, &plan(v6), 2 * sent.len() + 3, 7).unwrap();
        for (index, frame) in replayed.iter().enumerate() {
            let (old, old_bytes) = tcp_payload(sent[index % sent.len()]);
            let (new, new_bytes) = tcp_payload(frame);
            assert_eq!(new_bytes, old_bytes);
            assert_eq!(
                (new.sequence_number, new.syn, new.options),
                (old.sequence_number, old.syn, old.options)
            );
            assert_eq!(new.destination_port, 7174);
            assert_eq!(parse(frame).destination, plan(v6).destination.ip());
        }
        let first = parse(&replayed[0]).source;
        assert_ne!(
            parse(&replayed[sent.len()]).source,
            first,
            "the next repetition is another flow"
        );
    }
    let nothing = Plan { capture: Vec::new(), ..plan(false) };
    assert!(
        frames(Profile::PcapReplay, &nothing, 1, 1)
            .unwrap_err()
            .to_string()
            .contains("no TCP stream")
    );
}

#[test]
fn captures_round_trip() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("frames.pcap");
    for (profile, v6) in profiles_and_versions() {
        let frames = generate(profile, v6);
        crate::capture::write(&path, &frames).unwrap();
        assert_eq!(crate::capture::read(&path).unwrap(), frames);
    }
    std::fs::write(&path, b"no capture").unwrap();
    assert!(crate::capture::read(&path).is_err());
}

#[test]
fn every_profile_has_a_file_of_pktgen_commands() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/load.d");
    let mut expected: Vec<_> =
        Profile::value_variants().iter().map(|profile| format!("{}.pkt", profile.name())).collect();
    for (name, profile) in expected.iter().zip(Profile::value_variants()) {
        let text = std::fs::read_to_string(directory.join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let replayed = text.contains(&format!("-s 0:{}.pcap", profile.name()));
        let (comments, commands): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.starts_with("# "));
        assert!(comments.len() > 1, "{name} describes its frames and their outcome");
        assert_ne!(replayed, commands.iter().any(|line| line.starts_with("sequence ")), "{name}");
        let start =
            commands.iter().position(|line| *line == "start 0").unwrap_or_else(|| panic!("{name}"));
        assert!(
            commands[..start]
                .iter()
                .all(|line| line.starts_with("set 0 ") || line.starts_with("sequence "))
        );
        assert_eq!(commands[start + 1..], ["delay 10000", "stop 0", "delay 2100"], "{name}");
    }
    let mut there: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pkt"))
        .collect();
    there.sort();
    expected.sort();
    assert_eq!(there, expected);
}
