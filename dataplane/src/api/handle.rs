//! The control thread's link to the workers. Each worker has a command ring, an event ring, counters, and a file
//! descriptor that wakes the worker. All workers wake the control thread by one descriptor.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::Timespec;

use super::command::Command;
use super::config::DataplaneConfig;
use super::counters::Counters;
use super::event::Event;
use crate::host::HostEnd;
use crate::ids::{InterfaceId, WorkerId};
use crate::wake::Wake;

/// Interval at which the stop command is retried while a worker's command ring is full.
const STOP_RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A running dataplane: its workers and their links to the control thread.
///
/// Dropping a `Dataplane` stops the workers: streams are reset, and threads are joined.
pub struct Dataplane {
    /// Handles of the workers; `workers[i]` belongs to `WorkerId(i)`.
    pub workers: Vec<WorkerHandle>,
    /// Kernel-side ends of the interfaces that share their port with the host's kernel, one per interface. The caller
    /// serves each on its own thread.
    pub hosts: Vec<HostEnd>,
    interface_workers: Vec<Vec<WorkerId>>,
    wake: Arc<Wake>,
}

/// Reason why the dataplane could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No worker is configured.
    #[error("at least one worker is needed")]
    NoWorkers,
    /// A worker's identifier differs from its index in the list.
    #[error("worker {0} is not at its index in the list")]
    WorkerOrder(WorkerId),
    /// The ports passed at start are not the configured ports, or the list of workers of a port is invalid: empty, with
    /// a duplicate or an unknown worker, or not as long as the port's list of queues.
    #[error("port {port}: {reason}")]
    Attachment {
        /// Index of the port in the configuration.
        port: usize,
        /// Description of the mismatch, as a phrase.
        reason: &'static str,
    },
    /// An interface refers to a port that does not exist.
    #[error("interface {0}: there is no such port")]
    InterfacePort(String),
    /// Two interfaces have the same port and VLAN.
    #[error("interface {0}: another interface has the same port and VLAN")]
    DuplicateInterface(String),
    /// An event descriptor or a thread could not be created.
    #[error("cannot make {what}: {error}")]
    System {
        /// Kind of the object that could not be created.
        what: &'static str,
        /// Error that the system call returned.
        error: std::io::Error,
    },
    /// A worker thread could not be pinned.
    #[error(
        "worker {worker}: cannot be pinned to core {core}: not a core that this process may use"
    )]
    Pin {
        /// Identifier of the worker.
        worker: WorkerId,
        /// Number of the CPU core.
        core: usize,
    },
    /// DPDK refused to register a worker thread.
    #[error("worker {worker}: {reason}")]
    Register {
        /// Identifier of the worker.
        worker: WorkerId,
        /// DPDK's error message.
        reason: String,
    },
}

impl StartError {
    pub(crate) fn from_wake_error(error: rustix::io::Errno) -> StartError {
        StartError::System { what: "an event descriptor", error: error.into() }
    }
}

/// The command ring is full: the worker is busy, or waits until its events are read. Contains the refused command. The
/// caller must read events, then send the command again.
#[derive(Debug)]
pub struct CommandRingFull(pub Command);

/// Handle of one worker for the control thread.
pub struct WorkerHandle {
    id: WorkerId,
    commands: Producer<Command>,
    events: Consumer<Event>,
    wake: Arc<Wake>,
    counters: Arc<Counters>,
    exit: Arc<Exit>,
    thread: Option<JoinHandle<()>>,
    reported: bool,
}

impl WorkerHandle {
    /// Returns the identifier of the worker, as in the configuration.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// Sends a command to the worker, and wakes the worker if it sleeps.
    ///
    /// # Errors
    /// [`CommandRingFull`] with the command if the ring has no room. Read events first: a worker whose event ring is
    /// nearly full reads no commands.
    pub fn send(&mut self, command: Command) -> Result<(), CommandRingFull> {
        let pushed = self.commands.push(command);
        self.wake.notify();
        pushed.map_err(|rtrb::PushError::Full(command)| CommandRingFull(command))
    }

    /// Returns the oldest unread event; `None` if there is none. The last event of a panicked worker is
    /// [`Event::Failed`].
    pub fn poll(&mut self) -> Option<Event> {
        if let Ok(event) = self.events.pop() {
            return Some(event);
        }
        if self.reported || !self.is_finished() {
            return None;
        }
        // The thread may have pushed its last events after the first check of the ring and before it ended.
        if let Ok(event) = self.events.pop() {
            return Some(event);
        }
        self.reported = true;
        let message = self.exit.failure()?;
        Some(Event::Failed { worker: self.id, message })
    }

    /// Returns true if [`poll`](Self::poll) may return an event now.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty() || (!self.reported && self.thread.is_some() && self.is_finished())
    }

    /// Returns the worker's counters. Any thread may read them.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns true if the thread has ended, regularly or by a panic, or was never started.
    pub fn is_finished(&self) -> bool {
        self.exit.has_ended() || self.thread.is_none()
    }

    pub(crate) fn attach(&mut self, thread: JoinHandle<()>) {
        self.thread = Some(thread);
    }
}

