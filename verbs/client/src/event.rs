//! Events of a session, for programs with one loop for all of their objects.

use std::time::{Duration, Instant};

use verbs_session::message::Event as Report;

use crate::error::Error;
use crate::listener::ConnectionRequest;
use crate::queue_pair::PairEvent;
use crate::session::Session;

/// An event of a session. Each event is reported once, by the session or by a wait for its object.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a connection.
    Incoming(ConnectionRequest),
    /// An event of a queue pair.
    Pair {
        /// Number of the QP.
        pair: u32,
        /// The event.
        event: PairEvent,
    },
    /// A completion queue has failed, and so have its QPs.
    CompletionQueueFailed {
        /// Number of the CQ.
        queue: u32,
        /// Reason, one sentence.
        message: String,
    },
}

impl Session {
    /// Waits for the next event of any object. `None` after `timeout`; without one it waits until there is an event.
    /// Events that a call waits for (`connect`, `accept`) are not reported. The session's descriptor is readable while an
    /// event can be taken.
    ///
    /// # Errors
    /// The session has ended and no event is left.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let report = self.link().inbox.take_any(deadline)?;
        Ok(report.and_then(|report| Event::new(self, report)))
    }
}

impl Event {
    fn new(session: &Session, report: Report) -> Option<Event> {
        match report {
            Report::Incoming { .. } => ConnectionRequest::new(session, report).map(Event::Incoming),
            Report::CompletionQueueFailed { queue, message } => {
                Some(Event::CompletionQueueFailed { queue, message })
            }
            Report::Established { pair, .. }
            | Report::Rejected { pair, .. }
            | Report::ConnectFailed { pair, .. }
            | Report::Disconnected { pair, .. }
            | Report::QueuePairFailed { pair, .. } => {
                PairEvent::new(report).map(|event| Event::Pair { pair, event })
            }
            // Not kept by the inbox.
            Report::RequestEnded { .. } => None,
        }
    }
}
