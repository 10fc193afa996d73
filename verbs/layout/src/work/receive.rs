//! Descriptors of the receive queue (RQ) and the shared receive queue (SRQ).

use super::DescriptorError;
use super::control::Control;
use super::payload::{MAX_SGES, SGE_WORDS, SgeList};
use crate::unit::{UNIT_WORDS, Unit, Units};

/// Opcode of a Receive. No opcode of a send queue has this value.
pub(super) const RECEIVE: u8 = 128;

const SGES_AT: usize = 2;
/// Words of the largest descriptor.
const MAX_WORDS: usize = 2 * UNIT_WORDS;

const _: () = assert!(SGES_AT + MAX_SGES * SGE_WORDS <= MAX_WORDS);

/// A posted receive: memory for one untagged message (RFC 5040 §5.3, queue 0). The descriptor is one unit with 0 to 3
/// SGEs, and two units with 4 to 6 SGEs.
///
/// ```text
///  word  0         1       2     4     6      8 ..
///       | control | wr_id | SGE | SGE | SGE | SGE ...
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiveWork {
    /// Number that the program chose for the request; copied into its completion.
    pub wr_id: u64,
    /// Memory for the message.
    pub buffers: SgeList,
}

impl ReceiveWork {
    /// Encodes the Receive as a descriptor of one or two units, and calls `take` with these units.
    #[inline]
    pub fn encode_with<R>(&self, take: impl FnOnce(&[Unit]) -> R) -> R {
        let mut words = [0; MAX_WORDS];
        words[1] = self.wr_id;
        let used = SGES_AT + self.buffers.encode(&mut words[SGES_AT..]);
        let sges = self.buffers.sges().len() as u8;
        take(Control { opcode: RECEIVE, sges, ..Control::default() }.finish(&mut words, used))
    }

    /// Encodes the Receive as a descriptor of one or two units.
    pub fn encode(&self) -> Units {
        self.encode_with(|units| units.iter().copied().collect())
    }

    /// Decodes the descriptor in `units`. Returns an error if `units` are not the encoding of a Receive.
    pub fn decode(units: &[Unit]) -> Result<ReceiveWork, DescriptorError> {
        let control = Control::unpack(units)?;
        if control.opcode != RECEIVE {
            return Err(DescriptorError::Opcode(control.opcode));
        }
        if control.flags != 0 {
            return Err(DescriptorError::Flags(control.flags));
        }
        if control.inline != 0 {
            return Err(DescriptorError::InlineLength(control.inline));
        }
        let words = units.as_flattened();
        let used = SGES_AT + usize::from(control.sges) * SGE_WORDS;
        control.check_end(words, used)?;
        Ok(ReceiveWork { wr_id: words[1], buffers: SgeList::decode(&words[SGES_AT..used])? })
    }
}
