//! RFC 5040 §5.5 and RFC 7306 §7: for each pair of operations, the order that the peer's ULP and the requester see,
//! with segments in order and reversed.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Send,
    Write,
    Read,
    Atomic,
    Immediate,
}

const KINDS: [Kind; 5] = [Kind::Send, Kind::Write, Kind::Read, Kind::Atomic, Kind::Immediate];

fn request(kind: Kind, cookie: u64) -> WorkRequest<VecMemory> {
    match kind {
        Kind::Send => send(&pattern(1, 200), cookie),
        Kind::Write => write(0, &pattern(cookie as u8, 200), cookie),
        Kind::Read => read(cookie * 1000, 0, 200, cookie),
        Kind::Atomic => atomic(AtomicOp::FetchAdd { add: 1, mask: 0 }, 0, cookie),
        Kind::Immediate => {
            WorkRequest::Immediate { data: [1; 8], solicited: false, cookie: Cookie::user(cookie) }
        }
    }
}

/// Returns the effect of an operation at the peer: an event for its ULP, or a response.
fn effect(kind: Kind) -> &'static str {
    match kind {
        Kind::Send => "received",
        Kind::Write => "written",
        Kind::Read => "read response",
        Kind::Atomic => "atomic response",
        Kind::Immediate => "immediate",
    }
}

fn effects(b: &mut End) -> Vec<&'static str> {
    let mut effects: Vec<_> = b
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Received { .. } => Some("received"),
            Event::WriteDelivered { .. } => Some("written"),
            Event::Immediate { .. } => Some("immediate"),
            _ => None,
        })
        .collect();
    for (segment, ..) in core::iter::from_fn(|| b.next_segment(1500)) {
        effects.push(match shape(&[segment])[0].0 {
            Opcode::ReadResponse => "read response",
            _ => "atomic response",
        });
    }
    effects
}

// All 25 rows of the two tables: the peer serves operations in the required order, whether their segments arrive in
// order or reversed. No operation is executed twice or too early.
#[test]
fn operation_pairs_follow_the_ordering_tables() {
    for first in KINDS {
        for second in KINDS {
            let mut a = End::new();
            a.post(request(first, 1));
            a.post(request(second, 2));
            let segments: Vec<_> =
                core::iter::from_fn(|| a.next_segment(128).map(|(s, ..)| s)).collect();
            for reversed in [false, true] {
                let mut b = End::new();
                let mut order: Vec<usize> = (0..segments.len()).collect();
                if reversed {
                    order.reverse();
                }
                let mut seen = Vec::new();
                for at in &order {
                    b.input_at(*at as u64, &segments[*at]);
                    let arrived = |i: &usize| {
                        order.iter().take_while(|j| *j != at).any(|j| j == i) || i == at
                    };
                    let prefix = (0..segments.len()).take_while(|i| arrived(i)).count();
                    seen.extend(effects(&mut b));
                    if prefix == 0 {
                        assert!(seen.is_empty(), "{first:?} {second:?}: {seen:?} too early");
                    }
                }
                // With the segments reversed, the last call of `input_at` delivers both messages, and responses follow
                // all deliveries of that call (§5.5 (18)). With the segments in order, the effects are also in order.
                let mut expected = vec![effect(first), effect(second)];
                if reversed {
                    expected.sort_by_key(|effect| effect.ends_with("response"));
                }
                assert_eq!(seen, expected, "{first:?} {second:?}");
            }
        }
    }
}

// RFC 5040 §5.5 (12), note: a Read that follows a Write returns the Write's data. RFC 7306 §7: an atomic operates on
// the written data.
#[test]
fn requests_observe_earlier_sends_and_writes() {
    let mut b = End::new();
    b.memory.write(0, &[9; 8]);
    let mut a = End::new();
    a.post(write(0, &41u64.to_ne_bytes(), 1));
    a.post(atomic(AtomicOp::FetchAdd { add: 1, mask: 0 }, 0, 2));
    a.post(read(0, 0, 8, 3));
    let segments = a.sent_segments();
    for at in [2, 1, 0] {
        b.input_at(at as u64, &segments[at]);
    }
    for segment in b.sent_segments() {
        a.input(&segment);
    }
    assert_eq!(a.sink.to_vec()[..8], 42u64.to_ne_bytes());
    let events = a.events();
    assert_eq!(events[1], completed(2, Outcome::Atomic { original: 41 }));
}

// RFC 5040 §5.5 (14), (19), RFC 7306 §5.4 (7): the response, not the acknowledgement, completes a Read or an atomic.
// The acknowledgement completes any other message.
#[test]
fn completions_wait_for_acknowledgement_and_response() {
    let mut a = End::new();
    a.post(send(b"1", 1));
    a.post(read(0, 0, 4, 2));
    a.post(send(b"3", 3));
    let sent: Vec<_> =
        core::iter::from_fn(|| a.next_segment(1500).map(|(_, t, l)| (t, l))).collect();
    a.input(&tagged(Opcode::ReadResponse, SINK, 0, true, b"data"));
    assert_eq!(a.events(), [], "the Send before the Read is not acknowledged");
    a.stream.on_acknowledged(sent[0].0, sent[0].1);
    let read = completed(2, Outcome::Read { len: 4 });
    assert_eq!(a.events(), [completed(1, Outcome::Sent), read]);
    a.stream.on_acknowledged(sent[1].0, sent[1].1);
    assert_eq!(a.events(), []);
    a.stream.on_acknowledged(sent[2].0, sent[2].1);
    assert_eq!(a.events(), [completed(3, Outcome::Sent)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // RFC 5040 §5.5 (15): operations complete in the order of posting, for any mix of responses and acknowledgements.
    #[test]
    fn completions_follow_posting_order(
        kinds in proptest::collection::vec(0usize..5, 1..16), ord in 1u16..5, late in 0usize..6,
    ) {
        let config = Config { ord, ird: 16, recv_buffers: 32, ..config() };
        let (mut a, mut b) = (End::with_config(config.clone()), End::with_config(config));
        for (i, kind) in kinds.iter().enumerate() {
            // The sink has room for the data of eight Reads.
            let cookie = i as u64;
            let request = match KINDS[*kind] {
                Kind::Read => read(cookie % 8 * 1000, 0, 200, cookie),
                kind => request(kind, cookie),
            };
            a.post(request);
        }
        let mut unacknowledged = std::collections::VecDeque::new();
        let mut cookies = Vec::new();
        loop {
            let mut progressed = false;
            while let Some((segment, token, len)) = a.next_segment(150) {
                prop_assert!(a.stream.requests_outstanding() <= usize::from(ord));
                b.input(&segment);
                unacknowledged.push_back((token, len));
                progressed = true;
            }
            for segment in b.sent_segments() {
                a.input(&segment);
                progressed = true;
            }
            while unacknowledged.len() > if progressed { late } else { 0 } {
                if let Some((token, len)) = unacknowledged.pop_front() {
                    a.stream.on_acknowledged(token, len);
                }
                progressed = true;
            }
            cookies.extend(a.events().into_iter().filter_map(|event| match event {
                Event::Completed { cookie, .. } => Some(cookie),
                _ => None,
            }));
            if !progressed {
                break;
            }
        }
        prop_assert_eq!(cookies, (0..kinds.len() as u64).map(Cookie::user).collect::<Vec<_>>());
        prop_assert_eq!(a.stream.outstanding(), 0);
    }
}
