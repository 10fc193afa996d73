//! A program's use of memory, which two limits bound: the bytes of its memory regions, queues and incomplete posts, and
//! the number of its memory windows and parts of memory regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use config::ProgramsSection;
use verbs_session::message::{Refusal, RefusalKind};

use super::refusal;
use crate::appliance::budget::{Budget, Charge, ChargeKind};
use crate::waker::Waker;

/// Use of memory by a program, bounded by its limits. The session's thread adds the memory that it allocates. The drop
/// of the last handle to the memory subtracts the memory.
#[derive(Debug)]
pub(super) struct Share {
    /// Maximum of `bytes`: `programs.memory`.
    max_bytes: u64,
    /// Maximum of `parts`: `programs.memory_regions`.
    max_parts: u64,
    /// Bytes of memory regions, queues and incomplete posts.
    bytes: AtomicU64,
    /// Number of memory windows and of parts of memory regions together. Each part of a region is a mapping.
    parts: AtomicU64,
}

impl Share {
    pub(super) fn new(settings: &ProgramsSection) -> Share {
        Share {
            max_bytes: settings.memory,
            max_parts: settings.memory_regions.into(),
            bytes: AtomicU64::new(0),
            parts: AtomicU64::new(0),
        }
    }

    /// Returns the bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds `bytes` and `parts` to the program's use, and `bytes` to the appliance's, until the returned value is
    /// dropped. `parts`: number of parts of a memory region, 1 for a memory window, 0 for queues.
    ///
    /// # Errors
    /// A limit of the program, or the memory ceiling of the appliance, is reached.
    pub(super) fn take(
        self: &Arc<Share>,
        budget: &Budget,
        bytes: u64,
        parts: u64,
    ) -> Result<Hold, Refusal> {
        let limit = |sentence: String| refusal(RefusalKind::Limit, sentence);
        let mut taken = Taken { share: Arc::clone(self), bytes: 0, parts: 0 };
        if !add(&self.bytes, bytes, self.max_bytes) {
            let max = self.max_bytes;
            return Err(limit(format!("programs.memory allows {max} bytes for a program")));
        }
        taken.bytes = bytes;
        if !add(&self.parts, parts, self.max_parts) {
            let max = self.max_parts;
            return Err(limit(format!("programs.memory_regions allows {max} for a program")));
        }
        taken.parts = parts;
        let charge = budget
            .charge(ChargeKind::Region, "memory of a program", bytes)
            .map_err(|over| refusal(RefusalKind::NoMemory, over.to_string()))?;
        Ok(Hold { _charge: charge, _taken: taken })
    }
}

/// Adds to a count with a bound. Returns false, and adds nothing, if the bound would be exceeded.
fn add(count: &AtomicU64, more: u64, max: u64) -> bool {
    let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= max);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

/// Memory that counts against the limits while this value exists.
#[derive(Debug)]
pub(in crate::appliance) struct Hold {
    _charge: Charge,
    _taken: Taken,
}

/// Use of a program's [`Share`]. The drop subtracts it.
#[derive(Debug)]
struct Taken {
    share: Arc<Share>,
    bytes: u64,
    parts: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.share.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.share.parts.fetch_sub(self.parts, Ordering::Relaxed);
    }
}

/// The charge of a memory region, dropped with its memory on any thread, possibly a worker. The drop subtracts the
/// memory from the program's [`Share`], and then notifies the control thread.
#[derive(Debug)]
pub(super) struct RegionCharge {
    // Dropped first, so that the limits allow the memory again when the control thread is notified.
    pub(super) _hold: Hold,
    pub(super) _notice: Notice,
}

/// Reports to the control thread, when dropped, that a memory region is free.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) key: u64,
    pub(super) freed: Sender<u64>,
    pub(super) waker: Waker,
}

impl Drop for Notice {
    fn drop(&mut self) {
        // The send fails if the control thread has ended.
        let _ = self.freed.send(self.key);
        self.waker.wake();
    }
}
