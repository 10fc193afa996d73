//! Streams: accepting and refusing, opening, delivering untagged messages, ending.
//!
//! ```text
//!  accepted:  Incoming -> [Binding ->] Accepting -> Established -> gone
//!                 \-> Rejecting -> gone
//!  opened:    [bind ->] Connect -> Established -> gone
//! ```

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::memory::ring::Kind;
use dataplane::{Command, Connect, ConnectError, Event, InterfaceId, ListenerId, Ticket, WorkerId};
use ddp::{Message, Msn, PdId, Qn, QueueConfig, Source, StreamConfig, StreamId, VersionPolicy};
use tcp_lite::endpoint::{CloseReason, EndpointStats, StreamParams};
use tcp_lite::mpa::Revision;

use super::core::{Core, NOBODY, Post, StreamsFor, Then};
use super::render;
use super::sends::PendingSend;
use super::start::connect_endpoint;
use crate::advert::{self, Advertised};
use crate::api::{Answer, ApiError, ConnectSpec, EventKind, Reply};
use crate::config::{Delivery, QueueSection};
use crate::files;

/// Time for all of an active open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Buffers of the message queue of streams that are opened from here, and octets of each.
const OWN_QUEUE: (u32, u32) = (32, 64 << 10);

/// A stream that the control thread knows.
pub(super) struct Stream {
    pub listener: Option<ListenerId>,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: State,
    /// Regions that the peer was told of.
    pub regions: Vec<String>,
    /// Regions that the peer told of.
    pub peer_regions: Vec<Advertised>,
    pub queues: Vec<QueueSection>,
    pub pd: PdId,
    pub revision: Revision,
    pub params: Option<StreamParams>,
    pub since: Instant,
    /// Tickets of messages that are posted and not acknowledged.
    pub posts: HashSet<u64>,
    /// Who waits for its end.
    pub closing: Vec<Answer>,
    /// API clients that wait for a message.
    pub awaiting: Vec<PendingSend>,
    /// A job has it for itself.
    pub job: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Binding,
    Accepting,
    Rejecting,
    Established,
    Closing,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Binding | State::Accepting => "accepting",
            State::Rejecting => "rejecting",
            State::Established => "established",
            State::Closing => "closing",
        }
    }
}

/// An active open on its way.
pub(super) struct ConnectPlan {
    pub spec: ConnectSpec,
    pub purpose: Purpose,
    interface: InterfaceId,
    worker: WorkerId,
    pd: PdId,
    /// Start Keys instead of frames (the draft's revision 0).
    start_key: bool,
}

/// What a stream is opened for.
pub(super) enum Purpose {
    /// To stand.
    Keep(Answer),
    /// A file.
    Job(u64),
    /// One message.
    Send(Box<PendingSend>),
}

impl Core {
    // --- passive side ---

    pub(super) fn on_incoming(&mut self, event: Event) {
        let Event::Incoming { stream, listener, local, remote, revision, .. } = event else {
            return;
        };
        let running = self.is_running();
        let all = self.streams.len() as u64 >= u64::from(self.config.limits.streams);
        let Some(found) = self.listener_by_id(listener) else {
            self.tally.unexpected_events += 1;
            self.reject(stream, None, local, remote, "the listener is gone".into());
            return;
        };
        let limits = found.limits();
        let refusal = if !running {
            Some("the appliance is draining".to_owned())
        } else if all {
            Some("the appliance has as many streams as limits.streams allows".to_owned())
        } else {
            found.ledger.admit(remote.ip(), &limits).err().map(|refusal| refusal.to_string())
        };
        if let Some(reason) = refusal {
            self.reject(stream, Some(listener), local, remote, reason);
            return;
        }
        found.accepted += 1;
        let (pd, queues) = (found.pd, found.section.queues.clone());
        let listed = found.section.regions.clone();
        self.tally.accepted += 1;
        let (regions, exclusive) = self.take_regions(&listed, stream);
        let state = if exclusive.is_empty() { State::Accepting } else { State::Binding };
        let known = Stream { regions, queues, revision, ..new_stream(local, remote, state, pd) };
        self.streams.insert(stream, Stream { listener: Some(listener), ..known });
        self.tell(stream.worker(), Command::Credits { listener, more: 1 });
        if exclusive.is_empty() {
            self.accept(stream);
        } else {
            self.bind(&exclusive, Some(stream), Then::Bound { stream });
        }
    }

