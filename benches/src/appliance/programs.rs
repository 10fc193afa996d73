//! Measurements of local programs: registration of memory, and the time until a program that has died is removed.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{Client, ProgramInfo};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use verbs_client::{
    AcceptOptions, CompletionQueue, ConnectOptions, MemoryAccess, PairEvent, ProtectionDomain,
    QueuePair, QueuePairConfig, Session, Transport,
};

use super::{AppliancePair, Latencies, TIMEOUT};
use crate::row::{Row, median};

/// Number of deaths per measurement; the row is their median.
const DEATHS: usize = 5;
/// Bytes that a dying program has registered.
const MEMORY: usize = 16 << 20;
/// Pause between two requests for the list of programs.
const POLL: Duration = Duration::from_micros(100);
/// Address of the listening program.
const LISTEN: &str = "10.9.0.2:4800";
const ACCESS: MemoryAccess =
    MemoryAccess { local_write: true, remote_write: true, remote_read: true, remote_atomic: false };

impl AppliancePair {
    /// Measures registrations of `len` bytes whose pages are in the arena already.
    pub(super) fn register_of_program(
        &self,
        len: usize,
        time: Duration,
        row: &mut Row,
    ) -> anyhow::Result<()> {
        let session = Session::connect(&self.programs[0])?;
        let domain = session.create_domain()?;
        let buffer = session.allocate(len)?;
        let from = Instant::now();
        let first = domain.register_buffer(&buffer, 0..len, ACCESS)?;
        row.add_extra("first_us", from.elapsed().as_secs_f64() * 1e6);
        let (mut rounds, mut removals) = (Latencies::new()?, Latencies::new()?);
        let begin = Instant::now();
        while begin.elapsed() < time {
            let from = Instant::now();
            let region = domain.register_buffer(&buffer, 0..len, ACCESS)?;
            rounds.add(from.elapsed())?;
            let from = Instant::now();
            region.deregister()?;
            removals.add(from.elapsed())?;
        }
        row.add_extra("deregister_us", removals.0.value_at_quantile(0.5) as f64 * 1e-3);
        drop(first);
        rounds.report(row)
    }

    /// Measures the time from the hang-up of a program with `pairs` QPs until its memory is free. `connected`: each QP
    /// has a connection.
    pub(super) fn death_of_program(
        &self,
        pairs: u32,
        connected: bool,
        row: &mut Row,
    ) -> anyhow::Result<()> {
        let mut times = Vec::new();
        for _ in 0..DEATHS {
            let accepting = Objects::new(&self.programs[1], pairs)?;
            let dying = Objects::new(&self.programs[0], pairs)?;
            let _memory = dying.domain.alloc(MEMORY, ACCESS)?;
            if connected {
                connect_pairs(&dying.pairs, &accepting.pairs, &accepting.session, LISTEN.parse()?)?;
            }
            let from = Instant::now();
            rustix::net::shutdown(&dying.socket, Shutdown::Both)?;
            wait_without_programs(&self.clients[0], from)?;
            times.push(from.elapsed().as_secs_f64() * 1e3);
            drop((dying, accepting));
            wait_without_programs(&self.clients[1], Instant::now())?;
        }
        row.set(median(&times));
        row.add_extra("max_ms", times.iter().copied().fold(0.0, f64::max));
        Ok(())
    }
}

/// A program with QPs that share a CQ.
struct Objects {
    pairs: Vec<QueuePair>,
    _queue: CompletionQueue,
    domain: ProtectionDomain,
    session: Session,
    /// The session's socket. Its shutdown has the effect of the program's death.
    socket: OwnedFd,
}

impl Objects {
    fn new(path: &Path, pairs: u32) -> anyhow::Result<Objects> {
        let (type_, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::UNIX, type_, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let session = Session::from_socket(socket.try_clone()?)?;
        let domain = session.create_domain()?;
        let queue = session.create_completion_queue(4 * pairs, None)?;
        let config = QueuePairConfig {
            send_completions: &queue,
            receive_completions: &queue,
            max_sends: 1,
            max_receives: 1,
            copy_sources: false,
            shared_receives: None,
        };
        let pairs =
            (0..pairs).map(|_| domain.create_queue_pair(&config)).collect::<Result<_, _>>()?;
        Ok(Objects { pairs, _queue: queue, domain, session, socket })
    }
}

/// Connects the QPs of two programs, one after the other. The second program, with `session`, listens at `local`.
pub(super) fn connect_pairs(
    from: &[QueuePair],
    to: &[QueuePair],
    session: &Session,
    local: SocketAddr,
) -> anyhow::Result<()> {
    let listener = session.listen(local, Transport::Tcp, 16)?;
    let remote = listener.local();
    for (here, there) in from.iter().zip(to) {
        here.start_connect(remote, &ConnectOptions::default())?;
        let request = listener.next_request(Some(TIMEOUT))?.context("no connection request")?;
        request.start_accept(there, &AcceptOptions::default())?;
        for pair in [here, there] {
            let event = pair.next_event(Some(TIMEOUT))?;
            anyhow::ensure!(matches!(event, Some(PairEvent::Established(_))), "{event:?}");
        }
    }
    Ok(())
}

/// Waits until the appliance has no program: a program is listed until its memory is free.
fn wait_without_programs(client: &Client, from: Instant) -> anyhow::Result<()> {
    loop {
        let programs: Vec<ProgramInfo> = client.get("/v1/programs")?;
        if programs.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(from.elapsed() < TIMEOUT, "a program remains");
        std::thread::sleep(POLL);
    }
}
