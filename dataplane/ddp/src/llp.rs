//! The interface between DDP and its lower layers (LLPs): the eleven requirements of RFC 5041 §3 as traits.
//!
//! On receipt the LLP passes to DDP each ULPDU with its length and order key, then the key below which no ULPDU is
//! missing. It also reports the end of the stream. To send, the LLP requests the next ULPDU of at most MULPDU bytes
//! when it may send. Markers, CRCs, segments and chunks are internal to the LLP.
//!
//! ```text
//!  receive                                   send
//!  LLP --ulpdu(key, ulpdu)-----> DDP         LLP --next(mulpdu)---------------> DDP
//!  LLP --order_complete(key)---> DDP         LLP --read_pieces(token, at)-----> DDP
//!                                            LLP --reframe(token, len)--------> DDP  (retransmission)
//!                                            LLP --on_acknowledged(token, len)> DDP
//! ```

use wire::crc32c::Target;
use wire::ddp::PackedHeader;

/// A ULPDU's position in the order in which the peer's DDP submitted the ULPDUs (RFC 5041 §3 (5)).
///
/// Keys increase strictly within a stream, but not necessarily by one. MPA uses the stream offset of the FPDU's first
/// byte, SCTP the DDP-SSN.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OrderKey(pub u64);

/// A received ULPDU, split into pieces where the LLP had inserted bytes of its own (markers).
#[derive(Clone, Copy, Debug)]
pub struct Ulpdu<'a> {
    pieces: &'a [&'a [u8]],
    len: usize,
}

impl<'a> Ulpdu<'a> {
    /// Returns the ULPDU that consists of `pieces`, in this order.
    pub fn new(pieces: &'a [&'a [u8]]) -> Self {
        Ulpdu { pieces, len: pieces.iter().map(|p| p.len()).sum() }
    }

    /// Returns the length of the ULPDU, bytes (RFC 5041 §3 (7)).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the ULPDU has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes of the ULPDU into `out`. Returns the number of copied bytes, which is less than
    /// `out.len()` only if the ULPDU is shorter.
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

    /// Returns the first piece, `None` if there are no pieces.
    #[inline]
    pub(crate) fn front_piece(&self) -> Option<&'a [u8]> {
        self.pieces.first().copied()
    }

    /// Returns the first byte, 0 if the ULPDU is empty.
    #[inline]
    pub(crate) fn first_byte(&self) -> u8 {
        self.pieces.iter().find_map(|piece| piece.first().copied()).unwrap_or(0)
    }

    /// Returns the pieces without the first `skip` bytes.
    pub fn pieces_from(&self, mut skip: usize) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.pieces.iter().filter_map(move |piece| {
            let n = skip.min(piece.len());
            skip -= n;
            let rest = &piece[n..];
            (!rest.is_empty()).then_some(rest)
        })
    }
}

/// Receive half of the interface, called by the LLP.
pub trait UlpduSink {
    /// Receives one whole ULPDU whose digest the LLP has verified (RFC 5041 §3 (4), (6), (7)).
    ///
    /// Keys may arrive in any order. A key is repeated only after [`Refused`](Disposition::Refused), and no key is
    /// below the last [`order_complete`](Self::order_complete) (§3 (11)). DDP records errors: it reports an error when
    /// all earlier ULPDUs have arrived, and ignores ULPDUs at and beyond the first error.
    ///
    /// A ULPDU whose key equals the last `order_complete` is in order: it is delivered at once and leaves no
    /// record.
    #[must_use = "a refused ULPDU must be treated as never arrived"]
    fn ulpdu(&mut self, key: OrderKey, ulpdu: Ulpdu<'_>) -> Disposition;

    /// Reports that every ULPDU with a key below `before` has been handed over and not refused. `before` never
    /// decreases.
    ///
    /// On the in-order path the LLP calls this after each ULPDU with the key of the next ULPDU, which DDP then
    /// recognises as in order. With MPA this key is the stream offset after the FPDU's CRC.
    fn order_complete(&mut self, before: OrderKey);
}

/// Outcome of [`UlpduSink::ulpdu`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// The ULPDU is accepted, and this number of payload bytes is placed.
    Placed(usize),
    /// Not placed: the ULPDU is at or beyond an error, or is itself in error. The LLP counts it as received.
    Ignored,
    /// A bound is reached (records of segments beyond a gap, or bytes of untagged buffers): nothing was placed or
    /// recorded. The LLP treats the ULPDU as never arrived: until a retransmission is accepted, the LLP neither
    /// acknowledges the ULPDU's bytes nor calls [`order_complete`](UlpduSink::order_complete) with a `before` above the
    /// ULPDU's key. The peer retransmits the ULPDU, and the LLP hands it over again. A refusal slows the peer and is
    /// not an error (RFC 5041 §7.1, note at (2): recovery by LLP means).
    Refused,
}

