//! Posted receives and gathered sources between two hosts over TCP and SCTP, with loss, reordering and duplicates. Each
//! message is in its own receive, and no other byte of the receives' memory is written.

use core::time::Duration;
use std::sync::Arc;

use ddp::memory::RegionMemory as _;
use ddp::rdmap::{self, Event, Receive, ReceiveMode, WorkRequest};
use ddp::{Cookie, MAX_SPANS, Source, Span, SpanList, VecMemory};
use link::{Loss, Probability, Reorder, Rng};
use sim::end::End;
use sim::host::{Host, HostConfig};
use sim::pair::{Config, Pair};
use sim::path;
use sim::sctp::{SctpConfig, SctpHost};

/// Messages in each direction, and receives posted beyond them.
const MESSAGES: usize = 150;
const SPARE: usize = 5;
/// Bytes of memory of each host's receives.
const MEMORY: usize = 2 << 20;
const GUARD: usize = 16;

/// A host with RDMAP on its first stream.
trait RdmapHost: End {
    fn operate(&mut self, request: WorkRequest<VecMemory>);
    fn receive(&mut self, receive: Receive<VecMemory>);
    fn events(&self) -> Vec<Event>;
    fn uses(&self, memory: &VecMemory) -> bool;
}

impl RdmapHost for Host {
    fn operate(&mut self, request: WorkRequest<VecMemory>) {
        self.post_rdmap(request);
    }

    fn receive(&mut self, receive: Receive<VecMemory>) {
        self.post_receive(receive);
    }

    fn events(&self) -> Vec<Event> {
        self.rdmap_events()
    }

    fn uses(&self, memory: &VecMemory) -> bool {
        self.endpoint().is_some_and(|endpoint| endpoint.uses_memory(memory))
    }
}

impl RdmapHost for SctpHost {
    fn operate(&mut self, request: WorkRequest<VecMemory>) {
        self.post_rdmap(0, request);
    }

    fn receive(&mut self, receive: Receive<VecMemory>) {
        self.post_receive(0, receive);
    }

    fn events(&self) -> Vec<Event> {
        self.rdmap_events(0).to_vec()
    }

    fn uses(&self, memory: &VecMemory) -> bool {
        self.uses_memory(0, memory)
    }
}

/// What one host must have received.
struct Expected {
    memory: VecMemory,
    /// Bytes that the memory must contain at the end.
    bytes: Vec<u8>,
    events: Vec<Event>,
}

fn percent(p: f64) -> Probability {
    Probability::from_percent(p).expect("a percentage")
}

fn lossy(rng: &mut Rng) -> path::Config {
    let link = link::Config {
        loss: Loss::Random(percent(rng.next_below(4) as f64)),
        reorder: Reorder { probability: percent(5.0), delay: Duration::from_micros(600) },
        duplicate: percent(1.0),
        delay: Duration::from_micros(200),
        ..link::Config::seeded(rng.next_u64())
    };
    path::Config::new(1500, link)
}

fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.next_u64() as u8 | 1).collect()
}

/// Splits `len` bytes into at most [`MAX_SPANS`] lengths.
fn split(rng: &mut Rng, len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..rng.next_below(MAX_SPANS as u64))
        .map(|_| rng.next_below(len as u64 + 1) as usize)
        .chain([0, len])
        .collect();
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Returns a source of these bytes of one of the three kinds.
fn source(rng: &mut Rng, data: &[u8]) -> Source<VecMemory> {
    let memory = |bytes: &[u8], stable| match stable {
        true => VecMemory::from_vec(bytes.to_vec()).into_stable(),
        false => VecMemory::from_vec(bytes.to_vec()),
    };
    let kind = rng.next_below(4);
    if kind == 0 {
        return Source::Bytes(Arc::from(data));
    }
    let mut at = 0;
    let spans: Vec<_> = split(rng, data.len())
        .into_iter()
        .map(|len| {
            at += len;
            let memory = memory(&data[at - len..at], kind == 1);
            Span { memory, offset: 0, len: len as u32 }
        })
        .collect();
    Source::Gather(Box::new(SpanList::new(spans).expect("few spans")))
}

/// Posts random messages at one host and their receives at the other. Returns what the other must receive.
fn exchange<H: RdmapHost>(rng: &mut Rng, from: &mut H, to: &mut H) -> Expected {
    let memory = VecMemory::new(MEMORY);
    let (mut bytes, mut events, mut free) = (vec![0; MEMORY], Vec::new(), 0);
    for i in 0..MESSAGES + SPARE {
        let room = rng.next_below(9000) as usize;
        let (mut spans, mut places) = (Vec::new(), Vec::new());
        for len in split(rng, room) {
            let start = free + GUARD;
            free = start + len;
            places.extend(start..free);
            spans.push(Span { memory: memory.clone(), offset: start as u64, len: len as u32 });
        }
        let cookie = i as u64;
        to.receive(Receive { cookie, spans: SpanList::new(spans).expect("few spans") });
        if i >= MESSAGES {
            events.push(Event::ReceiveFlushed { cookie });
            continue;
        }
        let solicited = rng.next_below(2) == 0;
        if rng.next_below(4) == 0 {
            let data = rng.next_u64().to_be_bytes();
            from.operate(WorkRequest::Immediate { data, solicited, cookie: Cookie::user(cookie) });
            events.push(Event::ImmediateInto { cookie, data, solicited });
            continue;
        }
        let len =
            if rng.next_below(3) == 0 { room } else { rng.next_below(room as u64 + 1) as usize };
        let data = random(rng, len);
        places.iter().zip(&data).for_each(|(at, byte)| bytes[*at] = *byte);
        let (source, invalidate) = (source(rng, &data), None);
        from.operate(WorkRequest::Send {
            source,
            solicited,
            invalidate,
            cookie: Cookie::user(cookie),
        });
        events.push(Event::ReceivedInto { cookie, len: len as u32, solicited, invalidated: None });
    }
    assert!(free <= MEMORY);
    Expected { memory, bytes, events }
}

