//! All sessions of one end without SCTP below, for tests of sessions. The test delivers the peer's messages and
//! acknowledges sent messages. Tests of whole associations use [`net`](super::net).

use crate::endpoint::upper::{Upper, UpperCall};
use crate::endpoint::*;
use crate::seam::{MessageOutcome, MessageRef, MessageSink, MessageSource, ReceivedMessage};
use core::time::Duration;
use ddp::last_message::LastMessage;
use ddp::{
    Access, BufferPool, Cookie, HoldBudget, MESSAGE_QUEUE, Message, PostError, QueueConfig, Source,
    Stag, StagEntry, StagTable, StreamConfig, TaggedOffset, VecMemory,
};
use std::collections::VecDeque;
use wire::sctp::ddp::{ControlRepr, DdpSsn, Function, PPID_CONTROL, PPID_SEGMENT};

pub(super) const STAG: Stag = Stag(0x0102_0300);
pub(super) const PD: PdId = PdId(1);
pub(super) const REGION: usize = 1 << 20;
pub(super) const MAX_MESSAGE: usize = 1436;
pub(super) const PAIRS: u16 = 8;

/// Reaction of the owner to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    Accept(Vec<u8>),
    Reject(Vec<u8>),
    Wait,
}

/// A message sent and not acknowledged.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) message: MessageRef,
    pub(super) ppid: u32,
    pub(super) immediate: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) arrived: bool,
}

/// One end of an association.
pub(super) struct Host {
    pub(super) upper: Upper<VecMemory>,
    pub(super) now: Instant,
    pub(super) policy: Policy,
    /// True if the ULP of a session closes it as soon as the peer has closed its direction.
    pub(super) closes: bool,
    pub(super) ulp: UlpConfig,
    pub(super) memory: VecMemory,
    pub(super) stags: StagTable<VecMemory>,
    pub(super) buffers: BufferPool,
    pub(super) hold: HoldBudget,
    pub(super) events: Vec<Event>,
    pub(super) in_flight: VecDeque<InFlight>,
    streams: u64,
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

/// Returns an STag table with one region for remote reads, writes and atomic operations.
pub(super) fn region(memory: &VecMemory) -> StagTable<VecMemory> {
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
    stags
}

pub(super) fn write_message(to: u64, bytes: &[u8], cookie: u64) -> Message<VecMemory> {
    let source = Source::Bytes(bytes.into());
    Message::Tagged {
        stag: STAG,
        to: TaggedOffset(to),
        rsvd_ulp: 0,
        source,
        cookie: Cookie::user(cookie),
    }
}

pub(super) fn send_message(bytes: &[u8], cookie: u64) -> Message<VecMemory> {
    let source = Source::Bytes(bytes.into());
    Message::Untagged { qn: MESSAGE_QUEUE, rsvd_ulp: [0; 5], source, cookie: Cookie::user(cookie) }
}

impl Host {
    pub(super) fn with_config(config: EndpointConfig, initiator: bool, ulp: UlpConfig) -> Host {
        let peer = PeerId::from_address([10, 0, 0, 9].into());
        let now = Instant::from_millis(1000);
        let closes = config.policy.half_closed_timeout.is_some();
        let mut upper = Upper::new(Arc::new(config), peer, initiator, PAIRS);
        upper.on_up(now, PAIRS);
        assert_eq!(upper.poll_event(), Some(Event::Up { streams: PAIRS }));
        let memory = VecMemory::new(REGION);
        Host {
            upper,
            now,
            policy: Policy::Accept(Vec::new()),
            closes,
            ulp,
            stags: region(&memory),
            memory,
            buffers: BufferPool::new(1 << 22),
            hold: HoldBudget::new(1 << 22),
            events: Vec::new(),
            in_flight: VecDeque::new(),
            streams: 0,
        }
    }

