//! The control word: the first word of a descriptor of a send or receive queue.

use super::payload::MAX_SGES;
use super::{DescriptorError, reserved};
use crate::unit::{MAX_UNITS, UNIT_WORDS, Unit};

const OPCODE: u32 = 8;
const FLAGS: u32 = 16;
const SGES: u32 = 24;
const INLINE: u32 = 32;
const RESERVED: u32 = 48;

/// Words of the largest descriptor.
pub(super) const MAX_WORDS: usize = MAX_UNITS * UNIT_WORDS;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Control {
    pub(super) units: u8,
    pub(super) opcode: u8,
    pub(super) flags: u8,
    /// Number of SGEs; `unpack` ensures at most [`MAX_SGES`].
    pub(super) sges: u8,
    /// Bytes of inline data.
    pub(super) inline: u16,
}

impl Control {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.units)
            | u64::from(self.opcode) << OPCODE
            | u64::from(self.flags) << FLAGS
            | u64::from(self.sges) << SGES
            | u64::from(self.inline) << INLINE
    }

    /// Decodes the control word of the descriptor in `units`. Returns an error if its number of units is not
    /// `units.len()`.
    pub(super) fn unpack(units: &[Unit]) -> Result<Control, DescriptorError> {
        let given = units.len().min(u8::MAX.into()) as u8;
        let word = units.first().ok_or(DescriptorError::Units(given))?[0];
        let control = Control {
            units: word as u8,
            opcode: (word >> OPCODE) as u8,
            flags: (word >> FLAGS) as u8,
            sges: (word >> SGES) as u8,
            inline: (word >> INLINE) as u16,
        };
        if usize::from(control.units) != units.len() || units.len() > MAX_UNITS {
            return Err(DescriptorError::Units(control.units));
        }
        if usize::from(control.sges) > MAX_SGES {
            return Err(DescriptorError::Sges(control.sges));
        }
        reserved(word >> RESERVED)?;
        Ok(control)
    }

    /// Checks that the number of units is the least that holds `used` words, and that all words after the first `used`
    /// are zero.
    pub(super) fn check_end(self, words: &[u64], used: usize) -> Result<(), DescriptorError> {
        if usize::from(self.units) != used.div_ceil(UNIT_WORDS) {
            return Err(DescriptorError::Units(self.units));
        }
        reserved(words[used..].iter().fold(0, |bits, word| bits | word))
    }

    /// Writes this control word into `words`, with the number of units that `used` words need. Returns those units.
    #[inline]
    pub(super) fn finish(mut self, words: &mut [u64], used: usize) -> &[Unit] {
        self.units = used.div_ceil(UNIT_WORDS) as u8;
        words[0] = self.pack();
        &words.as_chunks().0[..self.units.into()]
    }
}
