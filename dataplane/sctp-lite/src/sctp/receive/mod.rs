//! The receive half of an association (RFC 9260 §6.2, §6.5 to §6.9): received TSNs, delivery of messages, and
//! the time of SACKs.
//!
//! ```text
//!   cumulative TSN |next
//!   in order ----->|        |#####|    |##|  |########|
//!                            gap block
//! ```
//!
//! A complete message is delivered even if earlier data is missing; then only the range of its TSNs is kept. User data
//! is kept only for fragments, within limits. SACKed data is never dropped.
//!
//! Not implemented: order within a stream (ordered messages are delivered on arrival and marked as such; RFC 5043
//! uses none), and the partial delivery of RFC 9260 §6.9.

mod config;
mod fragments;

use std::sync::Arc;

use arrayvec::ArrayVec;
use base::{Instant, Nanos};
use transport::ranges::{Range, Ranges};
use transport::right_sizing::{self, WindowUsage};
use transport::seq::{ExtSeq, SeqNumber};
use wire::sctp::{Data, GapBlock, PacketBuilder, PacketFull, SackHeader, Tsn};

use self::fragments::{ArrivedNeighbours, Fragments, JoinResult};
use crate::seam::{MessageOutcome, MessageSink, ReceivedMessage};

pub use config::ReceiveConfig;

/// Largest distance from the cumulative TSN that a Gap Ack Block can report (RFC 9260 §3.3.4).
const MAX_AHEAD: u64 = u16::MAX as u64;

/// Maximum Gap Ack Blocks per SACK, about as many as fit a packet of 1500 bytes. A shorter packet contains fewer.
const MAX_BLOCKS: usize = 360;

/// Maximum duplicate TSNs reported per SACK.
pub const MAX_DUPLICATES: usize = 16;

/// Result of processing a DATA chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The message was delivered.
    Delivered,
    /// A fragment was kept; its message is not complete yet.
    Held,
    /// The TSN was received before.
    Duplicate,
    /// The chunk was dropped without effect; the peer retransmits it.
    Refused(Refusal),
    /// The TSN counts as received, but the stream does not exist: an ERROR with "Invalid Stream Identifier" is due
    /// (RFC 9260 §6.5).
    InvalidStream,
    /// The association must be aborted.
    Abort(Violation),
}

/// Reason why a DATA chunk was dropped without acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The TSN is too far beyond the cumulative TSN for a Gap Ack Block.
    BeyondWindow,
    /// The chunk would exceed the limit of ranges beyond gaps.
    TooManyGaps,
    /// The advertised window is closed (RFC 9260 §6.2).
    WindowClosed,
    /// The association's budget for fragments is exhausted.
    TooManyFragments,
    /// The budget that the worker's associations share, or the peer's share of it, is exhausted.
    HoldBudget,
    /// The upper layer refused the message.
    NotTaken,
}

/// Violation that ends an association.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A DATA chunk without user data; the ABORT's cause is "No User Data" (RFC 9260 §6.2).
    NoUserData,
    /// Chunks with consecutive TSNs contradict each other: their B and E bits, or the stream, SSN or PPID of fragments
    /// of one message. The cause is "Protocol Violation" (RFC 9260 §6.9).
    Fragments,
    /// A message whose fragments exceed the limits; the cause is "Out of Resource".
    MessageTooLong,
}

/// Counters of the receive half.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiverStats {
    /// DATA chunks whose TSN was recorded as received: whole messages, fragments, and chunks for streams that do not
    /// exist.
    pub chunks: u64,
    /// Bytes of user data in `chunks`.
    pub bytes: u64,
    /// DATA chunks received again.
    pub duplicates: u64,
    /// DATA chunks dropped without acknowledgement.
    pub refused: u64,
    /// Chunks in `refused` that the upper layer refused.
    pub not_taken: u64,
    /// DATA chunks for streams that do not exist.
    pub invalid_streams: u64,
    /// Largest number of TSN ranges beyond gaps so far.
    pub gaps_max: u64,
}

fn is_whole(chunk: &Data<'_>) -> bool {
    chunk.header.begin && chunk.header.end
}

/// Effects of the chunks of the current packet that were processed so far.
#[derive(Clone, Copy, Debug, Default)]
struct PacketEffect {
    has_new_data: bool,
    /// True if a chunk requires an immediate SACK.
    urgent: bool,
}

