//! A run of a bench: its streams, their loads, and its progress. [`super`] describes the states of a run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api::{
    ApiError, BenchInfo, BenchLoad, BenchSpec, Counters, ErrorKind, JobInfo, JobState, RemotePlace,
};
use dataplane::memory::Memory;
use dataplane::{Load, LoadKind, Order, Pace, StreamInfo, StreamStats, Window};
use ddp::advert::Advertised;
use ddp::{Access, Qn, Stag, StreamId, TaggedOffset};

use super::super::remote_target::{Need, resolve_target};
use super::limits::MAX_WINDOW;
use super::results::Results;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::env::Env;
use crate::appliance::loader::LoadTask;
use crate::appliance::pending::{Loading, SinkOwner};
use crate::service::perftest::client::Client;

pub(super) struct Run {
    pub(super) spec: BenchSpec,
    pub(super) state: JobState,
    /// Final state and error, once the run is ending.
    pub(super) ending: Option<(JobState, Option<ApiError>)>,
    pub(super) streams: Vec<RunStream>,
    /// Local memory from which all streams write, or into which they read.
    pub(super) memory: Option<Memory>,
    /// Number of bytes used in local memory and in the peer's region.
    pub(super) window: u64,
    /// Time of a client's last request about the job: start of the lease.
    pub(super) lease_renewed_at: Instant,
    /// Time at which the loads started.
    pub(super) started: Option<Instant>,
    /// In `Running`, the end of posting. In `Stopping`, the time at which the run fails unless bytes have moved. During
    /// a perftest exchange, the time-out of the server's answer.
    pub(super) deadline: Option<Instant>,
    /// Time at which a run in `Stopping` fails even if bytes move.
    pub(super) end_deadline: Option<Instant>,
    /// Bytes moved at the last progress check in `Stopping`; `None` before the first check.
    pub(super) bytes_at_last_check: Option<u64>,
    /// The workers' counters of load messages and bytes when the loads started; results are relative to them.
    pub(super) baseline: (u64, u64),
    /// Number of streams being opened.
    pub(super) opening: u32,
    /// Time at which the next stream of `connect` is due, if the load has a rate.
    pub(super) next_open_at: Instant,
    pub(super) results: Results,
    /// Exchange with a perftest server.
    pub(super) perftest: Option<Client>,
    /// Time of the next retry of an open that a perftest server refused. The server does not listen all the time.
    pub(super) retry_at: Option<Instant>,
    /// Time after which a refused open is not retried.
    pub(super) retry_until: Option<Instant>,
}

pub(super) struct RunStream {
    pub(super) id: StreamId,
    /// STag of the local memory for this stream.
    pub(super) stag: Option<Stag>,
    /// STag and TO in the peer's memory.
    pub(super) remote: (Stag, u64),
    /// True once the load has been sent to the stream's worker.
    pub(super) loaded: bool,
    /// True once the worker has reported the end of the load.
    pub(super) reported: bool,
    /// True until the stream has ended.
    pub(super) open: bool,
    /// True for the control stream to a perftest server, which has no load.
    pub(super) control: bool,
}

impl Run {
    pub(super) fn stream_mut(&mut self, stream: StreamId) -> Option<&mut RunStream> {
        self.streams.iter_mut().find(|part| part.id == stream)
    }