fn received<H: RdmapHost>(host: &H) -> Vec<Event> {
    let of_receive = |event: &Event| {
        matches!(
            event,
            Event::ReceivedInto { .. } | Event::ImmediateInto { .. } | Event::ReceiveFlushed { .. }
        )
    };
    host.events().into_iter().filter(of_receive).collect()
}

fn ulp(rng: &mut Rng) -> rdmap::Config {
    rdmap::Config {
        receives: ReceiveMode::Posted { max_receives: (MESSAGES + SPARE) as u32 },
        copy_sources: rng.next_below(3) == 0,
        max_operations: 4 + rng.next_below(60) as usize,
        ..rdmap::Config::default()
    }
}

/// Runs messages in both directions over a pair, then closes. Returns the number of bytes (TCP) or the maximum number of
/// ranges (SCTP) out of order, and of retransmitted segments or chunks.
fn play<S: sim::end::Setup>(rng: &mut Rng, host: S) -> [u64; 2]
where
    S::Host: RdmapHost,
{
    let (forward, backward) = (lossy(rng), lossy(rng));
    let (client, server, cost) = (host.clone(), host, Default::default());
    let mut pair = Pair::new(Config { client, server, forward, backward, icmp: false, cost });
    let to_server = exchange(rng, &mut pair.client, &mut pair.server);
    let to_client = exchange(rng, &mut pair.server, &mut pair.client);
    let now = pair.now;
    pair.client.connect(now).expect("no private data");
    let done = |pair: &Pair<S>| {
        [&pair.client, &pair.server].into_iter().all(|host| received(host).len() >= MESSAGES)
            || pair.client.closed().is_some()
            || pair.server.closed().is_some()
    };
    let ran = pair.run_until(Duration::from_secs(120), done);
    assert_eq!((ran, pair.client.closed(), pair.server.closed()), (Ok(()), None, None));
    for (host, expected) in [(&pair.server, &to_server), (&pair.client, &to_client)] {
        assert_eq!(received(host), expected.events[..MESSAGES]);
        assert!(host.uses(&expected.memory), "spare receives");
    }
    let now = pair.now;
    pair.client.shutdown(now);
    pair.run_until(Duration::from_secs(300), |pair| pair.client.is_done() && pair.server.is_done())
        .expect("both ends go");
    assert_eq!((pair.client.closed(), pair.server.closed()), (Some(true), Some(true)));
    for (host, expected) in [(&pair.server, &to_server), (&pair.client, &to_client)] {
        assert_eq!(received(host), expected.events);
        assert!(expected.memory.to_vec() == expected.bytes);
        assert!(!host.uses(&expected.memory));
        assert_eq!(host.in_use(), (0, 0));
        assert_eq!(expected.memory.len(), MEMORY as u64);
    }
    let totals = [pair.client.totals(), pair.server.totals()];
    [
        totals.iter().map(|totals| totals.out_of_order_bytes).sum(),
        totals.iter().map(|totals| totals.retransmitted).sum(),
    ]
}

fn add(sum: [u64; 2], more: [u64; 2]) -> [u64; 2] {
    [sum[0] + more[0], sum[1] + more[1]]
}

fn play_tcp(seeds: core::ops::Range<u64>, markers: bool) -> [u64; 2] {
    let run = |seed| {
        let mut rng = Rng::new(seed);
        let mut host = HostConfig { rdmap: Some(ulp(&mut rng)), ..HostConfig::default() };
        host.endpoint.mpa.markers = markers;
        play(&mut rng, host)
    };
    seeds.map(run).fold([0; 2], add)
}

#[test]
fn receives_are_filled_over_tcp_with_markers() {
    let [beyond, again] = play_tcp(0..8, true);
    assert!(beyond > 100_000 && again > 100, "{beyond} bytes beyond gaps, {again} again");
}

#[test]
fn receives_are_filled_over_tcp_without_markers() {
    let [beyond, again] = play_tcp(100..106, false);
    assert!(beyond == 0 && again > 100, "{beyond} bytes beyond gaps, {again} again");
}

#[test]
fn receives_are_filled_over_sctp() {
    let run = |seed| {
        let mut rng = Rng::new(seed);
        let host = SctpConfig { rdmap: Some(ulp(&mut rng)), ..SctpConfig::default() };
        play(&mut rng, host)
    };
    let [beyond, again] = (200u64..208).map(run).fold([0; 2], add);
    assert!(beyond > 20 && again > 100, "{beyond} ranges beyond gaps, {again} again");
}
