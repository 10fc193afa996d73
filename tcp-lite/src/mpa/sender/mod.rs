//! Frames ULPDUs into segments and reproduces identical bytes for retransmissions (RFC 5044 §4, §4.5,
//! appendix A.1).
//!
//! ```text
//!  base               sent    end
//!  | FPDU | FPDU | FPD|U      |
//!                     ^       ^ the next FPDU begins here
//!                     | a segment ended inside the last FPDU: the FPDU is cut
//! ```
//!
//! A segment begins with an FPDU and contains whole FPDUs. An FPDU is cut only if EMSS shrank, or if the window is
//! smaller than the FPDU with nothing in flight. A ULPDU taken from the source is never returned to it.
//!
//! Each unacknowledged FPDU has a record of 16 bytes. A retransmission frames the FPDU again if the source guarantees
//! stable bytes. Otherwise, and for a cut FPDU, the sender keeps a copy.

mod frame;

use super::MAX_MULPDU;
use super::config::{Params, Revision};
use super::framing::{Framing, mulpdu};
use base::{Blank, Lazy};
use core::ops::Range;
use ddp::llp::{KeepLimit, Outgoing, UlpduSource, UlpduToken};
use frame::frame;
use std::collections::VecDeque;
use transport::retransmit_buffer::RetransmitBuffer;
use wire::crc32c::Sum;
use wire::mpa::fpdu_len;

/// Length of the shortest FPDU, in bytes.
const MIN_FPDU_LEN: usize = fpdu_len(0);

/// Counters of a [`Sender`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SenderStats {
    /// FPDUs framed for the first time.
    pub fpdus: u64,
    /// Segments with more than one FPDU.
    pub packed: u64,
    /// Segments that end inside an FPDU, or continue a cut FPDU.
    pub cut: u64,
    /// Retransmitted bytes, whether framed again or taken from a copy.
    pub retransmitted: u64,
    /// Bytes of FPDU copies kept now, because the source may change or the FPDU was cut.
    pub kept: u64,
    /// Largest value of `kept` so far.
    pub kept_max: u64,
}

/// The send half of MPA in Full Operation.
#[derive(Debug)]
pub struct Sender {
    framing: Framing,
    crc: bool,
    /// Effective MSS, in bytes. Determines MULPDU (RFC 5044 §4.5).
    emss: u16,
    /// Start of the oldest unacknowledged FPDU, as a stream offset.
    base: u64,
    /// End of the bytes written at least once, as a stream offset.
    sent: u64,
    /// End of the newest FPDU, as a stream offset. Beyond `sent` if this FPDU is cut.
    end: u64,
    unacked: Lazy<UnackedFpdus>,
    /// Number of FPDUs framed for the first time.
    fpdus: u64,
    /// Number of segments with more than one FPDU.
    packed: u64,
    /// The other counters except `kept`, allocated at the first increment.
    stats: Lazy<SenderStats>,
}

base::prefetch!(Sender: unacked);

impl Blank for SenderStats {
    fn blank() -> &'static Self {
        static BLANK: SenderStats =
            SenderStats { fpdus: 0, packed: 0, cut: 0, retransmitted: 0, kept: 0, kept_max: 0 };
        &BLANK
    }
}

/// Unacknowledged FPDUs.
#[derive(Clone, Debug)]
struct UnackedFpdus {
    records: VecDeque<Record>,
    /// Copies of FPDUs, by the stream offset of the first byte.
    kept: RetransmitBuffer,
}

base::prefetch!(UnackedFpdus: records);

impl Blank for UnackedFpdus {
    fn blank() -> &'static Self {
        static BLANK: UnackedFpdus =
            UnackedFpdus { records: VecDeque::new(), kept: RetransmitBuffer::new() };
        &BLANK
    }
}

/// Record of an unacknowledged FPDU.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Low 32 bits of the stream offset of the first byte.
    start: u32,
    /// Message and offset of the ULPDU's [`UlpduToken`].
    message: u32,
    offset: u32,
    payload_len: u16,
    header_len: u8,
    /// True if `UnackedFpdus::kept` has a copy of the FPDU.
    kept: bool,
}

const _: () = assert!(size_of::<Record>() == 16);

impl Record {
    fn token(&self) -> UlpduToken {
        UlpduToken { message: self.message, offset: self.offset }
    }

    fn ulpdu_len(&self) -> usize {
        usize::from(self.header_len) + usize::from(self.payload_len)
    }
}