    /// Returns STag and TO in the peer's memory for the newest stream. For the first stream, also sets `window`.
    pub(super) fn locate_target(
        &mut self,
        regions: &[Advertised],
    ) -> Result<(Stag, u64), ApiError> {
        let target = match &self.spec.target {
            Some(target) => target.clone(),
            None => RemotePlace::Region { name: only_region(regions)?, offset: 0 },
        };
        let need = if self.spec.load == BenchLoad::Read { Need::Read } else { Need::Write };
        let (count, total) = (self.streams.len(), self.spec.streams);
        if count > 1 {
            let hint = "a region for several streams needs `shared = true`";
            return resolve_target(&target, self.window, regions, need).map_err(|error| {
                let message = format!("stream {count} of {total}: {} ({hint})", error.message);
                ApiError { message, ..error }
            });
        }
        let size = u64::from(self.spec.size);
        let found = resolve_target(&target, size, regions, need)?;
        let rest = match &target {
            RemotePlace::Region { name, offset } => {
                let region = regions.iter().find(|region| region.name == *name);
                region.map_or(size, |region| region.len - offset)
            }
            RemotePlace::Tagged { .. } => size,
        };
        self.window = rest.min(MAX_WINDOW).max(size);
        self.spec.target = Some(target);
        Ok(found)
    }

    /// Requests the run's local memory from the loader.
    pub(super) fn make_memory(&mut self, env: &mut Env, id: u64) {
        self.state = JobState::Staging;
        let task = match self.spec.load {
            BenchLoad::Read => LoadTask::Scratch(self.window),
            _ => LoadTask::Source(self.window),
        };
        env.load(task, Loading::Bench { job: id });
    }

    /// Registers the local memory for the newest stream.
    pub(super) fn add_sink(&self, id: u64, out: &mut Effects) {
        let (Some(part), Some(memory)) = (self.streams.last(), self.memory.clone()) else { return };
        out.push(Effect::AddSink {
            owner: SinkOwner::Bench(id, part.id),
            stream: part.id,
            memory,
            offset: 0,
            base_to: part.remote.1,
            len: self.window,
            access: Access::NONE,
        });
    }

    /// Returns the load of a stream; `None` for a control stream, and for `connect`.
    pub(super) fn load(&self, slot: usize) -> Option<Load> {
        let spec = &self.spec;
        let part = &self.streams[slot];
        if part.control {
            return None;
        }
        let window = || Window {
            local: part.stag.unwrap_or(Stag(0)),
            remote: part.remote.0,
            base: TaggedOffset(part.remote.1),
            bytes: self.window,
            order: Order::Sequential,
        };
        let kind = match spec.load {
            BenchLoad::Write => LoadKind::Write(window()),
            BenchLoad::Read => LoadKind::Read(window()),
            BenchLoad::Send => LoadKind::Send { qn: Qn(spec.queue) },
            BenchLoad::Echo => LoadKind::Echo { qn: Qn(spec.queue) },
            BenchLoad::Connect => return None,
        };
        let pace = spec.rate.map_or(Pace::Closed, |rate| {
            let every = Duration::from_secs_f64(f64::from(spec.streams) / rate as f64);
            let phase = every.mul_f64(slot as f64 / f64::from(spec.streams));
            Pace::Open { interval: every, phase }
        });
        Some(Load { pace, timed: true, ..Load::closed(kind, spec.size, spec.depth) })
    }

    /// Returns the bytes moved on the run's streams: acknowledged by peers plus placed here.
    pub(super) fn bytes_moved(&self, streams: &HashMap<StreamId, StreamInfo>) -> u64 {
        let moved = |stats: &StreamStats| {
            let ddp = stats.ddp();
            stats.bytes_acknowledged() + ddp.placed_in_order_bytes + ddp.placed_out_of_order_bytes
        };
        let own = self.streams.iter().filter_map(|part| streams.get(&part.id));
        own.map(|info| moved(&info.stats)).sum()
    }

    /// Returns the beginning of an error message about messages that did not complete in time.
    pub(super) fn incomplete(&self) -> String {
        let incomplete = self.streams.iter().filter(|part| !part.reported).count();
        let streams = if incomplete == 1 { "stream" } else { "streams" };
        format!("messages on {incomplete} {streams} did not complete")
    }

    /// Returns the number of streams that have or will have a load.
    pub(super) fn loaded_streams(&self) -> usize {
        self.streams.iter().filter(|part| !part.control).count()
    }

