//! Events of a session, for programs that wait for events of all objects in one loop.

use std::time::{Duration, Instant};

use verbs_session::message::Event as Report;

use crate::error::Error;
use crate::listener::ConnectionRequest;
use crate::queue_pair::PairEvent;
use crate::session::Session;
use crate::shared_receives::SharedReceivesEvent;

/// An event of a session. Each event is returned once, by [`Session::next_event`] or by a call that waits for an event
/// of the object.
#[derive(Debug)]
pub enum Event {
    /// A peer requests a connection.
    Incoming(ConnectionRequest),
    /// The connection of a queue pair has changed, or the queue pair has failed.
    Pair {
        /// Number of the QP.
        pair: u32,
        /// Change of the connection, or failure of the QP.
        event: PairEvent,
    },
    /// Few receives remain in a shared receive queue, or the queue has failed.
    SharedReceives {
        /// Number of the SRQ.
        queue: u32,
        /// Low number of receives, or failure of the SRQ.
        event: SharedReceivesEvent,
    },
    /// A completion queue has failed, together with its QPs.
    CompletionQueueFailed {
        /// Number of the CQ.
        queue: u32,
        /// Reason, one sentence.
        message: String,
    },
}

impl Session {
    /// Waits for the next event of any object, and returns `None` after `timeout`. Without a `timeout` the wait has no
    /// bound. Does not return the event that a blocking `connect` or `accept` waits for. The session's descriptor is
    /// readable while there is an event, and after the session's end.
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
            Report::SharedReceivesLow { queue } | Report::SharedReceivesFailed { queue, .. } => {
                let event = SharedReceivesEvent::new(report);
                event.map(|event| Event::SharedReceives { queue, event })
            }
            Report::Established { pair, .. }
            | Report::Rejected { pair, .. }
            | Report::ConnectFailed { pair, .. }
            | Report::Disconnected { pair, .. }
            | Report::QueuePairFailed { pair, .. } => {
                PairEvent::new(report).map(|event| Event::Pair { pair, event })
            }
            // The inbox handles this event on arrival and does not queue it.
            Report::RequestEnded { .. } => None,
        }
    }
}
