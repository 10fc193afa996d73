//! Scoreboard of unacknowledged DATA chunks: a record of 32 bytes per chunk, in TSN order, and the ranges of the peer's
//! Gap Ack Blocks.
//!
//! ```text
//!   cumulative TSN + 1                                      next TSN
//!     |  record  | record |  record  | record |  record  |
//!        lost      SACKed    in flight  SACKed   in flight
//! ```
//!
//! The estimate of the bytes in the network (pipe) is updated per record. A block that repeats an earlier report
//! costs one look-up, regardless of its length. `loss_detection` finds losses by time (RACK).

use std::collections::VecDeque;

use base::Instant;
use transport::delivery::{AckKind, Delivery, Transmission};
use transport::ranges::{Range, Ranges};
use transport::seq::ExtSeq;

use super::record::{FIRST_IN_PACKET, LOST, RETRANSMITTED, Record, SACKED};
use crate::seam::MessageRef;

/// Maximum number of SACKed ranges. A block that needs a further range is ignored; the peer repeats it.
const MAX_SACKED_RANGES: usize = 1024;

/// The unacknowledged chunks of an association, and totals over them.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) records: VecDeque<Record>,
    /// TSN of the first record: the TSN after the Cumulative TSN Ack Point.
    pub(super) una: ExtSeq,
    pub(super) sacked: Ranges,
    /// Estimated bytes in the network (RFC 6675 §4, SetPipe).
    pipe: u64,
    /// Bytes of all chunks, headers and padding included.
    flight: u64,
    /// Bytes of user data in the chunks that are not SACKed.
    outstanding: u64,
    /// Number of records that are marked lost and await their retransmission.
    awaiting_retransmission: u64,
    /// Number of SACKed records that were the first of their packets.
    sacked_packets: u64,
    /// Number of records whose retransmission may be in the network: neither SACKed nor marked lost since.
    retransmitted_in_flight: u64,
    /// TSN below which every record is SACKed, lost or retransmitted.
    pub(super) loss_edge: ExtSeq,
    /// TSN and time of each retransmission, in order of time.
    pub(super) resent_by_time: VecDeque<(ExtSeq, Instant)>,
    /// HighRxt (RFC 6675 §2): TSN at which the search for the next retransmission starts.
    pub(super) high_rxt: ExtSeq,
}

/// Position and purpose of a retransmitted chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Retransmission {
    /// The first chunk of its packet.
    First,
    /// A later chunk of its packet.
    Bundled,
    /// A window probe or tail loss probe, the first chunk of its packet.
    Probe,
}

impl Retransmission {
    #[inline]
    fn is_first(self) -> bool {
        self != Retransmission::Bundled
    }
}

