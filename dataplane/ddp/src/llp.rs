//! The seam between DDP and its lower layers (LLPs): RFC 5041 §3's eleven requirements as traits.
//!
//! What crosses upward is a ULPDU, its length, its order key, the point up to which the order is
//! complete, and the stream's end. What crosses downward is asked for by the LLP: it pulls the next
//! ULPDU of at most MULPDU bytes when it may send. Markers, CRCs, segments and chunks never cross.
//!
//! ```text
//!  receive                                   send
//!  LLP --ulpdu(key, ulpdu)-----> DDP         LLP --next(mulpdu)---------------> DDP
//!  LLP --order_complete(key)---> DDP         LLP --read_pieces(token, at)-----> DDP
//!                                            LLP --again(token, len)----------> DDP  (retransmission)
//!                                            LLP --acknowledged(token, len)---> DDP
//! ```

use wire::crc32c::Target;
use wire::ddp::PackedHeader;

/// A ULPDU's place in the order in which the peer's DDP submitted it (RFC 5041 §3 (5)).
///
/// Strictly increasing within a stream, not dense. MPA uses the stream offset of the FPDU's first
/// byte, SCTP the DDP-SSN.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OrderKey(pub u64);

/// One received ULPDU as the pieces between which the LLP had bytes of its own (markers).
#[derive(Clone, Copy, Debug)]
pub struct Ulpdu<'a> {
    pieces: &'a [&'a [u8]],
    len: usize,
}

impl<'a> Ulpdu<'a> {
    /// The ULPDU whose bytes are those of `pieces`, one after the other.
    pub fn new(pieces: &'a [&'a [u8]]) -> Self {
        Ulpdu { pieces, len: pieces.iter().map(|p| p.len()).sum() }
    }

    /// Bytes in the ULPDU (RFC 5041 §3 (7)).
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the ULPDU has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes into `out` and returns how many there were, at most `out.len()`.
    #[inline]
    pub fn copy_prefix(&self, out: &mut [u8]) -> usize {
        if let Some(first) = self.pieces.first().and_then(|first| first.get(..out.len())) {
            out.copy_from_slice(first);
            return out.len();
        }
        let mut done = 0;
        for piece in self.pieces {
            let n = piece.len().min(out.len() - done);
            out[done..done + n].copy_from_slice(&piece[..n]);
            done += n;
            if done == out.len() {
                break;
            }
        }
        done
    }

    /// The first piece.
    #[inline]
    pub(crate) fn front(&self) -> Option<&'a [u8]> {
        self.pieces.first().copied()
    }

    /// The first byte, 0 if there is none.
    #[inline]
    pub(crate) fn first(&self) -> u8 {
        self.pieces.iter().find_map(|piece| piece.first().copied()).unwrap_or(0)
    }

    /// The pieces without the first `skip` bytes.
    pub fn pieces_from(&self, mut skip: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.pieces.iter().filter_map(move |piece| {
            let n = skip.min(piece.len());
            skip -= n;
            let rest = &piece[n..];
            (!rest.is_empty()).then_some(rest)
        })
    }
}

/// Receive half of the seam: what an LLP calls.
pub trait UlpduSink {
    /// One whole ULPDU whose digest the LLP has verified (RFC 5041 §3 (4), (6), (7)).
    ///
    /// Keys may come in any order; the same key never comes twice (unless it was
    /// [`Refused`](Disposition::Refused)), and none below the last
    /// [`order_complete`](Self::order_complete) comes at all (§3 (11)). Errors are DDP's to remember:
    /// it reports them when the order reaches them, and ignores ULPDUs at and beyond the first one.
    ///
    /// A key equal to the last `order_complete` is known to be in order: it is delivered at once and
    /// leaves no record.
    #[must_use = "a refused ULPDU must be treated as never arrived"]
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition;

    /// Every ULPDU with a key below `before` has been handed over and not refused. Never goes
    /// backwards.
    ///
    /// On the in-order path call it after each ULPDU with the key that the next one will have (for
    /// MPA: the stream offset after the FPDU's CRC), so that the next one is known to be in order.
    fn order_complete(&mut self, before: OrderKey);
}

/// What became of one ULPDU at arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Its payload bytes, this many, are in their place.
    Placed(usize),
    /// Not placed: it is at or beyond an error, or is itself wrong. The LLP counts it as received.
    Ignored,
    /// A bound is reached (records of segments beyond a gap, or bytes of untagged buffers): nothing
    /// was placed or remembered. The LLP treats the ULPDU as never arrived: it neither acknowledges
    /// its bytes nor lets `order_complete` pass its key, the peer sends it again, and it is handed
    /// over again. That slows the peer and is no error (RFC 5041 §7.1, note at (2): recovery by LLP
    /// means).
    Refused,
}

