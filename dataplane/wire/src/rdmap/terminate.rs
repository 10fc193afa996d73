//! The Terminate header (RFC 5040 §4.8).
//!
//! ```text
//!  0   Layer (4) | EType (4)        byte 2:   M 0x80  DDP Segment Length is valid
//!  1   Error Code                             D 0x40  DDP header is included
//!  2   M D R | reserved (13)                  R 0x20  RDMAP header is included
//!  4   DDP Segment Length, 16 bits, if M or D
//!  6   DDP header as received, 14 bytes if its T bit is one, else 18; if D
//!      Read Request header, 28 bytes; if R
//! ```
//!
//! Linux `siw` on little-endian machines swaps EType and Layer, and sends M, D and R as 0x01, 0x02 and 0x04 of byte 2.
//! In the RFC these three bits are reserved and ignored on receipt. Only [`TerminateRepr::parse_siw`] reads them, and
//! identifies the layout by the flags. Without any flag, siw's layout is assumed only if the swapped numbers are a
//! defined error and the numbers in the RFC's layout are not.

use arrayvec::ArrayVec;
use base::ErrorNumbers;

use super::{READ_REQUEST_LEN, ReadRequestRepr};
use crate::ddp::{Control, UNTAGGED_HEADER_LEN};
use crate::{Truncated, be};

mod field {
    pub(super) const LAYER_TYPE: usize = 0;
    pub(super) const LAYER_SHIFT: u32 = 4;
    pub(super) const TYPE: u8 = 0x0f;
    pub(super) const CODE: usize = 1;
    pub(super) const FLAGS: usize = 2;
    pub(super) const M: u8 = 0x80;
    pub(super) const D: u8 = 0x40;
    pub(super) const R: u8 = 0x20;
    pub(super) const SIW_M: u8 = 0x01;
    pub(super) const SIW_D: u8 = 0x02;
    pub(super) const SIW_R: u8 = 0x04;
    pub(super) const SEGMENT_LEN: usize = 4;
    pub(super) const DDP_HEADER: usize = 6;
    const _: () = assert!(super::CONTROL_LEN == SEGMENT_LEN && super::MAX_LEN == 52);
}

/// Bytes before the optional fields: Layer, EType, Error Code, flags and reserved bits.
pub const CONTROL_LEN: usize = field::FLAGS + 2;
/// Bytes of the longest Terminate header.
pub const MAX_LEN: usize = field::DDP_HEADER + UNTAGGED_HEADER_LEN + READ_REQUEST_LEN;

/// Layer that found the error (RFC 5040 figure 9): RDMAP.
pub const LAYER_RDMAP: u8 = 0;
/// Layer that found the error: DDP.
pub const LAYER_DDP: u8 = 1;
/// Layer that found the error: the lower layer, for example MPA.
pub const LAYER_LLP: u8 = 2;

/// Layout of a Terminate header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Layout of RFC 5040.
    #[default]
    Rfc,
    /// Layout of Linux siw on little-endian machines.
    Siw,
}

/// Values of a Terminate header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TerminateRepr {
    /// Layer that found the error, 0 to 15: [`LAYER_RDMAP`], [`LAYER_DDP`], [`LAYER_LLP`] or undefined.
    pub layer: u8,
    /// EType, the error type within the layer, 0 to 15.
    pub error_type: u8,
    /// Error Code within the layer and the error type.
    pub code: u8,
    /// DDP Segment Length as sent, present if flag M is set. siw counts only the payload.
    pub segment_len: Option<u16>,
    /// DDP header of the segment in error, as received: 14 or 18 bytes if flag D is set, otherwise empty.
    pub ddp_header: ArrayVec<u8, UNTAGGED_HEADER_LEN>,
    /// The Read Request in error, or the part of it that was not answered; present if flag R is set.
    pub read_request: Option<ReadRequestRepr>,
    /// Layout of the received header; [`emit`](Self::emit) always writes the RFC's layout.
    pub layout: Layout,
}

