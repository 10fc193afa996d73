//! Payload of a descriptor: SGEs (scatter/gather elements) or inline data. Only the numbers and lengths are checked
//! here; the worker checks addresses and lkeys.

use arrayvec::ArrayVec;

use super::{DescriptorError, halves, pack, reserved};

/// Maximum number of SGEs of a descriptor.
pub const MAX_SGES: usize = 6;
/// Maximum number of bytes of inline data.
pub const MAX_INLINE: usize = 256;

pub(super) const SGE_WORDS: usize = 2;

/// A piece of the program's memory (scatter/gather element).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Address of the first byte: the program's virtual address, or the tagged offset (TO) in the region of `lkey`.
    pub address: u64,
    /// Length in bytes, possibly 0.
    pub len: u32,
    /// STag of the local memory region.
    pub lkey: u32,
}

/// List of at most [`MAX_SGES`] SGEs, whose lengths add up to less than 2³² bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct SgeList {
    sges: ArrayVec<Sge, MAX_SGES>,
    total: u32,
}

impl SgeList {
    /// Creates a list of `sges`. Returns an error if there are too many, or if their lengths add up to 2³² bytes or
    /// more.
    pub fn new(sges: &[Sge]) -> Result<SgeList, DescriptorError> {
        let count = sges.len().min(u8::MAX.into()) as u8;
        let sges = ArrayVec::try_from(sges).map_err(|_| DescriptorError::Sges(count))?;
        let total = sges.iter().map(|sge: &Sge| u64::from(sge.len)).sum::<u64>();
        let total = u32::try_from(total).map_err(|_| DescriptorError::TotalLength)?;
        Ok(SgeList { sges, total })
    }

    /// Returns the SGEs, at most [`MAX_SGES`].
    pub fn sges(&self) -> &[Sge] {
        &self.sges
    }

    /// Returns the sum of the lengths in bytes.
    pub fn total_len(&self) -> u32 {
        self.total
    }

    /// Decodes the SGEs in `words`, `SGE_WORDS` words each. `words` holds at most [`MAX_SGES`] SGEs.
    #[inline]
    pub(super) fn decode(words: &[u64]) -> Result<SgeList, DescriptorError> {
        let mut list = SgeList::default();
        for &[address, len_and_lkey] in words.as_chunks::<SGE_WORDS>().0 {
            let (len, lkey) = halves(len_and_lkey);
            list.sges.push(Sge { address, len, lkey });
            list.total = list.total.checked_add(len).ok_or(DescriptorError::TotalLength)?;
        }
        Ok(list)
    }

    /// Encodes the list at the beginning of `words`. Returns the number of words written.
    #[inline]
    pub(super) fn encode(&self, words: &mut [u64]) -> usize {
        for (at, sge) in words.as_chunks_mut::<SGE_WORDS>().0.iter_mut().zip(&self.sges) {
            *at = [sge.address, pack(sge.len, sge.lkey)];
        }
        self.sges.len() * SGE_WORDS
    }
}

/// Inline data: at most [`MAX_INLINE`] payload bytes in the descriptor itself.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Inline {
    bytes: ArrayVec<u8, MAX_INLINE>,
}

impl Inline {
    /// Creates inline data from `bytes`. Returns an error if there are more than [`MAX_INLINE`].
    pub fn new(bytes: &[u8]) -> Result<Inline, DescriptorError> {
        let len = bytes.len().min(u16::MAX.into()) as u16;
        let bytes = ArrayVec::try_from(bytes).map_err(|_| DescriptorError::InlineLength(len))?;
        Ok(Inline { bytes })
    }

    /// Returns the bytes, at most [`MAX_INLINE`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes `len` bytes, at most [`MAX_INLINE`]. They fill `words`; the unused bytes of the last word must be zero.
    pub(super) fn decode(words: &[u64], len: usize) -> Result<Inline, DescriptorError> {
        let mut bytes: ArrayVec<u8, MAX_INLINE> =
            words.iter().flat_map(|word| word.to_le_bytes()).collect();
        reserved(bytes[len..].iter().fold(0, |bits, &byte| bits | u64::from(byte)))?;
        bytes.truncate(len);
        Ok(Inline { bytes })
    }

    /// Encodes the bytes at the beginning of `words`. Returns the number of words written.
    pub(super) fn encode(&self, words: &mut [u64]) -> usize {
        for (word, bytes) in words.iter_mut().zip(self.bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
        self.bytes.len().div_ceil(8)
    }
}

/// Payload of a message to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Bytes gathered from the program's memory. The program must not change them before the completion.
    Gather(SgeList),
    /// Bytes copied into the descriptor.
    Inline(Inline),
}

impl Payload {
    /// Returns the number of payload bytes.
    pub fn total_len(&self) -> u32 {
        match self {
            Payload::Gather(list) => list.total_len(),
            Payload::Inline(inline) => inline.bytes.len() as u32,
        }
    }
}
