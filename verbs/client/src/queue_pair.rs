//! Queue pairs: creation, posts, connects and disconnects.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs_layout::work::{ReceiveWork, SendWork};
use verbs_layout::{doorbell, ring};
use verbs_session::message::{
    Answer, Call, ConnectCall, Depths, Event as Report, MAX_PRIVATE_DATA, Ring, StartUp, Transport,
};

use crate::completion_queue::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::error::{Error, PostError};
use crate::inbox::{Deadline, Key};
use crate::link::Link;
use crate::mapping::{Area, MappingError, RingProducer};
use crate::queues::{Direction, PairQueues};
use crate::shared_receives::SharedReceiveQueue;
use crate::writer::{ReceiveWriter, SendWriter};

/// Maximum events of a QP that the program has not taken. A further event is a protocol violation.
const MAX_EVENTS: usize = 4;
/// Time that [`QueuePair::connect`] waits for the appliance's event after [`ConnectOptions::timeout`] has expired.
const GRACE: Duration = Duration::from_secs(5);

/// Properties of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairConfig<'a> {
    /// CQ for completions of operations.
    pub send_completions: &'a CompletionQueue,
    /// CQ for completions of receives.
    pub receive_completions: &'a CompletionQueue,
    /// Maximum number of incomplete operations, at least 1.
    pub max_sends: u32,
    /// Maximum number of incomplete receives, at least 1.
    pub max_receives: u32,
    /// If true, the appliance copies the data that it sends, and the program may change source bytes before their
    /// operation is complete.
    pub copy_sources: bool,
    /// Shared receive queue for the QP's messages; `None`: the appliance creates a receive queue for the QP. With a
    /// shared receive queue, `max_receives` limits the incomplete receives that the QP has taken from it, and the
    /// number of messages that may arrive out of order.
    pub shared_receives: Option<&'a SharedReceiveQueue>,
}

/// A queue pair (QP), for one connection. Clones refer to the same QP, which is removed when the last clone is dropped.
/// An open connection is then reset. All methods can be called by several threads.
#[derive(Clone, Debug)]
pub struct QueuePair(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    number: u32,
    queues: Arc<PairQueues>,
    /// True once a connect or an accept was requested that the appliance did not refuse.
    used: AtomicBool,
    domain: ProtectionDomain,
    /// CQs of the QP. The references keep them until the QP is removed.
    _completions: [CompletionQueue; 2],
    /// SRQ of the QP. The reference keeps it until the QP is removed.
    _shared_receives: Option<SharedReceiveQueue>,
}

/// Options of [`QueuePair::connect`] and [`QueuePair::start_connect`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// Local address. `None` or an unspecified address: the appliance chooses it.
    pub local: Option<IpAddr>,
    /// Lower layer protocol.
    pub transport: Transport,
    /// Implementation of the peer, and whether the start-up is peer-to-peer (RFC 6581 §9).
    pub start_up: StartUp,
    /// Depths that this side offers: IRD and ORD (RFC 6581 §9).
    pub depths: Depths,
    /// Private data for the peer, at most [`MAX_PRIVATE_DATA`] bytes; at most 252 for
    /// [`PeerKind::Siw`](crate::PeerKind::Siw) and [`PeerKind::Cxgb4`](crate::PeerKind::Cxgb4).
    pub private_data: Vec<u8>,
    /// Time-out until the connection is established, at least 1 ms.
    pub timeout: Duration,
}

impl Default for ConnectOptions {
    /// Returns TCP, a standard peer that does not send first, depths of 16, no private data and a time-out of ten
    /// seconds.
    fn default() -> ConnectOptions {
        ConnectOptions {
            local: None,
            transport: Transport::Tcp,
            start_up: StartUp::default(),
            depths: DEFAULT_DEPTHS,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }
}

/// Default depths of a connection: IRD and ORD of 16 (RFC 6581 §9).
pub const DEFAULT_DEPTHS: Depths = Depths { ird: 16, ord: 16 };

/// An established connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Number of the worker that serves the connection, from 0.
    pub worker: u16,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// IRD and ORD of this side that are in effect.
    pub depths: Depths,
    /// Private data of the peer's answer. Empty at the side that accepted.
    pub private_data: Vec<u8>,
}

