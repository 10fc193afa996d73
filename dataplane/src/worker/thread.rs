//! The thread of a [`Core`]: pinned to a CPU core and registered with DPDK. The thread reads the clock, and sleeps when
//! idle.
//!
//! An idle worker keeps polling or, with [`Idle::Adaptive`], polls for a bounded time and then sleeps. A command,
//! another worker, a port or the next timer ends the sleep. A sleep lasts at most 1 ms, or 50 µs if one of the worker's
//! ports has no descriptor. A panic ends the thread and is reported to the control thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use base::Instant;
use dpdk::Eal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Core, CoreParts, PortSlot};
use crate::api::{
    Dataplane, DataplaneConfig, Idle, InterfaceId, StartError, WorkerConfig, WorkerId, worker_link,
};
use crate::host::{self, HostEnd, HostPort};
use crate::io::{PortIo, PortProperties};
use crate::mesh::Mesh;
use crate::port::Port;
use crate::wake::Wake;

/// Maximum sleep. `MAX_SLEEP_WITHOUT_WAKE` applies if a port cannot wake the worker.
const MAX_SLEEP: Duration = Duration::from_millis(1);
const MAX_SLEEP_WITHOUT_WAKE: Duration = Duration::from_micros(50);

/// Time before the next timer within which a worker polls instead of sleeping: a sleep and its wake-up take about as
/// long.
const POLL_HORIZON: Duration = Duration::from_micros(20);

/// Maximum time to poll for the response of the peer that was served last. Slower responses are not polled for.
const MAX_SPIN: Duration = Duration::from_micros(250);
/// Minimum time to poll if a port cannot wake the worker, regardless of the round-trip time.
const SPIN_WITHOUT_WAKE: Duration = Duration::from_millis(1);

/// A port with its queues, one for each attached worker.
pub(crate) struct StartPort<Io> {
    pub(crate) facts: PortProperties,
    pub(crate) queues: Vec<Io>,
}

/// A thread's registration with DPDK. Dropping it unregisters the thread.
pub(crate) type Registration = Box<dyn Any>;

impl Dataplane {
    /// Starts the workers of a configuration. `ports` are in the order of [`DataplaneConfig::ports`]. Their queues move
    /// to the workers; the ports remain with the caller.
    ///
    /// # Errors
    /// The configuration is invalid, a system call failed, or DPDK refused to register a thread. In each case no worker
    /// keeps running.
    pub fn start(
        config: &DataplaneConfig,
        ports: &mut [Port],
        eal: &Eal,
    ) -> Result<Dataplane, StartError> {
        Dataplane::start_confined(config, ports, eal, |_| ())
    }

    /// Starts the workers as [`Dataplane::start`] does. Each worker's thread calls `confine` once it is pinned and
    /// registered, before its first turn, to drop privileges that a worker does not need.
    ///
    /// # Errors
    /// The errors of [`Dataplane::start`].
    pub fn start_confined(
        config: &DataplaneConfig,
        ports: &mut [Port],
        eal: &Eal,
        confine: impl Fn(WorkerId) + Clone + Send + 'static,
    ) -> Result<Dataplane, StartError> {
        if ports.len() != config.ports.len() {
            let port = ports.len().min(config.ports.len());
            return Err(StartError::Attachment {
                port,
                reason: "it is configured but not open, or open but not configured",
            });
        }
        check_config(config)?;
        let mut opened = Vec::new();
        for (at, (port, attachment)) in ports.iter_mut().zip(&config.ports).enumerate() {
            let queues = port.take_queues();
            if queues.len() != attachment.workers.len() {
                let reason = "its number of queues differs from its number of workers";
                return Err(StartError::Attachment { port: at, reason });
            }
            let facts = PortProperties::new(port.info(), &attachment.workers);
            opened.push(StartPort { facts, queues });
        }
        let eal = eal.clone();
        start(config, opened, move |worker| {
            let registration = eal.register_thread().map_err(|error| error.to_string())?;
            confine(worker);
            Ok(Box::new(registration))
        })
    }
}

