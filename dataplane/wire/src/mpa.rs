//! MPA formats (RFC 5044): start-up frames (§7.1.1), markers (§4.2), and the fields and sizes of the FPDU (§4.1,
//! §4.5). Also the enhanced data of revision 2 (RFC 6581 §9), and the Start Key of the first MPA draft (its §8.1.1).
//!
//! ```text
//!  request / reply (20 bytes + private data)       Start Key (16 bytes)
//!   0  "MPA ID Req Frame" or "MPA ID Rep Frame"     0  "MPA ident frame"
//!  16  |M|C|R|S|  Res  |     Rev       |           15  |M|C| Res | Rev |
//!  18  |          PD_Length            |
//!  20  private data, 0 to 512 bytes                marker (4 bytes)
//!                                                   0  |  RESERVED (16)  |  FPDUPTR (16)  |
//!  FPDU: ULPDU_Length (16) | ULPDU | pad 0..3 | CRC (32)
//!
//!  enhanced data (4 bytes, first in the private data when S is set)
//!   0  |A|B|      IRD (14)     |C|D|      ORD (14)     |
//! ```
//!
//! The start-up state machine decides which revisions and flags are acceptable.

use crate::{Truncated, be};

mod enhanced;
#[cfg(test)]
mod tests;

pub use enhanced::{ENHANCED_LEN, EnhancedRepr, MAX_DEPTH, NO_LIMIT, RtrSet};

/// First bytes of a request frame.
pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// First bytes of a reply frame.
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
/// First bytes of the Start Key of the first MPA draft.
pub const START_KEY: [u8; 15] = *b"MPA ident frame";

/// Bytes of a request or reply frame before its private data.
pub const FRAME_HEADER_LEN: usize = 20;
/// Maximum length of private data, bytes (RFC 5044 §7.1.1).
pub const MAX_PRIVATE_DATA: usize = 512;
/// Bytes of a Start Key.
pub const START_KEY_LEN: usize = 16;
/// Bytes of a marker.
pub const MARKER_LEN: usize = 4;
/// Bytes of the TCP stream from the start of one marker to the start of the next (RFC 5044 §4.3).
pub const MARKER_INTERVAL: u64 = 512;
/// Bytes of the ULPDU_Length field.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field, present even when CRCs are off (RFC 5044 §4.1).
pub const CRC_LEN: usize = 4;
/// Bytes that an FPDU adds to its ULPDU without pad and markers.
pub const FPDU_OVERHEAD: usize = LENGTH_LEN + CRC_LEN;
/// Lower bound of MULPDU, the maximum ULPDU length that MPA reports to DDP, bytes (RFC 5044 §4.5).
pub const MIN_MULPDU: usize = 128;

mod field {
    pub(super) const FLAGS: usize = 16;
    pub(super) const MARKERS: u8 = 0x80;
    pub(super) const CRC: u8 = 0x40;
    pub(super) const REJECT: u8 = 0x20;
    pub(super) const ENHANCED: u8 = 0x10;
    pub(super) const RES: u8 = 0x0f;
    pub(super) const REV: usize = 17;
    pub(super) const PD_LENGTH: usize = 18;

    pub(super) const KEY_FLAGS: usize = 15;
    pub(super) const KEY_MARKERS: u8 = 0x80;
    pub(super) const KEY_CRC: u8 = 0x40;
    pub(super) const KEY_RES: u8 = 0x38;
    pub(super) const KEY_REV: u8 = 0x07;

    pub(super) const FPDUPTR: usize = 2;
    pub(super) const FPDUPTR_MASK: u16 = !3;

    const _: () = assert!(MARKERS ^ CRC ^ REJECT ^ ENHANCED ^ RES == 0xff);
    const _: () = assert!(KEY_MARKERS ^ KEY_CRC ^ KEY_RES ^ KEY_REV == 0xff);
    const _: () = assert!(PD_LENGTH + 2 == super::FRAME_HEADER_LEN);
    const _: () = assert!(KEY_FLAGS == super::START_KEY.len());
    const _: () = assert!(FPDUPTR + 2 == super::MARKER_LEN);
}

