//! The record of one stream: the control thread's entries, the worker's recording, and the end of the stream.
//!
//! *Bound:* the number of entries, the length of each sentence, and the length of each header are limited. [`super`]
//! describes which entries exist.

use std::net::SocketAddr;
use std::time::Instant;

use api::Counters;
use base::ErrorNumbers;
use dataplane::{CloseReason, StreamParams};
use ddp::{Origin, StreamId, UlpKind, rdmap};

use super::recording::{ErrorEvent, WorkerRecording};
use super::{ENTRIES, EndContext};

/// Number of entries at the beginning that are never dropped.
const FIRST_ENTRIES: usize = 6;
/// Length to which a sentence is truncated, bytes, excluding the ellipsis.
const MAX_SENTENCE: usize = 240;
/// Maximum recorded length of a header, bytes. DDP headers are shorter: at most 18 bytes (RFC 5041 §4.3).
const MAX_HEADER: usize = 40;

/// Names of the layers by layer number (RFC 5040 §4.8).
const LAYERS: [&str; 3] = ["rdmap", "ddp", "mpa"];

/// The record of one stream.
#[derive(Debug)]
pub(super) struct Flight {
    stream: StreamId,
    local: SocketAddr,
    remote: SocketAddr,
    /// True if the peer opened the stream.
    pub(super) accepted: bool,
    /// Number of the local program that owns the stream, if any.
    pub(super) program: Option<u32>,
    pub(super) started_at: Instant,
    entries: Vec<Entry>,
    /// Number of entries dropped from the middle of `entries`.
    pub(super) dropped_entries: u64,
    /// The worker's recording, as of the last query or the end of the stream.
    pub(super) recording: Option<Box<WorkerRecording>>,
    pub(super) end: Option<Box<End>>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: Instant,
    pub(super) kind: EntryKind,
}

