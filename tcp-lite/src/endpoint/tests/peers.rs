//! Hosts of the simulated network: an endpoint with its worker's state, and a plain TCP program.

use super::net::{Host, Net, Tx};
use crate::endpoint::*;
use crate::mpa::{self, HoldBudget};
use crate::seam::{SegmentSource, SpanOutcome, SpanSink};
use crate::tcp::{self, reset_for};
pub(super) use ddp::rdmap::WorkRequest;
use ddp::{
    Access, BufferPool, Cookie, EndpointPolicy, MESSAGE_QUEUE, QueueConfig, StagEntry, StagTable,
    StreamConfig, TaggedOffset, VecMemory,
};
pub(super) use ddp::{Message, PostError, Qn, Stag};
use std::net::SocketAddr;

pub(super) const STAG: Stag = Stag(0x0102_0300);
pub(super) const REGION: usize = 1 << 20;
pub(super) const PD: PdId = PdId(1);
const MSS: u16 = 1460;

/// Reaction to an MPA request. `Accept` and `Reject` contain private data.
#[derive(Clone)]
pub(super) enum Policy {
    Accept(Vec<u8>),
    Reject(Vec<u8>),
    Wait,
}

/// A host with an endpoint, or with a listener that has no connection yet.
pub(super) struct Node {
    pub(super) config: Arc<EndpointConfig>,
    pub(super) ep: Option<Endpoint<VecMemory>>,
    pub(super) policy: Policy,
    pub(super) ulp: UlpConfig,
    pub(super) memory: VecMemory,
    pub(super) events: Vec<Event>,
    pub(super) stags: StagTable<VecMemory>,
    pub(super) buffers: BufferPool,
    pub(super) hold: HoldBudget,
    /// True if the ULP closes as soon as the peer has closed.
    pub(super) closes: bool,
    /// True if a SYN creates an endpoint; otherwise the SYN is answered with a reset.
    listens: bool,
    resets: Vec<Vec<u8>>,
}

fn tuple(a: bool) -> FourTuple {
    let one = SocketAddr::from(([10, 0, 0, 1], 40000));
    let two = SocketAddr::from(([10, 0, 0, 2], 4791));
    if a { FourTuple { local: one, remote: two } } else { FourTuple { local: two, remote: one } }
}

pub(super) fn stream_config() -> StreamConfig {
    StreamConfig {
        queues: vec![
            QueueConfig { qn: MESSAGE_QUEUE, buffers: 64, buffer_size: 16 * 1024 },
            QueueConfig::error_queue(),
        ],
        ..StreamConfig::default()
    }
}

