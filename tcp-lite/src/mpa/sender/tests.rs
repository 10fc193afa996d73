//! Tests of the sender: contents of its segments, and identical bytes in retransmissions.

use super::*;
use crate::mpa::testing::{Stream, ulpdu};
use crate::mpa::{MAX_MULPDU, Revision};
use proptest::prelude::*;
use std::cell::Cell;
use wire::crc32c::Digest;
use wire::ddp::{HeaderRepr, PackedHeader, TaggedRepr};
use wire::mpa::MIN_MULPDU;
use wire::{DdpVersion, Stag, TaggedOffset};

const START: u64 = 20;
const HEADER: usize = 14;

/// Source of messages, cut into ULPDUs with a header of 14 bytes. Each read of an unstable message returns different
/// bytes.
#[derive(Default)]
struct Source {
    /// Bytes of each message, and true if they are stable.
    messages: Vec<(Vec<u8>, bool)>,
    message: usize,
    offset: usize,
    reads: Cell<u8>,
    /// ULPDUs that the sender has taken, in order.
    given: Vec<(UlpduToken, usize)>,
    acknowledged: Vec<(UlpduToken, usize)>,
}

impl Source {
    fn with_lens(lens: &[usize]) -> Self {
        let messages = lens.iter().enumerate().map(|(i, len)| (ulpdu(i, *len), true)).collect();
        Source { messages, ..Source::default() }
    }

    fn into_unstable(mut self) -> Self {
        self.messages.iter_mut().for_each(|message| message.1 = false);
        self
    }

    fn header(token: UlpduToken) -> PackedHeader {
        let (stag, to) = (Stag(token.message), TaggedOffset(token.offset.into()));
        TaggedRepr { last: false, version: DdpVersion::V1, rsvd_ulp: 0x40, stag, to }.pack()
    }
}

impl UlpduSource for Source {
    fn next_len(&self, mulpdu: usize) -> Option<usize> {
        assert!((MIN_MULPDU..=MAX_MULPDU).contains(&mulpdu), "RFC 5044 §3: the range of MULPDU");
        let left = self.messages.get(self.message)?.0.len() - self.offset;
        Some(HEADER + left.min(mulpdu - HEADER))
    }

    fn next_is_stable(&self) -> bool {
        self.messages.get(self.message).is_none_or(|message| message.1)
    }

    fn next(&mut self, mulpdu: usize) -> Option<Outgoing> {
        let payload_len = self.next_len(mulpdu)? - HEADER;
        let token = UlpduToken { message: self.message as u32, offset: self.offset as u32 };
        let stable = self.messages[self.message].1;
        self.offset += payload_len;
        if self.offset == self.messages[self.message].0.len() {
            (self.message, self.offset) = (self.message + 1, 0);
        }
        self.given.push((token, payload_len));
        Some(Outgoing { token, header: Self::header(token), payload_len, stable })
    }

    fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
        let stable = self.messages[token.message as usize].1;
        Outgoing { token, header: Self::header(token), payload_len, stable }
    }

    fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let (message, stable) = &self.messages[token.message as usize];
        let mut at = token.offset as usize + at;
        for out in pieces {
            out.copy_from_slice(&message[at..at + out.len()]);
            at += out.len();
            if !stable {
                self.reads.set(self.reads.get().wrapping_add(1));
                out.iter_mut().for_each(|byte| *byte ^= self.reads.get());
            }
        }
    }

    fn on_acknowledged(&mut self, token: UlpduToken, payload_len: usize) {
        self.acknowledged.push((token, payload_len));
    }
}

fn params(markers: bool, crc: bool) -> Params {
    Params { revision: Revision::One, markers_tx: markers, markers_rx: false, crc, agreed: None }
}

/// A sender with its source, and the bytes that TCP has sent.
struct Bench {
    sender: Sender,
    source: Source,
    sent: Vec<u8>,
    segments: Vec<Range<usize>>,
    acknowledged: u64,
}

impl Bench {
    fn new(markers: bool, emss: usize, source: Source) -> Self {
        Bench {
            sender: Sender::new(&params(markers, true), START, emss),
            source,
            sent: Vec::new(),
            segments: Vec::new(),
            acknowledged: START,
        }
    }

