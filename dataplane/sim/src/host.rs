//! A host of a simulated TCP connection: an endpoint and the per-worker state that it borrows.

mod end;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use base::Instant;
use ddp::rdmap::{self, Event as RdmapEvent, Outcome, Receive, WorkRequest};
use ddp::{
    Access, BufferPool, Cookie, Message, PdId, PostError, Qn, QueueConfig, RegionMemory, Stag,
    StagEntry, StagTable, StreamConfig, StreamId, TaggedOffset, VecMemory, WindowBudget,
};
use tcp_lite::endpoint::{
    AnswerError, Context, Endpoint, EndpointConfig, EndpointStats, Event, OpenRequest, State,
    UlpConfig,
};
use tcp_lite::mpa::{HoldBudget, Revision};
use tcp_lite::tcp::{self, FourTuple, IsnGenerator, Segment, SeqNumber, SynCookies};

use crate::dialogue::Batch;
use crate::end::{End, REGION};
use crate::packet::{Ecn, Packet};

/// Data sink of a host's RDMA Reads: STag and base TO of a region without remote access.
pub const SINK: (Stag, TaggedOffset) = (Stag(0x00DE_C0DE), TaggedOffset(0x1000));
/// Untagged queue of every host, in addition to the error queue.
pub const QUEUE: Qn = Qn(0);
/// Buffers posted to [`QUEUE`]: bare DDP has no flow control, so they must suffice for all messages in flight.
const BUFFERS: u32 = 100_000;
/// Length of the guard areas before and after the region, bytes. Peers must not write there.
const GUARD: usize = 4096;
/// Cookie of the "last message", which a stream posts by itself after a peer's error.
pub const LAST_MESSAGE_COOKIE: Cookie = Cookie::STACK;
const PD: PdId = PdId(7);
/// Limit of untagged buffers in use, bytes.
const POOL: u64 = 8 << 20;

/// Configuration of a TCP host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Configuration of TCP, MPA and teardown.
    pub endpoint: EndpointConfig,
    /// MTU of the host's interface, bytes.
    pub mtu: usize,
    /// Length of the host's region, bytes.
    pub region: usize,
    /// Length of an untagged buffer, bytes.
    pub buffer_size: u32,
    /// Budget for data held beyond gaps, bytes.
    pub hold: u64,
    /// Budget for growth of receive windows, bytes.
    pub windows: u64,
    /// True if a passive host answers SYNs with SYN cookies, and keeps no state until a cookie is returned.
    pub syn_cookies: bool,
    /// Initial sequence number of the host.
    pub iss: u32,
    /// Private data of the host's MPA Request or Reply; Start Keys carry none.
    pub private_data: Vec<u8>,
    /// Configuration of RDMAP; `None`: bare DDP.
    pub rdmap: Option<rdmap::Config>,
}

impl Default for HostConfig {
    fn default() -> Self {
        HostConfig {
            endpoint: EndpointConfig::default(),
            mtu: 1500,
            region: 1 << 20,
            buffer_size: 64 * 1024,
            hold: 16 << 20,
            windows: 1 << 30,
            syn_cookies: false,
            iss: 1000,
            private_data: Vec::new(),
            rdmap: None,
        }
    }
}

/// A host with one TCP connection.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    shared: Arc<EndpointConfig>,
    tuple: FourTuple,
    endpoint: Option<Endpoint<VecMemory>>,
    stags: StagTable<VecMemory>,
    buffers: BufferPool,
    hold: HoldBudget,
    memory: VecMemory,
    /// Data sink of the host's RDMA Reads.
    sink: VecMemory,
    outbox: VecDeque<Message<VecMemory>>,
    operations: VecDeque<WorkRequest<VecMemory>>,
    receives: VecDeque<Receive<VecMemory>>,
    events: Vec<Event>,
    /// Reasons of dropped segments, in order.
    drops: Vec<tcp::DropReason>,
    passive: bool,
}

