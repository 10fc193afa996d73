//! The control thread. It connects [`Core`] to the workers, the API and the other threads, and sleeps when idle.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use api::Inbox;
use dataplane::{CommandRingFull, Dataplane};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::core::Core;
use super::loader::Loader;
use crate::log_limit;
use crate::notify::watchdog::Pulse;
use crate::notify::{self, Service, Stage};
use crate::waker::Waker;

/// Maximum number of events per worker, and of API requests, handled in one iteration of the loop.
const BATCH: usize = 256;
/// Interval of attempts to send commands to a full ring.
const FULL_RETRY: Duration = Duration::from_millis(1);

/// A command from the process to a control thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Shut down gracefully: jobs finish, then streams are closed, then the workers stop.
    Drain,
    /// End the appliance at once: all streams are reset.
    Abort,
    /// Read the configuration file again.
    Reload,
}

/// Handle to a control thread.
#[derive(Clone, Debug)]
pub struct Control {
    signals: Sender<Signal>,
    waker: Waker,
}

impl Control {
    /// Sends a signal to the control thread. No effect if the thread has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = self.signals.send(signal);
        self.waker.wake();
    }
}

/// Connection of the appliance to the service manager and the watchdog.
#[derive(Debug)]
pub struct ManagerHandle {
    /// The process's connection to the service manager.
    pub service: Service,
    /// Index of the appliance in the process.
    pub appliance: usize,
    /// Counter of the iterations of the control thread's loop, read by the watchdog.
    pub pulse: Arc<Pulse>,
}

/// The control thread's loop, and the parts that it connects.
pub struct Driver {
    core: Core,
    dataplane: Dataplane,
    inbox: Inbox,
    loader: Loader,
    signals: Receiver<Signal>,
    waker: Waker,
    /// Time of the next report of suppressed log lines.
    report_at: Option<Instant>,
    /// Sent once, when the workers have set up the configuration.
    set_up: Option<Sender<()>>,
    manager: ManagerHandle,
    /// State last reported to the service manager, and the time of the next report if only its numbers change.
    last_reported: Option<(notify::State, Instant)>,
}

impl Driver {
    /// Creates the loop, and a handle that sends it signals. The loader and the file writer must use the same `waker`.
    /// `set_up` receives a message when every worker has the configured regions and listeners. From then on, state
    /// changes are reported to the service manager.
    pub fn new(
        core: Core,
        dataplane: Dataplane,
        inbox: Inbox,
        loader: Loader,
        waker: Waker,
        set_up: Sender<()>,
        place: ManagerHandle,
    ) -> (Driver, Control) {
        let (sender, signals) = channel();
        let control = Control { signals: sender, waker: waker.clone() };
        let set_up = Some(set_up);
        let (report_at, last_reported) = (None, None);
        let driver = Driver {
            core,
            dataplane,
            inbox,
            loader,
            signals,
            waker,
            report_at,
            set_up,
            manager: place,
            last_reported,
        };
        (driver, control)
    }

    /// Runs until all workers have stopped. Dropping the core writes all pending data to the files.
    pub fn run(mut self) {
        let mut programs_due = true;
        while !self.core.is_stopped() {
            let now = Instant::now();
            self.manager.pulse.count_turn(self.core.stage() == Stage::Stopping);
            let mut busy = self.take_events(now);
            busy |= self.take_requests(now);
            busy |= self.core.handle_programs(now);
            busy |= self.core.apply_kernel_changes(now);
            if programs_due {
                self.core.shm().poll(now);
            }
            self.core.handle_timeout(now);
            self.core.measure_workers(now);
            self.core.finish_turn(now);
            self.report_at = log_limit::report(now);
            if self.core.is_set_up()
                && let Some(set_up) = self.set_up.take()
            {
                // The send fails if the start has failed.
                let _ = set_up.send(());
            }
            self.report_to_manager(now);
            let full = self.send_commands();
            while let Some(load) = self.core.poll_load() {
                self.loader.request(load);
            }
            // Local programs are served in the iteration after a sleep, if a descriptor or a deadline of their server
            // is due. During a backlog of events and requests, the thread does not sleep, and messages of programs wait
            // in their sockets; `finish_turn` still wakes programs in every iteration. The thread does not sleep either
            // once the workers have stopped, because stopped workers send no wake-up.
            programs_due = !busy && !self.core.is_stopped() && self.sleep_and_check_programs(full);
        }
        self.report_to_manager(Instant::now());
        self.manager.pulse.mark_ended();
        let Driver { core, dataplane, .. } = self;
        dataplane.stop(|worker, event| tracing::debug!("worker {worker} at its end: {event:?}"));
        drop(core);
    }

