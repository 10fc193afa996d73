//! A simulated host with one SCTP association: the endpoint with its sessions, and the worker state that it borrows.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use base::Instant;
use ddp::rdmap::{self, Event as RdmapEvent, Receive, WorkRequest};
use ddp::{
    Access, BufferPool, Cookie, HoldBudget, Message, PdId, PostError, QueueConfig, StagEntry,
    StagTable, StreamConfig, StreamId, UlpConfig, VecMemory, WindowBudget,
};
use sctp_lite::endpoint::{
    CloseReason, Context, Endpoint, EndpointConfig, Event, OpenRequest, SctpReason, SessionEvent,
    SessionId, State,
};
use sctp_lite::sctp::{self, DropReason, Ends, Listener, ListenerResult, Secrets};
use wire::sctp::{COMMON_HEADER_LEN as FIRST_CHUNK, Packet as SctpPacket, chunk_type};

use crate::dialogue::Batch;
use crate::end::{End, REGION, Setup, Totals};
use crate::host::{LAST_MESSAGE_COOKIE, QUEUE};
use crate::packet::{IP_HEADER, Packet, Protocol};
use ::dialogue::chunks;

/// Number of buffers posted to each session's untagged queue. The buffers must suffice for all messages in flight,
/// because bare DDP has no flow control.
const BUFFERS: u32 = 100_000;
/// Length in bytes of the guard memory before the region and after it. Peers must not write the guard memory.
const GUARD: usize = 4096;
const PD: PdId = PdId(7);
/// Limit in bytes of untagged buffers in use, and limit of held data.
const POOL: u64 = 8 << 20;

/// Configuration of an SCTP host.
#[derive(Clone, Debug)]
pub struct SctpConfig {
    /// Parameters of the SCTP association.
    pub sctp: sctp::Config,
    /// Parameters of sessions (RFC 5043) and of their teardown.
    pub endpoint: EndpointConfig,
    /// MTU of the host's interface, bytes.
    pub mtu: usize,
    /// Length of the host's region, bytes.
    pub region: usize,
    /// Length of an untagged buffer, bytes.
    pub buffer_size: u32,
    /// Number of sessions that the client opens and the server waits for.
    pub sessions: u16,
    /// Budget for growth of receive windows, bytes.
    pub windows: u64,
    /// Key from which the host derives cookies and verification tags.
    pub key: [u8; 16],
    /// Private data that the host sends in Initiate or Accept.
    pub private_data: Vec<u8>,
    /// Configuration of RDMAP; `None`: bare DDP.
    pub rdmap: Option<rdmap::Config>,
}

impl Default for SctpConfig {
    fn default() -> Self {
        SctpConfig {
            sctp: sctp::Config::default(),
            endpoint: EndpointConfig::default(),
            mtu: 1500,
            region: 1 << 20,
            buffer_size: 64 * 1024,
            sessions: 1,
            windows: 1 << 30,
            key: [0x51; 16],
            private_data: Vec::new(),
            rdmap: None,
        }
    }
}

impl Setup for SctpConfig {
    type Host = SctpHost;

    fn host(self, passive: bool) -> SctpHost {
        SctpHost::new(self, passive)
    }
}

/// A host with at most one association, which has up to [`SctpConfig::sessions`] sessions.
#[derive(Debug)]
pub struct SctpHost {
    sctp: Arc<sctp::Config>,
    endpoint_config: Arc<EndpointConfig>,
    secrets: Arc<Secrets>,
    listener: Option<Listener>,
    ends: Ends,
    endpoint: Option<Endpoint<VecMemory>>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    /// Sessions, indexed by SCTP stream identifier, which is the same in both directions.
    streams: Vec<Stream>,
    close_reason: Option<CloseReason>,
    /// Drop reasons of all dropped packets, in order of arrival.
    drops: Vec<DropReason>,
    config: SctpConfig,
}

