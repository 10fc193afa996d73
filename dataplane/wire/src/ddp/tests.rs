//! Tests of DDP headers: each field at zero, all ones and values between; figures of the specifications.

use proptest::prelude::*;

use super::*;

fn version() -> impl Strategy<Value = DdpVersion> {
    prop_oneof![Just(DdpVersion::V0), Just(DdpVersion::V1)]
}

/// Returns zero, all ones, or any number.
fn edges32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), any::<u32>()]
}

fn edges64() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]
}

proptest! {
    // RFC 5041 §4.2
    #[test]
    fn tagged_header_round_trips(
        last: bool, version in version(), rsvd_ulp: u8, stag in edges32(), to in edges64(),
    ) {
        let repr = TaggedRepr { last, version, rsvd_ulp, stag: Stag(stag), to: TaggedOffset(to) };
        let mut bytes = [0xa5; TAGGED_HEADER_LEN];
        repr.emit(&mut bytes);
        prop_assert_eq!(TaggedRepr::parse(&bytes), Ok(repr));
        prop_assert_eq!(HeaderRepr::parse(&bytes), Ok(HeaderRepr::Tagged(repr)));
        // RFC 5041 §4.1: reserved bits are sent as zeros.
        prop_assert_eq!(Control(bytes[0]).reserved(), 0);
    }

    // RFC 5041 §4.3
    #[test]
    fn untagged_header_round_trips(
        last: bool, version in version(), rsvd_ulp: [u8; 5],
        qn in edges32(), msn in edges32(), mo in edges32(),
    ) {
        let repr = UntaggedRepr {
            last, version, rsvd_ulp, qn: Qn(qn), msn: Msn(msn), mo: MessageOffset(mo),
        };
        let mut bytes = [0x5a; UNTAGGED_HEADER_LEN];
        repr.emit(&mut bytes);
        prop_assert_eq!(UntaggedRepr::parse(&bytes), Ok(repr));
        prop_assert_eq!(HeaderRepr::parse(&bytes), Ok(HeaderRepr::Untagged(repr)));
        prop_assert_eq!(Control(bytes[0]).reserved(), 0);
    }

    // RFC 5041 §4.1: Rsvd is not checked on receipt.
    #[test]
    fn ddp_header_parses_or_names_reason(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
        match HeaderRepr::parse(&bytes) {
            Ok(h) => {
                prop_assert!(bytes.len() >= h.len());
                prop_assert_eq!(h.version().bits(), bytes[0] & 3);
            }
            Err(HeaderError::Truncated(t)) => prop_assert!(bytes.len() < t.needed),
            Err(HeaderError::Version(v)) => prop_assert_eq!(v, bytes[0] & 3),
            Err(HeaderError::WrongModel) => prop_assert!(false, "the model follows from T"),
        }
    }
}

