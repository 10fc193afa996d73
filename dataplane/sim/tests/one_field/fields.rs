//! Positions of header fields, and the values to test in each.

use std::collections::BTreeSet;

/// A field of a header: position of its first bit, and its width in bits. Bit 0 is the most significant bit of byte 0,
/// as in the figures of the RFCs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) at: usize,
    pub(crate) bits: usize,
}

pub(crate) const fn field(name: &'static str, at: usize, bits: usize) -> Field {
    Field { name, at, bits }
}

impl Field {
    pub(crate) fn get(&self, bytes: &[u8]) -> u64 {
        (self.at..self.at + self.bits)
            .fold(0, |value, bit| value << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
    }

    pub(crate) fn set(&self, bytes: &mut [u8], value: u64) {
        for i in 0..self.bits {
            let (bit, one) = (self.at + i, value >> (self.bits - 1 - i) & 1 != 0);
            let mask = 0x80 >> (bit % 8);
            if one { bytes[bit / 8] |= mask } else { bytes[bit / 8] &= !mask }
        }
    }

    /// Returns the values to test, without `legal`: 0, the maximum, `legal` plus and minus one, and each single-bit
    /// change.
    pub(crate) fn values(&self, legal: u64) -> Vec<u64> {
        let max = u64::MAX >> (64 - self.bits);
        let near = [0, max, legal.wrapping_add(1) & max, legal.wrapping_sub(1) & max];
        let bits = (0..self.bits).map(|bit| legal ^ 1 << bit);
        let mut all: BTreeSet<u64> = near.into_iter().chain(bits).collect();
        all.remove(&legal);
        all.into_iter().collect()
    }
}

/// Tagged header (RFC 5041 §4.2) with the control byte of RDMAP (RFC 5040 §4.1).
pub(crate) const TAGGED: &[Field] = &[
    field("T", 0, 1),
    field("L", 1, 1),
    field("DDP reserved", 2, 4),
    field("DV", 6, 2),
    field("RV", 8, 2),
    field("RDMAP reserved", 10, 2),
    field("opcode", 12, 4),
    field("STag", 16, 32),
    field("TO", 48, 64),
];

/// Untagged header (RFC 5041 §4.3) with the control byte of RDMAP.
pub(crate) const UNTAGGED: &[Field] = &[
    field("T", 0, 1),
    field("L", 1, 1),
    field("DDP reserved", 2, 4),
    field("DV", 6, 2),
    field("RV", 8, 2),
    field("RDMAP reserved", 10, 2),
    field("opcode", 12, 4),
    field("Invalidate STag", 16, 32),
    field("QN", 48, 32),
    field("MSN", 80, 32),
    field("MO", 112, 32),
];

/// Read Request (RFC 5040 §4.4), after an untagged header.
pub(crate) const READ_REQUEST: &[Field] = &[
    field("sink STag", 144, 32),
    field("sink TO", 176, 64),
    field("read size", 240, 32),
    field("source STag", 272, 32),
    field("source TO", 304, 64),
];

/// Atomic Request (RFC 7306 §5.2.1), after an untagged header.
pub(crate) const ATOMIC_REQUEST: &[Field] = &[
    field("atomic reserved", 144, 28),
    field("atomic opcode", 172, 4),
    field("request identifier", 176, 32),
    field("atomic STag", 208, 32),
    field("atomic TO", 240, 64),
    field("add or swap data", 304, 64),
    field("add or swap mask", 368, 64),
    field("compare data", 432, 64),
    field("compare mask", 496, 64),
];

/// Atomic Response (RFC 7306 §5.2.2), after an untagged header.
pub(crate) const ATOMIC_RESPONSE: &[Field] =
    &[field("original request identifier", 144, 32), field("original remote data", 176, 64)];

/// Terminate (RFC 5040 §4.8), after an untagged header.
pub(crate) const TERMINATE: &[Field] = &[
    field("layer", 144, 4),
    field("error type", 148, 4),
    field("error code", 152, 8),
    field("header control", 160, 3),
    field("terminate reserved", 163, 13),
];

/// MPA Request or Reply Frame (RFC 5044 §7.1.1), without the key.
pub(crate) const START_FRAME: &[Field] = &[
    field("M", 128, 1),
    field("C", 129, 1),
    field("R", 130, 1),
    field("S", 131, 1),
    field("Res", 132, 4),
    field("Rev", 136, 8),
    field("PD_Length", 144, 16),
];

/// Enhanced data (RFC 6581 §9), after the fields of a Request or Reply Frame.
pub(crate) const ENHANCED: &[Field] = &[
    field("A", 160, 1),
    field("B", 161, 1),
    field("IRD", 162, 14),
    field("C (RTR)", 176, 1),
    field("D", 177, 1),
    field("ORD", 178, 14),
];