    pub(super) fn new(initiator: bool) -> Host {
        let mut config = EndpointConfig::default();
        config.session.max_segment = 16 * 1024;
        Host::with_config(config, initiator, stream_config().into())
    }

    fn id(&mut self) -> StreamId {
        self.streams += 1;
        StreamId(self.streams)
    }

    pub(super) fn with_context<R>(
        &mut self,
        f: impl FnOnce(&mut Upper<VecMemory>, &mut Context<'_, VecMemory>) -> R,
    ) -> R {
        let Host { upper, stags, buffers, hold, .. } = self;
        f(upper, &mut Context { stags, buffers, hold })
    }

    pub(super) fn open(&mut self, private_data: &[u8]) -> SessionId {
        let open =
            OpenRequest { pd: PD, ulp: self.ulp.clone(), private_data: private_data.to_vec() };
        let id = self.id();
        self.upper.open(self.now, id, open).expect("a free pair of streams")
    }

    pub(super) fn accept(&mut self, session: SessionId, private_data: &[u8]) {
        let (now, id, ulp) = (self.now, self.id(), self.ulp.clone());
        let answer = AcceptedStream { id, pd: PD, private_data, ulp };
        self.with_context(|upper, cx| upper.accept(now, session, answer, cx)).expect("a request");
        self.settle();
    }

    pub(super) fn reject(&mut self, session: SessionId, private_data: &[u8]) {
        self.upper.reject(self.now, session, private_data).expect("a request");
        self.settle();
    }

    pub(super) fn post(
        &mut self,
        session: SessionId,
        message: Message<VecMemory>,
    ) -> Result<(), PostError> {
        let now = self.now;
        let posted = self.upper.with_slot(session.stream, now, |slot, _| {
            let open = slot.state() == State::Established;
            let full = slot.accepted.as_mut().filter(|_| open);
            full.and_then(|full| full.stream.as_ddp_mut().map(|stream| stream.post(message)))
        });
        posted.flatten().unwrap_or(Err(PostError::Closed))
    }

    pub(super) fn shutdown(&mut self, session: SessionId) {
        let reason = CloseReason::LocalShutdown;
        self.upper.with_slot(session.stream, self.now, |slot, env| slot.shutdown(reason, env));
        self.settle();
    }

    pub(super) fn abort(&mut self, session: SessionId) {
        let (now, why) = (self.now, CloseReason::LocalAbort);
        self.with_context(|upper, cx| {
            upper.with_slot(session.stream, now, |slot, env| slot.abort(why, env, cx))
        });
        self.settle();
    }

    /// Advances the time by `time`.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.with_context(|upper, cx| upper.handle_timeout(now, cx));
        self.settle();
    }

    /// Processes the changes of all sessions, records their events and reacts as an owner. Accepts or rejects by
    /// `policy`, reposts buffers, and closes a session after the peer if `closes` is true.
    pub(super) fn settle(&mut self) {
        let now = self.now;
        loop {
            self.with_context(|upper, cx| upper.settle_all(now, cx));
            let Some(event) = self.upper.poll_event() else { break };
            self.events.push(event.clone());
            let Event::Session(id, event) = event else { continue };
            match (event, self.policy.clone()) {
                (SessionEvent::Request { .. }, Policy::Accept(data)) => self.accept(id, &data),
                (SessionEvent::Request { .. }, Policy::Reject(data)) => self.reject(id, &data),
                (SessionEvent::Ddp(ddp::Event::UntaggedDelivered { qn, .. }), _) => {
                    let posted = self.upper.with_slot(id.stream, now, |slot, _| {
                        let full = slot.accepted.as_mut()?;
                        Some(full.stream.as_ddp_mut()?.post_buffers(qn, 1))
                    });
                    assert_ne!(posted, Some(None));
                }
                // RFC 5041 §6.2.1: the ULP has no more data to send.
                (
                    SessionEvent::Ddp(ddp::Event::PeerClosed { .. })
                    | SessionEvent::Rdmap(ddp::rdmap::Event::PeerClosed { .. }),
                    _,
                ) if self.closes && self.upper.slot(id).is_some() => {
                    let reason = CloseReason::PeerShutdown;
                    self.upper.with_slot(id.stream, now, |slot, env| slot.shutdown(reason, env));
                }
                _ => {}
            }
        }
    }

