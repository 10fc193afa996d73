//! RDMAP between two hosts, with and without markers, over loss, reordering and re-segmentation. Operations complete
//! once and in order, with the correct bytes.

use core::time::Duration;
use std::sync::Arc;

use ddp::rdmap::{self, AtomicOp, Outcome, WorkRequest};
use ddp::{Cookie, Source, TaggedOffset, VecMemory};
use link::{Loss, Probability, Reorder, Rng};
use sim::end::REGION;
use sim::host::{Host, HostConfig, SINK};
use sim::pair::{Config, Pair};
use sim::{middlebox, path};
use tcp_lite::endpoint::CloseReason;
use tcp_lite::mpa::{Revision, RtrSet};

/// Length of each region in bytes. The peer writes the lower half and reads the upper half. The last 8 bytes of the
/// upper half are a counter for Fetch and Add.
const LEN: usize = 1 << 20;
const HALF: u64 = LEN as u64 / 2;
const COUNTER: u64 = LEN as u64 - 8;

/// Expected results of all operations that one host posts.
struct ExpectedResults {
    outcomes: Vec<(Cookie, Outcome)>,
    sends: Vec<Vec<u8>>,
    written: Vec<u8>,
    /// Expected first bytes of the data sink, which receives the data of all Reads one after the other.
    read: Vec<u8>,
    counter: u64,
}

fn percent(p: f64) -> Probability {
    Probability::from_percent(p).expect("a percentage")
}

fn lossy(rng: &mut Rng) -> path::Config {
    let link = link::Config {
        loss: Loss::Random(percent(rng.next_below(4) as f64)),
        reorder: Reorder { probability: percent(3.0), delay: Duration::from_micros(400) },
        duplicate: percent(0.5),
        delay: Duration::from_micros(200),
        ..link::Config::seeded(rng.next_u64())
    };
    let mut config = path::Config::new(1500, link);
    if rng.next_below(2) == 0 {
        config.middlebox = middlebox::Config {
            split: percent(20.0),
            min_piece: 1,
            merge: percent(20.0),
            max_payload: 9000,
            hold: Duration::from_micros(50),
        };
    }
    config
}

fn random(rng: &mut Rng, len: u64) -> Vec<u8> {
    (0..len).map(|_| rng.next_u64() as u8 | 1).collect()
}

/// Returns the initial content of the upper half of a host's region: random bytes, then a counter of zero.
fn readable(seed: u64) -> Vec<u8> {
    let mut bytes = random(&mut Rng::new(seed), HALF);
    bytes[HALF as usize - 8..].fill(0);
    bytes
}

fn post_operations(host: &mut Host, rng: &mut Rng, peer_memory: &[u8]) -> ExpectedResults {
    let mut expected = ExpectedResults {
        outcomes: Vec::new(),
        sends: Vec::new(),
        written: Vec::new(),
        read: Vec::new(),
        counter: 0,
    };
    for cookie in 0..120 {
        let (request, outcome) = operation(&mut expected, rng, peer_memory, cookie);
        host.post_rdmap(request);
        expected.outcomes.push((Cookie::user(cookie), outcome));
    }
    expected
}

fn operation(
    expected: &mut ExpectedResults,
    rng: &mut Rng,
    peer_memory: &[u8],
    cookie: u64,
) -> (WorkRequest<VecMemory>, Outcome) {
    let at = |offset: u64| TaggedOffset(REGION.1.0 + offset);
    let (stag, solicited, invalidate) = (REGION.0, rng.next_below(2) == 0, None);
    match rng.next_below(5) {
        0 => {
            let len = rng.next_below(8000);
            let data = random(rng, len);
            let source = Source::Bytes(Arc::from(data.as_slice()));
            expected.sends.push(data);
            (
                WorkRequest::Send { source, solicited, invalidate, cookie: Cookie::user(cookie) },
                Outcome::Sent,
            )
        }
        1 | 2 => {
            let len = rng.next_below(12_000).min(HALF - expected.written.len() as u64);
            let data = random(rng, len);
            let to = at(expected.written.len() as u64);
            let source = match rng.next_below(2) {
                0 => Source::Bytes(Arc::from(data.as_slice())),
                _ => {
                    let memory = VecMemory::from_vec(data.clone());
                    Source::Region { memory, offset: 0, len: len as u32 }
                }
            };
            expected.written.extend(data);
            (
                WorkRequest::Write { stag, to, source, cookie: Cookie::user(cookie) },
                Outcome::Written,
            )
        }
        3 => {
            let len = rng.next_below(30_000).min(HALF - expected.read.len() as u64);
            let from = rng.next_below(HALF - 8 - len.min(HALF - 8));
            let sink_to = TaggedOffset(SINK.1.0 + expected.read.len() as u64);
            expected.read.extend(&peer_memory[from as usize..(from + len) as usize]);
            let (len, source_to) = (len as u32, at(HALF + from));
            let (sink_stag, source_stag) = (SINK.0, stag);
            let read = WorkRequest::Read {
                sink_stag,
                sink_to,
                source_stag,
                source_to,
                len,
                cookie: Cookie::user(cookie),
            };
            (read, Outcome::Read { len })
        }
        _ => {
            let add = rng.next_below(1000);
            let original = expected.counter;
            expected.counter += add;
            let (op, to) = (AtomicOp::FetchAdd { add, mask: 0 }, at(COUNTER));
            (
                WorkRequest::Atomic { op, stag, to, cookie: Cookie::user(cookie) },
                Outcome::Atomic { original },
            )
        }
    }
}

