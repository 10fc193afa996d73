//! Tests of RDMAP headers: each field at zero, all ones and values between; the tables of the RFCs; captured bytes of
//! siw.

use arrayvec::ArrayVec;
use proptest::prelude::*;

use super::terminate::{Layout, MAX_LEN, TerminateRepr};
use super::*;

fn edges32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), any::<u32>()]
}

fn edges64() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]
}

fn read_request() -> impl Strategy<Value = ReadRequestRepr> {
    (edges32(), edges64(), edges32(), edges32(), edges64()).prop_map(
        |(sink_stag, sink_to, size, source_stag, source_to)| ReadRequestRepr {
            sink_stag: Stag(sink_stag),
            sink_to: TaggedOffset(sink_to),
            size,
            source_stag: Stag(source_stag),
            source_to: TaggedOffset(source_to),
        },
    )
}

fn atomic_op() -> impl Strategy<Value = AtomicOp> {
    prop_oneof![
        (edges64(), edges64()).prop_map(|(add, mask)| AtomicOp::FetchAdd { add, mask }),
        (edges64(), edges64(), edges64(), edges64()).prop_map(
            |(compare, compare_mask, swap, swap_mask)| AtomicOp::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask
            }
        ),
    ]
}

fn terminate() -> impl Strategy<Value = TerminateRepr> {
    let header = prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 14).prop_map(|mut h| {
            h[0] |= 0x80;
            h
        }),
        proptest::collection::vec(any::<u8>(), 18).prop_map(|mut h| {
            h[0] &= 0x7f;
            h
        }),
    ];
    let request = proptest::option::of(read_request());
    (0u8..16, 0u8..16, any::<u8>(), any::<Option<u16>>(), header, request).prop_filter_map(
        "without a flag the layout is judged by the numbers",
        |(layer, error_type, code, segment_len, header, read_request)| {
            let repr = TerminateRepr {
                segment_len,
                ddp_header: header.into_iter().collect(),
                read_request,
                ..TerminateRepr::new(layer, error_type, code)
            };
            let flagged = repr.emit()[2] != 0;
            (flagged || terminate::describe(layer, error_type, code).is_some()).then_some(repr)
        },
    )
}

/// Returns the result of fetch-and-add by the bit-by-bit loop of RFC 7306 §5.1.1.
fn reference_fetch_add(original: u64, add: u64, mask: u64) -> u64 {
    let (mut carry, mut value) = (0, 0);
    for bit in 0..64 {
        let location = 1u64 << bit;
        let sum = carry + ((original >> bit) & 1) + ((add >> bit) & 1);
        carry = (sum & 2) >> 1;
        if sum & 1 != 0 {
            value |= location;
        }
        if mask & location != 0 {
            carry = 0;
        }
    }
    value
}