/// Returns the length of the zero pad between ULPDU and CRC, 0 to 3 bytes. With the pad, the FPDU without markers is a
/// multiple of 4 bytes (RFC 5044 §4.1).
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() & 3
}

/// Returns the length, in bytes without markers, of an FPDU whose ULPDU has `ulpdu_len` bytes.
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    FPDU_OVERHEAD + ulpdu_len + pad_len(ulpdu_len)
}

/// Kind of a start-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

impl FrameKind {
    /// Returns the key of the frame.
    pub const fn key(self) -> [u8; 16] {
        match self {
            FrameKind::Request => REQUEST_KEY,
            FrameKind::Reply => REPLY_KEY,
        }
    }
}

/// Kind of the first 16 bytes of an MPA stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstBytes {
    /// The key of a request or reply frame.
    Frame(FrameKind),
    /// A Start Key of the first MPA draft.
    StartKey(StartKeyRepr),
}

impl FirstBytes {
    /// Identifies the form of start-up: request or reply frame, or Start Key. `None` for other bytes.
    pub fn parse(bytes: &[u8; START_KEY_LEN]) -> Option<FirstBytes> {
        if *bytes == REQUEST_KEY {
            Some(FirstBytes::Frame(FrameKind::Request))
        } else if *bytes == REPLY_KEY {
            Some(FirstBytes::Frame(FrameKind::Reply))
        } else {
            StartKeyRepr::parse(bytes).map(FirstBytes::StartKey)
        }
    }
}

/// View of the first 20 bytes of a request or reply frame and of its private data (RFC 5044 §7.1.1).
#[derive(Clone, Copy, Debug)]
pub struct Frame<T>(T);

impl<T: AsRef<[u8]>> Frame<T> {
    /// Returns a view of `bytes`; fails if they are fewer than [`FRAME_HEADER_LEN`].
    pub fn new(bytes: T) -> Result<Self, Truncated> {
        check_len(bytes.as_ref().len(), FRAME_HEADER_LEN).map(|()| Frame(bytes))
    }

    /// Returns the Key field, 16 bytes.
    pub fn key(&self) -> [u8; 16] {
        be::array(self.0.as_ref(), 0)
    }

    fn flag(&self, mask: u8) -> bool {
        self.0.as_ref()[field::FLAGS] & mask != 0
    }

    /// Returns M: the sender of this frame requires markers in the data that it receives.
    pub fn markers(&self) -> bool {
        self.flag(field::MARKERS)
    }

    /// Returns C: the sender of this frame prefers CRCs.
    pub fn crc(&self) -> bool {
        self.flag(field::CRC)
    }

    /// Returns R: in a reply, the connection is rejected.
    pub fn reject(&self) -> bool {
        self.flag(field::REJECT)
    }

    /// Returns S: enhanced set-up (RFC 6581 §6). Before revision 2, this bit is reserved.
    pub fn enhanced(&self) -> bool {
        self.flag(field::ENHANCED)
    }

    /// Returns Res, 4 reserved bits that are ignored on receipt.
    pub fn reserved(&self) -> u8 {
        self.0.as_ref()[field::FLAGS] & field::RES
    }

    /// Returns Rev, the MPA revision.
    pub fn revision(&self) -> u8 {
        self.0.as_ref()[field::REV]
    }

    /// Returns PD_Length, the length of the private data in bytes, unchecked: 0 to 65535.
    pub fn private_data_len(&self) -> usize {
        usize::from(be::u16(self.0.as_ref(), field::PD_LENGTH))
    }

