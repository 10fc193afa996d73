//! Flight recorder of a connection: see [`transport::recorder`].
//!
//! Not recorded:
//! - The handshake of an accepted connection, because the peer's address may be forged.
//! - Events that the owner of the connection reports anyway.
//! - FINs of a connection without other events, so that an orderly close allocates no memory.

use base::Instant;
use transport::recorder::{Kind, Record};
use transport::seq::SeqNumber;

use super::connection::Connection;
use super::segment::{Flags, Segment};
use super::state::State;

/// Fields of a TCP header that a record contains.
pub(super) struct Header {
    pub(super) seq: SeqNumber,
    pub(super) ack: SeqNumber,
    pub(super) flags: Flags,
    pub(super) window: u16,
    pub(super) len: usize,
}

impl Header {
    /// Returns the fields of a segment, received or sent.
    pub(super) fn from_segment(seg: &Segment<'_>) -> Header {
        let (len, window) = (seg.payload.len(), seg.window);
        Header { seq: seg.seq, ack: seg.ack, flags: seg.flags, window, len }
    }

    pub(super) fn record(&self, now: Instant, kind: Kind) -> Record {
        Record::new(now, kind, self.seq.0, self.ack.0).with_header(
            self.flags.0,
            self.window,
            self.len,
        )
    }
}

impl Connection {
    /// Returns the records, oldest first, and the number of older records that were dropped.
    pub fn records(&self) -> (Vec<Record>, u64) {
        self.stats.records()
    }

    /// Records an event of TCP or of the upper layer, if the recorder is on and the peer's address is proven.
    #[cold]
    pub fn record(&mut self, record: Record) {
        let proven = self.state != State::SynReceived || !self.passive;
        self.stats.record(self.config.recorder && proven, record);
    }

    /// Records an event with two numbers. `kind` determines the meaning of `number` and `answer`.
    #[cold]
    pub(super) fn note(&mut self, now: Instant, kind: Kind, number: u32, answer: u32) {
        self.record(Record::new(now, kind, number, answer));
    }

    /// Records an event that occurred `count` times in a row, with SND.UNA. `kind` determines the meaning of `answer`.
    #[cold]
    pub(super) fn note_count(&mut self, now: Instant, kind: Kind, count: u32, answer: u32) {
        let una = self.send.una.wire().0;
        self.record(Record::new(now, kind, una, answer).with_count(count));
    }

    /// Records an event with a segment's header.
    #[cold]
    pub(super) fn note_header(&mut self, now: Instant, kind: Kind, header: &Header) {
        self.record(header.record(now, kind));
    }

    /// Schedules a reset that ends the connection, and records it.
    #[cold]
    pub(super) fn record_and_reset(&mut self, now: Instant) {
        let (seq, ack) = (self.send.control_seq().wire(), self.recv.nxt.wire());
        let flags = Flags::RST.with(Flags::ACK);
        self.note_header(now, Kind::ResetSent, &Header { seq, ack, flags, window: 0, len: 0 });
        self.schedule_reset(seq);
    }

    /// Returns the currently offered window, scaled as in a header.
    pub(super) fn offered_window(&self) -> u16 {
        let window = self.recv.edge.since(self.recv.nxt) >> self.recv.shift;
        u16::try_from(window).unwrap_or(u16::MAX)
    }

    /// Records a change of state from `from`, if the memory for records is already allocated.
    #[cold]
    pub(super) fn note_state(&mut self, now: Instant, from: State) {
        if self.stats.cold().is_some() && from != self.state {
            self.note(now, Kind::State, from as u32, self.state as u32);
        }
    }

    /// Records a FIN, received or sent, if the memory for records is already allocated.
    #[cold]
    pub(super) fn note_fin(&mut self, now: Instant, kind: Kind, header: &Header) {
        if self.stats.cold().is_some() {
            self.note_header(now, kind, header);
        }
    }
}
