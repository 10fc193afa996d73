//! Simulation of two hosts, of the two directions of the path between them, and of time.

use core::time::Duration;
use std::collections::VecDeque;
use std::fmt::Write as _;

use base::Instant;

use crate::dialogue::Batch;
use crate::end::{End, Setup};
use crate::host::HostConfig;
use crate::packet::Ecn;
use crate::path::{self, Path, PushResult};

/// Maximum number of steps at one virtual instant; a run that exceeds it ends with [`Stall::Spinning`].
pub(crate) const MAX_STEPS: usize = 10_000;
/// Maximum number of packets per burst, as in the worker's loop.
pub(crate) const BURST: usize = 32;
/// Number of leading bytes of a dropped packet that an ICMP error quotes.
const ICMP_QUOTE_LEN: usize = 40;
/// Number of packets kept for a failure report.
const LOG_PACKETS: usize = 60;

/// Configuration of a simulation: hosts, paths and cores.
#[derive(Clone, Debug)]
pub struct Config<S: Setup = HostConfig> {
    /// Configuration of the host that connects.
    pub client: S,
    /// Configuration of the host that listens.
    pub server: S,
    /// Path from the client to the server.
    pub forward: path::Config,
    /// Path from the server to the client.
    pub backward: path::Config,
    /// True if the path reports dropped packets larger than its MTU to their sender, as a router does by ICMP.
    pub icmp: bool,
    /// Processing time on the core of the client and of the server.
    pub cost: [Cost; 2],
}

/// Processing time of a core. Frames that arrive while the core is busy wait on the path, up to the link's limit of
/// frames. The [`Default`] is a core of infinite speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Time of one iteration of the worker's loop: up to 32 received frames, timers, up to 32 sent frames.
    pub per_poll: Duration,
    /// Additional time of each received or sent frame.
    pub per_frame: Duration,
    /// Time without CPU after each iteration. If not zero, an iteration processes all waiting frames instead of at most
    /// 32.
    pub preempted: Duration,
}

/// Two hosts and the two paths between them.
#[derive(Debug)]
pub struct Pair<S: Setup = HostConfig> {
    /// Virtual time, from 1 s at the start.
    pub now: Instant,
    /// Host that connects.
    pub client: S::Host,
    /// Host that listens.
    pub server: S::Host,
    /// Path from the client to the server.
    pub forward: Path,
    /// Path from the server to the client.
    pub backward: Path,
    icmp: bool,
    cores: [Core; 2],
    tx: Batch,
    log: VecDeque<LoggedPacket>,
}

/// State of the core of one host.
#[derive(Clone, Copy, Debug)]
struct Core {
    cost: Cost,
    /// Time at which the core becomes idle and may start its next iteration.
    idle_at: Instant,
    /// True if work remains for `idle_at`: the last iteration sent a full burst, or work became due while the core was
    /// busy.
    has_work_left: bool,
}

impl Core {
    fn new(cost: Cost) -> Self {
        Core { cost, idle_at: Instant::ZERO, has_work_left: false }
    }

    /// Returns the time of the next iteration; `None` if nothing is due. `wanted`: the next arrival from the path, and
    /// the host's next timer.
    fn next_time(&self, wanted: [Option<Instant>; 2]) -> Option<Instant> {
        let more = self.has_work_left.then_some(self.idle_at);
        wanted.into_iter().flatten().chain(more).min().map(|at| at.max(self.idle_at))
    }
}

/// A packet in the log: time, direction, first 60 bytes, and length of the whole packet.
#[derive(Debug)]
struct LoggedPacket {
    at: Instant,
    direction: &'static str,
    bytes: Vec<u8>,
    len: usize,
}

/// Reason why a run ended before its condition was true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stall {
    /// No timer is set and no packet is in flight.
    #[error("at {0:?} nothing is due any more")]
    Silence(Instant),
    /// The limit of virtual time was reached.
    #[error("not done at {0:?}")]
    TooLate(Instant),
    /// Too many steps at one instant: virtual time does not advance.
    #[error("virtual time does not advance at {0:?}")]
    Spinning(Instant),
}