/// Messages of one session, and the reason why it ended.
#[derive(Debug, Default)]
struct Stream {
    session: Option<SessionId>,
    outbox: VecDeque<Message<VecMemory>>,
    operations: VecDeque<WorkRequest<VecMemory>>,
    receives: VecDeque<Receive<VecMemory>>,
    rdmap_events: Vec<RdmapEvent>,
    tagged: Vec<(u64, u64)>,
    untagged: Vec<Vec<u8>>,
    sent: Vec<Cookie>,
    closed: Option<CloseReason>,
}

impl Stream {
    fn post_receives(&mut self, endpoint: &mut Endpoint<VecMemory>, session: SessionId) {
        while let Some(receive) = self.receives.front() {
            // Refused before the session is accepted, and while the queue is full.
            match endpoint.post_receive(session, receive.clone()) {
                Ok(()) => drop(self.receives.pop_front()),
                Err(_) => break,
            }
        }
    }
}

impl SctpHost {
    /// Creates a host. If `passive`, it listens. Otherwise [`End::connect`] opens its association.
    pub fn new(config: SctpConfig, passive: bool) -> Self {
        let memory = VecMemory::new(config.region + 2 * GUARD);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: REGION.0,
            pd: PD,
            stream: None,
            base_to: REGION.1,
            len: config.region as u64,
            access: Access::REMOTE_WRITE,
            memory: memory.clone(),
            memory_offset: GUARD as u64,
        };
        // Cannot fail: the table is empty and the region is within its memory.
        let inserted = stags.insert(entry);
        debug_assert!(inserted.is_ok());
        let address = |n| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 7174);
        let (local, remote) = if passive { (2, 1) } else { (1, 2) };
        let sctp = Arc::new(config.sctp.clone());
        let secrets = Arc::new(Secrets::new(config.key));
        let listener = passive.then(|| Listener::new(sctp.clone(), secrets.clone()));
        SctpHost {
            sctp,
            endpoint_config: Arc::new(config.endpoint.clone()),
            secrets,
            listener,
            ends: Ends { local: address(local), remote: address(remote) },
            endpoint: None,
            stags,
            buffers: BufferPool::new(POOL),
            hold: HoldBudget::new(POOL).with_windows(WindowBudget::new(config.windows)),
            memory,
            streams: (0..config.sessions).map(|_| Stream::default()).collect(),
            close_reason: None,
            drops: Vec::new(),
            config,
        }
    }

    /// Returns the endpoint; `None` before an association exists.
    pub fn endpoint(&self) -> Option<&Endpoint<VecMemory>> {
        self.endpoint.as_ref()
    }

    /// Pauses the events of all sessions: each queues at most `most_events`, and none is delivered to the host. `None`
    /// resumes delivery.
    pub fn pause(&mut self, most_events: Option<u32>) {
        let Some(endpoint) = &mut self.endpoint else { return };
        for session in self.streams.iter().filter_map(|stream| stream.session) {
            endpoint.pause_session(session, most_events);
        }
    }

    /// Queues an RDMAP operation of a stream.
    pub fn post_rdmap(&mut self, stream: usize, request: WorkRequest<VecMemory>) {
        self.streams[stream].operations.push_back(request);
    }

    /// Queues a receive of RDMAP, to be posted as soon as the session is accepted.
    pub fn post_receive(&mut self, stream: usize, receive: Receive<VecMemory>) {
        self.streams[stream].receives.push_back(receive);
    }

    /// Returns true if the stream still refers to `memory`.
    pub fn uses_memory(&self, stream: usize, memory: &VecMemory) -> bool {
        let session = self.streams[stream].session;
        let endpoint = self.endpoint.as_ref();
        let ulp = endpoint.zip(session).and_then(|(endpoint, id)| endpoint.stream(id));
        ulp.is_some_and(|ulp| ulp.uses_memory(memory))
    }

    /// Returns the events of RDMAP so far on a stream.
    pub fn rdmap_events(&self, stream: usize) -> &[RdmapEvent] {
        &self.streams[stream].rdmap_events
    }

    /// Returns the budget for window growth.
    pub fn windows(&self) -> &WindowBudget {
        self.hold.windows()
    }

    /// Returns the reason why the association ended; `None` if it has not ended.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.close_reason.as_ref()
    }

    /// Returns the drop reasons of all dropped packets, in order of arrival.
    pub fn drops(&self) -> &[DropReason] {
        &self.drops
    }

    fn packet_len(&self) -> usize {
        self.config.mtu - IP_HEADER
    }

    fn open(&self) -> OpenRequest {
        OpenRequest { pd: PD, ulp: self.ulp(), private_data: self.config.private_data.clone() }
    }

    fn ulp(&self) -> UlpConfig {
        if let Some(config) = &self.config.rdmap {
            return config.clone().into();
        }
        let queue =
            QueueConfig { qn: QUEUE, buffers: BUFFERS, buffer_size: self.config.buffer_size };
        let queues = vec![queue, QueueConfig::error_queue()];
        StreamConfig { queues, ..StreamConfig::default() }.into()
    }

    fn listen(&mut self, now: Instant, packet: &SctpPacket<'_>, tx: &mut Batch) -> bool {
        let Some(listener) = self.listener.as_ref().filter(|_| self.endpoint.is_none()) else {
            let reason = sctp::handle_out_of_the_blue(&self.ends, packet, tx);
            self.drops.push(reason);
            return false;
        };
        match listener.input(now, &self.ends, packet, tx) {
            ListenerResult::Answered => false,
            ListenerResult::Dropped(reason) => {
                self.drops.push(reason);
                false
            }
            ListenerResult::Accept(cookie) => {
                self.endpoint = Some(Endpoint::accept(
                    self.sctp.clone(),
                    self.endpoint_config.clone(),
                    self.secrets.clone(),
                    self.ends,
                    self.packet_len(),
                    &cookie,
                    now,
                ));
                true
            }
        }
    }

    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut Endpoint<VecMemory>, &mut Context<'_, VecMemory>) -> T,
    ) -> Option<T> {
        let SctpHost { endpoint, stags, buffers, hold, .. } = self;
        let endpoint = endpoint.as_mut()?;
        Some(f(endpoint, &mut Context { stags, buffers, hold }))
    }

    fn post(&mut self) {
        let Some(endpoint) = &mut self.endpoint else { return };
        for stream in &mut self.streams {
            let Some(session) = stream.session else { continue };
            stream.post_receives(endpoint, session);
            if endpoint.session_state(session) == Some(State::Established) {
                while let Some(message) = stream.outbox.front() {
                    match endpoint.post(session, message.clone()) {
                        Ok(()) => drop(stream.outbox.pop_front()),
                        Err(PostError::Full) => break,
                        // The session is closed, so the remaining messages are never sent.
                        Err(_) => stream.outbox.clear(),
                    }
                }
                while let Some(request) = stream.operations.front() {
                    match endpoint.post_rdmap(session, request.clone()) {
                        Ok(()) => drop(stream.operations.pop_front()),
                        Err(PostError::Full) => break,
                        Err(_) => stream.operations.clear(),
                    }
                }
            }
        }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match event {
                Event::Up { .. } => {}
                Event::Down { reason } => self.close_reason = Some(reason),
                Event::Session(session, event) => self.session_event(now, session, event),
            }
        }
    }

    fn session_event(&mut self, now: Instant, session: SessionId, event: SessionEvent) {
        let n = usize::from(session.stream);
        match event {
            SessionEvent::Request { .. } => {
                let (id, ulp) = (StreamId(100 + n as u64), self.ulp());
                let private_data = self.config.private_data.clone();
                let accepted = self.with(|endpoint, cx| {
                    endpoint.accept_session(now, session, id, PD, &private_data, ulp, cx)
                });
                // The session may end between the request and the answer.
                debug_assert!(accepted.is_some());
                if let (Some(endpoint), Some(stream)) =
                    (&mut self.endpoint, self.streams.get_mut(n))
                {
                    stream.post_receives(endpoint, session);
                }
            }
            SessionEvent::Established { .. } => {
                if let Some(stream) = self.streams.get_mut(n) {
                    stream.session = Some(session);
                }
            }
            // RFC 5041 §6.2.1: the peer has closed its direction or is idle. This end closes as well: its ULP has no
            // more data.
            SessionEvent::Ddp(ddp::Event::PeerClosed { .. })
            | SessionEvent::Rdmap(RdmapEvent::PeerClosed { .. })
            | SessionEvent::Idle => {
                if let Some(endpoint) = &mut self.endpoint {
                    endpoint.shutdown_session(now, session);
                }
            }
            SessionEvent::Ddp(event) => self.ddp_event(session, event),
            SessionEvent::Rdmap(event) => {
                if let Some(stream) = self.streams.get_mut(n) {
                    stream.rdmap_events.push(event);
                }
            }
            SessionEvent::Closed { reason, .. } => {
                if let Some(stream) = self.streams.get_mut(n) {
                    stream.closed.get_or_insert(reason);
                }
            }
        }
    }

    fn ddp_event(&mut self, session: SessionId, event: ddp::Event) {
        let Some(stream) = self.streams.get_mut(usize::from(session.stream)) else { return };
        match event {
            ddp::Event::TaggedDelivered { to, len, .. } => {
                stream.tagged.push((to.0.wrapping_sub(REGION.1.0), len));
            }
            ddp::Event::UntaggedDelivered { qn: QUEUE, data, .. } => {
                stream.untagged.push(data.as_slice().to_vec());
                if let Some(endpoint) = &mut self.endpoint {
                    // Fails only if the session has ended.
                    let _ = endpoint.post_buffers(session, QUEUE, 1);
                }
            }
            ddp::Event::Sent { cookie, messages } if cookie != LAST_MESSAGE_COOKIE => {
                stream.sent.extend(core::iter::repeat_n(cookie, messages as usize));
            }
            _ => {}
        }
    }
}

