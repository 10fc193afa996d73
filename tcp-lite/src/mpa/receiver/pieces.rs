//! Received bytes at or beyond the start of the next FPDU in order: held bytes, and islands (contiguous ranges of
//! FPDUs that were handed up). Positions are stream offsets.

use super::ReceiverStats;
use base::Blank;
use core::ops::Range;
use ddp::HoldBudget;
use std::collections::VecDeque;

/// Adjacent held pieces are joined up to this length, in bytes. Otherwise a stream of single bytes would need one piece
/// per byte.
const MAX_JOINED_LEN: usize = 2048;
/// Maximum number of pieces; one more is allowed for each `MAX_JOINED_LEN / 2` bytes held. Above this number, bytes
/// beyond a gap are refused.
const MAX_PIECES: usize = 1024;

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    kind: PieceKind,
}

#[derive(Clone, Debug)]
enum PieceKind {
    /// An island: all FPDUs up to `end` were passed to DDP.
    Placed { end: u64 },
    /// Bytes of FPDUs that were not passed to DDP. `located` is true if an FPDU is known to begin at the start of this
    /// piece, or in the located pieces directly before it.
    Held { bytes: Vec<u8>, located: bool },
}

impl Piece {
    fn end(&self) -> u64 {
        match &self.kind {
            PieceKind::Placed { end } => *end,
            PieceKind::Held { bytes, .. } => self.start + bytes.len() as u64,
        }
    }
}

/// The held pieces directly before and after a span, without a gap.
pub(super) struct HeldRun {
    /// Stream offset of the run's first byte.
    pub(super) start: u64,
    /// True if an FPDU is known to begin at `start`.
    pub(super) start_known: bool,
    /// True if an island begins directly after the run.
    pub(super) bounded: bool,
    /// Indices of the held pieces before the span.
    pub(super) before: Range<usize>,
    /// Indices of the held pieces after the span.
    pub(super) after: Range<usize>,
}

/// Held pieces and islands, sorted by position, without overlap.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    list: VecDeque<Piece>,
    /// Bytes of FPDUs beyond a gap that failed verification, less the bytes received since.
    pub(super) failed_verify_bytes: u32,
    /// Bytes of FPDUs beyond a gap that were verified and that the sink refused, less the bytes received since.
    pub(super) refused_verified_bytes: u32,
    /// How often the next in-order FPDU was dropped for a wrong CRC, or for a length above `max_fpdu`.
    pub(super) bad_crc_tries: u8,
}

impl Blank for Pieces {
    fn blank() -> &'static Self {
        static BLANK: Pieces = Pieces {
            list: VecDeque::new(),
            failed_verify_bytes: 0,
            refused_verified_bytes: 0,
            bad_crc_tries: 0,
        };
        &BLANK
    }
}

impl Pieces {
    /// Returns true if the state equals the blank state, except for the capacity of the list.
    pub(super) fn is_unused(&self) -> bool {
        self.list.is_empty()
            && self.failed_verify_bytes == 0
            && self.refused_verified_bytes == 0
            && self.bad_crc_tries == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Frees the memory of the list if it is empty.
    pub(super) fn shrink(&mut self) {
        if self.list.is_empty() && self.list.capacity() > 0 {
            self.list = VecDeque::new();
        }
    }

    /// Returns the number of allocated entries.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.list.capacity()
    }

    /// Returns true if the first piece is held and begins at `at`.
    pub(super) fn starts_with_held(&self, at: u64) -> bool {
        let held =
            |piece: &Piece| piece.start == at && matches!(piece.kind, PieceKind::Held { .. });
        self.list.front().is_some_and(held)
    }

    /// Returns true if no further piece beyond a gap is allowed. `held` is the number of bytes that the stream holds.
    pub(super) fn is_full(&self, held: u64) -> bool {
        self.list.len() as u64 >= MAX_PIECES as u64 + held / (MAX_JOINED_LEN as u64 / 2)
    }

    /// Returns the number of contiguous bytes held from `at` on.
    pub(super) fn contiguous_held(&self, at: u64) -> u64 {
        let mut end = at;
        for piece in &self.list {
            if piece.start != end || matches!(piece.kind, PieceKind::Placed { .. }) {
                break;
            }
            end = piece.end();
        }
        end - at
    }

