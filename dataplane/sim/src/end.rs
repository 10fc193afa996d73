//! Interface between a simulation and its hosts, for TCP and SCTP.

use core::fmt::Debug;

use base::Instant;
use ddp::{Cookie, Message, RegionMemory, Source, Stag, TaggedOffset, VecMemory};

use crate::dialogue::Batch;
use crate::packet::{Packet, Protocol};

/// Region of every host: its STag and the TO of its first byte.
pub const REGION: (Stag, TaggedOffset) = (Stag(0x00C0_FFEE), TaggedOffset(0x7000_0000_0000));

/// Configuration of a host.
pub trait Setup: Clone + Debug {
    /// Type of the host that the configuration creates.
    type Host: End;

    /// Creates a host that listens if `passive`, or otherwise connects later.
    fn host(self, passive: bool) -> Self::Host;
}

/// A host of a simulation: TCP with one stream, or SCTP with several streams, numbered from 0.
pub trait End: Debug {
    /// Transport protocol of the host's packets.
    const PROTOCOL: Protocol;

    /// Opens the connection and its streams.
    ///
    /// # Errors
    /// The reason, as a sentence.
    fn connect(&mut self, now: Instant) -> Result<(), String>;
    /// Closes gracefully.
    fn shutdown(&mut self, now: Instant);
    /// Aborts the connection: RST over TCP, ABORT over SCTP.
    fn abort(&mut self, now: Instant);

    /// Processes a received packet.
    fn input(&mut self, now: Instant, packet: &Packet, tx: &mut Batch);
    /// Runs due timers, posts queued messages, and writes packets.
    fn work(&mut self, now: Instant, tx: &mut Batch);
    /// Returns the time at which to call [`work`](Self::work) next.
    fn timeout(&self) -> Option<Instant>;
    /// Processes a router's ICMP report that it dropped the packet `dropped` because the next link has an MTU of `mtu`
    /// bytes.
    fn packet_too_big(&mut self, now: Instant, mtu: usize, dropped: &[u8]);

    /// Returns true if IP may fragment this packet: the host sends it although it exceeds the path MTU.
    fn is_for_fragments(&self, _bytes: &[u8]) -> bool {
        false
    }

    /// Returns the number of streams.
    fn stream_count(&self) -> usize;
    /// Queues a message for posting on this stream.
    fn send(&mut self, stream: usize, message: Message<VecMemory>);
    /// Returns the tagged messages delivered so far: offset in the region and length of each.
    fn delivered(&self, stream: usize) -> Vec<(u64, u64)>;
    /// Returns the untagged messages delivered so far.
    fn received(&self, stream: usize) -> Vec<&[u8]>;
    /// Returns the cookies of completely acknowledged messages, in order. The cookie of the "last message", which a
    /// stream posts by itself after a peer's error, is omitted.
    fn sent(&self, stream: usize) -> Vec<Cookie>;

    /// Returns the bytes of the region.
    fn region(&self) -> Vec<u8>;
    /// Returns true if no byte of the guard areas around the region was written.
    fn is_guard_untouched(&self) -> bool;
    /// Returns two byte counts: untagged buffers in use, and held data plus growth of receive windows. Both counts are
    /// zero after the connection has ended.
    fn in_use(&self) -> (u64, u64);

    /// Returns true if no connection was opened, neither actively nor passively.
    fn is_unopened(&self) -> bool;
    /// Returns true if all streams are established.
    fn is_established(&self) -> bool;
    /// Returns true after a graceful close, false after an error; `None` while the connection is open.
    fn closed(&self) -> Option<bool>;
    /// Returns true if the connection has ended, including TIME-WAIT, so that its state may be freed.
    fn is_done(&self) -> bool;
    /// Returns the counters of all streams together.
    fn totals(&self) -> Totals;
    /// Describes an invariant of all scenarios that this host has violated; `None` if there is none.
    fn fault(&self) -> Option<String>;
    /// Formats the state in one line for a failure report.
    fn describe_state(&self) -> String;
    /// Decodes a packet for a failure report.
    fn show(bytes: &[u8]) -> Option<String>;

    /// Posts a Write of the bytes `from` of `memory` to offset `at` in the peer's region.
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

/// Counters common to all hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Tagged messages delivered.
    pub tagged_delivered: u64,
    /// Untagged messages delivered.
    pub untagged_delivered: u64,
    /// Bytes that TCP or SCTP has received and accepted.
    pub bytes_in: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Retransmitted segments or chunks.
    pub retransmitted: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// TCP: bytes placed out of order. SCTP: largest number of TSN ranges beyond a gap so far, not bytes.
    pub out_of_order_bytes: u64,
    /// Bytes or messages refused for lack of room.
    pub refused: u64,
}
