//! A session without the client library: arbitrary calls, and arbitrary bytes in the queues. Shared memory is written
//! through its file.

use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use verbs_layout::ring;
use verbs_layout::version::{OLDEST, VERSION};
use verbs_layout::{LINE_WORDS, Units, session};
use verbs_session::message::{
    Answer, Call, ConnectCall, Depths, Event, MemoryAccess, Message, Refusal, Reply, Request, Ring,
    StartUp, Transport,
};
use verbs_session::socket::{SessionSocket, SocketError};

/// Time-out of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Byte offset of the doorbells in their area. `SUMMARY_AT` and `BITMAP_AT` are relative to it.
pub(crate) const BELLS_AT: u64 = session::HEADER_WORDS as u64 * 8;
const SUMMARY_AT: u64 = LINE_WORDS as u64 * 8;
const BITMAP_AT: u64 = 2 * SUMMARY_AT;
/// Address that the program states for the first byte of the arena. The program does not map the arena.
pub(crate) const ADDRESS: u64 = 0x7000_0000_0000;
pub(crate) const ALL: MemoryAccess =
    MemoryAccess { local_write: true, remote_write: true, remote_read: true, remote_atomic: true };

/// A program's session.
pub(crate) struct RawProgram {
    pub(crate) socket: SessionSocket,
    pub(crate) arena: File,
    /// Doorbells and wake-up socket of each worker.
    pub(crate) workers: Vec<(File, OwnedFd)>,
    /// Events that arrived while a reply was awaited.
    events: VecDeque<Event>,
    /// Identifier of the next call.
    next: u32,
}

/// A QP with the file of its rings.
pub(crate) struct RawPair {
    pub(crate) number: u32,
    pub(crate) area: File,
    pub(crate) sends: Ring,
    pub(crate) receives: Ring,
    /// Next producer index of the send ring and of the receive ring, units.
    next: [u64; 2],
    /// The worker of the connection.
    worker: usize,
}

/// A CQ with the file of its queues.
pub(crate) struct RawQueue {
    pub(crate) number: u32,
    pub(crate) area: File,
}

impl RawProgram {
    /// Attaches to the appliance.
    ///
    /// # Errors
    /// The appliance does not answer, or refuses the program.
    pub(crate) fn attach(path: &Path) -> Result<RawProgram> {
        let socket = SessionSocket::connect(path)?;
        let call = Call::Hello { oldest: OLDEST, newest: VERSION, name: "hostile".into() };
        socket.send(&Request { id: 0, call }, &[])?;
        let mut none = VecDeque::new();
        let (reply, fds) = next_reply(&socket, &mut none)?.context("no answer to the hello")?;
        let Answer::Welcome(welcome) = reply.result? else { bail!("no welcome") };
        let mut fds = fds.into_iter();
        let arena = File::from(fds.next().context("no arena")?);
        let mut workers = Vec::new();
        while let (Some(doorbells), Some(wake)) = (fds.next(), fds.next()) {
            workers.push((File::from(doorbells), wake));
        }
        ensure!(workers.len() == usize::from(welcome.workers), "descriptors of the workers");
        Ok(RawProgram { socket, arena, workers, events: none, next: 1 })
    }

    /// Makes a call. The inner error is a refusal, the outer error a broken session.
    pub(crate) fn try_call(
        &mut self,
        call: Call,
    ) -> Result<Result<(Answer, Vec<OwnedFd>), Refusal>> {
        let id = self.next;
        self.next += 1;
        self.socket.send(&Request { id, call }, &[])?;
        loop {
            let (reply, fds) = next_reply(&self.socket, &mut self.events)?
                .context("the appliance does not answer")?;
            if reply.id == id {
                return Ok(reply.result.map(|answer| (answer, fds)));
            }
        }
    }

    /// Makes a call that must succeed.
    pub(crate) fn call(&mut self, call: Call) -> Result<(Answer, Vec<OwnedFd>)> {
        Ok(self.try_call(call)??)
    }

    pub(crate) fn create_domain(&mut self) -> Result<u32> {
        match self.call(Call::CreatePd)? {
            (Answer::Created { number }, _) => Ok(number),
            (other, _) => bail!("{other:?}"),
        }
    }

    pub(crate) fn create_queue(&mut self, entries: u32) -> Result<RawQueue> {
        match self.call(Call::CreateCompletionQueue { entries, channel: None })? {
            (Answer::CompletionQueue { queue, .. }, fds) => {
                Ok(RawQueue { number: queue, area: only(fds)? })
            }
            (other, _) => bail!("{other:?}"),
        }
    }

