//! Interface between SCTP and the DDP adaptation. SCTP passes whole user messages up as they arrive, and pulls user
//! messages from above when it may send. TSNs, fragments and bundling stay inside SCTP; DDP-SSNs and sessions stay
//! above.

use base::Instant;

/// A received user message, in pieces if the peer had fragmented it.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage<'a> {
    /// Stream identifier, below the number of inbound streams.
    pub stream: u16,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// True if the U flag was set (RFC 9260 §3.3.1).
    pub unordered: bool,
    /// User data, in consecutive pieces.
    pub pieces: &'a [&'a [u8]],
}

/// Result of delivering a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageOutcome {
    /// The message is accepted: SCTP counts the TSN of the chunk that completed it as received.
    Accepted,
    /// The message is refused. SCTP neither acknowledges the chunk that completed it nor reports it in a Gap Ack Block,
    /// and the peer retransmits the chunk.
    Refused,
}

/// Receive side, called by SCTP.
pub trait MessageSink {
    /// Delivers a complete user message, even if earlier data is missing. A refused message is delivered again when the
    /// peer has retransmitted it; an accepted message is not.
    fn deliver(&mut self, now: Instant, message: ReceivedMessage<'_>) -> MessageOutcome;

    /// Processes a restart of the association by the peer. `streams`: number of stream pairs from now on. Later
    /// messages belong to new sessions, and unacknowledged messages are discarded. This is a call and not an event,
    /// because the packet that restarts the association may also carry messages of the new sessions.
    fn on_restart(&mut self, now: Instant, streams: u16) {
        let _ = (now, streams);
    }

    /// Reserves `bytes` of the memory that associations share, to hold a fragment until its message is complete.
    /// `bytes` includes the fragment's record. `in_order`: no earlier data is missing. Returns false if there is no
    /// room now.
    fn hold(&mut self, bytes: usize, in_order: bool) -> bool {
        let _ = (bytes, in_order);
        true
    }

    /// Returns the largest total of `bytes` that [`hold`](Self::hold) grants to one message, if its fragments arrive in
    /// order and nothing else is held.
    fn max_hold(&self) -> u64 {
        u64::MAX
    }

    /// Releases `bytes` that [`hold`](Self::hold) reserved. When an association restarts, the sink releases all memory
    /// of its fragments in [`on_restart`](Self::on_restart) instead.
    fn release(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// Requests memory to enlarge the receive window by `increase` bytes. `grown`: bytes by which the window has
    /// already grown beyond its configured size. Returns false if other associations need the memory. The grant is
    /// released when the association ends or restarts.
    fn grow_window(&mut self, grown: u64, increase: u64) -> bool {
        let _ = (grown, increase);
        true
    }

    /// Returns the bytes of user data that the upper layer can still accept; bounds the advertised a_rwnd. An upper
    /// layer that places everything on arrival returns `u32::MAX`.
    fn free_space(&self) -> u32;
}

/// Identifier of a user message for its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageRef {
    /// Stream identifier.
    pub stream: u16,
    /// Bytes of user data.
    pub len: u16,
    /// Identifier chosen by the source.
    pub tag: u64,
}

/// A user message that the source has written into a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrittenMessage {
    /// Identifier of the message in later calls.
    pub message: MessageRef,
    /// Payload protocol identifier.
    pub ppid: u32,
    /// True to request an immediate acknowledgement (the I bit, RFC 9260 §3.3.1).
    pub immediate: bool,
    /// CRC32c of the message, if it was computed while the message was copied.
    pub crc: Option<u32>,
    /// Length of the following message, if known. With less room, [`MessageSource::next`] would write nothing.
    pub next_len: Option<u16>,
}

/// Send side, called by SCTP when it may send. All messages are sent unordered and unfragmented.
pub trait MessageSource {
    /// Returns true if [`next`](Self::next) with ample room would return a message.
    fn has_data(&self) -> bool;

    /// Writes the next message to the front of `out`; `None` if there is none or it does not fit. `max_len` is the
    /// largest message that an empty packet carries. A source may hold back a message that could exceed `out` until a
    /// call with an empty packet (`out` as long as `max_len`). In that call, a source with data must write a message.
    fn next(&mut self, max_len: usize, out: &mut [u8]) -> Option<WrittenMessage>;

    /// Writes an unacknowledged message again, with the same bytes. `out` has the message's length.
    fn rewrite(&mut self, message: MessageRef, out: &mut [u8]);

    /// Reports that the cumulative TSN has passed this message: the peer can no longer renege on it. Called in the
    /// order in which [`next`](Self::next) wrote the messages.
    fn on_acknowledged(&mut self, message: MessageRef);

    /// Reports a new limit for the length of a message that fits a packet, bytes.
    fn on_max_len_changed(&mut self, max_len: usize);
}

/// A batch of outgoing SCTP packets, provided by the owner of the packet buffers.
pub trait TxBatch {
    /// Returns room for one SCTP packet (common header and chunks) of at most `len` bytes. `None` if the batch is
    /// full or no buffer is left; the caller stops and continues later.
    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Forbids fragmentation of the packet reserved last, which probes the path MTU.
    fn forbid_fragmentation(&mut self) {}

    /// Returns true if the caller must compute the packet's checksum (RFC 9260 §6.8). False if a device inserts it and
    /// the field stays zero.
    fn needs_checksum(&self) -> bool {
        true
    }

    /// Returns true if so many streams share the port that bursts may be longer ([`transport::pacing`]). The owner
    /// defines the number.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the maximum bytes of copies of unacknowledged messages, kept because their source may change. A new
    /// message that would exceed the limit is not sent now. If no copy is kept, one message is sent regardless of the
    /// limit.
    fn keep_limit(&self) -> u64 {
        u64::MAX
    }

    /// Reports that [`keep_limit`](Self::keep_limit) held a message back.
    fn report_keep_limited(&mut self) {}

    /// Completes the packet reserved last, of `len` bytes. The packet contains its checksum if
    /// [`needs_checksum`](Self::needs_checksum) is true. Requires a preceding `reserve_packet`. A reserved packet that
    /// is not committed is dropped.
    fn commit(&mut self, len: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Defaults;

    impl MessageSink for Defaults {
        fn deliver(&mut self, _now: Instant, _message: ReceivedMessage<'_>) -> MessageOutcome {
            MessageOutcome::Accepted
        }

        fn free_space(&self) -> u32 {
            0
        }
    }

    impl TxBatch for Defaults {
        fn reserve_packet(&mut self, _len: usize) -> Option<&mut [u8]> {
            None
        }

        fn commit(&mut self, _len: usize) {}
    }

    #[test]
    fn default_methods_impose_no_bounds() {
        let mut defaults = Defaults;
        assert!(defaults.hold(usize::MAX, false) && defaults.grow_window(0, u64::MAX));
        assert_eq!((defaults.max_hold(), defaults.keep_limit()), (u64::MAX, u64::MAX));
        assert!(!defaults.is_shared() && defaults.needs_checksum());
    }
}