/// Starts the workers of a checked configuration with these ports. Each thread calls `register` once it is pinned.
pub(crate) fn start<Io: PortIo + Send + 'static>(
    config: &DataplaneConfig,
    ports: Vec<StartPort<Io>>,
    register: impl Fn(WorkerId) -> Result<Registration, String> + Clone + Send + 'static,
) -> Result<Dataplane, StartError> {
    let control = Arc::new(Wake::new().map_err(StartError::from_wake_error)?);
    let mut handles = Vec::new();
    let mut links = Vec::new();
    for worker in &config.workers {
        let limits = &config.limits;
        let (handle, link) = worker_link(worker.id, limits.commands, limits.events, &control)?;
        handles.push(handle);
        links.push(link);
    }
    let wakes: Vec<Arc<Wake>> = links.iter().map(|link| link.wake.clone()).collect();
    let meshes = Mesh::full_mesh(&wakes, config.limits.mesh);
    let macs: Vec<_> = ports.iter().map(|port| port.facts.mac).collect();
    let (hosts, host_ends) = create_host_rings(config, &macs, &wakes)?;
    let queues = distribute_queues(config, ports);
    let clock = std::time::Instant::now();
    // Queried before any thread is pinned: a pinned thread would count a single CPU only.
    let single_cpu = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    // On an error below, dropping this value stops the threads that were started so far.
    let mut dataplane = Dataplane::new(handles, config, control);
    dataplane.hosts = host_ends;
    let parts = links.into_iter().zip(meshes).zip(queues.into_iter().zip(hosts));
    for ((worker, handle), ((link, mesh), (ports, hosts))) in
        config.workers.iter().zip(&mut dataplane.workers).zip(parts)
    {
        let parts = CoreParts {
            id: worker.id,
            ports,
            interfaces: config.interfaces.clone(),
            hosts,
            mesh,
            limits: config.limits,
            sctp_udp_port: config.sctp_udp_port,
            link,
            secret: *config.secret.expose(),
            ipsec: config.ipsec.clone(),
        };
        let (thread, ready) =
            spawn_worker(worker.clone(), parts, clock, single_cpu, register.clone())?;
        handle.attach(thread);
        // If the thread panicked before it was ready, it has dropped the sender without a result. The worker's handle
        // reports the panic.
        ready.recv().unwrap_or(Ok(()))?;
    }
    Ok(dataplane)
}

fn check_config(config: &DataplaneConfig) -> Result<(), StartError> {
    if config.workers.is_empty() {
        return Err(StartError::NoWorkers);
    }
    for (at, worker) in config.workers.iter().enumerate() {
        if usize::from(worker.id.0) != at {
            return Err(StartError::WorkerOrder(worker.id));
        }
    }
    for (port, attachment) in config.ports.iter().enumerate() {
        let workers = &attachment.workers;
        let has_duplicate = (1..workers.len()).any(|i| workers[..i].contains(&workers[i]));
        let reason = if workers.is_empty() {
            "no worker polls it"
        } else if has_duplicate {
            "a worker is twice in its list"
        } else if workers.iter().any(|w| usize::from(w.0) >= config.workers.len()) {
            "a worker in its list does not exist"
        } else {
            continue;
        };
        return Err(StartError::Attachment { port, reason });
    }
    for (at, interface) in config.interfaces.iter().enumerate() {
        if usize::from(interface.port.0) >= config.ports.len() {
            return Err(StartError::InterfacePort(interface.name.clone()));
        }
        let same =
            |i: &crate::api::InterfaceConfig| i.port == interface.port && i.vlan == interface.vlan;
        if config.interfaces[..at].iter().any(same) {
            return Err(StartError::DuplicateInterface(interface.name.clone()));
        }
    }
    Ok(())
}

/// The workers' ends of the rings, by worker and interface, and the host's ends.
type HostRings = (Vec<Vec<Option<HostPort>>>, Vec<HostEnd>);

/// Creates the rings of the interfaces that are shared with the host. Returns each worker's ends by interface, and the
/// host's ends.
fn create_host_rings(
    config: &DataplaneConfig,
    macs: &[[u8; 6]],
    wakes: &[Arc<Wake>],
) -> Result<HostRings, StartError> {
    let mut ports: Vec<Vec<Option<HostPort>>> = config.workers.iter().map(|_| Vec::new()).collect();
    let mut ends = Vec::new();
    for (at, interface) in config.interfaces.iter().enumerate() {
        ports.iter_mut().for_each(|ports| ports.push(None));
        if !interface.host {
            continue;
        }
        let (place, id) = (usize::from(interface.port.0), InterfaceId(at as u16));
        let workers = &config.ports[place].workers;
        let worker_wakes: Vec<_> =
            workers.iter().map(|w| wakes[usize::from(w.0)].clone()).collect();
        let (own, end) = host::create_ends(id, macs[place], &worker_wakes)
            .map_err(StartError::from_wake_error)?;
        ends.extend(end);
        for (worker, port) in workers.iter().zip(own) {
            ports[usize::from(worker.0)][at] = Some(port);
        }
    }
    Ok((ports, ends))
}

