//! Interface between TCP and MPA. Both sides use stream offsets: 64-bit byte counts, 0 for the first byte after the
//! SYN. Only TCP uses sequence numbers.
//!
//! TCP passes received bytes to a [`SpanSink`], requests payload from a [`SegmentSource`], and writes segments into the
//! packet buffers of a [`TxBatch`].

use base::Instant;
use wire::crc32c::Sum;

/// Part of a received span that the upper layer has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanOutcome {
    /// The whole span. TCP counts it as received and may acknowledge or SACK it.
    All,
    /// The bytes at these stream offsets: a part of the span, possibly empty. TCP treats the other bytes as never
    /// received: TCP neither acknowledges nor SACKs them, and the peer retransmits them.
    Part(core::ops::Range<u64>),
}

/// Receive side of the upper layer. TCP passes a byte again only if the upper layer refused the byte and the peer has
/// retransmitted it.
pub trait SpanSink {
    /// Accepts or refuses the bytes at stream offsets `offset..offset + bytes.len()`, none of which was accepted
    /// before. `in_order` is true if everything before `offset` has been accepted.
    fn receive_span(
        &mut self,
        now: Instant,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
    ) -> SpanOutcome;

    /// Reports that everything before `offset` has been accepted. TCP calls this method after each `receive_span` that
    /// advanced this offset.
    fn advance_in_order(&mut self, now: Instant, offset: u64);

    /// Returns the upper layer's free space beyond the in-order offset, in bytes, which limits the advertised window.
    /// An upper layer that places all data on arrival returns `u64::MAX`.
    fn room(&self) -> u64;

    /// Requests growth of the receive window by `increase` bytes. The window has already grown by `grown` bytes.
    /// Returns false to refuse, for example to leave memory to other streams.
    fn grow_window(&mut self, grown: u64, increase: u64) -> bool {
        let _ = (grown, increase);
        true
    }
}

/// Send side of the upper layer. TCP requests payload when the windows allow a segment.
pub trait SegmentSource {
    /// Returns true if [`fill`](Self::fill) would write bytes into a buffer of full size.
    fn has_data(&self) -> bool;

    /// Writes the payload of the next segment into `out` and returns its length; 0 if there is nothing to send. The
    /// payload begins at stream offset `offset`, directly after the previous payload. `out` has the length that the
    /// windows allow now, at most `emss`, the effective MSS.
    ///
    /// With `in_flight`, an acknowledgement will arrive, after which TCP polls again. The source may then return 0 if
    /// `out` is too short for a whole FPDU. With nothing in flight, a source with data must write bytes, however
    /// short `out` is.
    fn fill(&mut self, offset: u64, emss: usize, in_flight: bool, out: &mut [u8]) -> usize;

    /// Writes the payload of a path MTU probe; `out` is longer than `emss`. The payload must not depend on the probed
    /// size: a lost probe is retransmitted in segments of at most `emss`, cut by [`cut_len`](Self::cut_len). Returns
    /// the length, which may be less than `out.len()`. If the result is 0, because there is too little data for a
    /// probe, TCP calls [`fill`](Self::fill) instead.
    fn fill_probe(&mut self, offset: u64, emss: usize, out: &mut [u8]) -> usize {
        let _ = (offset, emss, out);
        0
    }

    /// Returns the Internet checksum of the payload that [`fill`](Self::fill) or [`fill_probe`](Self::fill_probe) wrote
    /// last; `None` if it was not computed while writing.
    fn text_sum(&self) -> Option<Sum> {
        None
    }

    /// Returns the preferred length of a retransmitted segment that begins at `offset`, 1 to `most` bytes. Called when
    /// the original segment was longer than `most`.
    fn cut_len(&self, offset: u64, most: usize) -> usize {
        let _ = offset;
        most
    }

    /// Writes the bytes at `offset..offset + out.len()` again, for a retransmission. The bytes are unacknowledged and
    /// must be identical to the bytes sent before.
    fn refill(&mut self, offset: u64, out: &mut [u8]);

    /// Reports that the peer has cumulatively acknowledged everything before `offset`.
    fn on_acknowledged(&mut self, offset: u64);

    /// Reports a new effective MSS, in bytes, at least 1.
    fn on_emss_changed(&mut self, emss: usize);
}

/// A batch of outgoing TCP segments in packet buffers of the batch's owner.
pub trait TxBatch {
    /// Returns room for one TCP segment (header, options, payload) of at most `len` bytes. Returns `None` if the batch
    /// is full or no buffer is free. TCP then stops and is polled again later.
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Marks the segment of the last [`reserve_segment`](Self::reserve_segment) call as ECN-capable, ECT(0) (RFC 3168
    /// §5). Called before [`commit`](Self::commit). Unmarked segments are not ECN-capable.
    fn set_ecn_capable(&mut self) {}

    /// Marks the segment of the last [`reserve_segment`](Self::reserve_segment) call as the end of a run: the source
    /// has no more data. Called before [`commit`](Self::commit).
    fn mark_last(&mut self) {}

    /// Returns true if so many streams share the port that bursts may be longer ([`transport::pacing`]). The owner
    /// defines the number.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the maximum size, in bytes, of the flow's copies of unacknowledged data whose source may change. New
    /// data that would exceed this size is not sent now. A flow without copies may always send one segment.
    fn keep_limit(&self) -> u64 {
        u64::MAX
    }

    /// Reports that data was not sent because of [`keep_limit`](Self::keep_limit).
    fn report_keep_limited(&mut self) {}

    /// Commits the first `len` bytes of the last [`reserve_segment`](Self::reserve_segment) call as a segment. Its
    /// checksum field is zero; the owner of the batch fills it in. A segment that is not committed is dropped.
    fn commit(&mut self, len: usize);

    /// Returns true if [`commit_with_sum`](Self::commit_with_sum) saves a pass over the segment.
    fn uses_sum(&self) -> bool {
        false
    }

    /// Commits a segment as [`commit`](Self::commit) does. `sum` is the segment's Internet checksum without the
    /// pseudo-header, if known.
    fn commit_with_sum(&mut self, len: usize, sum: Option<Sum>) {
        let _ = sum;
        self.commit(len);
    }
}