/// Limit, in bytes, on the copies of sent bytes that one flow keeps because their sources may change. Each sending call
/// has its own `KeepLimit`, which also records whether the limit prevented a send.
#[derive(Clone, Copy, Debug)]
pub struct KeepLimit {
    limit: u64,
    refused: bool,
}

impl KeepLimit {
    /// No limit, for a call that sends nothing.
    pub const NONE: KeepLimit = KeepLimit::new(u64::MAX);

    /// Returns a limit of `limit` bytes per flow.
    pub const fn new(limit: u64) -> Self {
        KeepLimit { limit, refused: false }
    }

    /// Returns the limit, in bytes.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.limit
    }

    /// Returns true if a flow that keeps `kept` bytes may keep more. A flow without kept bytes
    /// always may, so that each flow sends at least one segment per round trip.
    #[inline]
    pub const fn allows(&self, kept: u64) -> bool {
        kept < self.limit || kept == 0
    }

    /// Records that the limit prevented a send.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Returns true if the limit prevented a send.
    pub const fn has_refused(&self) -> bool {
        self.refused
    }
}

/// Identifier of one ULPDU for its source: the message, and the offset of the payload in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UlpduToken {
    /// Number of the message, assigned by the source. Wraps.
    pub message: u32,
    /// Offset of this ULPDU's payload in the payload of the message, bytes.
    pub offset: u32,
}

/// Length of the longest DDP header in bytes (untagged, RFC 5041 §4.3).
pub const MAX_DDP_HEADER: usize = 18;

/// A ULPDU to send: its header, and the token to read its payload with.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Identifies the ULPDU in later calls.
    pub token: UlpduToken,
    /// The DDP header.
    pub header: PackedHeader,
    /// Payload bytes after the header.
    pub payload_len: usize,
    /// True if `read_pieces` returns the same bytes until the message is acknowledged. Otherwise the LLP
    /// keeps a copy of the sent bytes.
    pub stable: bool,
}

impl Outgoing {
    /// Returns the length of the ULPDU, header included, bytes.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload_len
    }

    /// Returns true if the source no longer has the message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Send half of the interface, called by the LLP.
pub trait UlpduSource {
    /// Returns the length of the ULPDU that [`next`](Self::next) would return for `mulpdu`, or `None` when there is
    /// nothing to send. The LLP uses the length to decide whether another ULPDU fits into a segment.
    fn next_len(&self, mulpdu: usize) -> Option<usize>;

    /// Returns true if the ULPDU that [`next`](Self::next) would return is [stable](Outgoing::stable), or if there
    /// is nothing to send. The LLP keeps a copy of an unstable ULPDU until it is acknowledged.
    fn next_is_stable(&self) -> bool;

    /// Returns the next ULPDU, of at most `mulpdu` bytes (RFC 5041 §5.2); `None` when there is nothing to send. The
    /// ULPDU counts as sent and is never segmented again (§3 (2)). `mulpdu` is at least 128 (RFC 5044 §4.5); a lower
    /// value is raised to 128.
    fn next(&mut self, mulpdu: usize) -> Option<Outgoing>;

    /// Returns the ULPDU of an earlier [`next`](Self::next) for retransmission, or an empty ULPDU if the source no
    /// longer has the message.
    fn reframe(&self, token: UlpduToken, payload_len: usize) -> Outgoing;

    /// Copies the payload of the ULPDU `token` from offset `at` on into the pieces, one after the other. Fills every
    /// piece; the pieces must not reach beyond the end of the payload.
    fn read_pieces<'a>(
        &self,
        token: UlpduToken,
        at: usize,
        pieces: impl Iterator<Item = &'a mut [u8]>,
    );

    /// Copies the bytes `at..at + out.len()` of the payload of the ULPDU `token`.
    #[inline]
    fn read_payload(&self, token: UlpduToken, at: usize, out: &mut [u8]) {
        self.read_pieces(token, at, core::iter::once(out));
    }

    /// Copies the payload of the ULPDU `token` from offset `at` on into all of `target`, which also computes the digest
    /// of the copied bytes.
    #[inline]
    fn read_digested(&self, token: UlpduToken, at: usize, target: &mut Target<'_>) {
        target.fill(|from, out| self.read_payload(token, at + from, out));
    }

    /// Reports that the peer's LLP has acknowledged this whole ULPDU. Called once per ULPDU, in order.
    fn on_acknowledged(&mut self, token: UlpduToken, payload_len: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_limit_bounds_copies_but_allows_one_segment() {
        let mut limit = KeepLimit::new(10);
        assert_eq!([0, 9, 10, 11].map(|kept| limit.allows(kept)), [true, true, false, false]);
        assert!(KeepLimit::new(0).allows(0) && !limit.has_refused());
        limit.refuse();
        assert!(limit.has_refused());
    }
}