impl Sender {
    /// Creates a sender for a direction whose Full Operation begins at stream offset `start`. `emss`: effective MSS, in
    /// bytes.
    pub fn new(params: &Params, start: u64, emss: usize) -> Self {
        let framing = Framing::new(start, params.markers_tx);
        Sender {
            framing: match params.revision {
                Revision::Draft => framing.with_draft_pointers(),
                Revision::Zero | Revision::One | Revision::Two => framing,
            },
            crc: params.crc,
            emss: emss as u16,
            base: start,
            sent: start,
            end: start,
            unacked: Lazy::new(),
            fpdus: 0,
            packed: 0,
            stats: Lazy::new(),
        }
    }

    /// Returns the current MULPDU, 128 to 64,768 bytes.
    pub fn mulpdu(&self) -> usize {
        mulpdu(self.emss(), self.framing.has_markers())
    }

    /// Sets the effective MSS, in bytes.
    pub fn set_emss(&mut self, emss: usize) {
        self.emss = emss as u16;
    }

    /// Returns true if [`fill`](Self::fill) with enough room would write bytes.
    pub fn has_data(&self, source: &impl UlpduSource) -> bool {
        // Any MULPDU gives the same answer; a constant needs no computation per segment.
        self.is_cut() || source.next_len(MAX_MULPDU).is_some()
    }

    /// Returns true if the newest FPDU was sent in part. Its remainder precedes new FPDUs.
    pub fn is_cut(&self) -> bool {
        self.sent < self.end
    }

