//! The flight recorder of one connection or association: its newest [`MAX_RECORDS`] rare events. Each has the header of
//! the segment that caused or shows the event. Payload is never recorded.
//!
//! A recorder without events takes eight bytes, and segments in order add no work. Consecutive retransmissions, or
//! probes of one kind, share a record for a minute. The shared record has the header of the first event and counts the
//! events. Window reductions because of ECN marks also share a record: otherwise they would fill the recorder of every
//! stream with ECN.
//!
//! ```text
//!  | since the start: 48 bits, µs | kind: 8 | flags: 8 | number: 32 | answer: 32 | window: 16 | len: 16 | count: 32 |
//! ```

use core::time::Duration;

use base::{ErrorNumbers, Instant};

/// Maximum number of records kept.
pub const MAX_RECORDS: usize = 16;
/// Number of newest records kept for the lifetime of the connection.
const MIN_RECORDS: usize = 2;
/// Time after the newest record during which all records are kept.
const RETENTION: Duration = Duration::from_secs(60);
/// Time after the first event of a record during which the record counts further events.
const COALESCE_TIME: Duration = Duration::from_secs(60);

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// Kind of a recorded event.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All kinds, each at the index of its discriminant.
            pub const ALL: [Kind; [$(Kind::$kind),*].len()] = [$(Kind::$kind),*];
        }
    };
}

kinds! {
    /// A FIN changed the state of a TCP connection from `number` to `answer`, which are discriminants of `tcp::State`.
    State,
    /// Lost data was retransmitted. The record has the header sent; `len` is the payload in bytes.
    Resent,
    /// A tail loss probe was sent (RFC 8985 §7.3). The record has the header sent.
    TailProbe,
    /// A probe of a closed window was sent. The record has the header sent.
    WindowProbe,
    /// The retransmission timer expired, the `count`th time in a row. `number` is the oldest unacknowledged sequence
    /// number or TSN; the next time-out follows after `answer` milliseconds.
    Timeout,
    /// A connection or association ended for lack of progress: no answers, or a window that stayed closed.
    /// [`Record::awaited_event`] returns the missing event. For a connection, `answer` is the milliseconds waited and
    /// `count` the time-outs in a row. For an association, `count` is the unanswered retransmissions and HEARTBEATs in
    /// a row.
    GaveUp,
    /// Loss recovery began, with `number` bytes in flight and a congestion window of `answer` bytes.
    Recovery,
    /// A recovery or time-out proved spurious and was undone. `number` is the proof: F-RTO (0), a timestamp (1), or
    /// reports of duplicates (2). The congestion window is `answer` bytes again.
    Undone,
    /// The peer closed its window. The record has the header received.
    WindowClosed,
    /// The peer opened its window again. The record has the header received.
    WindowOpened,
    /// The congestion window was reduced to `answer` bytes because the peer echoed an ECN mark (RFC 3168 §6.1.2).
    Marked,
    /// The maximum segment (TCP) or packet (SCTP) that the path carries changed from `number` to `answer` bytes.
    PathMtu,
    /// A keepalive probe or a HEARTBEAT was not answered, the `count`th in a row.
    Unanswered,
    /// A reset or an ABORT was sent. The record has the header sent; for an ABORT, `answer` is the cause code.
    ResetSent,
    /// A reset or an ABORT was received. The record has the header received; for an ABORT, `answer` is the cause code.
    ResetReceived,
    /// A FIN was sent. The record has the header sent.
    FinSent,
    /// The peer's FIN was received. The record has the header received.
    FinReceived,
    /// An error was found in received data. The lowest three bytes of `answer` are layer, error type and code; over
    /// SCTP `number` is the stream identifier.
    ErrorFound,
    /// The message that ends the stream because of an error was queued: RDMAP's Terminate, or the last message of bare
    /// DDP. Fields as in `ErrorFound`.
    TerminateSent,
    /// The peer's Terminate was received. Fields as in `ErrorFound`.
    TerminateReceived,
}

impl Kind {
    /// Returns the origin of the record's header: the peer (`Some(true)`), this end (`Some(false)`), or no header
    /// (`None`).
    pub const fn header_origin(self) -> Option<bool> {
        use Kind::*;
        match self {
            Resent | TailProbe | WindowProbe | ResetSent | FinSent => Some(false),
            WindowClosed | WindowOpened | ResetReceived | FinReceived => Some(true),
            _ => None,
        }
    }

    /// Returns true if events of this kind within [`COALESCE_TIME`] share a record.
    const fn is_coalesced(self) -> bool {
        matches!(self, Kind::Resent | Kind::TailProbe | Kind::WindowProbe | Kind::Marked)
    }
}

/// The event that a connection or association waited for until it timed out. A [`Kind::GaveUp`] record has its
/// discriminant in the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AwaitedEvent {
    /// Acknowledgements of sent data.
    Acknowledgement,
    /// The opening of the peer's window. The peer answered probes, but the window stayed closed.
    Window,
    /// Answers to probes of an idle peer.
    ProbeAnswer,
    /// The peer's FIN, after this end's FIN was acknowledged.
    Fin,
}

/// A recorded event. The layout is in the [module's documentation](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Bits 63 to 16: microseconds since the start of the clock. Bits 15 to 8: [`Kind`]. Bits 7 to 0: flags.
    time_kind_flags: u64,
    /// Sequence number or TSN of a header; otherwise see [`Kind`].
    pub number: u32,
    /// Acknowledgement number of a header; otherwise see [`Kind`].
    pub answer: u32,
    /// Window field of a header, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub len: u16,
    /// Number of events, or as [`Kind`] states; 0 and 1 both mean one.
    pub count: u32,
}

