//! The memory ceiling of the appliance. Regions, memory of jobs, the workers' buffers and the streams count against it.
//!
//! ```text
//!   0                                                       ceiling
//!   | buffers and streams, reserved | regions | jobs |  free  |
//! ```
//!
//! The ceiling is `limits.memory`, or a share of the machine's memory, packet pools excluded. The bounds of the
//! workers' buffers and the memory of `limits.streams` streams per worker are reserved from the start. If their sum
//! exceeds half of the ceiling, the bounds of the buffers are scaled down, in total to not less than an eighth of the
//! ceiling. A region or job is charged before its memory is mapped. The charge ends when the last handle to the memory
//! is dropped.
//!
//! A region is charged with its whole size, because all its pages are populated when it is created. Its memory is
//! private, or a memfd if it is shared. Regions in reserved hugepages are not charged, because the machine's memory
//! excludes these pages. The rest of the process, such as code and stacks, is not charged.
//!
//! The number of mappings of regions and jobs is also bounded ([`Maps`]), for all appliances of the process together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::MemoryInfo;
use config::{Limits, MachineMemory, show_size};
use dataplane::memory::{self, Maps};

/// Ceiling without `limits.memory`, in percent of this appliance's share of the machine's memory.
const DEFAULT_PERCENT: u64 = 75;
/// Memory of a stream without its buffers, bytes. In the worker: about 1 KiB, and at most 416 bytes of recorded TCP or
/// SCTP events. In the control thread: a copy of these events, and about 100 bytes per event of the flight recorder. A
/// stream whose posts fail repeatedly may need up to 14 KiB: 32 events with sentences of 240 bytes.
const STREAM_BYTES: u64 = 4096;
const PAGE: u64 = 4096;
// `ddpd check` predicts the number of mappings with the constants of `config`, which must equal those of `memory`.
const _: () = assert!(
    config::SMALL_REGION == memory::SMALL_MEMORY
        && config::REGIONS_PER_MAP == memory::SLOTS
        && config::SHARED_REGION_MAPS == memory::SHARED_MAPS
);
const MIB: u64 = 1 << 20;

/// Memory that the appliances of this process share.
#[derive(Clone, Debug)]
pub struct HostMemory {
    /// Memory that the process may use, bytes, and the source of the number.
    pub machine: MachineMemory,
    /// Part of `machine` used by packet pools, bytes.
    pub pools: u64,
    /// Number of appliances in the process.
    pub appliances: u64,
}

/// Purpose of charged memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeKind {
    /// Memory of a region.
    Region,
    /// Memory of a job.
    Job,
}

/// The ceiling, the charged bytes, and the bound of mappings. Clones share this state, and any thread may use them.
#[derive(Clone, Debug)]
pub struct Budget {
    inner: Arc<Inner>,
    maps: Maps,
}

#[derive(Debug)]
struct Inner {
    host_memory: Option<HostMemory>,
    workers: usize,
    /// Sum of the bounds of all workers' buffers, bytes. Fixed at the start.
    buffers: u64,
    /// Memory reserved for streams, all workers together, bytes.
    streams: AtomicU64,
    ceiling: AtomicU64,
    /// False if the ceiling is a share of the machine's memory, true if `limits.memory` sets it or it is unlimited.
    configured: AtomicBool,
    /// Bytes charged for regions and jobs.
    charged: AtomicU64,
    /// Part of `charged` for regions, bytes.
    regions: AtomicU64,
}

/// Charged bytes. Dropping the value ends the charge.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    kind: ChargeKind,
    bytes: u64,
}

/// The error of a request that exceeds the ceiling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OverBudget {
    purpose: String,
    requested: u64,
    used: MemoryInfo,
}

impl Budget {
    /// Creates the budget of an appliance with `workers` workers. Without `host_memory`, the ceiling is
    /// `limits.memory`, or unlimited if that key is not set.
    pub fn new(host_memory: Option<HostMemory>, limits: &Limits, workers: usize) -> Budget {
        let (ceiling, by_key) = ceiling(host_memory.as_ref(), limits.memory);
        let inner = Arc::new(Inner {
            workers,
            buffers: scaled(limits, workers, ceiling / 2).total(workers),
            streams: AtomicU64::new(stream_bytes(limits, workers)),
            host_memory,
            ceiling: AtomicU64::new(ceiling),
            configured: by_key.into(),
            charged: AtomicU64::new(0),
            regions: AtomicU64::new(0),
        });
        Budget { inner, maps: Maps::default() }
    }

