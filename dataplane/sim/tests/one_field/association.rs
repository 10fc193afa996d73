//! An SCTP association whose peer is the test. The test builds the peer's packets and records the packets of the
//! endpoint under test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorNumbers;
use ddp::rdmap;
use ddp::{PdId, StreamId, VecMemory};
use sctp_lite::endpoint::{Endpoint, EndpointConfig, Event, SessionEvent, SessionId, UlpConfig};
use sctp_lite::sctp::{Config, Ends, Listener, ListenerResult, Secrets};
use sim::dialogue::Batch;
use sim::oracle::crc32c;
use wire::sctp::{Chunk, InitHeader, Packet, PacketBuilder, Parameter, Ports, Tag, Tsn};

use crate::connection::Worker;

pub(crate) const PEER_TAG: Tag = Tag(0x0102_0304);
pub(crate) const PEER_TSN: u32 = 0x1000;
const PD: PdId = PdId(1);

pub(crate) fn ends(id: u64) -> Ends {
    let local = SocketAddr::from(([10, 0, 0, 1], 9899));
    Ends { local, remote: ([10, 0, 0, 2], 4000 + id as u16).into() }
}

/// Encodes a packet with these chunks. The CRC field is zero.
pub(crate) fn packet(ports: Ports, tag: Tag, chunks: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ports.source.to_be_bytes());
    bytes.extend(ports.destination.to_be_bytes());
    bytes.extend(tag.0.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(chunks);
    bytes
}