    fn next(&self) -> u64 {
        START + self.sent.len() as u64
    }

    fn in_flight(&self) -> bool {
        self.acknowledged < self.next()
    }

    /// Lets the sender fill a segment of at most `room` bytes.
    fn fill(&mut self, room: usize) -> usize {
        let mut out = vec![0xee; room];
        let (next, in_flight) = (self.next(), self.in_flight());
        let mut sum = Some(Sum::default());
        let n = self.sender.fill(&mut self.source, next, in_flight, &mut out, &mut sum);
        if let Some(sum) = sum {
            assert_eq!(sum, Sum::default().add_bytes(&out[..n]));
        }
        assert!(out[n..].iter().all(|byte| *byte == 0xee), "nothing beyond the segment");
        if n > 0 {
            self.segments.push(self.sent.len()..self.sent.len() + n);
        }
        self.sent.extend_from_slice(&out[..n]);
        n
    }

    fn fill_all(&mut self, room: usize) {
        while self.fill(room) > 0 {}
    }

    fn refill(&mut self, range: Range<usize>) {
        let mut out = vec![0; range.len()];
        self.sender.refill(&self.source, START + range.start as u64, &mut out);
        assert_eq!(out, self.sent[range]);
    }

    fn acknowledge(&mut self, offset: usize) {
        self.acknowledged = START + offset as u64;
        self.sender.on_acknowledged(&mut self.source, self.acknowledged);
    }

    /// Returns the stream expected for the taken ULPDUs. Its payload bytes are correct for stable messages only.
    fn expected(&self, markers: bool) -> Stream {
        let mut stream = Stream::new(markers, true);
        for (token, len) in &self.source.given {
            let mut ulpdu = Source::header(*token).bytes().to_vec();
            let payload = &self.source.messages[token.message as usize].0[token.offset as usize..];
            ulpdu.extend_from_slice(&payload[..*len]);
            stream.fpdu(&ulpdu);
        }
        stream
    }
}

/// The sender reproduces figures 5 and 6 of RFC 5044 and of MPA's first draft byte by byte.
#[test]
fn rfc_5044_figures_are_encoded() {
    use crate::mpa::testing::{DRAFT, RFC, figure_5, figure_6, figure_ulpdu};
    struct Figures(Vec<Vec<u8>>, usize);
    impl UlpduSource for Figures {
        fn next_len(&self, _: usize) -> Option<usize> {
            self.0.get(self.1).map(Vec::len)
        }
        fn next_is_stable(&self) -> bool {
            true
        }
        fn next(&mut self, _: usize) -> Option<Outgoing> {
            let token = UlpduToken { message: self.1 as u32, offset: 0 };
            let outgoing = self.reframe(token, self.0.get(self.1)?.len() - 18);
            self.1 += 1;
            Some(outgoing)
        }
        fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing {
            let header = HeaderRepr::parse(&self.0[token.message as usize]).unwrap().pack();
            Outgoing { token, header, payload_len, stable: true }
        }
        fn read_pieces<'a>(
            &self,
            token: UlpduToken,
            at: usize,
            pieces: impl Iterator<Item = &'a mut [u8]>,
        ) {
            let mut payload = &self.0[token.message as usize][18 + at..];
            for out in pieces {
                let (piece, rest) = payload.split_at(out.len());
                out.copy_from_slice(piece);
                payload = rest;
            }
        }
        fn on_acknowledged(&mut self, _: UlpduToken, _: usize) {}
    }
    for (control, five, six) in [RFC, DRAFT] {
        let mut out = [0; 1448];
        let mut sender = Sender::new(&params(true, true), START, 1448);
        let mut source = Figures(vec![figure_ulpdu(control, 1)], 0);
        let n = sender.fill(&mut source, START, false, &mut out, &mut None);
        assert_eq!(out[..n], figure_5(control, five));

        let mut sender = Sender::new(&params(true, true), START, 1448);
        let mut source = Figures(vec![vec![0; 482], figure_ulpdu(control, 2)], 0);
        let n = sender.fill(&mut source, START, false, &mut out, &mut None);
        assert_eq!(out[492..n], figure_6(control, six));
    }
}

