//! Checks of calls that need memory, and the allocation of this memory. Runs on the session's thread, because mapping
//! and populating pages blocks. The control thread receives the result.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::AttachedProcess;
use config::ProgramsSection;
use dataplane::Signal;
use dataplane::memory::{
    Arena, CompletionProducer, DoorbellScanner, Memory, MemoryError, QueueArea, RingConsumer,
    SharedRing, ViewConfig,
};
use verbs_layout::version::{VERSIONS, Versions};
use verbs_layout::{completion, doorbell, ring, session};
use verbs_session::message::{
    Answer, Call, MAX_DESCRIPTORS, MemoryAccess, Refusal, RefusalKind, Ring,
};

use super::outbox::Outbox;
use super::refusal;
use super::refused::Refused;
use super::share::{Hold, Notice, RegionCharge, Share};
use super::shared::Shared;

/// Offset of the first ring, completion queue or doorbells in a queue area, bytes. The area's header precedes it.
const FIRST: u64 = session::HEADER_WORDS as u64 * 8;
/// Maximum length of a program's name, characters.
const MAX_NAME: usize = 64;
/// Smallest capacity of a ring, units of 64 bytes.
const MIN_UNITS: u32 = 8;
/// Ring units per post, for a send queue and for a receive queue. A descriptor has at most 5 units; most have fewer.
const UNITS_PER_POST: (u32, u32) = (3, 2);
/// Upper bounds of a worker's memory for an incomplete post, bytes. For a send queue: an operation per SGE, and inline
/// data. For a receive queue: its SGEs.
const STATE_PER_POST: (u64, u64) = (512, 256);

/// Next key of a memory region. The control thread receives the key when the memory of the region is free.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// A checked call, with the memory allocated for it.
#[derive(Debug)]
pub(in crate::appliance) enum Prepared {
    Attach(Box<Attachment>),
    Register(Box<Registration>),
    Channel {
        signal: Signal,
        descriptor: OwnedFd,
    },
    CompletionQueue(Box<PreparedQueue>),
    SharedQueue(Box<PreparedSharedQueue>),
    QueuePair(Box<PreparedPair>),
    /// A call that needs no memory.
    Plain(Box<Call>),
}

