//! Records of an association for the flight recorder ([`transport::recorder`]). The header fields describe a chunk: its
//! TSN, the cumulative TSN in place of TCP's acknowledgement number, the chunk type in place of TCP's flags, and the
//! peer's window, at most 65,535 bytes.

use base::Instant;
use transport::recorder::{AwaitedEvent, Kind, Record, saturating_bytes, saturating_millis};
use wire::sctp::Tsn;

use super::Sender;

impl Sender {
    /// Returns the records from the oldest on, and the number of dropped older records.
    pub fn records(&self) -> (Vec<Record>, u64) {
        self.history.recorder.records()
    }

    /// Returns true if any event was recorded.
    pub(in crate::sctp) fn has_records(&self) -> bool {
        !self.history.recorder.is_empty()
    }

    /// Records an event of the association or of one of its streams, unless the recorder is off.
    #[cold]
    pub fn record(&mut self, record: Record) {
        if self.config.recorder {
            self.history.recorder.add(record);
        }
    }

    /// Records an event with two numbers, whose meaning depends on `kind`.
    #[cold]
    pub(in crate::sctp) fn note(&mut self, now: Instant, kind: Kind, number: u32, answer: u32) {
        self.record(Record::new(now, kind, number, answer));
    }

    /// Records an event that occurred `count` times in a row.
    #[cold]
    pub(in crate::sctp) fn note_count(
        &mut self,
        now: Instant,
        kind: Kind,
        count: u32,
        answer: u32,
    ) {
        let una = self.board.una.wire().0;
        self.record(Record::new(now, kind, una, answer).with_count(count));
    }

    /// Records an expiry of T3-rtx. Called after the timer restarted.
    #[cold]
    pub(in crate::sctp) fn note_timeout(&mut self, now: Instant) {
        let in_a_row = self.recovery.consecutive_timeouts();
        self.note_count(now, Kind::Timeout, in_a_row, saturating_millis(self.rto()));
    }

    /// Records that the association failed: `awaited` did not occur in `errors` attempts.
    #[cold]
    pub(in crate::sctp) fn note_give_up(
        &mut self,
        now: Instant,
        awaited: AwaitedEvent,
        errors: u32,
    ) {
        let record = Record::new(now, Kind::GaveUp, self.board.una.wire().0, 0).with_count(errors);
        self.record(record.with_awaited_event(awaited));
    }

    /// Records an event about a chunk that this end sends.
    #[cold]
    pub(in crate::sctp) fn note_chunk(
        &mut self,
        now: Instant,
        kind: Kind,
        chunk: u8,
        tsn: u32,
        len: usize,
    ) {
        self.record(Record::new(now, kind, tsn, 0).with_header(chunk, self.window(), len));
    }

    /// Records an event about a SACK or SHUTDOWN of the peer.
    #[cold]
    pub(in crate::sctp) fn note_answer(
        &mut self,
        now: Instant,
        kind: Kind,
        chunk: u8,
        cumulative: Tsn,
    ) {
        self.record(Record::new(now, kind, 0, cumulative.0).with_header(chunk, self.window(), 0));
    }

    /// Returns the peer's window for a record, at most 65535.
    fn window(&self) -> u16 {
        u16::try_from(self.a_rwnd).unwrap_or(u16::MAX)
    }

    /// Records the start of a loss recovery.
    #[cold]
    pub(super) fn note_recovery(&mut self, now: Instant) {
        let (flight, cwnd) = (saturating_bytes(self.board.flight()), saturating_bytes(self.cwnd()));
        self.note(now, Kind::Recovery, flight, cwnd);
    }

    /// Frees all but the newest records if no event was recorded for a minute.
    pub(in crate::sctp) fn expire_records(&mut self, now: Instant) {
        self.history.recorder.shrink(now);
    }

    /// Takes over the records of `before`, the sender that `self` replaces.
    pub(in crate::sctp) fn keep_records(&mut self, before: Sender) {
        self.history.recorder = before.history.recorder;
    }
}
