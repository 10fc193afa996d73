//! The appliance's side of one session, without a control thread: creates the memory that the program requests,
//! answers, and passes commands on to the worker. Calls that the hot paths do not need are refused.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Context as _;
use dataplane::memory::{Arena, Maps, QueueArea, ViewConfig};
use dataplane::{
    Command, CompletionQueueConfig, ProgramConfig, ProgramId, QueuePairConfig, QueuePairId,
    Receives, Signal, Ticket,
};
use ddp::{Access, PdId, Stag, StagEntry, TaggedOffset};
use rustix::event::{PollFd, PollFlags, poll};
use verbs_layout::version::VERSION;
use verbs_layout::{completion, doorbell, ring, session};
use verbs_session::message::{
    Answer, Call, Depths, Limits, Message, Refusal, RefusalKind, Reply, Request, Ring, Welcome,
};
use verbs_session::socket::{SessionSocket, SocketError};

/// Protection domain of the program.
pub(crate) const PD: PdId = PdId(2);
/// The QP of the program.
pub(crate) const PAIR: QueuePairId = QueuePairId { program: ProgramId(1), number: 0 };
/// STag of the program's memory region.
pub(crate) const REGION: Stag = Stag(0x700);
/// IRD and ORD of the connection.
pub(crate) const DEPTHS: Depths = Depths { ird: 16, ord: 16 };

const ARENA: u64 = 1 << 20;
const FIRST: u64 = session::HEADER_WORDS as u64 * 8;
/// Maximum number of the program's doorbells and posted sends per turn: the default of `programs.budget`.
const BUDGET: u32 = 128;

/// Serves a session until the program closes it.
pub(crate) fn serve(socket: &SessionSocket, commands: &Sender<Command>) -> anyhow::Result<()> {
    let mut objects = Objects { arena: Arena::create("arena", ARENA)?, maps: Maps::default() };
    loop {
        let Request { id, call } = match socket.receive() {
            Ok((request, _)) => request,
            Err(SocketError::WouldBlock) => {
                poll(&mut [PollFd::new(socket, PollFlags::IN)], None)?;
                continue;
            }
            Err(_) => return Ok(()),
        };
        let (answer, descriptors) = objects.answer(call, commands)?;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let result = answer.ok_or_else(|| Refusal {
            kind: RefusalKind::Invalid,
            message: "the call is not needed here".into(),
        });
        socket.send(&Message::Reply(Reply { id, result }), &descriptors)?;
    }
}

struct Objects {
    arena: Arena,
    maps: Maps,
}

impl Objects {
    /// Performs a call. Returns its answer and descriptors; `None` to refuse it.
    fn answer(
        &mut self,
        call: Call,
        commands: &Sender<Command>,
    ) -> anyhow::Result<(Option<Answer>, Vec<OwnedFd>)> {
        let ticket = Ticket(0);
        Ok(match call {
            Call::Hello { .. } => {
                let (area, bells) = self.area(doorbell::WORDS)?;
                let (wake, end) = Signal::pair()?;
                let doorbells = area.doorbells(FIRST)?;
                let config = ProgramConfig { id: PAIR.program, doorbells, wake, budget: BUDGET };
                pass(commands, Command::AddProgram { program: Box::new(config), ticket })?;
                let arena = self.arena.fd().try_clone_to_owned()?;
                (Some(Answer::Welcome(welcome())), vec![arena, bells, end])
            }
            Call::CreatePd => (Some(Answer::Created { number: 1 }), Vec::new()),
            Call::RegisterMemory { address, len, offset, parts, .. } => {
                let parts: Vec<_> = parts.into_iter().map(|(start, end)| start..end).collect();
                let config = ViewConfig { writable: true, lock: false };
                let memory = self.arena.view(&parts, config, &self.maps, &mut |_| true)?;
                let entry = StagEntry {
                    stag: REGION,
                    pd: PD,
                    stream: None,
                    base_to: TaggedOffset(address),
                    len,
                    access: Access::NONE,
                    memory,
                    memory_offset: offset,
                };
                pass(commands, Command::AddStag { entry, ticket })?;
                (Some(Answer::Registered { stag: REGION.0 }), Vec::new())
            }
            Call::CreateCompletionQueue { entries, .. } => {
                let capacity = entries.next_power_of_two();
                let (area, file) = self.area(completion::words(capacity as usize))?;
                let queue = CompletionQueueConfig {
                    program: PAIR.program,
                    number: 0,
                    queue: area.completion_queue(FIRST, capacity as usize)?,
                    channel: None,
                };
                pass(commands, Command::AddCompletionQueue { queue: Box::new(queue), ticket })?;
                let offsets = vec![FIRST];
                (Some(Answer::CompletionQueue { queue: 0, capacity, offsets }), vec![file])
            }
            Call::CreateQueuePair { max_sends, max_receives, .. } => {
                let capacity = (3 * max_sends).next_power_of_two();
                let words = ring::words(capacity as usize);
                let (area, file) = self.area(2 * words)?;
                let sends = Ring { offset: FIRST, capacity };
                let receives = Ring { offset: FIRST + words as u64 * 8, capacity };
                let end = |ring: Ring| area.ring(ring.offset, ring.capacity as usize);
                let pair = QueuePairConfig {
                    id: PAIR,
                    pd: PD,
                    sends: end(sends)?,
                    max_sends,
                    receives: Receives::Own(end(receives)?),
                    max_receives,
                    send_completions: 0,
                    receive_completions: 0,
                    copy_sources: false,
                };
                pass(commands, Command::AddQueuePair { pair: Box::new(pair), ticket })?;
                let (pair, receives) = (PAIR.number, Some(receives));
                (Some(Answer::QueuePair { pair, sends, receives }), vec![file])
            }
            // The stage connects the QP.
            Call::Connect(_) => (Some(Answer::Done), Vec::new()),
            _ => (None, Vec::new()),
        })
    }

    fn area(&self, words: usize) -> anyhow::Result<(QueueArea, OwnedFd)> {
        let bytes = FIRST + words as u64 * 8;
        QueueArea::create("queues", bytes, &self.maps).context("an area")
    }
}

/// Passes a command on to the thread that drives the worker.
fn pass(commands: &Sender<Command>, command: Command) -> anyhow::Result<()> {
    commands.send(command).ok().context("the worker has ended")
}

fn welcome() -> Welcome {
    let limits = Limits {
        queue_pairs: 1,
        completion_queues: 1,
        memory_regions: 1,
        memory_bytes: ARENA,
        posts: 1 << 12,
        completions: 1 << 13,
        depths: DEPTHS,
    };
    let (version, program, devices) = (VERSION, PAIR.program.0, Vec::new());
    Welcome { version, program, arena: ARENA, workers: 1, limits, devices }
}

/// Creates the two ends of a session's socket.
pub(crate) fn sockets() -> anyhow::Result<(Arc<SessionSocket>, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (type_, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, type_, flags, None)?;
    Ok((Arc::new(SessionSocket::new(ours)), theirs))
}
