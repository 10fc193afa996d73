//! Streams: the control thread's state, from set-up to end.
//!
//! ```text
//!  peer's request ---> [Binding -->] Accepting --> Established --> Closing --> removed
//!                \                       |
//!                 \                      | a program rejects the request
//!                  \                     v
//!                   ---------------> Rejecting --> removed
//!  active open, once established ----------------> Established
//! ```
//!
//! A stream with exclusive regions, or with a slot of its listener's region, stays in `Binding` until all workers have
//! bound them. A close or an abort by this end moves a stream from any state to `Closing`; only the abort after the
//! loss of its port's link leaves a stream in `Rejecting`. The worker's report that the stream has ended removes it
//! from any state.

mod appends;
mod connect_configs;
mod counting;
mod delivery;
mod info;
mod posts;
mod refused;
mod stalls;
mod stream;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, ConnectSpec, EventKind, Responder, StreamInfo, UlpChoice};
use config::{Config, QueueSection, Transport};
use dataplane::capture::StreamFilter;
use dataplane::{
    AssociationStats, CloseReason, Command, EndpointConfig, InterfaceId, ListenerId, Origin,
    ProgramId, StreamParams, StreamStats, Ticket,
};
use ddp::advert::Advertised;
use ddp::{PdId, StreamId};
use tcp_lite::mpa::{Peer, Revision};

use self::appends::Appends;
use self::connect_configs::ConnectConfigs;
pub(super) use self::counting::LiveCounts;
use self::counting::StreamCounts;
pub(super) use self::delivery::{Destination, UntaggedHeader, on_ddp_error, on_rdmap_error};
pub(super) use self::info::association;
#[cfg(test)]
pub(super) use self::posts::CAUSE_WAIT;
pub(super) use self::posts::CompletedPost;
use self::refused::RefusedPosts;
#[cfg(test)]
pub(super) use self::stalls::MAX_NOTES as MAX_STALL_NOTES;
use self::stalls::Stalls;
pub(super) use self::stream::StreamAddresses;
use self::stream::{EndState, State, Stream, StreamTable, User};
use super::counters::Totals;
use super::endpoints::active_open_queues;
use super::env::{Env, api_id};
use super::pending::{AfterPost, Continuation, Post, Purpose, StreamList, TakenSlot};
use super::pending_confirmations::Confirmation;
use crate::service::{AcceptedStream, Slot};

/// Delay before the first FPDU to siw, Linux's software iWARP. A responding siw does not notice an FPDU that arrives
/// while it moves the socket from start-up to Full Operation. The FPDU stays in the socket until another FPDU arrives.
const SETTLING_TIME: Duration = Duration::from_millis(50);

pub(super) struct Streams {
    streams: StreamTable,
    /// Endpoint configurations of active opens.
    opens: ConnectConfigs,
    /// Streams in their settling time: the end of that time, the stream, and the purpose that starts then. The earliest
    /// end is first.
    settling: VecDeque<(Instant, StreamId, Purpose)>,
    /// Messages refused by streams that are ending. Their failure is reported when the cause of the end is known.
    refused: RefusedPosts,
    /// Streams without progress.
    stalls: Stalls,
    /// Untagged messages that are being appended to files.
    appending: Appends,
    /// Counter totals of ended and live streams and associations, per worker.
    counting: StreamCounts,
}

/// A stream to be accepted, possibly after its regions are bound.
pub(super) struct PendingAccept {
    pub listener: ListenerId,
    pub addresses: StreamAddresses,
    pub pd: PdId,
    pub regions: Vec<String>,
    /// Regions that another stream uses exclusively.
    pub busy: Vec<String>,
    pub queues: Vec<QueueSection>,
    pub revision: Option<Revision>,
    /// True for RDMAP above DDP, false for bare DDP.
    pub rdmap: bool,
    pub slot: Option<TakenSlot>,
    /// True if the stream writes to a file.
    pub writes_file: bool,
    /// True if the peer announced that it will issue Reads (its ORD is not 0).
    pub peer_reads: bool,
    /// True if regions must be bound before the stream is accepted.
    pub needs_binding: bool,
}

