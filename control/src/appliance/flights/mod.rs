//! The flight recorder: a record of each stream's events, and an archive of the records of streams that did not close
//! gracefully.
//!
//! The control thread creates the entries of a record from the workers' events: the beginning of the stream,
//! deliveries, errors, and the close of each direction. In addition, each worker records events of TCP and SCTP in a
//! small ring per connection ([`dataplane::Record`]), and sends the ring when a stream does not end gracefully, or on
//! request. The headers of segments that DDP or RDMAP refused are recorded, payload is not. The recorder is on unless
//! `management.recorder` is false.
//!
//! Consecutive deliveries share one entry, so a busy stream needs about as much memory as an idle one. If a stream has
//! more than [`ENTRIES`] entries, entries in the middle are dropped and counted. The record of a stream that ends by an
//! error, a Terminate, a reset or a time-out is archived. The archive is bounded in number and bytes. To make room, the
//! oldest record is dropped. If there are too many records, and the peer of the newest one has more than half of the
//! permitted number, that peer's oldest record is dropped instead.

mod advice;
mod flight;
mod names;
mod recording;
mod render;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use api::{self, ExplainSubject};
use dataplane::{CloseReason, Event, MAX_RECORDINGS, PostFailure, StreamStats};
use ddp::StreamId;

pub(in crate::appliance) use self::flight::rdmap_code;
use self::flight::{End, EntryKind, Flight};
use self::recording::WorkerRecording;
use super::counters;

/// Maximum number of entries of one stream.
const ENTRIES: usize = 32;

#[derive(Default)]
pub(super) struct Flights {
    live: HashMap<StreamId, Flight>,
    /// Records of ended streams, oldest first.
    archive: VecDeque<Flight>,
    /// Memory of the archived records, bytes.
    bytes: usize,
}

/// Limits of the archive of ended streams.
#[derive(Clone, Copy)]
pub(super) struct ArchiveBounds {
    /// Maximum number of records.
    pub streams: usize,
    /// Maximum size of all records, bytes.
    pub bytes: usize,
}

/// Facts about the end of a stream that the control thread adds.
pub(super) struct EndContext<'a> {
    pub listener: Option<&'a str>,
    pub job: Option<u64>,
    /// Cause of the end, one sentence.
    pub sentence: &'a str,
    /// True if the stream ended gracefully.
    pub graceful: bool,
}

