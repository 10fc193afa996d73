//! Properties of two RDMAP streams over a path that loses and reorders ULPDUs. The properties of bare
//! DDP are in `stream::tests`.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::llp::Disposition::Refused;

#[derive(Clone, Debug)]
enum Plan {
    Send(Vec<u8>),
    Write(u64, Vec<u8>),
    Read(u64, u32),
    Add(u64),
    Immediate([u8; 8]),
}

fn plan() -> impl Strategy<Value = Plan> {
    let data = (0usize..900, any::<u8>()).prop_map(|(len, seed)| pattern(seed, len));
    prop_oneof![
        data.clone().prop_map(Plan::Send),
        // Writes use the upper half of the region and Reads the lower half, so that they do not overlap.
        (0u64..3000, data).prop_map(|(at, data)| Plan::Write(4096 + at, data)),
        (0u64..2000, 0u32..2000).prop_map(|(at, len)| Plan::Read(at, len)),
        any::<u64>().prop_map(Plan::Add),
        any::<[u8; 8]>().prop_map(Plan::Immediate),
    ]
}

/// One direction of a path: ULPDUs in flight, and acknowledgements not yet reported to the sender.
#[derive(Default)]
struct OneWayPath {
    next_key: u64,
    /// Key, bytes, token, payload length, and true once the receiver has accepted the ULPDU.
    in_flight: VecDeque<(u64, Vec<u8>, UlpduToken, usize, bool)>,
    arrived: Vec<bool>,
}

impl OneWayPath {
    /// Fills the path up to 12 ULPDUs, and delivers them in random order, except lost ones. Returns false if the path
    /// was empty.
    fn step(
        &mut self,
        from: &mut End,
        to: &mut End,
        mulpdu: usize,
        fate: &mut impl FnMut() -> u16,
    ) -> bool {
        while self.in_flight.len() < 12
            && let Some((segment, token, len)) = from.next_segment(mulpdu)
        {
            self.in_flight.push_back((self.next_key, segment, token, len, false));
            self.next_key += 1;
        }
        let progressed = !self.in_flight.is_empty();
        let mut order: Vec<(u16, usize)> = (0..self.in_flight.len()).map(|i| (fate(), i)).collect();
        order.sort_unstable();
        self.arrived.resize(self.next_key as usize, false);
        for (rank, i) in order {
            let (key, segment, .., acked) = &mut self.in_flight[i];
            // A quarter of the ULPDUs is lost. ULPDUs that have arrived are not handed over again (RFC 5041 §3 (11)).
            if *acked || rank % 4 == 0 {
                continue;
            }
            if to.input_at(*key, segment) == Refused {
                continue;
            }
            *acked = true;
            self.arrived[*key as usize] = true;
            let prefix = self.arrived.iter().take_while(|a| **a).count();
            to.complete_order(prefix as u64);
        }
        while let Some((_, _, token, len, true)) = self.in_flight.front() {
            from.stream.on_acknowledged(*token, *len);
            self.in_flight.pop_front();
        }
        progressed
    }
}