/// Distributes the queues. Returns for each worker its ports, by port index.
fn distribute_queues<Io: PortIo>(
    config: &DataplaneConfig,
    ports: Vec<StartPort<Io>>,
) -> Vec<Vec<Option<PortSlot<Io>>>> {
    let mut out: Vec<Vec<Option<PortSlot<Io>>>> =
        config.workers.iter().map(|_| Vec::new()).collect();
    for (attachment, port) in config.ports.iter().zip(ports) {
        let facts = match config.ipsec {
            Some(_) => port.facts.without_offloads(),
            None => port.facts,
        };
        let facts = Arc::new(facts);
        for slots in &mut out {
            slots.push(None);
        }
        for (worker, io) in attachment.workers.iter().zip(port.queues) {
            let slot = PortSlot::new(io, facts.clone());
            if let Some(last) = out[usize::from(worker.0)].last_mut() {
                *last = Some(slot);
            }
        }
    }
    out
}

type StartResult = Receiver<Result<(), StartError>>;

fn spawn_worker<Io: PortIo + Send + 'static>(
    worker: WorkerConfig,
    parts: CoreParts<Io>,
    clock: std::time::Instant,
    single_cpu: bool,
    register: impl Fn(WorkerId) -> Result<Registration, String> + Send + 'static,
) -> Result<(JoinHandle<()>, StartResult), StartError> {
    let (ready, started) = sync_channel(1);
    let name = format!("worker-{}", worker.id);
    let thread = std::thread::Builder::new()
        .name(name)
        .spawn(move || {
            let (wake, control) = (parts.link.wake.clone(), parts.link.control.clone());
            let exit = parts.link.exit.clone();
            let body = || run_worker(&worker, parts, &wake, clock, single_cpu, register, &ready);
            let ended = catch_unwind(AssertUnwindSafe(body));
            exit.end(ended.err().map(|panic| panic_message(&*panic)));
            control.notify();
        })
        .map_err(|error| StartError::System { what: "a thread", error })?;
    Ok((thread, started))
}

