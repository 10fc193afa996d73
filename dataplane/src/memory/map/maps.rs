//! Bound of the memory mappings of this process, and mappings that small memory shares.
//!
//! Linux bounds the mappings of a process (`vm.max_map_count`). At that bound each allocation may fail, and a failed
//! allocation ends the process. [`Maps`] counts the mappings of region memory and refuses more than its bound, which
//! leaves room for all other mappings: libraries, threads, heap, DPDK. The kernel merges adjacent mappings and splits
//! them when memory between is freed, so the count is a maximum.
//!
//! Locked memory of at most [`SMALL_MEMORY`] bytes is a slot of a slab, one mapping for 64 slots of one size:
//!
//! ```text
//!  slab of 4 KiB slots    | slot | slot | free | slot | ...   64 slots, 256 KiB, 1 mapping
//!  slab of 16 KiB slots   |     slot    |     free    | ...   64 slots, 1 MiB, 1 mapping
//! ```
//!
//! A slot's pages are populated when it is taken, and freed with it: a free slot has no pages. A slab is unmapped with
//! its last slot. If the limit of locked memory leaves no room for a slab, small memory has mappings of its own.

use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Mapping;
use crate::memory::MemoryError;

/// Maximum length in bytes of memory that shares a mapping; one page if pages are longer.
pub const SMALL_MEMORY: u64 = 16 << 10;

/// Slots of a slab, one bit each in [`Slab::free`].
pub const SLOTS: u64 = u64::BITS as u64;

/// Mappings of a `Shared` memory: its memory file, and the completion ring of its region.
pub const SHARED_MAPS: u64 = 2;

/// Number of slot sizes: 1, 2 and 4 pages.
const CLASSES: usize = 3;

/// The mappings of this process's region memory. Clones share the bound. The default has none.
#[derive(Clone)]
pub struct Maps(Arc<Inner>);

struct Inner {
    /// Maximum of `in_use`.
    bound: u64,
    /// Mappings in use, slabs included.
    in_use: AtomicU64,
    /// Slabs, by the class of their slots.
    slabs: Mutex<[Slabs; CLASSES]>,
}

/// Slabs of one class, by address.
#[derive(Default)]
struct Slabs {
    all: BTreeMap<usize, Slab>,
    /// Slabs with a free slot.
    open: BTreeSet<usize>,
}

struct Slab {
    mapping: Mapping,
    /// One bit per slot, 1 if the slot is free.
    free: u64,
}

/// Mappings that count as in use until it is dropped.
pub(in crate::memory) struct Permit {
    maps: Maps,
    number: u64,
}

/// A slot in use. Dropping it frees the slot; its pages must have been freed.
pub(in crate::memory) struct Slot {
    maps: Maps,
    class: usize,
    /// Address of the slab.
    slab: usize,
    /// Position in the slab, below [`SLOTS`].
    number: u32,
}

impl Maps {
    /// Allows at most `bound` mappings of region memory.
    pub fn new(bound: u64) -> Maps {
        let slabs = Mutex::new(array::from_fn(|_| Slabs::default()));
        Maps(Arc::new(Inner { bound, in_use: AtomicU64::new(0), slabs }))
    }

    /// Returns the number of mappings in use.
    pub fn in_use(&self) -> u64 {
        self.0.in_use.load(Ordering::Relaxed)
    }

    /// Checks that memory of `len` bytes can be mapped now with `number` mappings, or with none in a slab.
    ///
    /// # Errors
    /// [`MemoryError::TooManyMaps`].
    pub fn check(&self, len: u64, number: u64) -> Result<(), MemoryError> {
        let class = usize::try_from(len).ok().and_then(class_of).filter(|_| number == 1);
        if class.is_some_and(|class| !self.slabs()[class].open.is_empty()) {
            return Ok(());
        }
        self.permit(number).map(drop)
    }

    /// Counts `number` mappings before they are made.
    ///
    /// # Errors
    /// [`MemoryError::TooManyMaps`]; nothing is counted.
    pub(in crate::memory) fn permit(&self, number: u64) -> Result<Permit, MemoryError> {
        let bound = self.0.bound;
        let fits = |in_use: u64| in_use.checked_add(number).filter(|&sum| sum <= bound);
        let counted = self.0.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        match counted {
            Ok(_) => Ok(Permit { maps: self.clone(), number }),
            Err(in_use) => Err(MemoryError::TooManyMaps { number, in_use, bound }),
        }
    }

    /// Takes a slot for locked memory of `len` bytes. Its bytes are zero and its pages not present. Returns `None` if
    /// the memory is too long for one, or a further slab cannot be locked.
    ///
    /// # Errors
    /// All slots are in use, and a further slab cannot be mapped.
    pub(in crate::memory) fn take_slot(&self, len: usize) -> Result<Option<Mapping>, MemoryError> {
        let Some(class) = class_of(len) else { return Ok(None) };
        if let Some(taken) = self.take_free_slot(&mut self.slabs()[class], class, len) {
            return Ok(Some(taken));
        }
        // Without the lock: threads that free slots do not wait for the kernel.
        let permit = self.permit(1)?;
        let slab = Mapping::slab(slot_len(class) * SLOTS as usize)?.with_permit(permit);
        if !slab.lock(&mut Vec::new()) {
            return Ok(None);
        }
        let slabs = &mut self.slabs()[class];
        slabs.open.insert(slab.address());
        slabs.all.insert(slab.address(), Slab { mapping: slab, free: u64::MAX });
        Ok(self.take_free_slot(slabs, class, len))
    }

    fn take_free_slot(&self, slabs: &mut Slabs, class: usize, len: usize) -> Option<Mapping> {
        let &address = slabs.open.first()?;
        let slab = slabs.all.get_mut(&address)?;
        let number = slab.free.trailing_zeros();
        slab.free &= !(1 << number);
        if slab.free == 0 {
            slabs.open.remove(&address);
        }
        let slot = Slot { maps: self.clone(), class, slab: address, number };
        Some(slab.mapping.slot(number as usize * slot_len(class), len, slot))
    }

    fn slabs(&self) -> MutexGuard<'_, [Slabs; CLASSES]> {
        self.0.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Maps {
    fn default() -> Maps {
        Maps::new(u64::MAX)
    }
}

impl fmt::Debug for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Maps({} of {})", self.in_use(), self.0.bound)
    }
}

impl Slabs {
    /// Frees a slot. Returns its slab if no other slot is in use.
    fn free(&mut self, address: usize, number: u32) -> Option<Slab> {
        let slab = self.all.get_mut(&address)?;
        slab.free |= 1 << number;
        if slab.free != u64::MAX {
            self.open.insert(address);
            return None;
        }
        self.open.remove(&address);
        self.all.remove(&address)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let empty = self.maps.slabs()[self.class].free(self.slab, self.number);
        // The lock is released: unmapping may take a while.
        drop(empty);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.maps.0.in_use.fetch_sub(self.number, Ordering::Relaxed);
    }
}

/// Returns the class with the smallest slots of at least `len` bytes; `None` if the memory gets no slot.
fn class_of(len: usize) -> Option<usize> {
    (0..CLASSES).find(|&class| len <= slot_len(class) && slot_len(class) as u64 <= max_slot())
}

/// Returns the length of a class's slots in bytes, whole pages.
fn slot_len(class: usize) -> usize {
    rustix::param::page_size() << class
}

/// Returns the length of the largest slots, bytes.
fn max_slot() -> u64 {
    SMALL_MEMORY.max(rustix::param::page_size() as u64)
}