impl Dataplane {
    pub(crate) fn new(
        workers: Vec<WorkerHandle>,
        config: &DataplaneConfig,
        wake: Arc<Wake>,
    ) -> Self {
        let interface_workers = config
            .interfaces
            .iter()
            .map(|i| config.ports[i.port.0 as usize].workers.clone())
            .collect();
        Dataplane { workers, hosts: Vec::new(), interface_workers, wake }
    }

    /// Returns the workers with a queue of the interface's port; empty for an unknown interface. Only these workers can
    /// open streams on the interface.
    pub fn workers_of(&self, interface: InterfaceId) -> &[WorkerId] {
        self.interface_workers.get(interface.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns a file descriptor that becomes readable when a worker has events. Call [`arm`](Self::arm) before
    /// waiting for the descriptor.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Arms [`events_fd`](Self::events_fd) before a sleep. Returns false if there are events already: read them instead
    /// of sleeping.
    pub fn arm(&self) -> bool {
        self.wake.arm();
        !self.workers.iter().any(WorkerHandle::has_events)
    }

    /// Disarms [`events_fd`](Self::events_fd) after a wake-up.
    pub fn disarm(&self) {
        self.wake.disarm();
    }

    /// Sends [`Command::Stop`] to each worker, and joins the threads. The workers reset their streams. Calls `event`
    /// with each event that arrives before all threads have ended.
    pub fn stop(mut self, mut event: impl FnMut(WorkerId, Event)) {
        self.stop_all(&mut event);
    }

    fn stop_all(&mut self, event: &mut dyn FnMut(WorkerId, Event)) {
        let mut is_sent = vec![false; self.workers.len()];
        while self.workers.iter().any(|w| !w.is_finished() || w.has_events()) {
            for (worker, asked) in self.workers.iter_mut().zip(&mut is_sent) {
                if !*asked {
                    *asked = worker.send(Command::Stop).is_ok();
                }
                while let Some(e) = worker.poll() {
                    event(worker.id, e);
                }
            }
            // Checked after `arm`, because a worker that ended before `arm` does not wake this thread. Free space in a
            // command ring does not wake this thread either: hence the retry interval.
            if self.arm() && self.workers.iter().any(|w| !w.is_finished()) {
                let notified =
                    self.workers.iter().zip(&is_sent).all(|(w, &a)| a || w.is_finished());
                self.wake.wait(if notified { None } else { Some(&STOP_RETRY_INTERVAL) });
            }
            self.disarm();
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // A panic was caught in the thread and is reported by `poll`, so `join` has no error.
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        self.stop_all(&mut |_, _| {});
    }
}

/// Exit state of a worker's thread: whether the thread has ended, and the message if it panicked.
#[derive(Debug, Default)]
pub(crate) struct Exit {
    ended: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Exit {
    /// Marks the thread as ended, with the message if it panicked. Called as the last action of the thread.
    pub(crate) fn end(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        self.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The worker's end of its link to the control thread.
pub(crate) struct WorkerLink {
    pub(crate) commands: Consumer<Command>,
    pub(crate) events: Producer<Event>,
    /// Wakes this worker when it sleeps.
    pub(crate) wake: Arc<Wake>,
    /// Wakes the control thread.
    pub(crate) control: Arc<Wake>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) exit: Arc<Exit>,
}

/// Creates both ends of the link between the control thread and a worker. The link's rings have `commands` (at least
/// 1) and `events` (at least 64) entries. `control` wakes the control thread.
pub(crate) fn worker_link(
    id: WorkerId,
    commands: usize,
    events: usize,
    control: &Arc<Wake>,
) -> Result<(WorkerHandle, WorkerLink), StartError> {
    let (command_tx, command_rx) = RingBuffer::new(commands.max(1));
    let (event_tx, event_rx) = RingBuffer::new(events.max(64));
    let wake = Arc::new(Wake::new().map_err(StartError::from_wake_error)?);
    let counters = Arc::new(Counters::default());
    let exit = Arc::new(Exit::default());
    let handle = WorkerHandle {
        id,
        commands: command_tx,
        events: event_rx,
        wake: wake.clone(),
        counters: counters.clone(),
        exit: exit.clone(),
        thread: None,
        reported: false,
    };
    let control = control.clone();
    let link = WorkerLink { commands: command_rx, events: event_tx, wake, control, counters, exit };
    Ok((handle, link))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::api::Limits;

    #[test]
    fn full_command_ring_still_receives_stop() {
        let control = Arc::new(Wake::new().unwrap());
        let (mut handle, mut link) = worker_link(WorkerId(0), 1, 64, &control).unwrap();
        handle.send(Command::Drain).unwrap();
        // Frees a ring entry once the control thread is about to sleep. This thread sends no event, so no event wakes
        // the control thread.
        let worker = std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !link.control.is_armed() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let mut notified = false;
            while !notified && Instant::now() < deadline {
                notified = matches!(link.commands.pop(), Ok(Command::Stop));
                std::thread::yield_now();
            }
            link.exit.end((!notified).then(|| "no command to stop".to_owned()));
            link.control.notify();
        });
        handle.attach(worker);
        let config = DataplaneConfig {
            workers: Vec::new(),
            ports: Vec::new(),
            interfaces: Vec::new(),
            limits: Limits::default(),
            sctp_udp_port: None,
            ipsec: None,
            secret: [0; 32].into(),
        };
        let dataplane = Dataplane::new(vec![handle], &config, control);
        dataplane.stop(|_, event| panic!("{event:?}"));
    }
}