impl Board {
    /// Creates an empty scoreboard; the first record has the TSN `una`.
    pub(super) fn new(una: ExtSeq) -> Self {
        Board {
            records: VecDeque::new(),
            una,
            sacked: Ranges::default(),
            pipe: 0,
            flight: 0,
            outstanding: 0,
            awaiting_retransmission: 0,
            sacked_packets: 0,
            retransmitted_in_flight: 0,
            loss_edge: una,
            resent_by_time: VecDeque::new(),
            high_rxt: una,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the next TSN to send.
    pub(super) fn nxt(&self) -> ExtSeq {
        self.una.plus(self.records.len() as u64)
    }

    pub(super) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// Returns the bytes of all chunks sent and not acknowledged.
    pub(super) fn flight(&self) -> u64 {
        self.flight
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Returns the number of packets received beyond gaps: RACK.segs_sacked (RFC 8985 §5.3).
    pub(super) fn sacked_packets(&self) -> u64 {
        self.sacked_packets
    }

    /// Returns true while a retransmission may be in the network.
    pub(super) fn resent_in_flight(&self) -> bool {
        self.retransmitted_in_flight > 0
    }

    /// Returns true while a record is lost and not retransmitted.
    pub(super) fn awaits_retransmission(&self) -> bool {
        self.awaiting_retransmission > 0
    }

    /// Returns true if the oldest unacknowledged chunk is SACKed. The peer has then dropped the chunk after reporting
    /// it: otherwise the cumulative TSN would include the chunk.
    pub(super) fn head_sacked(&self) -> bool {
        self.records.front().is_some_and(|r| r.has_mark(SACKED))
    }

    /// Returns true if a chunk shorter than the oldest chunk was SACKed.
    pub(super) fn shorter_arrived(&self) -> bool {
        let Some(head) = self.records.front() else { return false };
        self.records.iter().any(|r| r.has_mark(SACKED) && r.len < head.len)
    }

    /// Adds a chunk sent for the first time.
    pub(super) fn push(&mut self, record: Record) {
        debug_assert!(record.is_sent_once());
        self.pipe += record.chunk_len();
        self.flight += record.chunk_len();
        self.outstanding += record.outstanding_bytes();
        self.records.push_back(record);
    }

    /// Acknowledges all chunks below `una` (RFC 9260 §6.7), and calls `on_acknowledged` for each message.
    pub(super) fn acknowledge(
        &mut self,
        una: ExtSeq,
        delivery: &mut Delivery,
        mut on_acknowledged: impl FnMut(MessageRef),
    ) {
        while self.una < una
            && let Some(record) = self.records.pop_front()
        {
            if record.is_sent_once() {
                self.acknowledge_run(record, una, delivery, &mut on_acknowledged);
                continue;
            }
            self.una = self.una.plus(1);
            delivery.ambiguous |= record.sends > 1;
            if !record.has_mark(SACKED) {
                delivery.bytes += record.chunk_len();
                let sent = Transmission { at: record.sent_at, end: self.una };
                delivery.add_segment(sent, record.sends > 1, AckKind::CumulativeAck);
            }
            self.count(&record, |total, n| *total -= n);
            on_acknowledged(record.message());
        }
        if !self.sacked.is_empty() {
            self.sacked.remove_below(una);
        }
        self.loss_edge = self.loss_edge.max(una);
        self.high_rxt = self.high_rxt.max(una);
        if self.records.is_empty() {
            self.resent_by_time.clear();
        }
    }

    /// Acknowledges `record`, taken from the front, and the following records below `una` that were sent once.
    fn acknowledge_run(
        &mut self,
        mut record: Record,
        una: ExtSeq,
        delivery: &mut Delivery,
        on_acknowledged: &mut impl FnMut(MessageRef),
    ) {
        let first = Transmission { at: record.sent_at, end: self.una.plus(1) };
        let (mut chunks, mut bytes) = (0, 0);
        loop {
            self.una = self.una.plus(1);
            chunks += record.chunk_len();
            bytes += record.outstanding_bytes();
            on_acknowledged(record.message());
            match self.records.front() {
                Some(next) if self.una < una && next.is_sent_once() => record = *next,
                _ => break,
            }
            self.records.pop_front();
        }
        self.pipe -= chunks;
        self.flight -= chunks;
        self.outstanding -= bytes;
        delivery.bytes += chunks;
        delivery.add_run(first, Transmission { at: record.sent_at, end: self.una });
    }

    /// Processes a Gap Ack Block within the chunks in flight. Returns true if it reported new data.
    pub(super) fn sack(&mut self, block: Range, delivery: &mut Delivery) -> bool {
        let mut at = block.start;
        let mut newly_sacked = false;
        while let Some(gap) = self.sacked.first_gap(at, block.end) {
            if self.sacked.len() >= MAX_SACKED_RANGES && !self.sacked.touches(gap) {
                break;
            }
            self.sacked.insert(gap);
            for index in self.index(gap.start)..self.index(gap.end) {
                let record = self.records[index];
                let sent = Transmission { at: record.sent_at, end: self.tsn(index).plus(1) };
                delivery.bytes += record.chunk_len();
                delivery.add_segment(sent, record.sends > 1, AckKind::Sack);
                self.mark(index, |r| r.marks |= SACKED);
            }
            newly_sacked = true;
            at = gap.end;
        }
        newly_sacked
    }

    /// Returns the number of SACKed TSNs below `end`.
    pub(super) fn sacked_below(&self, end: ExtSeq) -> u64 {
        let above = self.sacked.iter().rev().take_while(|range| range.end > end);
        let above = above.map(|range| range.end.since(range.start.max(end))).sum::<u64>();
        self.sacked.bytes() - above
    }

    /// Discards all SACK reports after the peer has reneged (RFC 9260 §6.2.1 D iii).
    pub(super) fn clear_sacks(&mut self) {
        self.sacked.clear();
        for i in 0..self.records.len() {
            if self.records[i].has_mark(SACKED) {
                self.mark(i, |r| r.marks &= !SACKED);
            }
        }
        self.loss_edge = self.una;
    }

    /// Marks as lost every record that is not SACKed.
    pub(super) fn mark_all_lost(&mut self) {
        self.mark_lost_if(|_| true);
        self.resent_by_time.clear();
    }

    /// Marks records with more than `max_len` bytes of user data as lost, because the path no longer carries them
    /// (RFC 8899 §4.4).
    pub(super) fn mark_longer_lost(&mut self, max_len: usize) {
        self.mark_lost_if(|r| usize::from(r.len) > max_len);
    }

    fn mark_lost_if(&mut self, lost: impl Fn(&Record) -> bool) {
        for i in 0..self.records.len() {
            if !self.records[i].has_mark(SACKED) && lost(&self.records[i]) {
                self.mark(i, |r| r.marks = (r.marks | LOST) & !RETRANSMITTED);
            }
        }
        self.high_rxt = self.una;
    }

    /// Clears all loss marks after spurious losses.
    pub(super) fn clear_losses(&mut self) {
        for i in 0..self.records.len() {
            if self.records[i].has_mark(LOST) {
                self.mark(i, |r| r.marks &= !LOST);
            }
        }
        self.loss_edge = self.una;
    }

    /// Returns the index of the next chunk that is lost and not retransmitted (RFC 6675 §4, NextSeg rule 1).
    pub(super) fn next_lost(&self) -> Option<usize> {
        if self.awaiting_retransmission == 0 {
            return None;
        }
        let from = self.index(self.high_rxt).min(self.records.len());
        (from..self.records.len()).chain(0..from).find(|i| self.records[*i].awaits_retransmission())
    }

    /// Returns the index of the last chunk not SACKed.
    pub(super) fn last_unsacked(&self) -> Option<usize> {
        (0..self.records.len()).rev().find(|i| !self.records[*i].has_mark(SACKED))
    }

    /// Records that the chunk at `index` was retransmitted now. A probe does not advance HighRxt.
    pub(super) fn on_retransmitted(&mut self, index: usize, now: Instant, kind: Retransmission) {
        self.mark(index, |r| {
            r.marks = (r.marks | RETRANSMITTED) & !FIRST_IN_PACKET
                | if kind.is_first() { FIRST_IN_PACKET } else { 0 };
            r.sends = r.sends.saturating_add(1);
            r.sent_at = now;
        });
        let tsn = self.tsn(index);
        self.note_resent(tsn, now);
        if kind != Retransmission::Probe {
            self.high_rxt = self.high_rxt.max(tsn.plus(1));
        }
    }

    /// Returns true if the chunk is acknowledged or SACKed.
    pub(super) fn has_arrived(&self, tsn: ExtSeq) -> bool {
        tsn < self.una || self.sacked.containing(tsn).is_some()
    }

    pub(super) fn tsn(&self, index: usize) -> ExtSeq {
        self.una.plus(index as u64)
    }

    pub(super) fn index(&self, tsn: ExtSeq) -> usize {
        tsn.since(self.una) as usize
    }

    /// Changes a record and updates the totals.
    pub(super) fn mark(&mut self, index: usize, change: impl FnOnce(&mut Record)) {
        let before = self.records[index];
        self.count(&before, |total, n| *total -= n);
        change(&mut self.records[index]);
        let after = self.records[index];
        self.count(&after, |total, n| *total += n);
    }

    /// Applies `change`, an addition or subtraction, to each total and the record's share in it.
    fn count(&mut self, record: &Record, change: impl Fn(&mut u64, u64)) {
        change(&mut self.pipe, record.pipe_bytes());
        change(&mut self.flight, record.chunk_len());
        change(&mut self.outstanding, record.outstanding_bytes());
        change(&mut self.awaiting_retransmission, u64::from(record.awaits_retransmission()));
        let packet = record.marks & (SACKED | FIRST_IN_PACKET) == SACKED | FIRST_IN_PACKET;
        change(&mut self.sacked_packets, u64::from(packet));
        change(&mut self.retransmitted_in_flight, u64::from(record.is_retransmission_in_flight()));
    }
}
