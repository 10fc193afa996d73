//! Bounds the number of mappings (VMAs) of region memory. Small memory is allocated as a slot of a shared mapping.
//!
//! Linux bounds the mappings of a process (`vm.max_map_count`). At that bound any heap allocation may fail, and a
//! failed allocation ends the process. [`Maps`] counts the mappings of region memory and refuses more than its bound,
//! which leaves room for all other mappings: libraries, threads, heap, DPDK. The kernel may merge adjacent mappings
//! and later split them again, so this count is an upper bound of the kernel's count.
//!
//! Memory is a slot of a slab if it is private, to be locked, at most [`SMALL_MEMORY`] bytes long and not in reserved
//! hugepages. A slab is one mapping with 64 slots of one size:
//!
//! ```text
//!  slab of 4 KiB slots    | slot | slot | free | slot | ...   64 slots, 256 KiB, 1 mapping
//!  slab of 16 KiB slots   |     slot    |     free    | ...   64 slots, 1 MiB, 1 mapping
//! ```
//!
//! The pages of a slot are populated after the slot is taken, and freed with the slot. So a free slot has no pages. A
//! slab is unmapped when its last slot is freed. If RLIMIT_MEMLOCK leaves no room for a slab, each small memory has a
//! separate mapping.

use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Mapping;
use crate::memory::MemoryError;

/// Maximum length in bytes of memory that shares a mapping. Where pages are longer than this, the maximum is one page.
pub const SMALL_MEMORY: u64 = 16 << 10;

/// Number of slots of a slab. Each slot has one bit in [`Slab::free`].
pub const SLOTS: u64 = u64::BITS as u64;

/// Number of mappings of a `Shared` memory: its memfd, and the completion ring of its region.
pub const SHARED_MAPS: u64 = 2;

/// Number of slot sizes: 1, 2 and 4 pages.
const CLASSES: usize = 3;

/// The mappings of this process's region memory: their number and the slabs. Clones share both. The default has no
/// bound.
#[derive(Clone)]
pub struct Maps(Arc<Inner>);

struct Inner {
    /// Maximum of `in_use`.
    bound: u64,
    /// Mappings in use, slabs included.
    in_use: AtomicU64,
    /// Slabs, by slot size: index `class` has slots of `1 << class` pages.
    slabs: Mutex<[Slabs; CLASSES]>,
}

/// Slabs with slots of one size, by address.
#[derive(Default)]
struct Slabs {
    all: BTreeMap<usize, Slab>,
    /// Addresses of the slabs that have a free slot.
    open: BTreeSet<usize>,
}

struct Slab {
    mapping: Mapping,
    /// One bit per slot, 1 if the slot is free.
    free: u64,
}

/// Permission for a number of mappings, which count as in use until the permit is dropped.
pub(in crate::memory) struct Permit {
    maps: Maps,
    number: u64,
}

/// A slot in use. Its drop makes the slot available to other memory; the owning [`Mapping`] frees the pages before.
pub(in crate::memory) struct Slot {
    maps: Maps,
    class: usize,
    /// Address of the slab.
    slab: usize,
    /// Position in the slab, below [`SLOTS`].
    number: u32,
}

impl Maps {
    /// Creates the state for at most `bound` mappings of region memory.
    pub fn new(bound: u64) -> Maps {
        let slabs = Mutex::new(array::from_fn(|_| Slabs::default()));
        Maps(Arc::new(Inner { bound, in_use: AtomicU64::new(0), slabs }))
    }

    /// Returns the number of mappings in use.
    pub fn in_use(&self) -> u64 {
        self.0.in_use.load(Ordering::Relaxed)
    }

    /// Checks that memory of `len` bytes can be mapped now, with `number` more mappings or in a free slot of a slab.
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

    /// Counts `number` more mappings as in use. Called before they are created.
    ///
    /// # Errors
    /// [`MemoryError::TooManyMaps`]; the count is unchanged.
    pub(in crate::memory) fn permit(&self, number: u64) -> Result<Permit, MemoryError> {
        let bound = self.0.bound;
        let fits = |in_use: u64| in_use.checked_add(number).filter(|&sum| sum <= bound);
        let counted = self.0.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        match counted {
            Ok(_) => Ok(Permit { maps: self.clone(), number }),
            Err(in_use) => Err(MemoryError::TooManyMaps { number, in_use, bound }),
        }
    }

    /// Takes a slot for locked memory of `len` bytes. Its bytes are zero, and its pages are not present. Returns `None`
    /// if `len` exceeds the largest slot, or if a new slab is needed and cannot be locked.
    ///
    /// # Errors
    /// All slots are in use, and a new slab exceeds the bound or cannot be mapped.
    pub(in crate::memory) fn take_slot(&self, len: usize) -> Result<Option<Mapping>, MemoryError> {
        let Some(class) = class_of(len) else { return Ok(None) };
        if let Some(taken) = self.take_free_slot(&mut self.slabs()[class], class, len) {
            return Ok(Some(taken));
        }
        // The slab is mapped without holding the mutex, so that threads that free slots do not wait for the kernel.
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
    /// Frees slot `number` of the slab at `address`. Removes and returns the slab if no other slot of it is in use.
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
        // The slab is unmapped without holding the mutex, because unmapping may take long.
        drop(empty);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.maps.0.in_use.fetch_sub(self.number, Ordering::Relaxed);
    }
}

/// Returns the class with the smallest slots of at least `len` bytes; `None` if `len` exceeds the largest slot.
fn class_of(len: usize) -> Option<usize> {
    (0..CLASSES).find(|&class| len <= slot_len(class) && slot_len(class) as u64 <= max_slot())
}

/// Returns the length of a class's slots in bytes, a multiple of the page size.
fn slot_len(class: usize) -> usize {
    rustix::param::page_size() << class
}

/// Returns the maximum length of a slot in bytes.
fn max_slot() -> u64 {
    SMALL_MEMORY.max(rustix::param::page_size() as u64)
}
