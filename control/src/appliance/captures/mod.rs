//! Packet captures: at most one per port, from the workers' taps through a separate thread to an API client.
//!
//! ```text
//!  worker: Tap ──ring──> thread "capture": pcapng ──bounded channel──> API: body of the answer ──> client
//! ```
//!
//! A client that does not read blocks only the thread of its capture. The rings then fill, and the workers count lost
//! frames. A capture ends on request, at its limit, or when the client disconnects. The workers then remove their taps,
//! and the thread writes the remaining frames and the statistics. After that the port can be captured again.

mod file;
mod thread;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use api::{ApiError, CaptureSink, CaptureSpec, Reply, Responder};
use dataplane::capture::{self, Filter, StreamFilter};
use dataplane::{Command, PortId};

use super::env::Env;
use super::pending::Continuation;

/// Interval between checks whether a capture has reached its limit or lost its client.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Running captures, by port name.
#[derive(Default)]
pub(super) struct Captures {
    running: HashMap<String, RunningCapture>,
    /// Time of the next check of the running captures. `None` if no capture is running.
    poll_at: Option<Instant>,
}

/// A capture whose thread has started.
struct RunningCapture {
    port: PortId,
    /// Numbers of the workers that have a queue of the port.
    workers: Vec<u16>,
    /// Set by the thread of the capture when it needs no further frames.
    finished: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// True once the workers have been commanded to remove their taps.
    ending: bool,
}

/// Taps, each with the number of its worker.
type Taps = Vec<(u16, Box<capture::Tap>)>;

/// A client's request to capture a port, not yet validated.
pub(super) struct RequestedCapture {
    /// Name of the port.
    pub port: String,
    pub spec: CaptureSpec,
    /// Filter of the requested stream. `None` if no stream is requested, or the requested one does not exist.
    pub stream: Option<StreamFilter>,
}

/// A validated request.
struct CaptureRequest {
    port: PortId,
    workers: Vec<u16>,
    filter: Filter,
}

