//! Packets of one chunk: the last packet of an association, and replies whose verification tag is not the
//! association's, or that belong to no association.
//!
//! Every reply fits a packet: error causes that repeat the peer's bytes are truncated to [`MAX_ECHO`], and the report
//! in an INIT ACK is bounded. A packet is retried if the batch has no room for it. As a safeguard, a chunk that would
//! fit no packet is dropped and not retried ([`SendOutcome::TooLong`]).

use wire::sctp::{
    CHUNK_HEADER_LEN, COMMON_HEADER_LEN, Cause, PacketBuilder, PacketFull, Tag, chunk_type,
};

use super::config::MIN_PACKET;
use super::secrets::Ends;
use crate::seam::TxBatch;

/// Longest packet of a reply, bytes.
pub(super) const ANSWER_LEN: usize = 512;

/// Maximum bytes of a peer's packet that an error cause repeats, a multiple of four. RFC 9260 §3.3.10.5 to §3.3.10.8
/// require all bytes. But the packet must not exceed the path MTU (§6.10), and a reply should be shorter than the
/// packet that elicits it.
pub(super) const MAX_ECHO: usize = 128;

/// Bytes of an error cause besides the quoted bytes: its header and four fixed bytes.
const CAUSE_OVERHEAD: usize = 8;

const _: () = assert!(MAX_ECHO.is_multiple_of(4) && ANSWER_LEN <= MIN_PACKET);
const _: () =
    assert!(COMMON_HEADER_LEN + CHUNK_HEADER_LEN + CAUSE_OVERHEAD + MAX_ECHO <= ANSWER_LEN);

/// T bit of ABORT and SHUTDOWN COMPLETE: the tag is reflected (RFC 9260 §8.5.1).
const REFLECTED: u8 = 1;

/// Result of sending a packet.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    /// The packet is in the batch.
    Sent,
    /// The batch is full or has no buffer; the caller may retry later.
    NoRoom,
    /// The chunk does not fit any packet and is never sent.
    TooLong,
}

/// A packet of one chunk, not yet encoded.
#[derive(Clone, Debug)]
pub(super) struct SingleChunkPacket {
    tag: Tag,
    kind: u8,
    flags: u8,
    value: Vec<u8>,
}

impl SingleChunkPacket {
    pub(super) fn abort(tag: Tag, reflected: bool, cause: &Cause<'_>) -> SingleChunkPacket {
        Self::causes(chunk_type::ABORT, tag, reflected, cause)
    }

    pub(super) fn error(tag: Tag, cause: &Cause<'_>) -> SingleChunkPacket {
        Self::causes(chunk_type::ERROR, tag, false, cause)
    }

    fn causes(kind: u8, tag: Tag, reflected: bool, cause: &Cause<'_>) -> SingleChunkPacket {
        let cause = cause.truncate_info(MAX_ECHO);
        let mut value = vec![0; cause.padded_len()];
        cause.emit(&mut value);
        SingleChunkPacket { tag, kind, flags: flags(reflected), value }
    }

    pub(super) fn shutdown_complete(tag: Tag, reflected: bool) -> SingleChunkPacket {
        let kind = chunk_type::SHUTDOWN_COMPLETE;
        SingleChunkPacket { tag, kind, flags: flags(reflected), value: Vec::new() }
    }

    /// Returns a packet whose chunk exceeds [`ANSWER_LEN`].
    #[cfg(test)]
    pub(super) fn too_long() -> SingleChunkPacket {
        SingleChunkPacket {
            value: vec![7; 2 * ANSWER_LEN],
            ..SingleChunkPacket::shutdown_complete(Tag(1), false)
        }
    }

    pub(super) fn send(&self, ends: &Ends, tx: &mut impl TxBatch) -> SendOutcome {
        send_packet(ends, self.tag, tx, |packet| {
            packet.push_chunk(self.kind, self.flags, &self.value)
        })
    }
}

const fn flags(reflected: bool) -> u8 {
    if reflected { REFLECTED } else { 0 }
}

/// Sends one packet of at most [`ANSWER_LEN`] bytes.
pub(super) fn send_packet(
    ends: &Ends,
    tag: Tag,
    tx: &mut impl TxBatch,
    write: impl FnOnce(&mut PacketBuilder<'_>) -> Result<(), PacketFull>,
) -> SendOutcome {
    let checksum = tx.needs_checksum();
    let Some(out) = tx.reserve_packet(ANSWER_LEN) else { return SendOutcome::NoRoom };
    let mut packet = PacketBuilder::new(out, ends.ports(), tag);
    if write(&mut packet).is_err() {
        return SendOutcome::TooLong;
    }
    let len = packet.finish_with(checksum);
    tx.commit(len);
    SendOutcome::Sent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch with room for `room` packets, and the lengths of the sent packets.
    struct Batch {
        room: usize,
        buffer: Vec<u8>,
        sent: Vec<usize>,
    }

    impl TxBatch for Batch {
        fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
            self.buffer = vec![0; len];
            (self.sent.len() < self.room).then_some(&mut self.buffer)
        }

        fn commit(&mut self, len: usize) {
            self.sent.push(len);
        }
    }

    // Every cause that repeats a peer's bytes fits a packet. A full batch and a chunk that fits no packet have
    // different outcomes.
    #[test]
    fn full_batch_and_too_long_chunk_are_distinguished() {
        let ends = Ends { local: ([10, 0, 0, 1], 1).into(), remote: ([10, 0, 0, 2], 2).into() };
        let batch = || Batch { room: 1, buffer: Vec::new(), sent: Vec::new() };
        let long = vec![7; 60_000];
        for cause in [Cause::UnresolvableAddress(&long), Cause::MissingParameters(&long)] {
            let abort = SingleChunkPacket::abort(Tag(1), false, &cause);
            let mut batch = batch();
            assert_eq!(abort.send(&ends, &mut batch), SendOutcome::Sent);
            assert!(batch.sent[0] <= 12 + 4 + 8 + MAX_ECHO);
            assert_eq!(abort.send(&ends, &mut batch), SendOutcome::NoRoom);
        }
        let mut batch = batch();
        assert_eq!(SingleChunkPacket::too_long().send(&ends, &mut batch), SendOutcome::TooLong);
        assert!(batch.sent.is_empty());
    }
}