    /// The available ones of a listener's regions, now used by `stream`; and of them the exclusive ones.
    fn take_regions(&mut self, listed: &[String], stream: StreamId) -> (Vec<String>, Vec<String>) {
        let (mut taken, mut exclusive) = (Vec::new(), Vec::new());
        for name in listed {
            let Some(region) = self.regions.get_mut(name).filter(|r| r.is_available()) else {
                continue;
            };
            region.users.insert(stream);
            taken.push(name.clone());
            if region.is_exclusive() {
                region.bound = Some(stream);
                exclusive.push(name.clone());
            }
        }
        (taken, exclusive)
    }

    /// All workers know what the stream may reach: it is accepted.
    pub(super) fn accept(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.state == State::Binding {
            stream.state = State::Accepting;
        }
        let advertised: Vec<Advertised> = stream
            .regions
            .iter()
            .filter_map(|r| self.regions.get(r))
            .map(|r| r.advertised())
            .collect();
        // The draft's Start Key carries no private data: its peers know the STags otherwise.
        let silent = advertised.is_empty() || stream.revision == Revision::Draft;
        let private_data = if silent { vec![] } else { advert::encode(&advertised) };
        let version = match stream.revision {
            Revision::One => VersionPolicy::V1,
            // RFC 5044 appendix C: either version may follow a revision 0 frame.
            Revision::Zero => VersionPolicy::AdoptFirst,
            Revision::Draft => VersionPolicy::V0,
        };
        let config = stream_config(&stream.queues, version);
        let pd = stream.pd;
        self.tell(id.worker(), Command::Accept { stream: id, pd, private_data, config });
    }

    fn reject(
        &mut self,
        id: StreamId,
        listener: Option<ListenerId>,
        local: SocketAddr,
        remote: SocketAddr,
        reason: String,
    ) {
        self.tally.refused += 1;
        let found = listener.and_then(|listener| self.listener_by_id(listener));
        let name = found.map(|found| {
            found.refused += 1;
            found.section.name.clone()
        });
        let state = State::Rejecting;
        let stream = Stream { listener, ..new_stream(local, remote, state, PdId(0)) };
        self.streams.insert(id, stream);
        self.tell(id.worker(), Command::Reject { stream: id, private_data: Vec::new() });
        self.log.push(EventKind::StreamRefused {
            listener: name,
            remote: remote.to_string(),
            reason,
        });
    }

    // --- active side ---

    pub(super) fn connect(&mut self, spec: ConnectSpec, answer: Answer) {
        self.open(spec, Purpose::Keep(answer), false);
    }

    /// Opens a stream; whoever it is for is told of a failure.
    pub(super) fn open(&mut self, spec: ConnectSpec, purpose: Purpose, start_key: bool) {
        match self.plan(&spec) {
            Ok((interface, worker, pd)) => {
                let regions = spec.regions.clone();
                let plan = ConnectPlan { spec, purpose, interface, worker, pd, start_key };
                let plan = Box::new(plan);
                let exclusive = self.reserve(&regions);
                if exclusive.is_empty() {
                    self.send_connect(*plan);
                } else {
                    // Its number is not known yet: until it is, the domain may use the region.
                    self.bind(&exclusive, None, Then::ConnectReady(plan));
                }
            }
            Err(error) => self.connect_refused(purpose, error),
        }
    }

    fn plan(&mut self, spec: &ConnectSpec) -> Result<(InterfaceId, WorkerId, PdId), ApiError> {
        if !self.is_running() {
            return Err(ApiError::unavailable("the appliance is draining"));
        }
        if self.streams.len() as u64 >= u64::from(self.config.limits.streams) {
            return Err(ApiError::unavailable(
                "there are as many streams as limits.streams allows",
            ));
        }
        if spec.mpa.revision > 1 {
            let revision = spec.mpa.revision;
            return Err(ApiError::bad_request(format!("MPA revision {revision} is not spoken")));
        }
        let interface = self.interface_for(spec)?;
        let pd = self.domain_of(&spec.regions)?;
        let served = &self.served[usize::from(interface.0)];
        // Streams are spread over the workers of the port.
        let turn = usize::try_from(self.tally.connected + self.tally.connect_failed).unwrap_or(0);
        let worker = served.get(turn % served.len().max(1)).copied();
        let worker = worker.ok_or_else(|| ApiError::internal("no worker serves the interface"))?;
        Ok((interface, worker, pd))
    }

