//! Tests of SCTP formats: round trips, wrong lengths, and captured packets of an association between Linux hosts.

use proptest::prelude::*;

use super::ddp::{BadControl, ControlRepr, DdpSsn, Function, MAX_PRIVATE_DATA};
use super::*;

const PORTS: Ports = Ports { source: 37942, destination: 9899 };

fn build(tag: Tag, write: impl FnOnce(&mut PacketBuilder<'_>)) -> Vec<u8> {
    let mut out = vec![0xee; 2048];
    let mut builder = PacketBuilder::new(&mut out, PORTS, tag);
    write(&mut builder);
    let len = builder.finish();
    out.truncate(len);
    out
}

fn chunks(bytes: &[u8]) -> Vec<Chunk<'_>> {
    let packet = Packet::new(bytes).expect("a common header");
    assert!(packet.checksum_ok());
    packet.chunks().map(|raw| Chunk::parse(raw.expect("whole")).expect("well formed")).collect()
}

/// Packet with an INIT, sent by Linux to another Linux host, with the adaptation layer indication of DDP.
const LINUX_INIT: &[u8] = &[
    0x94, 0x36, 0x26, 0xab, 0x00, 0x00, 0x00, 0x00, 0x12, 0x12, 0xfe, 0xf4, 0x01, 0x00, 0x00, 0x2c,
    0xf5, 0xcb, 0x8a, 0xd3, 0x00, 0x01, 0xa0, 0x00, 0x00, 0x10, 0x00, 0x10, 0xee, 0x4a, 0x64, 0x9a,
    0x00, 0x0c, 0x00, 0x06, 0x00, 0x05, 0x00, 0x00, 0x80, 0x00, 0x00, 0x04, 0xc0, 0x00, 0x00, 0x04,
    0xc0, 0x06, 0x00, 0x08, 0x00, 0x00, 0x00, 0x01,
];

/// COOKIE ACK of the association that [`LINUX_INIT`] opens.
const LINUX_COOKIE_ACK: &[u8] = &[
    0x26, 0xab, 0x94, 0x36, 0xf5, 0xcb, 0x8a, 0xd3, 0x99, 0x4e, 0x60, 0x1b, 0x0b, 0x00, 0x00, 0x04,
];

// RFC 9260 §6.8, appendix A: the checksum and its byte order match Linux. RFC 9260 §3.3.2, RFC 5061 §4.2.6: INIT and
// the adaptation layer indication.
#[test]
fn linux_packets_parse_and_rebuild() {
    let packet = Packet::new(LINUX_INIT).expect("a packet");
    assert_eq!((packet.ports(), packet.tag()), (PORTS, Tag::NONE));
    let [Chunk::Init(init)] = chunks(LINUX_INIT)[..] else { panic!("one INIT") };
    let header = InitHeader {
        tag: Tag(0xf5cb_8ad3),
        a_rwnd: 106_496,
        outbound_streams: 16,
        inbound_streams: 16,
        initial_tsn: Tsn(0xee4a_649a),
    };
    assert_eq!(init.header, header);
    let parameters: Vec<_> = init.parameters().map(|p| p.expect("well formed")).collect();
    let forward_tsn = Parameter::Unknown { bytes: &[0xc0, 0, 0, 4], skip: true, report: true };
    let expected = [
        Parameter::SupportedAddressTypes(&[0, 5]),
        Parameter::EcnCapable,
        forward_tsn,
        Parameter::Adaptation(ddp::ADAPTATION_DDP),
    ];
    assert_eq!(parameters, expected);
    let ours = build(Tag::NONE, |builder| builder.init(&header, &expected).expect("room"));
    assert_eq!(ours, LINUX_INIT);

    assert_eq!(chunks(LINUX_COOKIE_ACK), [Chunk::CookieAck]);
    let mut broken = LINUX_INIT.to_vec();
    broken[20] ^= 1;
    assert!(!Packet::new(&broken).expect("a packet").checksum_ok());
}