proptest! {
    // RFC 5040 §4.4
    #[test]
    fn read_request_round_trips(repr in read_request(), trailing: u8) {
        let mut bytes = repr.emit().to_vec();
        prop_assert_eq!(bytes.len(), 28);
        bytes.push(trailing);
        prop_assert_eq!(ReadRequestRepr::parse(&bytes), Ok(repr));
        prop_assert!(ReadRequestRepr::parse(&bytes[..27]).is_err());
    }

    // RFC 7306 §5.2.1
    #[test]
    fn atomic_request_round_trips(
        id in edges32(), stag in edges32(), to in edges64(), op in atomic_op(), noise in edges64(),
    ) {
        let repr = AtomicRequestRepr { id, stag: Stag(stag), to: TaggedOffset(to), op };
        let bytes = repr.emit();
        prop_assert_eq!(bytes.len(), 52);
        prop_assert_eq!(AtomicRequestRepr::parse(&bytes), Ok(repr));
        // Reserved bits are sent as zeros and ignored on receipt.
        prop_assert_eq!(&bytes[..3], &[0, 0, 0]);
        let mut noisy = bytes;
        noisy[..3].copy_from_slice(&noise.to_be_bytes()[..3]);
        noisy[3] |= noise as u8 & 0xf0;
        if let AtomicOp::FetchAdd { .. } = op {
            // RFC 7306 §5.2.1: fetch-and-add does not use Compare Data and Compare Mask.
            noisy[36..44].copy_from_slice(&noise.to_be_bytes());
            noisy[44..].copy_from_slice(&noise.reverse_bits().to_be_bytes());
        }
        prop_assert_eq!(AtomicRequestRepr::parse(&noisy), Ok(repr));
    }

    // RFC 7306 §5.2.2
    #[test]
    fn atomic_response_round_trips(id in edges32(), original in edges64()) {
        let repr = AtomicResponseRepr { id, original };
        prop_assert_eq!(AtomicResponseRepr::parse(&repr.emit()), Ok(repr));
        prop_assert!(AtomicResponseRepr::parse(&repr.emit()[..11]).is_err());
    }

    // RFC 5040 §4.1
    #[test]
    fn control_and_invalidate_stag_round_trip(
        v1: bool, opcode in 0usize..12, stag in proptest::option::of(edges32()), reserved in 0u8..4,
    ) {
        let version = if v1 { DdpVersion::V1 } else { DdpVersion::V0 };
        let opcode = Opcode::ALL[opcode];
        let rsvd_ulp = Control::new(version, opcode).with_invalidate(stag.map(Stag));
        let (control, seen) = split_rsvd_ulp(rsvd_ulp);
        prop_assert_eq!(control.opcode(), Some(opcode));
        prop_assert_eq!((control.version_bits(), control.reserved()), (version.bits(), 0));
        prop_assert_eq!(seen, Stag(stag.unwrap_or(0)));
        let noisy = Control(control.0 | reserved << 4);
        prop_assert_eq!((noisy.opcode(), noisy.version_bits()), (Some(opcode), version.bits()));
    }

    // RFC 5040 §4.8
    #[test]
    fn terminate_round_trips(repr in terminate()) {
        let bytes = repr.emit();
        prop_assert!(bytes.len() <= MAX_LEN);
        let mut expected = repr;
        if !expected.ddp_header.is_empty() && expected.segment_len.is_none() {
            // D without M: the length field is present and zero.
            prop_assert_eq!(&bytes[4..6], &[0, 0]);
        }
        expected.layout = Layout::Rfc;
        prop_assert_eq!(TerminateRepr::parse(&bytes), Ok(expected));
    }

    #[test]
    fn any_bytes_parse_as_terminate_or_are_truncated(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let rfc = TerminateRepr::parse(&bytes);
        prop_assert!(!matches!(&rfc, Ok(repr) if repr.layout == Layout::Siw));
        for repr in [rfc, TerminateRepr::parse_siw(&bytes)] { match repr {
            Ok(repr) if repr.layout == Layout::Rfc => {
                let again = repr.emit();
                prop_assert_eq!(TerminateRepr::parse(&again), Ok(repr));
            }
            Ok(_) => {}
            Err(cut) => prop_assert!(bytes.len() < cut.needed),
        } }
    }

    // RFC 7306 §5.1.1
    #[test]
    fn fetch_add_matches_rfc_7306(original in edges64(), add in edges64(), mask in edges64()) {
        let op = AtomicOp::FetchAdd { add, mask };
        prop_assert_eq!(op.apply(original), reference_fetch_add(original, add, mask));
        let plain = AtomicOp::FetchAdd { add, mask: 0 };
        prop_assert_eq!(plain.apply(original), original.wrapping_add(add));
    }

    // RFC 7306 §5.1.2
    #[test]
    fn compare_swap_matches_rfc_7306(
        original in edges64(), compare_mask in edges64(), swap in edges64(), swap_mask in edges64(),
        matching: bool, other in edges64(),
    ) {
        let compare = if matching { original ^ (other & !compare_mask) } else { other };
        let op = AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask };
        let expected = if (compare ^ original) & compare_mask == 0 {
            original & !swap_mask | swap & swap_mask
        } else {
            original
        };
        prop_assert_eq!(op.apply(original), expected);
        prop_assert_eq!(AtomicOp::swap(swap).apply(original), swap);
    }
}