impl TerminateRepr {
    /// Returns a Terminate that includes no DDP or RDMAP header, in the RFC's layout.
    pub fn new(layer: u8, error_type: u8, code: u8) -> TerminateRepr {
        TerminateRepr {
            layer,
            error_type,
            code,
            segment_len: None,
            ddp_header: ArrayVec::new(),
            read_request: None,
            layout: Layout::Rfc,
        }
    }

    /// Returns the bytes in the RFC's layout, with zero reserved bits. An incomplete `ddp_header` is omitted.
    pub fn emit(&self) -> ArrayVec<u8, MAX_LEN> {
        let has_header = is_complete_header(&self.ddp_header);
        let has_len = self.segment_len.is_some() || has_header;
        let mut bytes = ArrayVec::new();
        bytes.push(self.layer << field::LAYER_SHIFT | self.error_type & field::TYPE);
        bytes.push(self.code);
        let m = if self.segment_len.is_some() { field::M } else { 0 };
        let d = if has_header { field::D } else { 0 };
        let r = if self.read_request.is_some() { field::R } else { 0 };
        bytes.extend([m | d | r, 0]);
        if has_len {
            // RFC 5040 §4.8: the length field is present whenever D is set, even without M.
            bytes.extend(self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if has_header {
            bytes.extend(self.ddp_header.iter().copied());
        }
        if let Some(request) = &self.read_request {
            bytes.extend(request.emit());
        }
        bytes
    }

    /// Parses a header in the RFC's layout. Reserved bits, and bytes after the header, are ignored.
    pub fn parse(bytes: &[u8]) -> Result<TerminateRepr, Truncated> {
        TerminateRepr::parse_with(bytes, |_| Layout::Rfc)
    }

    /// Parses a header from a peer that is known to be siw, in either layout.
    pub fn parse_siw(bytes: &[u8]) -> Result<TerminateRepr, Truncated> {
        TerminateRepr::parse_with(bytes, detect_layout)
    }

    fn parse_with(
        bytes: &[u8],
        layout_of: impl FnOnce(&[u8; CONTROL_LEN]) -> Layout,
    ) -> Result<TerminateRepr, Truncated> {
        let cut = |needed| Truncated { needed, seen: bytes.len() };
        let control: &[u8; CONTROL_LEN] = bytes.first_chunk().ok_or(cut(CONTROL_LEN))?;
        let flags = control[field::FLAGS];
        let first = control[field::LAYER_TYPE];
        let (high, low) = (first >> field::LAYER_SHIFT, first & field::TYPE);
        let code = control[field::CODE];
        let layout = layout_of(control);
        let ((layer, error_type), [m, d, r]) = match layout {
            Layout::Rfc => ((high, low), [field::M, field::D, field::R]),
            Layout::Siw => ((low, high), [field::SIW_M, field::SIW_D, field::SIW_R]),
        };
        let mut repr = TerminateRepr { layout, ..TerminateRepr::new(layer, error_type, code) };
        let mut at = CONTROL_LEN;
        if flags & (m | d) != 0 {
            let end = field::DDP_HEADER;
            let len = bytes.get(at..end).ok_or(cut(end))?;
            repr.segment_len = (flags & m != 0).then(|| be::u16(len, 0));
            at = end;
        }
        if flags & d != 0 {
            let first = *bytes.get(at).ok_or(cut(at + 1))?;
            let end = at + Control(first).header_len();
            repr.ddp_header.extend(bytes.get(at..end).ok_or(cut(end))?.iter().copied());
            at = end;
        }
        if flags & r != 0 {
            let request = bytes.get(at..).unwrap_or_default();
            let request = ReadRequestRepr::parse(request);
            repr.read_request = Some(request.map_err(|_| cut(at + READ_REQUEST_LEN))?);
        }
        Ok(repr)
    }

    /// Returns layer, error type and error code.
    #[inline]
    pub fn numbers(&self) -> ErrorNumbers {
        ErrorNumbers::new(self.layer, self.error_type, self.code)
    }

    /// Returns a short description of the error for operators (RFC 5040 figure 9, RFC 5041 §7.2, RFC 5044 §8, RFC 6581
    /// §8).
    pub fn description(&self) -> &'static str {
        describe(self.layer, self.error_type, self.code).unwrap_or("unknown error")
    }
}

impl core::fmt::Display for TerminateRepr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (layer, error_type, code) = (self.layer, self.error_type, self.code);
        write!(f, "{layer}/{error_type}/{code:02x}: {}", self.description())
    }
}

