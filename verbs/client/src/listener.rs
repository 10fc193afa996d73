//! Listeners, and the connection requests that they receive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_session::message::{Answer, Call, Depths, Event as Report, Transport};

use crate::error::Error;
use crate::inbox::Key;
use crate::queue_pair::{Connection, DEFAULT_DEPTHS, QueuePair, check_private_data};
use crate::session::Session;

/// Default of [`AcceptOptions::timeout`].
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// A local address and port where peers connect. Clones refer to the same listener, which ends when the last clone is
/// dropped. Unanswered connection requests are then reset.
#[derive(Clone, Debug)]
pub struct Listener(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Session,
    number: u32,
    local: SocketAddr,
}

/// A peer's request for a connection, to be accepted or rejected. Dropping an unanswered request rejects it.
#[derive(Debug)]
pub struct ConnectionRequest {
    session: Session,
    number: u64,
    listener: u32,
    local: SocketAddr,
    remote: SocketAddr,
    depths: Option<Depths>,
    private_data: Vec<u8>,
    is_answered: bool,
}

/// Options of [`ConnectionRequest::accept`] and [`ConnectionRequest::start_accept`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptOptions {
    /// Depths that this side offers: IRD and ORD (RFC 6581 §9).
    pub depths: Depths,
    /// Private data for the peer, at most [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    pub private_data: Vec<u8>,
    /// Time-out of [`ConnectionRequest::accept`] until the connection is established.
    pub timeout: Duration,
}

impl Default for AcceptOptions {
    /// Returns depths of 16, no private data and a time-out of ten seconds.
    fn default() -> AcceptOptions {
        AcceptOptions { depths: DEFAULT_DEPTHS, private_data: Vec::new(), timeout: ACCEPT_TIMEOUT }
    }
}

impl Session {
    /// Listens at a local address and port. An unspecified address means all of the appliance's addresses of the same
    /// family. For port 0 the appliance chooses a port. At most `backlog` connection requests, at least 1, may be
    /// unanswered.
    ///
    /// # Errors
    /// The address is in use or does not belong to the appliance, the appliance refuses the listener, or the session
    /// has ended.
    pub fn listen(
        &self,
        local: SocketAddr,
        transport: Transport,
        backlog: u32,
    ) -> Result<Listener, Error> {
        let link = self.link();
        match link.call(Call::Listen { local, transport, backlog })? {
            (Answer::Listening { listener, local }, descriptors) if descriptors.is_empty() => {
                Ok(Listener(Arc::new(Inner { session: self.clone(), number: listener, local })))
            }
            _ => Err(link.violation("the answer does not match the call")),
        }
    }
}

impl Listener {
    /// Returns the number of the listener, as in [`ConnectionRequest::listener`].
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the local address and port. If port 0 was requested, the port is the one that the appliance has chosen.
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// Waits for the next connection request, and returns `None` after `timeout`. Without a `timeout` the wait has no
    /// bound.
    ///
    /// # Errors
    /// The session has ended and no request is left.
    pub fn next_request(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<ConnectionRequest>, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let report = self.0.session.link().inbox.take(Key::Listener(self.0.number), deadline)?;
        Ok(report.and_then(|report| ConnectionRequest::new(&self.0.session, report)))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let link = self.session.link();
        if link.is_forked() {
            return;
        }
        // Closes the mailbox before the call, because the appliance may reuse the listener's number at once.
        link.inbox.close(Key::Listener(self.number));
        // Errors after the session's end are ignored: the appliance has then removed the listener.
        let _ = link.call_done(Call::StopListening { listener: self.number });
    }
}

impl ConnectionRequest {
    /// Returns the connection request of an `Incoming` event, or `None` for any other event.
    pub(crate) fn new(session: &Session, report: Report) -> Option<ConnectionRequest> {
        let Report::Incoming { listener, request, local, remote, depths, private_data } = report
        else {
            return None;
        };
        Some(ConnectionRequest {
            session: session.clone(),
            number: request,
            listener,
            local,
            remote,
            depths,
            private_data,
            is_answered: false,
        })
    }

    /// Returns the number of the listener that received the request.
    pub fn listener(&self) -> u32 {
        self.listener
    }

    /// Returns the local address and port to which the peer connects.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address and port of the peer.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the peer's depths, if it sent them (RFC 6581 §9).
    pub fn depths(&self) -> Option<Depths> {
        self.depths
    }

    /// Returns the peer's private data, at most [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA) bytes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns true if the request has ended before it was answered, for example because the peer has withdrawn it.
    pub fn is_ended(&self) -> bool {
        !self.is_answered && !self.session.link().inbox.is_open(self.number)
    }

    /// Accepts the connection for a QP and waits until it is established.
    ///
    /// # Errors
    /// The peer has withdrawn the request, the options are invalid, the QP was used for a connection before or belongs
    /// to another session, the appliance refuses the call, the connection is not established within the time-out, or
    /// the session has ended.
    pub fn accept(
        mut self,
        pair: &QueuePair,
        options: &AcceptOptions,
    ) -> Result<Connection, Error> {
        let deadline = Instant::now().checked_add(options.timeout);
        let call = self.accept_call(pair, options)?;
        pair.start_and_wait(call, deadline, || self.answered())
    }

    /// Accepts the connection for a QP without waiting until it is established: an event of the QP reports the outcome.
    ///
    /// # Errors
    /// The peer has withdrawn the request, the options are invalid, the QP was used for a connection before or belongs
    /// to another session, the appliance refuses the call, or the session has ended.
    pub fn start_accept(mut self, pair: &QueuePair, options: &AcceptOptions) -> Result<(), Error> {
        pair.start(self.accept_call(pair, options)?)?;
        self.answered();
        Ok(())
    }

    fn accept_call(&self, pair: &QueuePair, options: &AcceptOptions) -> Result<Call, Error> {
        check_private_data(&options.private_data)?;
        if !std::ptr::eq(pair.link(), self.session.link()) {
            return Err(Error::Argument("the queue pair belongs to another session"));
        }
        Ok(Call::Accept {
            request: self.number,
            pair: pair.number(),
            depths: options.depths,
            private_data: options.private_data.clone(),
        })
    }

    /// Rejects the connection. The peer receives `private_data`, at most [`MAX_PRIVATE_DATA`](crate::MAX_PRIVATE_DATA)
    /// bytes.
    ///
    /// # Errors
    /// The private data is too long, the appliance refuses the call, or the session has ended.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(private_data)?;
        self.refuse(private_data)
    }

    fn refuse(&mut self, private_data: &[u8]) -> Result<(), Error> {
        self.answered();
        let (request, private_data) = (self.number, private_data.to_vec());
        self.session.link().call_done(Call::Reject { request, private_data })
    }

    fn answered(&mut self) {
        self.is_answered = true;
        self.session.link().inbox.answer(self.number);
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        if !self.is_answered && !self.is_ended() {
            // An error is ignored: a request that has ended meanwhile needs no answer.
            let _ = self.refuse(&[]);
        }
    }
}