// RFC 5040 figure 4, RFC 7306 figure 2
#[test]
fn opcodes_and_queues_match_rfc_tables() {
    let table: [(u8, Opcode, Option<u32>); 12] = [
        (0b0000, Opcode::Write, None),
        (0b0001, Opcode::ReadRequest, Some(1)),
        (0b0010, Opcode::ReadResponse, None),
        (0b0011, Opcode::Send, Some(0)),
        (0b0100, Opcode::SendInvalidate, Some(0)),
        (0b0101, Opcode::SendSolicited, Some(0)),
        (0b0110, Opcode::SendSolicitedInvalidate, Some(0)),
        (0b0111, Opcode::Terminate, Some(2)),
        (0b1000, Opcode::Immediate, Some(0)),
        (0b1001, Opcode::ImmediateSolicited, Some(0)),
        (0b1010, Opcode::AtomicRequest, Some(1)),
        (0b1011, Opcode::AtomicResponse, Some(3)),
    ];
    for (bits, opcode, queue) in table {
        assert_eq!((opcode.bits(), Opcode::from_bits(bits)), (bits, Some(opcode)));
        assert_eq!(opcode.queue(), queue.map(Qn));
        assert_eq!(opcode.is_extension(), bits >= 8);
        assert_eq!(opcode.is_solicited(), [5, 6, 9].contains(&bits));
        assert_eq!(opcode.invalidates(), [4, 6].contains(&bits));
    }
    assert!((12..16).all(|bits| Opcode::from_bits(bits).is_none()));
}

// RFC 7306 §10.1: AOpCodes 0x0 and 0x2 are assigned, 0x1 is reserved.
#[test]
fn atomic_codes_match_registry() {
    let fetch_add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let repr = AtomicRequestRepr { id: 1, stag: Stag(2), to: TaggedOffset(3), op: fetch_add };
    let mut bytes = repr.emit();
    assert_eq!((bytes[3], AtomicOp::swap(1).code()), (0, 2));
    for code in [1, 3, 15] {
        bytes[3] = code;
        assert_eq!(AtomicRequestRepr::parse(&bytes), Err(AtomicError::Code(code)));
    }
    // Unused fields of fetch-and-add: Compare Data is zero, Compare Mask all ones.
    assert_eq!((&bytes[36..44], &bytes[44..]), (&[0; 8][..], &[0xff; 8][..]));
    assert!(matches!(AtomicRequestRepr::parse(&bytes[..51]), Err(AtomicError::Truncated(_))));
}

// RFC 5040 §4.8: "Data Sink Tagged Offset = the original ... + 2048".
#[test]
fn advanced_read_request_starts_at_remaining_bytes() {
    let to = TaggedOffset;
    let read = |sink_to, size, source_to| ReadRequestRepr {
        sink_stag: Stag(1),
        sink_to,
        size,
        source_stag: Stag(2),
        source_to,
    };
    let begun = read(to(10), 5000, to(20)).advanced(2048);
    assert_eq!(begun, read(to(2058), 2952, to(2068)));
}

