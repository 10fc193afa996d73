//! The seam between TCP and MPA. Both sides use stream offsets: 64-bit byte counts from the first byte after
//! the SYN (offset 0). Sequence numbers stay inside TCP.

use base::Instant;
use wire::crc32c::Sum;

/// The part of a received span that the upper layer has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanOutcome {
    /// The whole span. TCP counts it as received and may acknowledge or SACK it.
    All,
    /// Only these stream offsets, a part of the span, possibly empty. TCP treats the rest as never received:
    /// it neither acknowledges nor SACKs it, and the peer retransmits it.
    Part(core::ops::Range<u64>),
}

/// Receive side: TCP calls it with every byte that it has not handed up before.
pub trait SpanSink {
    /// Hands up the bytes at stream offsets `offset..offset + bytes.len()`, none of which was taken before.
    /// `in_order`: everything before `offset` has been taken.
    fn receive_span(
        &mut self,
        now: Instant,
        offset: u64,
        bytes: &[u8],
        in_order: bool,
    ) -> SpanOutcome;

    /// Reports that everything before `offset` has been taken. Follows each `receive_span` that moved this point.
    fn advance_in_order(&mut self, now: Instant, offset: u64);

    /// Returns the bytes beyond the in-order point that the upper layer can still take. Bounds the window TCP
    /// advertises. An upper layer that places everything at arrival returns `u64::MAX`.
    fn room(&self) -> u64;

    /// Requests that the window, grown by `has` bytes so far, grow by `more` bytes. Returns false if it may
    /// not, for example to leave memory to other streams.
    fn grow_window(&mut self, has: u64, more: u64) -> bool {
        let _ = (has, more);
        true
    }
}

/// Send side: TCP calls it when the windows allow a segment.
pub trait SegmentSource {
    /// True if [`fill`](Self::fill) with ample room would write bytes.
    fn has_data(&self) -> bool;

    /// Writes the next segment's text, from stream offset `offset` (right after the previous one), into `out`
    /// and returns its length. `out` is the room that the windows allow now, at most `emss`, the effective
    /// maximum segment size. `in_flight`: an acknowledgement will arrive and TCP will poll again. The source
    /// may then return 0 if the room is too small for a good segment. With nothing in flight it must use any
    /// room. Otherwise 0 means that there is nothing to send.
    fn fill(&mut self, offset: u64, emss: usize, in_flight: bool, out: &mut [u8]) -> usize;

    /// Writes the text of a path MTU probe; `out` is longer than `emss`. The text must not depend on the
    /// probed size: a lost probe is retransmitted in segments of at most `emss`, cut by [`cut_len`](Self::cut).
    /// May return less than `out.len()`. Zero: too little data for a probe, so TCP calls [`fill`](Self::fill)
    /// instead.
    fn fill_probe(&mut self, offset: u64, emss: usize, out: &mut [u8]) -> usize {
        let _ = (offset, emss, out);
        0
    }

    /// Returns the Internet checksum of the text last written by [`fill`](Self::fill) or
    /// [`fill_probe`](Self::fill_probe), if it is known without another pass.
    fn text_sum(&self) -> Option<Sum> {
        None
    }

    /// Returns the length of a good retransmitted segment that begins at `offset`, 1 to `most` bytes. Called
    /// when more than `most` unacknowledged bytes are to be retransmitted.
    fn cut_len(&self, offset: u64, most: usize) -> usize {
        let _ = offset;
        most
    }

    /// Writes the bytes at `offset..offset + out.len()` again, for a retransmission. They were sent before,
    /// are not acknowledged, and must be identical.
    fn refill(&mut self, offset: u64, out: &mut [u8]);

    /// Reports that the peer has cumulatively acknowledged everything before `offset`.
    fn on_acknowledged(&mut self, offset: u64);

    /// Reports a new effective maximum segment size, in bytes; 0 < `emss`.
    fn on_emss_changed(&mut self, emss: usize);
}

/// A batch of outgoing TCP segments in packet buffers of its owner.
pub trait TxBatch {
    /// Returns room for one TCP segment (header, options and payload) of at most `len` bytes. `None`: the
    /// batch is full or no buffer is free; TCP stops and is polled again later.
    fn reserve_segment(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Marks the segment of the last [`reserve_segment`](Self::segment) call as ECN-capable, ECT(0) (RFC 3168 §5).
    /// Unmarked segments are not ECN-capable. Called before [`commit`](Self::commit).
    fn set_ecn_capable(&mut self) {}

    /// Marks the segment of the last [`reserve_segment`](Self::segment) call as the last one for now: the source has
    /// no more data. Called before [`commit`](Self::commit).
    fn mark_last(&mut self) {}

    /// True if many streams share the port. Their bursts may be longer than those of a few streams
    /// ([`transport::pacing`]).
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the most bytes of sent data that the flow may hold copies of, because their source may change
    /// before they are acknowledged. Data that would exceed it is not sent for the first time now. With no
    /// copies held, one segment is always allowed.
    fn keep_limit(&self) -> u64 {
        u64::MAX
    }

    /// Reports that data was not sent because of [`keep_limit`](Self::keep_limit).
    fn report_keep_limited(&mut self) {}

    /// Commits the first `len` bytes of the last [`reserve_segment`](Self::segment) as a complete segment. Its
    /// checksum field is zero; the owner of the batch fills it in. An uncommitted segment is dropped.
    fn commit(&mut self, len: usize);

    /// True if [`commit_with_sum`](Self::commit_summed) saves a pass over the segment.
    fn uses_sum(&self) -> bool {
        false
    }

    /// [`commit`](Self::commit) with the segment's Internet checksum without the pseudo-header, `sum`, if it
    /// is known.
    fn commit_with_sum(&mut self, len: usize, sum: Option<Sum>) {
        let _ = sum;
        self.commit(len);
    }
}
