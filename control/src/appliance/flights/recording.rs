//! A worker's recording of a stream's connection, or of its association, and its conversion to event names and
//! sentences.

use std::time::{Duration, Instant};

use api::FlightHeader;
use base::ErrorNumbers;
use dataplane::{AwaitedEvent, Record, RecordKind as Kind, Recording, Transport};
use tcp_lite::tcp::State;

use super::names::{layer_name, seconds};

/// Errors and Terminates, which the control thread also receives as events of the worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ErrorEvent {
    /// An error in the peer's data.
    Error,
    /// An RDMAP Terminate, sent by the peer if `by_peer`, else by this end.
    Terminate { by_peer: bool },
}

/// A worker's recording, as received by the control thread.
#[derive(Debug)]
pub(super) struct WorkerRecording {
    transport: Transport,
    /// The worker's and the control thread's time at the same moment.
    clocks: (base::Instant, Instant),
    records: Vec<Record>,
    /// Number of older records that the worker has overwritten.
    pub(super) dropped_records: u64,
}

impl WorkerRecording {
    pub(super) fn new(recording: &Recording, now: Instant) -> WorkerRecording {
        WorkerRecording {
            transport: recording.transport,
            clocks: (recording.now, now),
            records: recording.records.clone(),
            dropped_records: recording.left_out,
        }
    }