fn run_worker<Io: PortIo>(
    worker: &WorkerConfig,
    parts: CoreParts<Io>,
    wake: &Wake,
    clock: std::time::Instant,
    single_cpu: bool,
    register: impl Fn(WorkerId) -> Result<Registration, String>,
    ready: &SyncSender<Result<(), StartError>>,
) {
    let prepared = pin_thread(worker).and_then(|()| {
        register(worker.id).map_err(|reason| StartError::Register { worker: worker.id, reason })
    });
    let registration = match prepared {
        Ok(registration) => registration,
        Err(error) => {
            // The starting thread waits for this result.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let now = || Instant::from_nanos(clock.elapsed().as_nanos() as u64);
    let mut core = Core::new(parts, now());
    let _ = ready.send(Ok(()));
    let mut idle = IdleLoop::new(worker.idle, single_cpu, now());
    let mut at = now();
    while !core.is_stopped() {
        let busy = core.turn(at);
        let after = now();
        if busy {
            core.count_busy(after - at);
        }
        at = idle.pause(busy, after, &mut core, wake, &now);
    }
    // Frees packet buffers to their pools while the thread is still registered.
    drop(core);
    drop(registration);
}

fn pin_thread(worker: &WorkerConfig) -> Result<(), StartError> {
    let Some(core) = worker.core else { return Ok(()) };
    let allowed = core_affinity::get_core_ids().unwrap_or_default();
    let found = allowed.into_iter().find(|id| id.id == core);
    match found {
        Some(id) if core_affinity::set_for_current(id) => Ok(()),
        _ => Err(StartError::Pin { worker: worker.id, core }),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

struct IdleLoop {
    idle: Idle,
    last_busy: Instant,
    /// Time to poll after the last work; chosen in the first idle turn.
    spin: Option<Duration>,
    /// True with a single CPU: local peers and producers of input cannot run while the worker polls.
    single_cpu: bool,
}

impl IdleLoop {
    fn new(idle: Idle, single_cpu: bool, now: Instant) -> Self {
        if matches!(idle, Idle::Adaptive { .. }) {
            // The default timer slack of 50 µs extends each sleep. A failure is harmless: sleeps are then longer.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        }
        IdleLoop { idle, last_busy: now, spin: None, single_cpu }
    }

    /// Polls, yields or sleeps after a turn that ended at `at`. Returns the time at which the next turn starts.
    fn pause<Io: PortIo>(
        &mut self,
        busy: bool,
        at: Instant,
        core: &mut Core<Io>,
        wake: &Wake,
        now: &impl Fn() -> Instant,
    ) -> Instant {
        if busy {
            self.last_busy = at;
            self.spin = None;
            return at;
        }
        match self.idle {
            Idle::Adaptive { spin: least } if at - self.last_busy >= least => {
                let spin = *self.spin.get_or_insert_with(|| match self.single_cpu {
                    true => least,
                    false => spin_time(least, core.round_trip(), core.can_be_woken()),
                });
                let until = core.next_deadline().map(|next| next - at);
                let soon = !self.single_cpu && until.is_some_and(|until| until < POLL_HORIZON);
                if soon || at - self.last_busy < spin {
                    return core.poll_idle(at, now);
                }
                sleep(core, wake, at, until);
            }
            _ if self.single_cpu => std::thread::yield_now(),
            _ => return core.poll_idle(at, now),
        }
        now()
    }
}

/// Returns the time to poll after the last work: 1.5 round-trip times if these are at most [`MAX_SPIN`], else the
/// configured minimum. The result is at least `min_spin`, and at least [`SPIN_WITHOUT_WAKE`] if a port cannot wake the
/// worker.
fn spin_time(min_spin: Duration, round_trip: Option<Duration>, can_be_woken: bool) -> Duration {
    if !can_be_woken {
        return min_spin.max(SPIN_WITHOUT_WAKE);
    }
    // The round-trip time, and half of it for variance.
    let answer = round_trip.map(|round_trip| round_trip + round_trip / 2);
    answer.filter(|&answer| answer <= MAX_SPIN).unwrap_or(min_spin).max(min_spin)
}

/// Sleeps until a wake-up, the next timer or the maximum sleep, unless there is work.
fn sleep<Io: PortIo>(core: &mut Core<Io>, wake: &Wake, at: Instant, until: Option<Duration>) {
    // Wake-ups are armed before the last check for work, so that later input ends the sleep.
    wake.arm();
    core.ports_mut().for_each(PortIo::arm);
    let may_sleep = core.programs_mut().arm();
    if may_sleep && !core.has_pending_work(at) {
        wait_for_wake(core, wake, until);
        core.count_sleep();
    }
    core.ports_mut().for_each(PortIo::disarm);
    core.programs_mut().disarm();
    wake.disarm();
}

fn wait_for_wake<Io: PortIo>(core: &Core<Io>, wake: &Wake, until: Option<Duration>) {
    let mut fds = smallvec::SmallVec::<[PollFd<'_>; 8]>::new();
    fds.push(PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN));
    let mut longest = MAX_SLEEP;
    for port in core.ports() {
        match port.descriptor() {
            Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            None => longest = MAX_SLEEP_WITHOUT_WAKE,
        }
    }
    fds.extend(core.programs().descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let until = until.map_or(longest, |until| until.min(longest));
    let limit = Timespec { tv_sec: 0, tv_nsec: until.subsec_nanos().into() };
    // The result is not needed: the next turn polls every source.
    let _ = poll(&mut fds, Some(&limit));
    if fds[1..].iter().any(|fd| is_broken(fd.revents())) {
        // The descriptor of an interface that is down or removed makes every poll(2) return at once. The worker then
        // sleeps on its own wake-up only.
        let _ = poll(&mut fds[..1], Some(&limit));
    }
}

/// Returns true if the descriptor reports an error and no frames.
fn is_broken(events: PollFlags) -> bool {
    let errors = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
    events.intersects(errors) && !events.contains(PollFlags::IN)
}

#[cfg(test)]
mod tests;