/// A recorded event.
#[derive(Debug)]
pub(super) enum EntryKind {
    /// The peer requested the stream. `revision`: MPA revision; `None` over SCTP.
    Requested { revision: Option<u8> },
    /// The stream was established. `mulpdu`: maximum ULPDU length in bytes.
    Established { transport: &'static str, ulp: UlpKind, mulpdu: u32 },
    /// Messages were delivered since the previous entry. `last`: time of the last delivery.
    Delivered { messages: u64, bytes: u64, last: Instant },
    /// DDP or RDMAP detected an error in the peer's data.
    Error { layer: &'static str, code: (u8, u8), reason: Box<str>, header: Box<[u8]> },
    /// An RDMAP Terminate was sent: by the peer if `by_peer`, else by this end.
    Terminate { by_peer: bool, numbers: ErrorNumbers, reason: Box<str> },
    /// The peer closed its sending direction. `incomplete`: true if the last message was incomplete.
    PeerClosed { incomplete: bool },
    /// The peer left `timeouts` consecutive retransmissions or window probes unanswered.
    Stalled { timeouts: u32 },
    /// The peer acknowledged data again after a stall.
    Resumed,
    /// A message of this end could not be sent.
    PostFailed { reason: Box<str> },
}

/// The end of a stream.
#[derive(Debug)]
pub(super) struct End {
    /// Time of the end. `None` until [`Flight::end`] records it.
    pub(super) at: Option<Instant>,
    pub(super) origin: Origin,
    pub(super) reason: &'static str,
    pub(super) numbers: Option<ErrorNumbers>,
    pub(super) sentence: Box<str>,
    pub(super) listener: Option<Box<str>>,
    pub(super) job: Option<u64>,
    pub(super) counters: Counters,
}

impl EntryKind {
    pub(super) fn error(
        layer: &'static str,
        code: (u8, u8),
        reason: String,
        header: &[u8],
    ) -> EntryKind {
        let header = header[..header.len().min(MAX_HEADER)].into();
        EntryKind::Error { layer, code, reason: truncate(reason), header }
    }

    pub(super) fn terminate(by_peer: bool, numbers: ErrorNumbers, reason: String) -> EntryKind {
        EntryKind::Terminate { by_peer, numbers, reason: truncate(reason) }
    }

    pub(super) fn post_failed(reason: String) -> EntryKind {
        EntryKind::PostFailed { reason: truncate(reason) }
    }

    /// Returns kind and numbers of an error or a Terminate, as a worker records them. `None` for other entries.
    pub(super) fn error_numbers(&self) -> Option<(ErrorEvent, ErrorNumbers)> {
        match self {
            EntryKind::Error { layer, code: (kind, code), .. } => {
                let layer = LAYERS.iter().position(|name| name == layer)? as u8;
                Some((ErrorEvent::Error, ErrorNumbers::new(layer, *kind, *code)))
            }
            EntryKind::Terminate { by_peer, numbers, .. } => {
                Some((ErrorEvent::Terminate { by_peer: *by_peer }, *numbers))
            }
            _ => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            EntryKind::Error { reason, header, .. } => reason.len() + header.len(),
            EntryKind::Terminate { reason, .. } | EntryKind::PostFailed { reason } => reason.len(),
            _ => 0,
        }
    }
}

impl End {
    pub(super) fn new(reason: &CloseReason, ending: &EndContext<'_>, counters: Counters) -> End {
        End {
            at: None,
            origin: reason.origin(),
            reason: reason.name(),
            numbers: reason.numbers(),
            sentence: truncate(ending.sentence.to_owned()),
            listener: ending.listener.map(Into::into),
            job: ending.job,
            counters,
        }
    }
}

impl Flight {
    pub(super) fn new(
        stream: StreamId,
        local: SocketAddr,
        remote: SocketAddr,
        accepted: bool,
        now: Instant,
    ) -> Flight {
        let (entries, left_out) = (Vec::with_capacity(2), 0);
        let (recorded, end) = (None, None);
        Flight {
            stream,
            local,
            remote,
            accepted,
            program: None,
            started_at: now,
            entries,
            dropped_entries: left_out,
            recording: recorded,
            end,
        }
    }

    pub(super) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn job(&self) -> Option<u64> {
        self.end.as_ref()?.job
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds an entry. If there are [`ENTRIES`](super::ENTRIES) entries, drops the oldest entry after the first
    /// `FIRST_ENTRIES`.
    pub(super) fn add(&mut self, at: Instant, kind: EntryKind) {
        if self.entries.len() == ENTRIES {
            self.entries.remove(FIRST_ENTRIES);
            self.dropped_entries += 1;
        }
        self.entries.push(Entry { at, kind });
    }

    pub(super) fn on_established(&mut self, now: Instant, params: &StreamParams) {
        let transport = match params {
            StreamParams::Tcp(_) => "TCP",
            StreamParams::Sctp(_) => "SCTP",
        };
        let (ulp, mulpdu) = (params.ulp(), params.mulpdu() as u32);
        self.add(now, EntryKind::Established { transport, ulp, mulpdu });
    }

    /// Records a delivered message. Consecutive deliveries share one entry.
    pub(super) fn on_delivered(&mut self, len: u64, now: Instant) {
        match self.entries.last_mut() {
            Some(Entry { kind: EntryKind::Delivered { messages, bytes, last }, .. }) => {
                *messages += 1;
                *bytes = bytes.saturating_add(len);
                *last = now;
            }
            _ => self.add(now, EntryKind::Delivered { messages: 1, bytes: len, last: now }),
        }
    }

    pub(super) fn end(&mut self, now: Instant, end: End) {
        self.entries.shrink_to_fit();
        self.end = Some(Box::new(End { at: Some(now), ..end }));
    }

    /// Returns the approximate memory of the record, bytes.
    pub(super) fn bytes(&self) -> usize {
        /// Approximate memory of one entry of `End::counters`, bytes: its name, its value, its share of a B-tree node.
        const COUNTER: usize = 64;
        let entries = self.entries.capacity() * size_of::<Entry>();
        let texts: usize = self.entries.iter().map(|entry| entry.kind.bytes()).sum();
        let end = self.end.as_ref().map_or(0, |end| {
            let listener = end.listener.as_ref().map_or(0, |name| name.len());
            size_of::<End>() + end.sentence.len() + listener + end.counters.len() * COUNTER
        });
        let recorded = self.recording.as_ref().map_or(0, |recorded| recorded.bytes());
        size_of::<Flight>() + entries + texts + end + recorded
    }
}

/// Returns the name of the layer of an error, and the error's type and code in that layer.
pub(in crate::appliance) fn rdmap_code(error: &rdmap::Error) -> (&'static str, (u8, u8)) {
    match error {
        rdmap::Error::Ddp(error) => ("ddp", (error.code.error_type(), error.code.code())),
        rdmap::Error::Rdmap(error) => ("rdmap", (error.code.error_type(), error.code.code())),
        rdmap::Error::Llp { error_type, code } => ("mpa", (*error_type, *code)),
        rdmap::Error::InvalidTerminate { .. } => ("rdmap", (0, 0)),
    }
}

/// Returns the header of the segment with the error; empty if not known.
pub(super) fn header(error: &rdmap::Error) -> &[u8] {
    match error {
        rdmap::Error::Ddp(error) => &error.header,
        rdmap::Error::Rdmap(error) => &error.header,
        _ => &[],
    }
}

fn truncate(mut text: String) -> Box<str> {
    if text.len() > MAX_SENTENCE {
        let end = (0..=MAX_SENTENCE).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text.into()
}
