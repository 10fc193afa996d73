//! The state of all appliances of the process, as reported to the service manager.
//!
//! `READY=1` is sent once all appliances serve. `RELOADING=1` is sent when a reload begins, and `READY=1` when the last
//! reload has ended. `STOPPING=1` is sent once all appliances are ending. Each of these messages includes the status
//! line, `STATUS=`. If only numbers in the status line change, it is sent at most once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::plural::counted;
use rustix::time::{ClockId, clock_gettime};

use super::{SendOutcome, Socket};

/// Minimum interval between two status lines that differ only in numbers.
pub const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of messages queued, in order, while the manager's socket is full. Further messages are dropped.
const MAX_QUEUED: usize = 16;

/// The life-cycle stage of an appliance.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The workers have not yet set up the configured regions and listeners.
    #[default]
    Starting,
    /// The appliance accepts streams.
    Serving,
    /// The operator drains the appliance: it refuses new streams.
    Draining,
    /// The appliance ends: its jobs finish, then its streams are closed.
    Ending,
    /// The workers are stopping.
    Stopping,
}

/// Reported state of one appliance.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct State {
    /// Life-cycle stage.
    pub stage: Stage,
    /// Number of listeners.
    pub listeners: usize,
    /// Number of streams, including those being set up.
    pub streams: usize,
    /// Reloads so far, including refused reloads.
    pub reloads: u64,
    /// True while a reload is in progress.
    pub reloading: bool,
}

impl State {
    /// Returns the state without the numbers of listeners and streams.
    fn outline(&self) -> State {
        State { listeners: 0, streams: 0, ..*self }
    }
}

/// The process's state as reported to the manager. Clones share it.
#[derive(Clone, Debug)]
pub struct Service(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Socket,
    reported: Mutex<ReportedState>,
}

#[derive(Debug, Default)]
struct ReportedState {
    appliances: Vec<State>,
    /// True once `READY=1` was sent or queued for the start.
    ready: bool,
    /// True from `RELOADING=1` to the next `READY=1`.
    reloading: bool,
    /// True once `STOPPING=1` was sent or queued.
    stopping: bool,
    /// Last status line that was sent or queued, and its time.
    status: String,
    status_at: Option<Instant>,
    /// Messages to send once the socket accepts them.
    queued: Vec<String>,
}

impl Service {
    /// Creates the state of a process that starts `appliances` appliances, and sends the first status line.
    pub fn new(socket: Socket, appliances: usize) -> Service {
        let reported = ReportedState {
            appliances: vec![State::default(); appliances],
            ..ReportedState::default()
        };
        let service = Service(Arc::new(Shared { socket, reported: Mutex::new(reported) }));
        service.0.send_status(&mut service.reported(), true, Instant::now());
        service
    }

    /// Returns true if messages can be sent to a service manager.
    pub fn has_manager(&self) -> bool {
        self.0.socket.is_present()
    }

    /// Feeds the watchdog. A datagram that the socket does not accept is dropped; the next feed replaces it.
    pub fn feed(&self) {
        self.0.socket.send("WATCHDOG=1");
    }

    /// Updates the state of an appliance, given by its index, and sends the resulting messages.
    pub fn update(&self, appliance: usize, state: State, now: Instant) {
        let mut reported = self.reported();
        let reported = &mut *reported;
        let Some(state_slot) = reported.appliances.get_mut(appliance) else { return };
        let old = std::mem::replace(state_slot, state);
        let changed = old.outline() != state.outline();
        self.0.flush(reported);
        if !reported.ready && reported.all(|state| state.stage > Stage::Starting) {
            reported.ready = true;
            self.0.announce(reported, "READY=1", now);
        }
        if reported.ready && !reported.stopping {
            if state.reloads != old.reloads && !reported.reloading {
                reported.reloading = true;
                let message = format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec());
                self.0.announce(reported, &message, now);
            }
            if reported.reloading && reported.all(|state| !state.reloading) {
                reported.reloading = false;
                self.0.announce(reported, "READY=1", now);
            }
            if reported.all(|state| state.stage >= Stage::Ending) {
                reported.stopping = true;
                self.0.announce(reported, "STOPPING=1", now);
            }
        }
        self.0.send_status(reported, changed, now);
    }

    fn reported(&self) -> std::sync::MutexGuard<'_, ReportedState> {
        self.0.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Sends `message` together with the status line. Queues both if the socket is full.
    fn announce(&self, reported: &mut ReportedState, message: &str, now: Instant) {
        let status = reported.status_line();
        let message = format!("{message}\nSTATUS={status}");
        (reported.status, reported.status_at) = (status, Some(now));
        if reported.queued.is_empty() && self.socket.send(&message) == SendOutcome::Done {
            return;
        }
        if reported.queued.len() < MAX_QUEUED {
            reported.queued.push(message);
        }
    }

    fn flush(&self, reported: &mut ReportedState) {
        let sent = |message: &String| self.socket.send(message) == SendOutcome::Done;
        let sent = reported.queued.iter().take_while(|message| sent(message)).count();
        reported.queued.drain(..sent);
    }

    /// Sends the status line if it has changed, and if it is due or `at_once` is true. Sends nothing while messages are
    /// queued, to keep the order. A message that the socket drops ([`SendOutcome::Done`]) counts as sent.
    fn send_status(&self, reported: &mut ReportedState, at_once: bool, now: Instant) {
        let due = reported.status_at.is_none_or(|at| now >= at + STATUS_INTERVAL);
        if !(due || at_once) || !reported.queued.is_empty() {
            return;
        }
        let status = reported.status_line();
        if status == reported.status {
            return;
        }
        if self.socket.send(&format!("STATUS={status}")) == SendOutcome::Done {
            (reported.status, reported.status_at) = (status, Some(now));
        }
    }
}

impl ReportedState {
    fn all(&self, is: impl Fn(&State) -> bool) -> bool {
        self.appliances.iter().all(is)
    }

    fn any(&self, stage: Stage) -> bool {
        self.appliances.iter().any(|state| state.stage == stage)
    }

    /// Returns the status line.
    fn status_line(&self) -> String {
        let listeners = self.appliances.iter().map(|state| state.listeners).sum::<usize>();
        let streams =
            counted(self.appliances.iter().map(|state| state.streams).sum::<usize>(), "stream");
        if self.any(Stage::Starting) {
            "starting".into()
        } else if self.all(|state| state.stage == Stage::Stopping) {
            "stopping".into()
        } else if self.any(Stage::Ending) {
            format!("draining before the end: {streams} left")
        } else if self.reloading {
            "reloading".into()
        } else if self.any(Stage::Draining) {
            format!("draining: {streams} left")
        } else {
            format!("serving {}, {streams}", counted(listeners, "listener"))
        }
    }
}

fn monotonic_usec() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000)
}
