//! Fragments of messages, kept until their message is complete (RFC 9260 §6.9). The fragments of a message have
//! consecutive TSNs. The B bit marks the first fragment, the E bit the last.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use transport::ranges::Range;
use transport::seq::ExtSeq;
use wire::sctp::Data;

use super::ReceiveConfig;

/// Bytes accounted per fragment in addition to its data.
const OVERHEAD: usize = 64;

#[derive(Debug)]
struct Fragment {
    bytes: Box<[u8]>,
    ppid: u32,
    stream: u16,
    ssn: u16,
    unordered: bool,
    begin: bool,
    end: bool,
}

impl Fragment {
    /// Returns true if `chunk`, with an adjacent TSN, can belong to the same message.
    fn matches(&self, chunk: &Data<'_>) -> bool {
        self.stream == chunk.header.stream
            && self.unordered == chunk.header.unordered
            && (self.unordered || self.ssn == chunk.header.ssn) // RFC 9260 §6.6
            && self.ppid == chunk.header.ppid
    }
}

/// Effect of a fragment on its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinResult {
    /// The message is complete; contains its TSNs.
    Complete(Range),
    /// Other fragments are missing.
    Incomplete {
        /// Bytes accounted for the fragments of the message, including the new fragment.
        cost: usize,
    },
    /// The message exceeds the limits.
    TooLong,
}

/// The kept fragments of an association, by TSN.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    by_tsn: BTreeMap<ExtSeq, Fragment>,
    /// Bytes of all kept fragments, [`OVERHEAD`] included.
    held: usize,
}

/// Arrival of the chunks with the previous and the next TSN. A chunk that has arrived but is not kept belongs to no
/// incomplete message.
#[derive(Clone, Copy)]
pub(super) struct ArrivedNeighbours {
    /// True if the chunk with the previous TSN has arrived.
    pub(super) before: bool,
    /// True if the chunk with the next TSN has arrived.
    pub(super) after: bool,
}

impl Fragments {
    pub(super) fn is_empty(&self) -> bool {
        self.by_tsn.is_empty()
    }

    /// Returns the bytes of kept fragments, overhead included.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Returns true if `chunk` agrees with the chunks that have the previous and the next TSN. The B and E bits of
    /// neighbours must agree. Neighbours in one message must have the same stream, PPID and U bit, and the same SSN if
    /// they are ordered.
    pub(super) fn fits_neighbours(
        &self,
        tsn: ExtSeq,
        chunk: &Data<'_>,
        arrived: ArrivedNeighbours,
    ) -> bool {
        let fits_left = match self.by_tsn.get(&tsn.minus(1)) {
            Some(left) if left.end => chunk.header.begin,
            Some(left) => !chunk.header.begin && left.matches(chunk),
            None => chunk.header.begin || !arrived.before,
        };
        let fits_right = match self.by_tsn.get(&tsn.plus(1)) {
            Some(right) if right.begin => chunk.header.end,
            Some(right) => !chunk.header.end && right.matches(chunk),
            None => chunk.header.end || !arrived.after,
        };
        fits_left && fits_right
    }

    /// Returns the effect of `chunk` on its message. The caller has checked [`fits_neighbours`](Self::fits_neighbours).
    pub(super) fn try_join(
        &self,
        tsn: ExtSeq,
        chunk: &Data<'_>,
        config: &ReceiveConfig,
    ) -> JoinResult {
        let mut len = chunk.payload.len();
        let mut count = 1;
        let (mut start, mut begun) = (tsn, chunk.header.begin);
        while !begun && let Some(left) = self.by_tsn.get(&start.minus(1)) {
            start = start.minus(1);
            begun = left.begin;
            len += left.bytes.len();
            count += 1;
        }
        let (mut end, mut ended) = (tsn.plus(1), chunk.header.end);
        while !ended && let Some(right) = self.by_tsn.get(&end) {
            end = end.plus(1);
            ended = right.end;
            len += right.bytes.len();
            count += 1;
        }
        if len > config.max_message || count > config.max_fragments {
            JoinResult::TooLong
        } else if begun && ended {
            JoinResult::Complete(Range { start, end })
        } else {
            JoinResult::Incomplete { cost: len + count * OVERHEAD }
        }
    }

    /// Returns the pieces of the message with the TSNs `run`, in order. `chunk` is one of them.
    pub(super) fn pieces<'a>(
        &'a self,
        run: Range,
        tsn: ExtSeq,
        chunk: &Data<'a>,
    ) -> SmallVec<[&'a [u8]; 8]> {
        let left = self.by_tsn.range(run.start..tsn).map(|(_, f)| &*f.bytes);
        let right = self.by_tsn.range(tsn.plus(1)..run.end).map(|(_, f)| &*f.bytes);
        left.chain([chunk.payload]).chain(right).collect()
    }

    /// Returns the bytes accounted for `chunk`, overhead included.
    pub(super) fn cost(chunk: &Data<'_>) -> usize {
        chunk.payload.len() + OVERHEAD
    }

    /// Returns true if the association's limit leaves room for `chunk`.
    pub(super) fn has_room(&self, chunk: &Data<'_>, config: &ReceiveConfig) -> bool {
        self.held + Self::cost(chunk) <= config.fragments
    }

    pub(super) fn keep(&mut self, tsn: ExtSeq, chunk: &Data<'_>) {
        self.held += Self::cost(chunk);
        let fragment = Fragment {
            bytes: chunk.payload.into(),
            ppid: chunk.header.ppid,
            stream: chunk.header.stream,
            ssn: chunk.header.ssn,
            unordered: chunk.header.unordered,
            begin: chunk.header.begin,
            end: chunk.header.end,
        };
        self.by_tsn.insert(tsn, fragment);
    }

    /// Removes the fragments with the TSNs `run`. Returns the bytes accounted for them.
    pub(super) fn remove(&mut self, run: Range) -> usize {
        let before = self.held;
        let mut tsn = run.start;
        while tsn < run.end {
            if let Some(fragment) = self.by_tsn.remove(&tsn) {
                self.held -= fragment.bytes.len() + OVERHEAD;
            }
            tsn = tsn.plus(1);
        }
        before - self.held
    }
}