/// Change of the connection of a queue pair (QP), or failure of the QP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PairEvent {
    /// The connection is established.
    Established(Connection),
    /// The peer has rejected the connection.
    Rejected {
        /// Private data of the rejection.
        private_data: Vec<u8>,
    },
    /// The connection could not be opened.
    ConnectFailed {
        /// True if the peer does not answer or cannot be reached.
        unreachable: bool,
        /// True if the peer refused the connection: it has no listener at the remote address and port.
        refused: bool,
        /// Reason, one sentence.
        message: String,
    },
    /// The connection has ended. The posts of the QP are flushed.
    Disconnected {
        /// True if either side closed the connection gracefully.
        graceful: bool,
        /// Reason, one sentence.
        message: String,
    },
    /// The QP has failed, for example because a post is invalid, or one of its CQs or its SRQ has failed.
    Failed {
        /// Reason, one sentence.
        message: String,
    },
}

impl ProtectionDomain {
    /// Creates a QP in this protection domain.
    ///
    /// # Errors
    /// A CQ or the SRQ belongs to another session, the appliance refuses the QP, or the session has ended.
    pub fn create_queue_pair(&self, config: &QueuePairConfig<'_>) -> Result<QueuePair, Error> {
        let link = self.session().link();
        let completions = [config.send_completions, config.receive_completions];
        if completions.iter().any(|cq| !std::ptr::eq(cq.session().link(), link)) {
            return Err(Error::Argument("a completion queue belongs to another session"));
        }
        let shared = config.shared_receives;
        if shared.is_some_and(|shared| !std::ptr::eq(shared.link(), link)) {
            return Err(Error::Argument("the shared receive queue belongs to another session"));
        }
        let answer = link.call(Call::CreateQueuePair {
            pd: self.number(),
            send_completions: config.send_completions.number(),
            receive_completions: config.receive_completions.number(),
            max_sends: config.max_sends,
            max_receives: config.max_receives,
            copy_sources: config.copy_sources,
            shared_receives: shared.map(SharedReceiveQueue::number),
        })?;
        let (Answer::QueuePair { pair, sends, receives }, descriptors) = answer else {
            return Err(link.violation("the answer does not match the call"));
        };
        let [area] = &descriptors[..] else {
            return Err(link.violation("a QP has one descriptor"));
        };
        if receives.is_some() != shared.is_none() {
            return Err(link.violation("a QP has either a receive queue or a shared one"));
        }
        let are_disjoint = receives.is_none_or(|receives| disjoint(sends, receives));
        if pair >= doorbell::QUEUES / 2 || !are_disjoint {
            return Err(link.violation("an impossible number of a QP, or rings that overlap"));
        }
        let map = || -> Result<(RingProducer, Option<RingProducer>), MappingError> {
            let area = Area::map(area.as_fd())?;
            let ring = |ring: Ring| area.ring(ring.offset, ring.capacity);
            Ok((ring(sends)?, receives.map(ring).transpose()?))
        };
        let (sends, receives) = map().map_err(|error| link.violation(&error.to_string()))?;
        let queues = Arc::new(PairQueues::new(pair, sends, receives));
        if !link.inbox.open(Key::Pair(pair), MAX_EVENTS) || !link.add_pair(pair, &queues) {
            return Err(link.violation("the number of a QP is in use"));
        }
        Ok(QueuePair(Arc::new(Inner {
            number: pair,
            queues,
            used: AtomicBool::new(false),
            domain: self.clone(),
            _completions: completions.map(Clone::clone),
            _shared_receives: shared.cloned(),
        })))
    }
}