impl Flights {
    /// Records a worker's event. Called before the event is handled.
    pub(super) fn observe(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Incoming { stream, local, remote, revision, .. } => {
                let mut flight = Flight::new(*stream, *local, *remote, true, now);
                let revision = revision.map(|revision| revision.number());
                flight.add(now, EntryKind::Requested { revision });
                self.live.insert(*stream, flight);
            }
            Event::Established { stream, local, remote, params, .. } => {
                let opened = || Flight::new(*stream, *local, *remote, false, now);
                self.live.entry(*stream).or_insert_with(opened).on_established(now, params);
            }
            Event::TaggedDelivered { stream, len, .. } => self.on_delivered(*stream, *len, now),
            Event::Untagged { stream, data, .. } | Event::Received { stream, data, .. } => {
                self.on_delivered(*stream, data.len() as u64, now);
            }
            Event::Error { stream, error } => {
                let (layer, code) = ("ddp", (error.code.error_type(), error.code.code()));
                let what = EntryKind::error(layer, code, error.to_string(), &error.header);
                self.add(*stream, now, what);
            }
            Event::RdmapError { stream, error } => {
                let (layer, code) = rdmap_code(error);
                let what = EntryKind::error(layer, code, error.to_string(), flight::header(error));
                self.add(*stream, now, what);
            }
            Event::Terminated { stream, by_peer, terminate } => {
                let numbers = terminate.numbers();
                let what = EntryKind::terminate(*by_peer, numbers, terminate.to_string());
                self.add(*stream, now, what);
            }
            Event::PeerClosed { stream, incomplete } => {
                self.add(*stream, now, EntryKind::PeerClosed { incomplete: *incomplete });
            }
            Event::Stalled { stream, stall } => {
                self.add(*stream, now, EntryKind::Stalled { timeouts: stall.timeouts });
            }
            Event::Resumed { stream } => self.add(*stream, now, EntryKind::Resumed),
            // The stream is ending, which `on_ended` records.
            Event::PostFailed { reason: PostFailure::Flushed | PostFailure::NoStream, .. } => {}
            Event::PostFailed { stream, reason, .. } => {
                self.add(*stream, now, EntryKind::post_failed(reason.to_string()));
            }
            Event::Recordings { recordings, .. } => {
                for recording in recordings {
                    if let Some(flight) = self.live.get_mut(&recording.stream) {
                        flight.recording = Some(Box::new(WorkerRecording::new(recording, now)));
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the live streams of a subject, the newest first, at most [`MAX_RECORDINGS`]: the limit of one request to
    /// the workers.
    pub(super) fn live(&self, subject: ExplainSubject) -> Vec<StreamId> {
        let mut live: Vec<&Flight> = match subject {
            ExplainSubject::Stream(id) => self.live.get(&StreamId(id.0)).into_iter().collect(),
            ExplainSubject::Peer(ip, port) => {
                self.live.values().filter(|flight| is_peer(flight, ip, port)).collect()
            }
            ExplainSubject::Program(program) => {
                self.live.values().filter(|flight| flight.program == Some(program)).collect()
            }
            ExplainSubject::Job(_) => Vec::new(),
        };
        live.sort_unstable_by_key(|flight| core::cmp::Reverse(flight.started_at));
        live.iter().take(MAX_RECORDINGS).map(|flight| flight.stream()).collect()
    }

    /// Records the local program that owns a live stream.
    pub(super) fn set_program(&mut self, stream: StreamId, program: u32) {
        if let Some(flight) = self.live.get_mut(&stream) {
            flight.program = Some(program);
        }
    }

    fn add(&mut self, stream: StreamId, now: Instant, kind: EntryKind) {
        if let Some(flight) = self.live.get_mut(&stream) {
            flight.add(now, kind);
        }
    }

    fn on_delivered(&mut self, stream: StreamId, bytes: u64, now: Instant) {
        if let Some(flight) = self.live.get_mut(&stream) {
            flight.on_delivered(bytes, now);
        }
    }

    /// Ends the record of a stream. Archives it unless the stream ended gracefully.
    pub(super) fn on_ended(
        &mut self,
        stream: StreamId,
        reason: &CloseReason,
        stats: &StreamStats,
        ending: &EndContext<'_>,
        bounds: ArchiveBounds,
        now: Instant,
    ) {
        let Some(mut flight) = self.live.remove(&stream) else { return };
        if ending.graceful {
            return;
        }
        let mut counters = counters::live_counters(stats);
        counters.retain(|_, count| *count > 0);
        flight.end(now, End::new(reason, ending, counters));
        self.bytes += flight.bytes();
        let peer = flight.remote().ip();
        self.archive.push_back(flight);
        if self.archive.len() > bounds.streams {
            self.evict_from_peer(peer, bounds.streams);
        }
        self.trim(bounds);
    }

    /// Drops the oldest record of a peer that has more than half of `streams`, the permitted number of records. The
    /// peer then cannot displace all others.
    fn evict_from_peer(&mut self, peer: IpAddr, streams: usize) {
        let of_peer = |flight: &Flight| flight.remote().ip() == peer;
        let held = self.archive.iter().filter(|flight| of_peer(flight)).count();
        if held > streams.div_ceil(2)
            && let Some(oldest) = self.archive.iter().position(of_peer)
            && let Some(oldest) = self.archive.remove(oldest)
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// Drops the oldest records until the archive is within its bounds.
    pub(super) fn trim(&mut self, bounds: ArchiveBounds) {
        while self.archive.len() > bounds.streams || self.bytes > bounds.bytes {
            let Some(oldest) = self.archive.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
    }

    /// Drops the record of a stream that was rejected.
    pub(super) fn discard(&mut self, stream: StreamId) {
        self.live.remove(&stream);
    }

    /// Returns the record of a live or ended stream. `None` for a stream without a record.
    pub(super) fn stream(&self, id: StreamId, now: Instant) -> Option<api::Flight> {
        let ended = self.archive.iter().rev().find(|flight| flight.stream() == id);
        self.live.get(&id).or(ended).map(|flight| render::api_flight(flight, clock(now)))
    }

    /// Returns the records of a job's ended streams.
    pub(super) fn job_flights(&self, job: u64, now: Instant) -> Vec<api::Flight> {
        let flights = self.archive.iter().filter(|flight| flight.job() == Some(job));
        flights.map(|flight| render::api_flight(flight, clock(now))).collect()
    }

    /// Returns the records of a peer, at `port` if given: ended streams, then live streams.
    pub(super) fn peer_flights(
        &self,
        ip: IpAddr,
        port: Option<u16>,
        now: Instant,
    ) -> Vec<api::Flight> {
        self.select(now, |flight| is_peer(flight, ip, port))
    }

    /// Returns the records of a local program's streams: ended streams, then live ones.
    pub(super) fn program_flights(&self, program: u32, now: Instant) -> Vec<api::Flight> {
        self.select(now, |flight| flight.program == Some(program))
    }

    /// Returns the records that `is_meant` selects: ended streams, then live ones.
    fn select(&self, now: Instant, is_meant: impl Fn(&Flight) -> bool) -> Vec<api::Flight> {
        let mut live: Vec<&Flight> = self.live.values().filter(|f| is_meant(f)).collect();
        live.sort_unstable_by_key(|flight| flight.stream());
        let ended = self.archive.iter().filter(|flight| is_meant(flight));
        ended.chain(live).map(|flight| render::api_flight(flight, clock(now))).collect()
    }

    /// Returns the memory of a live stream's record, bytes.
    #[cfg(test)]
    pub(super) fn live_bytes(&self, id: StreamId) -> usize {
        self.live[&id].bytes()
    }

    #[cfg(test)]
    pub(super) fn live_count(&self) -> usize {
        self.live.len()
    }

    #[cfg(test)]
    pub(super) fn archived_count(&self) -> usize {
        self.archive.len()
    }

    #[cfg(test)]
    pub(super) fn archive_bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns true if the stream's peer has address `ip`, and port `port` if given.
fn is_peer(flight: &Flight, ip: IpAddr, port: Option<u16>) -> bool {
    let end = flight.remote();
    end.ip() == ip && port.is_none_or(|port| port == end.port())
}

/// Returns a function that converts an instant to microseconds since 1970.
fn clock(now: Instant) -> impl Fn(Instant) -> u64 {
    let today = SystemTime::now();
    move |at| {
        let then = today.checked_sub(now.saturating_duration_since(at));
        let since = then.and_then(|then| then.duration_since(SystemTime::UNIX_EPOCH).ok());
        u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
    }
}
