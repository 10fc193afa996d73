//! Lists of pieces of registered memory: the source of one message, or the destination of one posted receive.
//!
//! ```text
//!   message    |0 ............ a|a ... b|b ................. len|
//!   spans      [  memory 0      ][  1   ][      2               ]    at most `MAX_SPANS`
//! ```

use wire::crc32c::Target;

use crate::error::PostError;
use crate::memory::RegionMemory;

/// Maximum number of spans of one list.
pub const MAX_SPANS: usize = 6;

/// A piece of a region's memory.
#[derive(Clone, Debug)]
pub struct Span<M> {
    /// Handle of the region.
    pub memory: M,
    /// Offset of the first byte from the start of the region's memory.
    pub offset: u64,
    /// Length, bytes; may be 0.
    pub len: u32,
}

/// At most [`MAX_SPANS`] spans, whose lengths add up to less than 2^32 bytes. A message fills the spans in order.
#[derive(Clone, Debug)]
pub struct SpanList<M> {
    spans: Spans<M>,
    /// Sum of the lengths, bytes.
    len: u32,
}

/// Storage of the spans. The usual list of one span needs no allocation.
#[derive(Clone, Debug)]
enum Spans<M> {
    One(Span<M>),
    Many(Box<[Span<M>]>),
}

impl<M> SpanList<M> {
    /// Returns the list of these spans.
    ///
    /// # Errors
    /// [`PostError::TooManySpans`] for more than [`MAX_SPANS`], [`PostError::TooLong`] for 2^32 or more bytes.
    pub fn new(spans: impl IntoIterator<Item = Span<M>>) -> Result<Self, PostError> {
        let mut spans = spans.into_iter().fuse();
        let Some(first) = spans.next() else { return Ok(SpanList::default()) };
        let mut len = u64::from(first.len);
        let spans = match spans.next() {
            None => Spans::One(first),
            Some(second) => {
                let mut many = Vec::with_capacity(MAX_SPANS);
                many.push(first);
                for span in core::iter::once(second).chain(spans) {
                    if many.len() == MAX_SPANS {
                        return Err(PostError::TooManySpans);
                    }
                    len += u64::from(span.len);
                    many.push(span);
                }
                Spans::Many(many.into())
            }
        };
        // RFC 5041 §5.2: a message has less than 2^32 bytes.
        let len = u32::try_from(len).map_err(|_| PostError::TooLong(len))?;
        Ok(SpanList { spans, len })
    }

    /// Returns the sum of the lengths, bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the sum of the lengths is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the spans in the order of the message's bytes.
    #[inline]
    pub fn as_slice(&self) -> &[Span<M>] {
        match &self.spans {
            Spans::One(span) => core::slice::from_ref(span),
            Spans::Many(spans) => spans,
        }
    }

    /// Converts the handle of each span with `handle`.
    pub(crate) fn map<N>(self, mut handle: impl FnMut(M) -> N) -> SpanList<N> {
        let mut convert =
            |Span { memory, offset, len }| Span { memory: handle(memory), offset, len };
        let spans = match self.spans {
            Spans::One(span) => Spans::One(convert(span)),
            Spans::Many(spans) => Spans::Many(spans.into_iter().map(convert).collect()),
        };
        SpanList { spans, len: self.len }
    }

    /// Returns the span that contains the byte at `at` of the message, and the byte's offset in the span.
    #[inline]
    fn locate(&self, at: u64) -> Option<(&Span<M>, u64)> {
        let mut at = at;
        for span in self.as_slice() {
            match at.checked_sub(u64::from(span.len)) {
                None => return Some((span, at)),
                Some(rest) => at = rest,
            }
        }
        None
    }

    /// Returns the span that contains all of `at..at + len`, and the offset of `at` in the span's region.
    #[inline]
    fn locate_whole(&self, at: u64, len: usize) -> Option<(&Span<M>, u64)> {
        let (span, from) = self.locate(at)?;
        (len as u64 <= u64::from(span.len) - from).then_some((span, span.offset + from))
    }
}

impl<M> Default for SpanList<M> {
    /// Returns the list without spans.
    fn default() -> Self {
        SpanList { spans: Spans::Many(Box::default()), len: 0 }
    }
}

impl<M> From<Span<M>> for SpanList<M> {
    fn from(span: Span<M>) -> Self {
        SpanList { len: span.len, spans: Spans::One(span) }
    }
}

impl<M: RegionMemory> SpanList<M> {
    /// Checks that all spans are in their regions.
    pub(crate) fn check_bounds(&self) -> Result<(), PostError> {
        check_bounds(self.as_slice().iter().map(|span| (&span.memory, span.offset, span.len)))
    }

    /// Returns true if the bytes of all spans remain unchanged while a message from them is unacknowledged.
    pub(crate) fn is_stable(&self) -> bool {
        self.as_slice().iter().all(|span| span.memory.is_stable())
    }

    /// Returns true if a span is in this region.
    pub(crate) fn uses_memory(&self, memory: &M) -> bool {
        self.as_slice().iter().any(|span| span.memory.is_same(memory))
    }

    /// Fills `out` with the bytes of the message from `at` on. Bytes beyond the end of the list read as 0.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        let (mut at, mut out) = (at, out);
        while !out.is_empty() {
            let Some((span, from)) = self.locate(at) else { return out.fill(0) };
            let n = out.len().min((u64::from(span.len) - from) as usize);
            let (head, rest) = out.split_at_mut(n);
            span.memory.read(span.offset + from, head);
            (at, out) = (at + n as u64, rest);
        }
    }

    /// Fills `target` as [`read`](Self::read) fills a slice. `target` digests the bytes as copied.
    pub(crate) fn read_digested(&self, at: u64, target: &mut Target<'_>) {
        match self.locate_whole(at, target.source_len()) {
            Some((span, offset)) => span.memory.read_digested(offset, target),
            None => target.fill(|from, out| self.read(at + from as u64, out)),
        }
    }

    /// Copies `pieces`, whose total length is `len`, to the bytes of the message from `at` on. Bytes beyond the end of
    /// the list are dropped.
    pub(crate) fn write_pieces<'a>(
        &self,
        at: u64,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        if let Some((span, offset)) = self.locate_whole(at, len) {
            return span.memory.write_pieces(offset, len, pieces);
        }
        let mut at = at;
        for piece in pieces {
            self.write_across(at, piece);
            at += piece.len() as u64;
        }
    }

    /// Copies `bytes` as [`write_pieces`](Self::write_pieces) does.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        match self.locate_whole(at, bytes.len()) {
            Some((span, offset)) => span.memory.write(offset, bytes),
            None => self.write_across(at, bytes),
        }
    }

    fn write_across(&self, at: u64, bytes: &[u8]) {
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let Some((span, from)) = self.locate(at) else { return };
            let n = bytes.len().min((u64::from(span.len) - from) as usize);
            let (head, rest) = bytes.split_at(n);
            span.memory.write(span.offset + from, head);
            (at, bytes) = (at + n as u64, rest);
        }
    }
}

/// Checks that each piece (region, offset, length) is within its region.
pub(crate) fn check_bounds<'a, M: RegionMemory>(
    pieces: impl IntoIterator<Item = (&'a M, u64, u32)>,
) -> Result<(), PostError> {
    for (memory, offset, piece) in pieces {
        let (end, len) = (offset.saturating_add(piece.into()), memory.len());
        if end > len {
            return Err(PostError::OutOfBounds { offset, end, len });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
