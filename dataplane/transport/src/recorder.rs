//! The flight recorder of one connection or association: what seldom happens to it, the newest [`RECORDS`] of that, with
//! the headers of the segments that show it. Payload is never in it.
//!
//! It costs nothing where nothing happens: eight bytes until the first record, and no work for a segment in order.
//! Segments of the same kind that follow each other within a minute share a record, which has the header of the first one
//! and counts them; so do reductions for marks, which else would fill the recorder of every stream with ECN.
//!
//! ```text
//!  | since the start: 48 bits, µs | kind: 8 | flags: 8 | number: 32 | answer: 32 | window: 16 | len: 16 | count: 32 |
//! ```

use core::time::Duration;

use base::Instant;

/// Records that are kept, at most.
pub const RECORDS: usize = 16;
/// Of them, those that are kept for as long as the connection lives.
const LEAST: usize = 2;
/// Time after the newest during which all of them are kept.
const FRESH: Duration = Duration::from_secs(60);
/// Time after its first event during which a record counts others.
const SHARED: Duration = Duration::from_secs(60);

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// What happened.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All of them, each at its number.
            pub const ALL: [Kind; [$(Kind::$kind),*].len()] = [$(Kind::$kind),*];
        }
    };
}

kinds! {
    /// The state of a TCP connection changed by a FIN: from `number` to `answer`, as `tcp::State` numbers them.
    State,
    /// What was found lost was sent again. A header; `len` is bytes of payload.
    Resent,
    /// A tail loss probe was sent (RFC 8985 §7.3). A header.
    TailProbe,
    /// A closed window was probed. A header.
    WindowProbe,
    /// A retransmission time-out: the `count`th in a row; the oldest that is unacknowledged is `number`, the next time-out
    /// comes after `answer` milliseconds.
    Timeout,
    /// No progress for too long, as without answers or with a window that stays closed: a connection is given up after
    /// `answer` milliseconds and `count` time-outs in a row, an association after `count` unanswered retransmissions and
    /// HEARTBEATs in a row. [`Record::waited_for`] has what did not come.
    GaveUp,
    /// Loss recovery began, with `number` bytes in flight and a congestion window of `answer` bytes.
    Recovery,
    /// It, or a time-out, proved spurious and was undone: by F-RTO (`number` 0), a timestamp (1), reports of duplicates
    /// (2). The congestion window is `answer` bytes again.
    Undone,
    /// The peer closed its window. A header that arrived.
    WindowClosed,
    /// It opened it again. A header that arrived.
    WindowOpened,
    /// The congestion window was reduced, to `answer` bytes, because the peer echoed a mark (RFC 3168 §6.1.2).
    Marked,
    /// The path carries segments or packets of `answer` bytes from now on, instead of `number`.
    PathMtu,
    /// A keepalive probe or a heartbeat went unanswered: the `count`th in a row.
    Unanswered,
    /// A reset or an ABORT was sent. A header; of an ABORT its cause in `answer`.
    ResetSent,
    /// One came. A header that arrived; of an ABORT its cause in `answer`.
    ResetReceived,
    /// A FIN was sent. A header.
    FinSent,
    /// The peer's came. A header that arrived.
    FinReceived,
    /// An error was found in what the peer sent: layer, type and code in the lowest bytes of `answer`; over SCTP `number`
    /// is the stream.
    ErrorFound,
    /// The last message about an error was queued, RDMAP's Terminate or DDP's: as `ErrorFound`.
    TerminateSent,
    /// The peer's Terminate came: as `ErrorFound`.
    TerminateReceived,
}

impl Kind {
    /// The record has a header of the peer's (`Some(true)`), of ours, or none.
    pub const fn header(self) -> Option<bool> {
        use Kind::*;
        match self {
            Resent | TailProbe | WindowProbe | ResetSent | FinSent => Some(false),
            WindowClosed | WindowOpened | ResetReceived | FinReceived => Some(true),
            _ => None,
        }
    }

    /// Events of this kind that follow each other within [`SHARED`] share a record.
    const fn is_counted(self) -> bool {
        matches!(self, Kind::Resent | Kind::TailProbe | Kind::WindowProbe | Kind::Marked)
    }
}

/// What a connection or association that was given up waited for: the flags of a [`Kind::GaveUp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WaitedFor {
    /// Acknowledgements of what was sent.
    Acknowledgement,
    /// The peer to open its window; it answered.
    Window,
    /// Answers to probes of an idle peer.
    ProbeAnswer,
    /// The peer's FIN, after ours was acknowledged.
    Fin,
}

/// A record. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Time and kind.
    when: u64,
    /// Sequence number or TSN of a header; else see [`Kind`].
    pub number: u32,
    /// Acknowledgement number of a header; else see [`Kind`].
    pub answer: u32,
    /// Window field of a header, not scaled.
    pub window: u16,
    /// Bytes of payload.
    pub len: u16,
    /// How many; 0 and 1 are one.
    pub count: u32,
}

