//! Shared receive queues: creation, posts, limits and events.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use verbs_layout::work::ReceiveWork;
use verbs_session::message::{Answer, Call, Event as Report};

use crate::domain::ProtectionDomain;
use crate::error::{Error, PostError};
use crate::inbox::Key;
use crate::link::Link;
use crate::lock::lock;
use crate::mapping::{Area, RingProducer};
use crate::writer::ReceiveWriter;

/// Maximum events of an SRQ that the program has not taken. A further event is a protocol violation.
const MAX_EVENTS: usize = 2;

/// A shared receive queue (SRQ): receives for the messages of several queue pairs, which name it in their
/// [`QueuePairConfig`](crate::QueuePairConfig). A message takes the oldest receive when its first segment arrives. The
/// receive completes on the CQ of the message's queue pair. A message that finds no receive ends its connection.
///
/// Clones refer to the same SRQ, which is removed when the last clone and all of its QPs are dropped. All methods can
/// be called by several threads.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    domain: ProtectionDomain,
    number: u32,
    ring: Mutex<RingProducer>,
}

/// An event of a shared receive queue (SRQ).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SharedReceivesEvent {
    /// Fewer receives remain than the requested limit.
    Low,
    /// The SRQ has failed because of an invalid post. Its queue pairs fail, too.
    Failed {
        /// Reason, one sentence.
        message: String,
    },
}

impl ProtectionDomain {
    /// Creates an SRQ with room for `max_receives` receives that no message has taken. The receives' memory must belong
    /// to this protection domain.
    ///
    /// # Errors
    /// The appliance refuses the SRQ, or the session has ended.
    pub fn create_shared_receive_queue(
        &self,
        max_receives: u32,
    ) -> Result<SharedReceiveQueue, Error> {
        let link = self.session().link();
        let call = Call::CreateSharedReceiveQueue { pd: self.number(), max_receives };
        let (Answer::SharedReceiveQueue { queue, receives }, descriptors) = link.call(call)? else {
            return Err(link.violation("the answer does not match the call"));
        };
        let [area] = &descriptors[..] else {
            return Err(link.violation("an SRQ has one descriptor"));
        };
        let ring =
            Area::map(area.as_fd()).and_then(|area| area.ring(receives.offset, receives.capacity));
        let ring = ring.map_err(|error| link.violation(&error.to_string()))?;
        if !link.inbox.open(Key::SharedQueue(queue), MAX_EVENTS) {
            return Err(link.violation("the number of an SRQ is in use"));
        }
        let (domain, ring) = (self.clone(), Mutex::new(ring));
        Ok(SharedReceiveQueue(Arc::new(Inner { domain, number: queue, ring })))
    }
}

impl SharedReceiveQueue {
    /// Returns the number of the SRQ, as in its events.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the protection domain of the receives.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Queue`], or the session has ended.
    pub fn post_receive(&self, work: &ReceiveWork) -> Result<(), Error> {
        self.post_receives(std::slice::from_ref(work)).map_err(|error| error.error)
    }

    /// Posts receives in order.
    ///
    /// # Errors
    /// The errors of [`post_receive`](Self::post_receive), for the first refused post. Earlier posts are accepted.
    /// Later posts are not tried.
    pub fn post_receives(&self, works: &[ReceiveWork]) -> Result<(), PostError> {
        if self.link().is_ended() {
            return Err(PostError { posted: 0, error: self.link().disconnected() });
        }
        let mut ring = lock(&self.0.ring);
        let refused = works.iter().enumerate().find_map(|(posted, work)| {
            let error = work.encode_with(|units| ring.push(units)).err()?;
            Some(PostError { posted, error: error.into() })
        });
        let posted = refused.as_ref().map_or(works.len(), |refused| refused.posted);
        ring.publish_counted(posted as u64);
        refused.map_or(Ok(()), Err)
    }

    /// Calls `body` with a writer for the SRQ, and posts the written receives. `body` must not use the SRQ.
    ///
    /// # Errors
    /// The session has ended. `body` is then not called.
    #[inline]
    pub fn post_receives_with<R>(
        &self,
        body: impl FnOnce(&mut ReceiveWriter<'_>) -> R,
    ) -> Result<R, Error> {
        if self.link().is_ended() {
            return Err(self.link().disconnected());
        }
        let mut ring = lock(&self.0.ring);
        let mut writer = ReceiveWriter { ring: &mut ring, written: 0 };
        let result = body(&mut writer);
        let written = writer.written;
        ring.publish_counted(written);
        Ok(result)
    }

    /// Requests one [`SharedReceivesEvent::Low`] when fewer than `limit` receives remain, possibly at once. A further
    /// call replaces the request. A `limit` of 0 only ends the request.
    ///
    /// # Errors
    /// The session has ended.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.link().call_done(Call::SetReceiveLimit { queue: self.0.number, limit })
    }

    /// Waits for the next event of this SRQ, and returns `None` after `timeout`. Without a `timeout` the wait has no
    /// bound. [`Session::next_event`](crate::Session::next_event) does not return an event that this method has
    /// returned.
    ///
    /// # Errors
    /// The session has ended and no event is left.
    pub fn next_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<SharedReceivesEvent>, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let report = self.link().inbox.take(Key::SharedQueue(self.0.number), deadline)?;
        Ok(report.and_then(SharedReceivesEvent::new))
    }

    pub(crate) fn link(&self) -> &Link {
        self.0.domain.session().link()
    }
}

impl SharedReceivesEvent {
    /// Converts a message of the appliance, or returns `None` if its object is not an SRQ.
    pub(crate) fn new(report: Report) -> Option<SharedReceivesEvent> {
        match report {
            Report::SharedReceivesLow { .. } => Some(SharedReceivesEvent::Low),
            Report::SharedReceivesFailed { message, .. } => {
                Some(SharedReceivesEvent::Failed { message })
            }
            _ => None,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let link = self.domain.session().link();
        if link.is_forked() {
            return;
        }
        // The mailbox is closed before the call, because the appliance may reuse the number at once. The QPs of the SRQ
        // are removed already. Errors after the session's end are ignored: the appliance has then removed the SRQ.
        link.inbox.close(Key::SharedQueue(self.number));
        let _ = link.call_done(Call::RemoveSharedReceiveQueue { queue: self.number });
    }
}
