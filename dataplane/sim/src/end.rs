//! The interface between a simulation and its hosts, for both lower layers.

use core::fmt::Debug;

use base::Instant;
use ddp::{Cookie, Message, RegionMemory, Source, Stag, TaggedOffset, VecMemory};

use crate::dialogue::Batch;
use crate::packet::{Packet, Protocol};

/// The region that every host offers: its STag and the TO of its first byte.
pub const REGION: (Stag, TaggedOffset) = (Stag(0x00C0_FFEE), TaggedOffset(0x7000_0000_0000));

/// Configuration of a host.
pub trait Setup: Clone + Debug {
    /// The host.
    type Host: End;

    /// A host that listens (`passive`) or will connect.
    fn host(self, passive: bool) -> Self::Host;
}

/// A host: TCP with one stream, or SCTP with several streams, numbered from 0.
pub trait End: Debug {
    /// Protocol of its packets.
    const PROTOCOL: Protocol;

    /// Opens the connection and its streams.
    ///
    /// # Errors
    /// The reason as a sentence.
    fn connect(&mut self, now: Instant) -> Result<(), String>;
    /// Closes gracefully.
    fn shutdown(&mut self, now: Instant);
    /// Ends the connection at once.
    fn abort(&mut self, now: Instant);

    /// Processes a received packet.
    fn input(&mut self, now: Instant, packet: &Packet, tx: &mut Batch);
    /// Runs timers that are due, posts queued messages, and writes packets.
    fn work(&mut self, now: Instant, tx: &mut Batch);
    /// Returns the next time to call [`work`](Self::work).
    fn timeout(&self) -> Option<Instant>;
    /// Processes a router's report that it dropped `dropped`, because its MTU is `mtu` bytes.
    fn packet_too_big(&mut self, now: Instant, mtu: usize, dropped: &[u8]);

    /// True if the packet is sent in IP fragments because it exceeds the path MTU that the host has learnt.
    fn is_for_fragments(&self, _bytes: &[u8]) -> bool {
        false
    }

    /// Returns the number of streams.
    fn stream_count(&self) -> usize;
    /// Queues a message to be posted on this stream.
    fn send(&mut self, stream: usize, message: Message<VecMemory>);
    /// Returns the tagged messages delivered so far, as offset in the region and length.
    fn delivered(&self, stream: usize) -> Vec<(u64, u64)>;
    /// Returns the untagged messages delivered so far.
    fn received(&self, stream: usize) -> Vec<&[u8]>;
    /// Returns the cookies of messages that the peer has acknowledged completely, in order, without that of the
    /// last message.
    fn sent(&self, stream: usize) -> Vec<Cookie>;

    /// Returns the bytes of the region.
    fn region(&self) -> Vec<u8>;
    /// True while no byte outside the region was written.
    fn is_guard_untouched(&self) -> bool;
    /// Returns the bytes of untagged buffers and of held pieces in use: zero after the connection has ended.
    fn in_use(&self) -> (u64, u64);

    /// True if no connection was opened yet, in either direction.
    fn is_unopened(&self) -> bool;
    /// True if all streams are established.
    fn is_established(&self) -> bool;
    /// True after a graceful close, false after an error; `None` while the connection is open.
    fn closed(&self) -> Option<bool>;
    /// True when the connection has ended, TIME-WAIT included, and its state may be freed.
    fn is_done(&self) -> bool;
    /// Returns the counters.
    fn totals(&self) -> Totals;
    /// Returns a violated invariant that must hold in every scenario.
    fn fault(&self) -> Option<String>;
    /// Formats the state in one line, for a failure report.
    fn describe_state(&self) -> String;
    /// Decodes a packet for a failure report.
    fn show(bytes: &[u8]) -> Option<String>;

    /// Writes bytes `from` of `memory` to `at` in the peer's region.
    fn write_to(
        &mut self,
        stream: usize,
        memory: &VecMemory,
        from: core::ops::Range<u64>,
        at: u64,
    ) {
        debug_assert!(from.end <= memory.len(), "the source has these bytes");
        let source = Source::Region {
            memory: memory.clone(),
            offset: from.start,
            len: (from.end - from.start) as u32,
        };
        let to = TaggedOffset(REGION.1.0.wrapping_add(at));
        let message =
            Message::Tagged { stag: REGION.0, to, rsvd_ulp: 0, source, cookie: Cookie::user(at) };
        self.send(stream, message);
    }
}

/// Counters that every end has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Tagged messages delivered.
    pub tagged_delivered: u64,
    /// Untagged messages delivered.
    pub untagged_delivered: u64,
    /// Bytes that the lower layer has received and accepted.
    pub bytes_in: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Retransmitted segments or chunks.
    pub retransmitted: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Bytes placed out of order; over SCTP, the maximum number of ranges beyond a gap.
    pub out_of_order_bytes: u64,
    /// Bytes or messages refused for lack of room.
    pub refused: u64,
}
