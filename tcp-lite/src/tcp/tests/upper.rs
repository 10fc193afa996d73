//! An upper layer for tests, which sends and expects a byte pattern, and a batch of segments in memory.

use std::ops::Range;

use crate::seam::{SegmentSource, SpanOutcome, SpanSink, TxBatch};
use base::Instant;
use wire::crc32c::Sum;

/// Part of each span that the upper layer accepts.
#[derive(Clone, Debug, Default)]
pub(super) enum Take {
    #[default]
    All,
    /// Only bytes at these stream offsets.
    Part(Range<u64>),
}

/// Upper layer that sends `len` bytes of the pattern in records. Asserts that received data follows the pattern, and
/// that TCP obeys the contract of [`SpanSink`] and [`SegmentSource`].
#[derive(Debug)]
pub(in crate::tcp) struct Upper {
    /// Total bytes to send.
    pub(super) len: u64,
    /// Bytes passed to TCP, retransmissions not counted.
    pub(super) filled: u64,
    /// Record size in bytes, one record per segment. With zero, each segment is filled to the effective MSS.
    pub(super) record: usize,
    pub(super) acked: u64,
    pub(super) emss: usize,
    pub(super) room: u64,
    pub(super) take: Take,
    /// Bytes received in order.
    pub(in crate::tcp) in_order: u64,
    /// Accepted bytes, as sorted ranges of stream offsets.
    pub(super) taken: Vec<Range<u64>>,
    pub(super) spans: Vec<Range<u64>>,
    /// Internet checksum of the payload written last.
    pub(super) text_sum: Option<Sum>,
}

impl Default for Upper {
    fn default() -> Self {
        Upper {
            len: 0,
            filled: 0,
            record: 0,
            acked: 0,
            emss: 0,
            room: u64::MAX,
            take: Take::All,
            in_order: 0,
            taken: Vec::new(),
            spans: Vec::new(),
            text_sum: None,
        }
    }
}

impl Upper {
    /// Returns the byte of the pattern at `offset`, the same in both directions.
    pub(in crate::tcp) fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    /// Returns the spans received since the last call, as text `A:B A:B ...` of stream offsets.
    pub(super) fn take_spans(&mut self) -> String {
        let spans: Vec<_> =
            self.spans.drain(..).map(|s| format!("{}:{}", s.start, s.end)).collect();
        spans.join(" ")
    }

    fn write(offset: u64, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = Self::byte(offset + i as u64);
        }
    }

    fn mark_taken(&mut self, new: Range<u64>) {
        for old in &self.taken {
            assert!(new.end <= old.start || old.end <= new.start, "{new:?} was taken before");
        }
        let at = self.taken.partition_point(|r| r.start < new.start);
        self.taken.insert(at, new);
        let mut i = 1;
        while i < self.taken.len() {
            if self.taken[i - 1].end == self.taken[i].start {
                self.taken[i - 1].end = self.taken[i].end;
                self.taken.remove(i);
            } else {
                i += 1;
            }
        }
    }

    fn in_order_end(&self) -> u64 {
        self.taken.first().filter(|r| r.start == 0).map_or(0, |r| r.end)
    }
}

impl SpanSink for Upper {
    fn receive_span(
        &mut self,
        _: Instant,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
    ) -> SpanOutcome {
        assert!(!bytes.is_empty());
        assert_eq!(in_order, offset == self.in_order_end(), "span at {offset}");
        for (i, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, Self::byte(offset + i as u64), "byte {}", offset + i as u64);
        }
        let span = offset..offset + bytes.len() as u64;
        self.spans.push(span.clone());
        let (part, taken) = match &self.take {
            Take::All => (span, SpanOutcome::All),
            Take::Part(range) => {
                let start = range.start.clamp(span.start, span.end);
                let part = start..range.end.clamp(start, span.end);
                (part.clone(), SpanOutcome::Part(part))
            }
        };
        if !part.is_empty() {
            self.mark_taken(part);
        }
        taken
    }

    fn advance_in_order(&mut self, _: Instant, offset: u64) {
        assert!(offset > self.in_order);
        assert_eq!(offset, self.in_order_end());
        self.in_order = offset;
    }

    fn room(&self) -> u64 {
        self.room
    }
}

impl SegmentSource for Upper {
    fn has_data(&self) -> bool {
        self.filled < self.len
    }

    fn fill(&mut self, offset: u64, emss: usize, in_flight: bool, out: &mut [u8]) -> usize {
        assert_eq!(offset, self.filled);
        assert!(!out.is_empty() && out.len() <= emss);
        self.text_sum = None;
        let record = if self.record == 0 { emss } else { self.record.min(emss) };
        let want = record.min((self.len - self.filled) as usize);
        if want > out.len() && in_flight {
            return 0;
        }
        let n = want.min(out.len());
        Self::write(offset, &mut out[..n]);
        self.filled += n as u64;
        self.text_sum = Some(Sum::default().add_bytes(&out[..n]));
        n
    }

    fn text_sum(&self) -> Option<Sum> {
        self.text_sum
    }

    fn refill(&mut self, offset: u64, out: &mut [u8]) {
        assert!(self.acked <= offset && offset + out.len() as u64 <= self.filled);
        Self::write(offset, out);
    }

    fn on_acknowledged(&mut self, offset: u64) {
        assert!(self.acked <= offset && offset <= self.filled);
        self.acked = offset;
    }

    fn on_emss_changed(&mut self, emss: usize) {
        assert!(emss > 0);
        self.emss = emss;
    }
}

/// A batch of at most `limit` segments in memory.
#[derive(Debug)]
pub(in crate::tcp) struct Batch {
    pub(in crate::tcp) segments: Vec<Vec<u8>>,
    /// Indices of the ECN-capable segments.
    pub(super) capable: Vec<usize>,
    limit: usize,
    open: Option<Vec<u8>>,
}

impl Batch {
    pub(in crate::tcp) fn new(limit: usize) -> Batch {
        Batch { segments: Vec::new(), capable: Vec::new(), limit, open: None }
    }
}

impl TxBatch for Batch {
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.segments.len() >= self.limit {
            return None;
        }
        self.open = Some(vec![0xaa; len]);
        self.open.as_deref_mut()
    }

    fn set_ecn_capable(&mut self) {
        self.capable.push(self.segments.len());
    }

    fn commit_with_sum(&mut self, len: usize, sum: Option<Sum>) {
        self.commit(len);
        let bytes = self.segments.last().expect("committed");
        assert_eq!(sum.unwrap_or(Sum::default().add_bytes(bytes)), Sum::default().add_bytes(bytes));
    }

    fn commit(&mut self, len: usize) {
        let mut bytes = self.open.take().expect("segment before commit");
        bytes.truncate(len);
        assert_eq!(bytes.len(), len);
        self.segments.push(bytes);
    }
}
