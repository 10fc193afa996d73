//! The ceiling of the appliance's memory: regions, what jobs stage, the workers' buffers, and the streams.
//!
//! ```text
//!   0                                                       ceiling
//!   | buffers and streams (fixed) | regions | jobs |   free   |
//! ```
//!
//! The ceiling is `limits.memory`, or a share of what the machine lets the process have. The bounds of the workers'
//! buffers are set aside at the start, and what `limits.streams` streams take besides; the bounds are lowered so that
//! both are half of the ceiling where they are more. A region or a job is charged before its memory is mapped, and the
//! charge goes with the last handle on the memory.
//!
//! All of a region counts: anonymous and file-backed ones are private memory, shared ones a memory file, and all are
//! populated at once. A region in reserved hugepages does not: its pages were taken from RAM when they were reserved.
//! Not counted: packet pools, which are subtracted from the machine's memory beforehand, and the program itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::MemoryInfo;
use config::{Limits, MachineMemory, show_size};

/// Without `limits.memory`, of what the machine lets the process have: per cent.
const SHARE: u64 = 75;
/// What a stream takes besides its buffers, in its worker and in the control thread: about 1 KiB and at most 416 bytes of
/// records in the worker, as much for the copy of the records and some 100 bytes for each event of the flight recorder in
/// the control thread. A stream whose posts fail again and again may take up to 14 KiB: 32 events with sentences of 240
/// bytes.
const STREAM: u64 = 4096;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// What the machine has for one appliance.
#[derive(Clone, Debug)]
pub struct Room {
    /// What one process may have.
    pub machine: MachineMemory,
    /// Bytes of packet pools in it.
    pub pools: u64,
    /// Appliances of the process.
    pub appliances: u64,
}

/// What memory is charged for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// A region.
    Region,
    /// What a job stages.
    Job,
}

/// The ceiling, and what is in use. A handle that is cheap to clone, for all threads.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    room: Option<Room>,
    workers: usize,
    /// Of their buffers; fixed.
    buffers: u64,
    /// Of their streams.
    streams: AtomicU64,
    ceiling: AtomicU64,
    /// True when it is `limits.memory` and nothing less.
    by_key: AtomicBool,
    /// Regions and jobs together: what is compared with the ceiling.
    charged: AtomicU64,
    regions: AtomicU64,
}

/// Bytes that are in use until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    of: Of,
    bytes: u64,
}

/// More than the ceiling leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Over {
    what: String,
    asked: u64,
    used: MemoryInfo,
}

impl Budget {
    /// For an appliance with `workers` workers. `room`: what the machine has; without it only the key counts.
    pub fn new(room: Option<Room>, limits: &Limits, workers: usize) -> Budget {
        let (ceiling, by_key) = ceiling(room.as_ref(), limits.memory);
        Budget(Arc::new(Inner {
            workers,
            buffers: scaled(limits, workers, ceiling / 2).total(workers),
            streams: AtomicU64::new(structures(limits, workers)),
            room,
            ceiling: AtomicU64::new(ceiling),
            by_key: by_key.into(),
            charged: AtomicU64::new(0),
            regions: AtomicU64::new(0),
        }))
    }

    /// Without a bound, for tests and benchmarks of parts.
    pub fn unlimited() -> Budget {
        Budget(Arc::new(Inner {
            room: None,
            workers: 0,
            buffers: 0,
            streams: AtomicU64::new(0),
            ceiling: AtomicU64::new(u64::MAX),
            by_key: true.into(),
            charged: AtomicU64::new(0),
            regions: AtomicU64::new(0),
        }))
    }

    /// The bounds of one worker's buffers that fit, and a sentence if they are less than configured.
    pub fn buffers(&self, limits: &Limits, workers: usize) -> (Buffers, Option<String>) {
        let half = self.0.ceiling.load(Ordering::Relaxed) / 2;
        let (asked, given) = (Buffers::of(limits), scaled(limits, workers, half));
        let note = (given != asked).then(|| {
            let streams = structures(limits, workers);
            format!(
                "the buffers of {workers} workers may take {} together, because limits.memory is {} and limits.streams \
                 streams take {}, and not {} as limits.buffers_per_worker, held_per_worker and kept_per_worker say",
                show_size(given.total(workers)),
                show_size(half * 2),
                show_size(streams),
                show_size(asked.total(workers)),
            )
        });
        (given, note)
    }

    /// From now on these limits hold: the ceiling, and as many streams. What is in use stays.
    pub fn follow(&self, limits: &Limits) {
        let inner = &self.0;
        let (bytes, by_key) = ceiling(inner.room.as_ref(), limits.memory);
        inner.ceiling.store(bytes, Ordering::Relaxed);
        inner.by_key.store(by_key, Ordering::Relaxed);
        inner.streams.store(structures(limits, inner.workers), Ordering::Relaxed);
    }

    /// Whether so many bytes more would fit; under these limits, if there are to be others.
    pub fn check(&self, what: &str, asked: u64, limits: Option<&Limits>) -> Result<(), Over> {
        let mut used = self.info();
        if let Some(limits) = limits {
            let (bytes, by_key) = ceiling(self.0.room.as_ref(), limits.memory);
            (used.ceiling, used.source) = (bytes, self.source(by_key));
            let workers = self.0.buffers.saturating_add(structures(limits, self.0.workers));
            used.in_use = (used.in_use - used.workers).saturating_add(workers);
            used.workers = workers;
        }
        match used.in_use.saturating_add(rounded(asked)) > used.ceiling {
            true => Err(Over { what: what.to_owned(), asked, used }),
            false => Ok(()),
        }
    }

