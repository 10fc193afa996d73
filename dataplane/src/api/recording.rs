//! What the flight recorder of a connection or an association has, for the control thread.

use base::Instant;
use ddp::StreamId;
pub use tcp_lite::tcp::{Record, RecordKind, WaitedFor};

use crate::ids::Transport;

/// Streams that one command may ask about.
pub const RECORDINGS: usize = 64;

/// The records of a stream's connection, or of the association that it shares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// The stream.
    pub stream: StreamId,
    /// What carries it.
    pub transport: Transport,
    /// The worker's time when this was sent: the clock of the records.
    pub now: Instant,
    /// The oldest first.
    pub records: Vec<Record>,
    /// Older ones, which had no room.
    pub left_out: u64,
}
