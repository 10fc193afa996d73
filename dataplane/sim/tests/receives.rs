//! Posted receives and gathered sources between two hosts over TCP and SCTP, with loss, reordering and duplicates. Each
//! message is placed in its own receive, and no other byte of the receives' memory is written.

use core::time::Duration;
use std::sync::Arc;

use ddp::rdmap::{self, Event, Receive, ReceiveMode, WorkRequest};
use ddp::{Cookie, MAX_SPANS, Source, Span, SpanList, VecMemory};
use link::{Loss, Probability, Reorder, Rng};
use sim::end::{End, Setup};
use sim::host::{Host, HostConfig};
use sim::pair::{Config, Pair};
use sim::path;
use sim::sctp::{SctpConfig, SctpHost};

/// Number of messages in each direction.
const MESSAGES: usize = 150;
/// Number of receives posted in each direction for which no message is sent.
const SPARE: usize = 5;
/// Size of the memory for each host's receives, bytes.
const MEMORY: usize = 2 << 20;
/// Bytes before each span that must stay unchanged.
const GUARD: usize = 16;

/// A host with RDMAP on its first stream.
trait RdmapHost: End {
    /// Posts an operation.
    fn operate(&mut self, request: WorkRequest<VecMemory>);
    /// Posts a receive.
    fn receive(&mut self, receive: Receive<VecMemory>);
    /// Returns the RDMAP events so far.
    fn events(&self) -> Vec<Event>;
    /// Returns true if the stream still refers to `memory`.
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
        let ulp = self.endpoint().and_then(|endpoint| endpoint.stream());
        ulp.is_some_and(|ulp| ulp.uses_memory(memory))
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

/// Events and memory that one host must have at the end.
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

/// Returns a source of these bytes: copied bytes, spans of stable memory, or spans of other memory.
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

/// Posts random messages at one host and their receives at the other. Returns the expected results at the other host.
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

/// A pair of hosts with posted messages and receives in both directions. `expected`: results at the server, results at
/// the client.
struct Exchange<S: Setup> {
    pair: Pair<S>,
    expected: [Expected; 2],
}

impl<S: Setup> Exchange<S>
where
    S::Host: RdmapHost,
{
    fn new(rng: &mut Rng, host: S) -> Self {
        let (forward, backward) = (lossy(rng), lossy(rng));
        let (client, server, cost) = (host.clone(), host, Default::default());
        let mut pair = Pair::new(Config { client, server, forward, backward, icmp: false, cost });
        let to_server = exchange(rng, &mut pair.client, &mut pair.server);
        let to_client = exchange(rng, &mut pair.server, &mut pair.client);
        let now = pair.now;
        pair.client.connect(now).expect("empty private data fits");
        Exchange { pair, expected: [to_server, to_client] }
    }

    /// Runs until both ends have received this many messages. Fails if an end closes before.
    fn run_until_received(&mut self, messages: usize) {
        let done = |pair: &Pair<S>| {
            [&pair.client, &pair.server].into_iter().all(|host| received(host).len() >= messages)
                || pair.client.closed().is_some()
                || pair.server.closed().is_some()
        };
        let ran = self.pair.run_until(Duration::from_secs(120), done);
        assert_eq!(
            (ran, self.pair.client.closed(), self.pair.server.closed()),
            (Ok(()), None, None)
        );
    }

    fn run_to_end(&mut self) {
        let done = |pair: &Pair<S>| pair.client.is_done() && pair.server.is_done();
        self.pair.run_until(Duration::from_secs(300), done).expect("both ends finish");
    }

    fn sides(&self) -> [(&S::Host, &Expected); 2] {
        let [server, client] = &self.expected;
        [(&self.pair.server, server), (&self.pair.client, client)]
    }
}

/// Exchanges all messages in both directions, then closes. Returns the number of out-of-order bytes (TCP) or the
/// maximum number of out-of-order ranges (SCTP), and the number of retransmitted segments or chunks.
fn play<S: Setup>(rng: &mut Rng, host: S) -> [u64; 2]
where
    S::Host: RdmapHost,
{
    let mut run = Exchange::new(rng, host);
    run.run_until_received(MESSAGES);
    for (host, expected) in run.sides() {
        assert_eq!(received(host), expected.events[..MESSAGES]);
        assert!(host.uses(&expected.memory), "spare receives");
    }
    let now = run.pair.now;
    run.pair.client.shutdown(now);
    run.run_to_end();
    assert_eq!((run.pair.client.closed(), run.pair.server.closed()), (Some(true), Some(true)));
    for (host, expected) in run.sides() {
        assert_eq!(received(host), expected.events);
        assert!(expected.memory.to_vec() == expected.bytes);
        assert!(!host.uses(&expected.memory));
        assert_eq!(host.in_use(), (0, 0));
    }
    let totals = [run.pair.client.totals(), run.pair.server.totals()];
    [
        totals.iter().map(|totals| totals.out_of_order_bytes).sum(),
        totals.iter().map(|totals| totals.retransmitted).sum(),
    ]
}

/// Aborts a pair in the middle of its messages. Each receive ends once and in order: received messages, then flushes.
fn play_abort<S: Setup>(rng: &mut Rng, host: S)
where
    S::Host: RdmapHost,
{
    let mut run = Exchange::new(rng, host);
    run.run_until_received(rng.next_below(MESSAGES as u64) as usize);
    let now = run.pair.now;
    run.pair.client.abort(now);
    run.run_to_end();
    for (host, expected) in run.sides() {
        let events = received(host);
        let is_flush = |event: &Event| matches!(event, Event::ReceiveFlushed { .. });
        let flushed = events.iter().position(is_flush).expect("spare receives");
        assert_eq!(events[..flushed], expected.events[..flushed]);
        let cookies = flushed as u64..(MESSAGES + SPARE) as u64;
        let flushes: Vec<Event> = cookies.map(|cookie| Event::ReceiveFlushed { cookie }).collect();
        assert_eq!(events[flushed..], flushes);
        assert!(!host.uses(&expected.memory));
        assert_eq!(host.in_use(), (0, 0));
        // Incomplete messages may be placed in part. No other byte is written.
        let memory = expected.memory.to_vec();
        let mut bytes = memory.iter().zip(&expected.bytes);
        assert!(bytes.all(|(byte, expected)| byte == expected || *byte == 0));
    }
}

fn add(sum: [u64; 2], more: [u64; 2]) -> [u64; 2] {
    [sum[0] + more[0], sum[1] + more[1]]
}

fn tcp(rng: &mut Rng, markers: bool) -> HostConfig {
    let mut host = HostConfig { rdmap: Some(ulp(rng)), ..HostConfig::default() };
    host.endpoint.mpa.markers = markers;
    host
}

fn sctp(rng: &mut Rng) -> SctpConfig {
    SctpConfig { rdmap: Some(ulp(rng)), ..SctpConfig::default() }
}

fn play_all<S: Setup>(seeds: core::ops::Range<u64>, host: impl Fn(&mut Rng) -> S) -> [u64; 2]
where
    S::Host: RdmapHost,
{
    let run = |seed| {
        let mut rng = Rng::new(seed);
        let host = host(&mut rng);
        play(&mut rng, host)
    };
    seeds.map(run).fold([0; 2], add)
}

#[test]
fn receives_are_filled_over_tcp_with_markers() {
    let [beyond, again] = play_all(0..8, |rng| tcp(rng, true));
    assert!(beyond > 100_000 && again > 100, "{beyond} bytes beyond gaps, {again} again");
}

#[test]
fn receives_are_filled_over_tcp_without_markers() {
    let [beyond, again] = play_all(100..106, |rng| tcp(rng, false));
    assert!(beyond == 0 && again > 100, "{beyond} bytes beyond gaps, {again} again");
}

#[test]
fn receives_are_filled_over_sctp() {
    let [beyond, again] = play_all(200..208, sctp);
    assert!(beyond > 20 && again > 100, "{beyond} ranges beyond gaps, {again} again");
}

#[test]
fn abort_flushes_receives_once_and_in_order() {
    for seed in 300..320 {
        let mut rng = Rng::new(seed);
        let host = tcp(&mut rng, seed % 2 == 0);
        play_abort(&mut rng, host);
        let host = sctp(&mut rng);
        play_abort(&mut rng, host);
    }
}