// RFC 9260 §3.2: each chunk type without fixed fields, with its flags.
#[test]
fn chunks_without_fields_round_trip() {
    let bytes = build(Tag(7), |b| {
        b.cookie_ack().expect("room");
        b.cookie_echo(b"cookie").expect("room");
        b.heartbeat(b"when").expect("room");
        b.heartbeat_ack(&[0, 1, 0, 5, 9]).expect("room");
        b.shutdown(Tsn(u32::MAX)).expect("room");
        b.shutdown_ack().expect("room");
        b.shutdown_complete(true).expect("room");
        b.shutdown_complete(false).expect("room");
        b.pad(8).expect("room");
        b.push_chunk(0xff, 0xaa, &[1]).expect("room");
        b.push_chunk(0x3e, 0, &[]).expect("room");
    });
    let unknown = |bytes, skip, report| Chunk::Unknown(UnknownChunk { bytes, skip, report });
    let expected = [
        Chunk::CookieAck,
        Chunk::CookieEcho(b"cookie"),
        Chunk::Heartbeat(&[0, 1, 0, 8, b'w', b'h', b'e', b'n']),
        Chunk::HeartbeatAck(&[0, 1, 0, 5, 9]),
        Chunk::Shutdown { cumulative: Tsn(u32::MAX) },
        Chunk::ShutdownAck,
        Chunk::ShutdownComplete { reflected: true },
        Chunk::ShutdownComplete { reflected: false },
        Chunk::Pad,
        unknown(&[0xff, 0xaa, 0, 5, 1], true, true),
        unknown(&[0x3e, 0, 0, 4], false, false),
    ];
    assert_eq!(chunks(&bytes), expected);
    let info = Chunk::heartbeat_parameters(&[0, 1, 0, 5, 9]).next();
    assert_eq!(info, Some(Ok(Parameter::HeartbeatInfo(&[9]))));
}

// RFC 9260 §3.3.10: each error cause is parsed as it was written.
#[test]
fn error_causes_round_trip() {
    let causes = [
        Cause::InvalidStream(0xfffe),
        Cause::MissingParameters(&[0, 7]),
        Cause::StaleCookie(1_000_001),
        Cause::OutOfResource,
        Cause::UnresolvableAddress(&[0, 11, 0, 5, b'h']),
        Cause::UnrecognizedChunk(&[0x40, 0, 0, 4]),
        Cause::InvalidMandatoryParameter,
        Cause::UnrecognizedParameters(&[0xc0, 0, 0, 4]),
        Cause::NoUserData(Tsn(9)),
        Cause::CookieWhileShuttingDown,
        Cause::RestartWithNewAddresses(&[0, 5, 0, 8, 10, 0, 0, 1]),
        Cause::UserInitiatedAbort(b"drained"),
        Cause::ProtocolViolation(b""),
        Cause::Unknown { code: 0x00a0, info: &[1, 2] },
    ];
    for reflected in [false, true] {
        let bytes = build(Tag(1), |b| {
            b.error(&causes).expect("room");
            b.abort(reflected, &causes[..2]).expect("room");
        });
        let [Chunk::Error(error), Chunk::Abort { reflected: seen, causes: abort }] =
            chunks(&bytes)[..]
        else {
            panic!("ERROR and ABORT")
        };
        assert_eq!(seen, reflected);
        assert!(error.into_iter().eq(causes.map(Ok)));
        assert!(abort.into_iter().eq(causes[..2].iter().map(|cause| Ok(*cause))));
    }
    let lies: [&[u8]; 5] = [
        &[0, 4, 0, 3],
        &[0, 4, 0, 5],
        &[0, 1, 0, 6, 0, 0],
        &[0, 2, 0, 8, 0, 0, 0, 1],
        &[0, 2, 0, 8, 0xff, 0xff, 0xff, 0xff],
    ];
    for bytes in lies {
        assert!(Causes::new(bytes).into_iter().eq([Err(BadParameter)]), "{bytes:?}");
    }
}