impl Captures {
    /// Starts a capture. The answer follows when every worker of the port has its tap.
    pub(super) fn begin(
        &mut self,
        env: &mut Env,
        requested: RequestedCapture,
        sink: CaptureSink,
        answer: Responder,
        now: Instant,
    ) {
        match self.start_capture(env, &requested, sink, now) {
            Ok((port, taps)) => {
                let RequestedCapture { port: name, spec, .. } = requested;
                tracing::info!("port {name}: a capture begins, filter `{}`", spec.filter);
                let ticket =
                    env.issue_to(taps.len(), Continuation::CaptureBegun { port: name, answer });
                for (worker, tap) in taps {
                    env.send_command(worker, Command::Capture { port, tap: Some(tap), ticket });
                }
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Checks the request and starts the capture's thread. Returns the port, and the taps that its workers must
    /// install.
    fn start_capture(
        &mut self,
        env: &Env,
        requested: &RequestedCapture,
        sink: CaptureSink,
        now: Instant,
    ) -> Result<(PortId, Taps), ApiError> {
        let CaptureRequest { port, workers, filter } = self.check(env, requested)?;
        let RequestedCapture { port: name, spec, .. } = requested;
        let filter = Arc::new(filter);
        let pairs = workers.iter().map(|_| {
            capture::pair(filter.clone(), spec.snap as usize, capture::RING_BYTES, nanos_since_1970)
        });
        let pairs = pairs
            .map(|(tap, reader)| (if spec.inside { tap.with_plaintext() } else { tap }, reader));
        let (taps, readers): (Vec<_>, Vec<_>) = pairs.unzip();
        let description = env.context.config.ports.get(usize::from(port.0));
        let description = description.map(|section| {
            format!("ddpd port, {} {}", section.kind.name(), section.kind.location())
        });
        let params = file::CaptureParams {
            name: name.to_owned(),
            description: description.unwrap_or_default(),
            filter: spec.filter.clone(),
            snap: spec.snap,
            limit: spec.limit,
            started_at: nanos_since_1970(),
        };
        let enough = Arc::new(AtomicBool::new(false));
        let thread = thread::start(params, readers, sink, enough.clone())
            .map_err(|error| ApiError::internal(format!("no thread for the capture: {error}")))?;
        let running = RunningCapture {
            port,
            workers: workers.clone(),
            finished: enough,
            thread,
            ending: false,
        };
        self.running.insert(name.to_owned(), running);
        self.poll_at = Some(now + POLL_INTERVAL);
        Ok((port, workers.into_iter().zip(taps.into_iter().map(Box::new)).collect()))
    }

    fn check(&self, env: &Env, requested: &RequestedCapture) -> Result<CaptureRequest, ApiError> {
        let RequestedCapture { port: name, spec, stream } = requested;
        let ports = &env.context.config.ports;
        let at = ports.iter().position(|section| section.name == *name).ok_or_else(|| {
            let names: Vec<&str> = ports.iter().map(|section| section.name.as_str()).collect();
            let names = names.join(", ");
            ApiError::not_found(format!(
                "there is no port `{}`: there are {names}",
                name.escape_debug()
            ))
        })?;
        if self.running.contains_key(name) {
            let message =
                format!("port {name} is being captured already, and one at a time can be");
            return Err(ApiError::conflict(message).with_hint(Some(
                "end that one: Ctrl-C at its ddpctl capture, or ddpctl capture PORT --stop",
            )));
        }
        let (snaps, limits) = (CaptureSpec::SNAP_RANGE, CaptureSpec::LIMIT_RANGE);
        if !snaps.contains(&spec.snap) {
            let (least, most) = snaps.into_inner();
            let message = format!("snap: is {}, and must be {least} to {most} bytes", spec.snap);
            return Err(ApiError::bad_request(message));
        }
        if !limits.contains(&spec.limit) {
            let (least, most) = limits.into_inner();
            let message = format!("limit: is {}, and must be {least} to {most} bytes", spec.limit);
            return Err(ApiError::bad_request(message));
        }
        let filter = Filter::parse(&spec.filter)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let filter = match (spec.stream, *stream) {
            (None, _) => filter,
            (Some(_), Some(stream)) => filter.and_stream(stream),
            (Some(id), None) => {
                return Err(ApiError::not_found(format!("there is no stream {id}")));
            }
        };
        let workers = ports[at].workers.iter().map(|&worker| worker as u16).collect();
        Ok(CaptureRequest { port: PortId(at as u16), workers, filter })
    }

    /// Answers the client once every worker of the port has its tap, or a worker has failed.
    pub(super) fn on_begun(
        &mut self,
        env: &mut Env,
        name: &str,
        result: Result<(), String>,
        answer: Responder,
    ) {
        if result.is_err() {
            self.stop(env, name, None);
        }
        answer.send(result.map(|()| Reply::EMPTY).map_err(ApiError::internal));
    }

    /// Ends a capture. The answer follows when all workers have removed their taps.
    pub(super) fn end(&mut self, env: &mut Env, name: &str, answer: Responder) {
        match self.running.contains_key(name) {
            true => self.stop(env, name, Some(answer)),
            false => {
                let message = format!("no capture of port `{}` runs", name.escape_debug());
                answer.send(Err(ApiError::not_found(message)));
            }
        }
    }

    /// Commands the workers to remove their taps, and sends `answer` when they have done so. May be called repeatedly.
    fn stop(&mut self, env: &mut Env, name: &str, answer: Option<Responder>) {
        let Some(running) = self.running.get_mut(name) else { return };
        running.ending = true;
        let (port, workers) = (running.port, running.workers.clone());
        let ticket = env.issue_to(workers.len(), Continuation::CaptureEnded { answer });
        for worker in workers {
            env.send_command(worker, Command::Capture { port, tap: None, ticket });
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due. `None` if no capture is in progress.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.poll_at
    }

    /// Ends captures whose thread needs no further frames. Removes captures whose thread has ended.
    pub(super) fn handle_timeout(&mut self, env: &mut Env, now: Instant) {
        if self.poll_at.is_none_or(|at| now < at) {
            return;
        }
        self.running.retain(|_, running| !running.thread.is_finished());
        let enough =
            |running: &RunningCapture| !running.ending && running.finished.load(Ordering::Acquire);
        let ended: Vec<String> =
            self.running.iter().filter(|(_, r)| enough(r)).map(|(name, _)| name.clone()).collect();
        for name in ended {
            tracing::info!("port {name}: its capture ends");
            self.stop(env, &name, None);
        }
        self.poll_at = (!self.running.is_empty()).then(|| now + POLL_INTERVAL);
    }
}

fn nanos_since_1970() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