/// A program that attaches, with its arena and doorbells.
#[derive(Debug)]
pub(in crate::appliance) struct Attachment {
    pub(super) name: String,
    pub(super) process: AttachedProcess,
    pub(super) outbox: Arc<Outbox>,
    pub(super) share: Arc<Share>,
    /// Negotiated version of the shared-memory layout.
    pub(super) version: u32,
    /// Size of the arena, bytes.
    pub(super) arena: u64,
    /// Doorbells and wake-up signal of each worker.
    pub(super) workers: Vec<(DoorbellScanner, Signal)>,
    /// Descriptors sent with the welcome, the reply to the hello: the arena, then doorbells and wake-up signal of each
    /// worker.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// A memory region to register.
#[derive(Debug)]
pub(in crate::appliance) struct Registration {
    pub(super) pd: u32,
    /// Address of the region's first byte in the program.
    pub(super) address: u64,
    /// Length, bytes.
    pub(super) len: u64,
    /// Offset of the region's first byte in `memory`.
    pub(super) offset: u64,
    pub(super) access: MemoryAccess,
    pub(super) memory: Memory,
    /// Key that the control thread receives when the memory is free.
    pub(super) key: u64,
}

/// A new completion queue.
#[derive(Debug)]
pub(in crate::appliance) struct PreparedQueue {
    pub(super) channel: Option<u32>,
    /// Number of entries of each worker's part, a power of two.
    pub(super) capacity: u32,
    /// Offset of each worker's part in the queue area, bytes.
    pub(super) offsets: Vec<u64>,
    /// The producing ends of the CQ, one per worker.
    pub(super) producers: Vec<CompletionProducer>,
    pub(super) descriptor: OwnedFd,
    pub(super) hold: Hold,
}

/// A new queue pair.
#[derive(Debug)]
pub(in crate::appliance) struct PreparedPair {
    pub(super) pd: u32,
    /// Number of the CQ that receives the completions of the SQ.
    pub(super) send_queue: u32,
    /// Number of the CQ that receives the completions of the RQ.
    pub(super) receive_queue: u32,
    /// Maximum number of incomplete posted operations.
    pub(super) max_sends: u32,
    /// Maximum number of incomplete posted receives.
    pub(super) max_receives: u32,
    /// True if the program may change source bytes before their operation is complete: sent data is copied.
    pub(super) copy_sources: bool,
    /// Number of the SRQ; `None` if the QP has its own RQ.
    pub(super) shared_queue: Option<u32>,
    /// SQ, and RQ unless the QP has an SRQ.
    pub(super) rings: (RingConsumer, Option<RingConsumer>),
    /// Offset and capacity of the rings, for the reply.
    pub(super) sends: Ring,
    pub(super) receives: Option<Ring>,
    pub(super) descriptor: OwnedFd,
    pub(super) hold: Hold,
}

/// A new shared receive queue.
#[derive(Debug)]
pub(in crate::appliance) struct PreparedSharedQueue {
    pub(super) pd: u32,
    pub(super) ring: SharedRing,
    /// Offset and capacity of the ring, for the reply.
    pub(super) receives: Ring,
    pub(super) descriptor: OwnedFd,
    pub(super) hold: Hold,
}

/// Allocates memory for the calls of one session.
#[derive(Debug)]
pub(in crate::appliance) struct Preparer {
    shared: Arc<Shared>,
    outbox: Arc<Outbox>,
    process: AttachedProcess,
    share: Arc<Share>,
    /// The arena; `None` until [`prepare`](Self::prepare) has accepted a hello.
    arena: Option<Arena>,
}

impl Preparer {
    pub(in crate::appliance) fn new(
        shared: Arc<Shared>,
        outbox: Arc<Outbox>,
        process: AttachedProcess,
    ) -> Preparer {
        let share = Arc::new(Share::new(&shared.settings));
        Preparer { shared, outbox, process, share, arena: None }
    }

    /// Returns true once [`prepare`](Self::prepare) has accepted a hello. The control thread can still refuse the
    /// program.
    pub(super) fn is_open(&self) -> bool {
        self.arena.is_some()
    }

    /// Returns the report to the control thread about a refusal by [`prepare`](Self::prepare); `None` if no report is
    /// needed.
    pub(in crate::appliance) fn report(&self, refusal: &Refusal) -> Option<Refused> {
        Refused::new(self.process, refusal, self.is_open())
    }

    /// Checks a call and allocates its memory. Blocks, for seconds if a memory region is large.
    ///
    /// # Errors
    /// Returns the refusal to send to the program.
    pub(in crate::appliance) fn prepare(&mut self, call: Call) -> Result<Prepared, Refusal> {
        match (call, &self.arena) {
            (Call::Hello { oldest, newest, name }, None) => {
                self.attach(Versions { oldest, newest }, name)
            }
            (Call::Hello { .. }, Some(_)) => Err(invalid("the session is open already")),
            (_, None) => Err(invalid("a session begins with hello")),
            (Call::RegisterMemory { pd, address, len, offset, parts, access }, Some(arena)) => {
                let region = RegionRequest { pd, address, len, offset, access };
                self.register(arena, region, &parts)
            }
            (Call::CreateChannel, Some(_)) => {
                let (signal, descriptor) = Signal::pair().map_err(no_descriptor)?;
                Ok(Prepared::Channel { signal, descriptor })
            }
            (Call::CreateCompletionQueue { entries, channel }, Some(_)) => {
                self.completion_queue(entries, channel)
            }
            (Call::CreateSharedReceiveQueue { pd, max_receives }, Some(_)) => {
                self.shared_queue(pd, max_receives)
            }
            (call @ Call::CreateQueuePair { .. }, Some(_)) => self.queue_pair(&call),
            (call, Some(_)) => Ok(Prepared::Plain(Box::new(call))),
        }
    }

