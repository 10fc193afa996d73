//! The record of one DATA chunk in flight: 32 bytes.

use base::Instant;
use wire::sctp::{DATA_HEADER_LEN, padded};

use crate::seam::MessageRef;

/// One DATA chunk in flight. Its position on the scoreboard determines its TSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) sent_at: Instant,
    /// The source's identifier of the message.
    pub(super) tag: u64,
    pub(super) ppid: u32,
    pub(super) stream: u16,
    /// Bytes of user data.
    pub(super) len: u16,
    pub(super) marks: u8,
    /// Number of transmissions, saturating.
    pub(super) sends: u8,
}

const _: () = assert!(size_of::<Record>() == 32);

/// The chunk was the first of its packet.
pub(super) const FIRST_IN_PACKET: u8 = 1;
/// The peer reported the chunk as received in a Gap Ack Block.
pub(super) const SACKED: u8 = 1 << 1;
/// The chunk is considered lost.
pub(super) const LOST: u8 = 1 << 2;
/// The chunk was retransmitted after it was marked lost, or as a probe.
pub(super) const RETRANSMITTED: u8 = 1 << 3;
/// The chunk has the I bit, which requests an immediate SACK.
pub(super) const IMMEDIATE: u8 = 1 << 4;

impl Record {
    pub(super) fn has_mark(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Returns true if the chunk was sent once and is neither SACKed nor lost.
    #[inline]
    pub(super) fn is_sent_once(&self) -> bool {
        self.marks & (SACKED | LOST | RETRANSMITTED) == 0 && self.sends == 1
    }

    /// Returns the length of the chunk with header and padding, bytes (RFC 9260 §7.2).
    pub(super) fn chunk_len(&self) -> u64 {
        padded(DATA_HEADER_LEN + usize::from(self.len)) as u64
    }

    /// Returns the estimated bytes of the chunk in the network (RFC 6675 §4, SetPipe).
    pub(super) fn pipe_bytes(&self) -> u64 {
        if self.has_mark(SACKED) {
            return 0;
        }
        let copies = u64::from(!self.has_mark(LOST)) + u64::from(self.has_mark(RETRANSMITTED));
        copies * self.chunk_len()
    }

    /// Returns the bytes of user data that count against the peer's window (RFC 9260 §6.2.1).
    pub(super) fn outstanding_bytes(&self) -> u64 {
        if self.has_mark(SACKED) { 0 } else { u64::from(self.len) }
    }

    pub(super) fn awaits_retransmission(&self) -> bool {
        self.marks & (SACKED | LOST | RETRANSMITTED) == LOST
    }

    /// Returns true if the chunk was retransmitted and the retransmission may be in the network.
    pub(super) fn is_retransmission_in_flight(&self) -> bool {
        self.marks & (SACKED | RETRANSMITTED) == RETRANSMITTED
    }

    pub(super) fn message(&self) -> MessageRef {
        MessageRef { stream: self.stream, len: self.len, tag: self.tag }
    }
}
