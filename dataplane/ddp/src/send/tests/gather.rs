//! Messages gathered from spans have the same segments as messages from one region, including at retransmission.

use wire::crc32c::{Digest, Target};

use super::*;

/// Splits `data` into spans of these lengths, each in a separate region. The last span takes all remaining bytes.
fn scatter(data: &[u8], lens: &[usize], stable: bool) -> Vec<Span<VecMemory>> {
    let mut rest = data;
    let last = lens.len() - 1;
    let spans = lens.iter().enumerate().map(|(i, len)| {
        let (head, tail) =
            rest.split_at(if i == last { rest.len() } else { (*len).min(rest.len()) });
        rest = tail;
        let memory = VecMemory::from_vec([&[0xdd; 5], head, &[0xdd; 3]].concat());
        let memory = if stable { memory.into_stable() } else { memory };
        Span { memory, offset: 5, len: head.len() as u32 }
    });
    spans.collect()
}

fn gather(spans: Vec<Span<VecMemory>>) -> Source<VecMemory> {
    Source::Gather(Box::new(SpanList::new(spans).unwrap()))
}

fn message(source: Source<VecMemory>, is_tagged: bool, cookie: u64) -> Message<VecMemory> {
    let cookie = Cookie::user(cookie);
    match is_tagged {
        true => {
            Message::Tagged { stag: Stag(5), to: TaggedOffset(77), rsvd_ulp: 1, source, cookie }
        }
        false => Message::Untagged { qn: Qn(0), rsvd_ulp: [1; 5], source, cookie },
    }
}

/// Returns the payload as `read_digested` copies it in two parts, and the CRC of each part.
fn digested(stream: &S, out: &Outgoing, cut: usize) -> (Vec<u8>, [u32; 2]) {
    let mut bytes = vec![0xee; out.payload_len];
    let cut = cut.min(bytes.len());
    let (head, tail) = bytes.split_at_mut(cut);
    let digests = [(0, head), (cut, tail)].map(|(at, to)| {
        let mut target = Target::new(to, Digest::new(false));
        stream.read_digested(out.token, at, &mut target);
        target.into_digest().crc()
    });
    (bytes, digests)
}

/// Returns header, payload and stability of a segment that is framed again for retransmission.
fn reframed(stream: &S, out: &Outgoing) -> (Vec<u8>, Vec<u8>, bool) {
    let again = stream.reframe(out.token, out.payload_len);
    (again.header.bytes().to_vec(), payload(stream, &again), again.stable)
}

proptest! {
    // RFC 5041 §5.2: the peer cannot observe the split into spans.
    #[test]
    fn any_spans_give_the_segments_of_one_region(
        len in 0usize..6000, is_tagged: bool, stable: bool, borrowed: bool, cut in 0usize..1500,
        lens in proptest::collection::vec(0usize..2500, 1..=MAX_SPANS), mulpdu in 128usize..1500,
    ) {
        let data = bytes(len);
        let region = VecMemory::from_vec(data.clone());
        let region = if stable { region.into_stable() } else { region };
        let (mut one, mut many) = (stream(), stream());
        one.post(message(Source::Region { memory: region, offset: 0, len: len as u32 }, is_tagged, 1)).unwrap();
        // Messages with other sources precede and follow the gathered message.
        many.start_messages_at(u32::MAX);
        let before = VecMemory::from_vec(vec![3; 10]);
        let other = |cookie| {
            let (memory, offset, len) = (before.clone(), 0, 10);
            Message::Untagged { qn: Qn(7), rsvd_ulp: [0; 5], source: Source::Region { memory, offset, len }, cookie: Cookie::user(cookie) }
        };
        many.post(other(0)).unwrap();
        let spans = scatter(&data, &lens, stable);
        if borrowed {
            let spans = spans.iter().map(|span| Span { memory: &span.memory, offset: span.offset, len: span.len });
            let source = Source::Gather(Box::new(SpanList::new(spans).unwrap()));
            let cookie = Cookie::user(1);
            many.post_borrowed(match is_tagged {
                true => Message::Tagged { stag: Stag(5), to: TaggedOffset(77), rsvd_ulp: 1, source, cookie },
                false => Message::Untagged { qn: Qn(0), rsvd_ulp: [1; 5], source, cookie },
            }).unwrap();
        } else {
            many.post(message(gather(spans), is_tagged, 1)).unwrap();
        }
        many.post(other(2)).unwrap();
        let first = many.next(1500).unwrap();
        prop_assert_eq!(payload(&many, &first), vec![3; 10]);
        let mut sent = Vec::new();
        while let Some(expected) = one.next(mulpdu) {
            prop_assert_eq!(many.next_is_stable(), stable);
            prop_assert_eq!(many.next_len(mulpdu), Some(expected.len()));
            let out = many.next(mulpdu).unwrap();
            prop_assert_eq!(out.header.bytes(), expected.header.bytes());
            prop_assert_eq!((out.payload_len, out.stable), (expected.payload_len, stable));
            prop_assert_eq!(payload(&many, &out), payload(&one, &expected));
            prop_assert_eq!(digested(&many, &out, cut), digested(&one, &expected, cut));
            sent.push((out, expected));
        }
        let last = many.next(1500).unwrap();
        prop_assert_eq!((payload(&many, &last), last.stable), (vec![3; 10], false));
        many.on_acknowledged(first.token, 10);
        for (out, expected) in &sent {
            prop_assert_eq!(reframed(&many, out), reframed(&one, expected));
            many.on_acknowledged(out.token, out.payload_len);
        }
        many.on_acknowledged(last.token, 10);
        let done = |cookie| Event::Sent { cookie: Cookie::user(cookie), messages: 1 };
        prop_assert_eq!(events(&mut many), [done(0), done(1), done(2)]);
        prop_assert_eq!(many.run_count(), 0);
    }
}

