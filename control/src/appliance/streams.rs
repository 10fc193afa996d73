//! Streams: what the control thread knows of them, and their way from set-up to end.
//!
//! ```text
//!  accepted:  Incoming -> [Binding ->] Accepting -> Established -> gone
//!                 \-> Rejecting -> gone
//!  opened:    [bind ->] Connect -> Established -> gone
//! ```

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dataplane::memory::Memory;
use dataplane::memory::ring::Kind;
use dataplane::{
    CloseReason, Command, Event, InterfaceId, ListenerId, Origin, StreamParams, StreamStats, Ticket,
};
use ddp::rdmap::Outcome;
use ddp::{Message, PdId, Qn, StreamId};
use tcp_lite::mpa::{Peer, Revision};

use super::connect::Purpose;
use super::core::Core;
use super::env::api_id;
use super::pending::TakenSlot;
use super::pending::{Post, StreamsFor, Then};
use super::sends::PendingSend;
use crate::advert::Advertised;
use crate::api::{Answer, ApiError, ConnectSpec, EventKind, Reply, UlpChoice};
use crate::config::QueueSection;
use crate::transport::Transport;

/// How long a fresh stream to siw is left alone. A responding siw does not notice an FPDU that comes while it
/// moves the socket from start-up to Full Operation: it lies there until another one follows.
const SETTLING: Duration = Duration::from_millis(50);

/// The peer needs a moment before the first FPDU.
fn must_settle(spec: &ConnectSpec) -> bool {
    spec.transport == Transport::Tcp
        && spec.ulp == UlpChoice::Rdmap
        && spec.rdmap.peer == Peer::Siw.name()
}

/// A stream that the control thread knows.
pub(super) struct Stream {
    pub listener: Option<ListenerId>,
    pub interface: InterfaceId,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: State,
    /// Regions that the peer was told of.
    pub regions: Vec<String>,
    /// Regions that the peer told of.
    pub peer_regions: Vec<Advertised>,
    pub queues: Vec<QueueSection>,
    pub pd: PdId,
    /// What speaks above DDP on it.
    pub rdmap: bool,
    /// The piece of its listener's region that it has.
    pub slot: Option<TakenSlot>,
    /// The peer said that it will issue Reads.
    pub peer_reads: bool,
    /// Sends of RDMAP that arrived.
    pub received: u32,
    /// MPA's form of the peer's request; none over SCTP, or for streams that were opened from here.
    pub revision: Option<Revision>,
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
    /// Why the control thread aborts it, one sentence.
    pub doom: Option<String>,
    /// What the peer's last message said.
    pub peer_error: Option<String>,
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

impl Core {
    pub(super) fn on_established(&mut self, event: Event, now: Instant) {
        let Event::Established { stream: id, ticket, private_data, params, local, remote } = event
        else {
            return;
        };
        let plan = match ticket {
            Some(ticket) => match self.env.tickets.cancel(ticket.0) {
                Some(Then::Connected(plan)) => Some(*plan),
                _ => {
                    self.env.tally.unexpected_events += 1;
                    self.env.tell(id.worker(), Command::Close { stream: id, abort: true });
                    return;
                }
            },
            None => None,
        };
        let settles = plan.as_ref().is_some_and(|plan| must_settle(&plan.spec));
        let purpose = plan.map(|plan| self.adopt(id, plan, &private_data, local, remote, now));
        let Some(stream) = self.streams.get_mut(&id) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        if stream.state != State::Closing {
            stream.state = State::Established;
        }
        stream.params = Some(params);
        stream.since = now;
        let (regions, listener) = (stream.regions.clone(), stream.listener);
        let listener = listener.and_then(|l| self.listeners.name_of(l)).map(str::to_owned);
        let remote = remote.to_string();
        self.env.log.push(EventKind::StreamEstablished { stream: api_id(id), listener, remote });
        self.regions.announce(&mut self.env, &regions, id, Kind::Opened);
        match purpose {
            Some(purpose) if settles => self.settling.push((now + SETTLING, id, purpose)),
            Some(purpose) => self.begin(id, purpose, now),
            None => {}
        }
    }

