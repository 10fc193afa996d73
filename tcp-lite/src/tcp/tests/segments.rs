//! Encoding of segments (RFC 9293 §3.1, §3.2).

use proptest::prelude::*;

use crate::tcp::segment::DataHeader;
use crate::tcp::{
    DropReason, Flags, MAX_OPTIONS_LEN, MAX_SACK_BLOCKS, Options, Segment, SeqNumber, Timestamps,
};
use wire::crc32c::Sum;

fn any_options() -> impl Strategy<Value = Options> {
    let blocks = prop::collection::vec((any::<u32>(), any::<u32>()), 0..=MAX_SACK_BLOCKS);
    let stamps = proptest::option::of((any::<u32>(), any::<u32>()));
    (any::<Option<u16>>(), any::<Option<u8>>(), any::<bool>(), stamps, blocks).prop_map(
        |(mss, window_scale, sack_permitted, stamps, blocks)| Options {
            mss,
            window_scale,
            sack_permitted,
            timestamps: stamps.map(|(val, ecr)| Timestamps { val, ecr }),
            sack: blocks.into_iter().map(|(l, r)| (SeqNumber(l), SeqNumber(r))).collect(),
        },
    )
}

proptest! {
    // RFC 9293 §3.1: all fields are equal. SACK blocks that do not fit 40 bytes of options are not written.
    #[test]
    fn written_segment_parses_to_equal_value(
        ports in (1u16.., 1u16..),
        seq: u32,
        ack: u32,
        flags: u8,
        window: u16,
        options in any_options(),
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let (src_port, dst_port) = ports;
        let seg = Segment {
            src_port,
            dst_port,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: Flags(flags),
            window,
            options,
            payload: &payload,
            ce: false,
            text_crc: None,
        };
        let mut bytes = vec![0xaa; seg.wire_len()];
        prop_assert_eq!(seg.emit(&mut bytes), bytes.len());
        prop_assert!(seg.options.len() <= MAX_OPTIONS_LEN && seg.options.len().is_multiple_of(4));
        prop_assert_eq!(&bytes[16..20], &[0; 4], "checksum and urgent pointer");
        let mut read = Segment::parse(&bytes).unwrap();
        prop_assert!(seg.options.sack.starts_with(&read.options.sack));
        let others = Options { sack: Default::default(), ..seg.options.clone() };
        let fit = (MAX_OPTIONS_LEN - others.len() - 4) / 8;
        prop_assert_eq!(read.options.sack.len(), seg.options.sack.len().min(fit));
        read.options.sack.clone_from(&seg.options.sack);
        prop_assert_eq!(read, seg);
    }

    // RFC 9293 §3.1 MUST-7: arbitrary bytes give a segment or an error, never a panic.
    #[test]
    fn arbitrary_segment_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(seg) = Segment::parse(&bytes) {
            prop_assert!(seg.payload.len() <= bytes.len() - 20);
        }
    }

    // RFC 9293 §3.1 MUST-7: arbitrary options after a valid fixed header give options or an error.
    #[test]
    fn arbitrary_option_bytes_parse_or_are_refused(options in prop::collection::vec(any::<u8>(), 0..=10)) {
        let mut bytes = bytes_with(&[]);
        let words = options.len() / 4;
        bytes.extend(&options[..4 * words]);
        bytes[12] = ((5 + words) << 4) as u8;
        match Segment::parse(&bytes) {
            Ok(seg) => prop_assert!(seg.payload.is_empty()),
            Err(reason) => prop_assert_eq!(reason, DropReason::BadOption),
        }
    }
}

fn bytes_with(options: &[u8]) -> Vec<u8> {
    let seg = Segment { src_port: 1, dst_port: 2, ..Segment::default() };
    let mut bytes = vec![0; 20];
    seg.emit(&mut bytes);
    bytes.extend(options);
    bytes[12] = ((5 + options.len() / 4) << 4) as u8;
    bytes
}

fn options_of(bytes: &[u8]) -> Result<Options, DropReason> {
    Segment::parse(&bytes_with(bytes)).map(|s| s.options)
}