    /// Handles events of the workers. Returns true if more may be pending.
    fn take_events(&mut self, now: Instant) -> bool {
        let mut more = false;
        for worker in &mut self.dataplane.workers {
            for _ in 0..BATCH {
                match worker.poll() {
                    Some(event) => self.core.handle_event(event, now),
                    None => break,
                }
            }
            more |= worker.has_events();
        }
        more
    }

    /// Handles signals, the loader's and file writer's results, and requests. Returns true if more may be pending.
    fn take_requests(&mut self, now: Instant) -> bool {
        self.waker.reset();
        while let Ok(signal) = self.signals.try_recv() {
            match signal {
                Signal::Drain => self.core.drain(now),
                Signal::Abort => self.core.stop(),
                Signal::Reload => self.core.reload_from_file(None),
            }
        }
        while let Some(finished) = self.loader.poll() {
            self.core.handle_loaded(finished, now);
        }
        self.core.handle_reports();
        for _ in 0..BATCH {
            match self.inbox.try_recv() {
                Some(call) => self.core.handle_call(call, now),
                None => return false,
            }
        }
        true
    }

    /// Reports a change of state to the service manager at once, and changed numbers once a second. The interval is met
    /// because a sleep lasts at most a second.
    fn report_to_manager(&mut self, now: Instant) {
        if self.set_up.is_some() || !self.manager.service.has_manager() {
            return;
        }
        let outline = self.core.outline();
        if self.last_reported.is_none_or(|(reported, due)| reported != outline || now >= due) {
            self.manager.service.update(self.manager.appliance, self.core.state(), now);
            self.last_reported = Some((outline, now + notify::STATUS_INTERVAL));
        }
    }

    /// Sends commands to the workers. Returns true if a ring was full.
    fn send_commands(&mut self) -> bool {
        let mut full = false;
        for (at, worker) in self.dataplane.workers.iter_mut().enumerate() {
            let queue = self.core.commands(at);
            while let Some(command) = queue.pop_front() {
                if let Err(CommandRingFull(command)) = worker.send(command) {
                    queue.push_front(command);
                    full = true;
                    break;
                }
            }
        }
        full
    }

    /// Sleeps until an event or a deadline. Returns true if the attach server of local programs is due. `full`: true if
    /// a command ring is full; the sleep then lasts at most `FULL_RETRY`.
    fn sleep_and_check_programs(&mut self, full: bool) -> bool {
        if !self.dataplane.arm() {
            self.dataplane.disarm();
            return false;
        }
        let now = Instant::now();
        let measurement = Some(self.core.next_measurement());
        let (_, shm) = self.core.fds();
        let programs_deadline = shm.poll_timeout();
        let deadlines = [self.core.poll_timeout(), self.report_at, measurement, programs_deadline];
        let deadline = deadlines.into_iter().flatten().min();
        let wait = deadline.map(|at| at.saturating_duration_since(now));
        let wait = if full { Some(wait.unwrap_or(FULL_RETRY).min(FULL_RETRY)) } else { wait };
        let timeout = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.dataplane.events_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.inbox.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
        ];
        let (kernel, shm) = self.core.fds();
        fds.extend(kernel.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let first_of_programs = fds.len();
        fds.extend(shm.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let polled = poll(&mut fds, timeout.as_ref());
        let expired = programs_deadline.is_some_and(|at| at <= Instant::now());
        let readable = fds[first_of_programs..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        self.dataplane.disarm();
        match polled {
            Ok(_) | Err(Errno::INTR) => expired || readable,
            Err(error) => {
                // poll(2) failed, so events are checked at an interval instead of in a busy loop.
                tracing::error!("poll: {error}");
                std::thread::sleep(FULL_RETRY);
                true
            }
        }
    }
}
