//! The service of a listener with `ulp = "rdmap"`, and the slots of its region.
//!
//! *Slots.* rping and perftest need separate memory per stream. The listener's region is divided into as many equal
//! slots as it allows streams. Each stream gets a slot with its own STag, valid on this stream only:
//!
//! ```text
//!  free --Incoming, AddStag--> in use --Closed, RemoveStag--> (all workers have released it) --Clear--> free
//! ```
//!
//! A slot is cleared before it is used again, after all workers have released it. A stream therefore reads no bytes of
//! another stream, and late Writes of an ended stream do not reach the next one.

use config::ListenerSection;

use crate::service::Service;

/// Service and slots of a listener.
pub(super) struct Serving {
    pub service: Service,
    /// Numbers of free slots.
    free: Vec<u32>,
    /// Length of each slot, bytes; a multiple of 64.
    slot_len: u64,
}

impl Serving {
    /// Creates the service of a listener, if it has one. `region`: length of the region that is divided, bytes.
    pub(super) fn new(listener: &ListenerSection, region: u64) -> Option<Serving> {
        let section = listener.ulp.rdmap()?;
        let streams = listener.limits.streams;
        // Whole cache lines: atomics and copies of one stream must not touch cache lines of the next slot.
        let each = region / u64::from(streams.max(1)) / 64 * 64;
        let slots = if section.service.has_slots() && each > 0 { streams } else { 0 };
        let service = Service::new(section.service, section.message_size);
        Some(Serving { service, free: (0..slots).rev().collect(), slot_len: each })
    }

    /// Takes a free slot. Returns its number and its length in bytes. `None` if all slots are in use.
    pub(super) fn take(&mut self) -> Option<(u32, u64)> {
        Some((self.free.pop()?, self.slot_len))
    }

    /// Marks a slot as free.
    pub(super) fn free(&mut self, number: u32) {
        self.free.push(number);
    }
}