impl<S: Setup> Pair<S> {
    /// Creates the hosts and paths. [`End::connect`] of the client opens the connection.
    pub fn new(config: Config<S>) -> Self {
        let path =
            |path: path::Config| Path::new(path::Config { protocol: S::Host::PROTOCOL, ..path });
        Pair {
            now: Instant::from_millis(1000),
            client: config.client.host(false),
            server: config.server.host(true),
            forward: path(config.forward),
            backward: path(config.backward),
            icmp: config.icmp,
            cores: config.cost.map(Core::new),
            tx: Batch::bounded(BURST),
            log: VecDeque::new(),
        }
    }

    /// Advances virtual time until `done` returns true.
    ///
    /// # Errors
    /// [`Stall`]: `done` was not true within `timeout` of virtual time, no further event is due, or time does not
    /// advance.
    pub fn run_until(
        &mut self,
        timeout: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Stall> {
        let limit = self.now + timeout;
        let mut steps_at_now = 0;
        self.work();
        while !done(self) {
            let next = self.next_time().ok_or(Stall::Silence(self.now))?;
            if next > limit {
                return Err(Stall::TooLate(limit));
            }
            steps_at_now = if next > self.now { 0 } else { steps_at_now + 1 };
            if steps_at_now > MAX_STEPS {
                return Err(Stall::Spinning(self.now));
            }
            self.now = self.now.max(next);
            self.work();
        }
        Ok(())
    }

    /// Advances virtual time until `done` returns true. The total time is unlimited as long as bytes are received or
    /// acknowledged in each period of `timeout`.
    ///
    /// # Errors
    /// [`Stall`]: no byte was received or acknowledged for `timeout` of virtual time, no further event is due, or time
    /// does not advance.
    pub fn run_while_progressing(
        &mut self,
        timeout: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Stall> {
        loop {
            let before = self.progress();
            match self.run_until(timeout, &mut done) {
                Err(Stall::TooLate(_)) if self.progress() > before => {}
                other => return other,
            }
        }
    }

    /// Returns the received bytes plus the acknowledged bytes, summed over both hosts.
    fn progress(&self) -> u64 {
        let bytes = |host: &S::Host| {
            let totals = host.totals();
            totals.bytes_in + totals.bytes_acknowledged
        };
        bytes(&self.client) + bytes(&self.server)
    }

    /// Advances virtual time by `time`.
    ///
    /// # Errors
    /// [`Stall::Spinning`]: virtual time does not advance.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Stall> {
        let end = self.now + time;
        match self.run_until(time, |_| false) {
            Err(Stall::Spinning(at)) => Err(Stall::Spinning(at)),
            _ => {
                self.now = end;
                Ok(())
            }
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let [client, server] = &self.cores;
        let client = client.next_time([self.backward.next_time(), self.client.timeout()]);
        let server = server.next_time([self.forward.next_time(), self.server.timeout()]);
        client.into_iter().chain(server).min()
    }

    /// Formats the last 60 packets sent or received by either host, one per line.
    pub fn last_segments(&self) -> String {
        let mut text = String::new();
        for LoggedPacket { at, direction: what, bytes, len } in &self.log {
            if let Some(words) = S::Host::show(bytes) {
                let _ = writeln!(text, "{at:?} {what} {len} bytes: {words}");
            }
        }
        text
    }

    /// Runs one iteration of each host at the current virtual time: receives a burst, runs timers, and sends.
    fn work(&mut self) {
        let Pair { now, client, server, forward, backward, icmp, cores, tx, log } = self;
        let icmp = *icmp;
        let [client_core, server_core] = cores;
        let mut side =
            Side { host: server, core: server_core, from: forward, to: backward, icmp, tx, log };
        side.work(*now, ["-> server", "   server ->"]);
        let mut side =
            Side { host: client, core: client_core, from: backward, to: forward, icmp, tx, log };
        side.work(*now, ["-> client", "   client ->"]);
    }
}

/// One host with the paths to and from it.
struct Side<'a, H> {
    host: &'a mut H,
    core: &'a mut Core,
    from: &'a mut Path,
    to: &'a mut Path,
    icmp: bool,
    tx: &'a mut Batch,
    log: &'a mut VecDeque<LoggedPacket>,
}

impl<H: End> Side<'_, H> {
    fn work(&mut self, now: Instant, names: [&'static str; 2]) {
        let Side { host, core, from, to, icmp, tx, log } = self;
        if now < core.idle_at {
            // The core is busy. It does the work at `idle_at`.
            core.has_work_left = true;
            return;
        }
        let preempted = core.cost.preempted;
        let unbounded = !preempted.is_zero();
        let mut frames = 0;
        while (frames < BURST || unbounded)
            && let Some(packet) = from.pop(now)
        {
            frames += 1;
            log_packet(log, now, names[0], &packet.bytes);
            host.input(now, &packet, tx);
        }
        let is_infinitely_fast = core.cost == Cost::default();
        let max_batches = if is_infinitely_fast || unbounded { MAX_STEPS } else { 1 };
        let sent = transmit(now, &mut **host, to, tx, max_batches, |host, sent| match sent {
            TransmitEvent::Segment(bytes) => log_packet(log, now, names[1], bytes),
            TransmitEvent::TooBig(mtu, dropped) if *icmp => host.packet_too_big(now, mtu, dropped),
            TransmitEvent::TooBig(..) => {}
        });
        if !is_infinitely_fast && frames + sent > 0 {
            core.has_work_left = sent >= BURST && !unbounded;
            let busy = core.cost.per_poll + core.cost.per_frame * (frames + sent) as u32;
            core.idle_at = now + busy + preempted;
        } else {
            core.has_work_left = false;
        }
    }
}

/// Event that [`transmit`] reports to its caller.
pub(crate) enum TransmitEvent<'a> {
    /// The host has sent this packet. The path may still drop it.
    Segment(&'a [u8]),
    /// The path dropped a packet larger than its MTU: the MTU in bytes, and the first bytes of the packet.
    TooBig(usize, &'a [u8]),
}

/// Runs a host's timers and sends its packets, at most `max_batches` batches. Returns the number of packets sent,
/// including those that the path dropped.
pub(crate) fn transmit<H: End>(
    now: Instant,
    host: &mut H,
    to: &mut Path,
    tx: &mut Batch,
    max_batches: usize,
    mut report: impl FnMut(&mut H, TransmitEvent<'_>),
) -> usize {
    let mut sent = 0;
    for _ in 0..max_batches {
        host.work(now, tx);
        let segments = tx.take_with_ect();
        if segments.is_empty() {
            break;
        }
        sent += segments.len();
        for (bytes, capable) in segments {
            report(host, TransmitEvent::Segment(&bytes));
            let ecn = if capable { Ecn::Ect } else { Ecn::NotEct };
            let head = bytes[..bytes.len().min(ICMP_QUOTE_LEN)].to_vec();
            let entry = match host.is_for_fragments(&bytes) {
                true => to.push_in_fragments(now, bytes, ecn),
                false => to.push(now, bytes, ecn),
            };
            if let PushResult::TooBig(mtu) = entry {
                report(host, TransmitEvent::TooBig(mtu, &head));
            }
        }
    }
    sent
}

fn log_packet(
    log: &mut VecDeque<LoggedPacket>,
    at: Instant,
    direction: &'static str,
    bytes: &[u8],
) {
    if log.len() == LOG_PACKETS {
        log.pop_front();
    }
    let len = bytes.len();
    let bytes = bytes[..len.min(60)].to_vec();
    log.push_back(LoggedPacket { at, direction, bytes, len });
}