// RFC 9260 §3.2, §6.10: a chunk with a wrong length ends the iteration, and no byte beyond the packet is read.
#[test]
fn chunks_with_false_lengths_are_refused() {
    let bad = |bytes: &[u8]| -> Vec<_> {
        Chunks::new(bytes).map(|raw| raw.and_then(Chunk::parse).map(|_| ())).collect()
    };
    assert_eq!(bad(&[11, 0, 0]), [Err(BadChunk::Partial)]);
    assert_eq!(bad(&[11, 0, 0, 3]), [Err(BadChunk::Length { kind: 11 })]);
    assert_eq!(bad(&[11, 0, 0, 0, 11, 0, 0, 4]), [Err(BadChunk::Length { kind: 11 })]);
    assert_eq!(bad(&[11, 0, 0, 5]), [Err(BadChunk::Partial)]);
    assert_eq!(bad(&[11, 0, 0, 4, 11, 0, 0xff, 0xff]), [Ok(()), Err(BadChunk::Partial)]);
    // The pad of the last chunk may be missing; the content of a pad is ignored.
    assert_eq!(bad(&[10, 0, 0, 5, 1]), [Ok(())]);
    assert_eq!(bad(&[10, 0, 0, 5, 1, 9, 9, 9, 11, 0, 0, 4]), [Ok(()), Ok(())]);
    // Lengths too short for the fixed fields of DATA, INIT, INIT ACK, SACK and SHUTDOWN, then for the lists of a SACK.
    for (kind, len) in [(0, 15), (1, 19), (2, 19), (3, 15), (7, 7)] {
        let mut bytes = vec![0; len];
        (bytes[0], bytes[3]) = (kind, len as u8);
        assert_eq!(bad(&bytes), [Err(BadChunk::Length { kind })]);
        bytes.push(0);
        bytes[3] += 1;
        assert_eq!(bad(&bytes), [Ok(())]);
    }
    let mut sack = [0; 24];
    (sack[0], sack[3], sack[13], sack[15]) = (3, 24, 1, 1);
    assert_eq!(bad(&sack), [Ok(())]);
    sack[15] = 2;
    assert_eq!(bad(&sack), [Err(BadChunk::Length { kind: 3 })]);
    (sack[12], sack[14]) = (0xff, 0xff);
    assert_eq!(bad(&sack), [Err(BadChunk::Length { kind: 3 })]);
}

// RFC 9260 §3.2.1: parameters with a wrong length are refused. A parameter whose pad the chunk's length excludes is
// accepted.
#[test]
fn parameters_with_false_lengths_are_refused() {
    let lies: [&[u8]; 6] = [
        &[0, 7, 0],
        &[0, 7, 0, 3],
        &[0, 7, 0, 5],
        &[0, 5, 0, 7, 1, 2, 3],
        &[0, 6, 0, 8, 1, 2, 3, 4],
        &[0xc0, 6, 0, 6, 0, 1],
    ];
    for bytes in lies {
        assert!(Parameters::new(bytes).eq([Err(BadParameter)]), "{bytes:?}");
    }
    assert!(Parameters::new(&[0, 7, 0, 5, 1]).eq([Ok(Parameter::StateCookie(&[1]))]));
}

// RFC 9260 §1.6: serial number arithmetic is modulo 2^32.
#[test]
fn tsn_arithmetic_wraps() {
    let (last, first) = (Tsn(u32::MAX), Tsn(0));
    assert!(last.before(first) && first.after(last));
    assert!(!first.before(first) && !first.after(first));
    assert_eq!((last.add(1), first.sub(1), first.distance_from(last)), (first, last, 1));
}