impl Host {
    /// Creates a host that listens if `passive`, or otherwise connects later.
    pub fn new(config: HostConfig, passive: bool) -> Self {
        let memory = VecMemory::new(config.region + 2 * GUARD);
        let mut stags = StagTable::new();
        let entry = StagEntry {
            stag: REGION.0,
            pd: PD,
            stream: None,
            base_to: REGION.1,
            len: config.region as u64,
            access: match config.rdmap {
                Some(_) => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ATOMIC,
                None => Access::REMOTE_WRITE,
            },
            memory: memory.clone(),
            memory_offset: GUARD as u64,
        };
        let sink = VecMemory::new(config.region);
        let own = StagEntry {
            stag: SINK.0,
            base_to: SINK.1,
            access: Access::NONE,
            memory: sink.clone(),
            memory_offset: 0,
            ..entry.clone()
        };
        // Cannot fail: the table is empty and the regions are within their memory.
        let inserted = [stags.insert(entry), stags.insert(own)];
        debug_assert!(inserted.iter().all(Result::is_ok));
        let address = |n| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 7174);
        let (local, remote) = if passive { (2, 1) } else { (1, 2) };
        Host {
            shared: Arc::new(config.endpoint.clone()),
            tuple: FourTuple { local: address(local), remote: address(remote) },
            endpoint: None,
            stags,
            buffers: BufferPool::new(POOL),
            hold: HoldBudget::new(config.hold).with_windows(WindowBudget::new(config.windows)),
            memory,
            sink,
            outbox: VecDeque::new(),
            operations: VecDeque::new(),
            receives: VecDeque::new(),
            events: Vec::new(),
            drops: Vec::new(),
            passive,
            config,
        }
    }

    /// Opens the connection.
    ///
    /// # Errors
    /// The private data does not fit the request.
    pub fn connect(&mut self, now: Instant) -> Result<(), tcp_lite::mpa::PrivateDataTooLong> {
        let endpoint = Endpoint::connect(
            Arc::clone(&self.shared),
            StreamId(1),
            self.tuple,
            SeqNumber(self.config.iss),
            self.mss(),
            now,
            OpenRequest { pd: PD, ulp: self.ulp(), private_data: self.private_data() },
        )?;
        self.endpoint = Some(endpoint);
        Ok(())
    }

    /// Pauses delivery: the endpoint closes its window, and refuses data once `most_events` events are pending. `None`
    /// resumes.
    pub fn pause(&mut self, most_events: Option<u32>) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.pause(most_events);
        }
    }

    /// Returns the budget for growth of receive windows.
    pub fn windows(&self) -> &WindowBudget {
        self.hold.windows()
    }

    /// Queues a message to be posted.
    pub fn send(&mut self, message: Message<VecMemory>) {
        self.outbox.push_back(message);
    }

    /// Queues an RDMAP operation to be posted.
    pub fn post_rdmap(&mut self, request: WorkRequest<VecMemory>) {
        self.operations.push_back(request);
    }

    /// Queues a receive of RDMAP, to be posted as soon as the stream accepts it.
    pub fn post_receive(&mut self, receive: Receive<VecMemory>) {
        self.receives.push_back(receive);
    }

    /// Returns the events of RDMAP so far.
    pub fn rdmap_events(&self) -> Vec<RdmapEvent> {
        let rdmap = |event: &Event| match event {
            Event::Rdmap(event) => Some(event.clone()),
            _ => None,
        };
        self.events.iter().filter_map(rdmap).collect()
    }

    /// Returns the number of queued messages and operations.
    pub fn backlog(&self) -> usize {
        self.outbox.len() + self.operations.len()
    }

    /// Writes bytes into the host's own region, from offset `at`.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.memory.write((GUARD + at) as u64, bytes);
    }

    /// Returns the bytes of the host's data sink.
    pub fn sink(&self) -> Vec<u8> {
        self.sink.to_vec()
    }

    /// Returns the RDMAP Sends delivered so far.
    pub fn received_sends(&self) -> Vec<&[u8]> {
        let received_sends =
            |event: &'_ Event| matches!(event, Event::Rdmap(RdmapEvent::Received { .. }));
        self.events
            .iter()
            .filter(|event| received_sends(event))
            .filter_map(|event| match event {
                Event::Rdmap(RdmapEvent::Received { data, .. }) => Some(data.as_slice()),
                _ => None,
            })
            .collect()
    }

    /// Returns the RDMAP operations completed so far, in order.
    pub fn completed(&self) -> Vec<(Cookie, Outcome)> {
        let completed = |event: &Event| match event {
            Event::Rdmap(RdmapEvent::Completed { cookie, outcome }) => Some((*cookie, *outcome)),
            _ => None,
        };
        self.events.iter().filter_map(completed).collect()
    }

    /// Posts a Write of the bytes `from` of `memory` to offset `at` in the peer's region.
    pub fn write(&mut self, memory: &VecMemory, from: core::ops::Range<u64>, at: u64) {
        self.write_to(0, memory, from, at);
    }

    /// Closes gracefully.
    pub fn shutdown(&mut self, now: Instant) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.shutdown(now);
        }
    }

    /// Resets the connection.
    pub fn abort(&mut self, now: Instant) {
        self.with(|endpoint, cx| endpoint.abort(now, cx));
    }

    /// Processes a router's ICMP report that it dropped the segment at `seq` because the next link has an MTU of `mtu`
    /// bytes.
    fn too_big(&mut self, now: Instant, mtu: usize, seq: SeqNumber) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.on_packet_too_big(now, mtu as u16, seq);
        }
    }

    /// Processes a received packet.
    pub fn input(&mut self, now: Instant, packet: &Packet, tx: &mut Batch) {
        let mut segment = match Segment::parse(&packet.bytes) {
            Ok(segment) => segment,
            Err(reason) => return self.drops.push(reason),
        };
        segment.ce = packet.ecn == Ecn::Ce;
        let alive = self.endpoint.as_ref().is_some_and(|e| !e.is_done());
        if !alive {
            let waits = self.passive && self.endpoint.is_none();
            if !waits || !self.open(now, &segment, tx) {
                tcp::reset_for(&segment, tx);
                return;
            }
            // The SYN is completely processed. A segment that returns a cookie may also carry data, which is processed
            // below.
            if segment.flags.has(tcp::Flags::SYN) {
                return;
            }
        }
        let result = self.with(|endpoint, cx| endpoint.input(now, &segment, cx));
        if let Some(Err(reason)) = result {
            self.drops.push(reason);
        }
    }

    /// Processes a segment to a passive host: a SYN, or an acknowledgement with a valid cookie. Returns false for
    /// other segments.
    fn open(&mut self, now: Instant, segment: &Segment<'_>, tx: &mut Batch) -> bool {
        let (config, tcp) = (Arc::clone(&self.shared), Arc::clone(&self.shared.tcp));
        let (tuple, mss, iss) = (self.tuple, self.mss(), SeqNumber(self.config.iss));
        let [syn, ack] = [tcp::Flags::SYN, tcp::Flags::ACK].map(|f| segment.flags.has(f));
        let cookies = SynCookies::new([0x51; 16], IsnGenerator::new([0x52; 16]));
        match (syn, ack) {
            (true, false) if self.config.syn_cookies => {
                // A full batch drops the SYN-ACK; the peer retransmits the SYN.
                let offer = tcp::SynAckOffer { mss, room: Endpoint::<VecMemory>::STARTUP_WINDOW };
                cookies.answer(&tcp, &tuple, offer, segment, now, tx);
                true
            }
            (true, false) => {
                let endpoint = Endpoint::accept(config, StreamId(2), tuple, iss, mss, segment, now);
                self.endpoint = Some(endpoint);
                true
            }
            (false, true) if self.config.syn_cookies => {
                let cookie = cookies.check(&tcp, &tuple, segment, now);
                self.endpoint = cookie.map(|cookie| {
                    Endpoint::accept_cookie(config, StreamId(2), tuple, mss, &cookie, now)
                });
                self.endpoint.is_some()
            }
            _ => false,
        }
    }

    /// Runs due timers, posts queued messages and operations, and writes segments.
    pub fn work(&mut self, now: Instant, tx: &mut Batch) {
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

    /// Returns the time at which to call [`work`](Self::work) next.
    pub fn timeout(&self) -> Option<Instant> {
        self.endpoint.as_ref().filter(|e| !e.is_done()).and_then(Endpoint::poll_timeout)
    }

    /// Returns all events so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the tagged messages delivered so far: offset in the region and length of each.
    pub fn delivered(&self) -> Vec<(u64, u64)> {
        let tagged = |event: &Event| match event {
            Event::Ddp(ddp::Event::TaggedDelivered { to, len, .. }) => {
                Some((to.0.wrapping_sub(REGION.1.0), *len))
            }
            _ => None,
        };
        self.events.iter().filter_map(tagged).collect()
    }

    /// Returns the untagged messages delivered so far.
    pub fn received(&self) -> Vec<&[u8]> {
        let untagged = |event: &'_ Event| match event {
            Event::Ddp(ddp::Event::UntaggedDelivered { qn, .. }) => *qn == QUEUE,
            _ => false,
        };
        self.events
            .iter()
            .filter(|event| untagged(event))
            .filter_map(|event| match event {
                Event::Ddp(ddp::Event::UntaggedDelivered { data, .. }) => Some(data.as_slice()),
                _ => None,
            })
            .collect()
    }

    /// Returns the cookies of completely acknowledged messages, in order. [`LAST_MESSAGE_COOKIE`] is omitted.
    pub fn sent(&self) -> Vec<Cookie> {
        let cookies = |event: &Event| match event {
            Event::Ddp(ddp::Event::Sent { cookie, messages }) if *cookie != LAST_MESSAGE_COOKIE => {
                core::iter::repeat_n(*cookie, *messages as usize)
            }
            _ => core::iter::repeat_n(LAST_MESSAGE_COOKIE, 0),
        };
        self.events.iter().flat_map(cookies).collect()
    }

    /// Returns the reason for the end of the stream; `None` if it has not ended.
    pub fn closed(&self) -> Option<&tcp_lite::endpoint::CloseReason> {
        self.events.iter().find_map(|event| match event {
            Event::Closed { reason } => Some(reason),
            _ => None,
        })
    }

    /// Returns the state of the stream; `None` before a connection exists.
    pub fn state(&self) -> Option<State> {
        self.endpoint.as_ref().map(Endpoint::state)
    }

    /// Returns true if the stream has ended and its state may be freed.
    pub fn is_done(&self) -> bool {
        self.endpoint.as_ref().is_some_and(Endpoint::is_done)
    }

    /// Returns the counters of the stream; zero before a connection exists.
    pub fn stats(&self) -> EndpointStats {
        self.endpoint.as_ref().map(Endpoint::stats).unwrap_or_default()
    }

    /// Returns the endpoint; `None` before a connection exists.
    pub fn endpoint(&self) -> Option<&Endpoint<VecMemory>> {
        self.endpoint.as_ref()
    }

    /// Returns the configuration.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Returns the reasons of dropped segments, in order.
    pub fn drops(&self) -> &[tcp::DropReason] {
        &self.drops
    }

    /// Returns the bytes of the region.
    pub fn region(&self) -> Vec<u8> {
        let mut memory = self.memory.to_vec();
        memory.truncate(GUARD + self.config.region);
        memory.split_off(GUARD)
    }

    /// Returns true if no byte of the guard areas was written.
    pub fn is_guard_untouched(&self) -> bool {
        let memory = self.memory.to_vec();
        let outside = memory[..GUARD].iter().chain(&memory[GUARD + self.config.region..]);
        outside.copied().all(|byte| byte == 0)
    }

    /// Returns two byte counts: untagged buffers in use, and held data plus growth of receive windows. Both counts are
    /// zero after the stream has ended.
    pub fn in_use(&self) -> (u64, u64) {
        (self.buffers.in_use(), self.hold.used() + self.hold.windows().used())
    }

    fn post_receives(&mut self) {
        let Some(endpoint) = &mut self.endpoint else { return };
        while let Some(receive) = self.receives.front() {
            // Refused before Full Operation, and while the queue is full.
            match endpoint.post_receive(receive.clone()) {
                Ok(()) => drop(self.receives.pop_front()),
                Err(_) => break,
            }
        }
    }

    fn post(&mut self) {
        self.post_receives();
        let Some(endpoint) = self.endpoint.as_mut().filter(|e| e.state() == State::Established)
        else {
            return;
        };
        while let Some(message) = self.outbox.front() {
            match endpoint.post(message.clone()) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(PostError::Full) => break,
                // The stream is closed; the remaining messages are never sent.
                Err(_) => self.outbox.clear(),
            }
        }
        while let Some(request) = self.operations.front() {
            match endpoint.post_rdmap(request.clone()) {
                Ok(()) => drop(self.operations.pop_front()),
                Err(PostError::Full) => break,
                Err(_) => self.operations.clear(),
            }
        }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match &event {
                Event::MpaRequest { revision, .. } => {
                    let private_data =
                        if *revision == Revision::Draft { Vec::new() } else { self.private_data() };
                    let ulp = self.ulp();
                    let accepted = self
                        .with(|endpoint, cx| endpoint.mpa_accept(now, PD, &private_data, ulp, cx));
                    // The stream may end between the request and the answer.
                    let over = Some(Err(AnswerError::NoRequest));
                    debug_assert!(accepted == Some(Ok(())) || accepted == over);
                    self.post_receives();
                }
                Event::Ddp(ddp::Event::UntaggedDelivered { qn: QUEUE, .. })
                | Event::Rdmap(RdmapEvent::Received { .. } | RdmapEvent::Immediate { .. }) => {
                    if let Some(endpoint) = &mut self.endpoint {
                        // Fails only after the end of the stream.
                        let _ = endpoint.post_buffers(QUEUE, 1);
                    }
                }
                // RFC 5041 §6.2.1: the ULP has no more data to send, so it closes too.
                Event::Ddp(ddp::Event::PeerClosed { .. })
                | Event::Rdmap(RdmapEvent::PeerClosed { .. }) => self.shutdown(now),
                _ => {}
            }
            self.events.push(event);
        }
    }

    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut Endpoint<VecMemory>, &mut Context<'_, VecMemory>) -> T,
    ) -> Option<T> {
        let Host { endpoint, stags, buffers, hold, .. } = self;
        let endpoint = endpoint.as_mut()?;
        Some(f(endpoint, &mut Context { stags, buffers, hold }))
    }

    fn ulp(&self) -> UlpConfig {
        match &self.config.rdmap {
            Some(config) => config.clone().into(),
            None => self.stream().into(),
        }
    }

    fn stream(&self) -> StreamConfig {
        let queue =
            QueueConfig { qn: QUEUE, buffers: BUFFERS, buffer_size: self.config.buffer_size };
        StreamConfig { queues: vec![queue, QueueConfig::error_queue()], ..StreamConfig::default() }
    }

    fn private_data(&self) -> Vec<u8> {
        self.config.private_data.clone()
    }

    /// Returns the MSS of the interface: the MTU without IPv4 and TCP headers, bytes (RFC 9293 §3.7.1).
    fn mss(&self) -> u16 {
        (self.config.mtu - 40) as u16
    }
}