/// RFC 5044 appendix A.1: each segment begins with an FPDU and contains whole FPDUs.
#[test]
fn small_fpdus_are_packed() {
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[100, 200, 300, 5000, 0, 10]));
    bench.fill_all(1448);
    let stream = bench.expected(true);
    assert_eq!(bench.sent, stream.bytes);
    let b = stream.boundaries();
    for segment in &bench.segments {
        assert!(b.contains(&segment.start) && b.contains(&segment.end));
    }
    assert_eq!(bench.segments[0], 0..b[3], "three small FPDUs share a segment");
    assert_eq!(bench.segments.last().map(|s| s.end), Some(b[b.len() - 1]));
    assert_eq!((bench.sender.stats().packed, bench.sender.stats().cut), (2, 0));
    assert_eq!(bench.sender.stats().kept_max, 0, "stable sources need no copy");
}

/// RFC 5044 §4.5: segments are full, except for the bytes that MULPDU's worst case reserves.
#[test]
fn a_long_message_fills_segments() {
    for (markers, emss) in [(true, 1448), (false, 1448), (true, 8948), (true, 1447)] {
        let mut bench = Bench::new(markers, emss, Source::with_lens(&[100_000]));
        bench.fill_all(emss);
        assert_eq!(bench.sent, bench.expected(markers).bytes);
        let (last, full) = bench.segments.split_last().expect("segments");
        assert!(last.len() <= emss);
        // Unused at most: a marker, padding, and the remainder of EMSS modulo 4.
        assert!(full.iter().all(|s| s.len() <= emss && s.len() + 4 + emss % 4 + 3 >= emss));
    }
}

/// RFC 5044 §4.3: markers are placed correctly for all positions of a payload between markers.
#[test]
fn payloads_begin_and_end_anywhere_between_markers() {
    for before in 0..512 {
        for len in [0, 1, 3, 4, 507, 508, 509, 1016] {
            let mut bench = Bench::new(true, 8948, Source::with_lens(&[before, len]));
            bench.fill_all(8948);
            assert!(bench.sent == bench.expected(true).bytes, "{len} behind {before}");
        }
    }
}

/// draft-culley-iwarp-mpa-03 §7.1: FPDUPTR counts from the first byte of the FPDU, which may belong to a marker. This
/// applies to the draft's start-up only.
#[test]
fn first_draft_counts_fpduptr_from_first_byte_of_fpdu() {
    for (revision, from_marker) in
        [(Revision::Draft, true), (Revision::Zero, false), (Revision::One, false)]
    {
        for before in 0..512 {
            for len in [0, 480, 509, 1016, 1423] {
                let mut bench = Bench::new(true, 8948, Source::with_lens(&[before, len]));
                let params = Params { revision, ..params(true, true) };
                bench.sender = Sender::new(&params, START, 8948);
                bench.fill_all(8948);
                let mut stream = Stream { from_marker, ..Stream::new(true, true) };
                bench.expected(true).fpdus.iter().for_each(|(_, ulpdu)| {
                    stream.fpdu(ulpdu);
                });
                assert!(bench.sent == stream.bytes, "{revision:?}: {len} behind {before}");
                bench.refill(0..bench.sent.len());
            }
        }
    }
    let mut bench = Bench::new(true, 8948, Source::with_lens(&[600]));
    bench.sender =
        Sender::new(&Params { revision: Revision::Draft, ..params(true, true) }, START, 8948);
    bench.fill(8948);
    assert_eq!(bench.sent[..4], [0; 4], "the first FPDU begins with a marker");
    assert_eq!(bench.sent[512..516], [0, 0, 2, 0], "508 according to RFC 5044");
}

/// RFC 5044 §7.1.2 (7): the first bytes of Full Operation are a zero marker or, without markers, the length field.
#[test]
fn full_operation_starts_with_marker_or_length() {
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[10]));
    bench.fill(1448);
    assert_eq!(bench.sent[..6], [0, 0, 0, 0, 0, 24]);
    let mut bench = Bench::new(false, 1448, Source::with_lens(&[10]));
    bench.fill(1448);
    assert_eq!(bench.sent[..2], [0, 24]);
}