impl End for SctpHost {
    const PROTOCOL: Protocol = Protocol::Sctp;

    fn connect(&mut self, now: Instant) -> Result<(), String> {
        let (mut endpoint, _) = Endpoint::connect(
            self.sctp.clone(),
            self.endpoint_config.clone(),
            self.secrets.clone(),
            self.ends,
            self.packet_len(),
            now,
            StreamId(1),
            self.open(),
        )
        .map_err(|e| e.to_string())?;
        for n in 1..self.config.sessions {
            let id = StreamId(1 + u64::from(n));
            endpoint.open_session(now, id, self.open()).map_err(|e| e.to_string())?;
        }
        self.endpoint = Some(endpoint);
        Ok(())
    }

    fn shutdown(&mut self, now: Instant) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.shutdown(now);
        }
    }

    fn abort(&mut self, now: Instant) {
        self.with(|endpoint, cx| endpoint.abort(now, cx));
    }

    fn input(&mut self, now: Instant, packet: &Packet, tx: &mut Batch) {
        let Ok(packet) = SctpPacket::new(&packet.bytes) else { return };
        let alive = self.endpoint.as_ref().is_some_and(|e| !e.is_done());
        if !alive && !self.listen(now, &packet, tx) {
            return;
        }
        let result = self.with(|endpoint, cx| endpoint.input(now, &packet, cx).result);
        if let Some(Err(reason)) = result {
            self.drops.push(reason);
        }
    }

    fn work(&mut self, now: Instant, tx: &mut Batch) {
        if self.timeout().is_some_and(|at| at <= now) {
            self.with(|endpoint, cx| endpoint.handle_timeout(now, cx));
        }
        self.take_events(now);
        self.post();
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.poll_transmit(now, tx);
        }
        self.take_events(now);
    }

    fn timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().filter(|e| !e.is_done()).and_then(Endpoint::poll_timeout)
    }

    fn packet_too_big(&mut self, now: Instant, mtu: usize, _dropped: &[u8]) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.on_packet_too_big(now, mtu - IP_HEADER);
        }
    }

    // RFC 9260 §6.9: IP fragments packets that were built for a larger path MTU. Probes are never fragmented.
    fn is_for_fragments(&self, bytes: &[u8]) -> bool {
        let is_probe = bytes.get(FIRST_CHUNK) == Some(&chunk_type::HEARTBEAT);
        let path = self.endpoint.as_ref().map(|e| e.association().path_len());
        !is_probe && path.is_some_and(|path| bytes.len() > path)
    }

    fn stream_count(&self) -> usize {
        self.streams.len()
    }

    fn send(&mut self, stream: usize, message: Message<VecMemory>) {
        self.streams[stream].outbox.push_back(message);
    }

    fn delivered(&self, stream: usize) -> Vec<(u64, u64)> {
        self.streams[stream].tagged.clone()
    }

    fn received(&self, stream: usize) -> Vec<&[u8]> {
        self.streams[stream].untagged.iter().map(Vec::as_slice).collect()
    }

    fn sent(&self, stream: usize) -> Vec<Cookie> {
        self.streams[stream].sent.clone()
    }

    fn region(&self) -> Vec<u8> {
        let mut memory = self.memory.to_vec();
        memory.truncate(GUARD + self.config.region);
        memory.split_off(GUARD)
    }

    fn is_guard_untouched(&self) -> bool {
        let memory = self.memory.to_vec();
        let outside = memory[..GUARD].iter().chain(&memory[GUARD + self.config.region..]);
        outside.copied().all(|byte| byte == 0)
    }

    fn in_use(&self) -> (u64, u64) {
        (self.buffers.in_use(), self.hold.used() + self.hold.windows().used())
    }

    fn is_unopened(&self) -> bool {
        self.endpoint.is_none()
    }

    fn is_established(&self) -> bool {
        self.streams.iter().all(|stream| stream.session.is_some())
    }

    fn closed(&self) -> Option<bool> {
        let graceful = |stream: &Stream| {
            stream.closed.as_ref().is_none_or(sctp_lite::endpoint::CloseReason::is_graceful)
        };
        let reason = self.close_reason.as_ref()?;
        Some(reason.is_graceful() && self.streams.iter().all(graceful))
    }

    fn is_done(&self) -> bool {
        self.endpoint.as_ref().is_some_and(Endpoint::is_done)
    }

    fn totals(&self) -> Totals {
        let Some(endpoint) = &self.endpoint else { return Totals::default() };
        let (rx, tx) =
            (endpoint.association().receiver().stats(), endpoint.association().sender().stats());
        let sum = |f: fn(&Stream) -> usize| self.streams.iter().map(f).sum::<usize>() as u64;
        Totals {
            tagged_delivered: sum(|stream| stream.tagged.len()),
            untagged_delivered: sum(|stream| stream.untagged.len()),
            bytes_in: rx.bytes,
            bytes_acknowledged: tx.bytes_acknowledged,
            retransmitted: tx.retransmitted,
            timeouts: tx.timeouts,
            out_of_order_bytes: rx.gaps_max,
            refused: rx.refused,
        }
    }

    fn fault(&self) -> Option<String> {
        let wrong = |stream: &Stream| {
            let reason = stream.closed.as_ref()?;
            matches!(reason, CloseReason::Lower(SctpReason::Session(_)) | CloseReason::Ddp(_))
                .then(|| format!("a session ended: {reason}"))
        };
        self.streams.iter().find_map(wrong)
    }

    fn describe_state(&self) -> String {
        let association = self.endpoint.as_ref().map(Endpoint::association);
        let closed: Vec<_> =
            self.streams.iter().filter_map(|stream| stream.closed.as_ref()).take(3).collect();
        format!(
            "{:?} down {:?}, sessions {closed:?}, {:?} rx {:?} tx {:?} timeout {:?}",
            association.map(sctp::Association::state),
            self.close_reason,
            self.totals(),
            association.map(|a| a.receiver().stats()),
            association.map(|a| a.sender().stats()),
            self.timeout(),
        )
    }

    fn show(bytes: &[u8]) -> Option<String> {
        chunks::summarize(bytes)
    }
}
