//! MPA, DDP and RDMAP messages as an attacker builds them, with arbitrary field values. "Bare DDP" is DDP without
//! RDMAP.

use wire::crc32c;
use wire::ddp::{Control as DdpControl, DdpVersion};
use wire::mpa::{self, FrameKind};
use wire::rdmap::{Control, Opcode, ReadRequestRepr};
use wire::{Stag, TaggedOffset};

/// The C flag of an MPA Request: CRCs are used (RFC 5044 §7.1.1).
const MPA_CRC: u8 = 0x40;

/// Builds an MPA Request with CRCs, without markers or private data.
pub(crate) fn mpa_request(revision: u8) -> Vec<u8> {
    mpa_request_with(revision, &[])
}

/// Builds an MPA Request with CRCs and private data, without markers.
pub(crate) fn mpa_request_with(revision: u8, private: &[u8]) -> Vec<u8> {
    let mut bytes = FrameKind::Request.key().to_vec();
    bytes.extend([MPA_CRC, revision]);
    bytes.extend((private.len() as u16).to_be_bytes());
    bytes.extend(private);
    bytes
}

/// Builds an MPA Request of revision 2 with IRD and ORD.
pub(crate) fn enhanced_request(ird: u16, ord: u16) -> Vec<u8> {
    let private = [ird.to_be_bytes(), ord.to_be_bytes()].concat();
    let mut bytes = mpa_request_with(2, &private);
    bytes[16] |= 0x10;
    bytes
}

/// Builds an FPDU without markers, with padding and a correct CRC.
pub(crate) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    bytes.resize(mpa::fpdu_len(ulpdu.len()) - mpa::CRC_LEN, 0);
    let crc = crc32c::field(&bytes);
    bytes.extend(crc);
    bytes
}

/// Builds a tagged segment of bare DDP.
pub(crate) fn tagged_segment(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    tagged_segment_with(0, stag, to, last, payload)
}

/// Builds a tagged segment of an RDMA Write (RDMAP).
pub(crate) fn write_segment(stag: u32, to: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    tagged_segment_with(Control::new(DdpVersion::V1, Opcode::Write).0, stag, to, last, payload)
}

/// Builds a tagged segment with `ulp` as the byte reserved for the ULP (RsvdULP, RFC 5041 §4.2).
pub(crate) fn tagged_segment_with(
    ulp: u8,
    stag: u32,
    to: u64,
    last: bool,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![DdpControl::tagged(last, DdpVersion::V1).0, ulp];
    bytes.extend(stag.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Queue number, MSN and MO of an untagged segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UntaggedPosition {
    pub(crate) qn: u32,
    pub(crate) msn: u32,
    pub(crate) mo: u32,
}

/// Builds an untagged segment of bare DDP.
pub(crate) fn untagged_segment(at: UntaggedPosition, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged_segment_with([0; 5], at, last, payload)
}

/// Builds an untagged segment with `ulp` as the five bytes reserved for the ULP (RsvdULP, RFC 5041 §4.3).
pub(crate) fn untagged_segment_with(
    ulp: [u8; 5],
    at: UntaggedPosition,
    last: bool,
    payload: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![DdpControl::untagged(last, DdpVersion::V1).0];
    bytes.extend(ulp);
    for word in [at.qn, at.msn, at.mo] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Builds an untagged RDMAP message in one segment, on the queue of its opcode.
pub(crate) fn rdmap_message(
    opcode: Opcode,
    invalidate: Option<u32>,
    msn: u32,
    payload: &[u8],
) -> Vec<u8> {
    let control = Control::new(DdpVersion::V1, opcode);
    let ulp = control.with_invalidate(invalidate.map(Stag));
    let qn = opcode.queue().map_or(0, |queue| queue.0);
    untagged_segment_with(ulp, UntaggedPosition { qn, msn, mo: 0 }, true, payload)
}

/// Builds a Read Request of `size` bytes from the STag `stag` at the tagged offset `to`. Its sink is arbitrary.
pub(crate) fn read_request(msn: u32, stag: u32, to: u64, size: u32) -> Vec<u8> {
    let request = ReadRequestRepr {
        sink_stag: Stag(0x5151_0001),
        sink_to: TaggedOffset(0),
        size,
        source_stag: Stag(stag),
        source_to: TaggedOffset(to),
    };
    rdmap_message(Opcode::ReadRequest, None, msn, &request.emit())
}

/// Error code of an RDMAP Terminate, or of bare DDP's last message: layer and error type in the first byte, then the
/// code.
pub(crate) type ErrorCode = (u8, u8);

/// Returns the error code of an untagged segment on queue 2, which RDMAP's Terminate and bare DDP's last message use.
/// With `bare` set, one payload byte precedes the code. `None` for any other segment, or one without an error code.
pub(crate) fn terminate_error(segment: &[u8], bare: bool) -> Option<ErrorCode> {
    let header = segment.get(..18)?;
    let untagged = header[0] & 0x80 == 0;
    if !untagged || header[6..10] != [0, 0, 0, 2] {
        return None;
    }
    let payload = &segment[18..];
    let payload = if bare { payload.get(1..)? } else { payload };
    Some((*payload.first()?, *payload.get(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fpdu_matches_example_of_protocol_document() {
        // The example of docs/protocol.md §3 without its marker and therefore with another CRC.
        let segment = tagged_segment(0x0102_0304, 0x1122_3344_5566_7788, true, b"hello");
        let bytes = fpdu(&segment);
        assert_eq!(bytes[..4], [0, 0x13, 0xc1, 0]);
        assert_eq!(bytes.len(), 2 + 19 + 3 + 4);
        assert_eq!(crc32c::field(&bytes[..24]), bytes[24..]);
    }

    #[test]
    fn terminate_code_is_found_bare_and_in_fpdu() {
        let at = UntaggedPosition { qn: 2, msn: 1, mo: 0 };
        let last = untagged_segment(at, true, &[1, 0x11, 2, 0, 0, 0, 0, 0]);
        assert_eq!(terminate_error(&last, true), Some((0x11, 2)));
        let terminate = rdmap_message(Opcode::Terminate, None, 1, &[0x01, 2, 0, 0]);
        assert_eq!(terminate_error(&terminate, false), Some((0x01, 2)));
        assert_eq!(
            terminate_error(
                &untagged_segment(UntaggedPosition { qn: 0, ..at }, true, &[1, 2, 3]),
                true
            ),
            None
        );
        assert_eq!(terminate_error(&tagged_segment(1, 2, true, b"x"), true), None);
    }
}