// RFC 5040 figures 7 and 8, bit by bit.
#[test]
fn terminate_bytes_match_figures() {
    let header: Vec<u8> = [0xc1, 0x40].into_iter().chain(0..12).collect();
    let repr = TerminateRepr {
        segment_len: Some(0x05dc),
        ddp_header: header.iter().copied().collect(),
        ..TerminateRepr::new(1, 1, 1)
    };
    let expected = [&[0x11, 0x01, 0xc0, 0x00, 0x05, 0xdc][..], &header].concat();
    assert_eq!(repr.emit().as_slice(), expected);
    assert_eq!(TerminateRepr::new(2, 0, 2).emit().as_slice(), [0x20, 2, 0, 0]);
    let read = ReadRequestRepr {
        sink_stag: Stag(1),
        sink_to: TaggedOffset(2),
        size: 3,
        source_stag: Stag(4),
        source_to: TaggedOffset(5),
    };
    let header = [&[0x41, 0x41, 0, 0, 0, 0][..], &[0; 12]].concat();
    let repr = TerminateRepr {
        segment_len: Some(46),
        ddp_header: header.iter().copied().collect(),
        read_request: Some(read),
        ..TerminateRepr::new(0, 1, 2)
    };
    let bytes = repr.emit();
    assert_eq!((bytes.len(), bytes[..4].to_vec()), (52, vec![0x01, 0x02, 0xe0, 0]));
    assert_eq!(bytes[24..], read.emit());
    // An incomplete DDP header is omitted.
    let cut = TerminateRepr { ddp_header: [0x41, 1].into_iter().collect(), ..repr };
    assert_eq!((cut.emit()[2], cut.emit().len()), (0xa0, 34));
    assert_eq!(cut.to_string(), "0/1/02: RDMAP: access rights violation");
}

/// Captured Terminates of siw are parsed in siw's layout.
#[test]
fn siw_terminate_layout_parses() {
    let write = [&[0xc1, 0x40][..], &[0; 12]].concat();
    let read = [&[0x41, 0x41][..], &[0; 16]].concat();
    let send = [&[0x41, 0x43][..], &[0; 16]].concat();
    type Case<'a> = (&'a [u8; 4], &'a [u8], bool, (u8, u8, u8));
    let cases: [Case<'_>; 9] = [
        (&[0x11, 0, 0x03, 0], &write, false, (1, 1, 0)),
        (&[0x11, 1, 0x03, 0], &write, false, (1, 1, 1)),
        (&[0x10, 0, 0x07, 0], &read, true, (0, 1, 0)),
        (&[0x10, 1, 0x07, 0], &read, true, (0, 1, 1)),
        (&[0x21, 2, 0x03, 0], &send, false, (1, 2, 2)),
        (&[0x02, 4, 0, 0], &[], false, (2, 0, 4)),
        (&[0x02, 1, 0, 0], &[], false, (2, 0, 1)),
        (&[0x20, 6, 0x03, 0], &send, false, (0, 2, 6)),
        // With no header control bits set, both layouts are possible. The RFC's layout takes precedence; in it 02 06 is
        // "unexpected opcode".
        (&[0x02, 6, 0, 0], &[], false, (0, 2, 6)),
    ];
    for (control, header, has_read, numbers) in cases {
        let mut bytes = control.to_vec();
        if !header.is_empty() {
            bytes.extend([0, 28]);
            bytes.extend(header);
        }
        if has_read {
            bytes.extend([7; 28]);
        }
        let repr = TerminateRepr::parse_siw(&bytes).unwrap();
        assert_eq!((repr.layer, repr.error_type, repr.code), numbers, "{control:02x?}");
        assert_eq!(repr.ddp_header.as_slice(), header);
        assert_eq!(repr.read_request.is_some(), has_read);
        assert_eq!(repr.segment_len, (!header.is_empty()).then_some(28));
        let rfc = control == &[0x02, 6, 0, 0];
        assert_eq!(repr.layout, if rfc { Layout::Rfc } else { Layout::Siw });
    }
}