impl QueuePair {
    /// Returns the number of the QP, as in its completions.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Posts one operation. The worker performs an operation that was posted before the connection is established once
    /// the connection is established. Until the completion, the memory of its SGEs must stay registered. Its source
    /// bytes must stay unchanged, except with [`copy_sources`](QueuePairConfig::copy_sources).
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Queue`], [`Error::Ended`], or the session has ended. A post that races with the end of
    /// the connection may be accepted, and completes as flushed.
    pub fn post_send(&self, work: &SendWork) -> Result<(), Error> {
        self.post_work(std::slice::from_ref(work)).1
    }

    /// Posts operations in order, with one doorbell. No operation of another thread is posted between them.
    ///
    /// # Errors
    /// The errors of [`post_send`](Self::post_send), for the first refused post. Earlier posts are accepted. Later
    /// posts are not tried.
    pub fn post_sends(&self, works: &[SendWork]) -> Result<(), PostError> {
        let (posted, result) = self.post_work(works);
        result.map_err(|error| PostError { posted, error })
    }

    /// Calls `body` with a writer for the send queue, and posts the written operations with one doorbell. No operation
    /// of another thread is posted between them. `body` must not use the QP.
    ///
    /// # Errors
    /// [`Error::Ended`], or the session has ended. `body` is then not called.
    #[inline]
    pub fn post_sends_with<R>(
        &self,
        body: impl FnOnce(&mut SendWriter<'_>) -> R,
    ) -> Result<R, Error> {
        self.0.queues.post_with(Direction::Send, |ring| body(&mut SendWriter { ring }))
    }

    /// Calls `body` with a writer for the receive queue, and posts the written receives with one doorbell. `body` must
    /// not use the QP.
    ///
    /// # Errors
    /// [`Error::Ended`], the QP has a shared receive queue, or the session has ended. `body` is then not called.
    #[inline]
    pub fn post_receives_with<R>(
        &self,
        body: impl FnOnce(&mut ReceiveWriter<'_>) -> R,
    ) -> Result<R, Error> {
        self.0
            .queues
            .post_with(Direction::Receive, |ring| body(&mut ReceiveWriter { ring, written: 0 }))
    }

    /// Posts one receive, possibly before the connection is established. A receive for the peer's first message should
    /// be posted before the connect or accept.
    ///
    /// # Errors
    /// The errors of [`post_send`](Self::post_send), or the QP has a shared receive queue.
    pub fn post_receive(&self, work: &ReceiveWork) -> Result<(), Error> {
        self.post_receive_work(std::slice::from_ref(work)).1
    }

    /// Posts receives in order, with one doorbell.
    ///
    /// # Errors
    /// The errors of [`post_receive`](Self::post_receive), for the first refused post. Earlier posts are accepted.
    /// Later posts are not tried.
    pub fn post_receives(&self, works: &[ReceiveWork]) -> Result<(), PostError> {
        let (posted, result) = self.post_receive_work(works);
        result.map_err(|error| PostError { posted, error })
    }

    /// Enables posts after the end of the QP: they complete as flushed instead of failing with [`Error::Ended`].
    pub fn flush_after_end(&self) {
        self.0.queues.flush_after_end();
    }

    /// Connects to a peer and waits until the connection is established.
    ///
    /// # Errors
    /// The connection is rejected or fails, the options are invalid, the QP was used for a connection before, the
    /// appliance refuses the call or reports no outcome within five seconds after the time-out, or the session has
    /// ended.
    pub fn connect(
        &self,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Connection, Error> {
        let deadline = Instant::now().checked_add(options.timeout.saturating_add(GRACE));
        self.start_and_wait(self.connect_call(remote, options)?, deadline, || ())
    }

    /// Requests a connection without waiting until it is established: an event of the QP reports the outcome.
    ///
    /// # Errors
    /// The options are invalid, the QP was used for a connection before, the appliance refuses the call, or the session
    /// has ended.
    pub fn start_connect(&self, remote: SocketAddr, options: &ConnectOptions) -> Result<(), Error> {
        self.start(self.connect_call(remote, options)?)
    }

    /// Closes the connection gracefully and waits until it has ended. Discards the QP's other events until then.
    ///
    /// # Errors
    /// There is no connection, the connection does not end within `timeout`, or the session has ended.
    pub fn disconnect(&self, timeout: Duration) -> Result<(), Error> {
        self.start_disconnect()?;
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.take(deadline)? {
                Some(PairEvent::Disconnected { .. }) => return Ok(()),
                Some(_) => {}
                None => return Err(Error::TimedOut),
            }
        }
    }

    /// Begins to close the connection gracefully, without waiting. [`PairEvent::Disconnected`] reports its end.
    ///
    /// # Errors
    /// There is no connection, or the session has ended.
    pub fn start_disconnect(&self) -> Result<(), Error> {
        self.link().call_done(Call::Disconnect { pair: self.0.number })
    }

    /// Ends the QP: its posts complete as flushed, and it cannot be connected afterwards. An established connection is
    /// closed gracefully, and [`PairEvent::Disconnected`] reports its end. A connect or an accept in progress fails,
    /// which [`PairEvent::ConnectFailed`] reports. Has no effect if the QP has ended already.
    ///
    /// Returns false if no event reports the end, because neither a connect nor an accept was requested.
    ///
    /// # Errors
    /// The session has ended.
    pub fn end(&self) -> Result<bool, Error> {
        self.link().call_done(Call::EndQueuePair { pair: self.0.number })?;
        let error = Error::Ended("the program has ended the queue pair".into());
        self.0.queues.end(&error, &self.link().workers);
        Ok(self.0.used.load(Ordering::Acquire))
    }

    /// Waits for the next event of this QP, and returns `None` after `timeout`. Without a `timeout` the wait has no
    /// bound. [`Session::next_event`](crate::Session::next_event) does not return an event that this method has
    /// returned.
    ///
    /// # Errors
    /// The session has ended and no event is left.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<PairEvent>, Error> {
        self.take(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    fn post_work(&self, works: &[SendWork]) -> (usize, Result<(), Error>) {
        self.0
            .queues
            .post(Direction::Send, works, |ring, work| work.encode_with(|units| ring.push(units)))
    }

    fn post_receive_work(&self, works: &[ReceiveWork]) -> (usize, Result<(), Error>) {
        self.0.queues.post(Direction::Receive, works, |ring, work| {
            work.encode_with(|units| ring.push(units))
        })
    }

    fn connect_call(&self, remote: SocketAddr, options: &ConnectOptions) -> Result<Call, Error> {
        check_private_data(&options.private_data)?;
        let timeout = options.timeout.as_millis().min(u32::MAX.into()) as u32;
        if timeout == 0 {
            return Err(Error::Argument("the time-out is at least 1 ms"));
        }
        Ok(Call::Connect(ConnectCall {
            pair: self.0.number,
            local: options.local,
            remote,
            transport: options.transport,
            start_up: options.start_up,
            depths: options.depths,
            private_data: options.private_data.clone(),
            timeout,
        }))
    }

    /// Sends the `Connect` or `Accept` call for the QP's only connection, and waits for its outcome until `deadline`.
    /// `started` is called once the appliance has accepted the call.
    pub(crate) fn start_and_wait(
        &self,
        call: Call,
        deadline: Deadline,
        started: impl FnOnce(),
    ) -> Result<Connection, Error> {
        self.reserve()?;
        let (inbox, key) = (&self.link().inbox, Key::Pair(self.0.number));
        inbox.claim(key);
        let outcome = self.start_reserved(call).and_then(|()| {
            started();
            inbox.outcome(key, deadline)
        });
        inbox.unclaim(key);
        let report = outcome?.ok_or(Error::TimedOut)?;
        match PairEvent::new(report) {
            Some(PairEvent::Established(connection)) => Ok(connection),
            Some(PairEvent::Rejected { private_data }) => Err(Error::Rejected { private_data }),
            Some(PairEvent::ConnectFailed { unreachable, refused, message }) => {
                Err(Error::ConnectFailed { unreachable, refused, message })
            }
            Some(PairEvent::Disconnected { message, .. } | PairEvent::Failed { message }) => {
                Err(Error::Ended(message))
            }
            None => Err(self.link().violation("an event that does not belong to a QP")),
        }
    }

    /// Sends the `Connect` or `Accept` call for the QP's only connection, without waiting for its outcome.
    pub(crate) fn start(&self, call: Call) -> Result<(), Error> {
        self.reserve()?;
        self.start_reserved(call)
    }

    fn reserve(&self) -> Result<(), Error> {
        if self.0.used.swap(true, Ordering::AcqRel) {
            return Err(Error::State("a queue pair has one connection only"));
        }
        Ok(())
    }

    fn start_reserved(&self, call: Call) -> Result<(), Error> {
        let started = self.link().call_done(call);
        if started.is_err() {
            self.0.used.store(false, Ordering::Release);
        }
        started
    }

    pub(crate) fn link(&self) -> &Link {
        self.0.domain.session().link()
    }

    fn take(&self, deadline: Deadline) -> Result<Option<PairEvent>, Error> {
        let report = self.link().inbox.take(Key::Pair(self.0.number), deadline)?;
        Ok(report.and_then(PairEvent::new))
    }
}

impl PairEvent {
    /// Converts a message of the appliance, or returns `None` if its object is not a QP.
    pub(crate) fn new(report: Report) -> Option<PairEvent> {
        Some(match report {
            Report::Established { worker, local, remote, depths, private_data, .. } => {
                PairEvent::Established(Connection { worker, local, remote, depths, private_data })
            }
            Report::Rejected { private_data, .. } => PairEvent::Rejected { private_data },
            Report::ConnectFailed { unreachable, refused, message, .. } => {
                PairEvent::ConnectFailed { unreachable, refused, message }
            }
            Report::Disconnected { graceful, message, .. } => {
                PairEvent::Disconnected { graceful, message }
            }
            Report::QueuePairFailed { message, .. } => PairEvent::Failed { message },
            Report::Incoming { .. }
            | Report::RequestEnded { .. }
            | Report::SharedReceivesLow { .. }
            | Report::SharedReceivesFailed { .. }
            | Report::CompletionQueueFailed { .. } => return None,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let link = self.domain.session().link();
        if link.is_forked() {
            return;
        }
        self.queues.close(&Error::State("the queue pair was removed"));
        // Removes the library's state of the QP before the call, because the appliance may reuse the QP's number at
        // once.
        link.remove_pair(self.number);
        link.inbox.close(Key::Pair(self.number));
        // Errors after the session's end are ignored: the appliance has then removed the QP.
        let _ = link.call_done(Call::RemoveQueuePair { pair: self.number });
    }
}

/// Returns an error if there are more than [`MAX_PRIVATE_DATA`] bytes.
pub(crate) fn check_private_data(bytes: &[u8]) -> Result<(), Error> {
    if bytes.len() > MAX_PRIVATE_DATA {
        return Err(Error::Argument("private data is longer than 508 bytes"));
    }
    Ok(())
}

/// Returns true if two rings do not overlap.
fn disjoint(a: Ring, b: Ring) -> bool {
    let end = |part: Ring| {
        // Limits the capacity so that the product cannot overflow. `Area::ring` later refuses a larger capacity.
        let capacity = (part.capacity as usize).min(ring::MAX_CAPACITY);
        part.offset.saturating_add(ring::words(capacity) as u64 * 8)
    };
    end(a) <= b.offset || end(b) <= a.offset
}

const _: () = assert!(MAX_PRIVATE_DATA == 508);
