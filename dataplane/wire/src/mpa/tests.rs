//! Tests of MPA formats: each field at zero, all ones and values between; figures of the specifications.

use proptest::prelude::*;

use super::*;

fn kind() -> impl Strategy<Value = FrameKind> {
    prop_oneof![Just(FrameKind::Request), Just(FrameKind::Reply)]
}

proptest! {
    // RFC 5044 §7.1.1
    #[test]
    fn frame_round_trips(
        kind in kind(), markers: bool, crc: bool, reject: bool, enhanced: bool,
        revision in prop_oneof![Just(0u8), Just(0xff), any::<u8>()],
        private_data_len in prop_oneof![Just(0u16), Just(512), 0u16..=512],
    ) {
        let repr =
            FrameRepr { kind, markers, crc, reject, enhanced, revision, private_data_len };
        let mut bytes = [0xff; FRAME_HEADER_LEN];
        repr.emit(&mut bytes);
        prop_assert_eq!(FrameRepr::parse(&bytes, kind), Ok(repr));
        // Reserved bits are sent as zeros.
        prop_assert_eq!(Frame(bytes).reserved(), 0);
        prop_assert_eq!(repr.len(), 20 + usize::from(private_data_len));
    }

    #[test]
    fn start_key_round_trips(markers: bool, crc: bool, revision in 0u8..8) {
        let repr = StartKeyRepr { markers, crc, revision };
        let bytes = repr.emit();
        prop_assert_eq!(StartKeyRepr::parse(&bytes), Some(repr));
        prop_assert_eq!(FirstBytes::parse(&bytes), Some(FirstBytes::StartKey(repr)));
    }

    // RFC 5044 §4.2: reserved bits are sent as zeros and ignored on receipt.
    #[test]
    fn marker_round_trips(bytes: [u8; 4]) {
        let marker = Marker::parse(&bytes);
        prop_assert_eq!(marker.fpduptr() & 3, 0);
        let sent = marker.emit();
        prop_assert_eq!(&sent[..3], &[0, 0, bytes[2]]);
        prop_assert_eq!(sent[3], bytes[3] & !3);
        prop_assert_eq!(Marker::parse(&sent), marker);
    }

    // RFC 5044 §4.1
    #[test]
    fn fpdu_length_is_multiple_of_four(len in 0usize..=u16::MAX.into()) {
        prop_assert!(pad_len(len) < 4);
        prop_assert_eq!(fpdu_len(len) % 4, 0);
        prop_assert_eq!(fpdu_len(len), len + 6 + pad_len(len));
    }

    #[test]
    fn mpa_frame_parses_or_names_reason(
        bytes in proptest::collection::vec(any::<u8>(), 0..64), key: bool, kind in kind(),
    ) {
        let mut bytes = bytes;
        if key && bytes.len() >= 16 {
            bytes[..16].copy_from_slice(&kind.key());
        }
        match FrameRepr::parse(&bytes, kind) {
            Ok(f) => prop_assert!(bytes.len() >= 20 && f.private_data_len <= 512),
            Err(FrameError::Truncated(_)) => prop_assert!(bytes.len() < 20),
            Err(FrameError::Key) => prop_assert!(bytes[..16] != kind.key()),
            Err(FrameError::PrivateDataLength(n)) => prop_assert!(n > 512),
        }
    }
}

// RFC 5044 §7.1.1, figure 8
#[test]
fn mpa_flags_match_figure_8() {
    let mut bytes = [0; FRAME_HEADER_LEN];
    let repr = FrameRepr {
        kind: FrameKind::Request,
        markers: true,
        crc: false,
        reject: false,
        enhanced: false,
        revision: 1,
        private_data_len: 0x0102,
    };
    repr.emit(&mut bytes);
    assert_eq!(bytes[16..], [0x80, 1, 1, 2]);
    FrameRepr { markers: false, crc: true, ..repr }.emit(&mut bytes);
    assert_eq!(bytes[16], 0x40);
    FrameRepr { markers: false, reject: true, ..repr }.emit(&mut bytes);
    assert_eq!(bytes[16], 0x20);
    FrameRepr { markers: false, enhanced: true, ..repr }.emit(&mut bytes);
    assert_eq!(bytes[16], 0x10);
}

// RFC 5044 §7.1.1: at most 512 bytes of private data.
#[test]
fn private_data_beyond_512_is_refused() {
    let mut bytes = [0; FRAME_HEADER_LEN];
    bytes[..16].copy_from_slice(&REPLY_KEY);
    bytes[18..].copy_from_slice(&513u16.to_be_bytes());
    assert_eq!(FrameRepr::parse(&bytes, FrameKind::Reply), Err(FrameError::PrivateDataLength(513)));
    assert_eq!(FrameRepr::parse(&bytes, FrameKind::Request), Err(FrameError::Key));
}

#[test]
fn private_data_needs_all_its_bytes() {
    let mut bytes = vec![0; FRAME_HEADER_LEN + 3];
    bytes[19] = 4;
    assert_eq!(Frame::new(&bytes).unwrap().private_data(), None);
    bytes.push(9);
    assert_eq!(Frame::new(&bytes).unwrap().private_data(), Some(&[0, 0, 0, 9][..]));
}

// draft-culley-iwarp-mpa-03 §8.1.1
#[test]
fn start_key_matches_draft_bytes() {
    let key = StartKeyRepr { markers: true, crc: true, revision: 0 };
    assert_eq!(
        key.emit(),
        [
            0x4d, 0x50, 0x41, 0x20, 0x69, 0x64, 0x65, 0x6e, 0x74, 0x20, 0x66, 0x72, 0x61, 0x6d,
            0x65, 0xc0
        ]
    );
    // The reserved bits are ignored on receipt.
    let mut bytes = key.emit();
    bytes[15] |= 0x38;
    assert_eq!(StartKeyRepr::parse(&bytes), Some(key));
}

#[test]
fn first_bytes_distinguish_startup_forms() {
    assert_eq!(FirstBytes::parse(&REQUEST_KEY), Some(FirstBytes::Frame(FrameKind::Request)));
    assert_eq!(FirstBytes::parse(&REPLY_KEY), Some(FirstBytes::Frame(FrameKind::Reply)));
    assert_eq!(FirstBytes::parse(b"GET / HTTP/1.1\r\n"), None);
}

// RFC 5044 figures 5 and 6: a 42-byte ULPDU needs no pad; its FPDU has 48 bytes.
#[test]
fn fpdu_sizes_match_figures() {
    assert_eq!((pad_len(42), fpdu_len(42)), (0, 48));
    assert_eq!((pad_len(0), fpdu_len(0)), (2, 8));
    assert_eq!((pad_len(1), fpdu_len(1)), (1, 8));
}