    fn interface_for(&self, spec: &ConnectSpec) -> Result<InterfaceId, ApiError> {
        if let Some(name) = &spec.interface {
            return self
                .interface_named(name)
                .ok_or_else(|| ApiError::bad_request(format!("there is no interface `{name}`")));
        }
        let remote = spec.remote.ip();
        let reach = |interface: &crate::config::InterfaceSection| {
            let connected = interface.addresses.iter().map(|prefix| (prefix.address, prefix.len));
            let routed = interface.routes.iter().map(|route| (route.to.address, route.to.len));
            connected
                .chain(routed)
                .filter(|&(net, len)| covers(net, len, remote))
                .map(|p| p.1)
                .max()
        };
        let best =
            self.config.interfaces.iter().enumerate().filter_map(|(at, i)| Some((reach(i)?, at)));
        // Of several the longest prefix, and of those the first interface.
        best.max_by_key(|&(len, at)| (len, std::cmp::Reverse(at)))
            .and_then(|(_, at)| u16::try_from(at).ok())
            .map(InterfaceId)
            .ok_or_else(|| ApiError::bad_request(format!("no interface has a route to {remote}")))
    }

    /// The domain of regions that a stream is to reach together.
    fn domain_of(&mut self, regions: &[String]) -> Result<PdId, ApiError> {
        let mut domain = None;
        for name in regions {
            let region = self.regions.get(name).filter(|region| region.is_live());
            let region = region
                .ok_or_else(|| ApiError::not_found(format!("there is no region `{name}`")))?;
            if !region.is_available() {
                return Err(ApiError::conflict(format!("region `{name}` serves another stream")));
            }
            if domain.is_some_and(|pd| pd != region.pd) {
                return Err(ApiError::conflict(format!(
                    "region `{name}` is in another protection domain than the ones before it"
                )));
            }
            domain = Some(region.pd);
        }
        Ok(domain.unwrap_or_else(|| self.new_pd()))
    }

    /// Marks exclusive regions as taken until the stream's number is known.
    fn reserve(&mut self, names: &[String]) -> Vec<String> {
        let mut reserved = Vec::new();
        for name in names {
            if let Some(region) = self.regions.get_mut(name).filter(|r| r.is_exclusive()) {
                region.bound = Some(NOBODY);
                reserved.push(name.clone());
            }
        }
        reserved
    }

    pub(super) fn send_connect(&mut self, plan: ConnectPlan) {
        let regions = plan.spec.regions.iter().filter_map(|name| self.regions.get(name));
        let advertised: Vec<Advertised> = regions.map(|region| region.advertised()).collect();
        let private_data = if advertised.is_empty() { vec![] } else { advert::encode(&advertised) };
        let version = if plan.start_key { VersionPolicy::V0 } else { VersionPolicy::V1 };
        let endpoint = Arc::new(connect_endpoint(&self.config, &plan.spec.mpa, plan.start_key));
        let mut connect = Connect {
            ticket: Ticket(0),
            interface: plan.interface,
            local: None,
            remote: plan.spec.remote,
            endpoint,
            config: stream_config(&own_queues(), version),
            pd: plan.pd,
            private_data,
            timeout: CONNECT_TIMEOUT,
        };
        let worker = plan.worker;
        connect.ticket = Ticket(self.tickets.issue(1, Then::Connected(Box::new(plan))));
        self.tell(worker.0, Command::Connect(Box::new(connect)));
    }

    pub(super) fn on_connect_failed(&mut self, ticket: Ticket, reason: ConnectError, now: Instant) {
        let Some(Then::Connected(plan)) = self.tickets.cancel(ticket.0) else {
            self.tally.unexpected_events += 1;
            return;
        };
        self.tally.connect_failed += 1;
        let ConnectPlan { spec, purpose, .. } = *plan;
        self.release_regions(&spec.regions, NOBODY);
        self.log.push(EventKind::StreamRefused {
            listener: None,
            remote: spec.remote.to_string(),
            reason: reason.to_string(),
        });
        let sentence = format!("{}: {reason}", spec.remote);
        let error = match reason {
            ConnectError::Closed { .. } => ApiError::peer_refused(sentence),
            ConnectError::Timeout | ConnectError::Unreachable => ApiError::timeout(sentence),
            ConnectError::NoSuchAddress | ConnectError::NoRoute | ConnectError::PrivateData(_) => {
                ApiError::bad_request(sentence)
            }
            _ => ApiError::unavailable(sentence),
        };
        self.connect_refused(purpose, error);
        self.drain_step(now);
    }