    /// Returns true if all sent FPDUs are acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.unacked.records.is_empty()
    }

    /// Returns the counters.
    pub fn stats(&self) -> SenderStats {
        let (fpdus, packed, kept) = (self.fpdus, self.packed, self.unacked.kept.bytes());
        SenderStats { fpdus, packed, kept, ..*self.stats }
    }

    /// Returns the memory of the kept FPDU copies, in bytes.
    #[inline]
    pub fn kept_memory(&self) -> u64 {
        self.unacked.kept.memory_use().memory
    }

    /// Sets the memory limit of FPDU copies, which the last copy may exceed. Returns true if another copy is allowed.
    #[inline]
    pub fn may_keep(&mut self, limit: KeepLimit) -> bool {
        let Some(UnackedFpdus { kept, .. }) = self.unacked.get_mut() else { return true };
        kept.set_limit(limit.bytes());
        limit.allows(kept.memory_use().used)
    }

    /// Frees the buffers if all sent FPDUs are acknowledged.
    pub fn shrink(&mut self) {
        if self.is_acknowledged() {
            self.unacked.release();
        }
    }

    fn emss(&self) -> usize {
        self.emss.into()
    }

    /// Writes the payload of the next segment into `out` and returns its length: see
    /// [`SegmentSource::fill`](crate::seam::SegmentSource::fill). Adds these bytes to `sum`, or sets `sum` to `None` if
    /// the addition would require a separate pass.
    pub fn fill(
        &mut self,
        source: &mut impl UlpduSource,
        offset: u64,
        in_flight: bool,
        out: &mut [u8],
        sum: &mut Option<Sum>,
    ) -> usize {
        debug_assert_eq!(offset, self.sent);
        if self.is_cut() {
            // The segment ends with the cut FPDU, so the next segment begins with an FPDU again.
            *sum = None;
            return self.fill_cut(source, out);
        }
        let mut done = 0;
        let mut fpdus = 0;
        let mulpdu = self.mulpdu();
        while let Some(len) = source.next_len(mulpdu) {
            let room = out.len() - done;
            if self.framing.fpdu_total_len(self.end, len) <= room {
                done += self.fill_whole(source, mulpdu, &mut out[done..], sum);
                fpdus += 1;
                if out.len() - done < MIN_FPDU_LEN {
                    break;
                }
                continue;
            }
            // RFC 5044 appendix A.1: a segment contains whole FPDUs. An FPDU that does not fit waits for the next
            // segment or, with data in flight, for a larger window.
            if done > 0 || (in_flight && self.fits_emss(len)) {
                break;
            }
            *sum = None;
            return self.fill_small(source, out);
        }
        self.packed += u64::from(fpdus > 1);
        done
    }

    /// Writes the payload of a path MTU probe; `out` is longer than EMSS: see
    /// [`SegmentSource::fill_probe`](crate::seam::SegmentSource::fill_probe). Each FPDU fits a segment of EMSS bytes. A
    /// lost probe can thus be retransmitted in segments of whole FPDUs.
    pub fn fill_probe(
        &mut self,
        source: &mut impl UlpduSource,
        offset: u64,
        out: &mut [u8],
    ) -> usize {
        debug_assert_eq!(offset, self.sent);
        if self.is_cut() || !self.fits_emss(self.mulpdu()) {
            return 0;
        }
        let mut done = 0;
        let mut fpdus = 0;
        for left in (1..=out.len().div_ceil(self.emss())).rev() {
            // Divides the probe evenly, so that no FPDU is unnecessarily small.
            let share = ((out.len() - done) / left).min(self.emss());
            let mulpdu = self.largest_in(share).min(self.mulpdu());
            let fits = |len| self.framing.fpdu_total_len(self.end, len) <= share;
            if !source.next_len(mulpdu).is_some_and(fits) {
                break;
            }
            done += self.fill_whole(source, mulpdu, &mut out[done..], &mut None);
            fpdus += 1;
        }
        self.packed += u64::from(fpdus > 1);
        done
    }

    /// Returns the length of a shorter retransmitted segment: see
    /// [`SegmentSource::cut_len`](crate::seam::SegmentSource::cut_len). The segment ends after the last whole FPDU that
    /// fits. An FPDU that does not fit is cut, and its remainder is sent in a separate segment. The segment after the
    /// remainder thus begins with an FPDU again (RFC 5044 §4.5, appendix A.1).
    pub fn cut(&self, offset: u64, most: usize) -> usize {
        let limit = offset + most as u64;
        let first = self.record_at(offset);
        let mut end = self.fpdu_span(first).end;
        if end > limit {
            return most;
        }
        if self.fpdu_span(first).start == offset {
            let more = first + 1..self.unacked.records.len();
            let fit = more.map(|i| self.fpdu_span(i).end).take_while(|&end| end <= limit);
            end = fit.last().unwrap_or(end);
        }
        (end - offset) as usize
    }

    /// Writes bytes again that were sent before: see [`SegmentSource::refill`](crate::seam::SegmentSource::refill).
    pub fn refill(&mut self, source: &impl UlpduSource, offset: u64, out: &mut [u8]) {
        self.stats.retransmitted += out.len() as u64;
        let end = offset + out.len() as u64;
        let mut at = offset;
        let mut i = self.record_at(offset);
        while at < end {
            let span = self.fpdu_span(i);
            let part = at..span.end.min(end);
            let out = &mut out[(part.start - offset) as usize..(part.end - offset) as usize];
            if !self.unacked.records[i].kept && part == span {
                let record = self.unacked.records[i];
                let again = source.reframe(record.token(), usize::from(record.payload_len));
                frame(self.framing, self.crc, span.start, &again, source, out, &mut None);
            } else {
                self.keep_copy(source, i);
                self.copy_kept(span.start, part.clone(), out);
            }
            at = part.end;
            i += 1;
        }
    }

    /// Removes the records of FPDUs that end at or before `offset`, which the peer has acknowledged.
    pub fn on_acknowledged(&mut self, source: &mut impl UlpduSource, offset: u64) {
        let Some(UnackedFpdus { records, kept }) = self.unacked.get_mut() else { return };
        while let Some(record) = records.front().copied() {
            let end = self.framing.fpdu_end(self.base, record.ulpdu_len());
            if end > offset {
                break;
            }
            if record.kept {
                kept.free_first();
            }
            self.base = end;
            records.pop_front();
            source.on_acknowledged(record.token(), usize::from(record.payload_len));
        }
        if records.is_empty() && records.capacity() > 64 {
            self.unacked.release();
        }
    }

    /// Frames the next ULPDU, whose FPDU fits `out`. Returns the FPDU's length.
    #[inline]
    fn fill_whole(
        &mut self,
        source: &mut impl UlpduSource,
        mulpdu: usize,
        out: &mut [u8],
        sum: &mut Option<Sum>,
    ) -> usize {
        let Some((start, outgoing)) = self.take_ulpdu(source, mulpdu) else { return 0 };
        let total = (self.end - start) as usize;
        let out = &mut out[..total];
        frame(self.framing, self.crc, start, &outgoing, source, out, sum);
        if !outgoing.stable {
            self.unacked.kept.keep(start, out);
            self.update_kept_max();
        }
        self.sent = self.end;
        total
    }

    /// Frames a smaller ULPDU whose FPDU fits `out` or, if there is none, writes a part of the next
    /// FPDU.
    fn fill_small(&mut self, source: &mut impl UlpduSource, out: &mut [u8]) -> usize {
        let full = self.mulpdu();
        // RFC 5044 §4.5: MULPDU is at least 128 bytes.
        let small = mulpdu(out.len(), self.framing.has_markers()).min(full);
        if source
            .next_len(small)
            .is_some_and(|len| self.framing.fpdu_total_len(self.end, len) <= out.len())
        {
            return self.fill_whole(source, small, out, &mut None);
        }
        if out.is_empty() {
            return 0;
        }
        let Some((start, outgoing)) = self.take_ulpdu(source, full) else { return 0 };
        self.keep_framed(source, start..self.end, &outgoing);
        self.fill_cut(source, out)
    }

    /// Writes the next part of the cut FPDU.
    fn fill_cut(&mut self, source: &impl UlpduSource, out: &mut [u8]) -> usize {
        let i = self.unacked.records.len() - 1;
        let span = self.fpdu_span(i);
        let part = self.sent..self.end.min(self.sent + out.len() as u64);
        let n = (part.end - part.start) as usize;
        self.keep_copy(source, i);
        self.copy_kept(span.start, part.clone(), &mut out[..n]);
        self.sent = part.end;
        if n > 0 {
            self.stats.cut += 1;
        }
        n
    }

    /// Returns true if an FPDU with the next ULPDU, of `ulpdu_len` bytes, fits a segment of EMSS bytes. The FPDU can
    /// then be sent whole once the window is larger.
    fn fits_emss(&self, ulpdu_len: usize) -> bool {
        self.framing.fpdu_total_len(self.end, ulpdu_len) <= self.emss()
    }

    /// Returns the largest ULPDU whose FPDU, beginning at `end`, takes at most `room` bytes; at least 128 bytes.
    fn largest_in(&self, room: usize) -> usize {
        let mut len = mulpdu(room, self.framing.has_markers());
        // MULPDU assumes the maximum number of markers. An FPDU at this position may have fewer.
        while len + 4 <= MAX_MULPDU && self.framing.fpdu_total_len(self.end, len + 4) <= room {
            len += 4;
        }
        len
    }

    /// Takes the next ULPDU and adds its record. `end` moves to the end of its FPDU. The caller keeps a copy if the
    /// ULPDU is not stable.
    #[inline(always)]
    fn take_ulpdu(
        &mut self,
        source: &mut impl UlpduSource,
        mulpdu: usize,
    ) -> Option<(u64, Outgoing)> {
        let outgoing = source.next(mulpdu)?;
        let start = self.end;
        self.unacked.records.push_back(Record {
            start: start as u32,
            message: outgoing.token.message,
            offset: outgoing.token.offset,
            payload_len: outgoing.payload_len as u16,
            header_len: outgoing.header.len() as u8,
            kept: !outgoing.stable,
        });
        self.end = self.framing.fpdu_end(start, outgoing.len());
        self.fpdus += 1;
        Some((start, outgoing))
    }

    /// Returns the index of the record whose FPDU contains `offset`.
    fn record_at(&self, offset: u64) -> usize {
        let distance = (offset - self.base) as u32;
        let base = self.base as u32;
        self.unacked.records.partition_point(|record| record.start.wrapping_sub(base) <= distance)
            - 1
    }

    /// Returns the stream offsets of the FPDU of record `i`.
    fn fpdu_span(&self, i: usize) -> Range<u64> {
        let record = &self.unacked.records[i];
        let start = self.base + u64::from(record.start.wrapping_sub(self.base as u32));
        start..self.framing.fpdu_end(start, record.ulpdu_len())
    }

    /// Keeps a copy of the FPDU of record `i`, unless a copy exists. Frames the FPDU again to obtain identical bytes.
    fn keep_copy(&mut self, source: &impl UlpduSource, i: usize) {
        if self.unacked.records[i].kept {
            return;
        }
        let (record, span) = (self.unacked.records[i], self.fpdu_span(i));
        let again = source.reframe(record.token(), usize::from(record.payload_len));
        self.keep_framed(source, span, &again);
    }

    /// Keeps a copy of the FPDU of `outgoing`, at stream offsets `span`, without sending it.
    fn keep_framed(&mut self, source: &impl UlpduSource, span: Range<u64>, outgoing: &Outgoing) {
        let (framing, crc) = (self.framing, self.crc);
        let len = (span.end - span.start) as usize;
        self.unacked.kept.keep_with(span.start, len, |out| {
            frame(framing, crc, span.start, outgoing, source, out, &mut None);
        });
        self.update_kept_max();
        let record = self.record_at(span.start);
        self.unacked.records[record].kept = true;
    }

    #[inline]
    fn update_kept_max(&mut self) {
        let kept = self.unacked.kept.bytes();
        if kept > self.stats.kept_max {
            self.stats.kept_max = kept;
        }
    }

    fn copy_kept(&self, start: u64, part: Range<u64>, out: &mut [u8]) {
        let from = (part.start - start) as usize;
        let bytes = self.unacked.kept.get(start).expect("an FPDU that is kept");
        out.copy_from_slice(&bytes[from..from + out.len()]);
    }
}

#[cfg(test)]
mod tests;