    /// Returns the private data; `None` until all of it has arrived.
    pub fn private_data(&self) -> Option<&[u8]> {
        self.0.as_ref().get(FRAME_HEADER_LEN..FRAME_HEADER_LEN + self.private_data_len())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Frame<T> {
    /// Writes the Key field, 16 bytes: [`FrameKind::key`].
    pub fn set_key(&mut self, key: [u8; 16]) {
        be::put(self.0.as_mut(), 0, &key);
    }

    fn set_flag(&mut self, mask: u8, on: bool) {
        let flags = &mut self.0.as_mut()[field::FLAGS];
        *flags = if on { *flags | mask } else { *flags & !mask };
    }

    /// Sets or clears the M bit (markers, RFC 5044 §7.1.1).
    pub fn set_markers(&mut self, on: bool) {
        self.set_flag(field::MARKERS, on);
    }

    /// Sets or clears the C bit (CRC, RFC 5044 §7.1.1).
    pub fn set_crc(&mut self, on: bool) {
        self.set_flag(field::CRC, on);
    }

    /// Sets or clears the R bit (reject, RFC 5044 §7.1.1).
    pub fn set_reject(&mut self, on: bool) {
        self.set_flag(field::REJECT, on);
    }

    /// Sets or clears the S bit (enhanced set-up, RFC 6581 §6).
    pub fn set_enhanced(&mut self, on: bool) {
        self.set_flag(field::ENHANCED, on);
    }

    /// Clears Res, 4 reserved bits (RFC 5044 §7.1.1).
    pub fn clear_reserved(&mut self) {
        self.set_flag(field::RES, false);
    }

    /// Writes Rev, the MPA revision.
    pub fn set_revision(&mut self, revision: u8) {
        self.0.as_mut()[field::REV] = revision;
    }

    /// Writes PD_Length, the length of the private data in bytes.
    pub fn set_private_data_len(&mut self, len: u16) {
        be::put(self.0.as_mut(), field::PD_LENGTH, &len.to_be_bytes());
    }
}

/// Values of a request or reply frame without its private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRepr {
    /// Kind of the frame, which selects its key.
    pub kind: FrameKind,
    /// M: the sender of the frame requires markers in the data that it receives.
    pub markers: bool,
    /// C: the sender of the frame prefers CRCs.
    pub crc: bool,
    /// R: in a reply, the connection is rejected.
    pub reject: bool,
    /// S: enhanced set-up (RFC 6581 §6). Before revision 2, this bit is reserved.
    pub enhanced: bool,
    /// Rev, unchecked: the start-up state machine decides which revisions are acceptable.
    pub revision: u8,
    /// PD_Length, at most [`MAX_PRIVATE_DATA`].
    pub private_data_len: u16,
}

impl FrameRepr {
    /// Parses the frame at the start of `bytes`. Fails if the bytes are fewer than [`FRAME_HEADER_LEN`], if the key is
    /// not that of `kind`, or if PD_Length exceeds [`MAX_PRIVATE_DATA`].
    pub fn parse(bytes: &[u8], kind: FrameKind) -> Result<FrameRepr, FrameError> {
        let view = Frame::new(bytes)?;
        if view.key() != kind.key() {
            return Err(FrameError::Key);
        }
        let len = view.private_data_len();
        // RFC 5044 §7.1.1: a frame with more than 512 bytes of private data is invalid and closes the connection.
        if len > MAX_PRIVATE_DATA {
            return Err(FrameError::PrivateDataLength(len));
        }
        Ok(FrameRepr {
            kind,
            markers: view.markers(),
            crc: view.crc(),
            reject: view.reject(),
            enhanced: view.enhanced(),
            revision: view.revision(),
            private_data_len: len as u16,
        })
    }

    /// Returns the length of the frame with its private data, bytes.
    pub const fn len(&self) -> usize {
        FRAME_HEADER_LEN + self.private_data_len as usize
    }