/// RFC 5044 §4.1, §4.4: with CRCs off, the CRC field is present.
#[test]
fn crc_off_writes_zero_in_crc_field() {
    let mut source = Source::with_lens(&[10]);
    let mut sender = Sender::new(&params(false, false), START, 1448);
    let mut out = [0xee; 100];
    let n = sender.fill(&mut source, START, false, &mut out, &mut None);
    assert_eq!(n, 2 + 24 + 2 + 4);
    assert_eq!(out[n - 6..n], [0; 6], "pad and CRC field");
}

/// The copy of the payload also computes the segment's checksum if all payloads are long, CRCs are on and markers off.
/// A returned sum is always correct.
#[test]
fn copy_computes_segment_checksum() {
    for len in (0..600).chain([1000, 1411, 1412, 1413, 1414, 1415, 5000]) {
        for (markers, crc, lens) in [
            (false, true, vec![len]),
            (false, true, vec![len, 300, len]),
            (false, true, vec![300, 1, 300]),
            (true, true, vec![len]),
            (false, false, vec![len]),
        ] {
            let mut source = Source::with_lens(&lens);
            let mut sender = Sender::new(&params(markers, crc), START, 8948);
            let (mut out, mut sum) = ([0xee; 8948], Some(Sum::default()));
            let n = sender.fill(&mut source, START, false, &mut out, &mut sum);
            let all_long = lens.iter().all(|len| Digest::is_one_pass(*len));
            assert_eq!(sum.is_some(), all_long && crc && !markers, "{lens:?}");
            assert_eq!(
                sum.unwrap_or(Sum::default().add_bytes(&out[..n])),
                Sum::default().add_bytes(&out[..n])
            );
            // Without a sum the bytes are the same.
            let (mut again, mut source) = ([0xee; 8948], Source::with_lens(&lens));
            let mut sender = Sender::new(&params(markers, crc), START, 8948);
            sender.fill(&mut source, START, false, &mut again, &mut None);
            assert!(out == again, "{lens:?}");
        }
    }
}

/// The sender waits only while data is in flight, because an acknowledgement can then open the window.
#[test]
fn sender_waits_for_window_that_fits_next_fpdu() {
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[4000]));
    assert_eq!(bench.fill(1448), 1448);
    assert_eq!(bench.fill(700), 0, "an acknowledgement will open the window");
    bench.acknowledge(bench.sent.len());
    let n = bench.fill(700);
    assert!(n > 600, "a smaller FPDU, whole");
    assert!(bench.expected(true).boundaries().contains(&bench.sent.len()));
    bench.acknowledge(bench.sent.len());
    // The window is too small even for the minimum MULPDU of 128: the FPDU is cut.
    assert_eq!(bench.fill(50), 50);
    assert!(bench.sender.is_cut() && bench.sender.has_data(&bench.source));
    assert_eq!(bench.fill(1), 1, "the remainder uses any room");
    let rest = bench.fill(1448);
    assert!(rest > 0 && !bench.sender.is_cut());
    assert_eq!(bench.sent, bench.expected(true).bytes);
    assert!(bench.fill(1448) > 0, "the next segment begins with an FPDU again");
    bench.fill_all(1448);
    assert_eq!(bench.sent, bench.expected(true).bytes);
    assert_eq!(bench.sender.stats().cut, 3);
}

/// RFC 5044 §4.5: MULPDU is at least 128. With a smaller EMSS, an FPDU extends over several segments.
#[test]
fn tiny_emss_cuts_fpdus() {
    let mut bench = Bench::new(true, 64, Source::with_lens(&[1000]));
    assert_eq!(bench.sender.mulpdu(), 128);
    bench.fill_all(64);
    assert_eq!(
        bench.source.next_len(128),
        None,
        "all is sent without waiting for acknowledgements"
    );
    assert_eq!(bench.sent, bench.expected(true).bytes);
    assert!(bench.source.given.iter().all(|(_, len)| *len <= 128 - HEADER));
    let n = bench.sent.len();
    bench.refill(0..64);
    bench.refill(64..n);
    bench.acknowledge(n);
    assert_eq!(bench.source.acknowledged, bench.source.given);
    assert_eq!(bench.sender.stats().kept, 0);
}