    /// Creates a budget without a ceiling, for tests and benchmarks.
    pub fn unlimited() -> Budget {
        let inner = Arc::new(Inner {
            host_memory: None,
            workers: 0,
            buffers: 0,
            streams: AtomicU64::new(0),
            ceiling: AtomicU64::new(u64::MAX),
            configured: true.into(),
            charged: AtomicU64::new(0),
            regions: AtomicU64::new(0),
        });
        Budget { inner, maps: Maps::default() }
    }

    /// Uses `maps` to count and bound the mappings of regions and jobs. All appliances of the process share `maps`.
    pub fn with_maps(self, maps: Maps) -> Budget {
        Budget { maps, ..self }
    }

    /// Returns the count and the bound of the mappings of regions and jobs.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Returns the bounds of one worker's buffers, and a sentence if they are lower than configured.
    pub fn buffers(&self, limits: &Limits, workers: usize) -> (Buffers, Option<String>) {
        let half = self.inner.ceiling.load(Ordering::Relaxed) / 2;
        let (requested, granted) = (Buffers::from_limits(limits), scaled(limits, workers, half));
        let note = (granted != requested).then(|| {
            let streams = stream_bytes(limits, workers);
            format!(
                "the buffers of {workers} workers may take {} together, because limits.memory is {} and limits.streams \
                 streams take {}, and not {} as limits.buffers_per_worker, held_per_worker and kept_per_worker say",
                show_size(granted.total(workers)),
                show_size(half * 2),
                show_size(streams),
                show_size(requested.total(workers)),
            )
        });
        (granted, note)
    }

    /// Applies new limits: ceiling and number of streams. Existing charges remain.
    pub fn set_limits(&self, limits: &Limits) {
        let inner = &self.inner;
        let (bytes, by_key) = ceiling(inner.host_memory.as_ref(), limits.memory);
        inner.ceiling.store(bytes, Ordering::Relaxed);
        inner.configured.store(by_key, Ordering::Relaxed);
        inner.streams.store(stream_bytes(limits, inner.workers), Ordering::Relaxed);
    }

    /// Checks that `requested` more bytes fit, under `limits` if given, else under the current limits. `purpose` names
    /// the request in the error.
    pub fn check(
        &self,
        purpose: &str,
        requested: u64,
        limits: Option<&Limits>,
    ) -> Result<(), OverBudget> {
        let mut used = self.info();
        if let Some(limits) = limits {
            let (bytes, by_key) = ceiling(self.inner.host_memory.as_ref(), limits.memory);
            (used.ceiling, used.source) = (bytes, self.source(by_key));
            let workers =
                self.inner.buffers.saturating_add(stream_bytes(limits, self.inner.workers));
            used.in_use = (used.in_use - used.workers).saturating_add(workers);
            used.workers = workers;
        }
        match used.in_use.saturating_add(round_to_pages(requested)) > used.ceiling {
            true => Err(OverBudget { purpose: purpose.to_owned(), requested, used }),
            false => Ok(()),
        }
    }

    /// Adds `requested` bytes, rounded up to whole pages and at least one page, to the charged bytes of the appliance.
    /// Called before the memory is mapped. Dropping the returned [`Charge`] subtracts the bytes.
    ///
    /// # Errors
    /// The bytes do not fit; nothing is charged.
    pub fn charge(
        &self,
        kind: ChargeKind,
        purpose: &str,
        requested: u64,
    ) -> Result<Charge, OverBudget> {
        let bytes = round_to_pages(requested);
        let inner = &self.inner;
        let fits = |charged: u64| {
            let sum = charged.checked_add(bytes)?;
            let ceiling = inner.ceiling.load(Ordering::Relaxed);
            (sum.checked_add(self.reserved_bytes())? <= ceiling).then_some(sum)
        };
        let charged = inner.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if charged.is_err() {
            return Err(OverBudget { purpose: purpose.to_owned(), requested, used: self.info() });
        }
        if kind == ChargeKind::Region {
            inner.regions.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(Charge { budget: self.clone(), kind, bytes })
    }

    /// Describes the budget for the API.
    pub fn info(&self) -> MemoryInfo {
        let inner = &self.inner;
        let charged = inner.charged.load(Ordering::Relaxed);
        let regions = inner.regions.load(Ordering::Relaxed).min(charged);
        let workers = self.reserved_bytes();
        MemoryInfo {
            ceiling: inner.ceiling.load(Ordering::Relaxed),
            in_use: workers.saturating_add(charged),
            regions,
            jobs: charged - regions,
            workers,
            source: self.source(inner.configured.load(Ordering::Relaxed)),
        }
    }

    /// Returns the bytes reserved for the workers' buffers and streams.
    fn reserved_bytes(&self) -> u64 {
        self.inner.buffers.saturating_add(self.inner.streams.load(Ordering::Relaxed))
    }

    /// Describes the source of the ceiling: `limits.memory`, or the share of the machine's memory. `configured`: true
    /// for `limits.memory`.
    fn source(&self, configured: bool) -> String {
        match &self.inner.host_memory {
            Some(HostMemory { machine, pools, appliances }) if !configured => {
                let less = match pools {
                    0 => String::new(),
                    pools => format!(" less {} of packet pools", show_size(*pools)),
                };
                let each = match appliances {
                    0 | 1 => String::new(),
                    n => format!(", for one of {n} appliances"),
                };
                let (bytes, source) = (show_size(machine.bytes), &machine.source);
                format!("{DEFAULT_PERCENT} % of {source} ({bytes}){less}{each}")
            }
            _ => "limits.memory".into(),
        }
    }
}

/// Bounds of one worker's buffers, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// Receive buffers of untagged messages (`limits.buffers_per_worker`).
    pub buffers: u64,
    /// Received bytes held out of order until the missing bytes arrive (`limits.held_per_worker`).
    pub held: u64,
    /// Sent bytes kept for retransmission (`limits.kept_per_worker`).
    pub kept: u64,
}