    /// Charges bytes before they are mapped.
    ///
    /// # Errors
    /// They do not fit; nothing is charged.
    pub fn charge(&self, of: Of, what: &str, asked: u64) -> Result<Charge, Over> {
        let bytes = rounded(asked);
        let inner = &self.0;
        let fits = |charged: u64| {
            let sum = charged.checked_add(bytes)?;
            let ceiling = inner.ceiling.load(Ordering::Relaxed);
            (sum.checked_add(self.set_aside())? <= ceiling).then_some(sum)
        };
        let charged = inner.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if charged.is_err() {
            return Err(Over { what: what.to_owned(), asked, used: self.info() });
        }
        if of == Of::Region {
            inner.regions.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(Charge { budget: self.clone(), of, bytes })
    }

    /// As operators see it.
    pub fn info(&self) -> MemoryInfo {
        let inner = &self.0;
        let charged = inner.charged.load(Ordering::Relaxed);
        let regions = inner.regions.load(Ordering::Relaxed).min(charged);
        let workers = self.set_aside();
        MemoryInfo {
            ceiling: inner.ceiling.load(Ordering::Relaxed),
            in_use: workers.saturating_add(charged),
            regions,
            jobs: charged - regions,
            workers,
            source: self.source(inner.by_key.load(Ordering::Relaxed)),
        }
    }

    /// For buffers and streams of the workers.
    fn set_aside(&self) -> u64 {
        self.0.buffers.saturating_add(self.0.streams.load(Ordering::Relaxed))
    }

    /// Where the ceiling is from.
    fn source(&self, by_key: bool) -> String {
        match &self.0.room {
            Some(Room { machine, pools, appliances }) if !by_key => {
                let less = match pools {
                    0 => String::new(),
                    pools => format!(" less {} of packet pools", show_size(*pools)),
                };
                let each = match appliances {
                    0 | 1 => String::new(),
                    n => format!(", for one of {n} appliances"),
                };
                let (bytes, source) = (show_size(machine.bytes), &machine.source);
                format!("{SHARE} % of {source} ({bytes}){less}{each}")
            }
            _ => "limits.memory".into(),
        }
    }
}

/// Bounds of one worker's buffers, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// `limits.buffers_per_worker`.
    pub buffers: u64,
    /// `limits.held_per_worker`.
    pub held: u64,
    /// `limits.kept_per_worker`.
    pub kept: u64,
}

impl Buffers {
    fn of(limits: &Limits) -> Buffers {
        let Limits { buffers_per_worker, held_per_worker, kept_per_worker, .. } = limits;
        Buffers { buffers: *buffers_per_worker, held: *held_per_worker, kept: *kept_per_worker }
    }

    fn total(self, workers: usize) -> u64 {
        let one = self.buffers.saturating_add(self.held).saturating_add(self.kept);
        one.saturating_mul(workers as u64)
    }
}

/// What as many streams take as the workers may have, without their buffers.
fn structures(limits: &Limits, workers: usize) -> u64 {
    u64::from(limits.streams).saturating_mul(workers as u64).saturating_mul(STREAM)
}

/// The bounds as configured, or in the same proportion as much as `most` bytes hold for all workers beside the streams; a
/// quarter of that, however many streams there may be.
fn scaled(limits: &Limits, workers: usize, most: u64) -> Buffers {
    let most = most.saturating_sub(structures(limits, workers)).max(most / 4);
    let asked = Buffers::of(limits);
    let total = asked.total(workers);
    if total <= most {
        return asked;
    }
    let part = |bytes: u64| {
        let part = u128::from(bytes) * u128::from(most) / u128::from(total);
        // Whole pages, as all that is charged.
        u64::try_from(part).unwrap_or(u64::MAX) / PAGE * PAGE
    };
    Buffers { buffers: part(asked.buffers), held: part(asked.held), kept: part(asked.kept) }
}

/// The ceiling, whole MiB where it is that large, and whether the key alone says it.
fn ceiling(room: Option<&Room>, key: Option<u64>) -> (u64, bool) {
    let Some(room) = room else { return (key.unwrap_or(u64::MAX), true) };
    let rest = room.machine.bytes.saturating_sub(room.pools) / room.appliances.max(1);
    // More than the machine has is no ceiling.
    if let Some(key) = key.filter(|&key| key <= room.machine.bytes) {
        return (key, true);
    }
    let share = u64::try_from(u128::from(rest) * u128::from(SHARE) / 100).unwrap_or(u64::MAX);
    (if share >= MIB { share / MIB * MIB } else { share }, false)
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

impl Drop for Charge {
    fn drop(&mut self) {
        let inner = &self.budget.0;
        if self.of == Of::Region {
            inner.regions.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        inner.charged.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Over { what, asked, used } = self;
        write!(
            f,
            "{what}: {} asked for, {} of {} in use (regions {}, jobs {}, buffers and streams {}); the ceiling is {}: make it \
             smaller, free some, or raise limits.memory",
            show_size(*asked),
            show_size(used.in_use),
            show_size(used.ceiling),
            show_size(used.regions),
            show_size(used.jobs),
            show_size(used.workers),
            used.source,
        )
    }
}

#[cfg(test)]
mod tests;