/// The receive half of an association.
#[derive(Debug)]
pub struct Receiver {
    /// TSN after the cumulative TSN.
    next: ExtSeq,
    /// TSNs received beyond `next`.
    gaps: Ranges,
    fragments: Fragments,
    /// Duplicate TSNs to report in the next SACK.
    duplicates: ArrayVec<Tsn, MAX_DUPLICATES>,
    /// Number of inbound streams.
    streams: u16,
    packet: PacketEffect,
    /// Packets with new data since the last SACK.
    unacknowledged: u8,
    /// True if a SACK is due at the next transmission.
    ack_now: bool,
    /// Time at which a delayed SACK is due.
    ack_at: Option<Instant>,
    /// The a_rwnd of the last SACK, bytes.
    advertised: u32,
    /// The a_rwnd while no fragments are kept, bytes. It grows and never shrinks.
    window: u32,
    /// Time at which the measurement of the window's use started, in [`right_sizing::ticks`].
    measured_since: u32,
    /// Value of `stats.bytes` at which half a window has been received since the start of the measurement.
    half_used_at: u64,
    config: Arc<ReceiveConfig>,
    stats: ReceiverStats,
}

impl Receiver {
    /// Creates the receive half. `initial_tsn`: the peer's first TSN; `streams`: number of inbound streams.
    pub fn new(config: &Arc<ReceiveConfig>, initial_tsn: Tsn, streams: u16) -> Self {
        Receiver {
            next: ExtSeq::initial(SeqNumber(initial_tsn.0)),
            gaps: Ranges::default(),
            fragments: Fragments::default(),
            duplicates: ArrayVec::new(),
            streams,
            packet: PacketEffect::default(),
            unacknowledged: 0,
            ack_now: false,
            ack_at: None,
            advertised: config.window,
            window: config.window,
            measured_since: 0,
            half_used_at: u64::from(config.window / 2),
            config: config.clone(),
            stats: ReceiverStats::default(),
        }
    }

    // --- reception ---------------------------------------------------------------------------------

    /// Processes a DATA chunk. Call [`end_packet`](Self::end_packet) after the last chunk of the packet.
    pub fn on_data(
        &mut self,
        now: Instant,
        chunk: &Data<'_>,
        sink: &mut impl MessageSink,
    ) -> Arrival {
        let arrival = self.accept(now, chunk, sink);
        self.count_arrival(now, chunk, arrival);
        arrival
    }

    /// Returns true if no data is missing, no fragment is kept, the window is open, and a DATA chunk was received
    /// before.
    #[inline]
    pub fn allows_fast_path(&self, sink: &impl MessageSink) -> bool {
        self.gaps.is_empty()
            && self.fragments.is_empty()
            && self.stats.chunks > 0
            && self.advertised_window(sink.free_space()) > 0
    }

    /// Returns true if the chunk is a whole message with the next TSN on a valid stream. If
    /// [`allows_fast_path`](Self::allows_fast_path) is also true, [`on_predicted_data`](Self::on_predicted_data) has
    /// the same effect as [`on_data`](Self::on_data).
    #[inline]
    pub fn is_predicted(&self, chunk: &Data<'_>) -> bool {
        chunk.header.tsn.0 == self.next.wire().0
            && is_whole(chunk)
            && !chunk.payload.is_empty()
            && chunk.header.stream < self.streams
    }

    /// Processes a DATA chunk for which [`is_predicted`](Self::is_predicted) is true.
    ///
    /// # Errors
    /// The upper layer refused the message.
    #[inline]
    pub fn on_predicted_data(
        &mut self,
        now: Instant,
        chunk: &Data<'_>,
        sink: &mut impl MessageSink,
    ) -> Result<(), Refusal> {
        let pieces = [chunk.payload];
        let arrival = self.deliver(now, self.next, chunk, &pieces, sink);
        self.count_arrival(now, chunk, arrival);
        match arrival {
            Arrival::Refused(why) => Err(why),
            _ => Ok(()),
        }
    }