impl Buffers {
    fn from_limits(limits: &Limits) -> Buffers {
        let Limits { buffers_per_worker, held_per_worker, kept_per_worker, .. } = limits;
        Buffers { buffers: *buffers_per_worker, held: *held_per_worker, kept: *kept_per_worker }
    }

    fn total(self, workers: usize) -> u64 {
        let one = self.buffers.saturating_add(self.held).saturating_add(self.kept);
        one.saturating_mul(workers as u64)
    }
}

/// Returns the bytes that all workers need for `limits.streams` streams each, buffers excluded.
fn stream_bytes(limits: &Limits, workers: usize) -> u64 {
    u64::from(limits.streams).saturating_mul(workers as u64).saturating_mul(STREAM_BYTES)
}

/// Returns the configured bounds if the buffers of all workers and the streams fit into `max_bytes`. Otherwise scales
/// the bounds down in proportion. At least a quarter of `max_bytes` is for buffers, whatever the number of streams.
fn scaled(limits: &Limits, workers: usize, max_bytes: u64) -> Buffers {
    let max_bytes = max_bytes.saturating_sub(stream_bytes(limits, workers)).max(max_bytes / 4);
    let requested = Buffers::from_limits(limits);
    let total = requested.total(workers);
    if total <= max_bytes {
        return requested;
    }
    let part = |bytes: u64| {
        let part = u128::from(bytes) * u128::from(max_bytes) / u128::from(total);
        // The bounds are rounded down to whole pages, because memory is charged in whole pages.
        u64::try_from(part).unwrap_or(u64::MAX) / PAGE * PAGE
    };
    Buffers {
        buffers: part(requested.buffers),
        held: part(requested.held),
        kept: part(requested.kept),
    }
}

/// Returns the ceiling in bytes, and true if `limits.memory` sets it or the machine's memory is unknown. Otherwise the
/// ceiling is a share of the machine's memory. A share of 1 MiB or more is rounded down to whole MiB. `key` is the
/// value of `limits.memory`, if set.
fn ceiling(host_memory: Option<&HostMemory>, key: Option<u64>) -> (u64, bool) {
    let Some(host_memory) = host_memory else { return (key.unwrap_or(u64::MAX), true) };
    let rest =
        host_memory.machine.bytes.saturating_sub(host_memory.pools) / host_memory.appliances.max(1);
    // `limits.memory` above the machine's memory is ignored.
    if let Some(key) = key.filter(|&key| key <= host_memory.machine.bytes) {
        return (key, true);
    }
    let share =
        u64::try_from(u128::from(rest) * u128::from(DEFAULT_PERCENT) / 100).unwrap_or(u64::MAX);
    (if share >= MIB { share / MIB * MIB } else { share }, false)
}

fn round_to_pages(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

impl Drop for Charge {
    fn drop(&mut self) {
        let inner = &self.budget.inner;
        if self.kind == ChargeKind::Region {
            inner.regions.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        inner.charged.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverBudget { purpose: what, requested, used } = self;
        write!(
            f,
            "{what}: {} asked for, {} of {} in use (regions {}, jobs {}, buffers and streams {}); the ceiling is {}: make it \
             smaller, free some, or raise limits.memory",
            show_size(*requested),
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
