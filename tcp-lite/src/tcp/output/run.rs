//! Fast path of transmission. A run is a series of consecutive segments of new data. The checks of
//! [`send_next`](Connection::send_next) are made once per run. The headers differ only in sequence number and PSH.
//! Counters, timers and the acknowledgement state are updated once per run.
//!
//! For each segment of a run, all windows have room for the effective MSS; the source may write less. `send_next`
//! handles everything else: retransmissions, the FIN, CWR, probes, loss episodes, smaller windows, and the reason why
//! transmission stops. A run may therefore end at any segment. The segments sent are the same with and without runs.

use base::Instant;
use transport::pacing::Pace;
use wire::crc32c::Sum;

use super::{Connection, SendOutcome};
use crate::seam::{SegmentSource, SpanSink, TxBatch};
use crate::tcp::segment::{DataHeader, Flags};

/// Limits of a run, computed before its first segment.
#[derive(Clone, Copy, Debug)]
struct RunLimits {
    /// Smallest of three amounts of room, bytes: in the congestion window, in the window that the peer advertised, and
    /// below the configured `send_window`, the limit on unacknowledged data.
    room: u64,
    /// Number of free records on the scoreboard.
    records: usize,
    /// Pacing rate and burst; `None` without pacing.
    pace: Option<Pace>,
}

impl Connection {
    /// Sends segments while the next segment can only be new data and the windows have room for the effective MSS.
    /// Returns the reason why transmission stops, or `None` if [`send_next`](Self::send_next) has to continue.
    pub(super) fn send_run<U: SegmentSource + SpanSink>(
        &mut self,
        now: Instant,
        up: &mut U,
        tx: &mut impl TxBatch,
    ) -> Option<SendOutcome> {
        #[cfg(test)]
        if !switch::is_on() {
            return None;
        }
        let mut limits = self.run_limits(now, tx)?;
        if !up.has_data() {
            return Some(SendOutcome::Declined);
        }
        let (emss, header_len) = (self.send.emss(), self.header_len());
        let (first, offset) = (self.send.nxt, self.send.offset(self.send.nxt));
        let push_all = self.pushes_all();
        let ecn_capable = self.ecn.sends_ect();
        let mut in_flight = self.send.flight() > 0;
        let mut header = None;
        let (mut bytes, mut segments) = (0, 0);
        let stopped_by = loop {
            if limits.room < emss as u64 || limits.records == 0 {
                break None;
            }
            let Some(out) = tx.reserve_segment(header_len + emss) else {
                break Some(SendOutcome::BatchFull);
            };
            let payload = &mut out[header_len..header_len + emss];
            let len = up.fill(offset + bytes, emss, in_flight, payload).min(emss);
            if len == 0 {
                break Some(SendOutcome::Declined);
            }
            let more = up.has_data();
            let seq = first.plus(bytes);
            let header = header.get_or_insert_with(|| self.run_header(now, up.room()));
            let fields = header.write(seq.wire(), push_all || !more, out);
            if ecn_capable {
                tx.set_ecn_capable(); // RFC 3168 §6.1.5
            }
            if !more {
                tx.mark_last();
            }
            let sum = up.text_sum().map(|text| Sum::from_fields(fields).concat(text));
            tx.commit_with_sum(header_len + len, sum);
            self.send.outstanding.board.push(seq, len as u16, false, now);
            (bytes, segments) = (bytes + len as u64, segments + 1);
            in_flight = true;
            limits.room -= len as u64;
            limits.records -= 1;
            if let Some(pace) = limits.pace {
                self.send.outstanding.state.on_paced_sent(now, len as u64, pace);
            }
            if !more {
                break Some(SendOutcome::Declined);
            }
            if limits.pace.is_some() && self.send.outstanding.state.paced_until(now).is_some() {
                break None;
            }
        };
        if segments > 0 {
            self.record_run_sent(now, bytes, segments);
        }
        stopped_by
    }

    /// Returns the limits of a run; `None` if the next segment may be something other than new data, or pacing defers
    /// it.
    fn run_limits(&self, now: Instant, tx: &impl TxBatch) -> Option<RunLimits> {
        let send = &self.send;
        let (board, state) = (&send.outstanding.board, &send.outstanding.state);
        let special = !self.state.may_send()
            || send.fin_queued
            || send.probe_due
            || !send.recovery.is_settled()
            || board.awaits_retransmission()
            || state.resend_ignores_cwnd()
            || self.ecn.is_cwr_due(self.stats.window_reductions())
            || self.due_probe_len(now).is_some();
        if special {
            return None;
        }
        let pace = send.pace(&self.config, tx.is_shared());
        if pace.is_some() && state.paced_until(now).is_some() {
            return None;
        }
        let cwnd = send.recovery.cc().cwnd().saturating_sub(send.pipe());
        let records = self.config.max_records().saturating_sub(board.len());
        Some(RunLimits { room: cwnd.min(send.usable_window()), records, pace })
    }

    /// Returns the header of a run, and records its window as advertised. `room`: free space of the upper layer, bytes.
    /// Inlined so that the header stays in registers. A copy through memory would wait for all earlier stores,
    /// including the stores into the packet.
    #[inline(always)]
    fn run_header(&mut self, now: Instant, room: u64) -> DataHeader {
        let window = self.recv.advertise(room);
        self.data_header(now, Flags::default(), window)
    }

    /// Records a run of `segments` segments with `bytes` of payload as sent.
    fn record_run_sent(&mut self, now: Instant, bytes: u64, segments: u64) {
        if self.send.flight() == 0 {
            self.send.progress_at = now;
        }
        self.send.nxt = self.send.nxt.plus(bytes);
        self.send.last_sent = now;
        self.stats.segments_out += segments;
        #[cfg(test)]
        switch::count(segments);
        self.on_ack_sent(false);
    }
}

/// Test switch that turns runs off, for comparison.
#[cfg(test)]
pub(in crate::tcp) mod switch {
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<bool> = const { Cell::new(true) };
        static SEGMENTS: Cell<u64> = const { Cell::new(0) };
    }

    /// Calls `work` with runs turned off, so that each segment is sent by `send_next`. Returns its result.
    pub(in crate::tcp) fn without_runs<T>(work: impl FnOnce() -> T) -> T {
        ON.set(false);
        let result = work();
        ON.set(true);
        result
    }

    /// Returns the number of segments that this thread has sent in runs.
    pub(in crate::tcp) fn segments() -> u64 {
        SEGMENTS.get()
    }

    pub(super) fn count(segments: u64) {
        SEGMENTS.set(SEGMENTS.get() + segments);
    }

    pub(super) fn is_on() -> bool {
        ON.get()
    }
}
