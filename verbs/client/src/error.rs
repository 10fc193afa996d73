//! Errors of the library.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use verbs_layout::completion::CompletionError;
use verbs_layout::ring::RingError;
use verbs_layout::work::DescriptorError;
use verbs_session::message::Refusal;

/// Reason why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The appliance cannot be reached at its socket.
    #[error("no appliance at {path}: {error}", path = .path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        error: Errno,
    },
    /// The session has ended: the appliance has gone, or one side broke the protocol. All objects of the session are
    /// useless. A new session can be opened.
    #[error("the session has ended: {0}")]
    Disconnected(Arc<str>),
    /// The appliance has refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The appliance broke the protocol. The session has ended.
    #[error("the appliance broke the protocol: {0}")]
    Protocol(Arc<str>),
    /// An argument is invalid.
    #[error("{0}")]
    Argument(&'static str),
    /// The object is not in the state that the call requires.
    #[error("{0}")]
    State(&'static str),
    /// The values are not a descriptor.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The queue has no room for the descriptor. Room is made as the worker takes earlier descriptors.
    #[error("the queue is full")]
    Full,
    /// The worker broke the rules of the send or receive queue, which cannot be used further.
    #[error("the queue is broken: {0}")]
    Queue(RingError),
    /// The worker broke the rules of the completion queue, which cannot be used further.
    #[error("the completion queue is broken: {0}")]
    CompletionQueue(CompletionError),
    /// The arena has no free range of this length.
    #[error("the arena has no free range of {0} bytes")]
    ArenaFull(u64),
    /// The peer has rejected the connection.
    #[error("the peer has rejected the connection")]
    Rejected {
        /// Private data of the rejection.
        private_data: Vec<u8>,
    },
    /// The connection could not be opened.
    #[error("{message}")]
    ConnectFailed {
        /// True if the peer does not answer or cannot be reached.
        unreachable: bool,
        /// Reason, one sentence.
        message: String,
    },
    /// The connection of the queue pair has ended.
    #[error("the connection has ended: {0}")]
    Ended(String),
    /// The time given has passed.
    #[error("timed out")]
    TimedOut,
    /// The process was forked from the one that opened the session.
    #[error("a session cannot be used after fork")]
    Forked,
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// Failed action.
        call: &'static str,
        /// Error of the system call.
        error: Errno,
    },
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> Error {
        move |error| Error::System { call, error }
    }
}

impl From<RingError> for Error {
    fn from(error: RingError) -> Error {
        match error {
            RingError::Full => Error::Full,
            error => Error::Queue(error),
        }
    }
}