    fn connect_refused(&mut self, purpose: Purpose, error: ApiError) {
        match purpose {
            Purpose::Keep(answer) => answer.send(Err(error)),
            Purpose::Job(job) => self.fail_job(job, error),
            Purpose::Send(send) => send.answer.send(Err(error)),
        }
    }

    // --- both sides ---

    pub(super) fn on_established(&mut self, event: Event, now: Instant) {
        let Event::Established { stream: id, ticket, private_data, params, local, remote } = event
        else {
            return;
        };
        let plan = match ticket {
            Some(ticket) => match self.tickets.cancel(ticket.0) {
                Some(Then::Connected(plan)) => Some(*plan),
                _ => {
                    self.tally.unexpected_events += 1;
                    self.tell(id.worker(), Command::Close { stream: id, abort: true });
                    return;
                }
            },
            None => None,
        };
        let purpose = plan.map(|plan| self.adopt(id, plan, &private_data, local, remote, now));
        let Some(stream) = self.streams.get_mut(&id) else {
            self.tally.unexpected_events += 1;
            return;
        };
        if stream.state != State::Closing {
            stream.state = State::Established;
        }
        stream.params = Some(params);
        stream.since = now;
        let (regions, listener) = (stream.regions.clone(), stream.listener);
        let listener =
            listener.and_then(|l| self.listener_by_id(l)).map(|l| l.section.name.clone());
        let remote = remote.to_string();
        self.log.push(EventKind::StreamEstablished { stream: Core::api_id(id), listener, remote });
        self.announce(&regions, id, Kind::Opened);
        match purpose {
            Some(Purpose::Keep(answer)) => self.list_streams(StreamsFor::One(id, answer)),
            Some(Purpose::Job(job)) => self.job_connected(job, id, now),
            Some(Purpose::Send(send)) => self.post_send(id, *send, now),
            None => {}
        }
    }

    /// A stream that was opened from here stands: it gets its entry and its regions.
    fn adopt(
        &mut self,
        id: StreamId,
        plan: ConnectPlan,
        private_data: &[u8],
        local: SocketAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Purpose {
        self.tally.connected += 1;
        let ConnectPlan { spec, purpose, pd, .. } = plan;
        let peer_regions = match advert::decode(private_data) {
            Ok(regions) => regions,
            Err(advert::AdvertError::NotAnAdvertisement) => Vec::new(),
            Err(error) => {
                self.warn(format!("{remote}: {error}"));
                Vec::new()
            }
        };
        let mut exclusive = Vec::new();
        for name in &spec.regions {
            let Some(region) = self.regions.get_mut(name) else { continue };
            region.users.insert(id);
            if region.is_exclusive() {
                region.bound = Some(id);
                exclusive.push(name.clone());
            }
        }
        self.bind(&exclusive, Some(id), Then::Nothing);
        let job = match &purpose {
            Purpose::Job(job) => Some(*job),
            _ => None,
        };
        let fresh = new_stream(local, remote, State::Established, pd);
        let stream =
            Stream { regions: spec.regions, peer_regions, queues: own_queues(), job, ..fresh };
        self.streams.insert(id, Stream { since: now, ..stream });
        purpose
    }

    /// An untagged message goes where its queue says; its buffer goes back when it has got there.
    pub(super) fn on_untagged(&mut self, id: StreamId, qn: Qn, msn: Msn, data: Vec<u8>) {
        self.tally.untagged_messages += 1;
        self.tally.untagged_octets += data.len() as u64;
        let Some(stream) = self.streams.get(&id) else { return };
        let queue = stream.queues.iter().find(|queue| queue.qn == qn.0);
        let Some(queue) = queue.cloned() else {
            // Only the error queue is posted without being configured.
            self.on_last_message(id, &data);
            return;
        };
        let data = match self.take_reply(id, qn, data) {
            Some(data) => data,
            None => return self.give_back(id, qn),
        };
        match queue.deliver_to {
            Delivery::Discard => {
                self.tally.discarded += 1;
                self.give_back(id, qn);
            }
            Delivery::Events => {
                let listener = self.listener_name(id);
                let (stream, queue, msn) = (Core::api_id(id), qn.0, msn.0);
                self.log.push(EventKind::Message { stream, listener, queue, msn, data });
                self.give_back(id, qn);
            }
            Delivery::Echo => {
                let source = Source::Octets(Arc::from(data));
                let message = Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie: 0 };
                self.post(id, message, Post::Echo { qn: qn.0 });
            }
            Delivery::File { .. } => self.append(id, qn, &data),
        }
    }

