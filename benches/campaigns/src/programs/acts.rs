//! Acts of hostile programs. Most acts violate the interface between programs and the appliance, or exhaust its limits.
//! `Transfer` and `Walk` violate nothing: their program is killed during a transfer, or between two steps.

use std::fs::File;
use std::io::{BufRead as _, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use verbs_layout::Units;
use verbs_layout::work::{Operation, Payload, ReceiveWork, SendWork, Sge, SgeList};
use verbs_session::message::{Call, Event, RefusalKind, Request, Transport};
use verbs_session::socket::SessionSocket;

use super::Arguments;
use super::raw::{ADDRESS, BELLS_AT, RawPair, RawProgram};

/// Bytes of the arena that programs register.
const MEMORY: u64 = 64 << 10;
/// Maximum number of attempts to create objects, and of sessions. The appliance's limits must be reached before.
const MAX_OBJECTS: usize = 10_000;
/// Number of steps of [`Act::Walk`].
pub(crate) const STEPS: usize = 9;

/// Act of a hostile program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Act {
    /// Overwrites its queues and doorbells with random words.
    ScribbleQueues,
    /// Posts descriptors with lkeys that are not the program's, one on each QP.
    NameForeignStags,
    /// Rings all doorbells and wakes the workers in a loop.
    RingDoorbells,
    /// Punches holes into the files of its arena, queues and doorbells during transfers, and tries to truncate them.
    PunchHoles,
    /// Makes calls and does not read the answers, until it is disconnected.
    StopReading,
    /// Creates objects and sessions until each limit, and keeps them.
    OpenToLimits,
    /// Sends packets that are not calls, and file descriptors.
    SendGarbage,
    /// Transfers until it is killed.
    Transfer,
    /// Does one step of a session for each line of its standard input.
    Walk,
}

/// Runs an act. Returns the number of attempts.
pub(super) fn run(arguments: &Arguments) -> Result<u64> {
    let until = Instant::now() + Duration::from_millis(arguments.milliseconds);
    let mut hostile =
        Hostile { arguments, random: fastrand::Rng::with_seed(arguments.seed), until };
    match arguments.act {
        Act::ScribbleQueues => hostile.scribble(),
        Act::NameForeignStags => hostile.name_foreign_stags(),
        Act::RingDoorbells => hostile.ring_doorbells(),
        Act::PunchHoles => hostile.punch_holes(),
        Act::StopReading => hostile.stop_reading(),
        Act::OpenToLimits => hostile.open_to_limits(),
        Act::SendGarbage => hostile.send_garbage(),
        Act::Transfer => hostile.transfer(),
        Act::Walk => hostile.walk(),
    }
}

struct Hostile<'a> {
    arguments: &'a Arguments,
    random: fastrand::Rng,
    until: Instant,
}

/// A program with a connection.
struct Connected {
    program: RawProgram,
    pd: u32,
    queue: super::raw::RawQueue,
    pair: RawPair,
    stag: u32,
}

