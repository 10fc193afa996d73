//! The queue of requests from the API's thread to the control thread.
//!
//! The queue is bounded. If the control thread cannot keep up, further requests are refused. The control thread polls
//! [`Inbox::fd`] together with its other descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

use super::{ApiError, Reply, Request};

/// Maximum number of requests that wait for the control thread.
const QUEUE_DEPTH: usize = 256;

/// A request and the channel of its answer.
#[derive(Debug)]
pub struct Call {
    /// The request of the client.
    pub request: Request,
    /// Channel of the answer. The control thread may keep it to answer later, for example when the stream of a
    /// `connect` is established. If the channel is dropped without an answer, the client receives an error.
    pub responder: Responder,
}

/// Channel of one answer.
#[derive(Debug)]
pub struct Responder(oneshot::Sender<Result<Reply, ApiError>>);

impl Responder {
    /// Creates a responder and the receiver of its answer. Used by tests and fuzz targets that call the control thread's
    /// core without a [`Requester`].
    pub fn pair() -> (Responder, oneshot::Receiver<Result<Reply, ApiError>>) {
        let (sender, receiver) = oneshot::channel();
        (Responder(sender), receiver)
    }

    /// Sends the answer. If the client has disconnected, the answer is discarded.
    pub fn send(self, result: Result<Reply, ApiError>) {
        // The receiver is dropped when the client disconnects.
        drop(self.0.send(result));
    }

    /// Returns true if the client has disconnected, so that a long operation may be cancelled.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

/// Error of a request that the control thread did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The queue of the control thread is full.
    #[error("the appliance is busy: too many requests wait, try again")]
    Busy,
    /// The control thread has stopped, or dropped the request.
    #[error("the appliance is shutting down")]
    Stopped,
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        ApiError::unavailable(error.to_string())
    }
}

/// Sender of requests to the control thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Requester {
    sender: SyncSender<Call>,
    wake: Arc<OwnedFd>,
}

/// The control thread's receiver of requests.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Call>,
    wake: Arc<OwnedFd>,
}

/// Creates the queue of requests. Fails if eventfd(2) fails.
pub fn channel() -> std::io::Result<(Requester, Inbox)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = sync_channel(QUEUE_DEPTH);
    Ok((Requester { sender, wake: wake.clone() }, Inbox { receiver, wake }))
}

impl Requester {
    /// Sends a request to the control thread and waits for its answer. Returns `unavailable` at once if the queue is
    /// full or the control thread has stopped.
    pub async fn call(&self, request: Request) -> Result<Reply, ApiError> {
        let (sender, receiver) = oneshot::channel();
        match self.sender.try_send(Call { request, responder: Responder(sender) }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(CallError::Busy.into()),
            Err(TrySendError::Disconnected(_)) => return Err(CallError::Stopped.into()),
        }
        self.wake()?;
        receiver.await.unwrap_or(Err(CallError::Stopped.into()))
    }

    fn wake(&self) -> Result<(), ApiError> {
        match rustix::io::write(&*self.wake, &1u64.to_ne_bytes()) {
            // AGAIN means that the counter is at its maximum, so that the descriptor is readable already.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => {
                Err(ApiError::internal(format!("cannot wake the control thread: {error}")))
            }
        }
    }
}

impl Inbox {
    /// Returns the descriptor to poll, which is readable if there may be requests.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the next request; `None` if the queue is empty. The control thread must take all requests before it
    /// polls [`Inbox::fd`] again.
    pub fn try_recv(&self) -> Option<Call> {
        if let Ok(call) = self.receiver.try_recv() {
            return Some(call);
        }
        // The eventfd is reset before the second attempt, so that a request in between is not missed. The read fails
        // with AGAIN if the eventfd was not set.
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
        self.receiver.try_recv().ok()
    }
}