    /// Returns the memory of the recording, bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<WorkerRecording>() + self.records.capacity() * size_of::<Record>()
    }

    /// Returns the records with their times, converted to the control thread's clock.
    pub(super) fn records(&self) -> impl DoubleEndedIterator<Item = (Instant, &Record)> {
        let (worker_clock, control_clock) = self.clocks;
        let at = move |record: &Record| {
            control_clock
                .checked_sub(worker_clock.saturating_since(record.at()))
                .unwrap_or(control_clock)
        };
        self.records.iter().map(move |record| (at(record), record))
    }

    fn last(&self, kind: Kind) -> Option<(Instant, &Record)> {
        self.records().rev().find(|(_, record)| record.kind() == kind)
    }

    fn first(&self, kind: Kind) -> Option<(Instant, &Record)> {
        self.records().find(|(_, record)| record.kind() == kind)
    }

    /// Returns true if the peer's last known receive window is closed.
    fn is_window_closed(&self) -> bool {
        let mut windows = self.records.iter().rev().map(Record::kind);
        windows.find(|kind| matches!(kind, Kind::WindowClosed | Kind::WindowOpened))
            == Some(Kind::WindowClosed)
    }

    /// Returns the event that was awaited when the worker aborted the connection after time-outs. `None` if the worker
    /// did not abort the connection.
    pub(super) fn awaited(&self) -> Option<AwaitedEvent> {
        self.last(Kind::GaveUp)?.1.awaited_event()
    }

    /// Returns one sentence per kind of significant event. `after` returns the time since the start of the stream.
    pub(super) fn sentences(&self, after: impl Fn(Instant) -> Duration) -> Vec<String> {
        let mut sentences = Vec::new();
        let when = |at| seconds(after(at));
        if let Some((at, record)) = self.first(Kind::Resent) {
            let resent = self.records.iter().filter(|record| record.kind() == Kind::Resent);
            let sum: u64 = resent.map(|record| u64::from(record.count)).sum();
            let sent_again = match sum {
                1 => format!("1 {} was sent again,", self.unit_name()),
                sum => format!("{sum} {}s were sent again, the first", self.unit_name()),
            };
            let (number, first) = (self.number_name(), record.number);
            sentences
                .push(format!("Lost: from {} on {sent_again} with {number} {first}.", when(at)));
        }
        if let Some((at, record)) = self.last(Kind::Timeout) {
            sentences.push(format!(
                "At {} the retransmission timer expired, the {} time in a row: nothing was acknowledged from {} {} on, \
                 and the next time-out was set for {} ms.",
                when(at),
                ordinal(record.count),
                self.number_name(),
                record.number,
                record.answer
            ));
        }
        if let Some((at, record)) = self.last(Kind::Unanswered) {
            sentences.push(format!(
                "At {} a probe of the idle peer was unanswered, the {} in a row.",
                when(at),
                ordinal(record.count)
            ));
        }
        if self.is_window_closed()
            && let Some((at, _)) = self.last(Kind::WindowClosed)
        {
            let why = match self.awaited() {
                // The peer left retransmissions or probes unanswered, so its host may be down. Its program is not
                // blamed.
                Some(AwaitedEvent::Acknowledgement | AwaitedEvent::ProbeAnswer) => "",
                _ => ": its program does not read",
            };
            sentences.push(format!(
                "At {} the peer closed its receive window and did not open it again{why}.",
                when(at)
            ));
        }
        if let Some((at, record)) = self.last(Kind::PathMtu) {
            sentences.push(format!(
                "At {} the path MTU changed: {}.",
                when(at),
                self.describe_path_mtu(record)
            ));
        }
        if let Some((at, record)) = self.last(Kind::Undone) {
            sentences.push(format!(
                "At {} a recovery was undone, by {}: packets were late, not lost.",
                when(at),
                undo_proof(record.number)
            ));
        }
        sentences
    }

    /// Returns the event name of a record, and details.
    pub(super) fn describe(&self, record: &Record) -> (&'static str, String) {
        let (number, answer, count) = (record.number, record.answer, record.count);
        match record.kind() {
            Kind::State => {
                ("state", format!("from {} to {}", state_name(number), state_name(answer)))
            }
            Kind::Resent => ("retransmission", self.describe_segments(record)),
            Kind::TailProbe => ("tail_probe", self.describe_segments(record)),
            Kind::WindowProbe => ("window_probe", self.describe_segments(record)),
            Kind::Timeout => (
                "timeout",
                format!(
                    "{} in a row; unacknowledged from {} {number} on, the next after {answer} ms",
                    ordinal(count),
                    self.number_name()
                ),
            ),
            Kind::GaveUp => ("gave_up", self.describe_give_up(record)),
            Kind::Recovery => (
                "recovery",
                format!("loss found, {number} bytes in flight, congestion window {answer} bytes"),
            ),
            Kind::Undone => (
                "undone",
                format!("spurious by {}, congestion window {answer} bytes", undo_proof(number)),
            ),
            Kind::WindowClosed => {
                ("window_closed", format!("by the peer, which acknowledges {answer}"))
            }
            Kind::WindowOpened => {
                let window = record.window;
                let detail =
                    format!("by the peer, which acknowledges {answer}: window field {window}");
                ("window_opened", detail)
            }
            Kind::Marked => (
                "congestion_mark",
                format!(
                    "{count} echoed by the peer, congestion window {answer} bytes at the first"
                ),
            ),
            Kind::PathMtu => ("path_mtu", self.describe_path_mtu(record)),
            Kind::Unanswered => ("probe_unanswered", format!("{} in a row", ordinal(count))),
            Kind::ResetSent => {
                ("reset", format!("sent by this end{}", self.describe_abort_cause(answer)))
            }
            Kind::ResetReceived => {
                ("reset", format!("sent by the peer{}", self.describe_abort_cause(answer)))
            }
            Kind::FinSent => ("fin", "sent by this end".to_owned()),
            Kind::FinReceived => ("fin", "sent by the peer".to_owned()),
            Kind::ErrorFound => ("error_found", self.describe_error(record)),
            Kind::TerminateSent => ("terminate_sent", self.describe_error(record)),
            Kind::TerminateReceived => ("terminate_received", self.describe_error(record)),
        }
    }

    /// Returns the segment or chunk header that a record contains, if any.
    pub(super) fn header(&self, record: &Record) -> Option<FlightHeader> {
        let from_peer = record.kind().header_origin()?;
        let is_reset = matches!(record.kind(), Kind::ResetSent | Kind::ResetReceived);
        // In a record of an SCTP ABORT, `answer` is the error cause.
        let acknowledges =
            if is_reset && self.transport == Transport::Sctp { 0 } else { record.answer };
        Some(FlightHeader {
            transport: self.transport.name().into(),
            from_peer,
            number: record.number,
            acknowledges,
            window: record.window,
            flags: record.flags(),
            length: record.len,
        })
    }

    /// Returns the kind and numbers of a recorded error or Terminate. `None` for other records.
    pub(super) fn error(record: &Record) -> Option<(ErrorEvent, ErrorNumbers)> {
        let event = match record.kind() {
            Kind::ErrorFound => ErrorEvent::Error,
            Kind::TerminateSent => ErrorEvent::Terminate { by_peer: false },
            Kind::TerminateReceived => ErrorEvent::Terminate { by_peer: true },
            _ => return None,
        };
        Some((event, record.error_numbers()))
    }

    fn describe_segments(&self, record: &Record) -> String {
        let (number, len) = (record.number, record.len);
        let first = format!("{} {number}, {len} bytes", self.number_name());
        match record.count {
            0 | 1 => first,
            count => format!("{count} {}s, the first {first}", self.unit_name()),
        }
    }

    fn unit_name(&self) -> &'static str {
        match self.transport {
            Transport::Tcp => "segment",
            Transport::Sctp => "chunk",
        }
    }

    fn number_name(&self) -> &'static str {
        match self.transport {
            Transport::Tcp => "sequence number",
            Transport::Sctp => "TSN",
        }
    }

    fn describe_abort_cause(&self, code: u32) -> String {
        match self.transport {
            Transport::Tcp => String::new(),
            Transport::Sctp if code == 0 => ", an ABORT without a cause".to_owned(),
            Transport::Sctp => format!(", an ABORT with cause {code}"),
        }
    }

    /// Describes a change of the path MTU by the payload or packet size before and after.
    fn describe_path_mtu(&self, record: &Record) -> String {
        let (before, now) = (record.number, record.answer);
        match self.transport {
            Transport::Tcp => format!("segments of {now} bytes of payload instead of {before}"),
            Transport::Sctp => format!("packets of {now} bytes instead of {before}"),
        }
    }

    fn describe_give_up(&self, record: &Record) -> String {
        let (count, time) = (record.count, record.answer);
        match (self.transport, record.awaited_event()) {
            (Transport::Sctp, _) => {
                format!("unanswered retransmissions and HEARTBEATs in a row: {count}")
            }
            (_, Some(AwaitedEvent::Window)) => {
                format!("the peer's window was closed for {time} ms, time-outs in a row: {count}")
            }
            (_, Some(AwaitedEvent::ProbeAnswer)) => {
                format!(
                    "{time} ms without a segment of the peer, which did not answer keepalive probes"
                )
            }
            (_, Some(AwaitedEvent::Fin)) => {
                format!(
                    "{time} ms without a segment of the peer, which did not close its direction"
                )
            }
            (_, Some(AwaitedEvent::Acknowledgement) | None) => {
                format!("{time} ms without progress, time-outs in a row: {count}")
            }
        }
    }

    fn describe_error(&self, record: &Record) -> String {
        let numbers = record.error_numbers();
        let of = match self.transport {
            Transport::Tcp => String::new(),
            Transport::Sctp => format!("stream {} of the association: ", record.number),
        };
        format!("{of}{numbers} ({})", layer_name(numbers))
    }
}

fn state_name(number: u32) -> &'static str {
    State::from_number(number).map_or("?", State::name)
}

fn undo_proof(number: u32) -> &'static str {
    match number {
        0 => "F-RTO",
        1 => "a timestamp",
        _ => "reports of duplicates",
    }
}

fn ordinal(number: u32) -> String {
    let suffix = match (number % 10, number % 100) {
        (1, hundred) if hundred != 11 => "st",
        (2, hundred) if hundred != 12 => "nd",
        (3, hundred) if hundred != 13 => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}