    fn append(&mut self, id: StreamId, qn: Qn, data: &[u8]) {
        let listener = self.streams.get(&id).and_then(|stream| stream.listener);
        let listener = listener.and_then(|listener| self.listener_by_id(listener));
        let file = listener.and_then(|listener| listener.files.get(&qn.0).copied());
        let tag = self.number();
        match file {
            Some(file) if self.writer.append(file, files::frame(data), tag) => {
                self.appending.insert(tag, (id, qn.0));
            }
            _ => {
                self.tally.discarded += 1;
                self.give_back(id, qn);
            }
        }
    }

    pub(super) fn on_appended(&mut self, tag: u64) {
        if let Some((stream, qn)) = self.appending.remove(&tag) {
            self.give_back(stream, Qn(qn));
        }
    }

    /// The peer says why it ends the stream.
    fn on_last_message(&mut self, id: StreamId, data: &[u8]) {
        let (code, reason) = render::last_message(data);
        let stream = Core::api_id(id);
        let layer = "ddp".to_owned();
        self.log.push(EventKind::StreamError { stream, layer, code, reason });
    }

    fn give_back(&mut self, stream: StreamId, qn: Qn) {
        if self.streams.contains_key(&stream) {
            self.tell(stream.worker(), Command::PostBuffers { stream, qn, buffers: 1 });
        }
    }

    /// Posts a message and remembers whose it is.
    pub(super) fn post(
        &mut self,
        id: StreamId,
        message: Message<dataplane::memory::Memory>,
        post: Post,
    ) {
        let ticket = self.tickets.issue(1, Then::Posted { stream: id, post });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.posts.insert(ticket);
        }
        let command = Command::Post { stream: id, message, region: None, ticket: Ticket(ticket) };
        self.tell(id.worker(), command);
    }

    /// A posted message was acknowledged, or could not be posted.
    pub(super) fn on_posted(&mut self, ticket: Ticket, result: Result<(), String>, now: Instant) {
        let Some(Then::Posted { stream, post }) = self.tickets.cancel(ticket.0) else {
            return; // its stream is gone, and it was given up then
        };
        if let Some(known) = self.streams.get_mut(&stream) {
            known.posts.remove(&ticket.0);
        }
        self.posted(stream, post, result, now);
    }

    fn posted(&mut self, stream: StreamId, post: Post, result: Result<(), String>, now: Instant) {
        match post {
            Post::Echo { qn } => self.give_back(stream, Qn(qn)),
            Post::Job { job, octets } => self.job_posted(job, octets, result, now),
            Post::Send(send) => self.send_posted(stream, *send, result, now),
        }
    }

    pub(super) fn on_stream_error(&mut self, id: StreamId, error: &ddp::DdpError) {
        self.tally.stream_errors += 1;
        let code = format!("{}/{:02}", error.code.error_type(), error.code.code());
        let (stream, layer) = (Core::api_id(id), "ddp".to_owned());
        tracing::warn!("stream {stream}: {error}");
        self.log.push(EventKind::StreamError { stream, layer, code, reason: error.to_string() });
    }

    pub(super) fn on_closed(
        &mut self,
        id: StreamId,
        reason: &CloseReason,
        stats: &EndpointStats,
        now: Instant,
    ) {
        let Some(mut stream) = self.streams.remove(&id) else {
            self.tally.unexpected_events += 1;
            return;
        };
        if let Some(totals) = self.totals.get_mut(usize::from(id.worker())) {
            totals.add(stats, reason);
        }
        let sentence = reason.to_string();
        if stream.state == State::Rejecting {
            self.credit_back(stream.listener, id);
            self.drain_step(now);
            return;
        }
        self.announce(&stream.regions, id, Kind::Closed);
        self.release_regions(&stream.regions, id);
        if let Some(listener) = stream.listener {
            if let Some(found) = self.listener_by_id(listener) {
                found.ledger.release(stream.remote.ip());
                let files: Vec<_> = found.files.values().copied().collect();
                files.into_iter().for_each(|file| self.writer.stream_closed(file));
            }
            self.forget_retired(listener);
        }
        let counts = stats.ddp;
        self.log.push(EventKind::StreamClosed {
            stream: Core::api_id(id),
            reason: sentence.clone(),
            placed: counts.placed_in_order_octets + counts.placed_out_of_order_octets,
            sent: stats.tcp.octets_acknowledged,
        });
        for ticket in std::mem::take(&mut stream.posts) {
            if let Some(Then::Posted { post, .. }) = self.tickets.cancel(ticket) {
                self.posted(id, post, Err(sentence.clone()), now);
            }
        }
        for send in stream.awaiting.drain(..) {
            send.answer
                .send(Err(ApiError::peer_refused(format!("the stream has ended: {sentence}"))));
        }
        if let Some(job) = stream.job {
            self.job_closed(job, &sentence, stats, now);
        }
        stream.closing.drain(..).for_each(|answer| answer.send(Ok(Reply::DONE)));
        self.drain_step(now);
    }

    /// A rejected stream took a credit; it is gone now.
    fn credit_back(&mut self, listener: Option<ListenerId>, stream: StreamId) {
        if let Some(listener) = listener {
            self.tell(stream.worker(), Command::Credits { listener, more: 1 });
        }
    }

    pub(super) fn close_stream(&mut self, id: StreamId, abort: bool, answer: Answer) {
        match self.streams.get_mut(&id) {
            Some(stream) => {
                stream.state = State::Closing;
                stream.closing.push(answer);
                self.tell(id.worker(), Command::Close { stream: id, abort });
            }
            None => {
                let id = Core::api_id(id);
                answer.send(Err(ApiError::not_found(format!("there is no stream {id}"))));
            }
        }
    }

    fn listener_name(&mut self, id: StreamId) -> Option<String> {
        let listener = self.streams.get(&id)?.listener?;
        self.listener_by_id(listener).map(|listener| listener.section.name.clone())
    }
}

