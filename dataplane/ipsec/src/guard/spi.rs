//! Hasher for SPIs as keys of a table.

use std::hash::Hasher;

/// Hashes SPIs of inbound SAs. The receiver chooses the SPIs, so peers cannot provoke collisions.
#[derive(Default)]
pub(super) struct SpiHasher(u64);

impl Hasher for SpiHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    #[inline]
    fn write_u32(&mut self, spi: u32) {
        let product = (self.0 ^ u64::from(spi)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
