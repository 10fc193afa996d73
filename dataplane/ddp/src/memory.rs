//! The memory of a region as DDP accesses it. [`RegionMemory`] has two implementations: the appliance's mapped regions,
//! and [`VecMemory`], a plain vector for tests and for programs without a data plane.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire::crc32c::Target;

/// Handle of a region's bytes, cheap to clone. The STag tables of all workers hold handles of the same bytes.
///
/// Peers, local programs and several workers may access the same bytes at the same time, so access is by copy and never
/// by reference. Offsets are bytes from the start of the region. The caller has checked the bounds. An implementation
/// checks them again, and panics if an access would leave the region.
pub trait RegionMemory: Clone + 'static {
    /// Returns the length of the region, bytes.
    fn len(&self) -> u64;

    /// Returns true if the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if both handles are known to refer to the same bytes, so that either can replace the other.
    fn is_same(&self, _other: &Self) -> bool {
        false
    }

    /// Copies `bytes` to `offset`.
    fn write(&self, offset: u64, bytes: &[u8]);

    /// Copies `pieces`, one after the other, to `offset`. The second parameter is the sum of their lengths, a hint for
    /// the choice of the copy routine. A wrong sum costs time and does not change the result.
    #[inline]
    fn write_pieces<'a>(
        &self,
        offset: u64,
        _len: usize,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let mut at = offset;
        for piece in pieces {
            self.write(at, piece);
            at += piece.len() as u64;
        }
    }

    /// Fills `out` with the bytes from `offset` on.
    fn read(&self, offset: u64, out: &mut [u8]);

    /// Fills `target` with the bytes from `offset` on, as [`read`](Self::read) does. `target` digests the copied bytes,
    /// so digest and copy agree even if others write to the region meanwhile.
    #[inline]
    fn read_digested(&self, offset: u64, target: &mut Target<'_>) {
        target.fill(|at, out| self.read(offset + at as u64, out));
    }

    /// Atomically replaces the 64 bits at `offset`, in the byte order of this machine, by the result of `update`.
    /// Returns the original bits. Atomic with respect to all other atomics of all streams on all cores (RFC 7306 §5.3).
    /// `update` may be called several times.
    ///
    /// # Errors
    /// The bytes are unchanged if their address is not 64-bit aligned, if not all eight are in the region, or if the
    /// region does not support atomics.
    fn fetch_update_u64(
        &self,
        _offset: u64,
        _update: impl Fn(u64) -> u64,
    ) -> Result<u64, AtomicError> {
        Err(AtomicError::Unsupported)
    }

    /// Returns true if the bytes cannot change while a message from them is unacknowledged: no peer and no other
    /// program can write to the region. The LLP then keeps no copy of the sent bytes.
    fn is_stable(&self) -> bool;

    /// Returns true if bytes may be written. For read-only memory, the STag table refuses entries with the right to
    /// write or to do atomics, and callers never use the memory as a sink.
    fn is_writable(&self) -> bool {
        true
    }
}

/// Reasons to refuse an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AtomicError {
    /// The address of the 64 bits is not a multiple of 8.
    #[error("the address is not 64-bit aligned")]
    Unaligned,
    /// Not all eight bytes are in the region.
    #[error("the bytes are not all in the region")]
    OutOfBounds,
    /// The region does not support atomics.
    #[error("the region does not support atomic operations")]
    Unsupported,
}

/// A region in a plain vector, for tests and for programs without a data plane.
#[derive(Clone, Debug)]
pub struct VecMemory {
    bytes: Arc<Mutex<Vec<u8>>>,
    stable: bool,
}

impl VecMemory {
    /// Returns a region of `len` zero bytes, not stable: they may change at any time.
    pub fn new(len: usize) -> Self {
        Self::from_vec(vec![0; len])
    }

    /// Returns a region of these bytes, not stable: they may change at any time.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        VecMemory { bytes: Arc::new(Mutex::new(bytes)), stable: false }
    }

    /// Returns a handle that reports the same bytes as stable. The caller must not change them while a message from
    /// them is unacknowledged.
    #[must_use]
    pub fn into_stable(self) -> Self {
        VecMemory { stable: true, ..self }
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegionMemory for VecMemory {
    fn len(&self) -> u64 {
        self.lock().len() as u64
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes) && self.stable == other.stable
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.lock()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, offset: u64, out: &mut [u8]) {
        let at = offset as usize;
        out.copy_from_slice(&self.lock()[at..at + out.len()]);
    }

    fn fetch_update_u64(
        &self,
        offset: u64,
        update: impl Fn(u64) -> u64,
    ) -> Result<u64, AtomicError> {
        if !offset.is_multiple_of(8) {
            return Err(AtomicError::Unaligned);
        }
        let mut bytes = self.lock();
        let end = usize::try_from(offset).ok().and_then(|at| Some((at, at.checked_add(8)?)));
        let place = end.and_then(|(at, end)| bytes.get_mut(at..end));
        let place = place.ok_or(AtomicError::OutOfBounds)?;
        let mut value = [0; 8];
        value.copy_from_slice(place);
        let original = u64::from_ne_bytes(value);
        place.copy_from_slice(&update(original).to_ne_bytes());
        Ok(original)
    }

    fn is_stable(&self) -> bool {
        self.stable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_applies_completely_or_not_at_all() {
        let memory = VecMemory::from_vec((0..24).collect());
        let original = memory.fetch_update_u64(8, |value| value.wrapping_add(1));
        assert_eq!(original, Ok(u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 15])));
        let mut now = [0; 8];
        memory.read(8, &mut now);
        assert_eq!(u64::from_ne_bytes(now), original.unwrap() + 1);
        let before = memory.to_vec();
        assert_eq!(memory.fetch_update_u64(4, |_| 0), Err(AtomicError::Unaligned));
        assert_eq!(memory.fetch_update_u64(24, |_| 0), Err(AtomicError::OutOfBounds));
        assert_eq!(memory.fetch_update_u64(u64::MAX - 7, |_| 0), Err(AtomicError::OutOfBounds));
        assert_eq!(memory.to_vec(), before);
    }
}
