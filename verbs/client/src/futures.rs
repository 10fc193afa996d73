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

/// An object whose descriptor the runtime polls.
#[derive(Debug)]
struct Polled<T>(T);

impl<T: AsFd> AsRawFd for Polled<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Registers an object with the current runtime.
#[allow(
    deprecated,
    reason = "its successor is unsafe: the descriptor has to stay the same and open. `Polled` owns an object that has one \
              descriptor until its drop."
)]
fn register<T: AsFd>(object: T) -> Result<AsyncFd<Polled<T>>, Error> {
    AsyncFd::with_interest(Polled(object), Interest::READABLE).map_err(refused)
}

/// A CQ that is the only one of its channel, and is used by one task at a time.
#[derive(Debug)]
pub struct AsyncCompletions {
    queue: CompletionQueue,
    channel: AsyncFd<Polled<CompletionChannel>>,
}

impl AsyncCompletions {
    /// Registers the CQ's channel with the current runtime.
    ///
    /// # Errors
    /// The CQ has no channel, or the runtime refuses the descriptor.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(queue: CompletionQueue) -> Result<AsyncCompletions, Error> {
        let channel = queue.channel().cloned();
        let channel = channel.ok_or(Error::State("the completion queue has no channel"))?;
        Ok(AsyncCompletions { queue, channel: register(channel)? })
    }

    /// Returns the next completion. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// The session has ended, or the worker broke the rules of the queue.
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
            // Drained completely: the next notification makes the descriptor ready again.
            while self.channel.get_ref().0.drain()? {}
            ready.clear_ready();
        }
    }
}

/// The events of a session.
#[derive(Debug)]
pub struct AsyncEvents(AsyncFd<Polled<Session>>);

impl AsyncEvents {
    /// Registers the session's descriptor with the current runtime.
    ///
    /// # Errors
    /// The runtime refuses the descriptor.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(session: Session) -> Result<AsyncEvents, Error> {
        register(session).map(AsyncEvents)
    }

    /// Returns the next event of any object. Nothing is lost if the future is dropped.
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