/// RFC 4821 §7: the probe is longer than EMSS, but its FPDUs are not, and their sizes are nearly equal. Each of these
/// FPDUs can begin a segment of a retransmission.
#[test]
fn probe_holds_fpdus_that_each_fit_emss() {
    for (markers, probe) in
        [(true, 1460), (false, 1460), (true, 2896), (true, 2897), (false, 4000), (true, 8948)]
    {
        let mut bench = Bench::new(markers, 1448, Source::with_lens(&[100_000]));
        let mut out = vec![0xee; probe];
        let n = bench.sender.fill_probe(&mut bench.source, START, &mut out);
        assert!(out[n..].iter().all(|byte| *byte == 0xee));
        bench.sent.extend_from_slice(&out[..n]);
        let stream = bench.expected(markers);
        assert_eq!(bench.sent, stream.bytes);
        let boundaries = stream.boundaries();
        let lens: Vec<_> = boundaries.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(lens.len(), probe.div_ceil(1448), "{markers} {probe}: {lens:?}");
        let (least, most) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
        assert!(*most <= 1448 && most - least <= 8, "{markers} {probe}: {lens:?}");
        assert!((probe - 4 * lens.len()..=probe).contains(&n), "{markers} {probe}: {n}");
        assert_eq!((bench.sender.stats().packed, bench.sender.stats().cut), (1, 0));
        bench.refill(0..boundaries[1]);
    }
}

#[test]
fn probe_needs_enough_data_and_no_cut_fpdu() {
    let mut out = vec![0; 2000];
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[500]));
    let n = bench.sender.fill_probe(&mut bench.source, START, &mut out);
    assert_eq!((n, bench.sender.stats().packed), (bench.expected(true).bytes.len(), 0));
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[4000]));
    assert_eq!(bench.fill(50), 50);
    assert!(bench.sender.is_cut());
    assert_eq!(bench.sender.fill_probe(&mut bench.source, START + 50, &mut out), 0);
    let mut bench = Bench::new(true, 64, Source::with_lens(&[4000]));
    assert_eq!(
        bench.sender.fill_probe(&mut bench.source, START, &mut out),
        0,
        "an FPDU is longer than EMSS"
    );
}

/// A shorter retransmission ends after the last whole FPDU that fits. A first FPDU that does not fit is cut, and its
/// remainder is sent in a separate segment.
#[test]
fn shorter_resend_is_cut_at_fpdu_boundary() {
    for markers in [false, true] {
        let mut bench = Bench::new(markers, 1448, Source::with_lens(&[300, 300, 300]));
        bench.fill_all(1448);
        assert_eq!(bench.segments.len(), 1);
        let b = bench.expected(markers).boundaries();
        let cut = |from: usize, to: usize| from + bench.sender.cut(START + from as u64, to - from);
        assert_eq!(cut(0, b[3]), b[3]);
        assert_eq!(cut(0, b[3] - 1), b[2]);
        assert_eq!(cut(0, b[2]), b[2]);
        assert_eq!(cut(0, b[2] - 1), b[1]);
        assert_eq!(cut(0, b[1]), b[1]);
        assert_eq!(cut(0, b[1] - 1), b[1] - 1, "the second FPDU does not fit");
        assert_eq!(cut(100, b[3]), b[1], "the rest of an FPDU");
        assert_eq!(cut(b[1], b[3]), b[3]);
        assert_eq!(cut(b[1] + 8, b[2] - 8), b[2] - 8);
    }
}

/// After a reduction of EMSS, new FPDUs are smaller. Unacknowledged FPDUs are copied once and cut.
#[test]
fn smaller_emss_cuts_unacknowledged_fpdus_from_copy() {
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[6000]));
    bench.fill(1448);
    bench.fill(1448);
    bench.sender.set_emss(500);
    assert_eq!(bench.sender.mulpdu(), 500 - (6 + 4));
    bench.refill(0..500);
    bench.refill(500..1000);
    bench.refill(1000..1448);
    let kept = bench.sender.stats().kept;
    assert!((1400..1449).contains(&kept), "one FPDU is kept: {kept}");
    bench.fill_all(500);
    assert_eq!(bench.sent, bench.expected(true).bytes);
    bench.sender.set_emss(1448);
    assert_eq!(bench.sender.mulpdu(), 1448 - 18);
}