// RFC 9260 §6.7: a SACK omits entries that do not fit, and keeps the blocks with the lowest TSNs.
#[test]
fn sack_is_truncated_to_packet_space() {
    let header = SackHeader { cumulative: Tsn(3), a_rwnd: 1500 };
    let gaps = [GapBlock { start: 2, end: 3 }, GapBlock { start: 5, end: 5 }];
    let duplicates = [Tsn(1), Tsn(2)];
    for (room, kept) in [(15, None), (16, Some((0, 0))), (23, Some((1, 0))), (31, Some((2, 1)))] {
        let mut out = vec![0; COMMON_HEADER_LEN + room];
        let mut builder = PacketBuilder::new(&mut out, PORTS, Tag(1));
        let fits = builder.sack(header, &gaps, &duplicates);
        let len = builder.finish();
        assert_eq!(fits.ok().is_some(), kept.is_some());
        let Some((blocks, twice)) = kept else { continue };
        let [Chunk::Sack(sack)] = chunks(&out[..len])[..] else { panic!("one SACK") };
        assert_eq!(sack.header, header);
        assert!(sack.gaps().eq(gaps[..blocks].iter().copied()));
        assert!(sack.duplicates().eq(duplicates[..twice].iter().copied()));
    }
}

#[test]
fn chunk_without_space_leaves_packet_unchanged() {
    let mut out = vec![0; COMMON_HEADER_LEN + 20];
    let mut builder = PacketBuilder::new(&mut out, PORTS, Tag(1));
    assert_eq!((builder.remaining(), builder.max_data_len()), (20, 4));
    assert_eq!(builder.cookie_echo(&[1; 17]), Err(PacketFull));
    assert_eq!(builder.push_data(&DataHeader::default(), 5), Err(PacketFull));
    assert_eq!(builder.push_data(&DataHeader::default(), 0), Err(PacketFull));
    assert!(builder.is_empty());
    builder.data_buffer()[..3].copy_from_slice(b"abc");
    assert_eq!(builder.push_data(&DataHeader::default(), 3), Ok(()));
    assert_eq!(
        (builder.remaining(), builder.max_data_len(), builder.data_buffer().len()),
        (0, 0, 0)
    );
    assert_eq!(builder.cookie_ack(), Err(PacketFull));
    let len = builder.finish();
    let [Chunk::Data(data)] = chunks(&out[..len])[..] else { panic!("one DATA") };
    assert_eq!(data, Data { header: DataHeader::default(), payload: b"abc" });
}

// RFC 5043 §5.2.3, RFC 6581 §7: function codes and private data of session control messages.
#[test]
fn malformed_control_messages_are_refused() {
    let control = |bytes: &[u8]| ControlRepr::parse(bytes).map(|_| ());
    assert_eq!(control(&[0, 0, 0]), Err(BadControl::Short(3)));
    assert_eq!(control(&[0, 0, 0, 0]), Err(BadControl::Function(0)));
    assert_eq!(control(&[0, 0, 0, 8]), Err(BadControl::Function(8)));
    assert_eq!(control(&[0, 0, 1, 1]), Err(BadControl::Function(0x101)));
    assert_eq!(control(&[0, 0, 0, 4, 0]), Err(BadControl::TerminateWithPrivateData));
    let mut longest = vec![0; 4 + MAX_PRIVATE_DATA];
    longest[3] = 1;
    assert_eq!(control(&longest), Ok(()));
    longest.push(0);
    assert_eq!(control(&longest), Err(BadControl::PrivateDataTooLong(513)));
    assert_eq!(DdpSsn(u16::MAX).add(1), DdpSsn::FIRST);
    assert_eq!(DdpSsn(1).distance_from(DdpSsn(u16::MAX)), 2);
}

/// Returns zero, all ones or any number, each case with equal probability.
fn edges_u32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), any::<u32>()]
}

fn edges_u16() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(u16::MAX), any::<u16>()]
}

prop_compose! {
    fn data_header()(
        tsn in edges_u32(), stream in edges_u16(), ssn in edges_u16(), ppid in edges_u32(),
        flags in any::<[bool; 4]>(),
    ) -> DataHeader {
        let [immediate, unordered, begin, end] = flags;
        DataHeader { tsn: Tsn(tsn), stream, ssn, ppid, immediate, unordered, begin, end }
    }
}