/// How many bytes of what it has sent a flow may keep copies of, because their source may change, for one call
/// that sends.
#[derive(Clone, Copy, Debug)]
pub struct KeepLimit {
    limit: u64,
    refused: bool,
}

impl KeepLimit {
    /// For a call that sends nothing.
    pub const NONE: KeepLimit = KeepLimit::new(u64::MAX);

    /// At most `limit` bytes.
    pub const fn new(limit: u64) -> Self {
        KeepLimit { limit, refused: false }
    }

    /// The limit, in bytes.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.limit
    }

    /// True when a flow that keeps `kept` bytes may keep more. With nothing kept it may, so that each flow moves
    /// on, by one segment a round trip at least.
    #[inline]
    pub const fn allows(&self, kept: u64) -> bool {
        kept < self.limit || kept == 0
    }

    /// Something is not sent because of it.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether something was not sent because of it.
    pub const fn has_refused(&self) -> bool {
        self.refused
    }
}

/// Names one ULPDU to the source it came from: which message, and where in it the payload starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UlpduToken {
    /// The message, numbered by the source; wraps.
    pub message: u32,
    /// Bytes of the message's payload before this ULPDU's.
    pub offset: u32,
}

/// Most bytes that a DDP header takes (untagged, RFC 5041 §4.3).
pub const MAX_DDP_HEADER: usize = 18;

/// A ULPDU to send: its header, and how to get its payload.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// What names it in the calls that follow.
    pub token: UlpduToken,
    /// The DDP header.
    pub header: PackedHeader,
    /// Payload bytes after the header.
    pub payload_len: usize,
    /// True when `read_pieces` gives the same bytes until the message is acknowledged; if false, the
    /// LLP keeps what it has sent.
    pub stable: bool,
}

impl Outgoing {
    /// Bytes of the ULPDU.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload_len
    }

    /// True when there is nothing in it; does not happen, a ULPDU has a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Send half of the seam: what an LLP asks.
pub trait UlpduSource {
    /// Length of the ULPDU that [`next`](Self::next) would return for `mulpdu`, or `None` when there
    /// is nothing to send. Lets the LLP decide whether one more fits into a segment.
    fn next_len(&self, mulpdu: usize) -> Option<usize>;

    /// Whether the ULPDU that [`next`](Self::next) would return is [stable](Outgoing::stable): of one that is not,
    /// the LLP keeps a copy until it is acknowledged. True when there is nothing to send.
    fn next_is_stable(&self) -> bool;

    /// Takes the next ULPDU, of at most `mulpdu` bytes (RFC 5041 §5.1). It will be sent, and is never
    /// segmented again (§3 (2)). `mulpdu` is at least 128 (RFC 5044 §4.5); less is taken as 128.
    fn next(&mut self, mulpdu: usize) -> Option<Outgoing>;

    /// The ULPDU of an earlier [`next`](Self::next) again, to send it once more.
    fn again(&self, token: UlpduToken, payload_len: usize) -> Outgoing;

    /// Copies that ULPDU's payload from `at` on into the pieces, one after the other. Takes every piece; together
    /// they end with the payload or before.
    fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    );

    /// Copies the bytes `at..at + out.len()` of that ULPDU's payload.
    #[inline]
    fn read_payload(&self, token: UlpduToken, at: usize, out: &mut [u8]) {
        self.read_pieces(token, at, core::iter::once(out));
    }

    /// Copies that ULPDU's payload from `at` on into all of `target`, which takes the bytes as they were copied.
    #[inline]
    fn read_digested(&self, token: UlpduToken, at: usize, target: &mut Target<'_>) {
        target.fill(|from, out| self.read_payload(token, at + from, out));
    }

    /// The peer's LLP has acknowledged this ULPDU whole. Called once per ULPDU, in order.
    fn acknowledged(&mut self, token: UlpduToken, payload_len: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_keeps_less_than_the_limit_and_one_segment_always() {
        let mut limit = KeepLimit::new(10);
        assert_eq!([0, 9, 10, 11].map(|kept| limit.allows(kept)), [true, true, false, false]);
        assert!(KeepLimit::new(0).allows(0) && !limit.has_refused());
        limit.refuse();
        assert!(limit.has_refused());
    }
}