    /// When the next stream is used.
    pub(super) fn next_settled(&self) -> Option<Instant> {
        self.settling.iter().map(|(at, ..)| *at).min()
    }

    pub(super) fn use_settled(&mut self, now: Instant) {
        let settled: Vec<_> = self.settling.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, id, purpose) in settled {
            if self.streams.contains_key(&id) {
                self.begin(id, purpose, now);
            } else {
                self.connect_refused(purpose, ApiError::peer_refused("the stream has ended"));
            }
        }
    }

    /// Does what a stream was opened for.
    fn begin(&mut self, id: StreamId, purpose: Purpose, now: Instant) {
        match purpose {
            // The client has gone away and will never learn the stream's number.
            Purpose::Keep(answer) if answer.is_abandoned() => {
                self.env.tell(id.worker(), Command::Close { stream: id, abort: false });
            }
            Purpose::Keep(answer) => self.list_streams(StreamsFor::One(id, answer)),
            Purpose::Job(job) => self.job_connected(job, id, now),
            Purpose::Send(send) => self.post_send(id, *send, now),
            Purpose::Ping(ping) => self.ping_connected(id, *ping),
            Purpose::Atomic(atomic) => self.post_atomic(id, *atomic, now),
        }
    }

    /// Posts a message and remembers whose it is.
    pub(super) fn post(&mut self, id: StreamId, message: Message<Memory>, post: Post) {
        let ticket = self.env.tickets.issue(1, Then::Posted { stream: id, post });
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.posts.insert(ticket);
        }
        let command = Command::Post { stream: id, message, region: None, ticket: Ticket(ticket) };
        self.env.tell(id.worker(), command);
    }

    /// A posted message was acknowledged, or could not be posted.
    pub(super) fn on_posted(
        &mut self,
        ticket: Ticket,
        result: Result<Outcome, ApiError>,
        now: Instant,
    ) {
        let Some(Then::Posted { stream, post }) = self.env.tickets.cancel(ticket.0) else {
            return; // its stream is gone, and it was given up then
        };
        if let Some(known) = self.streams.get_mut(&stream) {
            known.posts.remove(&ticket.0);
        }
        self.posted(stream, post, result, now);
    }

    fn posted(
        &mut self,
        stream: StreamId,
        post: Post,
        result: Result<Outcome, ApiError>,
        now: Instant,
    ) {
        match post {
            Post::Echo { qn } => self.give_back(stream, Qn(qn)),
            Post::Job { job, octets } => self.job_posted(job, octets, result.map(drop), now),
            Post::Send(send) => self.send_posted(stream, *send, result.map(drop), now),
            Post::Service(after) => self.service_posted(stream, after, result, now),
            Post::Atomic(atomic) => self.atomic_posted(stream, *atomic, result, now),
            Post::Ping => {
                if let Err(error) = result {
                    self.fail_ping(stream, error);
                }
            }
        }
    }

    pub(super) fn on_stream_error(&mut self, id: StreamId, error: &ddp::DdpError) {
        self.env.tally.stream_errors += 1;
        let code = format!("{}/{:02}", error.code.error_type(), error.code.code());
        let (stream, layer) = (api_id(id), "ddp".to_owned());
        tracing::warn!("stream {stream}: {error}");
        self.env.log.push(EventKind::StreamError {
            stream,
            layer,
            code,
            reason: error.to_string(),
        });
    }

    pub(super) fn on_closed(
        &mut self,
        id: StreamId,
        reason: &CloseReason,
        stats: &StreamStats,
        now: Instant,
    ) {
        let Some(mut stream) = self.streams.remove(&id) else {
            self.env.tally.unexpected_events += 1;
            return;
        };
        self.forget_refused(id);
        if let Some(totals) = self.totals.get_mut(usize::from(id.worker())) {
            totals.add(stats, reason);
        }
        let error = why_ended(reason, stream.doom.take());
        let sentence = error.message.clone();
        // What the peer said is the cause of whatever came after it.
        let error = stream.peer_error.clone().map_or(error, ApiError::peer_refused);
        if stream.state == State::Rejecting {
            self.credit_back(stream.listener, id);
            return;
        }
        self.regions.announce(&mut self.env, &stream.regions, id, Kind::Closed);
        self.regions.release(&mut self.env, &stream.regions, id);
        self.service_closed(id, stream.listener, now);
        self.release_slot(&stream);
        self.fail_ping(id, has_ended(error.clone()));
        if let Some(listener) = stream.listener {
            self.listeners.on_stream_closed(&mut self.env, listener, stream.remote.ip());
        }
        let counts = stats.ddp();
        self.env.log.push(EventKind::StreamClosed {
            stream: api_id(id),
            reason: sentence.clone(),
            placed: counts.placed_in_order_octets + counts.placed_out_of_order_octets,
            sent: stats.octets_acknowledged(),
        });
        for ticket in std::mem::take(&mut stream.posts) {
            if let Some(Then::Posted { post, .. }) = self.env.tickets.cancel(ticket) {
                self.posted(id, post, Err(error.clone()), now);
            }
        }
        for send in stream.awaiting.drain(..) {
            send.answer.send(Err(has_ended(error.clone())));
        }
        if let Some(job) = stream.job {
            // An acknowledgement says that the peer's TCP has the octets, not that they were placed: only
            // an end in order without a last message does.
            let in_order = reason.is_graceful() && stream.peer_error.is_none();
            self.job_closed(job, (!in_order).then_some(error), stats, now);
        }
        stream.closing.drain(..).for_each(|answer| answer.send(Ok(Reply::DONE)));
    }

    /// A rejected stream took a credit; it is gone now.
    fn credit_back(&mut self, listener: Option<ListenerId>, stream: StreamId) {
        if let Some(listener) = listener {
            self.env.tell(stream.worker(), Command::Credits { listener, more: 1 });
        }
    }

    pub(super) fn close_stream(&mut self, id: StreamId, abort: bool, answer: Answer) {
        match self.streams.get_mut(&id) {
            Some(stream) => {
                stream.closing.push(answer);
                self.hang_up(id, abort);
            }
            None => {
                let id = api_id(id);
                answer.send(Err(ApiError::not_found(format!("there is no stream {id}"))));
            }
        }
    }

    /// Ends a stream; its end will be reported.
    pub(super) fn hang_up(&mut self, id: StreamId, abort: bool) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.state = State::Closing;
            self.env.tell(id.worker(), Command::Close { stream: id, abort });
        }
    }

    /// Name of the listener that a stream came by.
    pub(super) fn listener_name(&self, id: StreamId) -> Option<String> {
        let listener = self.streams.get(&id)?.listener?;
        self.listeners.name_of(listener).map(str::to_owned)
    }
}

