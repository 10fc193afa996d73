//! Errors that calls of this library return. `ffi` maps them to errno values for C callers.

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
    /// Connecting to the appliance's socket failed.
    #[error("no appliance at {path}: {error}", path = .path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        error: Errno,
    },
    /// The session has ended: the appliance ended or broke the protocol, or the socket failed. All objects of the
    /// session are unusable. A new session can be opened.
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
    /// A post has more than [`MAX_SGES`](verbs_layout::work::MAX_SGES) SGEs, more than
    /// [`MAX_INLINE`](verbs_layout::work::MAX_INLINE) inline bytes, or SGEs of 2³² bytes or more in all.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The send or receive queue has no room for the descriptor. The worker frees room as it takes earlier descriptors.
    #[error("the queue is full")]
    Full,
    /// The worker corrupted the send or receive queue in shared memory. The queue cannot be used further.
    #[error("the queue is broken: {0}")]
    Queue(RingError),
    /// A worker corrupted the completion queue in shared memory. The queue cannot be used further.
    #[error("the completion queue is broken: {0}")]
    CompletionQueue(CompletionError),
    /// The arena has no free range of this length.
    #[error("the arena has no free range of {0} bytes")]
    ArenaFull(u64),
    /// Memory of the program cannot be registered.
    #[error("{reason} ({error})")]
    Memory {
        /// Reason, one sentence.
        reason: &'static str,
        /// EINVAL: the memory is a shared mapping outside of any arena. EFAULT: a part of the range is not mapped, or
        /// the program has no read access, or no write access for local write. EBUSY: the memory is registered with
        /// another session, or a thread of the program cannot be stopped. Others: errors of system calls.
        error: Errno,
    },
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
        /// True if the peer refused the connection: it has no listener at the remote address and port.
        refused: bool,
        /// Reason, one sentence.
        message: String,
    },
    /// The connection of the queue pair has ended or could not be established, or the queue pair has failed.
    #[error("the connection has ended: {0}")]
    Ended(String),
    /// The time-out of the call has passed.
    #[error("timed out")]
    TimedOut,
    /// The process was forked from the process that opened the session.
    #[error("a session cannot be used after fork")]
    Forked,
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// Action of the library that failed, for example "waiting for a notification".
        call: &'static str,
        /// Error of the system call.
        error: Errno,
    },
}

/// Error of a batch of posts: the first `posted` posts were accepted, and the next post was refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("post {posted} was refused: {error}")]
pub struct PostError {
    /// Number of accepted posts: the first posts of the batch.
    pub posted: usize,
    /// Reason why the next post was refused.
    pub error: Error,
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