pub(crate) fn chunk(kind: u8, flags: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags];
    bytes.extend((4 + value.len() as u16).to_be_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes a DATA chunk (RFC 9260 §3.3.1) on SCTP stream 0, with flags U, B and E. `tsn` is relative to [`PEER_TSN`].
pub(crate) fn data(tsn: u32, ppid: u32, message: &[u8]) -> Vec<u8> {
    let mut value = (PEER_TSN + tsn).to_be_bytes().to_vec();
    value.extend([0; 4]);
    value.extend(ppid.to_be_bytes());
    value.extend(message);
    chunk(0, 7, &value)
}

/// Reason why a session ended: name and error numbers.
type Closed = (String, Option<ErrorNumbers>);

pub(crate) struct Association {
    ports: Ports,
    endpoint: Option<Endpoint<VecMemory>>,
    listener: Listener,
    config: Arc<Config>,
    secrets: Arc<Secrets>,
    ends: Ends,
    id: u64,
    /// Verification tag of the endpoint, from its INIT ACK.
    endpoint_tag: Tag,
    cookie: Vec<u8>,
    /// Highest TSN received from the endpoint.
    seen_tsn: Option<Tsn>,
    pub(crate) ulpdus: Vec<Vec<u8>>,
    pub(crate) aborted: bool,
    pub(crate) events: Vec<String>,
    /// Reason for the end of the session, or of the association if it ended first.
    pub(crate) closed: Option<Closed>,
    pub(crate) down_reason: Option<String>,
    session: Option<SessionId>,
}

impl Association {
    pub(crate) fn new(id: u64) -> Association {
        let (config, secrets) = (Arc::new(Config::default()), Arc::new(Secrets::new([1; 16])));
        let ends = ends(id);
        Association {
            ports: ends.ports().reversed(),
            endpoint: None,
            listener: Listener::new(config.clone(), secrets.clone()),
            config,
            secrets,
            ends,
            id,
            endpoint_tag: Tag::NONE,
            cookie: Vec::new(),
            seen_tsn: None,
            ulpdus: Vec::new(),
            aborted: false,
            events: Vec::new(),
            closed: None,
            down_reason: None,
            session: None,
        }
    }

    /// Encodes the peer's INIT packet.
    pub(crate) fn init(&self) -> Vec<u8> {
        let header = InitHeader {
            tag: PEER_TAG,
            a_rwnd: 65_536,
            outbound_streams: 16,
            inbound_streams: 16,
            initial_tsn: Tsn(PEER_TSN),
        };
        let mut out = [0; 256];
        let mut builder = PacketBuilder::new(&mut out, self.ports, Tag::NONE);
        builder.init(&header, &[Parameter::Adaptation(1)]).expect("room");
        let len = builder.finish();
        out[..len].to_vec()
    }

    pub(crate) fn cookie_echo(&self) -> Vec<u8> {
        packet(self.ports, self.endpoint_tag, &chunk(10, 0, &self.cookie))
    }

    pub(crate) fn packet_with(&self, chunks: &[u8]) -> Vec<u8> {
        packet(self.ports, self.endpoint_tag, chunks)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.closed.is_some() || self.down_reason.is_some()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Passes the packet to the endpoint with a correct CRC.
    pub(crate) fn input(&mut self, mut bytes: Vec<u8>, worker: &mut Worker) {
        bytes[8..12].fill(0);
        let crc = crc32c(&bytes).to_le_bytes();
        bytes[8..12].copy_from_slice(&crc);
        let Ok(packet) = Packet::new(&bytes) else { return };
        assert!(packet.checksum_ok());
        // A worker would not find this association for a packet with other ports.
        if packet.ports() != self.ports {
            return;
        }
        let now = worker.now;
        if let Some(endpoint) = &mut self.endpoint {
            // A dropped packet shows in the outcome of the conversation.
            let _ = endpoint.input(now, &packet, &mut worker.sctp());
            self.poll(worker);
            return;
        }
        let mut batch = Batch::default();
        match self.listener.input(now, &self.ends, &packet, &mut batch) {
            ListenerResult::Accept(cookie) => {
                let config = Arc::new(EndpointConfig::default());
                let (sctp, secrets) = (self.config.clone(), self.secrets.clone());
                let mut endpoint =
                    Endpoint::accept(sctp, config, secrets, self.ends, 1480, &cookie, now);
                let _ = endpoint.input(now, &packet, &mut worker.sctp());
                self.endpoint = Some(endpoint);
                self.poll(worker);
            }
            _ => {
                for (bytes, _) in batch.take_with_ect() {
                    self.answer(&bytes);
                }
            }
        }
    }

    /// Processes a reply of the listener: INIT ACK, ABORT, SHUTDOWN COMPLETE or ERROR.
    fn answer(&mut self, bytes: &[u8]) {
        let packet = Packet::new(bytes).expect("a packet of the endpoint");
        let raw = packet.chunks().next().expect("a chunk").expect("whole");
        match Chunk::parse(raw).expect("well formed") {
            Chunk::InitAck(init) => {
                self.endpoint_tag = init.header.tag;
                for parameter in init.parameters() {
                    if let Ok(Parameter::StateCookie(cookie)) = parameter {
                        self.cookie = cookie.to_vec();
                    }
                }
            }
            Chunk::Abort { .. } => self.aborted = true,
            // RFC 9260 §8.4: reply to a packet without an association.
            Chunk::ShutdownComplete { reflected: true } | Chunk::Error(_) => {}
            other => panic!("{other:?} of a listener"),
        }
    }

    /// Returns the highest TSN received from the endpoint, or [`PEER_TSN`] before the first.
    pub(crate) fn last_tsn(&self) -> u32 {
        self.seen_tsn.map_or(PEER_TSN, |tsn| tsn.0)
    }

    /// Sends the peer's SACK of all received TSNs.
    pub(crate) fn acknowledge(&mut self, worker: &mut Worker) {
        let Some(tsn) = self.seen_tsn else { return };
        let mut value = tsn.0.to_be_bytes().to_vec();
        value.extend(65_536u32.to_be_bytes());
        value.extend([0; 4]);
        let sack = self.packet_with(&chunk(3, 0, &value));
        self.input(sack, worker);
    }

    /// Sends an ABORT from the peer, and checks that the endpoint has ended.
    pub(crate) fn abort_and_check(&mut self, worker: &mut Worker) {
        let abort = self.packet_with(&chunk(6, 0, &[]));
        self.input(abort, worker);
        let Some(mut endpoint) = self.endpoint.take() else { return };
        for _ in 0..100 {
            while let Some(event) = endpoint.poll_event() {
                self.on_event(event);
            }
            let Some(at) = endpoint.poll_timeout() else { break };
            worker.now = worker.now.max(at);
            endpoint.handle_timeout(worker.now, &mut worker.sctp());
            endpoint.poll_transmit(worker.now, &mut Batch::default());
        }
        assert!(endpoint.is_done(), "the endpoint does not end: {:?}", endpoint.state());
        assert!(self.down_reason.is_some(), "the endpoint ends without a reason");
    }

    pub(crate) fn settle(&mut self, worker: &mut Worker) {
        worker.now += Duration::from_millis(300);
        self.poll(worker);
    }

    fn poll(&mut self, worker: &mut Worker) {
        for turns in 0.. {
            assert!(turns < 100, "the endpoint never becomes idle");
            let Some(endpoint) = &mut self.endpoint else { return };
            let now = worker.now;
            if endpoint.poll_timeout().is_some_and(|at| at <= now) {
                endpoint.handle_timeout(now, &mut worker.sctp());
            }
            let mut events = Vec::new();
            while let Some(event) = endpoint.poll_event() {
                if let Event::Session(session, SessionEvent::Request { .. }) = &event {
                    let ulp = UlpConfig::from(rdmap::Config::default());
                    let (id, cx) = (StreamId(self.id), &mut worker.sctp());
                    endpoint
                        .accept_session(now, *session, id, PD, b"", ulp, cx)
                        .expect("a request");
                    self.session = Some(*session);
                }
                events.push(event);
            }
            let mut batch = Batch::default();
            endpoint.poll_transmit(now, &mut batch);
            let is_due_now = endpoint.poll_timeout().is_some_and(|at| at <= now);
            for (bytes, _) in batch.take_with_ect() {
                self.on_packet(&bytes);
            }
            let idle = events.is_empty();
            events.into_iter().for_each(|event| self.on_event(event));
            if idle && !is_due_now {
                return;
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        assert!(self.down_reason.is_none(), "{event:?} after the end");
        match event {
            Event::Up { .. } => self.events.push("Up".into()),
            Event::Down { reason } => self.down_reason = Some(reason.name().to_owned()),
            Event::Session(session, event) => match event {
                SessionEvent::Closed { reason, .. } if self.session == Some(session) => {
                    assert!(self.closed.is_none());
                    self.closed = Some((reason.name().to_owned(), reason.numbers()));
                }
                SessionEvent::Ddp(event) => self.events.push(format!("{event:?}")),
                SessionEvent::Rdmap(event) => self.events.push(format!("{event:?}")),
                SessionEvent::Idle => self.events.push("Idle".into()),
                SessionEvent::Established { .. } => self.events.push("Established".into()),
                SessionEvent::Request { private_data, .. } => {
                    self.events.push(format!("Request {private_data:?}"));
                }
                SessionEvent::Closed { .. } => self.events.push("Closed".into()),
            },
        }
    }

    fn on_packet(&mut self, bytes: &[u8]) {
        let packet = Packet::new(bytes).expect("a packet of the endpoint");
        for raw in packet.chunks() {
            match Chunk::parse(raw.expect("whole")).expect("well formed") {
                Chunk::Data(data) => {
                    let new = self.seen_tsn.is_none_or(|seen| data.header.tsn.after(seen));
                    if new {
                        self.seen_tsn = Some(data.header.tsn);
                    }
                    if new && data.header.ppid == 16 {
                        self.ulpdus.push(data.payload[2..].to_vec());
                    }
                }
                Chunk::Abort { .. } => self.aborted = true,
                Chunk::HeartbeatAck(info) => self.events.push(format!("HEARTBEAT ACK {info:?}")),
                _ => {}
            }
        }
    }
}