    /// Returns the held pieces adjacent to a new span `offset..end`. `next` is the start of the next FPDU in order.
    pub(super) fn adjacent_run(&self, offset: u64, end: u64, next: u64) -> HeldRun {
        let at = self.list.partition_point(|piece| piece.start < offset);
        let (mut first, mut start, mut known) = (at, offset, offset == next);
        let mut seen_located = false;
        while first > 0 && !known {
            let piece = &self.list[first - 1];
            if piece.end() != start {
                break;
            }
            match &piece.kind {
                PieceKind::Placed { .. } => known = true,
                // A located FPDU does not locate bytes before its start.
                PieceKind::Held { located: false, .. } if seen_located => break,
                PieceKind::Held { located, .. } => {
                    seen_located = *located;
                    first -= 1;
                    start = piece.start;
                    known = start == next;
                }
            }
        }
        let (mut last, mut stop) = (at, end);
        let mut bounded = false;
        while let Some(piece) = self.list.get(last) {
            if piece.start != stop {
                break;
            }
            if matches!(piece.kind, PieceKind::Placed { .. }) {
                bounded = true;
                break;
            }
            stop = piece.end();
            last += 1;
        }
        HeldRun {
            start,
            start_known: known || seen_located,
            bounded,
            before: first..at,
            after: at..last,
        }
    }

    /// Calls `f` with the bytes of each held piece, in order.
    pub(super) fn for_each_held<'a>(&'a self, pieces: Range<usize>, mut f: impl FnMut(&'a [u8])) {
        for piece in self.list.range(pieces) {
            if let PieceKind::Held { bytes, .. } = &piece.kind {
                f(bytes);
            }
        }
    }

    /// Holds bytes that no piece covers. Joins them with adjacent pieces if possible.
    pub(super) fn hold(
        &mut self,
        start: u64,
        bytes: &[u8],
        located: bool,
        budget: &mut HoldBudget,
        stats: &mut ReceiverStats,
    ) {
        budget.charge(bytes.len());
        stats.held += bytes.len() as u64;
        stats.held_max = stats.held_max.max(stats.held);
        if !located {
            stats.unlocatable += bytes.len() as u64;
            stats.unlocatable_max = stats.unlocatable_max.max(stats.unlocatable);
        }
        let at = self.list.partition_point(|piece| piece.start < start);
        if let Some(previous) = at.checked_sub(1).map(|i| &mut self.list[i])
            && previous.end() == start
            && let PieceKind::Held { bytes: held, located: same } = &mut previous.kind
            && *same == located
            && held.len() + bytes.len() <= MAX_JOINED_LEN
        {
            held.extend_from_slice(bytes);
            self.join_next(at - 1);
            return;
        }
        self.list
            .insert(at, Piece { start, kind: PieceKind::Held { bytes: bytes.to_vec(), located } });
        self.join_next(at);
    }

    /// Joins the piece at index `at` with its successor, if both are held, equally located, and together at most
    /// `MAX_JOINED_LEN` long.
    fn join_next(&mut self, at: usize) {
        let (Some(this), Some(next)) = (self.list.get(at), self.list.get(at + 1)) else { return };
        let (
            PieceKind::Held { bytes: one, located: here },
            PieceKind::Held { bytes: two, located: there },
        ) = (&this.kind, &next.kind)
        else {
            return;
        };
        if this.end() != next.start || here != there || one.len() + two.len() > MAX_JOINED_LEN {
            return;
        }
        if let Some(Piece { kind: PieceKind::Held { bytes: two, .. }, .. }) =
            self.list.remove(at + 1)
            && let Some(Piece { kind: PieceKind::Held { bytes: one, .. }, .. }) =
                self.list.get_mut(at)
        {
            one.extend_from_slice(&two);
        }
    }

    /// Releases the held bytes in `from..to`; islands remain.
    pub(super) fn release(
        &mut self,
        from: u64,
        to: u64,
        budget: &mut HoldBudget,
        stats: &mut ReceiverStats,
    ) {
        let mut i = self.list.partition_point(|piece| piece.end() <= from);
        while let Some(piece) = self.list.get_mut(i) {
            if piece.start >= to {
                break;
            }
            let (start, end) = (piece.start, piece.end());
            let PieceKind::Held { bytes, located } = &mut piece.kind else {
                i += 1;
                continue;
            };
            let (left, right) = (from.saturating_sub(start) as usize, to.saturating_sub(start));
            let right = (right as usize).min(bytes.len());
            budget.refund(right - left);
            stats.held -= (right - left) as u64;
            if !*located {
                stats.unlocatable -= (right - left) as u64;
            }
            let rest = bytes.split_off(right);
            bytes.truncate(left);
            let located = *located;
            let gone = left == 0;
            if end > to {
                let rest = Piece { start: to, kind: PieceKind::Held { bytes: rest, located } };
                if gone {
                    self.list[i] = rest
                } else {
                    self.list.insert(i + 1, rest)
                }
                break;
            }
            if gone {
                self.list.remove(i);
            } else {
                i += 1;
            }
        }
    }

