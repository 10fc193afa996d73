//! Access checks of a peer's Read Request or atomic (RFC 5040 §7.2): STag, rights and bounds.

use wire::{Stag, TaggedOffset};

use crate::error::{Field, Mismatch};
use crate::rdmap::ErrorCode;
use crate::stag::{Access, PdId, StagEntry, StagTable, StreamId};

/// A stream and its protection domain, compared with the stream and domain of an STag (RFC 5041 §8.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamIdentity {
    pub(crate) pd: PdId,
    pub(crate) stream: StreamId,
}

/// Checks that the stream may access `len` bytes (at least one) from `to` on with the rights `needed`. Returns the
/// STag's entry and the offset of the first byte in the entry's memory.
pub(crate) fn locate<M: crate::memory::RegionMemory>(
    stags: &StagTable<M>,
    identity: StreamIdentity,
    stag: Stag,
    to: TaggedOffset,
    len: u32,
    needed: Access,
) -> Result<(&StagEntry<M>, u64), (ErrorCode, Mismatch)> {
    // RFC 5040 §7.2 (4a): the STag is valid.
    let Some(entry) = stags.get(stag) else {
        return Err((ErrorCode::InvalidStag, Mismatch::unexpected(Field::Stag, stag.0.into())));
    };
    // RFC 5040 §7.2 (4b): the STag is associated with this stream.
    if entry.pd != identity.pd {
        let (seen, expected) = (entry.pd.0.into(), identity.pd.0.into());
        let mismatch = Mismatch::exact(Field::ProtectionDomain, seen, expected);
        return Err((ErrorCode::StagNotAssociated, mismatch));
    }
    if let Some(stream) = entry.stream
        && stream != identity.stream
    {
        let mismatch = Mismatch::exact(Field::Stream, stream.0, identity.stream.0);
        return Err((ErrorCode::StagNotAssociated, mismatch));
    }
    if !entry.access.contains(needed) {
        let (seen, needed) = (entry.access.bits().into(), needed.bits().into());
        return Err((ErrorCode::AccessRights, Mismatch::exact(Field::Access, seen, needed)));
    }
    let (base, limit) = (entry.base_to.0, entry.base_to.0 + entry.len);
    // RFC 5040 §7.2 (4e): TO plus length does not wrap.
    let Some(end) = to.0.checked_add(len.into()) else {
        let seen = to.0.wrapping_add(len.into());
        return Err((ErrorCode::ToWrap, Mismatch::new(Field::TaggedEnd, seen, base, limit)));
    };
    // RFC 5040 §7.2 (4c), (4d): all bytes are within the buffer.
    if to.0 < base || to.0 > limit {
        let mismatch = Mismatch::new(Field::TaggedOffset, to.0, base, limit);
        return Err((ErrorCode::BaseOrBounds, mismatch));
    }
    if end > limit {
        let mismatch = Mismatch::new(Field::TaggedEnd, end, base, limit);
        return Err((ErrorCode::BaseOrBounds, mismatch));
    }
    Ok((entry, entry.memory_offset + (to.0 - base)))
}