/// Parameters of the reply to a peer's connection request.
pub(super) struct AcceptParams<'a> {
    pub listener: Option<ListenerId>,
    pub pd: PdId,
    pub regions: &'a [String],
    pub busy: &'a [String],
    pub queues: &'a [QueueSection],
    pub revision: Option<Revision>,
    /// True for RDMAP above DDP, false for bare DDP.
    pub rdmap: bool,
    /// True if the stream writes to a file.
    pub writes_file: bool,
    pub arrival: AcceptedStream,
}

/// A stream that was removed after its end, with the resources and requests that the caller must release or answer.
pub(super) struct EndedStream {
    pub listener: Option<ListenerId>,
    pub remote: SocketAddr,
    /// True if this end rejected the peer's request.
    pub rejected: bool,
    /// True if the stream was accepted but ended before it was established.
    pub never_established: bool,
    pub local: SocketAddr,
    pub regions: Vec<String>,
    pub slot: Option<TakenSlot>,
    pub job: Option<u64>,
    /// Posted messages that were not acknowledged.
    pub posts: Vec<Post>,
    /// Clients that wait for the end of the stream.
    pub waiting: Vec<Responder>,
    /// Cause of the end, one sentence.
    pub sentence: String,
    /// Cause of the end, for operations that wait on the stream.
    pub error: ApiError,
    /// True if the stream ended gracefully and without an error of the peer.
    pub graceful: bool,
}

