//! The state of all appliances of the process, as sent to the service manager.
//!
//! `READY=1` is sent once all appliances serve. `RELOADING=1` is sent when the first one reloads,
//! and `READY=1` when the last one has finished. `STOPPING=1` is sent once all of them end.
//! `STATUS=` follows each of these changes at once; its numbers are updated at most once a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::plural::counted;
use rustix::time::{ClockId, clock_gettime};

use super::{Sent, Socket};

/// Time between two lines that differ in numbers only.
pub const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Most messages queued while the manager's socket is full, sent in order; further ones are
/// dropped.
const WAITING: usize = 16;

/// The life-cycle stage of an appliance.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The workers have not received the configuration yet.
    #[default]
    Starting,
    /// The appliance accepts streams.
    Serving,
    /// The operator had the appliance refuse new streams.
    Draining,
    /// The appliance ends when its streams have ended.
    Ending,
    /// The workers stop.
    Stopping,
}

/// The state of one appliance.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct State {
    /// Stage of the appliance's life cycle.
    pub stage: Stage,
    /// Listeners.
    pub listeners: usize,
    /// Streams, including those being set up.
    pub streams: usize,
    /// Reloads so far, including refused ones.
    pub reloads: u64,
    /// A reload is in progress.
    pub reloading: bool,
}

impl State {
    /// Returns the state without the numbers of the status line.
    fn outline(&self) -> State {
        State { listeners: 0, streams: 0, ..*self }
    }
}

/// The process as reported to the manager; cheap to clone.
#[derive(Clone, Debug)]
pub struct Service(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: Socket,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    appliances: Vec<State>,
    ready: bool,
    reloading: bool,
    stopping: bool,
    status: String,
    status_at: Option<Instant>,
    /// Messages that the socket did not accept.
    waiting: Vec<String>,
}

impl Service {
    /// Returns the state of a process that starts this many appliances.
    pub fn new(socket: Socket, appliances: usize) -> Service {
        let told = Told { appliances: vec![State::default(); appliances], ..Told::default() };
        let service = Service(Arc::new(Shared { socket, told: Mutex::new(told) }));
        service.0.status(&mut service.told(), true, Instant::now());
        service
    }

    /// Returns true if a service manager is present.
    pub fn has_manager(&self) -> bool {
        self.0.socket.is_there()
    }

    /// Feeds the watchdog. A datagram that is not accepted is not sent later: the next feed is as
    /// good.
    pub fn feed(&self) {
        self.0.socket.send("WATCHDOG=1");
    }

    /// Sets the state of an appliance, by its index.
    pub fn update(&self, appliance: usize, state: State, now: Instant) {
        let mut told = self.told();
        let told = &mut *told;
        let Some(known) = told.appliances.get_mut(appliance) else { return };
        let old = std::mem::replace(known, state);
        let changed = old.outline() != state.outline();
        self.0.flush(told);
        if !told.ready && told.all(|state| state.stage > Stage::Starting) {
            told.ready = true;
            self.0.announce(told, "READY=1", now);
        }
        if told.ready && !told.stopping {
            if state.reloads != old.reloads && !told.reloading {
                told.reloading = true;
                let message = format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_usec());
                self.0.announce(told, &message, now);
            }
            if told.reloading && told.all(|state| !state.reloading) {
                told.reloading = false;
                self.0.announce(told, "READY=1", now);
            }
            if told.all(|state| state.stage >= Stage::Ending) {
                told.stopping = true;
                self.0.announce(told, "STOPPING=1", now);
            }
        }
        self.0.status(told, changed, now);
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Sends a change with its status line. The message is queued if the socket is full.
    fn announce(&self, told: &mut Told, message: &str, now: Instant) {
        let status = told.sentence();
        let message = format!("{message}\nSTATUS={status}");
        (told.status, told.status_at) = (status, Some(now));
        if told.waiting.is_empty() && self.socket.send(&message) == Sent::Done {
            return;
        }
        if told.waiting.len() < WAITING {
            told.waiting.push(message);
        }
    }

    fn flush(&self, told: &mut Told) {
        let sent = |message: &String| self.socket.send(message) == Sent::Done;
        let sent = told.waiting.iter().take_while(|message| sent(message)).count();
        told.waiting.drain(..sent);
    }

    /// Sends the status if it has changed, unless other messages are queued.
    fn status(&self, told: &mut Told, at_once: bool, now: Instant) {
        let due = told.status_at.is_none_or(|at| now >= at + STATUS_EVERY);
        if !(due || at_once) || !told.waiting.is_empty() {
            return;
        }
        let status = told.sentence();
        if status == told.status {
            return;
        }
        if self.socket.send(&format!("STATUS={status}")) == Sent::Done {
            (told.status, told.status_at) = (status, Some(now));
        }
    }
}

impl Told {
    fn all(&self, is: impl Fn(&State) -> bool) -> bool {
        self.appliances.iter().all(is)
    }

    fn any(&self, stage: Stage) -> bool {
        self.appliances.iter().any(|state| state.stage == stage)
    }

    /// Returns the status line.
    fn sentence(&self) -> String {
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
