//! Tests of the data source: RFC 5041 §4, §5.2, §5.3, §5.4, §6.2.

use std::sync::Arc;

use proptest::prelude::*;
use wire::ddp::HeaderRepr;

use super::message_len;
use crate::llp::{Outgoing, UlpduSource, UlpduToken};
use crate::*;

mod gather;

type S = Stream<VecMemory>;

fn stream() -> S {
    Stream::new(StreamId(1), PdId(1), StreamConfig { max_posts: 4, ..StreamConfig::default() })
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

fn tagged(to: u64, len: usize, cookie: u64) -> Message<VecMemory> {
    let source = Source::Bytes(Arc::from(bytes(len)));
    Message::Tagged {
        stag: Stag(5),
        to: TaggedOffset(to),
        rsvd_ulp: 0x77,
        source,
        cookie: Cookie::user(cookie),
    }
}

fn untagged(qn: u32, len: usize, cookie: u64) -> Message<VecMemory> {
    let source = Source::Bytes(Arc::from(bytes(len)));
    Message::Untagged {
        qn: Qn(qn),
        rsvd_ulp: [9, 8, 7, 6, 5],
        source,
        cookie: Cookie::user(cookie),
    }
}

fn header(out: &Outgoing) -> HeaderRepr {
    HeaderRepr::parse(&out.header.bytes()).unwrap()
}

fn payload(stream: &S, out: &Outgoing) -> Vec<u8> {
    let mut bytes = vec![0xee; out.payload_len];
    stream.read_payload(out.token, 0, &mut bytes);
    bytes
}

fn next_all(stream: &mut S, mulpdu: usize) -> Vec<Outgoing> {
    core::iter::from_fn(|| stream.next(mulpdu)).collect()
}

fn events(stream: &mut S) -> Vec<Event> {
    core::iter::from_fn(|| stream.poll_event()).collect()
}

fn is_last(out: &Outgoing) -> bool {
    match header(out) {
        HeaderRepr::Tagged(h) => h.last,
        HeaderRepr::Untagged(h) => h.last,
    }
}

// RFC 5041 §5.2: the RFC's example of an untagged message of 2048 bytes at MULPDU 1500.
#[test]
fn untagged_segmentation_matches_rfc_5041_example() {
    let mut stream = stream();
    stream.post(untagged(0, 2048, 1)).unwrap();
    let segments = next_all(&mut stream, 1500);
    let seen: Vec<_> = segments
        .iter()
        .map(|s| match header(s) {
            HeaderRepr::Untagged(h) => (h.mo.0, s.payload_len, h.msn.0, h.last),
            HeaderRepr::Tagged(_) => panic!("tagged"),
        })
        .collect();
    assert_eq!(seen, [(0, 1482, 1, false), (1482, 566, 1, true)]);
}

// RFC 5041 §5.2: the RFC's example of a tagged message, with initial TO 16384.
#[test]
fn tagged_segmentation_matches_rfc_5041_example() {
    let mut stream = stream();
    stream.post(tagged(16384, 2048, 1)).unwrap();
    let segments = next_all(&mut stream, 1500);
    let seen: Vec<_> = segments
        .iter()
        .map(|s| match header(s) {
            HeaderRepr::Tagged(h) => (h.to.0, s.payload_len, h.stag.0, h.last),
            HeaderRepr::Untagged(_) => panic!("untagged"),
        })
        .collect();
    assert_eq!(seen, [(16384, 1486, 5, false), (17870, 562, 5, true)]);
}

// RFC 5041 §5.2: a zero-length message has exactly one segment.
#[test]
fn a_zero_length_message_takes_one_segment() {
    let mut stream = stream();
    stream.post(tagged(3, 0, 1)).unwrap();
    stream.post(untagged(0, 0, 2)).unwrap();
    let segments = next_all(&mut stream, 1500);
    assert_eq!(segments.iter().map(Outgoing::len).collect::<Vec<_>>(), [14, 18]);
    assert!(segments.iter().all(is_last));
    for s in segments {
        stream.on_acknowledged(s.token, 0);
    }
    assert_eq!(
        events(&mut stream),
        [
            Event::Sent { cookie: Cookie::user(1), messages: 1 },
            Event::Sent { cookie: Cookie::user(2), messages: 1 }
        ]
    );
}

// RFC 5041 §4.3: the MSN of each queue starts at one, grows by one with each message, and wraps.
#[test]
fn msn_counts_per_queue_and_wraps() {
    let mut stream = stream();
    let mut msns = |qns: &[u32]| -> Vec<u32> {
        qns.iter().for_each(|qn| stream.post(untagged(*qn, 1, 0)).unwrap());
        let sent = next_all(&mut stream, 128);
        sent.iter().for_each(|s| stream.on_acknowledged(s.token, 1));
        sent.iter()
            .map(|s| match header(s) {
                HeaderRepr::Untagged(h) => h.msn.0,
                HeaderRepr::Tagged(_) => panic!("tagged"),
            })
            .collect()
    };
    assert_eq!(msns(&[0, 7, 0]), [1, 1, 2]);
    assert_eq!(msns(&[7, 0]), [2, 3]);
    let mut stream = self::stream();
    stream.start_queue_at(Qn(0), Msn(u32::MAX));
    for expected in [u32::MAX, 0, 1] {
        stream.post(untagged(0, 1, 0)).unwrap();
        let out = stream.next(128).unwrap();
        assert!(matches!(header(&out), HeaderRepr::Untagged(h) if h.msn == Msn(expected)));
    }
}

// RFC 5041 §4.2, §4.3: every segment has the ULP's RsvdULP. §4.1: DV is one.
#[test]
fn rsvd_ulp_and_version_are_in_every_segment() {
    let mut stream = stream();
    stream.post(tagged(0, 500, 1)).unwrap();
    stream.post(untagged(0, 500, 2)).unwrap();
    for out in next_all(&mut stream, 128) {
        match header(&out) {
            HeaderRepr::Tagged(h) => assert_eq!((h.rsvd_ulp, h.stag), (0x77, Stag(5))),
            HeaderRepr::Untagged(h) => assert_eq!((h.rsvd_ulp, h.qn), ([9, 8, 7, 6, 5], Qn(0))),
        }
        assert_eq!(header(&out).version(), DdpVersion::V1);
    }
}

// RFC 5041 §5.3: messages are sent one after the other in the order of posting.
#[test]
fn messages_are_segmented_in_posting_order() {
    let mut stream = stream();
    for cookie in 0..4 {
        stream.post(untagged(cookie as u32, 300, cookie)).unwrap();
    }
    let segments = next_all(&mut stream, 128);
    let order: Vec<_> = segments.iter().map(|s| (s.token.message, s.token.offset)).collect();
    assert!(order.is_sorted());
    for s in &segments {
        stream.on_acknowledged(s.token, s.payload_len);
    }
    let expected =
        [0, 1, 2, 3].map(|cookie| Event::Sent { cookie: Cookie::user(cookie), messages: 1 });
    assert_eq!(events(&mut stream), expected);
}

proptest! {
    // RFC 5041 §4.1, §5.2: segments have at most MULPDU bytes. MULPDU may change between segments (§3 (1), (2)). All
    // data is sent, and only the last segment has L.
    #[test]
    fn segments_tile_the_message_under_mulpdu_changes(
        len in 0usize..5000, is_tagged: bool, is_region: bool, to in 0u64..1 << 60, cut in 1usize..600,
        mulpdus in proptest::collection::vec(128usize..700, 1..8),
    ) {
        let mut stream = stream();
        let mut message = if is_tagged { tagged(to, len, 1) } else { untagged(3, len, 1) };
        if is_region {
            let (Message::Tagged { source, .. } | Message::Untagged { source, .. }) = &mut message;
            let memory = VecMemory::from_vec([vec![0xdd; 70], bytes(len)].concat());
            *source = Source::Region { memory, offset: 70, len: len as u32 };
        }
        stream.post(message).unwrap();
        let mut mulpdus = mulpdus.into_iter().cycle();
        let mut collected = Vec::new();
        let mut sent = Vec::new();
        loop {
            let mulpdu = mulpdus.next().unwrap();
            let expected = stream.next_len(mulpdu);
            let Some(out) = stream.next(mulpdu) else { break };
            prop_assert_eq!(expected, Some(out.len()));
            prop_assert!(out.len() <= mulpdu);
            match header(&out) {
                HeaderRepr::Tagged(h) => prop_assert_eq!(h.to.0, to + collected.len() as u64),
                HeaderRepr::Untagged(h) => prop_assert_eq!(h.mo.0 as usize, collected.len()),
            }
            collected.extend(payload(&stream, &out));
            prop_assert_eq!(is_last(&out), collected.len() == len);
            sent.push(out);
        }
        prop_assert_eq!(collected, bytes(len));
        // Any segment can be framed again, with the same bytes.
        for out in &sent {
            let reframed = stream.reframe(out.token, out.payload_len);
            prop_assert_eq!(&reframed.header, &out.header);
            let at = out.payload_len / 3;
            let mut tail = vec![0; out.payload_len - at];
            stream.read_payload(out.token, at, &mut tail);
            prop_assert_eq!(&tail[..], &payload(&stream, &reframed)[at..]);
            let mut pieces = vec![0; tail.len()];
            stream.read_pieces(out.token, at, pieces.chunks_mut(cut));
            prop_assert_eq!(pieces, tail);
        }
        for (i, out) in sent.iter().enumerate() {
            prop_assert_eq!(events(&mut stream), []);
            prop_assert_eq!(stream.outstanding(), 1, "before {}", i);
            stream.on_acknowledged(out.token, out.payload_len);
        }
        // RFC 5041 §5.4: a message is complete when the peer's LLP has acknowledged all of it.
        prop_assert_eq!(events(&mut stream), [Event::Sent { cookie: Cookie::user(1), messages: 1 }]);
        prop_assert_eq!(stream.outstanding(), 0);
    }
}

// The LLP should pass a MULPDU of at least 128 (RFC 5044 §4.5); a lower value is raised to 128.
#[test]
fn mulpdu_below_128_counts_as_128() {
    let mut stream = stream();
    stream.post(tagged(0, 1000, 1)).unwrap();
    assert_eq!(stream.next_len(10), Some(128));
    assert_eq!(stream.next(0).unwrap().len(), 128);
}

// RFC 5041 §5.2: a message must lie within its source region, and its TO range must not wrap.
#[test]
fn invalid_messages_are_refused_at_post() {
    let mut stream = stream();
    let memory = VecMemory::new(100);
    let source = Source::Region { memory, offset: 90, len: 11 };
    let message = Message::Untagged {
        qn: Qn(0),
        rsvd_ulp: [0; 5],
        source: source.clone(),
        cookie: Cookie::user(0),
    };
    let out_of_bounds = PostError::OutOfBounds { offset: 90, end: 101, len: 100 };
    assert_eq!(stream.post(message), Err(out_of_bounds));
    assert_eq!(
        stream.post(tagged(u64::MAX - 1, 2, 0)),
        Err(PostError::ToWrap { to: u64::MAX - 1, len: 2 })
    );
    assert_eq!(stream.post(tagged(u64::MAX - 2, 2, 0)), Ok(()));
}

// RFC 5041 §5.2: a message has less than 2^32 bytes.
#[test]
fn message_of_4_gib_is_refused() {
    for len in [0, 1, u64::from(u32::MAX)] {
        assert_eq!(message_len(len).map(u64::from), Ok(len));
    }
    for len in [1 << 32, (1 << 32) + 7, u64::MAX] {
        assert_eq!(message_len(len), Err(PostError::TooLong(len)));
    }
}

#[test]
fn posts_are_bounded() {
    let mut stream = stream();
    for cookie in 0..4 {
        stream.post(tagged(0, 1, cookie)).unwrap();
    }
    assert_eq!(stream.post(tagged(0, 1, 4)), Err(PostError::Full));
    let out = stream.next(128).unwrap();
    assert_eq!(stream.post(tagged(0, 1, 4)), Err(PostError::Full));
    stream.on_acknowledged(out.token, 1);
    assert_eq!(stream.post(tagged(0, 1, 4)), Ok(()));
}

#[test]
fn next_is_stable_follows_the_region() {
    let memory = VecMemory::from_vec(bytes(300));
    let message = |memory: VecMemory| {
        let source = Source::Region { memory, offset: 100, len: 200 };
        Message::Tagged {
            stag: Stag(1),
            to: TaggedOffset(0),
            rsvd_ulp: 0,
            source,
            cookie: Cookie::user(0),
        }
    };
    let mut stream = stream();
    stream.post(message(memory.clone())).unwrap();
    stream.post(message(memory.into_stable())).unwrap();
    stream.post(tagged(0, 200, 1)).unwrap();
    let segments = next_all(&mut stream, 1000);
    assert_eq!(segments.iter().map(|s| s.stable).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(payload(&stream, &segments[0]), bytes(300)[100..]);
}

// RFC 5041 §6.2.1: after a graceful close, posts are refused and posted messages are still sent.
#[test]
fn closed_stream_sends_posted_messages_and_refuses_more() {
    let mut stream = stream();
    stream.post(tagged(0, 300, 1)).unwrap();
    stream.close();
    assert!(stream.is_closed() && stream.has_unsent());
    assert_eq!(stream.post(tagged(0, 1, 2)), Err(PostError::Closed));
    let segments = next_all(&mut stream, 200);
    assert!(!stream.has_unsent());
    for s in segments {
        stream.on_acknowledged(s.token, s.payload_len);
    }
    assert_eq!(events(&mut stream), [Event::Sent { cookie: Cookie::user(1), messages: 1 }]);
}

// RFC 5041 §6.2.2: after a failure, all outstanding messages are flushed.
#[test]
fn failure_flushes_outstanding_messages() {
    let mut stream = stream();
    for cookie in 0..3 {
        stream.post(tagged(0, 300, cookie)).unwrap();
    }
    let first = stream.next(200).unwrap();
    stream.fail(Failure::LlpLost);
    stream.fail(Failure::Aborted);
    let expected = [
        Event::Flushed { cookie: Cookie::user(0) },
        Event::Flushed { cookie: Cookie::user(1) },
        Event::Flushed { cookie: Cookie::user(2) },
        Event::Failed(Failure::LlpLost),
    ];
    assert_eq!(events(&mut stream), expected);
    assert_eq!(stream.post(tagged(0, 1, 3)), Err(PostError::Closed));
    // Later requests of the LLP find no message and have no effect.
    assert!(stream.next(200).is_none());
    assert!(stream.reframe(first.token, first.payload_len).is_empty());
    let mut out = [1; 4];
    stream.read_pieces(first.token, 0, out.chunks_mut(3));
    assert_eq!(out, [0; 4]);
    stream.on_acknowledged(first.token, first.payload_len);
    assert_eq!(events(&mut stream), []);
}

// RFC 5041 §7.1: one additional message is sent before the stream ends.
#[test]
fn last_message_is_next_and_flushes_the_rest() {
    let mut stream = stream();
    stream.post(tagged(0, 100, 0)).unwrap();
    stream.post(tagged(0, 500, 1)).unwrap();
    stream.post(tagged(0, 500, 2)).unwrap();
    stream.post(tagged(0, 500, 3)).unwrap();
    let sent = [stream.next(200).unwrap(), stream.next(200).unwrap()];
    // The last message is not subject to the bound on posts.
    stream.post_last(untagged(2, 10, 9)).unwrap();
    assert_eq!(
        events(&mut stream),
        [Event::Flushed { cookie: Cookie::user(2) }, Event::Flushed { cookie: Cookie::user(3) }]
    );
    assert_eq!(stream.post(tagged(0, 1, 4)), Err(PostError::Closed));
    assert_eq!(stream.post_last(tagged(0, 1, 4)), Err(PostError::Closed));
    let last = stream.next(200).unwrap();
    assert!(matches!(header(&last), HeaderRepr::Untagged(h) if h.qn == Qn(2) && h.msn == Msn(1)));
    assert!(stream.next(200).is_none());
    // The sent segments of the truncated message can be framed again unchanged. The message is flushed when its sent
    // part is acknowledged.
    assert_eq!(stream.reframe(sent[1].token, sent[1].payload_len).header, sent[1].header);
    assert!(!is_last(&sent[1]));
    stream.on_acknowledged(sent[0].token, 100);
    stream.on_acknowledged(sent[1].token, sent[1].payload_len);
    stream.on_acknowledged(last.token, 10);
    let expected = [
        Event::Sent { cookie: Cookie::user(0), messages: 1 },
        Event::Flushed { cookie: Cookie::user(1) },
        Event::Sent { cookie: Cookie::user(9), messages: 1 },
    ];
    assert_eq!(events(&mut stream), expected);
}

// RFC 5041 §4.1: version 0 streams send DV 0. A stream that adopts the peer's version sends nothing before that
// version is determined.
#[test]
fn segments_have_the_policys_version() {
    for (version, expected) in [
        (VersionPolicy::V0, Some(DdpVersion::V0)),
        (VersionPolicy::V1, Some(DdpVersion::V1)),
        (VersionPolicy::AdoptFirst, None),
    ] {
        let config = StreamConfig { version, ..StreamConfig::default() };
        let mut stream: S = Stream::new(StreamId(1), PdId(1), config);
        stream.post(tagged(0, 1, 1)).unwrap();
        assert_eq!(stream.next_len(128).is_some(), expected.is_some());
        assert_eq!(stream.next(128).map(|out| header(&out).version()), expected);
    }
}

#[test]
fn message_numbers_wrap() {
    let mut stream = stream();
    stream.start_messages_at(u32::MAX);
    stream.post(tagged(0, 1, 1)).unwrap();
    stream.post(tagged(0, 2, 2)).unwrap();
    let segments = next_all(&mut stream, 128);
    let tokens = [(u32::MAX, 0), (0, 0)];
    assert_eq!(segments[0].token, UlpduToken { message: tokens[0].0, offset: tokens[0].1 });
    assert_eq!(segments[1].token, UlpduToken { message: tokens[1].0, offset: tokens[1].1 });
    assert_eq!(stream.reframe(segments[1].token, 2).payload_len, 2);
    stream.on_acknowledged(segments[0].token, 1);
    assert_eq!(stream.reframe(segments[1].token, 2).header, segments[1].header);
    stream.on_acknowledged(segments[1].token, 2);
    assert_eq!(
        events(&mut stream),
        [
            Event::Sent { cookie: Cookie::user(1), messages: 1 },
            Event::Sent { cookie: Cookie::user(2), messages: 1 }
        ]
    );
}

// Consecutive messages from one region share a handle, which is released with the last of them.
#[test]
fn region_is_held_while_its_messages_are_in_flight() {
    let regions = [1u8, 2].map(|fill| VecMemory::from_vec(vec![fill; 64]).into_stable());
    let mut stream =
        S::new(StreamId(1), PdId(1), StreamConfig { max_posts: 16, ..StreamConfig::default() });
    let from = |region: usize, offset| {
        let source = Source::Region { memory: &regions[region], offset, len: 8 };
        Message::Tagged {
            stag: Stag(5),
            to: TaggedOffset(0),
            rsvd_ulp: 0,
            source,
            cookie: Cookie::user(7),
        }
    };
    stream.start_messages_at(u32::MAX - 1);
    for region in [0, 0, 1, 1, 0] {
        stream.post_borrowed(from(region, 3)).unwrap();
    }
    stream.post(untagged(0, 8, 8)).unwrap();
    stream.post_borrowed(from(0, 0)).unwrap();
    let segments = next_all(&mut stream, 1500);
    let fill: Vec<u8> = segments.iter().map(|s| payload(&stream, s)[0]).collect();
    assert_eq!(fill, [1, 1, 2, 2, 1, bytes(1)[0], 1]);
    assert!(segments.iter().all(|s| s.stable));
    assert_eq!(stream.run_count(), 3);
    for (acknowledged, held) in [(0, 3), (1, 2), (2, 2), (3, 1), (4, 1), (5, 1), (6, 0)] {
        stream.on_acknowledged(segments[acknowledged].token, 8);
        assert_eq!(stream.run_count(), held, "after {acknowledged}");
    }
    // Consecutive messages with the same cookie are reported together.
    let sent = |cookie, messages| Event::Sent { cookie, messages };
    assert_eq!(
        events(&mut stream),
        [sent(Cookie::user(7), 5), sent(Cookie::user(8), 1), sent(Cookie::user(7), 1)]
    );
    stream.post_borrowed(from(1, 0)).unwrap();
    stream.post_last(untagged(2, 8, 9)).unwrap();
    assert_eq!(stream.run_count(), 0, "messages that have not begun are flushed");
}

// A handle is released with the last message from its region, even if other messages follow.
#[test]
fn region_is_released_while_the_queue_is_not_empty() {
    let mut stream = S::new(StreamId(1), PdId(1), StreamConfig::default());
    stream.post_borrowed(from_region(&region(1))).unwrap();
    stream.post(untagged(0, 8, 8)).unwrap();
    let segments = next_all(&mut stream, 1500);
    stream.on_acknowledged(segments[0].token, 8);
    assert_eq!((stream.run_count(), stream.outstanding()), (0, 1));
}

// After later unsent messages were flushed, a partly sent message is still read from its own region.
#[test]
fn cut_releases_regions_of_flushed_messages() {
    let regions = [region(1), region(2), region(3)];
    for (begun, held) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3)] {
        let mut stream = S::new(StreamId(1), PdId(1), StreamConfig::default());
        stream.start_messages_at(u32::MAX - 1);
        for region in [0, 1, 1, 2] {
            stream.post_borrowed(from_region(&regions[region])).unwrap();
        }
        let segments: Vec<_> = (0..begun).map(|_| stream.next(1500).unwrap()).collect();
        stream.post_last(untagged(2, 8, 9)).unwrap();
        assert_eq!(stream.run_count(), held, "{begun} have begun");
        for (segment, fill) in segments.iter().zip([1, 2, 2, 3]) {
            assert_eq!((payload(&stream, segment), segment.stable), (vec![fill; 8], true));
        }
    }
}

fn region(fill: u8) -> VecMemory {
    VecMemory::from_vec(vec![fill; 64]).into_stable()
}

/// Returns a tagged message of the first eight bytes of a region.
fn from_region(memory: &VecMemory) -> Message<&VecMemory> {
    let source = Source::Region { memory, offset: 0, len: 8 };
    Message::Tagged {
        stag: Stag(5),
        to: TaggedOffset(0),
        rsvd_ulp: 0,
        source,
        cookie: Cookie::user(7),
    }
}