proptest! {
    // RFC 9260 §3.3.1, §3.3.4, §6.10: bundled chunks are parsed as they were written.
    #[test]
    fn data_and_sacks_round_trip(
        tag in edges_u32(),
        cumulative in edges_u32(),
        a_rwnd in edges_u32(),
        gaps in prop::collection::vec((edges_u16(), edges_u16()), 0..20),
        duplicates in prop::collection::vec(edges_u32(), 0..20),
        messages in prop::collection::vec((data_header(), prop::collection::vec(any::<u8>(), 1..90)), 0..12),
    ) {
        let header = SackHeader { cumulative: Tsn(cumulative), a_rwnd };
        let gaps: Vec<_> = gaps.into_iter().map(|(start, end)| GapBlock { start, end }).collect();
        let duplicates: Vec<_> = duplicates.into_iter().map(Tsn).collect();
        let bytes = build(Tag(tag), |b| {
            b.sack(header, &gaps, &duplicates).expect("room");
            for (header, payload) in &messages {
                b.data_buffer()[..payload.len()].copy_from_slice(payload);
                b.push_data(header, payload.len()).expect("room");
            }
        });
        prop_assert_eq!(Packet::new(&bytes).expect("a packet").tag(), Tag(tag));
        let seen = chunks(&bytes);
        let Chunk::Sack(sack) = seen[0] else { panic!("a SACK first") };
        prop_assert_eq!(sack.header, header);
        prop_assert!(sack.gaps().eq(gaps));
        prop_assert!(sack.duplicates().eq(duplicates));
        let data = messages.iter().map(|(header, payload)| Chunk::Data(Data { header: *header, payload }));
        prop_assert!(seen[1..].iter().copied().eq(data));
    }

    // RFC 9260 §3.3.2, §3.3.3, §3.2.1; RFC 5061 §4.2.6, §4.2.7.
    #[test]
    fn inits_round_trip(
        tag in edges_u32(), a_rwnd in edges_u32(), outbound_streams in edges_u16(),
        inbound_streams in edges_u16(), initial_tsn in edges_u32(), word in edges_u32(),
        bytes in prop::collection::vec(any::<u8>(), 0..40), address: [u8; 16], ack: bool,
    ) {
        let header = InitHeader {
            tag: Tag(tag), a_rwnd, outbound_streams, inbound_streams, initial_tsn: Tsn(initial_tsn),
        };
        let unknown = [&[0x40, 0x99, 0, 4 + bytes.len() as u8][..], &bytes].concat();
        let host = [&[0, 11, 0, 4 + bytes.len() as u8][..], &bytes].concat();
        let parameters = [
            Parameter::Ipv4(word.to_be_bytes()),
            Parameter::Ipv6(address),
            Parameter::StateCookie(&bytes),
            Parameter::Unrecognized(&bytes),
            Parameter::CookiePreservative(word),
            Parameter::HostName(&host),
            Parameter::SupportedAddressTypes(&bytes),
            Parameter::EcnCapable,
            Parameter::SupportedExtensions(&bytes),
            Parameter::Adaptation(word),
            Parameter::HeartbeatInfo(&bytes),
            Parameter::Unknown { bytes: &unknown, skip: false, report: true },
        ];
        let packet = build(Tag(tag), |b| {
            let fits = if ack { b.init_ack(&header, &parameters) } else { b.init(&header, &parameters) };
            fits.expect("room");
        });
        let init = match chunks(&packet)[..] {
            [Chunk::Init(init)] if !ack => init,
            [Chunk::InitAck(init)] if ack => init,
            _ => panic!("one INIT or INIT ACK"),
        };
        prop_assert_eq!(init.header, header);
        prop_assert!(init.parameters().eq(parameters.map(Ok)));
    }

    // RFC 9260 §6.8: the checksum is correct for packets that mix chunks with and without precomputed CRCs of user
    // data, in any order.
    #[test]
    fn combined_checksum_equals_packet_checksum(
        chunks in prop::collection::vec((prop::option::of(1usize..300), any::<bool>(), any::<u8>()), 0..6),
        tag: u32,
    ) {
        let header = DataHeader { tsn: Tsn(7), ppid: 16, ..DataHeader::default() };
        let write = |digests: bool| {
            build(Tag(tag), |b| {
                for &(len, digested, byte) in &chunks {
                    let Some(len) = len else { b.heartbeat(&[byte; 9]).expect("room"); continue };
                    let user: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i * i) as u8)).collect();
                    b.data_buffer()[..len].copy_from_slice(&user);
                    let crc = crc32c::update(0, &user);
                    let pushed = match digested && digests {
                        true => b.push_digested(&header, len, crc),
                        false => b.push_data(&header, len),
                    };
                    pushed.expect("room");
                }
            })
        };
        let packet = write(true);
        prop_assert_eq!(&packet, &write(false));
        prop_assert_eq!(&packet[8..12], checksum(&packet));
    }

    // RFC 9260 §3.3.10: a truncated cause keeps its code, is within the length limit, and can be parsed.
    #[test]
    fn long_error_causes_are_truncated(
        bytes in prop::collection::vec(any::<u8>(), 0..300), most in 0usize..200, which in 0usize..8,
    ) {
        let types = &bytes[..bytes.len() & !1];
        let cause = [
            Cause::MissingParameters(types),
            Cause::UnresolvableAddress(&bytes),
            Cause::UnrecognizedChunk(&bytes),
            Cause::UnrecognizedParameters(&bytes),
            Cause::RestartWithNewAddresses(&bytes),
            Cause::UserInitiatedAbort(&bytes),
            Cause::ProtocolViolation(&bytes),
            Cause::Unknown { code: 99, info: &bytes },
        ][which];
        let cut = cause.truncate_info(most);
        prop_assert_eq!(cut.code(), cause.code());
        prop_assert!(cut.padded_len() <= 8 + most);
        prop_assert!(cause == cut || bytes.len() > most & !3);
        let mut out = vec![0; cut.padded_len()];
        prop_assert_eq!(cut.emit(&mut out), out.len());
        prop_assert_eq!(Causes::new(&out).into_iter().next(), Some(Ok(cut)));
    }

    // Any bytes are parsed as chunks or an error, without a panic, and every chunk lies within the packet.
    #[test]
    fn any_sctp_packet_parses_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = Packet::new(&bytes) {
            read(packet);
        }
    }

    // A well-formed packet with one changed byte is parsed without a panic, and every chunk lies within the packet.
    #[test]
    fn damaged_sctp_packet_parses_without_panic(at in 0..LINUX_INIT.len(), byte: u8) {
        let mut bytes = LINUX_INIT.to_vec();
        bytes[at] = byte;
        read(Packet::new(&bytes).expect("long enough"));
    }

    #[test]
    fn control_messages_round_trip(
        ssn in edges_u16(), function in 0..Function::ALL.len(), private_data in prop::collection::vec(any::<u8>(), 0..=512),
    ) {
        let function = Function::ALL[function];
        let private_data = if function == Function::Terminate { &[] } else { &private_data[..] };
        let control = ControlRepr { ssn: DdpSsn(ssn), function, private_data };
        let mut out = vec![0; control.wire_len()];
        control.emit(&mut out);
        prop_assert_eq!(ddp::ssn(&out), Some(DdpSsn(ssn)));
        prop_assert_eq!(ControlRepr::parse(&out), Ok(control));
        prop_assert_eq!(Function::from_code(function.code()), Some(function));
    }
}

/// Parses all chunks of a packet, with their parameters, causes and lists.
fn read(packet: Packet<'_>) {
    packet.checksum_ok();
    let mut bytes = COMMON_HEADER_LEN;
    for raw in packet.chunks() {
        let Ok(raw) = raw else { break };
        bytes += raw.bytes.len();
        match Chunk::parse(raw) {
            Ok(Chunk::Init(init) | Chunk::InitAck(init)) => init.parameters().for_each(drop),
            Ok(Chunk::Sack(sack)) => assert!(sack.gaps().len() + sack.duplicates().len() < 500),
            Ok(Chunk::Error(causes) | Chunk::Abort { causes, .. }) => {
                causes.into_iter().for_each(drop)
            }
            Ok(Chunk::Heartbeat(value)) => Chunk::heartbeat_parameters(value).for_each(drop),
            _ => {}
        }
    }
    assert!(bytes <= packet.bytes().len());
}
