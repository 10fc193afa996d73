//! The memory ceiling of the appliance: regions, memory of jobs, the workers' buffers, and the
//! streams.
//!
//! ```text
//!   0                                                       ceiling
//!   | buffers and streams (fixed) | regions | jobs |   free   |
//! ```
//!
//! The ceiling is `limits.memory`, or a share of the memory that the machine grants the process.
//! The bounds of the workers' buffers and the memory of `limits.streams` streams are reserved at
//! the start. If both exceed half of the ceiling, the buffers' bounds are lowered, to an eighth of
//! the ceiling at least. A region or a job is charged before its memory is mapped. The charge ends
//! with the last handle on the memory.
//!
//! A region counts with all its bytes: anonymous and file-backed ones are private memory, shared
//! ones a memory file, and all are populated at once. A region in reserved hugepages does not
//! count, because its pages were taken from RAM when they were reserved. Packet pools, which are
//! subtracted from the machine's memory beforehand, and the program itself do not count either.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::MemoryInfo;
use config::{Limits, MachineMemory, show_size};

/// Ceiling without `limits.memory`, per cent of the memory that the machine grants the process.
const SHARE: u64 = 75;
/// Bytes of a stream besides its buffers, in its worker and in the control thread. Worker: about 1
/// KiB, and at most 416 bytes of records. Control thread: a copy of the records, and about 100
/// bytes for each event of the flight recorder. A stream whose posts fail repeatedly may take up to
/// 14 KiB: 32 events with sentences of 240 bytes.
const STREAM: u64 = 4096;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Memory of the machine for the appliances of this process.
#[derive(Clone, Debug)]
pub struct Room {
    /// Memory that one process may use, and its source.
    pub machine: MachineMemory,
    /// Bytes of packet pools in it.
    pub pools: u64,
    /// Number of appliances in the process.
    pub appliances: u64,
}

/// Purpose of a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// A region.
    Region,
    /// Memory of a job.
    Job,
}

/// The ceiling, and the bytes in use. A cheaply cloned handle, shared by all threads.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    room: Option<Room>,
    workers: usize,
    /// Bounds of the workers' buffers, bytes; fixed.
    buffers: u64,
    /// Memory reserved for the workers' streams, bytes.
    streams: AtomicU64,
    ceiling: AtomicU64,
    /// True if the ceiling is `limits.memory`.
    by_key: AtomicBool,
    /// Bytes charged for regions and jobs.
    charged: AtomicU64,
    regions: AtomicU64,
}

/// Bytes that stay in use until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    of: Of,
    bytes: u64,
}

/// A request that exceeds the free bytes below the ceiling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Over {
    what: String,
    asked: u64,
    used: MemoryInfo,
}

impl Budget {
    /// Creates the budget of an appliance with `workers` workers. `room`: the machine's memory;
    /// without it only the key counts.
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

    /// Creates a budget without a bound, for tests and benchmarks of parts.
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

    /// Returns the bounds of one worker's buffers that fit, and a sentence if they are less than
    /// configured.
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

    /// Applies new limits: the ceiling and the number of streams. Bytes in use stay charged.
    pub fn follow(&self, limits: &Limits) {
        let inner = &self.0;
        let (bytes, by_key) = ceiling(inner.room.as_ref(), limits.memory);
        inner.ceiling.store(bytes, Ordering::Relaxed);
        inner.by_key.store(by_key, Ordering::Relaxed);
        inner.streams.store(structures(limits, inner.workers), Ordering::Relaxed);
    }

    /// Checks that `asked` more bytes fit, under `limits` if they are given.
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
    /// The bytes do not fit; nothing is charged.
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

    /// Describes the budget for the API.
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

    /// Returns the bytes reserved for buffers and streams of the workers.
    fn set_aside(&self) -> u64 {
        self.0.buffers.saturating_add(self.0.streams.load(Ordering::Relaxed))
    }

    /// Returns the source of the ceiling, in words.
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

/// Returns the bytes of the most streams that the workers may have, without their buffers.
fn structures(limits: &Limits, workers: usize) -> u64 {
    u64::from(limits.streams).saturating_mul(workers as u64).saturating_mul(STREAM)
}

/// Returns the bounds as configured, if they fit into `most` bytes for all workers beside the
/// streams. Otherwise they are scaled down in proportion. A quarter of `most` remains for them,
/// however many streams are allowed.
fn scaled(limits: &Limits, workers: usize, most: u64) -> Buffers {
    let most = most.saturating_sub(structures(limits, workers)).max(most / 4);
    let asked = Buffers::of(limits);
    let total = asked.total(workers);
    if total <= most {
        return asked;
    }
    let part = |bytes: u64| {
        let part = u128::from(bytes) * u128::from(most) / u128::from(total);
        // Whole pages, as everything that is charged.
        u64::try_from(part).unwrap_or(u64::MAX) / PAGE * PAGE
    };
    Buffers { buffers: part(asked.buffers), held: part(asked.held), kept: part(asked.kept) }
}

/// Returns the ceiling, and true if the key determines it. A share of one MiB or more is rounded
/// down to whole MiB.
fn ceiling(room: Option<&Room>, key: Option<u64>) -> (u64, bool) {
    let Some(room) = room else { return (key.unwrap_or(u64::MAX), true) };
    let rest = room.machine.bytes.saturating_sub(room.pools) / room.appliances.max(1);
    // A key beyond the machine's memory is ignored.
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