const _: () = assert!(size_of::<Record>() == 24);

impl Record {
    /// Without a header.
    pub fn new(now: Instant, kind: Kind, number: u32, answer: u32) -> Self {
        let when = now.as_micros() << 16 | (kind as u64) << 8;
        Record { when, number, answer, window: 0, len: 0, count: 1 }
    }

    /// An error, or a message about one: layer, type and code. `stream` is SCTP's.
    pub fn of_error(now: Instant, kind: Kind, stream: u32, numbers: (u8, u8, u8)) -> Self {
        let (layer, error_type, code) = numbers;
        Record::new(now, kind, stream, u32::from_be_bytes([0, layer, error_type, code]))
    }

    /// Layer, type and code, of one that [`of_error`](Self::of_error) made.
    pub fn error_numbers(&self) -> (u8, u8, u8) {
        let [_, layer, error_type, code] = self.answer.to_be_bytes();
        (layer, error_type, code)
    }

    /// With the header's other fields: TCP's flags, or the type of SCTP's chunk.
    #[must_use]
    pub fn with(self, flags: u8, window: u16, len: usize) -> Self {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        Record { when: self.when | u64::from(flags), window, len, ..self }
    }

    /// Of a [`Kind::GaveUp`]: what did not come.
    #[must_use]
    pub fn waiting_for(self, what: WaitedFor) -> Self {
        self.with(what as u8, 0, 0)
    }

    /// So many in a row.
    #[must_use]
    pub fn counted(self, count: u32) -> Self {
        Record { count, ..self }
    }

    /// How long after its first event it is fresh: the last one that it counts may have come [`SHARED`] after that.
    fn fresh(&self) -> Duration {
        let grew = self.kind().is_counted() && self.count > 1;
        if grew { SHARED + FRESH } else { FRESH }
    }

    /// When, to the microsecond.
    pub fn at(&self) -> Instant {
        Instant::from_micros(self.when >> 16)
    }

    /// What happened.
    pub fn kind(&self) -> Kind {
        // The number is of a `Kind`: nothing else makes a record.
        Kind::ALL[usize::from((self.when >> 8) as u8)]
    }

    /// Of a [`Kind::GaveUp`]: what did not come.
    pub fn waited_for(&self) -> Option<WaitedFor> {
        use WaitedFor::*;
        if self.kind() != Kind::GaveUp {
            return None;
        }
        [Acknowledgement, Window, ProbeAnswer, Fin]
            .into_iter()
            .find(|what| *what as u8 == self.flags())
    }

    /// The flags of TCP's header, or the type of SCTP's chunk.
    pub fn flags(&self) -> u8 {
        self.when as u8
    }
}

/// An amount as records have it.
pub fn bytes(amount: u64) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// A time as records have it.
pub fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The recorder. It takes memory for what it records, and little of it once nothing has happened for [`FRESH`].
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Box<Kept>>);

#[derive(Clone, Debug, Default)]
struct Kept {
    /// The oldest first.
    records: Vec<Record>,
    left_out: u64,
}

/// Bytes that a recorder takes at most, beside its eight.
pub const BYTES: usize = size_of::<Kept>() + RECORDS * size_of::<Record>();

impl Recorder {
    /// Adds a record; the oldest makes room for it.
    #[cold]
    #[inline(never)]
    pub fn add(&mut self, record: Record) {
        let kept = self.0.get_or_insert_default();
        if record.kind().is_counted()
            && let Some(last) = kept.records.last_mut()
            && last.kind() == record.kind()
            && record.at().saturating_since(last.at()) < SHARED
        {
            last.count = last.count.saturating_add(record.count);
            return;
        }
        if kept.records.len() >= RECORDS {
            kept.leave_out(1);
        }
        if kept.records.len() == kept.records.capacity() {
            kept.records.reserve_exact(kept.records.len().max(LEAST));
        }
        kept.records.push(record);
    }

    /// What it has, the oldest first, and how many older records were left out.
    pub fn records(&self) -> (Vec<Record>, u64) {
        self.0.as_deref().map(|kept| (kept.records.clone(), kept.left_out)).unwrap_or_default()
    }

    /// Frees the memory of all but the newest [`LEAST`] records, if the newest is older than [`FRESH`].
    pub fn shrink(&mut self, now: Instant) {
        let Some(kept) = &mut self.0 else { return };
        let more = kept.records.len().saturating_sub(LEAST);
        let newest = kept.records.last();
        if more > 0
            && newest.is_some_and(|newest| now.saturating_since(newest.at()) >= newest.fresh())
        {
            kept.leave_out(more);
            kept.records.shrink_to_fit();
        }
    }

    /// Nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl Kept {
    /// Forgets so many of the oldest, and counts them.
    fn leave_out(&mut self, oldest: usize) {
        self.records.drain(..oldest);
        self.left_out += oldest as u64;
    }
}

#[cfg(test)]
mod tests;