    fn attach(&mut self, versions: Versions, name: String) -> Result<Prepared, Refusal> {
        if !self.process.admitted {
            let uid = self.process.uid;
            let sentence = format!("uid {uid} may not attach: programs.allow gives the right");
            return Err(refusal(RefusalKind::NotAllowed, sentence));
        }
        if name.chars().count() > MAX_NAME || name.contains(char::is_control) {
            return Err(invalid("the name has at most 64 characters, without control characters"));
        }
        let version = VERSIONS
            .negotiate(versions)
            .map_err(|error| refusal(RefusalKind::Version, error.to_string()))?;
        let workers = usize::from(self.shared.workers);
        if 1 + 2 * workers > MAX_DESCRIPTORS {
            let sentence = format!("an appliance with {workers} workers cannot serve programs");
            return Err(refusal(RefusalKind::NotAllowed, sentence));
        }
        let page = rustix::param::page_size() as u64;
        let len = self.shared.settings.arena.next_multiple_of(page);
        let arena = Arena::create("ddpd-arena", len).map_err(no_memory)?;
        let mut descriptors =
            vec![arena.fd().try_clone_to_owned().map_err(|error| no_descriptor_io(&error))?];
        let mut ends = Vec::new();
        for _ in 0..workers {
            let bytes = FIRST + doorbell::WORDS as u64 * 8;
            let (area, fd) = QueueArea::create("ddpd-doorbells", bytes, self.shared.budget.maps())
                .map_err(no_memory)?;
            let (wake, end) = Signal::pair().map_err(no_descriptor)?;
            ends.push((area.doorbells(FIRST).map_err(internal)?, wake));
            descriptors.extend([fd, end]);
        }
        self.arena = Some(arena);
        Ok(Prepared::Attach(Box::new(Attachment {
            name,
            process: self.process,
            outbox: Arc::clone(&self.outbox),
            share: Arc::clone(&self.share),
            version,
            arena: len,
            workers: ends,
            descriptors,
        })))
    }

    fn register(
        &self,
        arena: &Arena,
        region: RegionRequest,
        parts: &[(u64, u64)],
    ) -> Result<Prepared, Refusal> {
        let total = region.check(parts)?;
        self.check_arena(arena)?;
        let RegionRequest { pd, address, len, offset, access } = region;
        let hold = self.share.take(&self.shared.budget, total, parts.len() as u64)?;
        let parts: Vec<_> = parts.iter().map(|&(start, end)| start..end).collect();
        let config = ViewConfig { writable: access.local_write, lock: true };
        // Mapping stops before its next piece if the program has ended.
        let memory = arena
            .view(&parts, config, self.shared.budget.maps(), &mut |_| !self.outbox.has_ended())
            .map_err(no_memory)?;
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let (freed, waker) = (self.shared.freed.clone(), self.shared.waker.clone());
        let charge = RegionCharge { _hold: hold, _notice: Notice { key, freed, waker } };
        let memory = memory.with_charge(charge);
        let registration = Registration { pd, address, len, offset, access, memory, key };
        Ok(Prepared::Register(Box::new(registration)))
    }

    /// Refuses a registration while the program has too much memory in its arena. Pages of the arena outside of regions
    /// are not charged, and stay allocated until the program frees them.
    fn check_arena(&self, arena: &Arena) -> Result<(), Refusal> {
        let found = rustix::fs::fstat(arena.fd()).map_err(no_descriptor)?;
        // `st_blocks` counts blocks of 512 bytes.
        let used = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
        let most = self.shared.settings.memory.saturating_mul(2).saturating_add(ARENA_SLACK);
        if used <= most {
            return Ok(());
        }
        let sentence = format!(
            "{used} bytes of the program's arena are in use; with programs.memory = {}, at most {most} may be in use",
            self.shared.settings.memory
        );
        Err(refusal(RefusalKind::Limit, sentence))
    }