impl Streams {
    pub(super) fn new(workers: usize) -> Streams {
        Streams {
            streams: StreamTable::default(),
            opens: ConnectConfigs::default(),
            settling: VecDeque::new(),
            refused: RefusedPosts::default(),
            stalls: Stalls::default(),
            appending: Appends::default(),
            counting: StreamCounts::new(workers),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns the number of streams, except those being rejected.
    pub(super) fn remaining(&self) -> usize {
        self.streams.len() - self.streams.count(State::Rejecting)
    }

    pub(super) fn contains(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    pub(super) fn established_count(&self) -> usize {
        self.streams.count(State::Established)
    }

    pub(super) fn listener_of(&self, id: StreamId) -> Option<ListenerId> {
        self.streams.get(&id)?.listener
    }

    pub(super) fn pd_of(&self, id: StreamId) -> Option<PdId> {
        self.streams.get(&id).map(|stream| stream.pd)
    }

    pub(super) fn peer_regions(&self, id: StreamId) -> &[Advertised] {
        self.streams.get(&id).map(|stream| stream.peer_regions.as_slice()).unwrap_or_default()
    }

    /// Returns true if the stream has a slot of its listener's region.
    pub(super) fn has_slot(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.slot.is_some())
    }

    // --- accepted ---

    pub(super) fn insert_accepting(&mut self, id: StreamId, accepting: PendingAccept) {
        let state = if accepting.needs_binding { State::Binding } else { State::Accepting };
        let mut stream = Stream::new(accepting.addresses, state, accepting.pd);
        stream.listener = Some(accepting.listener);
        stream.regions = accepting.regions;
        stream.busy = accepting.busy;
        stream.queues = accepting.queues;
        stream.revision = accepting.revision;
        stream.rdmap = accepting.rdmap;
        stream.slot = accepting.slot;
        stream.peer_reads = accepting.peer_reads;
        stream.end.writes_file = accepting.writes_file;
        self.streams.insert(id, stream);
    }

    pub(super) fn insert_rejected(
        &mut self,
        id: StreamId,
        listener: Option<ListenerId>,
        addresses: StreamAddresses,
    ) {
        let mut stream = Stream::new(addresses, State::Rejecting, PdId(0));
        stream.listener = listener;
        self.streams.insert(id, stream);
    }

    /// Adds a stream of a local program. `listener`: the listener that received the peer's request; `None` if the
    /// program opened the stream.
    pub(super) fn insert_of_program(
        &mut self,
        id: StreamId,
        addresses: StreamAddresses,
        pd: PdId,
        program: ProgramId,
        listener: Option<ListenerId>,
    ) {
        let state = if listener.is_some() { State::Accepting } else { State::Established };
        let mut stream = Stream::new(addresses, state, pd);
        (stream.listener, stream.rdmap) = (listener, true);
        stream.user = User { program: Some(program), ..User::default() };
        self.streams.insert(id, stream);
    }

    pub(super) fn is_of_program(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.user.program.is_some())
    }

    /// Records that the request of a stream is rejected.
    pub(super) fn mark_rejected(&mut self, id: StreamId) {
        self.streams.set_state(id, State::Rejecting);
    }

    /// Resets a stream. `reason` is recorded as the cause, unless a cause is already recorded.
    pub(super) fn abort(&mut self, env: &mut Env, id: StreamId, reason: &str) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.end.set_abort_reason(reason.to_owned());
            self.close(env, id, true);
        }
    }

    /// Moves a stream to `Accepting` after all workers have applied its bindings. Returns the parameters of the answer.
    /// `None` if the stream has ended.
    pub(super) fn accept(&mut self, id: StreamId) -> Option<AcceptParams<'_>> {
        if self.streams.get(&id)?.state() == State::Binding {
            self.streams.set_state(id, State::Accepting);
        }
        let stream = self.streams.get(&id)?;
        let slot: Option<Slot> = stream.slot.as_ref().map(|taken| taken.slot);
        Some(AcceptParams {
            listener: stream.listener,
            pd: stream.pd,
            regions: &stream.regions,
            busy: &stream.busy,
            queues: &stream.queues,
            revision: stream.revision,
            rdmap: stream.rdmap,
            writes_file: stream.end.writes_file,
            arrival: AcceptedStream { peer: stream.remote.ip(), slot, reads: stream.peer_reads },
        })
    }

    /// Returns the regions advertised to the stream's peer.
    pub(super) fn regions_of(&self, id: StreamId) -> &[String] {
        self.streams.get(&id).map(|stream| stream.regions.as_slice()).unwrap_or_default()
    }

    // --- opened ---

    /// Returns the endpoint configuration of an active open. `start_key`: MPA startup with Start Keys, as in MPA's
    /// first draft.
    pub(super) fn endpoint(
        &mut self,
        config: &Config,
        spec: &ConnectSpec,
        start_key: bool,
    ) -> EndpointConfig {
        self.opens.endpoint(config, spec, start_key)
    }

    /// Adds an actively opened stream that is established. `writes_file`: true if a region of the stream is backed by a
    /// file.
    pub(super) fn insert_opened(
        &mut self,
        id: StreamId,
        addresses: StreamAddresses,
        pd: PdId,
        spec: ConnectSpec,
        writes_file: bool,
        peer_regions: Vec<Advertised>,
    ) {
        let mut stream = Stream::new(addresses, State::Established, pd);
        stream.rdmap = spec.ulp == UlpChoice::Rdmap;
        stream.regions = spec.regions;
        stream.peer_regions = peer_regions;
        stream.queues = active_open_queues();
        stream.end.writes_file = writes_file;
        self.streams.insert(id, stream);
    }

    /// Records that a stream is established. Returns its regions and its listener. `None` for an unknown stream.
    pub(super) fn on_established(
        &mut self,
        id: StreamId,
        params: StreamParams,
        now: Instant,
    ) -> Option<(Vec<String>, Option<ListenerId>)> {
        if self.streams.get(&id)?.state() != State::Closing {
            self.streams.set_state(id, State::Established);
        }
        let stream = self.streams.get_mut(&id)?;
        stream.params = Some(params);
        stream.since = now;
        Some((stream.regions.clone(), stream.listener))
    }

    /// Delays the use of an opened stream until its settling time has elapsed.
    pub(super) fn settle(&mut self, id: StreamId, purpose: Purpose, now: Instant) {
        self.settling.push_back((now + SETTLING_TIME, id, purpose));
    }

    /// Removes and returns the streams whose settling time has elapsed. Some of these streams may have ended.
    pub(super) fn take_settled(&mut self, now: Instant) -> Vec<(StreamId, Purpose)> {
        let mut settled = Vec::new();
        while self.settling.front().is_some_and(|(at, ..)| *at <= now) {
            settled.extend(self.settling.pop_front().map(|(_, id, purpose)| (id, purpose)));
        }
        settled
    }

    // --- users ---

    /// Checks that the stream can post messages.
    pub(super) fn check_open(&self, id: StreamId) -> Result<(), ApiError> {
        match self.streams.get(&id).map(Stream::state) {
            Some(State::Established) => Ok(()),
            Some(_) => Err(ApiError::conflict("the stream is not open")),
            None => Err(ApiError::not_found(format!("there is no stream {}", api_id(id)))),
        }
    }

    /// Returns the remote address of an established stream that no job uses. With `rdmap` it must be an RDMAP stream.
    pub(super) fn check_usable(&self, id: StreamId, rdmap: bool) -> Result<String, ApiError> {
        let shown = api_id(id);
        let conflict = |sentence: String| Err(ApiError::conflict(sentence));
        match self.streams.get(&id) {
            None => Err(ApiError::not_found(format!("there is no stream {shown}"))),
            Some(stream) if stream.state() != State::Established => {
                conflict(format!("stream {shown} is not open"))
            }
            Some(stream) if stream.user.job.is_some() => {
                conflict(format!("stream {shown} is used by another job"))
            }
            Some(stream) if rdmap && !stream.rdmap => {
                conflict(format!("stream {shown} uses bare DDP, which has no Reads and no atomics"))
            }
            Some(stream) => Ok(stream.remote.to_string()),
        }
    }

    /// Reserves a stream for a job.
    pub(super) fn claim(&mut self, id: StreamId, job: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.user.job = Some(job);
        }
    }

    /// Releases a stream from its job.
    pub(super) fn release(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.user.job = None;
        }
    }

    // --- end of a stream ---

    /// Ends a stream for an API client, which is answered when the stream has ended. `abort`: true for a reset, false
    /// for a graceful close.
    pub(super) fn close_for_client(
        &mut self,
        env: &mut Env,
        id: StreamId,
        abort: bool,
        answer: Responder,
    ) {
        match self.streams.get_mut(&id) {
            Some(stream) => {
                stream.end.waiting.push(answer);
                if abort {
                    stream.end.set_abort_reason("aborted by a call of the API".to_owned());
                }
                self.close(env, id, abort);
            }
            None => {
                let id = api_id(id);
                answer.send(Err(ApiError::not_found(format!("there is no stream {id}"))));
            }
        }
    }

    /// Records that the stream's job aborts it.
    pub(super) fn mark_aborted_by_job(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let job = stream.user.job.map_or("a job".to_owned(), |job| format!("job {job}"));
            stream.end.set_abort_reason(format!("aborted by {job}, which did not finish"));
        }
    }

    /// Handles the end of the peer's sending direction. The stream is closed once all received messages are answered
    /// (RFC 5041 §6.2.1). The worker bounds the wait.
    pub(super) fn on_peer_closed(&mut self, env: &mut Env, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.end.peer_closed = true;
        }
        self.close_if_answered(env, id);
    }

    /// Closes a half-closed stream if all answers are acknowledged; [`close`](Self::close) then waits for the files.
    /// Outstanding Reads of a service do not delay the close, because the peer can no longer answer them.
    pub(super) fn close_if_answered(&mut self, env: &mut Env, id: StreamId) {
        let half_closed = |s: &&Stream| s.end.peer_closed && s.state() == State::Established;
        let Some(stream) = self.streams.get(&id).filter(half_closed) else { return };
        let is_answer = |then: &mut Continuation| match then {
            Continuation::Posted { post: Post::Echo { .. }, .. } => true,
            Continuation::Posted { post: Post::Service(after), .. } => *after != AfterPost::Read,
            _ => false,
        };
        let answers = |env: &mut Env, ticket: u64| {
            env.continuation_mut(Ticket(ticket)).is_some_and(is_answer)
        };
        if !stream.posts.iter().any(|&ticket| answers(env, ticket)) {
            self.close(env, id, false);
        }
    }

    /// Ends a stream; the worker reports when it has ended. A graceful close waits until files contain the peer's data.
    /// `abort`: true for a reset.
    pub(super) fn close(&mut self, env: &mut Env, id: StreamId, abort: bool) {
        let Some(before) = self.streams.set_state(id, State::Closing) else { return };
        let Some(stream) = self.streams.get(&id) else { return };
        let confirms = !abort && stream.end.writes_file;
        match confirms {
            true if before == State::Closing => {}
            true if stream.end.peer_closed => env.confirm(id, Confirmation::Close),
            true => env.request_close_confirmation(id),
            false => env.send_command(id.worker(), Command::Close { stream: id, abort }),
        }
    }

    pub(super) fn has_file_writes(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.end.writes_file)
    }

    /// Closes all streams that write to files.
    pub(super) fn close_file_writers(&mut self, env: &mut Env) {
        for id in self.ids() {
            if self.has_file_writes(id) {
                self.close(env, id, false);
            }
        }
    }

    /// Aborts the streams on matching interfaces, unless the control thread already aborts them.
    pub(super) fn abort_on(
        &mut self,
        env: &mut Env,
        sentence: &str,
        on_port: impl Fn(&Env, InterfaceId) -> bool,
    ) {
        let is_affected = |s: &Stream| s.end.abort_reason.is_none() && on_port(env, s.interface);
        let affected = self.streams.iter().filter(|(_, stream)| is_affected(stream));
        let affected: Vec<StreamId> = affected.map(|(id, _)| id).collect();
        for id in affected {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.end.abort_reason = Some(sentence.to_owned());
            if stream.state() != State::Rejecting {
                self.streams.set_state(id, State::Closing);
            }
            env.send_command(id.worker(), Command::Close { stream: id, abort: true });
        }
    }

    /// Fails streams whose data could not be written to files, so that their peers learn of the failure. The writes are
    /// still retried.
    pub(super) fn fail_stores(
        &mut self,
        env: &mut Env,
        streams: impl IntoIterator<Item = StreamId>,
        cause: &str,
    ) {
        for id in streams {
            env.confirmations.remove_stream(id);
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if stream.end.abort_reason.is_some() {
                continue;
            }
            let reason = format!("the peer's data is not stored: {cause}");
            stream.end.abort_reason = Some(reason.clone());
            self.streams.set_state(id, State::Closing);
            env.send_command(id.worker(), Command::Fail { stream: id });
            env.tally.streams_not_stored += 1;
            let (stream, layer, code) = (api_id(id), "file".to_owned(), String::new());
            env.log.push(EventKind::StreamError { stream, layer, code, reason });
        }
    }

    /// Removes a stream that has ended, with its posts, confirmations and pending appends. Returns `None` for an
    /// unknown stream.
    pub(super) fn on_closed(
        &mut self,
        env: &mut Env,
        id: StreamId,
        reason: &CloseReason,
        stats: &StreamStats,
    ) -> Option<EndedStream> {
        let ended = self.streams.remove(&id)?;
        let state = ended.state();
        let Stream { listener, local, remote, params, regions, slot, posts, user, end, .. } = ended;
        env.confirmations.remove_stream(id);
        self.appending.remove_stream(id);
        // The posts are failed with the cause of the stream's end, so they no longer wait for it.
        self.refused.remove_stream(id);
        self.counting.on_closed(id, reason, stats);
        let EndState { waiting, abort_reason, peer_error, .. } = end;
        let mut error = end_error(reason, abort_reason);
        if let Some(silent) =
            self.end_stall(id, env.now).filter(|_| reason.origin() == Origin::Network)
        {
            error.message += &format!("; nothing was acknowledged for {} s", silent.as_secs());
        }
        let sentence = error.message.clone();
        let graceful = reason.is_graceful() && peer_error.is_none();
        let posted = |ticket| match env.cancel(Ticket(ticket)) {
            Some(Continuation::Posted { post, .. }) => Some(post),
            _ => None,
        };
        Some(EndedStream {
            listener,
            remote,
            rejected: state == State::Rejecting,
            never_established: listener.is_some() && params.is_none(),
            local,
            regions,
            slot,
            job: user.job,
            posts: posts.into_iter().filter_map(posted).collect(),
            waiting,
            sentence,
            // The peer's error is the cause of all later failures.
            error: peer_error.map_or(error, ApiError::peer_refused),
            graceful,
        })
    }

    pub(super) fn on_association_closed(&mut self, id: StreamId, stats: &AssociationStats) {
        self.counting.on_association_closed(id, stats);
    }

    /// Returns the earliest end of a settling time or of a wait for a cause. `None` if there is neither.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let settled = self.settling.front().map(|(at, ..)| *at);
        [settled, self.refused.next_deadline()].into_iter().flatten().min()
    }

    // --- queries ---

    /// Returns the first `limit` streams with numbers greater than `after`, in order.
    pub(super) fn page(&self, after: Option<StreamId>, limit: usize) -> Arc<[StreamId]> {
        self.streams.after(after).take(limit).collect()
    }

    pub(super) fn ids(&self) -> Vec<StreamId> {
        self.streams.iter().map(|(id, _)| id).collect()
    }

    /// Describes a stream for the API. `listener`: the name of its listener. `None` for an unknown stream.
    pub(super) fn info(
        &self,
        id: StreamId,
        found: &StreamList,
        listener: Option<String>,
        now: Instant,
    ) -> Option<StreamInfo> {
        let stream = self.streams.get(&id)?;
        let found = found.streams.get(&id);
        Some(info::stream(id, stream, found, listener, now))
    }

    /// Returns a capture filter for the frames of a stream. `None` for an unknown stream.
    pub(super) fn filter_of(&self, id: StreamId) -> Option<StreamFilter> {
        let Stream { local, remote, params, .. } = self.streams.get(&id)?;
        let transport = match params {
            Some(StreamParams::Sctp(_)) => dataplane::Transport::Sctp,
            _ => dataplane::Transport::Tcp,
        };
        Some(StreamFilter { transport, local: *local, remote: *remote })
    }

    /// Starts a count of the live streams, which replaces a count in progress.
    pub(super) fn begin_counting(&mut self) {
        self.counting.begin();
    }

    /// Adds live streams and associations that a worker has listed to the count in progress.
    pub(super) fn count(&mut self, part: &StreamList) {
        let Streams { streams, counting, .. } = self;
        counting.add_listed(part, |id| streams.contains_key(&id));
    }

    /// Ends the count that [`begin_counting`](Self::begin_counting) started, after all workers have listed their live
    /// streams. Returns the totals per worker, and the gauges of live streams and associations.
    pub(super) fn finish_counting(&mut self) -> (Vec<Totals>, LiveCounts) {
        self.counting.finish()
    }
}

#[cfg(test)]
impl Streams {
    /// Returns the number of messages being appended to files.
    pub(super) fn appending(&self) -> usize {
        self.appending.len()
    }
}

/// Returns true if the peer needs a delay before the first FPDU.
pub(super) fn needs_settling(spec: &ConnectSpec) -> bool {
    spec.transport == Transport::Tcp
        && spec.ulp == UlpChoice::Rdmap
        && spec.rdmap.peer == Peer::Siw.name()
}

/// Returns the error that describes the end of a stream. `abort_reason`: reason of an abort by the control thread, if
/// it aborted the stream.
fn end_error(reason: &CloseReason, abort_reason: Option<String>) -> ApiError {
    match abort_reason {
        Some(abort_reason) if reason.origin() == Origin::Local => {
            ApiError::unavailable(abort_reason)
        }
        _ => {
            let sentence = reason.to_string();
            match reason.origin() {
                Origin::Peer if reason.is_lingering() => ApiError::timeout(sentence),
                Origin::Peer => ApiError::peer_refused(sentence),
                Origin::Network => ApiError::timeout(sentence),
                Origin::Local => ApiError::unavailable(sentence),
            }
        }
    }
}