fn is_complete_header(header: &[u8]) -> bool {
    header.first().is_some_and(|first| Control(*first).header_len() == header.len())
}

/// Returns the layout of the first bytes of a Terminate from siw, as the module documentation describes.
fn detect_layout(control: &[u8; CONTROL_LEN]) -> Layout {
    const RFC: u8 = field::M | field::D | field::R;
    const SIW: u8 = field::SIW_M | field::SIW_D | field::SIW_R;
    let flags = control[field::FLAGS];
    if flags & RFC != 0 {
        return Layout::Rfc;
    }
    if flags & SIW != 0 {
        return Layout::Siw;
    }
    let (first, code) = (control[field::LAYER_TYPE], control[field::CODE]);
    let (high, low) = (first >> field::LAYER_SHIFT, first & field::TYPE);
    let known = |layer, error_type| describe(layer, error_type, code).is_some();
    if !known(high, low) && known(low, high) { Layout::Siw } else { Layout::Rfc }
}

/// Returns the meaning of a layer, error type and error code; `None` if they are undefined.
pub const fn describe(layer: u8, error_type: u8, code: u8) -> Option<&'static str> {
    Some(match (layer, error_type, code) {
        (0, 0, _) => "local catastrophic error",
        (0, 1, 0x00) => "RDMAP: invalid STag",
        (0, 1, 0x01) => "RDMAP: base or bounds violation",
        (0, 1, 0x02) => "RDMAP: access rights violation",
        (0, 1, 0x03) => "RDMAP: STag not associated with the stream",
        (0, 1, 0x04) => "RDMAP: TO wraps",
        (0, 1 | 2, 0x09) => "RDMAP: STag cannot be invalidated",
        (0, 1 | 2, 0xff) => "RDMAP: unspecified error",
        (0, 2, 0x05) => "invalid RDMAP version",
        (0, 2, 0x06) => "unexpected opcode",
        (0, 2, 0x07) => "catastrophic error, localized to the RDMAP stream",
        (0, 2, 0x08) => "catastrophic error, global",
        (1, 0, _) => "DDP: local catastrophic error",
        (1, 1, 0x00) => "DDP: invalid STag",
        (1, 1, 0x01) => "DDP: base or bounds violation",
        (1, 1, 0x02) => "DDP: STag not associated with the stream",
        (1, 1, 0x03) => "DDP: TO wraps",
        (1, 1, 0x04) | (1, 2, 0x06) => "invalid DDP version",
        (1, 2, 0x01) => "DDP: invalid QN",
        (1, 2, 0x02) => "DDP: no buffer available",
        (1, 2, 0x03) => "DDP: MSN out of range",
        (1, 2, 0x04) => "DDP: invalid MO",
        (1, 2, 0x05) => "DDP: message too long for the available buffer",
        (2, 0, 0x01) => "MPA: the TCP connection closed, terminated or lost",
        (2, 0, 0x02) => "MPA: CRC error",
        (2, 0, 0x03) => "MPA: marker and ULPDU Length do not agree",
        (2, 0, 0x04) => "MPA: invalid request or reply frame",
        (2, 0, 0x05) => "MPA: local catastrophic error",
        (2, 0, 0x06) => "MPA: insufficient IRD resources",
        (2, 0, 0x07) => "MPA: no matching RTR option",
        _ => return None,
    })
}