    /// Counts the result of a DATA chunk, and records whether it requires an immediate SACK.
    #[inline]
    fn count_arrival(&mut self, now: Instant, chunk: &Data<'_>, arrival: Arrival) {
        match arrival {
            Arrival::Delivered | Arrival::Held | Arrival::InvalidStream => {
                self.packet.has_new_data = true;
                self.packet.urgent |= chunk.header.immediate; // RFC 9260 §6.2
                self.stats.chunks += 1;
                self.stats.bytes += chunk.payload.len() as u64;
                self.stats.invalid_streams += u64::from(arrival == Arrival::InvalidStream);
                if arrival == Arrival::Held {
                    self.start_measurement(now); // the fragment limits, not the window, may limit the peer
                }
            }
            Arrival::Duplicate => {
                self.packet.urgent = true; // RFC 9260 §6.2
                self.stats.duplicates += 1;
                // Excess duplicates are not reported; the report is only a hint.
                let _ = self.duplicates.try_push(chunk.header.tsn);
            }
            Arrival::Refused(why) => {
                self.packet.urgent = true;
                self.stats.refused += 1;
                self.stats.not_taken += u64::from(why == Refusal::NotTaken);
                self.start_measurement(now); // the refusal, not the window, limits the peer
            }
            Arrival::Abort(_) => {}
        }
    }

    /// Processes the end of a packet with DATA chunks: decides whether its SACK may be delayed (RFC 9260 §6.2, §6.7).
    pub fn end_packet(&mut self, now: Instant) {
        let packet = core::mem::take(&mut self.packet);
        if packet.has_new_data {
            self.unacknowledged = self.unacknowledged.saturating_add(1);
        }
        if packet.urgent || self.unacknowledged >= self.config.packets_per_sack {
            self.ack_now = true;
        } else if packet.has_new_data && self.ack_at.is_none() {
            self.ack_at = Some(now + self.config.sack_delay);
        }
    }

    fn accept(&mut self, now: Instant, chunk: &Data<'_>, sink: &mut impl MessageSink) -> Arrival {
        if chunk.payload.is_empty() {
            return Arrival::Abort(Violation::NoUserData);
        }
        let tsn = self.next.nearest(SeqNumber(chunk.header.tsn.0));
        if tsn != self.next {
            if tsn < self.next || self.gaps.containing(tsn).is_some() {
                return Arrival::Duplicate;
            }
            if let Some(why) = self.refusal(tsn) {
                return Arrival::Refused(why);
            }
        }
        // RFC 9260 §6.2: while the window is closed, no TSN beyond the highest received is accepted.
        if self.advertised_window(sink.free_space()) == 0 && tsn >= self.end_of_received() {
            return Arrival::Refused(Refusal::WindowClosed);
        }
        if chunk.header.stream >= self.streams {
            self.mark_received(tsn);
            return Arrival::InvalidStream;
        }
        if is_whole(chunk) && self.fragments.is_empty() {
            let pieces = [chunk.payload];
            return self.deliver(now, tsn, chunk, &pieces, sink);
        }
        self.accept_fragment(now, tsn, chunk, sink)
    }

    /// Returns the reason why a TSN beyond a gap cannot be recorded; `None` if it can.
    fn refusal(&self, tsn: ExtSeq) -> Option<Refusal> {
        if tsn.since(self.next) >= MAX_AHEAD {
            return Some(Refusal::BeyondWindow);
        }
        let alone = !self.gaps.touches(Range { start: tsn, end: tsn.plus(1) });
        (alone && self.gaps.len() >= self.config.max_gaps).then_some(Refusal::TooManyGaps)
    }

    /// Processes a fragment, or a whole message while fragments are kept.
    fn accept_fragment(
        &mut self,
        now: Instant,
        tsn: ExtSeq,
        chunk: &Data<'_>,
        sink: &mut impl MessageSink,
    ) -> Arrival {
        let arrived = ArrivedNeighbours {
            before: self.has_arrived(tsn.minus(1)),
            after: self.has_arrived(tsn.plus(1)),
        };
        if !self.fragments.fits_neighbours(tsn, chunk, arrived) {
            return Arrival::Abort(Violation::Fragments);
        }
        if is_whole(chunk) {
            let pieces = [chunk.payload];
            return self.deliver(now, tsn, chunk, &pieces, sink);
        }
        match self.fragments.try_join(tsn, chunk, &self.config) {
            JoinResult::TooLong => Arrival::Abort(Violation::MessageTooLong),
            JoinResult::Complete(run) => {
                let fragments = core::mem::take(&mut self.fragments);
                let pieces = fragments.pieces(run, tsn, chunk);
                let arrival = self.deliver(now, tsn, chunk, &pieces, sink);
                drop(pieces);
                self.fragments = fragments;
                if arrival == Arrival::Delivered {
                    sink.release(self.fragments.remove(run));
                }
                arrival
            }
            JoinResult::Incomplete { cost } => {
                // A fragment that is next in order may exceed the association's limit. Otherwise fragments beyond a gap
                // could use up the limit and block this message for ever.
                let in_order = tsn == self.next;
                if !in_order && !self.fragments.has_room(chunk, &self.config) {
                    return Arrival::Refused(Refusal::TooManyFragments);
                }
                if !sink.hold(Fragments::cost(chunk), in_order) {
                    // RFC 9260 §6.2: the chunk is dropped. The peer retransmits it, and other associations may have
                    // released memory by then. A message that could never be held ends the association.
                    return match in_order && cost as u64 > sink.max_hold() {
                        true => Arrival::Abort(Violation::MessageTooLong),
                        false => Arrival::Refused(Refusal::HoldBudget),
                    };
                }
                self.fragments.keep(tsn, chunk);
                self.mark_received(tsn);
                Arrival::Held
            }
        }
    }

