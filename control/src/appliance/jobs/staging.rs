//! Read progress of a put's file. [`puts`](super::puts) advances it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use api::RemotePlace;
use ddp::advert::Advertised;

use crate::appliance::source::SourceFile;

/// Read progress of a file.
#[derive(Default)]
pub(super) struct Staging {
    pub(super) source: Option<Arc<SourceFile>>,
    /// Deadline of the client's input, while the client has not begun to send it.
    pub(super) input_until: Option<Instant>,
    /// Bytes of the peer's region from the destination on.
    pub(super) capacity: u64,
    /// Bytes of the file that were requested; of a pipe, that were read.
    pub(super) requested: u64,
    /// Slots used so far, counted without wrap.
    pub(super) fills: u64,
    /// Pieces that are being read.
    pub(super) filling: u64,
    /// Pieces that are read and not posted: offset in the memory, length in bytes.
    pub(super) ready: VecDeque<(u64, u64)>,
    /// True once no more bytes are to be read.
    pub(super) ended: bool,
    /// Error of a pipe with more bytes than the destination can hold, one sentence.
    pub(super) excess: Option<String>,
}

impl Staging {
    /// Records the opened file.
    pub(super) fn set_source(&mut self, source: Option<Arc<SourceFile>>) {
        self.source = source;
    }

    /// Records the room at the destination, bytes.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Returns true if everything is read and posted.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.ready.is_empty()
    }

    /// Closes the file. A thread that waits for a pipe ends.
    pub(super) fn close(&mut self) {
        self.source = None;
    }
}

/// Returns the bytes of the peer's region from the destination on.
pub(super) fn target_capacity(target: &RemotePlace, regions: &[Advertised]) -> u64 {
    match target {
        RemotePlace::Tagged { to, .. } => u64::MAX - to,
        RemotePlace::Region { name, offset } => {
            let region = regions.iter().find(|region| region.name == *name);
            region.map_or(0, |region| region.len.saturating_sub(*offset))
        }
    }
}