/// The end of a stream as its users are told of it; `doom` is why the control thread aborted it.
fn why_ended(reason: &CloseReason, doom: Option<String>) -> ApiError {
    match doom {
        Some(doom) if reason.is_local_abort() => ApiError::unavailable(doom),
        _ => {
            let sentence = reason.to_string();
            match reason.origin() {
                Origin::Peer => ApiError::peer_refused(sentence),
                Origin::Network => ApiError::timeout(sentence),
                Origin::Local => ApiError::unavailable(sentence),
            }
        }
    }
}

/// The same for those who wanted something of it.
pub(super) fn has_ended(error: ApiError) -> ApiError {
    ApiError { message: format!("the stream has ended: {}", error.message), ..error }
}

pub(super) fn new_stream(
    interface: InterfaceId,
    local: SocketAddr,
    remote: SocketAddr,
    state: State,
    pd: PdId,
) -> Stream {
    let now = Instant::now();
    Stream {
        listener: None,
        interface,
        local,
        remote,
        state,
        regions: Vec::new(),
        peer_regions: Vec::new(),
        queues: Vec::new(),
        pd,
        rdmap: false,
        slot: None,
        peer_reads: false,
        received: 0,
        revision: None,
        params: None,
        since: now,
        posts: HashSet::new(),
        closing: Vec::new(),
        awaiting: Vec::new(),
        job: None,
        doom: None,
        peer_error: None,
    }
}