    /// Delivers the message that `chunk` completes.
    #[inline]
    fn deliver(
        &mut self,
        now: Instant,
        tsn: ExtSeq,
        chunk: &Data<'_>,
        pieces: &[&[u8]],
        sink: &mut impl MessageSink,
    ) -> Arrival {
        let message = ReceivedMessage {
            stream: chunk.header.stream,
            ppid: chunk.header.ppid,
            unordered: chunk.header.unordered,
            pieces,
        };
        match sink.deliver(now, message) {
            MessageOutcome::Accepted => {
                self.mark_received(tsn);
                Arrival::Delivered
            }
            MessageOutcome::Refused => Arrival::Refused(Refusal::NotTaken),
        }
    }

    #[inline]
    fn mark_received(&mut self, tsn: ExtSeq) {
        if tsn != self.next {
            self.gaps.insert(Range { start: tsn, end: tsn.plus(1) });
            self.stats.gaps_max = self.stats.gaps_max.max(self.gaps.len() as u64);
            self.packet.urgent = true; // RFC 9260 §6.7
            return;
        }
        self.next = tsn.plus(1);
        if !self.gaps.is_empty() {
            self.next = self.gaps.advance(self.next);
            self.packet.urgent = true; // RFC 5681 §4.2: a segment that fills a gap is acknowledged at once
        }
    }

    fn has_arrived(&self, tsn: ExtSeq) -> bool {
        tsn < self.next || self.gaps.containing(tsn).is_some()
    }

    /// Returns the TSN after the highest received TSN.
    fn end_of_received(&self) -> ExtSeq {
        self.gaps.highest().unwrap_or(self.next)
    }

    // --- acknowledgements ---------------------------------------------------------------------------

    /// Returns true if a SACK is due now (RFC 9260 §6.2): an immediate SACK is required, or a delay has expired. A SACK
    /// is also due if the window has opened by more than a quarter of its size since the last SACK. `free_space`: see
    /// [`MessageSink::free_space`].
    pub fn sack_due(&self, free_space: u32) -> bool {
        self.ack_now
            || self.advertised_window(free_space).saturating_sub(self.advertised) > self.window / 4
    }

    /// Returns true if new data was received since the last SACK, or a SACK is required. Bundling a SACK with DATA
    /// saves a packet (RFC 9260 §6.1).
    pub fn is_unacknowledged(&self) -> bool {
        self.unacknowledged > 0 || self.ack_now
    }

    /// Makes a SACK due without delay, as after the first DATA chunk and after DATA in SHUTDOWN-SENT.
    pub fn acknowledge_now(&mut self) {
        self.ack_now = true;
    }