    /// Delivers a message of the peer.
    pub(super) fn receive_raw(
        &mut self,
        stream: u16,
        ppid: u32,
        unordered: bool,
        pieces: &[&[u8]],
    ) -> MessageOutcome {
        let now = self.now;
        let taken = self.with_context(|upper, cx| {
            let mut up = UpperCall::for_receive(upper, cx);
            up.deliver(now, ReceivedMessage { stream, ppid, unordered, pieces })
        });
        self.settle();
        taken
    }

    pub(super) fn receive(
        &mut self,
        stream: u16,
        ssn: u16,
        function: Function,
        data: &[u8],
    ) -> MessageOutcome {
        let repr = ControlRepr { ssn: DdpSsn(ssn), function, private_data: data };
        let mut bytes = vec![0; repr.wire_len()];
        repr.emit(&mut bytes);
        self.receive_raw(stream, PPID_CONTROL, true, &[&bytes])
    }

    /// Delivers a whole tagged message in one segment.
    pub(super) fn receive_write(
        &mut self,
        stream: u16,
        ssn: u16,
        to: u64,
        data: &[u8],
    ) -> MessageOutcome {
        let bytes = segment(ssn, to, data);
        self.receive_raw(stream, PPID_SEGMENT, true, &[&bytes])
    }

    /// Writes all messages that may be sent now.
    pub(super) fn send_messages(&mut self) {
        loop {
            let mut room = [0; MAX_MESSAGE];
            let mut up = UpperCall::for_transmit(&mut self.upper, u64::MAX);
            let has_data = up.has_data();
            let written = up.next(MAX_MESSAGE, &mut room);
            assert_eq!(has_data, written.is_some(), "has_data predicts next");
            let Some(written) = written else { break };
            let bytes = room[..usize::from(written.message.len)].to_vec();
            let (message, immediate) = (written.message, written.immediate);
            let ppid = written.ppid;
            self.in_flight.push_back(InFlight { message, ppid, immediate, bytes, arrived: false });
        }
    }

    /// Writes all messages. Returns the new control messages: stream, DDP-SSN, function and private data.
    pub(super) fn sent_controls(&mut self) -> Vec<(u16, u16, Function, Vec<u8>)> {
        let before = self.in_flight.len();
        self.send_messages();
        let controls =
            self.in_flight.iter().skip(before).filter(|flying| flying.ppid == PPID_CONTROL);
        controls
            .map(|flying| {
                let repr = ControlRepr::parse(&flying.bytes).expect("a control message");
                let data = repr.private_data.to_vec();
                (flying.message.stream, repr.ssn.0, repr.function, data)
            })
            .collect()
    }

    /// Returns DDP's last message, if it was sent and is not acknowledged.
    pub(super) fn last_message(&self) -> Option<LastMessage> {
        let mut segments = self.in_flight.iter().filter(|flying| flying.ppid == PPID_SEGMENT);
        segments.find_map(|flying| {
            // After the DDP-SSN: T = 0, L = 1, DV = 1; RsvdULP; QN 2, MSN 1, MO 0.
            let rest = flying.bytes.get(2..)?.strip_prefix(&[0x41, 0, 0, 0, 0, 0, 0, 0, 0, 2])?;
            LastMessage::parse(rest.strip_prefix(&[0, 0, 0, 1, 0, 0, 0, 0])?).ok()
        })
    }

    /// Acknowledges the first `n` outstanding messages.
    pub(super) fn acknowledge(&mut self, n: usize) {
        for flying in self.in_flight.drain(..n).collect::<Vec<_>>() {
            let mut up = UpperCall::for_transmit(&mut self.upper, u64::MAX);
            up.on_acknowledged(flying.message);
        }
        self.settle();
    }