#[test]
fn gathered_sources_have_handles_of_their_own() {
    let memory = region(1);
    let span = || Span { memory: memory.clone(), offset: 0, len: 8 };
    let mut stream = stream();
    stream.post_borrowed(from_region(&memory)).unwrap();
    stream.post(message(gather(vec![span()]), true, 1)).unwrap();
    assert_eq!(stream.run_count(), 1);
    stream.post(message(gather(vec![span(), span()]), true, 2)).unwrap();
    stream.post_borrowed(from_region(&memory)).unwrap();
    assert_eq!(stream.run_count(), 1, "each span has its own handle");
    assert_eq!(next_all(&mut stream, 1500).iter().map(|s| s.payload_len).sum::<usize>(), 40);
}

#[test]
fn gather_outside_of_a_region_is_refused_at_post() {
    let memory = region(1);
    let span = |offset, len| Span { memory: memory.clone(), offset, len };
    let post = |spans: Vec<_>| stream().post(message(gather(spans), true, 1));
    assert_eq!(post(vec![span(0, 64), span(64, 0)]), Ok(()));
    for (offset, len, end) in [(60, 5, 65), (u64::MAX, 1, u64::MAX)] {
        let error = PostError::OutOfBounds { offset, end, len: 64 };
        assert_eq!(post(vec![span(0, 64), span(offset, len)]), Err(error));
        assert_eq!(post(vec![span(offset, len)]), Err(error));
    }
}

// A message is unstable if one of its spans may change, or if `copy_sources` is set.
#[test]
fn message_is_stable_if_all_its_spans_are() {
    let (fixed, shared) = (region(1), VecMemory::new(64));
    let span = |memory: &VecMemory| Span { memory: memory.clone(), offset: 0, len: 8 };
    for copy_sources in [false, true] {
        for memories in [[&fixed, &fixed], [&fixed, &shared], [&shared, &fixed]] {
            let config = StreamConfig { copy_sources, ..StreamConfig::default() };
            let mut stream = S::new(StreamId(1), PdId(1), config);
            stream.post(message(gather(memories.map(span).to_vec()), true, 1)).unwrap();
            let stable = !copy_sources && memories[1].is_stable() && memories[0].is_stable();
            assert_eq!(stream.next_is_stable(), stable);
            let out = stream.next(1500).unwrap();
            assert_eq!((out.stable, stream.reframe(out.token, 16).stable), (stable, stable));
        }
    }
}

#[test]
fn copies_are_kept_of_every_region_but_not_of_bytes() {
    let memory = region(1);
    let config = StreamConfig { copy_sources: true, ..StreamConfig::default() };
    let mut stream = S::new(StreamId(1), PdId(1), config);
    stream.post_borrowed(from_region(&memory)).unwrap();
    stream.post(untagged(0, 8, 1)).unwrap();
    let stable: Vec<bool> = next_all(&mut stream, 1500).iter().map(|out| out.stable).collect();
    assert_eq!(stable, [false, true]);
}
