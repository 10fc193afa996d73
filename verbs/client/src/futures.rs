//! Notifications and events as futures, for programs on a `tokio` runtime with I/O enabled (feature `tokio`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use verbs_layout::completion::Request;
use verbs_layout::work::Completion;

use crate::channel::CompletionChannel;
use crate::completion_queue::CompletionQueue;
use crate::error::Error;
use crate::event::Event;
use crate::session::Session;

/// Adapts an object with [`AsFd`] to [`AsyncFd`], which requires [`AsRawFd`].
#[derive(Debug)]
struct Polled<T>(T);

impl<T: AsFd> AsRawFd for Polled<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Registers the object's descriptor with the current `tokio` runtime.
#[allow(
    deprecated,
    reason = "its successor is unsafe: the descriptor has to stay the same and open. `Polled` owns an object that has one \
              descriptor until its drop."
)]
fn register<T: AsFd>(object: T) -> Result<AsyncFd<Polled<T>>, Error> {
    AsyncFd::with_interest(Polled(object), Interest::READABLE).map_err(refused)
}

/// The completions of a CQ as futures. The CQ must be the only CQ of its channel, and only one task at a time may use
/// it.
#[derive(Debug)]
pub struct AsyncCompletions {
    queue: CompletionQueue,
    channel: AsyncFd<Polled<CompletionChannel>>,
}

impl AsyncCompletions {
    /// Registers the CQ's channel with the current `tokio` runtime.
    ///
    /// # Errors
    /// The CQ has no channel, or the runtime refuses the descriptor.
    ///
    /// # Panics
    /// If no `tokio` runtime with I/O enabled is current.
    pub fn new(queue: CompletionQueue) -> Result<AsyncCompletions, Error> {
        let channel = queue.channel().cloned();
        let channel = channel.ok_or(Error::State("the completion queue has no channel"))?;
        Ok(AsyncCompletions { queue, channel: register(channel)? })
    }

    /// Waits for the next completion. No completion is lost if the future is dropped.
    ///
    /// # Errors
    /// The session has ended, a worker corrupted the CQ, or the runtime failed to poll the channel.
    pub async fn next(&self) -> Result<Completion, Error> {
        loop {
            if let Some(completion) = self.queue.poll_one()? {
                return Ok(completion);
            }
            self.queue.arm(Request::Next)?;
            if let Some(completion) = self.queue.poll_one()? {
                return Ok(completion);
            }
            let mut ready = self.channel.readable().await.map_err(refused)?;
            // All notifications must be consumed: the runtime reports the descriptor again only at its next change.
            while self.channel.get_ref().0.drain()? {}
            ready.clear_ready();
        }
    }
}

/// The events of a session as futures.
#[derive(Debug)]
pub struct AsyncEvents(AsyncFd<Polled<Session>>);

impl AsyncEvents {
    /// Registers the session's descriptor with the current `tokio` runtime.
    ///
    /// # Errors
    /// The runtime refuses the descriptor.
    ///
    /// # Panics
    /// If no `tokio` runtime with I/O enabled is current.
    pub fn new(session: Session) -> Result<AsyncEvents, Error> {
        register(session).map(AsyncEvents)
    }

    /// Waits for the next event of any object. No event is lost if the future is dropped.
    ///
    /// # Errors
    /// The session has ended and no event is left.
    pub async fn next(&self) -> Result<Event, Error> {
        loop {
            let mut ready = self.0.readable().await.map_err(refused)?;
            match self.0.get_ref().0.next_event(Some(Duration::ZERO))? {
                Some(event) => return Ok(event),
                None => ready.clear_ready(),
            }
        }
    }
}

fn refused(error: io::Error) -> Error {
    let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
    Error::System { call: "polling a descriptor", error }
}
