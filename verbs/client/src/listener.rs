//! Listeners and connection requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_session::message::{Answer, Call, Depths, Event as Report, Transport};

use crate::error::Error;
use crate::inbox::Key;
use crate::queue_pair::{Connection, DEFAULT_DEPTHS, QueuePair, check_private_data};
use crate::session::Session;

/// Time that [`ConnectionRequest::accept`] waits if the program does not choose another.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener. Clones refer to the same listener, which ends when the last clone is dropped; requests that wait are
/// then reset.
#[derive(Clone, Debug)]
pub struct Listener(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Session,
    number: u32,
    local: SocketAddr,
}

/// A peer's request for a connection, to be accepted or rejected. Dropping it rejects it.
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

/// Options of an accept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptOptions {
    /// Reads and atomics in flight (RFC 6581 §9).
    pub depths: Depths,
    /// Private data for the peer, at most [`verbs_session::message::MAX_PRIVATE_DATA`] bytes.
    pub private_data: Vec<u8>,
    /// Time to wait until the connection is established.
    pub timeout: Duration,
}

impl Default for AcceptOptions {
    /// Depths of 16, ten seconds.
    fn default() -> AcceptOptions {
        AcceptOptions { depths: DEFAULT_DEPTHS, private_data: Vec::new(), timeout: ACCEPT_TIMEOUT }
    }
}

impl Session {
    /// Listens at a local address, possibly unspecified, and port; the appliance chooses port 0. At most `backlog`
    /// requests, at least 1, wait for an answer.
    ///
    /// # Errors
    /// The address is in use or not one of the appliance, it refuses the listener, or the session has ended.
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
            _ => Err(link.violation("the answer is not the one of the call")),
        }
    }
}

impl Listener {
    /// Returns the number of the listener, as in [`ConnectionRequest::listener`].
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the address and port.
    pub fn local(&self) -> SocketAddr {
        self.0.local
    }

    /// Waits for the next connection request. `None` after `timeout`; without one it waits until there is a request.
    ///
    /// # Errors
    /// The session has ended.
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
        // First the mailbox: the appliance may use the number again at once.
        link.inbox.close(Key::Listener(self.number));
        // After the session's end nothing is left to remove.
        let _ = link.call_done(Call::StopListening { listener: self.number });
    }
}

impl ConnectionRequest {
    /// Returns the request of an event; `None` if the message is another event.
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

    /// Returns the number of the listener.
    pub fn listener(&self) -> u32 {
        self.listener
    }

    /// Returns the local address and port.
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

    /// Returns the private data of the request.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Returns true if the peer has given up meanwhile.
    pub fn is_ended(&self) -> bool {
        !self.is_answered && !self.session.link().inbox.is_open(self.number)
    }

    /// Accepts the connection for a QP and waits until it is established.
    ///
    /// # Errors
    /// The peer has given up, the options are invalid, the QP had a connection before or is one of another session, the
    /// appliance refuses the call, or the session has ended.
    pub fn accept(
        mut self,
        pair: &QueuePair,
        options: &AcceptOptions,
    ) -> Result<Connection, Error> {
        let deadline = Instant::now().checked_add(options.timeout);
        let call = self.accept_call(pair, options)?;
        pair.start_and_wait(call, deadline, || self.answered())
    }

    /// Accepts the connection for a QP and does not wait: an event of the QP follows.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn start_accept(mut self, pair: &QueuePair, options: &AcceptOptions) -> Result<(), Error> {
        pair.start(self.accept_call(pair, options)?)?;
        self.answered();
        Ok(())
    }

    fn accept_call(&self, pair: &QueuePair, options: &AcceptOptions) -> Result<Call, Error> {
        check_private_data(&options.private_data)?;
        if !std::ptr::eq(pair.link(), self.session.link()) {
            return Err(Error::Argument("the queue pair is one of another session"));
        }
        Ok(Call::Accept {
            request: self.number,
            pair: pair.number(),
            depths: options.depths,
            private_data: options.private_data.clone(),
        })
    }

    /// Rejects the connection.
    ///
    /// # Errors
    /// The private data is too long, or the session has ended.
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
            // A request that ended at the same time needs no answer.
            let _ = self.refuse(&[]);
        }
    }
}
