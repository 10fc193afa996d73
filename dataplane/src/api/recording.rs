//! Flight recordings for the control thread: the last events of a connection or association, kept for diagnosis.

use base::Instant;
use ddp::StreamId;
pub use tcp_lite::tcp::{AwaitedEvent, Record, RecordKind};

use crate::ids::Transport;

/// Maximum number of streams per [`Command::ListRecordings`](super::Command::ListRecordings).
pub const MAX_RECORDINGS: usize = 64;

/// Flight recording of a stream: the last records of its connection, or of the association that it shares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recording {
    /// Identifier of the stream.
    pub stream: StreamId,
    /// Transport of the stream.
    pub transport: Transport,
    /// Time at which the worker sent the recording, on the same clock as the records.
    pub now: Instant,
    /// Records, oldest first.
    pub records: Vec<Record>,
    /// Number of older records that were overwritten.
    pub left_out: u64,
}