    /// Adds the FPDUs `from..to`, passed to DDP beyond a gap, as an island. Merges it with adjacent islands.
    pub(super) fn add_island(&mut self, from: u64, to: u64) {
        let at = self.list.partition_point(|piece| piece.start < from);
        let mut island = from..to;
        let mut i = at;
        if let Some(Piece { start, kind: PieceKind::Placed { end } }) = self.list.get(at)
            && *start == to
        {
            island.end = *end;
            self.list.remove(at);
        }
        if let Some(before) = at.checked_sub(1)
            && let Piece { start, kind: PieceKind::Placed { end } } = &self.list[before]
            && *end == from
        {
            island.start = *start;
            self.list.remove(before);
            i = before;
        }
        self.list
            .insert(i, Piece { start: island.start, kind: PieceKind::Placed { end: island.end } });
    }

    /// Removes the islands that follow `at` without a gap; everything before `at` was passed to DDP. Returns the end of
    /// these islands, or `at` if there are none.
    pub(super) fn absorb_islands(&mut self, mut at: u64) -> u64 {
        while let Some(Piece { start, kind: PieceKind::Placed { end } }) = self.list.front()
            && *start == at
        {
            at = *end;
            self.list.pop_front();
        }
        at
    }

    /// Marks held bytes in `from..to` as located: they belong to the FPDU that begins at `from`.
    pub(super) fn mark_located(&mut self, from: u64, to: u64, stats: &mut ReceiverStats) {
        let mut i = self.list.partition_point(|piece| piece.end() <= from);
        while let Some(piece) = self.list.get_mut(i) {
            if piece.start >= to {
                break;
            }
            let start = piece.start;
            if let PieceKind::Held { bytes, located: located @ false } = &mut piece.kind {
                if start < from {
                    let rest = bytes.split_off((from - start) as usize);
                    stats.unlocatable -= rest.len() as u64;
                    let kind = PieceKind::Held { bytes: rest, located: true };
                    self.list.insert(i + 1, Piece { start: from, kind });
                    i += 1;
                } else {
                    *located = true;
                    stats.unlocatable -= bytes.len() as u64;
                }
            }
            i += 1;
        }
    }

    /// Removes all pieces and parts of pieces at and beyond `at`.
    pub(super) fn truncate(&mut self, at: u64, budget: &mut HoldBudget, stats: &mut ReceiverStats) {
        self.release(at, u64::MAX, budget, stats);
        while self.list.back().is_some_and(|piece| piece.start >= at) {
            self.list.pop_back();
        }
    }

    /// Removes all pieces and frees the list.
    pub(super) fn clear(&mut self, budget: &mut HoldBudget, stats: &mut ReceiverStats) {
        self.truncate(0, budget, stats);
        self.list = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds `spans` one after another. Returns the held pieces: start, length, located.
    fn held(spans: &[(u64, usize, bool)]) -> Vec<(u64, usize, bool)> {
        let mut pieces = Pieces::blank().clone();
        let (mut budget, mut stats) = (HoldBudget::new(1 << 20), ReceiverStats::default());
        for (start, len, located) in spans {
            let bytes: Vec<u8> = (0..*len).map(|i| (*start as usize + i) as u8).collect();
            pieces.hold(*start, &bytes, *located, &mut budget, &mut stats);
        }
        assert_eq!(stats.held, spans.iter().map(|span| span.1 as u64).sum::<u64>());
        let list = pieces.list.iter().map(|piece| {
            let PieceKind::Held { bytes, located } = &piece.kind else {
                panic!("nothing was placed")
            };
            let fits = |(i, byte): (usize, &u8)| *byte == (piece.start as usize + i) as u8;
            assert!(bytes.iter().enumerate().all(fits), "each byte is in its place");
            (piece.start, bytes.len(), *located)
        });
        list.collect()
    }

    /// Adjacent pieces are joined up to a length, and only if both are located or neither is.
    #[test]
    fn adjacent_pieces_are_joined() {
        const J: usize = MAX_JOINED_LEN;
        let between = [(0, 10, false), (20, 10, false), (10, 10, false)];
        assert_eq!(held(&between), [(0, 30, false)], "joined with both neighbours");
        assert_eq!(held(&[(10, 10, true), (0, 10, true)]), [(0, 20, true)]);
        assert_eq!(held(&[(0, J - 1, true), (J as u64 - 1, 1, true)]), [(0, J, true)]);
        assert_eq!(held(&[(0, J, true), (J as u64, 1, true)]).len(), 2, "too long together");
        assert_eq!(held(&[(1, J - 1, true), (0, 1, true)]), [(0, J, true)]);
        assert_eq!(held(&[(1, J, true), (0, 1, true)]).len(), 2, "too long together");
        assert_eq!(held(&[(0, 10, true), (10, 10, false)]).len(), 2);
        assert_eq!(held(&[(10, 10, true), (0, 10, false)]).len(), 2);
        assert_eq!(held(&[(0, 10, true), (11, 10, true)]).len(), 2, "there is a gap");
    }
}