    /// Adds a hint to an error: the peer may lack the service, or run a different perftest program.
    pub(super) fn with_hint(&self, error: ApiError) -> ApiError {
        if self.perftest.is_some() {
            let (program, size) = (self.perftest_program(), self.spec.size);
            let message = format!("{}; is it `{program} -R -s {size}`?", error.message);
            return ApiError { message, ..error };
        }
        let service = match self.spec.load {
            BenchLoad::Send => "sink",
            BenchLoad::Echo => "echo",
            BenchLoad::Write | BenchLoad::Read | BenchLoad::Connect => return error,
        };
        // The peer may have acknowledged the first messages before it refused them.
        let first = u64::from(self.spec.streams * self.spec.depth);
        if error.error != ErrorKind::PeerRefused || self.results.messages > first {
            return error;
        }
        let message = format!(
            "{}; does the peer have the service (service = \"{service}\"), and buffers for {} messages of \
             {} bytes?",
            error.message, self.spec.depth, self.spec.size
        );
        ApiError { message, ..error }
    }

    pub(super) fn info(&self, env: &Env, id: u64, now: Instant) -> JobInfo {
        let (spec, results) = (&self.spec, &self.results);
        // Reports are complete only at the end of a run; before, counters show the progress.
        let (messages, bytes, seconds) = match self.started {
            _ if self.state.is_finished() => {
                (results.messages, results.bytes, results.nanoseconds as f64 * 1e-9)
            }
            None => (0, 0, 0.0),
            Some(begun) if spec.load == BenchLoad::Connect => {
                (results.messages, 0, now.duration_since(begun).as_secs_f64())
            }
            Some(begun) => {
                let (messages, bytes) = load_counters(env);
                let seconds = now.duration_since(begun).as_secs_f64();
                (messages - self.baseline.0, bytes - self.baseline.1, seconds)
            }
        };
        let per_s = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let error = self.ending.as_ref().and_then(|(_, error)| error.as_ref());
        JobInfo {
            id,
            kind: "bench".into(),
            file: std::path::PathBuf::new(),
            region: None,
            remote: spec.connect.remote.to_string(),
            state: self.state,
            total: 0,
            acknowledged: bytes,
            seconds,
            error: error.map(|error| error.message.clone()),
            hint: error.and_then(|error| error.hint.clone()),
            refused: error.is_some_and(|error| error.error == ErrorKind::PeerRefused),
            counters: Counters::new(),
            confirmed: None,
            bench: Some(Box::new(BenchInfo {
                load: spec.load.as_str().into(),
                streams: spec.streams,
                open: self.streams.iter().filter(|part| part.open && !part.control).count() as u32,
                size: spec.size,
                depth: spec.depth,
                time_us: spec.time_us,
                rate: spec.rate,
                messages,
                unfinished: results.unfinished,
                messages_per_s: per_s(messages),
                gbit_per_s: per_s(bytes) * 8e-9,
                latency: results.latency(),
            })),
        }
    }
}

/// Returns the workers' counters of load messages and bytes.
pub(super) fn load_counters(env: &Env) -> (u64, u64) {
    let runs = env.context.counters.iter().map(|counters| &counters.run);
    runs.fold((0, 0), |(messages, bytes), run| {
        (messages + run.load_messages.get(), bytes + run.load_bytes.get())
    })
}

/// Returns the name of the region that the peer advertises, if it is the only one.
fn only_region(regions: &[Advertised]) -> Result<String, ApiError> {
    match regions {
        [region] => Ok(region.name.clone()),
        [] => {
            let sentence = "the peer offers no region: its listener needs one in `regions`";
            Err(ApiError::peer_refused(sentence))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|region| region.name.as_str()).collect();
            let names = names.join(", ");
            let sentence = format!("the peer offers several regions ({names}): name one of them");
            Err(ApiError::bad_request(sentence))
        }
    }
}
