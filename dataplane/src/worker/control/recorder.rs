//! Flight recordings (recent protocol events) of connections and associations, for the control thread. A recording is
//! reported on request, and when a stream does not end gracefully.

use base::{ErrorNumbers, Instant};
use ddp::StreamId;

use crate::api::{CloseReason, Event, MAX_RECORDINGS, Record, RecordKind, Recording, Ticket};
use crate::io::PortIo;
use crate::worker::flows::associations::{Association, Associations};
use crate::worker::flows::conn::{Conn, Stage, Stream};
use crate::worker::flows::lower_layer::LowerLayer;
use crate::worker::{Core, Env};

impl<Io: PortIo> Core<Io> {
    /// Reports the recordings of the first [`MAX_RECORDINGS`] of `streams`. Streams that have ended are skipped.
    pub(in crate::worker) fn list_recordings(
        &mut self,
        streams: &[StreamId],
        ticket: Ticket,
        now: Instant,
    ) {
        let (all, associations) = (&self.streams, &self.associations);
        let found =
            streams.iter().take(MAX_RECORDINGS).filter_map(|id| all.get(all.find_stream(*id)?));
        let live = found.filter(|conn| conn.stage != Stage::Ended);
        let recordings =
            live.map(|conn| recording(conn, association_of(conn, associations), now)).collect();
        self.env.control.send(Event::Recordings { ticket: Some(ticket), recordings });
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reports the recording of a stream that ends, unless the stream ends gracefully, the recording is empty, or the
    /// stream was never announced to the control thread.
    pub(in crate::worker) fn report_records(&mut self, stream: &Stream<'_>, reason: &CloseReason) {
        let known = matches!(stream.conn.stage, Stage::Announced | Stage::Established);
        if !known || reason.is_graceful() {
            return;
        }
        let recording = recording(stream.conn, stream.association.as_deref(), self.now);
        if !recording.records.is_empty() {
            self.control.send(Event::Recordings { ticket: None, recordings: vec![recording] });
        }
    }
}

/// Records a Terminate, or an error that DDP or RDMAP has detected, on a stream over SCTP. TCP endpoints record these
/// themselves.
#[cold]
pub(in crate::worker) fn record_session_error(
    stream: &mut Stream<'_>,
    kind: RecordKind,
    numbers: ErrorNumbers,
    now: Instant,
) {
    let LowerLayer::Sctp(session) = &stream.conn.lower else { return };
    let record = Record::from_error(now, kind, session.id.stream.into(), numbers);
    if let Some(association) = stream.association.as_deref_mut() {
        association.endpoint_mut().record(record);
    }
}

fn association_of<'a>(conn: &Conn, associations: &'a Associations) -> Option<&'a Association> {
    match &conn.lower {
        LowerLayer::Tcp(_) => None,
        LowerLayer::Sctp(session) => associations.get(session.association),
    }
}

fn recording(conn: &Conn, association: Option<&Association>, now: Instant) -> Recording {
    let (records, left_out) = match (&conn.lower, association) {
        (LowerLayer::Tcp(carrier), _) => carrier.endpoint().connection().records(),
        (LowerLayer::Sctp(_), Some(association)) => {
            association.endpoint().association().sender().records()
        }
        (LowerLayer::Sctp(_), None) => Default::default(),
    };
    let (stream, transport) = (conn.id, conn.lower.transport());
    Recording { stream, transport, now, records, left_out }
}