    fn completion_queue(&self, entries: u32, channel: Option<u32>) -> Result<Prepared, Refusal> {
        let max = self.shared.settings.completions;
        if !(1..=max).contains(&entries) {
            return Err(invalid(format!("a completion queue has 1 to {max} entries")));
        }
        let capacity = entries.next_power_of_two().max(2);
        let each = completion::words(capacity as usize) as u64 * 8;
        let workers = u64::from(self.shared.workers);
        let offsets: Vec<u64> = (0..workers).map(|worker| FIRST + worker * each).collect();
        let bytes = FIRST + workers * each;
        let hold = self.share.take(&self.shared.budget, bytes, 0)?;
        let (area, descriptor) =
            QueueArea::create("ddpd-completions", bytes, self.shared.budget.maps())
                .map_err(no_memory)?;
        let producers = offsets
            .iter()
            .map(|&offset| area.completion_queue(offset, capacity as usize).map_err(internal))
            .collect::<Result<_, _>>()?;
        let queue = PreparedQueue { channel, capacity, offsets, producers, descriptor, hold };
        Ok(Prepared::CompletionQueue(Box::new(queue)))
    }

    fn shared_queue(&self, pd: u32, max_receives: u32) -> Result<Prepared, Refusal> {
        let max = self.shared.settings.posts;
        if !(1..=max).contains(&max_receives) {
            return Err(invalid(format!("max_receives is 1 to {max}")));
        }
        let receives = Ring { offset: FIRST, capacity: units(max_receives, UNITS_PER_POST.1) };
        let bytes = end_of(receives);
        let hold = self.share.take(&self.shared.budget, bytes, 0)?;
        let (area, descriptor) =
            QueueArea::create("ddpd-shared-receives", bytes, self.shared.budget.maps())
                .map_err(no_memory)?;
        let ring = area.shared_ring(receives.offset, receives.capacity as usize);
        let ring = ring.map_err(internal)?;
        let queue = PreparedSharedQueue { pd, ring, receives, descriptor, hold };
        Ok(Prepared::SharedQueue(Box::new(queue)))
    }

