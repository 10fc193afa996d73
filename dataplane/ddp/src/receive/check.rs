//! Checks of a single segment before it is processed: its header, and for a tagged segment its buffer (RFC 5041 §7.1,
//! §8). The [queue](super::queue) checks untagged segments.

use arrayvec::ArrayVec;
use wire::DdpVersion;
use wire::ddp::{Control, HeaderError, HeaderRepr, TAGGED_HEADER_LEN, TaggedRepr};

use super::Env;
use crate::checks::{Reject, UlpChecks};
use crate::error::{ErrorCode, Field, Mismatch};
use crate::llp::MAX_DDP_HEADER;
use crate::memory::RegionMemory;
use crate::stag::{Access, StagEntry, StagTable};

/// Returns the header, if it is whole and of a known version.
#[inline]
pub(super) fn parse<E>(bytes: &[u8], segment_len: usize) -> Result<HeaderRepr, Reject<E>> {
    HeaderRepr::parse(bytes).map_err(|error| {
        let control = Control(bytes.first().copied().unwrap_or(0));
        let mismatch = match error {
            HeaderError::Version(dv) => Mismatch::new(Field::Version, dv.into(), 0, 1),
            // RFC 5041 has no error number for a segment shorter than its header. Such bytes are not a segment of any
            // version, so the version error applies.
            HeaderError::Truncated(_) | HeaderError::WrongModel => Mismatch::new(
                Field::SegmentLength,
                segment_len as u64,
                control.header_len() as u64,
                u64::from(u32::MAX),
            ),
        };
        Reject::Ddp(version_code(control.is_tagged()), mismatch)
    })
}

/// Returns the header at the start of `bytes`, if it is the header of a tagged segment of a known version.
#[inline]
pub(super) fn parse_tagged(bytes: &[u8]) -> Option<TaggedRepr> {
    let header = bytes.first_chunk::<TAGGED_HEADER_LEN>()?;
    let tagged = Control(header[0]).is_tagged();
    TaggedRepr::parse(header).ok().filter(|_| tagged)
}

fn version_code(tagged: bool) -> ErrorCode {
    if tagged { ErrorCode::TaggedVersion } else { ErrorCode::UntaggedVersion }
}

pub(super) fn wrong_version<E>(header: &HeaderRepr, seen: u8, expected: DdpVersion) -> Reject<E> {
    let code = version_code(matches!(header, HeaderRepr::Tagged(_)));
    Reject::Ddp(code, Mismatch::exact(Field::Version, seen.into(), expected.bits().into()))
}

/// Entry of a tagged segment's STag, and the offset of the payload in the entry's memory.
pub(super) type TaggedTarget<'a, M> = (&'a StagEntry<M>, u64);

/// Checks a tagged segment (RFC 5041 §7.1, §8.2). Returns the target of its payload, or `None` if the segment has no
/// payload.
pub(super) fn check_tagged<'a, M: RegionMemory, C: UlpChecks>(
    header: &TaggedRepr,
    len: u32,
    env: &Env<'a, M, C>,
) -> Result<Option<TaggedTarget<'a, M>>, Reject<C::Code>> {
    // RFC 5041 §5.2: STag and TO of a zero-length segment are not checked.
    if len == 0 {
        return Ok(None);
    }
    let error = |code, mismatch| Err(Reject::Ddp(code, mismatch));
    let stags: &'a StagTable<M> = env.stags;
    let Some(entry) = stags.get(header.stag) else {
        let mismatch = Mismatch::unexpected(Field::Stag, header.stag.0.into());
        return error(ErrorCode::InvalidStag, mismatch);
    };
    // RFC 5041 §8.2: the protection domain is checked first, then the stream.
    if entry.pd != env.pd {
        let mismatch = Mismatch::exact(Field::ProtectionDomain, entry.pd.0.into(), env.pd.0.into());
        return error(ErrorCode::StagNotAssociated, mismatch);
    }
    if let Some(stream) = entry.stream
        && stream != env.id
    {
        let mismatch = Mismatch::exact(Field::Stream, stream.0, env.id.0);
        return error(ErrorCode::StagNotAssociated, mismatch);
    }
    // RFC 5041 §7.1 (2), §8.3.1 (5): the buffer must allow placement.
    let needed = env.checks.access_needed(header);
    // A Read Response needs no access right, but its sink memory must be writable.
    let is_writable = needed != Access::NONE || entry.memory.is_writable();
    if !entry.access.contains(needed) || !is_writable {
        let (seen, needed) = (entry.access.bits().into(), needed.bits().into());
        let mismatch = Mismatch::exact(Field::Access, seen, needed);
        return error(ErrorCode::InvalidStag, mismatch);
    }
    // RFC 5041 §7.1 (5): the TO range does not wrap; (3), (4): it is entirely within the region.
    let (to, base) = (header.to.0, entry.base_to.0);
    let limit = base + entry.len;
    let Some(end) = to.checked_add(u64::from(len)) else {
        let mismatch = Mismatch::new(Field::TaggedEnd, to.wrapping_add(len.into()), base, limit);
        return error(ErrorCode::ToWrap, mismatch);
    };
    if to < base || to > limit {
        let mismatch = Mismatch::new(Field::TaggedOffset, to, base, limit);
        return error(ErrorCode::BaseOrBounds, mismatch);
    }
    if end > limit {
        return error(ErrorCode::BaseOrBounds, Mismatch::new(Field::TaggedEnd, end, base, limit));
    }
    Ok(Some((entry, entry.memory_offset + (to - base))))
}

/// Returns a re-encoded header with the received control byte. The parsed values lack that byte's reserved bits.
pub(crate) fn with_control_byte(
    mut header: ArrayVec<u8, MAX_DDP_HEADER>,
    control: u8,
) -> ArrayVec<u8, MAX_DDP_HEADER> {
    header[0] = control;
    header
}

/// Returns the DDP header at the start of a segment as received. The result is shorter if the segment ends within
/// its header.
pub(super) fn received_header(bytes: &[u8]) -> ArrayVec<u8, MAX_DDP_HEADER> {
    let len = bytes.first().map_or(0, |first| Control(*first).header_len());
    bytes.iter().copied().take(len).collect()
}
