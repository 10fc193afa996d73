//! Progress of reading the source of a put. The module [`puts`](super::puts) updates it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use api::RemotePlace;
use ddp::advert::Advertised;

use crate::appliance::source::SourceFile;

/// State of the source of a put, and of its pieces in memory.
#[derive(Default)]
pub(super) struct Staging {
    pub(super) source: Option<Arc<SourceFile>>,
    /// Deadline for the client to begin its input; `None` once the input has begun, and for files.
    pub(super) input_until: Option<Instant>,
    /// Free space at the destination, bytes.
    pub(super) capacity: u64,
    /// Bytes requested from a file, or read from a pipe.
    pub(super) requested: u64,
    /// Number of pieces requested so far; modulo the number of slots, the slot of the next piece.
    pub(super) fills: u64,
    /// Number of pieces that were requested but not yet read.
    pub(super) filling: u64,
    /// Pieces that are read but not posted: offset in the memory, and length in bytes.
    pub(super) ready: VecDeque<(u64, u64)>,
    /// True if no further piece will be requested.
    pub(super) ended: bool,
    /// Error if a pipe has more bytes than the destination, one sentence.
    pub(super) excess: Option<String>,
}

impl Staging {
    pub(super) fn set_source(&mut self, source: Option<Arc<SourceFile>>) {
        self.source = source;
    }

    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Returns true if no further piece will be requested and none waits to be posted. Pieces of a file that were
    /// requested may still be unread.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.ready.is_empty()
    }

    /// Releases the source. A thread that waits for a pipe then ends.
    pub(super) fn close(&mut self) {
        self.source = None;
    }
}

/// Returns the number of bytes from the destination to the end of the peer's region; for a bare STag, to the last TO.
pub(super) fn target_capacity(target: &RemotePlace, regions: &[Advertised]) -> u64 {
    match target {
        RemotePlace::Tagged { to, .. } => u64::MAX - to,
        RemotePlace::Region { name, offset } => {
            let region = regions.iter().find(|region| region.name == *name);
            region.map_or(0, |region| region.len.saturating_sub(*offset))
        }
    }
}
