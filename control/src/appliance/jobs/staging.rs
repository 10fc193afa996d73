//! How far the file of a put is read; [`puts`](super::puts) moves it on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::appliance::source::SourceFile;
use api::RemotePlace;
use ddp::advert::Advertised;

/// How far a file is read.
#[derive(Default)]
pub(super) struct Staging {
    pub(super) source: Option<Arc<SourceFile>>,
    /// The client sends the bytes, has not begun, and must until then.
    pub(super) input_until: Option<Instant>,
    /// Bytes from the place on that the peer's region has.
    pub(super) room: u64,
    /// Bytes of the file that were asked for.
    pub(super) asked: u64,
    /// Slots that were used so far.
    pub(super) fills: u64,
    /// Pieces that are being read.
    pub(super) filling: u64,
    /// Read and not posted: offset in the memory, bytes.
    pub(super) ready: VecDeque<(u64, u64)>,
    /// Nothing more is to be read.
    pub(super) ended: bool,
    /// A pipe has more than the place takes: one sentence.
    pub(super) excess: Option<String>,
}

impl Staging {
    /// The file is open.
    pub(super) fn opened(&mut self, source: Option<Arc<SourceFile>>) {
        self.source = source;
    }

    /// The place stands.
    pub(super) fn placed(&mut self, room: u64) {
        self.room = room;
    }

    /// Everything is read and posted.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.ready.is_empty()
    }

    /// The file is closed; a thread that waits for a pipe ends.
    pub(super) fn close(&mut self) {
        self.source = None;
    }
}

/// Bytes of the region from the place on.
pub(super) fn room(target: &RemotePlace, regions: &[Advertised]) -> u64 {
    match target {
        RemotePlace::Tagged { to, .. } => u64::MAX - to,
        RemotePlace::Region { name, offset } => {
            let region = regions.iter().find(|region| region.name == *name);
            region.map_or(0, |region| region.len.saturating_sub(*offset))
        }
    }
}