    /// Creates a QP whose queues have the same CQ.
    pub(crate) fn create_pair(&mut self, pd: u32, queue: u32) -> Result<RawPair> {
        let call = Call::CreateQueuePair {
            pd,
            send_completions: queue,
            receive_completions: queue,
            max_sends: 16,
            max_receives: 16,
            copy_sources: false,
            shared_receives: None,
        };
        match self.call(call)? {
            (Answer::QueuePair { pair, sends, receives: Some(receives) }, fds) => {
                let (next, worker) = ([0; 2], 0);
                Ok(RawPair { number: pair, area: only(fds)?, sends, receives, next, worker })
            }
            (other, _) => bail!("{other:?}"),
        }
    }

    /// Registers `len` bytes of the arena from `start` on. Returns the STag.
    pub(crate) fn register(&mut self, pd: u32, start: u64, len: u64) -> Result<u32> {
        let (address, parts) = (ADDRESS + start, vec![(start, start + len)]);
        let call = Call::RegisterMemory { pd, address, len, offset: 0, parts, access: ALL };
        match self.call(call)? {
            (Answer::Registered { stag }, _) => Ok(stag),
            (other, _) => bail!("{other:?}"),
        }
    }

    /// Requests a connection of a QP.
    pub(crate) fn start_connect(&mut self, pair: &RawPair, remote: SocketAddr) -> Result<()> {
        let depths = Depths { ird: 4, ord: 4 };
        self.call(Call::Connect(ConnectCall {
            pair: pair.number,
            local: None,
            remote,
            transport: Transport::Tcp,
            start_up: StartUp::default(),
            depths,
            private_data: Vec::new(),
            timeout: 10_000,
        }))?;
        Ok(())
    }

    /// Connects a QP and waits until the connection is established.
    pub(crate) fn connect_pair(&mut self, pair: &mut RawPair, remote: SocketAddr) -> Result<()> {
        self.start_connect(pair, remote)?;
        match self.next_event(ANSWER_TIMEOUT)?.context("no event about the connection")? {
            Event::Established { worker, .. } => {
                pair.worker = worker.into();
                Ok(())
            }
            other => bail!("{other:?}"),
        }
    }

    /// Returns the next event; `None` after the time-out.
    pub(crate) fn next_event(&mut self, timeout: Duration) -> Result<Option<Event>> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match receive(&self.socket, until)? {
                Some((Message::Event(event), _)) => self.events.push_back(event),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Writes a descriptor to the SQ (`receive` false) or RQ of a QP, whether there is room or not, and rings the
    /// doorbell.
    pub(crate) fn post(&self, pair: &mut RawPair, receive: bool, units: &Units) -> Result<()> {
        let ring = if receive { pair.receives } else { pair.sends };
        let next = &mut pair.next[usize::from(receive)];
        for unit in units {
            let at = *next % u64::from(ring.capacity);
            let bytes: Vec<u8> = unit.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let first = ring.offset + ring::HEADER_WORDS as u64 * 8;
            pair.area.write_all_at(&bytes, first + at * 64)?;
            *next += 1;
        }
        pair.area.write_all_at(&next.to_ne_bytes(), ring.offset)?;
        self.ring(pair)
    }

    /// Rings both doorbells of a QP at the worker of its connection, and wakes the worker. Also rings all other
    /// doorbells in the same word of the bitmap.
    pub(crate) fn ring(&self, pair: &RawPair) -> Result<()> {
        let (doorbells, wake) = self.workers.get(pair.worker).context("no such worker")?;
        let word = u64::from(pair.number / 32);
        doorbells.write_all_at(&[0xff; 8], BELLS_AT + BITMAP_AT + word * 8)?;
        let summary = (1u64 << (word % 64)).to_ne_bytes();
        doorbells.write_all_at(&summary, BELLS_AT + SUMMARY_AT + word / 64 * 8)?;
        // A full socket wakes the worker, too.
        let _ = rustix::net::send(wake, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        Ok(())
    }
}

/// Waits for the next reply and keeps the events before it; `None` after the time-out.
fn next_reply(
    socket: &SessionSocket,
    events: &mut VecDeque<Event>,
) -> Result<Option<(Reply, Vec<OwnedFd>)>> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match receive(socket, until)? {
            Some((Message::Reply(reply), fds)) => return Ok(Some((reply, fds))),
            Some((Message::Event(event), _)) => events.push_back(event),
            None => return Ok(None),
        }
    }
}

/// Waits for a message. Returns `None` if none arrives until `until`.
fn receive(socket: &SessionSocket, until: Instant) -> Result<Option<(Message, Vec<OwnedFd>)>> {
    loop {
        match socket.receive::<Message>() {
            Err(SocketError::WouldBlock) => {}
            received => return Ok(Some(received?)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::try_from(left)?))?;
    }
}

fn only(fds: Vec<OwnedFd>) -> Result<File> {
    Ok(File::from(fds.into_iter().next().context("no descriptor of the queues")?))
}