impl Node {
    fn new(config: EndpointConfig, ep: Option<Endpoint<VecMemory>>) -> Self {
        let memory = VecMemory::new(REGION);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: STAG,
            pd: PD,
            stream: None,
            base_to: TaggedOffset(0),
            len: REGION as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ATOMIC,
            memory: memory.clone(),
            memory_offset: 0,
        };
        stags.insert(entry).expect("a new table");
        Node {
            closes: config.policy.half_closed_timeout.is_some(),
            config: Arc::new(config),
            ep,
            policy: Policy::Accept(Vec::new()),
            ulp: stream_config().into(),
            memory,
            events: Vec::new(),
            stags,
            buffers: BufferPool::new(1 << 22),
            hold: HoldBudget::new(1 << 22),
            listens: true,
            resets: Vec::new(),
        }
    }

    /// Creates a host that opens a stream.
    pub(super) fn initiator(config: EndpointConfig, private_data: &[u8]) -> Self {
        Node::initiator_with_ulp(config, stream_config().into(), private_data)
    }

    /// Creates a host that opens a stream with this ULP.
    pub(super) fn initiator_with_ulp(
        config: EndpointConfig,
        ulp: UlpConfig,
        private_data: &[u8],
    ) -> Self {
        let open = OpenRequest { pd: PD, ulp: ulp.clone(), private_data: private_data.to_vec() };
        let now = Instant::from_millis(1000);
        let (id, iss) = (StreamId(1), SeqNumber(u32::MAX - 3000));
        let arc = Arc::new(config.clone());
        let ep = Endpoint::connect(arc, id, tuple(true), iss, MSS, now, open).expect("it fits");
        Node { ulp, ..Node::new(config, Some(ep)) }
    }

    /// Creates a host with a listener.
    pub(super) fn responder(config: EndpointConfig) -> Self {
        Node::new(config, None)
    }

    /// Creates a host with a listener and this ULP.
    pub(super) fn responder_with_ulp(config: EndpointConfig, ulp: UlpConfig) -> Self {
        Node { ulp, ..Node::responder(config) }
    }

    /// Creates a host without a listener.
    pub(super) fn without_listener() -> Self {
        Node { listens: false, ..Node::responder(EndpointConfig::default()) }
    }

    pub(super) fn ep(&mut self) -> &mut Endpoint<VecMemory> {
        self.ep.as_mut().expect("an endpoint")
    }

    pub(super) fn with_endpoint<R>(
        &mut self,
        f: impl FnOnce(&mut Endpoint<VecMemory>, &mut Context<'_, VecMemory>) -> R,
    ) -> R {
        let Node { ep, stags, buffers, hold, .. } = self;
        f(ep.as_mut().expect("an endpoint"), &mut Context { stags, buffers, hold })
    }

    /// Posts a tagged message into the peer's region.
    pub(super) fn write(&mut self, to: u64, bytes: &[u8], cookie: u64) {
        let source = ddp::Source::Bytes(bytes.into());
        let to = TaggedOffset(to);
        let message =
            Message::Tagged { stag: STAG, to, rsvd_ulp: 0, source, cookie: Cookie::user(cookie) };
        self.ep().post(message).expect("room to post");
    }

    /// Posts an untagged message to the peer's message queue.
    pub(super) fn send(&mut self, bytes: &[u8], cookie: u64) {
        let source = ddp::Source::Bytes(bytes.into());
        let message = Message::Untagged {
            qn: MESSAGE_QUEUE,
            rsvd_ulp: [0; 5],
            source,
            cookie: Cookie::user(cookie),
        };
        self.ep().post(message).expect("room to post");
    }

    pub(super) fn state(&self) -> Option<State> {
        self.ep.as_ref().map(|ep| ep.state())
    }

    pub(super) fn stats(&self) -> EndpointStats {
        self.ep.as_ref().map(|ep| ep.stats()).unwrap_or_default()
    }

    pub(super) fn is_established(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Established { .. }))
    }

    pub(super) fn params(&self) -> Option<StreamParams> {
        self.events.iter().find_map(|event| match event {
            Event::Established { params, .. } => Some(*params),
            _ => None,
        })
    }

    pub(super) fn reason(&self) -> Option<CloseReason> {
        self.events.iter().find_map(|event| match event {
            Event::Closed { reason } => Some(reason.clone()),
            _ => None,
        })
    }

    pub(super) fn ddp_events(&self) -> Vec<ddp::Event> {
        let of = |event: &Event| match event {
            Event::Ddp(event) => Some(event.clone()),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    pub(super) fn rdmap_events(&self) -> Vec<rdmap::Event> {
        let of = |event: &Event| match event {
            Event::Rdmap(event) => Some(event.clone()),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }

    /// Returns the delivered untagged messages: queue and data.
    pub(super) fn messages(&self) -> Vec<(Qn, Vec<u8>)> {
        let of = |event: ddp::Event| match event {
            ddp::Event::UntaggedDelivered { qn, data, .. } => Some((qn, data)),
            _ => None,
        };
        self.ddp_events().into_iter().filter_map(of).collect()
    }

    /// Asserts that the worker holds no state of the stream.
    pub(super) fn assert_no_state_left(&self) {
        assert_eq!((self.hold.used(), self.buffers.in_use()), (0, 0));
        assert!(self.ep.as_ref().is_none_or(|ep| ep.is_done()), "{:?}", self.state());
    }

    fn events(&mut self, now: Instant) {
        while let Some(event) = self.ep.as_mut().and_then(|ep| ep.poll_event()) {
            let request = matches!(event, Event::MpaRequest { .. });
            if let Event::Ddp(ddp::Event::UntaggedDelivered { qn, .. }) = &event {
                self.ep().post_buffers(*qn, 1).expect("the queue exists");
            }
            if let Event::Rdmap(rdmap::Event::Received { .. }) = &event {
                self.ep().post_buffers(MESSAGE_QUEUE, 1).expect("the queue exists");
            }
            // RFC 5041 §6.2.1: the ULP closes after the peer's close, because it has nothing more to send.
            let peer_closed = matches!(
                &event,
                Event::Ddp(ddp::Event::PeerClosed { .. })
                    | Event::Rdmap(rdmap::Event::PeerClosed { .. })
            );
            if peer_closed && self.closes {
                self.ep().shutdown(now);
            }
            self.events.push(event);
            if !request {
                continue;
            }
            match self.policy.clone() {
                Policy::Wait => {}
                Policy::Accept(private_data) => {
                    let ulp = self.ulp.clone();
                    self.with_endpoint(|ep, cx| ep.mpa_accept(now, PD, &private_data, ulp, cx))
                        .expect("a request");
                }
                Policy::Reject(private_data) => {
                    self.ep().mpa_reject(now, &private_data).expect("a request");
                }
            }
        }
    }
}

impl Host for Node {
    fn input(&mut self, now: Instant, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("a segment");
        if self.ep.is_none() {
            let syn = segment.flags.has(tcp::Flags::SYN) && !segment.flags.has(tcp::Flags::ACK);
            if !self.listens || !syn {
                let mut tx = Tx::default();
                reset_for(&segment, &mut tx);
                self.resets.append(&mut tx.segments);
                return;
            }
            let (id, iss) = (StreamId(2), SeqNumber(7));
            let config = self.config.clone();
            self.ep = Some(Endpoint::accept(config, id, tuple(false), iss, MSS, &segment, now));
        } else {
            // Drop reasons are checked by TCP's own tests.
            let _dropped = self.with_endpoint(|ep, cx| ep.input(now, &segment, cx));
        }
        self.events(now);
    }

    fn transmit(&mut self, now: Instant, tx: &mut Tx) {
        tx.segments.append(&mut self.resets);
        if let Some(ep) = &mut self.ep {
            ep.poll_transmit(now, tx);
        }
        self.events(now);
    }

    fn timeout(&self) -> Option<Instant> {
        self.ep.as_ref().and_then(|ep| ep.poll_timeout())
    }

    fn expire(&mut self, now: Instant) {
        self.with_endpoint(|ep, cx| ep.handle_timeout(now, cx));
        self.events(now);
    }
}

/// Returns an initiator and a responder, not yet connected.
pub(super) fn pair(a: EndpointConfig, b: EndpointConfig) -> Net<Node, Node> {
    Net::new(Node::initiator(a, b""), Node::responder(b))
}

/// Returns an initiator and a responder with an established stream.
pub(super) fn established(a: EndpointConfig, b: EndpointConfig) -> Net<Node, Node> {
    let mut net = pair(a, b);
    net.run_until(|net| net.a.is_established() && net.b.is_established());
    assert!(net.a.is_established() && net.b.is_established());
    net
}

/// Returns the default configuration with this MPA configuration.
pub(super) fn with_mpa(mpa: mpa::Config) -> EndpointConfig {
    EndpointConfig { mpa, ..EndpointConfig::default() }
}

/// Returns the default configuration with this policy.
pub(super) fn with_policy(policy: EndpointPolicy) -> EndpointConfig {
    EndpointConfig { policy, ..EndpointConfig::default() }
}

/// A plain TCP program that sends and receives bytes.
pub(super) struct Raw {
    conn: Option<Connection>,
    pub(super) up: Bytes,
    pub(super) events: Vec<tcp::Event>,
}

#[derive(Default)]
pub(super) struct Bytes {
    pub(super) received: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

impl Raw {
    pub(super) fn connect() -> Self {
        let now = Instant::from_millis(1000);
        let config = Arc::new(tcp::Config::default());
        let conn = Connection::connect(config, tuple(true), SeqNumber(99), MSS, now);
        Raw { conn: Some(conn), ..Raw::listen() }
    }

    pub(super) fn listen() -> Self {
        Raw { conn: None, up: Bytes::default(), events: Vec::new() }
    }

    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        self.up.output.extend_from_slice(bytes);
    }

    pub(super) fn close(&mut self) {
        self.conn.as_mut().expect("a connection").close();
    }

    pub(super) fn has(&self, event: tcp::Event) -> bool {
        self.events.contains(&event)
    }
}

impl SpanSink for Bytes {
    fn receive_span(
        &mut self,
        _: Instant,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
    ) -> SpanOutcome {
        if !in_order {
            return SpanOutcome::Part(offset..offset);
        }
        self.received.extend_from_slice(bytes);
        SpanOutcome::All
    }
    fn advance_in_order(&mut self, _: Instant, _: u64) {}
    fn room(&self) -> u64 {
        1 << 20
    }
}

impl SegmentSource for Bytes {
    fn has_data(&self) -> bool {
        self.sent < self.output.len()
    }
    fn fill(&mut self, offset: u64, _: usize, _: bool, out: &mut [u8]) -> usize {
        let rest = &self.output[offset as usize..];
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        self.sent = offset as usize + n;
        n
    }
    fn refill(&mut self, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.output[offset as usize..][..out.len()]);
    }
    fn on_acknowledged(&mut self, _: u64) {}
    fn on_emss_changed(&mut self, _: usize) {}
}

impl Raw {
    fn collect(&mut self) {
        while let Some(event) = self.conn.as_mut().and_then(|conn| conn.poll_event()) {
            self.events.push(event);
        }
    }
}

impl Host for Raw {
    fn input(&mut self, now: Instant, bytes: &[u8]) {
        let segment = Segment::parse(bytes).expect("a segment");
        match &mut self.conn {
            Some(conn) => {
                let _dropped = conn.input(now, &segment, &mut self.up);
            }
            None => {
                let config = Arc::new(tcp::Config::default());
                let iss = SeqNumber(5);
                self.conn = Some(Connection::accept(config, tuple(false), iss, MSS, &segment, now));
            }
        }
        self.collect();
    }

    fn transmit(&mut self, now: Instant, tx: &mut Tx) {
        if let Some(conn) = &mut self.conn {
            conn.poll_transmit(now, &mut self.up, tx);
        }
        self.collect();
    }

    fn timeout(&self) -> Option<Instant> {
        self.conn.as_ref().and_then(|conn| conn.poll_timeout())
    }

    fn expire(&mut self, now: Instant) {
        if let Some(conn) = &mut self.conn {
            conn.handle_timeout(now, &mut self.up);
        }
        self.collect();
    }
}

/// Asserts that the stream was closed gracefully, by `a` first, and that no state of the stream remains.
pub(super) fn assert_closed_by_a(net: &Net<Node, Node>) {
    assert_eq!(net.a.reason(), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.reason(), Some(CloseReason::PeerShutdown));
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}
