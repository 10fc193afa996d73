//! Two hosts with whole associations and a faulty path between them, in virtual time. For tests of chunks, timers, loss
//! and the end of associations. Tests of sessions alone use [`host`](super::host), which has no SCTP below.

use super::host::{PD, Policy, region, stream_config};
use crate::endpoint::*;
use crate::sctp::{self, Ends, Listener, ListenerResult, Secrets, handle_out_of_the_blue};
use crate::seam::TxBatch;
use core::time::Duration;
use ddp::{BufferPool, HoldBudget, MESSAGE_QUEUE, StagTable, VecMemory, rdmap};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use wire::sctp::chunk_type;

/// Length of an SCTP packet on a path with an MTU of 1500, bytes.
pub(super) const PACKET: usize = 1480;

/// Maximum number of packets that a host writes in one call.
const MAX_BURST: usize = 32;

/// Packets that a host has written.
#[derive(Default)]
pub(super) struct Tx {
    room: Vec<u8>,
    pub(super) packets: Vec<Vec<u8>>,
}

impl TxBatch for Tx {
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.packets.len() >= MAX_BURST {
            return None;
        }
        self.room = vec![0; len];
        Some(&mut self.room)
    }

    fn commit(&mut self, len: usize) {
        self.packets.push(self.room[..len].to_vec());
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    A,
    B,
}

/// Treatment of a packet by the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Pass,
    Drop,
    /// Arrives later by this time, possibly after later packets.
    Delay(Duration),
    /// Arrives twice.
    Duplicate,
    /// Arrives with one bit changed.
    Corrupt,
}

#[derive(Clone)]
pub(super) struct Setup {
    pub(super) sctp: sctp::Config,
    pub(super) endpoint: EndpointConfig,
    pub(super) ulp: UlpConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            // Heartbeats would keep the simulation running for ever.
            sctp: sctp::Config { heartbeat_interval: None, streams: 16, ..sctp::Config::default() },
            endpoint: EndpointConfig::default(),
            ulp: stream_config().into(),
        }
    }
}

/// A host: an endpoint, or a listener that creates one.
pub(super) struct Node {
    pub(super) setup: Setup,
    pub(super) ep: Option<Endpoint<VecMemory>>,
    ends: Ends,
    secrets: Arc<Secrets>,
    listener: Option<Listener>,
    pub(super) policy: Policy,
    pub(super) memory: VecMemory,
    pub(super) stags: StagTable<VecMemory>,
    pub(super) buffers: BufferPool,
    pub(super) hold: HoldBudget,
    pub(super) events: Vec<Event>,
    /// Final counters of each session.
    final_stats: BTreeMap<SessionId, SessionStats>,
    replies: Vec<Vec<u8>>,
    streams: u64,
}

fn ends(a: bool) -> Ends {
    let one = SocketAddr::from(([10, 0, 0, 1], 40_000));
    let two = SocketAddr::from(([10, 0, 0, 2], 4791));
    if a { Ends { local: one, remote: two } } else { Ends { local: two, remote: one } }
}

impl Node {
    fn new(setup: Setup, a: bool) -> Node {
        let memory = VecMemory::new(super::host::REGION);
        Node {
            ep: None,
            ends: ends(a),
            secrets: Arc::new(Secrets::new([if a { 3 } else { 5 }; 16])),
            listener: None,
            policy: Policy::Accept(Vec::new()),
            stags: region(&memory),
            memory,
            buffers: BufferPool::new(1 << 22),
            hold: HoldBudget::new(1 << 22),
            events: Vec::new(),
            final_stats: BTreeMap::new(),
            replies: Vec::new(),
            streams: 0,
            setup,
        }
    }

    pub(super) fn open_request(&self, private_data: &[u8]) -> OpenRequest {
        OpenRequest { pd: PD, ulp: self.setup.ulp.clone(), private_data: private_data.to_vec() }
    }

    /// Returns an active host that opens an association and a session.
    pub(super) fn initiator(setup: Setup, private_data: &[u8]) -> Node {
        let mut node = Node::new(setup, true);
        node.connect(Instant::from_millis(1000), private_data);
        node
    }