    pub(super) fn acknowledge_all(&mut self) {
        self.acknowledge(self.in_flight.len());
    }

    /// Returns the bytes of a retransmission of `message`.
    pub(super) fn rewrite(&mut self, message: MessageRef) -> Vec<u8> {
        let mut out = vec![0xee; usize::from(message.len)];
        let mut up = UpperCall::for_transmit(&mut self.upper, u64::MAX);
        up.rewrite(message, &mut out);
        out
    }

    /// Returns the recorded events of a session.
    pub(super) fn events_of(&self, session: SessionId) -> Vec<SessionEvent> {
        let session_event = |event: &Event| match event {
            Event::Session(id, event) if *id == session => Some(event.clone()),
            _ => None,
        };
        self.events.iter().filter_map(session_event).collect()
    }

    /// Returns all sessions, in the order of their first events.
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

    /// Returns the newest session on a stream.
    pub(super) fn session(&self, stream: u16) -> SessionId {
        let sessions = self.sessions();
        let is_on_stream = |id: &&SessionId| id.stream == stream;
        *sessions.iter().rfind(is_on_stream).expect("a session on the stream")
    }

    pub(super) fn reason(&self, session: SessionId) -> Option<CloseReason> {
        self.events_of(session).into_iter().find_map(|event| match event {
            SessionEvent::Closed { reason, .. } => Some(reason),
            _ => None,
        })
    }

    pub(super) fn is_established(&self, session: SessionId) -> bool {
        self.events_of(session)
            .iter()
            .any(|event| matches!(event, SessionEvent::Established { .. }))
    }

    pub(super) fn ddp_events(&self, session: SessionId) -> Vec<ddp::Event> {
        let ddp_event = |event| match event {
            SessionEvent::Ddp(event) => Some(event),
            _ => None,
        };
        self.events_of(session).into_iter().filter_map(ddp_event).collect()
    }

    /// Asserts that no state of any session remains.
    pub(super) fn assert_nothing_left(&self) {
        assert_eq!(self.upper.occupied_slots(), 0, "streams are in use");
        assert_eq!((self.upper.live_count(), self.buffers.in_use()), (0, 0));
        assert_eq!(self.upper.poll_timeout(), None);
        assert!(self.in_flight.is_empty());
    }

    /// Returns an active end, with an established session on stream 0.
    pub(super) fn established_active() -> (Host, SessionId) {
        let mut host = Host::new(true);
        let session = host.open(b"");
        assert_eq!(host.sent_controls(), [(0, 0, Function::Initiate, vec![])]);
        host.acknowledge_all();
        assert_eq!(host.receive(0, 0, Function::Accept, b""), MessageOutcome::Accepted);
        assert!(host.is_established(session));
        (host, session)
    }

    /// Returns a passive end, with an established session on stream 0 and its Accept acknowledged.
    pub(super) fn established_passive() -> (Host, SessionId) {
        let mut host = Host::new(false);
        assert_eq!(host.receive(0, 0, Function::Initiate, b""), MessageOutcome::Accepted);
        let session = host.session(0);
        assert!(host.is_established(session));
        assert_eq!(host.sent_controls(), [(0, 0, Function::Accept, vec![])]);
        host.acknowledge_all();
        (host, session)
    }
}

/// Returns an SCTP user message: a DDP-SSN and a tagged DDP message in one segment.
pub(super) fn segment(ssn: u16, to: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = ssn.to_be_bytes().to_vec();
    let mut header = [0; wire::ddp::TAGGED_HEADER_LEN];
    let (version, to) = (ddp::DdpVersion::V1, TaggedOffset(to));
    wire::ddp::TaggedRepr { last: true, version, rsvd_ulp: 0, stag: STAG, to }.emit(&mut header);
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(data);
    bytes
}
