//! What DDP needs of a memory region. Two implementations: the appliance's mapped regions and the
//! plain vectors of tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A cheap handle on a region's octets, shared by every worker's replica of the STag table.
///
/// Peers, local programs and several workers may touch the same octets at the same time, so access is
/// by copy and never by reference. Offsets are octets from the start of the region. The caller has
/// checked the bounds; an implementation checks them again and panics rather than touch other memory.
pub trait RegionMemory: Clone {
    /// Octets in the region.
    fn len(&self) -> u64;

    /// True when the region has no octets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `octets` to `offset`.
    fn write(&self, offset: u64, octets: &[u8]);

    /// Copies from `offset` into all of `out`.
    fn read(&self, offset: u64, out: &mut [u8]);

    /// True when nobody can change the octets while a message from them is unacknowledged: the region
    /// is local, not remotely writable and not mapped writable by another program. Such a source needs
    /// no send buffer.
    fn is_stable(&self) -> bool;
}

/// A region in a plain vector, for tests and for programs without a data plane.
#[derive(Clone, Debug)]
pub struct VecMemory {
    octets: Arc<Mutex<Vec<u8>>>,
    stable: bool,
}

impl VecMemory {
    /// `len` zero octets that may change at any time.
    pub fn new(len: usize) -> Self {
        Self::from_vec(vec![0; len])
    }

    /// These octets, which may change at any time.
    pub fn from_vec(octets: Vec<u8>) -> Self {
        VecMemory { octets: Arc::new(Mutex::new(octets)), stable: false }
    }

    /// The same octets, promised not to change while a message from them is unacknowledged.
    #[must_use]
    pub fn into_stable(self) -> Self {
        VecMemory { stable: true, ..self }
    }

    /// A copy of all octets.
    pub fn to_vec(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.octets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegionMemory for VecMemory {
    fn len(&self) -> u64 {
        self.lock().len() as u64
    }

    fn write(&self, offset: u64, octets: &[u8]) {
        let at = offset as usize;
        self.lock()[at..at + octets.len()].copy_from_slice(octets);
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        let at = offset as usize;
        out.copy_from_slice(&self.lock()[at..at + out.len()]);
    }

    fn is_stable(&self) -> bool {
        self.stable
    }
}