    /// Returns the time at which a delayed SACK is due; `None` if none is delayed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ack_at.filter(|_| !self.ack_now)
    }

    /// Processes the expiry of the SACK delay.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.ack_at.is_some_and(|at| at <= now) {
            self.ack_now = true;
        }
    }

    /// Returns the Cumulative TSN Ack.
    pub fn cumulative_tsn(&self) -> Tsn {
        Tsn(self.next.minus(1).wire().0)
    }

    /// Returns true if data beyond a gap was received. A SHUTDOWN cannot acknowledge it (RFC 9260 §6.2).
    pub fn has_gaps(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Adds a SACK to a packet, with as many Gap Ack Blocks as fit, starting at the lowest (RFC 9260 §6.7).
    pub fn write_sack(
        &mut self,
        free_space: u32,
        packet: &mut PacketBuilder<'_>,
    ) -> Result<(), PacketFull> {
        let header = SackHeader {
            cumulative: self.cumulative_tsn(),
            a_rwnd: self.advertised_window(free_space),
        };
        let blocks: ArrayVec<GapBlock, MAX_BLOCKS> = self.gap_blocks().take(MAX_BLOCKS).collect();
        packet.sack(header, &blocks, &self.duplicates)?;
        self.on_sack_sent(header.a_rwnd);
        Ok(())
    }

    /// Iterates over the Gap Ack Blocks from the lowest to the highest (RFC 9260 §3.3.4).
    pub fn gap_blocks(&self) -> impl Iterator<Item = GapBlock> + '_ {
        let cumulative = self.next.minus(1);
        // Both offsets fit 16 bits, because they are at most `MAX_AHEAD`.
        self.gaps.iter().map(move |range| GapBlock {
            start: range.start.since(cumulative) as u16,
            end: (range.end.since(cumulative) - 1) as u16,
        })
    }

    /// Returns the a_rwnd to advertise, bytes: the smaller of the window and the upper layer's free space, minus the
    /// kept fragments (RFC 9260 §6.2 B, D). Below `min_window` returns zero, to avoid a silly window (RFC 1122
    /// §4.2.3.3).
    pub fn advertised_window(&self, free_space: u32) -> u32 {
        let window = self.window.min(free_space);
        let free = window.saturating_sub(self.fragments.held() as u32);
        if free < self.config.min_window { 0 } else { free }
    }

    /// Starts a measurement of the window's use.
    #[cold]
    pub(super) fn start_measurement(&mut self, now: Instant) {
        self.measured_since = right_sizing::ticks(now);
        self.half_used_at = self.stats.bytes + u64::from(self.window / 2);
    }

    /// Returns true if at least half a window of user data was received since the start of the measurement.
    #[inline]
    pub(super) fn is_half_used(&self) -> bool {
        self.stats.bytes >= self.half_used_at
    }

    /// Judges whether the peer uses more than half of the window per round trip. `rtt`: the shortest round-trip time.
    /// Call this when [`is_half_used`](Self::is_half_used) has become true.
    pub(super) fn usage(&self, now: Instant, rtt: Nanos) -> WindowUsage {
        let delivered = self.stats.bytes + u64::from(self.window / 2) - self.half_used_at;
        let ticks = right_sizing::ticks(now).wrapping_sub(self.measured_since);
        right_sizing::judge_usage(delivered, self.window.into(), ticks, rtt)
    }

    /// Returns the doubled window, at most `window_limit`, bytes; `None` if the limit is reached.
    pub(super) fn next_window(&self) -> Option<u32> {
        let next = self.window.saturating_mul(2).min(self.config.window_limit);
        (next > self.window).then_some(next)
    }

    /// Returns the bytes by which the window has grown.
    pub(super) fn growth(&self) -> u64 {
        u64::from(self.window - self.config.window)
    }

    pub(super) fn grow(&mut self, window: u32) {
        self.window = window;
    }

    /// Returns the current window, bytes: the a_rwnd while no fragments are kept.
    pub fn max_window(&self) -> u32 {
        self.window
    }

    /// Returns the a_rwnd of the last SACK, bytes.
    pub fn last_advertised(&self) -> u32 {
        self.advertised
    }

    /// Processes the transmission of a SHUTDOWN, which acknowledges like a SACK (RFC 9260 §9.2).
    pub fn on_shutdown_sent(&mut self) {
        self.on_sack_sent(self.advertised);
    }

    fn on_sack_sent(&mut self, a_rwnd: u32) {
        self.advertised = a_rwnd;
        self.duplicates.clear();
        self.unacknowledged = 0;
        self.ack_now = false;
        self.ack_at = None;
    }

    /// Returns the counters.
    pub fn stats(&self) -> ReceiverStats {
        self.stats
    }

    /// Frees the kept fragments, because the association has ended.
    pub(super) fn drop_fragments(&mut self) {
        self.fragments = Fragments::default();
    }

    /// Returns the bytes of kept fragments, overhead included.
    pub fn held(&self) -> usize {
        self.fragments.held()
    }
}

#[cfg(test)]
mod tests;