/// With one field all ones, exactly its own bits are set.
#[test]
fn each_ddp_field_touches_only_its_bytes() {
    let version = DdpVersion::V0;
    let zero = TaggedRepr { last: false, version, rsvd_ulp: 0, stag: Stag(0), to: TaggedOffset(0) };
    let tagged = [
        (TaggedRepr { last: true, ..zero }, [0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (
            TaggedRepr { version: DdpVersion::V1, ..zero },
            [0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (TaggedRepr { rsvd_ulp: 255, ..zero }, [0x80, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (
            TaggedRepr { stag: Stag(u32::MAX), ..zero },
            [0x80, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            TaggedRepr { to: TaggedOffset(u64::MAX), ..zero },
            [0x80, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255],
        ),
    ];
    for (repr, bytes) in tagged {
        let packed = repr.pack();
        assert_eq!(packed.bytes()[..], bytes, "{repr:?}");
        assert_eq!((packed.control(), packed.rsvd_ulp()), (Control(bytes[0]), bytes[1]));
        assert_eq!(TaggedRepr::parse(&bytes), Ok(repr));
    }

    let (qn, msn, mo) = (Qn(0), Msn(0), MessageOffset(0));
    let zero = UntaggedRepr { last: false, version, rsvd_ulp: [0; 5], qn, msn, mo };
    let untagged = [
        (
            UntaggedRepr { last: true, ..zero },
            [0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            UntaggedRepr { version: DdpVersion::V1, ..zero },
            [0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            UntaggedRepr { rsvd_ulp: [255; 5], ..zero },
            [0, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            UntaggedRepr { qn: Qn(u32::MAX), ..zero },
            [0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            UntaggedRepr { msn: Msn(u32::MAX), ..zero },
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0],
        ),
        (
            UntaggedRepr { mo: MessageOffset(u32::MAX), ..zero },
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255],
        ),
    ];
    for (repr, bytes) in untagged {
        let packed = repr.pack();
        assert_eq!(packed.bytes()[..], bytes, "{repr:?}");
        assert_eq!((packed.control(), packed.rsvd_ulp()), (Control(bytes[0]), bytes[1]));
        assert_eq!(UntaggedRepr::parse(&bytes), Ok(repr));
    }
}

// RFC 5041 §4.1, figure 3
#[test]
fn ddp_control_bits_match_figure_3() {
    assert_eq!(Control::tagged(false, DdpVersion::V0), Control(0b1000_0000));
    assert_eq!(Control::untagged(true, DdpVersion::V1), Control(0b0100_0001));
    assert_eq!(Control(0b0011_1100).reserved(), 0b1111);
    assert_eq!(Control(0b0011_1100), Control(0x3c));
    assert!(!Control(0x3f).is_tagged() && !Control(0x3f).is_last());
}

// RFC 5044 figure 5 has the control bytes 41 43 (DDP, RDMAP), QN 0, MSN 1 and MO 0. Figure 5 of the MPA draft has the
// control bytes 40 03.
#[test]
fn ddp_headers_match_mpa_figures() {
    let bytes = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let repr = UntaggedRepr {
        last: true,
        version: DdpVersion::V1,
        rsvd_ulp: [0x43, 0, 0, 0, 0],
        qn: Qn(0),
        msn: Msn(1),
        mo: MessageOffset(0),
    };
    assert_eq!(UntaggedRepr::parse(&bytes), Ok(repr));
    let mut draft = bytes;
    draft[..2].copy_from_slice(&[0x40, 0x03]);
    let repr = UntaggedRepr { version: DdpVersion::V0, rsvd_ulp: [3, 0, 0, 0, 0], ..repr };
    assert_eq!(UntaggedRepr::parse(&draft), Ok(repr));
}

// The example in docs/protocol.md, section 3.
#[test]
fn ddp_header_matches_documented_example() {
    let repr = TaggedRepr {
        last: true,
        version: DdpVersion::V1,
        rsvd_ulp: 0,
        stag: Stag(0x0102_0304),
        to: TaggedOffset(0x1122_3344_5566_7788),
    };
    let mut bytes = [0; TAGGED_HEADER_LEN];
    repr.emit(&mut bytes);
    assert_eq!(bytes, [0xc1, 0, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
}

#[test]
fn header_of_wrong_buffer_model_is_refused() {
    assert_eq!(UntaggedRepr::parse(&[0x81; 18]), Err(HeaderError::WrongModel));
    assert_eq!(TaggedRepr::parse(&[0x01; 18]), Err(HeaderError::WrongModel));
}

// RFC 5041 §4.3: MSN starts at one, wraps from 0xFFFFFFFF to 0.
#[test]
fn msn_wraps_to_zero() {
    assert_eq!(Msn::FIRST, Msn(1));
    assert_eq!(Msn(u32::MAX).next(), Msn(0));
    assert!(Msn(u32::MAX).before(Msn(0)) && Msn(0).after(Msn(u32::MAX)));
    assert!(!Msn(7).before(Msn(7)) && !Msn(7).after(Msn(7)));
    assert_eq!(Msn(3).distance_from(Msn(u32::MAX)), 4);
}

#[test]
fn packed_header_keeps_buffer_model() {
    let tagged = TaggedRepr {
        last: true,
        version: DdpVersion::V1,
        rsvd_ulp: 0x40,
        stag: Stag(1),
        to: TaggedOffset(2),
    };
    let untagged = UntaggedRepr {
        last: false,
        version: DdpVersion::V1,
        rsvd_ulp: [0x43, 0, 0, 0, 7],
        qn: Qn(1),
        msn: Msn(2),
        mo: MessageOffset(3),
    };
    for header in [HeaderRepr::Tagged(tagged), HeaderRepr::Untagged(untagged)] {
        let bytes = header.pack().bytes();
        assert_eq!((bytes.len(), header.is_empty()), (header.len(), false));
        assert_eq!(HeaderRepr::parse(&bytes), Ok(header));
    }
}

#[test]
fn stag_displays_in_hex_and_qn_in_decimal() {
    assert_eq!((Stag(0x1a2b).to_string(), Qn(17).to_string()), ("0x00001a2b".into(), "17".into()));
}