const _: () = assert!(size_of::<Record>() == 24);

impl Record {
    /// Creates a record with `number` and `answer`. [`with_header`](Self::with_header) adds the other fields of a
    /// header.
    pub fn new(now: Instant, kind: Kind, number: u32, answer: u32) -> Self {
        let when = now.as_micros() << 16 | (kind as u64) << 8;
        Record { time_kind_flags: when, number, answer, window: 0, len: 0, count: 1 }
    }

    /// Creates the record of an error, or of a message about an error. `stream`: SCTP's stream identifier.
    pub fn from_error(now: Instant, kind: Kind, stream: u32, numbers: ErrorNumbers) -> Self {
        let ErrorNumbers { layer, error_type, code } = numbers;
        Record::new(now, kind, stream, u32::from_be_bytes([0, layer, error_type, code]))
    }

    /// Returns the numbers of a record created by [`from_error`](Self::from_error).
    pub fn error_numbers(&self) -> ErrorNumbers {
        let [_, layer, error_type, code] = self.answer.to_be_bytes();
        ErrorNumbers { layer, error_type, code }
    }

    /// Adds further fields of the header. `flags`: TCP's flags, or the type of SCTP's chunk. `len`: bytes of payload,
    /// recorded as at most 65535.
    #[must_use]
    pub fn with_header(self, flags: u8, window: u16, len: usize) -> Self {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        Record { time_kind_flags: self.time_kind_flags | u64::from(flags), window, len, ..self }
    }

    /// Adds the event that a [`Kind::GaveUp`] record reports as missing.
    #[must_use]
    pub fn with_awaited_event(self, event: AwaitedEvent) -> Self {
        self.with_header(event as u8, 0, 0)
    }

    /// Sets the number of events.
    #[must_use]
    pub fn with_count(self, count: u32) -> Self {
        Record { count, ..self }
    }

    /// Returns the time after this record's first event during which the recorder does not shrink, if the record is its
    /// newest. The last counted event may have occurred up to [`COALESCE_TIME`] after the first.
    fn retention(&self) -> Duration {
        let grew = self.kind().is_coalesced() && self.count > 1;
        if grew { COALESCE_TIME + RETENTION } else { RETENTION }
    }

    /// Returns the time of the first event, in whole microseconds.
    pub fn at(&self) -> Instant {
        Instant::from_micros(self.time_kind_flags >> 16)
    }

    /// Returns the kind of the event.
    pub fn kind(&self) -> Kind {
        // The number is valid: records are created only from a `Kind`.
        Kind::ALL[usize::from((self.time_kind_flags >> 8) as u8)]
    }

    /// Returns the event that a [`Kind::GaveUp`] record reports as missing; `None` for other kinds.
    pub fn awaited_event(&self) -> Option<AwaitedEvent> {
        use AwaitedEvent::*;
        if self.kind() != Kind::GaveUp {
            return None;
        }
        [Acknowledgement, Window, ProbeAnswer, Fin]
            .into_iter()
            .find(|what| *what as u8 == self.flags())
    }

    /// Returns the flags of TCP's header, or the type of SCTP's chunk.
    pub fn flags(&self) -> u8 {
        self.time_kind_flags as u8
    }
}

/// Returns `amount`, bytes, as a record's field; at most `u32::MAX`.
pub fn saturating_bytes(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// Returns `time` in whole milliseconds as a record's field; at most `u32::MAX`.
pub fn saturating_millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The flight recorder. The first record allocates memory. [`shrink`](Self::shrink) frees most of it once [`RETENTION`]
/// has passed without an event.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Box<RecordLog>>);

#[derive(Clone, Debug, Default)]
struct RecordLog {
    /// Records, oldest first.
    records: Vec<Record>,
    /// Number of older records that were dropped.
    dropped: u64,
}

impl Recorder {
    /// Adds a record. An event that may share the newest record is counted there instead. A full recorder drops its
    /// oldest record.
    #[cold]
    #[inline(never)]
    pub fn add(&mut self, record: Record) {
        let kept = self.0.get_or_insert_default();
        if record.kind().is_coalesced()
            && let Some(last) = kept.records.last_mut()
            && last.kind() == record.kind()
            && record.at().saturating_since(last.at()) < COALESCE_TIME
        {
            last.count = last.count.saturating_add(record.count);
            return;
        }
        if kept.records.len() >= MAX_RECORDS {
            kept.drop_oldest(1);
        }
        if kept.records.len() == kept.records.capacity() {
            kept.records.reserve_exact(kept.records.len().max(MIN_RECORDS));
        }
        kept.records.push(record);
    }

    /// Returns the records, the oldest first, and the number of older records that were dropped.
    pub fn records(&self) -> (Vec<Record>, u64) {
        self.0.as_deref().map(|kept| (kept.records.clone(), kept.dropped)).unwrap_or_default()
    }

    /// Drops all but the newest [`MIN_RECORDS`] records once at least [`RETENTION`] has passed since the last event.
    pub fn shrink(&mut self, now: Instant) {
        let Some(kept) = &mut self.0 else { return };
        let more = kept.records.len().saturating_sub(MIN_RECORDS);
        let newest = kept.records.last();
        if more > 0
            && newest.is_some_and(|newest| now.saturating_since(newest.at()) >= newest.retention())
        {
            kept.drop_oldest(more);
            kept.records.shrink_to_fit();
        }
    }

    /// Returns true if no event was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl RecordLog {
    /// Drops the `oldest` oldest records, and counts them.
    fn drop_oldest(&mut self, oldest: usize) {
        self.records.drain(..oldest);
        self.dropped += oldest as u64;
    }
}

#[cfg(test)]
mod tests;