    fn queue_pair(&self, call: &Call) -> Result<Prepared, Refusal> {
        let &Call::CreateQueuePair {
            pd,
            send_completions,
            receive_completions,
            max_sends,
            max_receives,
            copy_sources,
            shared_receives: shared_queue,
        } = call
        else {
            return Err(invalid("no queue pair"));
        };
        let max = self.shared.settings.posts;
        if !(1..=max).contains(&max_sends) || !(1..=max).contains(&max_receives) {
            return Err(invalid(format!("max_sends and max_receives are 1 to {max}")));
        }
        let sends = Ring { offset: FIRST, capacity: units(max_sends, UNITS_PER_POST.0) };
        let capacity = units(max_receives, UNITS_PER_POST.1);
        let receives = Ring { offset: end_of(sends), capacity };
        let receives = shared_queue.is_none().then_some(receives);
        let bytes = end_of(receives.unwrap_or(sends));
        let state =
            u64::from(max_sends) * STATE_PER_POST.0 + u64::from(max_receives) * STATE_PER_POST.1;
        let hold = self.share.take(&self.shared.budget, bytes + state, 0)?;
        let (area, descriptor) = QueueArea::create("ddpd-queues", bytes, self.shared.budget.maps())
            .map_err(no_memory)?;
        let end = |ring: Ring| area.ring(ring.offset, ring.capacity as usize).map_err(internal);
        Ok(Prepared::QueuePair(Box::new(PreparedPair {
            pd,
            send_queue: send_completions,
            receive_queue: receive_completions,
            max_sends,
            max_receives,
            copy_sources,
            shared_queue,
            rings: (end(sends)?, receives.map(end).transpose()?),
            sends,
            receives,
            descriptor,
            hold,
        })))
    }
}

/// Arena memory allowed beyond twice `programs.memory`, bytes. Programs free unused arena memory before it reaches this
/// size.
const ARENA_SLACK: u64 = 64 << 20;

/// Returns the capacity of a ring for `posts` descriptors.
fn units(posts: u32, units_per_post: u32) -> u32 {
    (posts * units_per_post).next_power_of_two().max(MIN_UNITS)
}

/// Returns the offset of the byte after a ring.
fn end_of(ring: Ring) -> u64 {
    ring.offset + ring::words(ring.capacity as usize) as u64 * 8
}

/// The largest `posts` and `completions` that the configuration allows fit into the capacities of the layout.
const _: () = assert!(
    (32_768 * UNITS_PER_POST.0).next_power_of_two() as usize <= ring::MAX_CAPACITY
        && 1 << 20 <= completion::MAX_CAPACITY
);

/// The fields of `Call::RegisterMemory` except the parts.
struct RegionRequest {
    pd: u32,
    address: u64,
    len: u64,
    offset: u64,
    access: MemoryAccess,
}

impl RegionRequest {
    /// Checks the address range, rights and parts of a memory region. Returns the total size of the parts, bytes.
    fn check(&self, parts: &[(u64, u64)]) -> Result<u64, Refusal> {
        let &RegionRequest { pd: _, address, len, offset, access } = self;
        let page = rustix::param::page_size() as u64;
        if len == 0 || address.checked_add(len).is_none() {
            return Err(invalid("a memory region has at least 1 byte, and ends within 64 bits"));
        }
        // Atomics need aligned memory: an address and its byte in the arena have the same offset in their pages.
        if offset >= page || address % page != offset {
            return Err(invalid("the offset is not that of the address in its page"));
        }
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            return Err(invalid("remote_write and remote_atomic require local_write"));
        }
        let mut total = 0u64;
        for &(start, end) in parts {
            let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0);
            let bytes = bytes.ok_or_else(|| invalid("a part ends behind its first byte"))?;
            total = total.checked_add(bytes).ok_or_else(|| invalid("the parts are too long"))?;
        }
        match offset.checked_add(len) {
            Some(end) if end <= total => Ok(total),
            _ => Err(invalid("the memory region does not end within its parts")),
        }
    }
}

/// Returns the limits that the welcome reports to a program.
pub(super) fn limits(settings: &ProgramsSection) -> verbs_session::message::Limits {
    verbs_session::message::Limits {
        queue_pairs: settings.queue_pairs,
        completion_queues: settings.completion_queues,
        memory_regions: settings.memory_regions,
        memory_bytes: settings.memory,
        posts: settings.posts,
        completions: settings.completions,
        depths: super::MAX_DEPTHS,
    }
}

impl PreparedQueue {
    /// Returns the reply to the call that creates the CQ. Its descriptor is sent with the reply.
    pub(super) fn answer(&self, queue: u32) -> Answer {
        let (capacity, offsets) = (self.capacity, self.offsets.clone());
        Answer::CompletionQueue { queue, capacity, offsets }
    }
}

fn invalid(sentence: impl Into<String>) -> Refusal {
    refusal(RefusalKind::Invalid, sentence)
}

fn no_memory(error: MemoryError) -> Refusal {
    let kind = match error {
        MemoryError::ArenaRange { .. } | MemoryError::Name { .. } => RefusalKind::Invalid,
        _ => RefusalKind::NoMemory,
    };
    refusal(kind, error.to_string())
}

fn no_descriptor(error: rustix::io::Errno) -> Refusal {
    no_descriptor_io(&error.into())
}

fn no_descriptor_io(error: &std::io::Error) -> Refusal {
    refusal(RefusalKind::NoMemory, format!("no descriptor: {error}"))
}

fn internal(error: dataplane::memory::QueueError) -> Refusal {
    refusal(RefusalKind::NoMemory, error.to_string())
}
