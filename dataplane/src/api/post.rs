//! Reasons for which a message is not posted, or not delivered.

/// Why a message could not be posted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostFailure {
    /// The stream is gone or was never there.
    #[error("no such stream")]
    NoStream,
    /// The region that it names is not in the table.
    #[error("no such region")]
    NoRegion,
    /// The stream has a load already.
    #[error("the stream has a load already")]
    Loaded,
    /// DDP refused it.
    #[error("{0}")]
    Refused(ddp::PostError),
    /// The stream ended before the peer had all of it.
    #[error("the stream ended before the peer had all of it")]
    Flushed,
}
