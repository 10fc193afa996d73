//! The service of a listener with `ulp = "rdmap"`, and the pieces of the region that its streams have.
//!
//! *Slots.* rping and perftest need memory of their own per stream. The listener's one region is cut into
//! as many equal pieces as it may have streams; each stream gets one, with an STag that only it may use:
//!
//! ```text
//!  free --Incoming, AddStag--> in use --Closed, RemoveStag--> (all workers have released it) --Clear--> free
//! ```
//!
//! A slot is cleared before its next use, so that no stream sees bytes of another, and nothing is placed for a stream
//! that is gone.

use crate::service::Service;
use config::ListenerSection;

/// What one listener keeps for its service.
pub(super) struct Serving {
    pub service: Service,
    /// Slots that are free.
    free: Vec<u32>,
    /// Bytes of each.
    each: u64,
}

impl Serving {
    /// For a listener, if it has one; `region`: bytes of the region that is cut into pieces.
    pub(super) fn new(listener: &ListenerSection, region: u64) -> Option<Serving> {
        let section = listener.ulp.rdmap()?;
        let streams = listener.limits.streams;
        // Whole cache lines, so that atomics and copies of one stream leave the next one's alone.
        let each = region / u64::from(streams.max(1)) / 64 * 64;
        let slots = if section.service.has_slots() && each > 0 { streams } else { 0 };
        let service = Service::new(section.service, section.message_size);
        Some(Serving { service, free: (0..slots).rev().collect(), each })
    }

    /// A free piece, and the bytes of each.
    pub(super) fn take(&mut self) -> Option<(u32, u64)> {
        Some((self.free.pop()?, self.each))
    }

    /// Gives a piece back.
    pub(super) fn free(&mut self, number: u32) {
        self.free.push(number);
    }
}