fn post_all(a: &mut End, plans: &mut VecDeque<(u64, Plan)>) {
    while let Some((cookie, plan)) = plans.front() {
        let cookie = *cookie;
        let request = match plan {
            Plan::Send(data) => send(data, cookie),
            Plan::Write(at, data) => write(*at, data, cookie),
            Plan::Read(at, len) => read(*at, *at, *len, cookie),
            Plan::Add(add) => atomic(AtomicOp::FetchAdd { add: *add, mask: 0 }, 8184, cookie),
            Plan::Immediate(data) => WorkRequest::Immediate {
                data: *data,
                solicited: false,
                cookie: Cookie::user(cookie),
            },
        };
        match a.stream.post(request) {
            Ok(()) => drop(plans.pop_front()),
            Err(PostError::Full) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Returns the Send and Immediate Data events that the receiver's ULP must receive, in order.
fn deliveries(plans: &[Plan]) -> Vec<Event> {
    plans
        .iter()
        .filter_map(|plan| match plan {
            Plan::Send(data) => Some(super::pair::received(data)),
            Plan::Immediate(data) => Some(Event::Immediate { data: *data, solicited: false }),
            _ => None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    // RFC 5040 §5.5: for any operations, MULPDU, losses and order of arrival, all operations of both ends are executed
    // once, in order, with every byte.
    #[test]
    fn loss_and_reordering_do_not_change_the_result(
        plans in proptest::collection::vec(plan(), 1..24),
        other in proptest::collection::vec(plan(), 0..12),
        mulpdu in 128usize..1500, seed in 1u64.., ord in 1u16..6,
    ) {
        let config = Config { ord, ird: 8, recv_size: 1024, recv_buffers: 32, ..config() };
        let (mut a, mut b) = (End::with_config(config.clone()), End::with_config(config));
        b.memory.write(0, &pattern(3, 4096));
        a.memory.write(0, &pattern(4, 4096));
        let numbered = |plans: &[Plan]| plans.iter().cloned().enumerate()
            .map(|(i, plan)| (i as u64, plan)).collect::<VecDeque<_>>();
        let (mut to_b, mut to_a) = (numbered(&plans), numbered(&other));
        let mut state = seed;
        let mut fate = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u16
        };
        let (mut forth, mut back) = (OneWayPath::default(), OneWayPath::default());
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        for _ in 0..5000 {
            post_all(&mut a, &mut to_b);
            post_all(&mut b, &mut to_a);
            let progressed = forth.step(&mut a, &mut b, mulpdu, &mut fate);
            let progressed = back.step(&mut b, &mut a, mulpdu, &mut fate) || progressed;
            for (end, seen) in [(&mut a, &mut at_a), (&mut b, &mut at_b)] {
                let events = end.events();
                let used = events.iter()
                    .filter(|e| matches!(e, Event::Received { .. } | Event::Immediate { .. })).count();
                end.stream.post_buffers(used as u32).unwrap();
                seen.extend(events);
            }
            if !progressed && to_a.is_empty() && to_b.is_empty() {
                break;
            }
        }
        for (plans, own, far, seen_own, seen_far, seed) in
            [(&plans, &a, &b, &at_a, &at_b, 3u8), (&other, &b, &a, &at_b, &at_a, 4)]
        {
            prop_assert!(!seen_own.iter().any(|e| matches!(e, Event::Error(_))), "{:?}", seen_own);
            let cookies: Vec<Cookie> = seen_own.iter().filter_map(|event| match event {
                Event::Completed { cookie, .. } => Some(*cookie),
                _ => None,
            }).collect();
            prop_assert_eq!(cookies, (0..plans.len() as u64).map(Cookie::user).collect::<Vec<_>>());
            let got: Vec<Event> = seen_far.iter()
                .filter(|e| matches!(e, Event::Received { .. } | Event::Immediate { .. }))
                .cloned().collect();
            prop_assert_eq!(got, deliveries(plans));
            // Each Read has written all requested bytes to the sink, and no others.
            let mut sink = vec![0; LEN as usize];
            for plan in plans {
                if let Plan::Read(at, len) = plan {
                    let range = *at as usize..*at as usize + *len as usize;
                    sink[range.clone()].copy_from_slice(&pattern(seed, 4096)[range]);
                }
            }
            prop_assert!(own.sink.to_vec() == sink);
            // Each atomic was executed exactly once.
            let sum = plans.iter().fold(0u64, |sum, plan| match plan {
                Plan::Add(add) => sum.wrapping_add(*add),
                _ => sum,
            });
            prop_assert_eq!(&far.memory.to_vec()[8184..], &sum.to_ne_bytes()[..]);
            // Each written byte is from a Write that covers it.
            let memory = far.memory.to_vec();
            for (i, byte) in memory.iter().enumerate().take(8184).skip(4096) {
                let mut candidates = plans.iter().filter_map(|plan| match plan {
                    Plan::Write(at, data) => (i as u64).checked_sub(*at).and_then(|i| data.get(i as usize)),
                    _ => None,
                }).peekable();
                let expected = candidates.peek().is_none() && *byte == 0 || candidates.any(|c| c == byte);
                prop_assert!(expected, "byte {}", i);
            }
            prop_assert_eq!((own.stream.outstanding(), own.pool.in_use()), (0, 0));
        }
    }

    // For any segments of a peer, regions that the peer may not write do not change, and all pool bytes are released at
    // the end.
    #[test]
    fn arbitrary_segments_write_only_writable_regions(
        segments in proptest::collection::vec(
            (any::<bool>(), 0u8..16, 0u32..4, 0u32..5, any::<u8>(), 0u64..9000,
             proptest::collection::vec(any::<u8>(), 0..80)), 1..30),
        reads in 0u64..3,
    ) {
        let mut b = End::new();
        let secret = VecMemory::from_vec(pattern(9, 64));
        b.stags.insert(entry(Stag(2), Access::NONE, &secret)).unwrap();
        for i in 0..reads {
            b.post(read(i * 100, 0, 100, i));
        }
        b.sent_segments();
        for (is_tagged, opcode, number, msn, flags, at, payload) in segments {
            let mut segment = if is_tagged {
                let stag = [STAG, SINK, Stag(2), Stag(3)][number as usize];
                tagged(Opcode::Write, stag, at, flags & 1 != 0, &payload)
            } else {
                untagged_with(Opcode::Send, Some(Stag(2)), number, msn, 0, flags & 1 != 0, &payload)
            };
            segment[1] = 0x40 | opcode;
            b.input(&segment);
            b.sent_segments();
        }
        prop_assert_eq!(secret.to_vec(), pattern(9, 64));
        // The sink of this end's Reads accepts only their responses.
        prop_assert!(b.sink.to_vec()[reads as usize * 100..].iter().all(|byte| *byte == 0));
        prop_assert!(b.stags.get(Stag(2)).is_some() && b.stags.get(STAG).is_some());
        b.stream.release(&mut b.pool);
        prop_assert_eq!(b.pool.in_use(), 0);
    }
}