/// Flags M, D and R are at different bits in the two layouts, so one flag is sufficient to identify the layout. A flag
/// of the RFC's layout takes precedence even if layer and type are a defined error only when swapped, as siw sends
/// them.
#[test]
fn terminate_flag_distinguishes_rfc_and_siw_layout() {
    let (len, header, request) =
        (&[0, 28][..], &[[0xc1, 0x40].as_slice(), &[0; 12]].concat()[..], &[7; 28][..]);
    let rests = [len.to_vec(), [len, header].concat(), request.to_vec()];
    for (n, rest) in rests.iter().enumerate() {
        // Byte 02 with code 01 is undefined in the RFC's layout (0/2/01) and defined in siw's (2/0/01). Byte 11 is the
        // same in both.
        for (first, flags, layout, numbers) in [
            (0x02, [0x80, 0x40, 0x20][n], Layout::Rfc, (0, 2)),
            (0x11, [0x01, 0x02, 0x04][n], Layout::Siw, (1, 1)),
        ] {
            let bytes = [&[first, 1, flags, 0][..], rest].concat();
            let repr = TerminateRepr::parse_siw(&bytes).unwrap();
            assert_eq!((repr.layout, (repr.layer, repr.error_type)), (layout, numbers));
            let seen = [
                repr.segment_len.is_some(),
                !repr.ddp_header.is_empty(),
                repr.read_request.is_some(),
            ];
            assert_eq!(seen, [n == 0, n == 1, n == 2], "{flags:02x}");
        }
    }
}

// RFC 5040 §4.8: each of the 13 reserved bits is ignored on receipt, for all flags and error numbers.
#[test]
fn reserved_bits_of_a_terminate_are_ignored() {
    let with_header = TerminateRepr {
        segment_len: Some(28),
        ddp_header: ArrayVec::from_iter([&[0xc1, 0x40][..], &[0; 12]].concat()),
        ..TerminateRepr::new(1, 1, 0)
    };
    let read = ReadRequestRepr::parse(&[7; 28]).unwrap();
    let with_read = TerminateRepr { read_request: Some(read), ..with_header.clone() };
    let plain = [(2, 0, 2), (2, 1, 0), (0, 2, 6), (2, 0, 6), (1, 2, 2)]
        .map(|(layer, error_type, code)| TerminateRepr::new(layer, error_type, code));
    for repr in plain.into_iter().chain([with_header, with_read]) {
        for bit in 0..13 {
            let mut bytes = repr.emit();
            let reserved = u16::from_be_bytes([bytes[2], bytes[3]]) | 1 << bit;
            [bytes[2], bytes[3]] = reserved.to_be_bytes();
            assert_eq!(TerminateRepr::parse(&bytes), Ok(repr.clone()), "bit {bit} of {repr}");
        }
    }
    // `parse` does not swap: numbers that are defined only in siw's layout are unknown errors.
    let swapped = TerminateRepr::parse(&[0x21, 1, 0, 0]).unwrap();
    assert_eq!((swapped.layer, swapped.error_type, swapped.description()), (2, 1, "unknown error"));
}

// RFC 5040 figure 9, RFC 5041 §7.2, RFC 5044 §8, RFC 6581 §8
#[test]
fn every_defined_error_has_a_name() {
    let rdmap_1 = [0, 1, 2, 3, 4, 9, 0xff].map(|code| (0, 1, code));
    let rdmap_2 = [5, 6, 7, 8, 9, 0xff].map(|code| (0, 2, code));
    let ddp_1 = [0, 1, 2, 3, 4].map(|code| (1, 1, code));
    let ddp_2 = [1, 2, 3, 4, 5, 6].map(|code| (1, 2, code));
    let llp = [1, 2, 3, 4, 5, 6, 7].map(|code| (2, 0, code));
    let mut defined = [&rdmap_1[..], &rdmap_2, &ddp_1, &ddp_2, &llp].concat();
    defined.extend((0..=255).flat_map(|code| [(0, 0, code), (1, 0, code)]));
    for layer in 0..16 {
        for error_type in 0..16 {
            for code in 0..=255 {
                let known = defined.contains(&(layer, error_type, code));
                assert_eq!(terminate::describe(layer, error_type, code).is_some(), known);
            }
        }
    }
}
