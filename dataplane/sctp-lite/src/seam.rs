//! The seam between SCTP and the DDP adaptation: whole user messages upward as they arrive, user messages
//! that are pulled when SCTP may send downward. TSNs, fragments and bundling stay inside SCTP; DDP-SSNs and
//! sessions stay above.

use base::Instant;

/// One user message as it arrived, in pieces where the peer had cut it into fragments.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Stream identifier, below the number of inbound streams.
    pub stream: u16,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// The U flag was set.
    pub unordered: bool,
    /// Its bytes, one piece after the other.
    pub pieces: &'a [&'a [u8]],
}

/// What became of a received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// SCTP counts its TSNs as received.
    Yes,
    /// As if it had never arrived: its TSNs are neither acknowledged nor reported in gap blocks, and the peer
    /// sends it again.
    No,
}

/// Receive side: what SCTP calls.
pub trait MessageSink {
    /// A user message, none of whose TSNs was taken before. Called when its last byte is there, whatever is
    /// missing before it.
    fn message(&mut self, now: Instant, message: Received<'_>) -> Taken;

    /// The peer has restarted, and the association has so many pairs of streams now: messages that follow
    /// belong to nothing that was before, and what was sent and not acknowledged is forgotten. They may be
    /// in the very packet that acknowledges it, so this is not left to an event.
    fn restarted(&mut self, now: Instant, streams: u16) {
        let _ = (now, streams);
    }

    /// A fragment is to be kept until its message is whole, which takes `bytes` of the memory that associations share;
    /// `in_order`: nothing before it is missing. False: there is no room for it now.
    fn hold(&mut self, bytes: usize, in_order: bool) -> bool {
        let _ = (bytes, in_order);
        true
    }

    /// Bytes of one message in fragments that [`hold`](Self::hold) takes in order when nobody else holds anything.
    fn hold_most(&self) -> u64 {
        u64::MAX
    }

    /// Fragments are kept no more. Those of a restarted association are released by [`restarted`](Self::restarted).
    fn release(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// The window, which has grown by `has` bytes, is to grow by `more`. False: it may not, for the sake of other
    /// associations. What was granted is released by the end of the association or its restart.
    fn widen(&mut self, has: u64, more: u64) -> bool {
        let _ = (has, more);
        true
    }

    /// Bytes of user data that the upper layer can still take; bounds the a_rwnd that SCTP advertises. An
    /// upper layer that places everything at arrival says `u32::MAX`.
    fn room(&self) -> u32;
}

/// Names a user message to the source that it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageRef {
    /// Its stream.
    pub stream: u16,
    /// Bytes of user data.
    pub len: u16,
    /// The source's own name for it.
    pub tag: u64,
}

/// A user message that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// What names it in the calls that follow.
    pub message: MessageRef,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// The peer should acknowledge it at once (the I bit, RFC 9260 §3.3.1).
    pub immediate: bool,
    /// CRC32c of its bytes, if it came with their copy.
    pub crc: Option<u32>,
    /// Bytes of the message behind it, if that is known: with less room [`MessageSource::next`] would write nothing now.
    pub behind: Option<u16>,
}

/// Send side: what SCTP asks when it may send. All messages go out unordered and unfragmented.
pub trait MessageSource {
    /// True when [`next`](Self::next) with ample room would give a message.
    fn has_data(&self) -> bool;

    /// Writes the next message's bytes to the front of `out`; `None` when there is none, or none that
    /// fits. `most` is the largest message that an empty packet carries; a source that could fill more
    /// than `out` may hold back until it gets a packet of its own (`out` as long as `most`), and must give
    /// something then if it has anything.
    fn next(&mut self, most: usize, out: &mut [u8]) -> Option<Written>;

    /// Writes again the bytes of a message that was sent and not acknowledged, the very same ones.
    /// `out` has its length.
    fn again(&mut self, message: MessageRef, out: &mut [u8]);

    /// The peer's cumulative TSN has passed this message: it cannot be reneged any more. In the order of
    /// [`next`](Self::next).
    fn acknowledged(&mut self, message: MessageRef);

    /// The largest message that a packet carries has changed.
    fn most_changed(&mut self, most: usize);
}

/// A batch of outgoing SCTP packets, given by the owner of the packet buffers.
pub trait TxBatch {
    /// Room for one SCTP packet (common header and chunks) of at most `len` bytes, or `None` when the
    /// batch is full or no buffer is left: stop and come back.
    fn packet(&mut self, len: usize) -> Option<&mut [u8]>;

    /// The packet whose room was given last goes whole or not at all, whatever the path is thought to carry: it
    /// probes the path.
    fn whole(&mut self) {}

    /// Packets are to have their checksum (RFC 9260 §6.8). False: a device fills it in, and the field is left zero.
    fn wants_checksum(&self) -> bool {
        true
    }

    /// Many streams share the port: bursts may be longer than those of a few ([`transport::pacing`]).
    fn is_shared(&self) -> bool {
        false
    }

    /// Most bytes of what was sent that the association may keep copies of, because their source may change before they
    /// are acknowledged. What would exceed it is not sent for the first time now; with nothing kept, one message
    /// always is.
    fn keep_limit(&self) -> u64 {
        u64::MAX
    }

    /// Something was not sent because of [`keep_limit`](Self::keep_limit).
    fn keep_limited(&mut self) {}

    /// The first `len` bytes of the room given last are a complete packet, checksum and all if it is
    /// [wanted](Self::wants_checksum). Never called without a preceding `packet`; a `packet` not committed is dropped.
    fn commit(&mut self, len: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Least;

    impl MessageSink for Least {
        fn message(&mut self, _now: Instant, _message: Received<'_>) -> Taken {
            Taken::Yes
        }

        fn room(&self) -> u32 {
            0
        }
    }

    impl TxBatch for Least {
        fn packet(&mut self, _len: usize) -> Option<&mut [u8]> {
            None
        }

        fn commit(&mut self, _len: usize) {}
    }

    // An upper layer and a batch that name no bounds have none.
    #[test]
    fn there_are_no_bounds_but_those_named() {
        let mut least = Least;
        assert!(least.hold(usize::MAX, false) && least.widen(0, u64::MAX));
        assert_eq!((least.hold_most(), least.keep_limit()), (u64::MAX, u64::MAX));
        assert!(!least.is_shared() && least.wants_checksum());
    }
}
