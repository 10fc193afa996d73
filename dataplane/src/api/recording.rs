//! Flight recordings of a connection or an association, for the control thread.

use base::Instant;
use ddp::StreamId;
pub use tcp_lite::tcp::{AwaitedEvent, Record, RecordKind};

use crate::ids::Transport;

/// Most streams per command.
pub const MAX_RECORDINGS: usize = 64;

/// The records of a stream's connection, or of the association that it shares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// The stream.
    pub stream: StreamId,
    /// The lower layer.
    pub transport: Transport,
    /// The worker's time when this was sent, by the clock of the records.
    pub now: Instant,
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Number of older records that were overwritten.
    pub left_out: u64,
}