fn verify(expected: &ExpectedResults, initiator: &Host, responder: &Host) {
    assert_eq!(initiator.completed(), expected.outcomes);
    assert_eq!(responder.received_sends(), expected.sends);
    let region = responder.region();
    assert!(region[..expected.written.len()] == expected.written, "the region lacks written bytes");
    assert!(region[expected.written.len()..HALF as usize].iter().all(|&byte| byte == 0));
    assert_eq!(region[COUNTER as usize..], expected.counter.to_ne_bytes());
    let sink = initiator.sink();
    assert!(sink[..expected.read.len()] == expected.read, "the sink lacks read bytes");
    assert!(sink[expected.read.len()..].iter().all(|&byte| byte == 0));
    assert!(initiator.is_guard_untouched());
}

/// Runs the operations of `seed`. Returns the bytes placed beyond a gap, and the bytes retransmitted, both summed over
/// the hosts.
fn play(seed: u64, markers: bool) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let ulp = rdmap::Config {
        ird: 1 + rng.next_below(8) as u16,
        ord: 1 + rng.next_below(8) as u16,
        // RDMAP has no credits for receive buffers, so the buffers must suffice for all messages in flight.
        recv_buffers: 1000,
        recv_size: 8192,
        max_operations: 4 + rng.next_below(60) as usize,
        ..rdmap::Config::default()
    };
    // MPA revision 1 does not negotiate IRD and ORD, so ORD must not exceed the peer's IRD.
    let (initiate, ord) = match rng.next_below(4) {
        0 => (Revision::One, ulp.ird),
        _ => (Revision::Two, ulp.ord),
    };
    let rdmap = Some(rdmap::Config { ord, ..ulp });
    let mut host = HostConfig { region: LEN, rdmap, ..HostConfig::default() };
    (host.endpoint.mpa.markers, host.endpoint.mpa.initiate) = (markers, initiate);
    host.endpoint.mpa.enhanced.peer_to_peer = rng.next_below(2) == 0;
    host.endpoint.mpa.enhanced.rtr = match rng.next_below(3) {
        0 => RtrSet { send: true, ..RtrSet::default() },
        1 => RtrSet { write: true, ..RtrSet::default() },
        _ => RtrSet { read: true, ..RtrSet::default() },
    };
    let (forward, backward) = (lossy(&mut rng), lossy(&mut rng));
    let (client, server) = (host.clone(), host);
    let cost = Default::default();
    let mut pair = Pair::new(Config { client, server, forward, backward, icmp: false, cost });
    let (left, right) = (readable(seed), readable(!seed));
    pair.client.fill(HALF as usize, &left);
    pair.server.fill(HALF as usize, &right);
    let expected = [
        post_operations(&mut pair.client, &mut rng, &right),
        post_operations(&mut pair.server, &mut rng, &left),
    ];
    pair.client.connect(pair.now).expect("empty private data fits");
    let done = |pair: &Pair| {
        pair.client.completed().len() == 120 && pair.server.completed().len() == 120
            || pair.client.closed().is_some()
            || pair.server.closed().is_some()
    };
    let ran = pair.run_until(Duration::from_secs(120), done);
    assert_eq!((ran, pair.client.closed(), pair.server.closed()), (Ok(()), None, None));
    verify(&expected[0], &pair.client, &pair.server);
    verify(&expected[1], &pair.server, &pair.client);
    let now = pair.now;
    pair.client.shutdown(now);
    pair.run_until(Duration::from_secs(300), |pair| pair.client.is_done() && pair.server.is_done())
        .expect("both ends finish");
    assert_eq!(pair.client.closed(), Some(&CloseReason::LocalShutdown));
    assert_eq!(pair.server.closed(), Some(&CloseReason::PeerShutdown));
    assert_eq!((pair.client.in_use(), pair.server.in_use()), ((0, 0), (0, 0)));
    let sides = [pair.client.stats(), pair.server.stats()];
    let beyond = sides.iter().map(|stats| stats.mpa_rx.placed_out_of_order).sum();
    (beyond, sides.iter().map(|stats| stats.mpa_tx.retransmitted).sum())
}

fn play_all(seeds: core::ops::Range<u64>, markers: bool) -> (u64, u64) {
    let add = |(a, b), (c, d)| (a + c, b + d);
    seeds.map(|seed| play(seed, markers)).fold((0, 0), add)
}

#[test]
fn operations_complete_over_lossy_path_with_markers() {
    let (beyond, again) = play_all(0..12, true);
    assert!(beyond > 100 && again > 100_000, "{beyond} beyond gaps, {again} bytes again");
}

#[test]
fn operations_complete_over_lossy_path_without_markers() {
    let (beyond, again) = play_all(100..108, false);
    assert!(beyond == 0 && again > 100_000, "{beyond} beyond gaps, {again} bytes again");
}