impl Hostile<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn attach(&self) -> Result<RawProgram> {
        RawProgram::attach(&self.arguments.socket)
    }

    fn connect(&self) -> Result<Connected> {
        let mut program = self.attach()?;
        let pd = program.create_domain()?;
        let queue = program.create_queue(64)?;
        let stag = program.register(pd, 0, MEMORY)?;
        let mut pair = program.create_pair(pd, queue.number)?;
        program.connect_pair(&mut pair, self.arguments.remote)?;
        Ok(Connected { program, pd, queue, pair, stag })
    }

    /// Overwrites the queues of one connection after another. Returns the number of QPs that have failed.
    fn scribble(&mut self) -> Result<u64> {
        let mut failed = 0;
        while !self.is_over() || failed == 0 {
            let mut connected = self.connect()?;
            failed += u64::from(self.scribble_until_end(&mut connected)?);
        }
        Ok(failed)
    }

    /// Scribbles until the QP fails, or until its peer has no receive left. Returns true if the QP has failed.
    fn scribble_until_end(&mut self, connected: &mut Connected) -> Result<bool> {
        let Connected { program, queue, pair, stag, .. } = connected;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            for _ in 0..200 {
                let bells = &program.workers[0].0;
                let file = [&pair.area, &pair.area, &queue.area, bells][self.random.usize(..4)];
                self.scribble_word(file)?;
            }
            let sge = Sge { address: ADDRESS, len: 1000, lkey: *stag };
            program.post(pair, self.random.bool(), &send(SgeList::new(&[sge])?))?;
            program.ring(pair)?;
            while let Some(event) = program.next_event(Duration::ZERO)? {
                match event {
                    Event::QueuePairFailed { .. } => return Ok(true),
                    Event::Disconnected { .. } => return Ok(false),
                    _ => {}
                }
            }
            ensure!(
                Instant::now() < deadline,
                "a QP with random words in its queues does not fail"
            );
        }
    }

    /// Overwrites a random word after the header of an area, often with a small number.
    fn scribble_word(&mut self, file: &File) -> Result<()> {
        let words = file.metadata()?.len() / 8;
        let at = self.random.u64(BELLS_AT / 8..words);
        let word = if self.random.bool() { self.random.u64(..) } else { self.random.u64(..1000) };
        Ok(file.write_all_at(&word.to_ne_bytes(), at * 8)?)
    }

    /// Posts a descriptor on each new QP, with a random lkey or a number near the program's own lkey. The QP must fail.
    fn name_foreign_stags(&mut self) -> Result<u64> {
        let mut attempts = 0;
        let mut connected = self.connect()?;
        while !self.is_over() || attempts == 0 {
            let Connected { program, pd, queue, stag, pair } = &mut connected;
            let lkey = match self.random.u8(..3) {
                0 => self.random.u32(..),
                1 => *stag ^ 1 << self.random.u32(..32),
                _ => self.random.u32(..4096),
            };
            if lkey == *stag {
                continue;
            }
            let list = SgeList::new(&[Sge { address: ADDRESS, len: 64, lkey }])?;
            let units = match self.random.bool() {
                true => send(list),
                false => ReceiveWork { wr_id: 1, buffers: list }.encode(),
            };
            let is_receive = units.len() == 1 && self.random.bool();
            program.post(pair, is_receive, &units)?;
            wait_for_end(program)?;
            attempts += 1;
            program.call(Call::RemoveQueuePair { pair: pair.number })?;
            *pair = program.create_pair(*pd, queue.number)?;
            program.connect_pair(pair, self.arguments.remote)?;
        }
        Ok(attempts)
    }

    fn ring_doorbells(&mut self) -> Result<u64> {
        let Connected { program, .. } = self.connect()?;
        let mut attempts = 0;
        while !self.is_over() {
            for (bells, wake) in &program.workers {
                // Sets the sleeping flag, the summary and the bitmap to ones.
                let len = bells.metadata()?.len() - BELLS_AT;
                bells.write_all_at(&vec![0xff; len as usize], BELLS_AT)?;
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                while rustix::net::send(wake, &[1; 512], flags).is_ok() && !self.is_over() {}
                attempts += 1;
            }
        }
        Ok(attempts)
    }

    fn punch_holes(&mut self) -> Result<u64> {
        let mut attempts = 0;
        let mut connected = self.connect()?;
        while !self.is_over() || attempts == 0 {
            let Connected { program, queue, pair, stag, .. } = &mut connected;
            let sge = Sge { address: ADDRESS, len: MEMORY as u32, lkey: *stag };
            let list = SgeList::new(&[sge])?;
            program.post(pair, true, &ReceiveWork { wr_id: 1, buffers: list.clone() }.encode())?;
            // After 16 messages the partner has no receive left, and the connection ends.
            let sge = Sge { len: 4096, ..sge };
            program.post(pair, false, &send(SgeList::new(&[sge])?))?;
            let bells = &program.workers[0].0;
            for file in [&program.arena, &pair.area, &queue.area, bells] {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let len = file.metadata()?.len().min(MEMORY);
                rustix::fs::fallocate(file, flags, 0, len)?;
                for len in [0, 1 << 40] {
                    ensure!(
                        rustix::fs::ftruncate(file, len) == Err(Errno::PERM),
                        "shared memory has been truncated"
                    );
                }
                attempts += 1;
            }
            let mut is_ended = false;
            while let Some(event) = program.next_event(Duration::ZERO)? {
                is_ended |= matches!(event, Event::Disconnected { .. });
            }
            if is_ended {
                connected = self.connect()?;
            }
        }
        Ok(attempts)
    }

    fn stop_reading(&mut self) -> Result<u64> {
        let mut attempts = 0;
        while !self.is_over() || attempts == 0 {
            let mut program = self.attach()?;
            program.create_domain()?;
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut sent = 0;
            loop {
                let request = Request { id: 1, call: Call::RemovePd { pd: 77 } };
                match program.socket.send(&request, &[]) {
                    Ok(()) => sent += 1,
                    Err(verbs_session::socket::SocketError::WouldBlock) => {
                        // The appliance reads no further call: its answers fill the socket and the backlog.
                        if sent > 0 && Instant::now() > self.until {
                            break;
                        }
                    }
                    Err(_) => break,
                }
                ensure!(Instant::now() < deadline, "{sent} calls without reading an answer");
            }
            attempts += sent;
        }
        Ok(attempts)
    }

    fn open_to_limits(&mut self) -> Result<u64> {
        let mut program = self.attach()?;
        let pd = program.create_domain()?;
        let queue = program.create_queue(2)?;
        let mut attempts = 0;
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let calls = [
            Call::CreatePd,
            Call::CreateChannel,
            Call::CreateCompletionQueue { entries: 2, channel: None },
            Call::CreateQueuePair {
                pd,
                send_completions: queue.number,
                receive_completions: queue.number,
                max_sends: 1,
                max_receives: 1,
                copy_sources: false,
                shared_receives: None,
            },
            Call::Listen { local, transport: Transport::Tcp, backlog: 1 },
            Call::RegisterMemory {
                pd,
                address: ADDRESS,
                len: MEMORY,
                offset: 0,
                parts: vec![(0, MEMORY)],
                access: super::raw::ALL,
            },
        ];
        let mut kept = Vec::new();
        for call in calls {
            let refused = loop {
                attempts += 1;
                match program.try_call(call.clone())? {
                    Ok((_, fds)) => kept.extend(fds),
                    Err(refusal) => break refusal,
                }
                ensure!(attempts < MAX_OBJECTS as u64, "no limit of {call:?}");
            };
            let is_limit = matches!(refused.kind, RefusalKind::Limit | RefusalKind::NoMemory);
            ensure!(is_limit, "{refused}");
        }
        let mut sessions = Vec::new();
        while let Ok(session) = self.attach() {
            attempts += 1;
            sessions.push(session);
            ensure!(sessions.len() < MAX_OBJECTS, "no limit of sessions");
        }
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
        Ok(attempts)
    }

    fn send_garbage(&mut self) -> Result<u64> {
        let mut attempts = 0;
        let null = File::open("/dev/null")?;
        while !self.is_over() || attempts == 0 {
            let program = self.attach()?;
            let silent = SessionSocket::connect(&self.arguments.socket)?;
            for socket in [&program.socket, &silent] {
                let len = [0, 1, 100, 60_000, 70_000][self.random.usize(..5)];
                let mut bytes: Vec<u8> = br#"{"id":1,"call":"create_pd"}"#.to_vec();
                bytes.resize(len, b' ');
                if let (Some(byte), true) = (bytes.first_mut(), self.random.bool()) {
                    *byte = self.random.u8(..);
                }
                let fds = vec![null.as_fd(); self.random.usize(..=100)];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
                    bail!("{} descriptors", fds.len());
                }
                let flags = SendFlags::NOSIGNAL;
                // The appliance may have closed the session already.
                let _ = sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags);
                attempts += 1;
            }
        }
        Ok(attempts)
    }

    fn transfer(&mut self) -> Result<u64> {
        let Connected { mut program, mut pair, stag, .. } = self.connect()?;
        let sge = Sge { address: ADDRESS, len: 4096, lkey: stag };
        let mut attempts = 0;
        while !self.is_over() {
            // The peer has 16 receives.
            if attempts < 16 {
                program.post(&mut pair, false, &send(SgeList::new(&[sge])?))?;
                attempts += 1;
            }
            if let Some(event) = program.next_event(Duration::from_millis(1))? {
                bail!("{event:?}");
            }
        }
        Ok(attempts)
    }

    /// Performs the [`STEPS`] steps of a session, from the attach to the deregistration of its memory.
    fn walk(&mut self) -> Result<u64> {
        let mut steps = Steps(0);
        steps.next("attaching")?;
        let mut program = self.attach()?;
        steps.next("registering")?;
        let pd = program.create_domain()?;
        let stag = program.register(pd, 0, MEMORY)?;
        steps.next("creating queues")?;
        let queue = program.create_queue(64)?;
        let mut pair = program.create_pair(pd, queue.number)?;
        steps.next("listening")?;
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        program.call(Call::Listen { local, transport: Transport::Tcp, backlog: 4 })?;
        steps.next("connecting")?;
        program.start_connect(&pair, self.arguments.remote)?;
        steps.next("established")?;
        let timeout = Duration::from_secs(10);
        let Some(Event::Established { .. }) = program.next_event(timeout)? else {
            bail!("no connection")
        };
        steps.next("transferring")?;
        let list = SgeList::new(&[Sge { address: ADDRESS, len: 4096, lkey: stag }])?;
        let receive = ReceiveWork { wr_id: 1, buffers: list.clone() };
        program.post(&mut pair, true, &receive.encode())?;
        for _ in 0..8 {
            program.post(&mut pair, false, &send(list.clone()))?;
        }
        steps.next("closing")?;
        // The call is refused if the connection has already ended.
        let _ = program.try_call(Call::Disconnect { pair: pair.number })?;
        steps.next("deregistering")?;
        let _ = program.try_call(Call::DeregisterMemory { stag })?;
        Ok(steps.0)
    }
}

/// Steps that begin when a line is read.
struct Steps(u64);

impl Steps {
    #[allow(clippy::print_stdout)]
    fn next(&mut self, name: &str) -> Result<()> {
        self.0 += 1;
        println!("step {name}");
        std::io::stdout().flush()?;
        ensure!(std::io::stdin().lock().read_line(&mut String::new())? > 0, "no further step");
        Ok(())
    }
}

fn work(operation: Operation) -> Units {
    SendWork { wr_id: 1, signalled: false, fence: false, operation }.encode()
}

fn send(list: SgeList) -> Units {
    work(Operation::Send { payload: Payload::Gather(list), solicited: false })
}

/// Waits until the QP has failed and its connection has ended.
fn wait_for_end(program: &mut RawProgram) -> Result<()> {
    loop {
        match program.next_event(Duration::from_secs(10))? {
            Some(Event::Disconnected { .. }) => return Ok(()),
            Some(_) => {}
            None => bail!("a QP does not fail after a descriptor with a foreign lkey"),
        }
    }
}
