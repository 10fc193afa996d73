//! The seam between TCP and MPA. Both count bytes of the stream from the first one after the SYN
//! (offset 0) in 64 bits; sequence numbers stay inside TCP.

use base::Instant;
use wire::crc32c::Sum;

/// What became of a span of received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of it: TCP counts it as received and may acknowledge or SACK it.
    All,
    /// Only these stream offsets, a part of the span and perhaps none of it. The rest is as if it had
    /// never arrived: it is neither acknowledged nor SACKed, and the peer sends it again.
    Only(core::ops::Range<u64>),
}

/// Receive side: what TCP calls with every byte it has not handed up before.
pub trait SpanSink {
    /// Bytes at `offset..offset + bytes.len()` of the stream, none of which was taken before.
    /// `in_order` says that everything before `offset` has been taken.
    fn span(&mut self, now: Instant, offset: u64, bytes: &[u8], in_order: bool) -> Taken;

    /// Everything before `offset` has been taken. Follows each `span` that moved this point.
    fn in_order_until(&mut self, now: Instant, offset: u64);

    /// Bytes beyond the in-order point that the upper layer can still take now; bounds the window
    /// TCP advertises. An upper layer that places everything at arrival says `u64::MAX`.
    fn room(&self) -> u64;

    /// The window, which has grown by `has` bytes, is to grow by `more`. False: it may not, for the sake of other
    /// streams.
    fn widen(&mut self, has: u64, more: u64) -> bool {
        let _ = (has, more);
        true
    }
}

/// Send side: what TCP asks when it may send.
pub trait SegmentSource {
    /// True when [`fill`](Self::fill) with ample room would give bytes.
    fn has_data(&self) -> bool;

    /// Writes the bytes of the next segment, which starts at stream offset `offset` (right after the
    /// previous one), into `out` and returns how many. `out` is what the windows allow now, at most
    /// `emss`; `emss` is the effective maximum segment size. Zero: nothing to send, or nothing that is
    /// worth sending in so little room (`in_flight`: whether an acknowledgement will come and poll
    /// again; with nothing in flight the source must use whatever room there is).
    fn fill(&mut self, offset: u64, emss: usize, in_flight: bool, out: &mut [u8]) -> usize;

    /// As [`fill`](Self::fill), for a probe of the path MTU: `out` is longer than `emss`, and what is written
    /// must do without it: if it is lost it goes again in segments of at most `emss`, cut by
    /// [`cut`](Self::cut). May be shorter than `out`; zero: there is too little to send, `fill` is asked then.
    fn fill_probe(&mut self, offset: u64, emss: usize, out: &mut [u8]) -> usize {
        let _ = (offset, emss, out);
        0
    }

    /// The Internet checksum of what the last [`fill`](Self::fill) or [`fill_probe`](Self::fill_probe) wrote, if it is
    /// known without a pass over it.
    fn text_sum(&self) -> Option<Sum> {
        None
    }

    /// How many of the bytes from `offset` on, sent before and not acknowledged, make a good segment of at
    /// most `most`; more than `most` are to be sent again. Not zero, at most `most`.
    fn cut(&self, offset: u64, most: usize) -> usize {
        let _ = offset;
        most
    }

    /// Writes again the bytes at `offset..offset + out.len()`, sent before and not acknowledged,
    /// the very same ones.
    fn refill(&mut self, offset: u64, out: &mut [u8]);

    /// The peer has cumulatively acknowledged everything before `offset`.
    fn acknowledged(&mut self, offset: u64);

    /// The effective maximum segment size has changed; 0 < `emss`.
    fn emss_changed(&mut self, emss: usize);
}

/// A batch of outgoing TCP segments, given by the owner of the packet buffers.
pub trait TxBatch {
    /// Room for one TCP segment (header, options and payload) of at most `len` bytes, or `None`
    /// when the batch is full or no buffer is left: stop and come back.
    fn segment(&mut self, len: usize) -> Option<&mut [u8]>;

    /// The segment for which room was given last is to be sent as ECN-capable, ECT(0) (RFC 3168 §5); all
    /// others are not. Called before its [`commit`](Self::commit), or not at all.
    fn ecn_capable(&mut self) {}

    /// The segment for which room was given last is the last one for now: the source has no more. Called before its
    /// [`commit`](Self::commit), or not at all.
    fn last(&mut self) {}

    /// Many streams share the port: bursts may be longer than those of a few ([`transport::pacing`]).
    fn is_shared(&self) -> bool {
        false
    }

    /// Most bytes of what was sent that the flow may keep copies of, because their source may change before they
    /// are acknowledged. What would exceed it is not sent for the first time now; with nothing kept, one segment
    /// always is.
    fn keep_limit(&self) -> u64 {
        u64::MAX
    }

    /// Something was not sent because of [`keep_limit`](Self::keep_limit).
    fn keep_limited(&mut self) {}

    /// The first `len` bytes of the room given last are a complete segment; its checksum field is
    /// zero and the owner of the batch fills it in. Never called without a preceding `segment`; a
    /// `segment` not committed is dropped.
    fn commit(&mut self, len: usize);

    /// True if [`commit_summed`](Self::commit_summed) saves a pass over the segment.
    fn wants_sum(&self) -> bool {
        false
    }

    /// [`commit`](Self::commit) of a segment of which the Internet checksum without the pseudo-header is `sum`, if it is
    /// known.
    fn commit_summed(&mut self, len: usize, sum: Option<Sum>) {
        let _ = sum;
        self.commit(len);
    }
}