fn new_stream(local: SocketAddr, remote: SocketAddr, state: State, pd: PdId) -> Stream {
    let now = Instant::now();
    Stream {
        listener: None,
        local,
        remote,
        state,
        regions: Vec::new(),
        peer_regions: Vec::new(),
        queues: Vec::new(),
        pd,
        revision: Revision::One,
        params: None,
        since: now,
        posts: HashSet::new(),
        closing: Vec::new(),
        awaiting: Vec::new(),
        job: None,
    }
}

/// Queues as DDP wants them; the error queue is always there.
fn stream_config(queues: &[QueueSection], version: VersionPolicy) -> StreamConfig {
    let mut config = StreamConfig { version, ..StreamConfig::default() };
    for queue in queues {
        config.queues.retain(|other| other.qn.0 != queue.qn);
        config.queues.push(QueueConfig {
            qn: Qn(queue.qn),
            buffers: queue.buffers,
            buffer_size: queue.buffer_size,
        });
    }
    config
}

/// The message queue of streams that are opened from here.
fn own_queues() -> Vec<QueueSection> {
    let (buffers, buffer_size) = OWN_QUEUE;
    let qn = ddp::MESSAGE_QUEUE.0;
    vec![QueueSection { qn, buffers, buffer_size, deliver_to: Delivery::Events }]
}

/// The prefix holds the address.
fn covers(network: IpAddr, len: u8, address: IpAddr) -> bool {
    let (bits, a, b) = match (network, address) {
        (IpAddr::V4(n), IpAddr::V4(a)) => (32, u128::from(n.to_bits()), u128::from(a.to_bits())),
        (IpAddr::V6(n), IpAddr::V6(a)) => (128, n.to_bits(), a.to_bits()),
        _ => return false,
    };
    let host = bits - u32::from(len).min(bits);
    host >= 128 || (a ^ b) >> host == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_cover_their_addresses() {
        let covers = |network: &str, len, address: &str| {
            covers(network.parse().unwrap(), len, address.parse().unwrap())
        };
        assert!(covers("192.0.2.1", 24, "192.0.2.200"));
        assert!(!covers("192.0.2.1", 24, "192.0.3.1"));
        assert!(covers("0.0.0.0", 0, "8.8.8.8") && covers("::", 0, "2001:db8::1"));
        assert!(covers("2001:db8::1", 64, "2001:db8::ffff"));
        assert!(!covers("2001:db8::1", 128, "2001:db8::2"));
        assert!(!covers("::", 0, "192.0.2.1"));
    }

    #[test]
    fn the_error_queue_is_there_unless_it_is_configured() {
        let config = stream_config(&own_queues(), VersionPolicy::V1);
        assert_eq!(config.queues.len(), 2);
        let own = QueueSection { qn: 2, buffers: 9, buffer_size: 9, deliver_to: Delivery::Discard };
        let config = stream_config(&[own], VersionPolicy::V0);
        assert_eq!(config.queues, [QueueConfig { qn: Qn(2), buffers: 9, buffer_size: 9 }]);
    }
}