// RFC 9293 §3.1 MUST-5, MUST-6: unknown options are skipped by their length, in any segment and order.
#[test]
fn unknown_options_are_skipped() {
    let options = options_of(&[254, 4, 0, 0, 1, 2, 4, 0x05, 0xb4, 1, 1, 0]).unwrap();
    assert_eq!(options.mss, Some(1460));
}

// RFC 9293 §3.2: the bytes after option 0 are padding.
#[test]
fn bytes_after_end_of_option_list_are_ignored() {
    let options = options_of(&[0, 2, 0, 0]).unwrap();
    assert_eq!(options, Options::default());
}

// RFC 9293 §3.1 MUST-7: lengths that are too short, too long or wrong for the kind.
#[test]
fn illegal_option_lengths_are_refused() {
    for options in [
        [2, 0, 0, 0],
        [2, 1, 0, 0],
        [2, 3, 0, 0],
        [2, 5, 0, 0],
        [1, 1, 1, 2],
        [3, 2, 0, 0],
        [4, 3, 0, 0],
        [5, 4, 0, 0],
        [8, 4, 0, 0],
        [254, 1, 0, 0],
        [254, 200, 0, 0],
    ] {
        assert_eq!(options_of(&options), Err(DropReason::BadOption), "{options:?}");
    }
}

// RFC 2018 §3: four blocks fill the options of a header.
#[test]
fn four_sack_blocks_are_read() {
    let mut bytes = vec![1, 1, 5, 34];
    bytes.extend((0..32u8).collect::<Vec<_>>());
    let options = options_of(&bytes).unwrap();
    assert_eq!(options.sack.len(), 4);
    assert_eq!(options.sack[3], (SeqNumber(0x1819_1a1b), SeqNumber(0x1c1d_1e1f)));
}

// RFC 9293 §3.1: a data offset that does not cover the fixed header, or exceeds the segment; a port of zero.
#[test]
fn bad_headers_are_refused() {
    let good = bytes_with(&[]);
    assert!(Segment::parse(&good).is_ok());
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Segment::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(12, 4 << 4), Err(DropReason::BadHeader));
    assert_eq!(with(12, 6 << 4), Err(DropReason::BadHeader));
    assert_eq!(with(1, 0), Err(DropReason::BadHeader));
    assert_eq!(with(3, 0), Err(DropReason::BadHeader));
    assert_eq!(Segment::parse(&good[..19]), Err(DropReason::BadHeader));
}

// RFC 9293 §3.4: SYN and FIN each occupy one sequence number, RST none.
#[test]
fn syn_and_fin_take_sequence_numbers() {
    let seg = |flags, payload| Segment { flags, payload, ..Segment::default() }.seq_len();
    assert_eq!(seg(Flags::SYN, &[][..]), 1);
    assert_eq!(seg(Flags::FIN, &[1, 2]), 3);
    assert_eq!(seg(Flags::SYN.with(Flags::FIN), &[1]), 3);
    assert_eq!(seg(Flags::ACK.with(Flags::RST), &[]), 0);
}

#[test]
fn data_header_equals_emitted_segment_header() {
    for timestamps in [None, Some(Timestamps { val: 0x0102_0304, ecr: 0xfffe_fdfc })] {
        let segment = Segment {
            src_port: 0xfedc,
            dst_port: 0x1234,
            seq: SeqNumber(0x89ab_cdef),
            ack: SeqNumber(0x7654_3210),
            flags: Flags::ACK.with(Flags::PSH),
            window: 0xabcd,
            options: Options { timestamps, ..Options::default() },
            payload: b"data",
            ce: false,
            text_crc: None,
        };
        let mut whole = vec![0xff; segment.wire_len()];
        let end = segment.emit(&mut whole) - segment.payload.len();
        let mut head = vec![0xff; end];
        let Segment { src_port, dst_port, seq, ack, flags, window, .. } = segment;
        for (flags, push) in [(flags, false), (flags, true), (Flags::ACK, true)] {
            let header = DataHeader::new(src_port, dst_port, ack, flags, window, timestamps);
            head.fill(0xff);
            let fields = header.write(seq, push, &mut head);
            assert_eq!(head, whole[..end]);
            assert_eq!(Sum::from_fields(fields), Sum::default().add_bytes(&head));
        }
    }
}