/// The sender keeps copies of FPDUs from an unstable source and retransmits the copies.
#[test]
fn unstable_source_is_resent_from_copy() {
    let mut bench = Bench::new(true, 1448, Source::with_lens(&[3000, 100]).into_unstable());
    bench.fill_all(1448);
    let n = bench.sent.len();
    assert_eq!(bench.sender.stats().kept, n as u64);
    bench.refill(0..n);
    let first = bench.segments[0].clone();
    bench.refill(first.clone());
    bench.acknowledge(first.end);
    assert_eq!(bench.sender.stats().kept, (n - first.end) as u64);
    bench.refill(first.end..n);
    bench.acknowledge(n);
    assert_eq!((bench.sender.stats().kept, bench.sender.is_acknowledged()), (0, true));
}

#[test]
fn ulpdu_is_acknowledged_with_last_byte_of_fpdu() {
    let mut bench = Bench::new(false, 1448, Source::with_lens(&[100, 100]));
    bench.fill_all(1448);
    let b = bench.expected(false).boundaries();
    bench.acknowledge(b[1] - 1);
    assert_eq!(bench.source.acknowledged, []);
    bench.acknowledge(b[1] + 5);
    assert_eq!(bench.source.acknowledged, bench.source.given[..1]);
    bench.refill(b[1] + 5..b[2]);
    bench.acknowledge(b[2]);
    assert_eq!(bench.source.acknowledged, bench.source.given);
}

#[derive(Clone, Debug)]
enum Step {
    Fill(usize),
    Refill(prop::sample::Index, prop::sample::Index),
    Acknowledge(prop::sample::Index),
    Emss(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let emss = || prop_oneof![40usize..200, 200usize..1600, Just(1448), Just(8948)];
    prop::collection::vec(
        prop_oneof![
            4 => prop_oneof![1usize..200, 200usize..9000, Just(9000)].prop_map(Step::Fill),
            2 => any::<(prop::sample::Index, prop::sample::Index)>()
                .prop_map(|(a, b)| Step::Refill(a, b)),
            2 => any::<prop::sample::Index>().prop_map(Step::Acknowledge),
            1 => emss().prop_map(Step::Emss),
        ],
        1..60,
    )
}

proptest! {
    /// For any order of calls, the stream consists of one FPDU per ULPDU, and retransmitted bytes are unchanged.
    #[test]
    fn any_fill_and_refill_order_yields_rfc_stream(
        lens in prop::collection::vec(prop_oneof![0usize..100, 100usize..6000], 1..6),
        markers: bool,
        stable: bool,
        steps in steps(),
    ) {
        let source = if stable { Source::with_lens(&lens) } else { Source::with_lens(&lens).into_unstable() };
        let mut bench = Bench::new(markers, 1448, source);
        let mut emss = 1448;
        for step in steps {
            let (low, high) = ((bench.acknowledged - START) as usize, bench.sent.len());
            match step {
                Step::Fill(room) => {
                    let room = room.min(emss);
                    let (data, idle) = (bench.sender.has_data(&bench.source), !bench.in_flight());
                    let n = bench.fill(room);
                    // With nothing in flight, the sender must write bytes into any room.
                    prop_assert!(n > 0 || !data || !idle);
                }
                Step::Refill(a, b) if low < high => {
                    let (a, b) = (low + a.index(high - low), low + b.index(high - low + 1));
                    bench.refill(a.min(b)..a.max(b).max(a.min(b) + 1));
                }
                Step::Acknowledge(at) if low < high => bench.acknowledge(low + 1 + at.index(high - low)),
                Step::Refill(..) | Step::Acknowledge(_) => {}
                Step::Emss(new) => {
                    emss = new;
                    bench.sender.set_emss(emss);
                }
            }
        }
        let n = bench.sent.len();
        if n > (bench.acknowledged - START) as usize {
            bench.acknowledge(n);
        }
        loop {
            let n = bench.fill(emss);
            if n == 0 {
                break;
            }
            bench.acknowledge(bench.sent.len());
        }
        prop_assert_eq!(&bench.source.acknowledged, &bench.source.given);
        prop_assert_eq!(bench.sender.stats().kept, 0);
        let expected = bench.expected(markers);
        prop_assert_eq!(bench.sent.len(), expected.bytes.len());
        if stable {
            prop_assert_eq!(bench.sent, expected.bytes);
        }
    }
}
