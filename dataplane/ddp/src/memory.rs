//! What DDP needs of a memory region. Two implementations: the appliance's mapped regions and the
//! plain vectors of tests.

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