    /// Returns false, since a frame always has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the first 20 bytes, with zero reserved bits. The private data is not written.
    pub fn emit(&self, bytes: &mut [u8; FRAME_HEADER_LEN]) {
        let mut view = Frame(bytes.as_mut_slice());
        view.set_key(self.kind.key());
        view.clear_reserved();
        view.set_markers(self.markers);
        view.set_crc(self.crc);
        view.set_reject(self.reject);
        view.set_enhanced(self.enhanced);
        view.set_revision(self.revision);
        view.set_private_data_len(self.private_data_len);
    }
}

/// Reasons to reject bytes as the expected start-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the frame's header.
    #[error("MPA frame: {0}")]
    Truncated(#[from] Truncated),
    /// The key differs from the expected key.
    #[error("MPA frame: wrong key")]
    Key,
    /// PD_Length is above 512.
    #[error("MPA frame: {0} bytes of private data, at most 512 are allowed")]
    PrivateDataLength(usize),
}

/// A Start Key (draft-culley-iwarp-mpa-03 §8.1.1): 15 bytes of key, then one byte with M, C, reserved bits and Rev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartKeyRepr {
    /// M: the sender of this key requires markers in the data that it receives.
    pub markers: bool,
    /// C: the sender of this key prefers CRCs.
    pub crc: bool,
    /// Rev, 0 to 7. The draft requires that any value except 0 closes the connection.
    pub revision: u8,
}

impl StartKeyRepr {
    /// Parses the Start Key in `bytes`; `None` if the key differs.
    pub fn parse(bytes: &[u8; START_KEY_LEN]) -> Option<StartKeyRepr> {
        if bytes[..field::KEY_FLAGS] != START_KEY {
            return None;
        }
        let flags = bytes[field::KEY_FLAGS];
        Some(StartKeyRepr {
            markers: flags & field::KEY_MARKERS != 0,
            crc: flags & field::KEY_CRC != 0,
            revision: flags & field::KEY_REV,
        })
    }

    /// Returns the 16 bytes, with zero reserved bits.
    pub fn emit(&self) -> [u8; START_KEY_LEN] {
        let mut bytes = [0; START_KEY_LEN];
        bytes[..field::KEY_FLAGS].copy_from_slice(&START_KEY);
        bytes[field::KEY_FLAGS] = if self.markers { field::KEY_MARKERS } else { 0 }
            | if self.crc { field::KEY_CRC } else { 0 }
            | self.revision & field::KEY_REV;
        bytes
    }
}

/// Value of a marker (RFC 5044 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// FPDUPTR: bytes of the TCP stream from the ULPDU_Length field to the marker's first byte, a multiple of 4.
    /// FPDUPTR is 0 if the ULPDU_Length field directly follows the marker (RFC 5044 §4.3).
    fpduptr: u16,
}

impl Marker {
    /// Returns a marker with this FPDUPTR; its two lowest bits are sent as zeros (RFC 5044 §4.2).
    pub const fn new(fpduptr: u16) -> Marker {
        Marker { fpduptr: fpduptr & field::FPDUPTR_MASK }
    }

    /// Returns FPDUPTR, a multiple of 4.
    pub const fn fpduptr(self) -> u16 {
        self.fpduptr
    }

    /// Parses the marker in these bytes. RESERVED is ignored, and the two lowest bits of FPDUPTR count as zeros
    /// (RFC 5044 §4.2).
    pub fn parse(bytes: &[u8; MARKER_LEN]) -> Marker {
        Marker::new(be::u16(bytes, field::FPDUPTR))
    }

    /// Returns the four bytes, with RESERVED zero.
    pub fn emit(self) -> [u8; MARKER_LEN] {
        let mut bytes = [0; MARKER_LEN];
        be::put(&mut bytes, field::FPDUPTR, &self.fpduptr.to_be_bytes());
        bytes
    }
}

fn check_len(seen: usize, needed: usize) -> Result<(), Truncated> {
    if seen < needed { Err(Truncated { needed, seen }) } else { Ok(()) }
}
