//! Atomic operations of the reference peer (RFC 7306 §5).

use std::sync::PoisonError;

use super::connection::{Connection, End};
use super::memory::REGIONS;
use super::numbers::{access, rdmap};
use crate::message::Kind;

/// Length of an Atomic Request header, bytes.
const REQUEST: usize = 52;

impl Connection<'_> {
    /// Checks and executes an Atomic Request, and queues its response.
    pub(super) fn atomic(&mut self, message: &[u8]) -> Result<(), End> {
        self.check("atomic-length", message.len() != REQUEST, rdmap::CATASTROPHIC)?;
        let Some(m) = message.first_chunk::<REQUEST>() else { return Ok(()) };
        let word = |at: usize| u32::from_be_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let code = word(0) & 0xf;
        if word(0) >> 4 != 0 && !self.makes("atomic-reserved-is-ignored") {
            return Err(End::Error);
        }
        self.check("atomic-code", !matches!(code, 0 | 2), rdmap::UNEXPECTED_OPCODE)?;
        let region = self.region(word(8));
        self.check("atomic-stag", region.is_none(), rdmap::INVALID_STAG)?;
        let at = region.unwrap_or(0);
        self.check("atomic-access", REGIONS[at].access & access::ATOMIC == 0, rdmap::ACCESS)?;
        let to = long(12);
        let end = to.checked_add(8);
        let limit = self.limit(at);
        let inside = to >= REGIONS[at].base && end.is_some_and(|e| e <= limit);
        self.check("atomic-bounds", !inside, rdmap::BOUNDS)?;
        self.check("atomic-alignment", !to.is_multiple_of(8), rdmap::CATASTROPHIC)?;
        let from = to.wrapping_sub(REGIONS[at].base) as usize;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = 0;
        if let Some(place) = memory[at].get_mut(from..from.saturating_add(8)) {
            old = place.iter().fold(0, |n, &b| n << 8 | u64::from(b));
            let new = self.operate_on(code, old, long(20), long(28), (long(36), long(44)));
            place.copy_from_slice(&new.to_be_bytes());
        }
        drop(memory);
        self.hold(Kind::AtomicResponse, format!("id={} value={old}", word(4)));
        Ok(())
    }

    /// Returns the new value of the counter (RFC 7306 §5.1.1, §5.1.2).
    fn operate_on(&self, code: u32, old: u64, data: u64, mask: u64, compare: (u64, u64)) -> u64 {
        let masked = !self.behaves("atomic-without-masks");
        match code {
            0 if masked => fetch_add(old, data, mask),
            0 => old.wrapping_add(data),
            _ if (compare.0 ^ old) & if masked { compare.1 } else { u64::MAX } != 0
                && !self.behaves("always-swap") =>
            {
                old
            }
            _ if masked => old & !mask | data & mask,
            _ => data,
        }
    }
}

/// Adds `data` to `old`. Discards carries out of the bits that are set in `mask`.
fn fetch_add(old: u64, data: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let digit = carry + (old >> bit & 1) + (data >> bit & 1);
        sum |= (digit & 1) << bit;
        carry = digit >> 1 & !(mask >> bit) & 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_mask_separates_fields() {
        assert_eq!(fetch_add(u64::MAX, 1, 0), 0);
        assert_eq!(fetch_add(0xff, 1, 1 << 7), 0);
        assert_eq!(fetch_add(0xff, 1, 1 << 8), 0x100);
        assert_eq!(fetch_add(0x1_ffff_ffff, 0x1_0000_0001, 1 << 31 | 1 << 63), 0x2_0000_0000);
        assert_eq!(fetch_add(5, 3, u64::MAX), 5 ^ 3);
    }
}