    /// Returns a passive host with a listener.
    pub(super) fn responder(setup: Setup) -> Node {
        let mut node = Node::new(setup, false);
        let config = Arc::new(node.setup.sctp.clone());
        node.listener = Some(Listener::new(config, node.secrets.clone()));
        node
    }

    /// Returns a host without a listener.
    pub(super) fn unresponsive(setup: Setup) -> Node {
        Node::new(setup, false)
    }

    pub(super) fn connect(&mut self, now: Instant, private_data: &[u8]) -> SessionId {
        let open = self.open_request(private_data);
        let (sctp, endpoint) = (self.setup.sctp.clone(), self.setup.endpoint.clone());
        let (sctp, endpoint) = (Arc::new(sctp), Arc::new(endpoint));
        let secrets = self.secrets.clone();
        let opened =
            Endpoint::connect(sctp, endpoint, secrets, self.ends, PACKET, now, StreamId(1), open);
        let (ep, session) = opened.expect("private data that fits");
        self.ep = Some(ep);
        session
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

    pub(super) fn open(&mut self, now: Instant, private_data: &[u8]) -> SessionId {
        self.streams += 1;
        let (id, open) = (StreamId(1000 + self.streams), self.open_request(private_data));
        self.ep().open_session(now, id, open).expect("a free pair of streams")
    }

    pub(super) fn input(&mut self, now: Instant, bytes: &[u8]) {
        let packet = Packet::new(bytes).expect("a packet");
        if !packet.checksum_ok() {
            return;
        }
        if self.ep.is_none() && !self.listener_input(now, &packet) {
            return;
        }
        // The tests of SCTP cover the drop reasons.
        let _dropped = self.with_endpoint(|ep, cx| ep.input(now, &packet, cx));
        self.handle_events(now);
    }

    /// Processes a packet without an association. Returns true if an association exists afterwards.
    fn listener_input(&mut self, now: Instant, packet: &Packet<'_>) -> bool {
        let mut tx = Tx::default();
        let arrived = match &self.listener {
            Some(listener) => listener.input(now, &self.ends, packet, &mut tx),
            None => ListenerResult::Dropped(handle_out_of_the_blue(&self.ends, packet, &mut tx)),
        };
        self.replies.append(&mut tx.packets);
        let ListenerResult::Accept(cookie) = arrived else { return false };
        let (sctp, endpoint) = (self.setup.sctp.clone(), self.setup.endpoint.clone());
        let (sctp, endpoint) = (Arc::new(sctp), Arc::new(endpoint));
        let secrets = self.secrets.clone();
        let ep = Endpoint::accept(sctp, endpoint, secrets, self.ends, PACKET, &cookie, now);
        self.ep = Some(ep);
        true
    }

    fn transmit(&mut self, now: Instant, tx: &mut Tx) {
        tx.packets.append(&mut self.replies);
        if let Some(ep) = &mut self.ep {
            ep.poll_transmit(now, tx);
        }
        self.handle_events(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.with_endpoint(|ep, cx| ep.handle_timeout(now, cx));
        self.handle_events(now);
    }

    /// Performs the owner's reactions to events.
    fn handle_events(&mut self, now: Instant) {
        while let Some(event) = self.ep.as_mut().and_then(|ep| ep.poll_event()) {
            self.events.push(event.clone());
            let Event::Session(id, event) = event else { continue };
            match (event, self.policy.clone()) {
                (SessionEvent::Request { .. }, Policy::Accept(data)) => self.accept(now, id, &data),
                (SessionEvent::Request { .. }, Policy::Reject(data)) => {
                    self.ep().reject_session(now, id, &data).expect("a request");
                }
                (SessionEvent::Ddp(ddp::Event::UntaggedDelivered { qn, .. }), _) => {
                    self.ep().post_buffers(id, qn, 1).expect("the queue exists");
                }
                (SessionEvent::Rdmap(rdmap::Event::Received { .. }), _) => {
                    self.ep().post_buffers(id, MESSAGE_QUEUE, 1).expect("the queue exists");
                }
                // RFC 5041 §6.2.1: the ULP has no more data to send.
                (
                    SessionEvent::Ddp(ddp::Event::PeerClosed { .. })
                    | SessionEvent::Rdmap(rdmap::Event::PeerClosed { .. }),
                    _,
                ) if self.setup.endpoint.policy.half_closed_timeout.is_some() => {
                    self.ep().shutdown_session(now, id);
                }
                (SessionEvent::Closed { stats, .. }, _) => {
                    self.final_stats.insert(id, *stats);
                }
                _ => {}
            }
        }
    }

    pub(super) fn accept(&mut self, now: Instant, id: SessionId, private_data: &[u8]) {
        self.streams += 1;
        let (stream, ulp) = (StreamId(self.streams), self.setup.ulp.clone());
        self.with_endpoint(|ep, cx| ep.accept_session(now, id, stream, PD, private_data, ulp, cx))
            .expect("a request");
    }

    /// Returns the sessions, in the order of their first events.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let mut all = Vec::new();
        for event in &self.events {
            if let Event::Session(id, _) = event
                && !all.contains(id)
            {
                all.push(*id);
            }
        }
        all
    }

    /// Returns the first session.
    pub(super) fn session(&self) -> SessionId {
        *self.sessions().first().expect("a session")
    }

    pub(super) fn events_of(&self, session: SessionId) -> impl Iterator<Item = &SessionEvent> {
        self.events.iter().filter_map(move |event| match event {
            Event::Session(id, event) if *id == session => Some(event),
            _ => None,
        })
    }

    pub(super) fn is_established(&self, session: SessionId) -> bool {
        self.events_of(session).any(|event| matches!(event, SessionEvent::Established { .. }))
    }

    pub(super) fn established(&self) -> usize {
        self.sessions().iter().filter(|id| self.is_established(**id)).count()
    }

    pub(super) fn reason(&self, session: SessionId) -> Option<CloseReason> {
        self.events_of(session).find_map(|event| match event {
            SessionEvent::Closed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    }

    /// Returns the reason for the end of the association.
    pub(super) fn down_reason(&self) -> Option<CloseReason> {
        self.events.iter().find_map(|event| match event {
            Event::Down { reason } => Some(reason.clone()),
            _ => None,
        })
    }

    pub(super) fn stats(&self, session: SessionId) -> SessionStats {
        let live = self.ep.as_ref().and_then(|ep| ep.session_stats(session));
        live.or_else(|| self.final_stats.get(&session).copied()).unwrap_or_default()
    }

    pub(super) fn is_up(&self) -> bool {
        self.ep.as_ref().is_some_and(|ep| ep.state() != sctp::State::Closed)
    }

    /// Asserts that the endpoint is done and uses no buffers of the worker.
    pub(super) fn assert_nothing_left(&self) {
        assert_eq!(self.buffers.in_use(), 0);
        assert!(self.ep.as_ref().is_none_or(|ep| ep.is_done()));
    }
}

struct InFlight {
    at: Instant,
    order: u64,
    to: Side,
    bytes: Vec<u8>,
}

type FateFn = dyn FnMut(Side, usize, &[u8]) -> Fate;

/// Two hosts and the path between them.
pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) a: Node,
    pub(super) b: Node,
    fate: Box<FateFn>,
    sent: [usize; 2],
    order: u64,
    in_flight: Vec<InFlight>,
    /// Sender and chunk types of every packet sent, also if the path drops it.
    pub(super) log: Vec<(Side, Vec<u8>)>,
}

impl Net {
    pub(super) fn new(a: Node, b: Node) -> Net {
        Net {
            now: Instant::from_millis(1000),
            a,
            b,
            fate: Box::new(|_, _, _| Fate::Pass),
            sent: [0; 2],
            order: 0,
            in_flight: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Returns a pair with one established session.
    pub(super) fn established(setup: &Setup) -> Net {
        let a = Node::initiator(setup.clone(), b"");
        let mut net = Net::new(a, Node::responder(setup.clone()));
        net.run_until(|net| net.a.established() == 1 && net.b.established() == 1);
        assert_eq!((net.a.established(), net.b.established()), (1, 1));
        net.run_for(Duration::from_millis(50));
        net
    }

    /// Sets the function that selects the fate of a packet, from the sender, the number of the packet (from 1) and its
    /// bytes.
    pub(super) fn set_fate(&mut self, fate: impl FnMut(Side, usize, &[u8]) -> Fate + 'static) {
        self.fate = Box::new(fate);
    }

    /// Runs until `done`, or until no event is left, for at most twenty virtual minutes.
    pub(super) fn run_until(&mut self, done: impl Fn(&Net) -> bool) {
        let limit = self.now + Duration::from_secs(1200);
        self.transmit();
        for _ in 0..1_000_000 {
            if done(self) || !self.step(limit) {
                return;
            }
        }
        panic!("the simulation does not end");
    }

    /// Runs until no event is left.
    pub(super) fn run(&mut self) {
        self.run_until(|_| false);
    }

    /// Runs for `time` of virtual time.
    pub(super) fn run_for(&mut self, time: Duration) {
        let limit = self.now + time;
        self.transmit();
        while self.step(limit) {}
        self.now = limit;
    }

    /// Advances the time to the next arrival or timer, and processes the arrivals and timers due at that time. Returns
    /// false if nothing is due until `limit`.
    fn step(&mut self, limit: Instant) -> bool {
        let arrival = self.in_flight.iter().map(|f| f.at).min();
        let timeout = |node: &Node| node.ep.as_ref().and_then(|ep| ep.poll_timeout());
        let timeouts = [timeout(&self.a), timeout(&self.b)];
        let next = [arrival, timeouts[0], timeouts[1]].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= limit) else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        let mut due: Vec<InFlight> = Vec::new();
        let mut i = 0;
        while i < self.in_flight.len() {
            if self.in_flight[i].at <= now { due.push(self.in_flight.remove(i)) } else { i += 1 }
        }
        due.sort_by_key(|f| (f.at, f.order));
        for f in due {
            match f.to {
                Side::A => self.a.input(now, &f.bytes),
                Side::B => self.b.input(now, &f.bytes),
            }
        }
        for node in [&mut self.a, &mut self.b] {
            if timeout(node).is_some_and(|at| at <= now) {
                node.handle_timeout(now);
            }
        }
        self.transmit();
        true
    }

    /// Sends the due packets of both hosts.
    pub(super) fn transmit(&mut self) {
        for side in [Side::A, Side::B] {
            loop {
                let mut tx = Tx::default();
                match side {
                    Side::A => self.a.transmit(self.now, &mut tx),
                    Side::B => self.b.transmit(self.now, &mut tx),
                }
                let full = tx.packets.len() >= MAX_BURST;
                tx.packets.into_iter().for_each(|bytes| self.send(side, bytes));
                if !full {
                    break;
                }
            }
        }
    }

    fn send(&mut self, from: Side, bytes: Vec<u8>) {
        let to = if from == Side::A { Side::B } else { Side::A };
        self.sent[from as usize] += 1;
        let fate = (self.fate)(from, self.sent[from as usize], &bytes);
        self.log.push((from, kinds(&bytes)));
        let (delay, packets) = match fate {
            Fate::Drop => return,
            Fate::Pass => (Duration::ZERO, vec![bytes]),
            Fate::Delay(delay) => (delay, vec![bytes]),
            Fate::Duplicate => (Duration::ZERO, vec![bytes.clone(), bytes]),
            Fate::Corrupt => (Duration::ZERO, vec![flip(bytes)]),
        };
        for bytes in packets {
            self.order += 1;
            let at = self.now + Duration::from_micros(500) + delay;
            self.in_flight.push(InFlight { at, order: self.order, to, bytes });
        }
    }

    /// Returns true if `side` has sent a chunk of this type.
    pub(super) fn has_sent(&self, side: Side, kind: u8) -> bool {
        self.log.iter().any(|(from, kinds)| *from == side && kinds.contains(&kind))
    }
}

fn flip(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 3;
    bytes[at] ^= 0x10;
    bytes
}

/// Returns the types of a packet's chunks.
pub(super) fn kinds(bytes: &[u8]) -> Vec<u8> {
    let packet = Packet::new(bytes).expect("a packet");
    packet.chunks().filter_map(Result::ok).map(|chunk| chunk.kind).collect()
}

pub(super) fn has_data(bytes: &[u8]) -> bool {
    kinds(bytes).contains(&chunk_type::DATA)
}
