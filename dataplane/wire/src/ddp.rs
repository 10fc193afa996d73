//! DDP headers (RFC 5041 §4): the control byte, the tagged and the untagged header, and the numbers in them. Payload is
//! not examined.
//!
//! ```text
//!  tagged (14 bytes)                        untagged (18 bytes)
//!   0  |T|L| Rsvd  |DV |  RsvdULP  |         0  |T|L| Rsvd  |DV |  RsvdULP[0:7]  |
//!   2  |          STag             |         2  |        RsvdULP[8:39]           |
//!   6  |          TO  (64 bits)    |         6  |             QN                 |
//!                                           10  |             MSN                |
//!                                           14  |             MO                 |
//! ```

use core::fmt;

use arrayvec::ArrayVec;

use crate::crc32c::Digest;
use crate::{Truncated, be};

#[cfg(test)]
mod tests;

/// Steering Tag: identifies a tagged buffer of the data sink (RFC 5041 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stag(pub u32);

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Queue Number: identifies a queue of untagged buffers of the data sink (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qn(pub u32);

impl fmt::Display for Qn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Message Sequence Number: counts the messages of one queue from 1 and wraps from 2^32 - 1 to 0
/// (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Msn(pub u32);

impl Msn {
    /// First MSN of every queue: "the initial value for MSN MUST be one" (RFC 5041 §4.3).
    pub const FIRST: Msn = Msn(1);

    /// Returns the next MSN; 0 follows 0xFFFF_FFFF (RFC 5041 §4.3).
    #[must_use]
    pub const fn next(self) -> Msn {
        Msn(self.0.wrapping_add(1))
    }

    /// Returns the number of messages from `earlier` to `self`, modulo 2^32.
    pub const fn distance_from(self, earlier: Msn) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns true if `self` precedes `other` by less than 2^31.
    pub const fn before(self, other: Msn) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns true if `self` follows `other` by less than 2^31.
    pub const fn after(self, other: Msn) -> bool {
        other.before(self)
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Offset in bytes from the start of an untagged message (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MessageOffset(pub u32);

/// Offset in bytes within a tagged buffer. The first byte's offset need not be 0 (RFC 5041 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TaggedOffset(pub u64);

impl fmt::Display for TaggedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The DDP version of a stream (field DV, RFC 5041 §4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DdpVersion {
    /// Version 0 of the RDMA Consortium, with the same headers. Used with MPA revision 0 (RFC 5044 appendix C).
    V0,
    /// Version 1 (RFC 5041).
    V1,
}

impl DdpVersion {
    /// Returns the version of a DV field, or `None` for 2 and 3, which are not defined.
    pub const fn from_bits(dv: u8) -> Option<DdpVersion> {
        match dv {
            0 => Some(DdpVersion::V0),
            1 => Some(DdpVersion::V1),
            _ => None,
        }
    }

    /// Returns the value of the DV field.
    pub const fn bits(self) -> u8 {
        match self {
            DdpVersion::V0 => 0,
            DdpVersion::V1 => 1,
        }
    }
}

/// Bytes of a tagged header.
pub const TAGGED_HEADER_LEN: usize = field::TO + 8;
/// Bytes of an untagged header, the longest header.
pub const UNTAGGED_HEADER_LEN: usize = field::MO + 4;

mod field {
    pub(super) const CONTROL: usize = 0;
    pub(super) const TAGGED: u8 = 0x80;
    pub(super) const LAST: u8 = 0x40;
    pub(super) const RSVD: u8 = 0x3c;
    pub(super) const RSVD_SHIFT: u32 = 2;
    pub(super) const DV: u8 = 0x03;

    pub(super) const RSVD_ULP: usize = 1;
    // Tagged header.
    pub(super) const STAG: usize = 2;
    pub(super) const TO: usize = 6;
    // Untagged header.
    pub(super) const UNTAGGED_RSVD_ULP_LEN: usize = 5;
    pub(super) const QN: usize = 6;
    pub(super) const MSN: usize = 10;
    pub(super) const MO: usize = 14;

    // The numbers of a `PackedHeader`, with their lengths in bytes. Each number is big-endian on
    // the wire.
    //
    //  header   | head, 6                         | middle, 8 | tail, 4
    //  tagged   | control, RsvdULP (1), STag      | TO        | -
    //  untagged | control, RsvdULP (5)            | QN, MSN   | MO
    pub(super) const HEAD_LEN: usize = 6;
    pub(super) const MIDDLE_LEN: usize = 8;
    pub(super) const TAIL_LEN: usize = 4;

    /// Returns the left shift, in bits, of header byte `at` (0 to 5) in the number `head`.
    pub(super) const fn head_shift(at: usize) -> usize {
        8 * (HEAD_LEN - 1 - at)
    }

    const _: () = assert!(CONTROL == 0 && RSVD_ULP == 1);
    const _: () = assert!(STAG == 2 && STAG + 4 == HEAD_LEN);
    const _: () = assert!(TO == HEAD_LEN && TO + 8 == HEAD_LEN + MIDDLE_LEN);
    const _: () = assert!(QN == HEAD_LEN && MSN == QN + 4 && MSN + 4 == HEAD_LEN + MIDDLE_LEN);
    const _: () = assert!(MO == HEAD_LEN + MIDDLE_LEN);
    const _: () = assert!(super::TAGGED_HEADER_LEN == HEAD_LEN + MIDDLE_LEN);
    const _: () = assert!(super::UNTAGGED_HEADER_LEN == HEAD_LEN + MIDDLE_LEN + TAIL_LEN);

    const _: () = assert!(TAGGED ^ LAST ^ RSVD ^ DV == 0xff);
    const _: () = assert!(RSVD_ULP + UNTAGGED_RSVD_ULP_LEN == QN);
    const _: () = assert!(super::TAGGED_HEADER_LEN == 14);
    const _: () = assert!(super::UNTAGGED_HEADER_LEN == 18);
}

/// The DDP control byte (RFC 5041 §4.1), as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control(pub u8);

impl Control {
    /// Returns the control byte of a tagged segment with reserved bits zero (RFC 5041 §4.1).
    #[inline]
    pub const fn tagged(last: bool, version: DdpVersion) -> Control {
        Control(field::TAGGED | Control::untagged(last, version).0)
    }

    /// Returns the control byte of an untagged segment with reserved bits zero (RFC 5041 §4.1).
    #[inline]
    pub const fn untagged(last: bool, version: DdpVersion) -> Control {
        let l = if last { field::LAST } else { 0 };
        Control(l | version.bits())
    }

    /// Returns T: true if the payload is for a tagged buffer.
    pub const fn is_tagged(self) -> bool {
        self.0 & field::TAGGED != 0
    }

    /// Returns L: true for the last segment of a message.
    pub const fn is_last(self) -> bool {
        self.0 & field::LAST != 0
    }

    /// Returns Rsvd, 4 reserved bits that are ignored on receipt.
    pub const fn reserved(self) -> u8 {
        (self.0 & field::RSVD) >> field::RSVD_SHIFT
    }

    /// Returns DV, the DDP version, 2 bits; [`DdpVersion::from_bits`] checks the value.
    pub const fn version_bits(self) -> u8 {
        self.0 & field::DV
    }

    /// Returns the length of the header that begins with this byte, bytes.
    pub const fn header_len(self) -> usize {
        if self.is_tagged() { TAGGED_HEADER_LEN } else { UNTAGGED_HEADER_LEN }
    }
}

/// View of a tagged header at the start of the bytes (RFC 5041 §4.2). The T bit is not checked.
#[derive(Clone, Copy, Debug)]
pub struct TaggedHeader<T>(T);

impl<T: AsRef<[u8]>> TaggedHeader<T> {
    /// Returns a view of `bytes`; fails if they are fewer than [`TAGGED_HEADER_LEN`].
    pub fn new(bytes: T) -> Result<Self, Truncated> {
        check_len(bytes.as_ref().len(), TAGGED_HEADER_LEN).map(|()| TaggedHeader(bytes))
    }

    /// Returns the control byte.
    pub fn control(&self) -> Control {
        Control(self.0.as_ref()[field::CONTROL])
    }

    /// Returns RsvdULP, 8 bits for the upper layer: RDMAP's control byte.
    pub fn rsvd_ulp(&self) -> u8 {
        self.0.as_ref()[field::RSVD_ULP]
    }

    /// Returns STag, the Steering Tag of the data sink's buffer.
    pub fn stag(&self) -> Stag {
        Stag(be::u32(self.0.as_ref(), field::STAG))
    }

    /// Returns TO, the offset of the first payload byte in the buffer.
    pub fn to(&self) -> TaggedOffset {
        TaggedOffset(be::u64(self.0.as_ref(), field::TO))
    }
}

/// View of an untagged header at the start of the bytes (RFC 5041 §4.3). The T bit is not checked.
#[derive(Clone, Copy, Debug)]
pub struct UntaggedHeader<T>(T);

impl<T: AsRef<[u8]>> UntaggedHeader<T> {
    /// Returns a view of `bytes`; fails if they are fewer than [`UNTAGGED_HEADER_LEN`].
    pub fn new(bytes: T) -> Result<Self, Truncated> {
        check_len(bytes.as_ref().len(), UNTAGGED_HEADER_LEN).map(|()| UntaggedHeader(bytes))
    }

    /// Returns the control byte.
    pub fn control(&self) -> Control {
        Control(self.0.as_ref()[field::CONTROL])
    }

    /// Returns RsvdULP, 40 bits for the upper layer: RDMAP's control byte and the Invalidate STag.
    pub fn rsvd_ulp(&self) -> [u8; 5] {
        be::array(self.0.as_ref(), field::RSVD_ULP)
    }

    /// Returns QN, the queue number.
    pub fn qn(&self) -> Qn {
        Qn(be::u32(self.0.as_ref(), field::QN))
    }

    /// Returns MSN, the message sequence number in the queue.
    pub fn msn(&self) -> Msn {
        Msn(be::u32(self.0.as_ref(), field::MSN))
    }

    /// Returns MO, the offset of the first payload byte in the message.
    pub fn mo(&self) -> MessageOffset {
        MessageOffset(be::u32(self.0.as_ref(), field::MO))
    }
}

/// Values of a tagged header (RFC 5041 §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaggedRepr {
    /// L: true for the last segment of a message.
    pub last: bool,
    /// DV: the DDP version, 0 or 1.
    pub version: DdpVersion,
    /// RsvdULP: RDMAP's control byte.
    pub rsvd_ulp: u8,
    /// STag of the data sink's buffer.
    pub stag: Stag,
    /// TO of the first payload byte.
    pub to: TaggedOffset,
}

impl TaggedRepr {
    /// Parses the header at the start of `bytes`. Fails if T is zero, DV is undefined, or bytes are missing.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<TaggedRepr, HeaderError> {
        let view = TaggedHeader::new(bytes)?;
        Ok(TaggedRepr {
            last: view.control().is_last(),
            version: check_version(view.control(), true)?,
            rsvd_ulp: view.rsvd_ulp(),
            stag: view.stag(),
            to: view.to(),
        })
    }

    /// Returns the header in wire format, with zero reserved bits (RFC 5041 §4.1).
    #[inline]
    pub fn pack(&self) -> PackedHeader {
        let control = Control::tagged(self.last, self.version);
        let head = u64::from(control.0) << field::head_shift(field::CONTROL)
            | u64::from(self.rsvd_ulp) << field::head_shift(field::RSVD_ULP)
            | u64::from(self.stag.0);
        PackedHeader { head, middle: self.to.0, tail: 0, len: TAGGED_HEADER_LEN as u8 }
    }

    /// Writes the header in wire format, with zero reserved bits.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; TAGGED_HEADER_LEN]) {
        self.pack().write(bytes);
    }
}

/// Values of an untagged header (RFC 5041 §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedRepr {
    /// L: true for the last segment of a message.
    pub last: bool,
    /// DV: the DDP version, 0 or 1.
    pub version: DdpVersion,
    /// RsvdULP: RDMAP's control byte and the Invalidate STag.
    pub rsvd_ulp: [u8; 5],
    /// QN: the queue number.
    pub qn: Qn,
    /// MSN: the message sequence number in the queue.
    pub msn: Msn,
    /// MO of the first payload byte.
    pub mo: MessageOffset,
}

impl UntaggedRepr {
    /// Parses the header at the start of `bytes`. Fails if T is one, DV is undefined, or bytes are missing.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<UntaggedRepr, HeaderError> {
        let view = UntaggedHeader::new(bytes)?;
        Ok(UntaggedRepr {
            last: view.control().is_last(),
            version: check_version(view.control(), false)?,
            rsvd_ulp: view.rsvd_ulp(),
            qn: view.qn(),
            msn: view.msn(),
            mo: view.mo(),
        })
    }

    /// Returns the header in wire format, with zero reserved bits (RFC 5041 §4.1).
    #[inline]
    pub fn pack(&self) -> PackedHeader {
        let control = Control::untagged(self.last, self.version);
        let [a, b, c, d, e] = self.rsvd_ulp;
        let head = u64::from_be_bytes([0, 0, control.0, a, b, c, d, e]);
        let middle = u64::from(self.qn.0) << 32 | u64::from(self.msn.0);
        PackedHeader { head, middle, tail: self.mo.0, len: UNTAGGED_HEADER_LEN as u8 }
    }

    /// Writes the header in wire format, with zero reserved bits.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; UNTAGGED_HEADER_LEN]) {
        self.pack().write(bytes);
    }
}

/// Values of a tagged or an untagged header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderRepr {
    /// T is one: the payload is for a tagged buffer.
    Tagged(TaggedRepr),
    /// T is zero: the payload is for a queue of untagged buffers.
    Untagged(UntaggedRepr),
}

impl HeaderRepr {
    /// Parses the header at the start of a DDP segment. The T bit selects the tagged or the untagged header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<HeaderRepr, HeaderError> {
        let first = *bytes.first().ok_or(Truncated { needed: TAGGED_HEADER_LEN, seen: 0 })?;
        if Control(first).is_tagged() {
            TaggedRepr::parse(bytes).map(HeaderRepr::Tagged)
        } else {
            UntaggedRepr::parse(bytes).map(HeaderRepr::Untagged)
        }
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn pack(&self) -> PackedHeader {
        match self {
            HeaderRepr::Tagged(h) => h.pack(),
            HeaderRepr::Untagged(h) => h.pack(),
        }
    }

    /// Returns the length of the header, bytes.
    pub const fn len(&self) -> usize {
        match self {
            HeaderRepr::Tagged(_) => TAGGED_HEADER_LEN,
            HeaderRepr::Untagged(_) => UNTAGGED_HEADER_LEN,
        }
    }

    /// Returns false, since a header always has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Returns the DDP version (field DV).
    pub const fn version(&self) -> DdpVersion {
        match self {
            HeaderRepr::Tagged(h) => h.version,
            HeaderRepr::Untagged(h) => h.version,
        }
    }
}

/// A header in wire format, stored as integers in the layout shown in the module `field`. The default is no header. A
/// byte array would be slower: a word load from bytes that were just stored individually waits until these stores, and
/// all earlier stores, have reached the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackedHeader {
    /// The first [`field::HEAD_LEN`] bytes.
    head: u64,
    /// The next [`field::MIDDLE_LEN`] bytes.
    middle: u64,
    /// The last [`field::TAIL_LEN`] bytes of an untagged header; 0 for a tagged header.
    tail: u32,
    len: u8,
}

impl PackedHeader {
    /// Returns the length of the header, bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there is no header.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the control byte.
    pub const fn control(&self) -> Control {
        Control((self.head >> field::head_shift(field::CONTROL)) as u8)
    }

    /// Returns the byte after the control byte: RsvdULP of a tagged header, or the first byte of RsvdULP of an untagged
    /// header.
    pub const fn rsvd_ulp(&self) -> u8 {
        (self.head >> field::head_shift(field::RSVD_ULP)) as u8
    }

    /// Writes the header into `out`, which has exactly its length.
    #[inline]
    pub fn write(&self, out: &mut [u8]) {
        debug_assert_eq!(out.len(), self.len());
        let Some((head, rest)) = out.split_first_chunk_mut::<{ field::HEAD_LEN }>() else { return };
        head.copy_from_slice(&self.head.to_be_bytes()[8 - field::HEAD_LEN..]);
        let Some((middle, tail)) = rest.split_first_chunk_mut::<{ field::MIDDLE_LEN }>() else {
            return;
        };
        *middle = self.middle.to_be_bytes();
        if let Some(tail) = tail.first_chunk_mut::<{ field::TAIL_LEN }>() {
            *tail = self.tail.to_be_bytes();
        }
    }

    /// Adds the start of an FPDU to `digest`: the ULPDU_Length `number`, then the header.
    #[inline]
    pub fn digest_after_length(&self, number: u16, digest: &mut Digest) {
        const _: () = assert!(2 + field::HEAD_LEN == size_of::<u64>());
        if self.is_empty() {
            return digest.add(&number.to_be_bytes());
        }
        digest.add_numbers([u64::from(number) << 48 | self.head, self.middle]);
        if self.len() > TAGGED_HEADER_LEN {
            digest.add(&self.tail.to_be_bytes());
        }
    }

    /// Returns the header's bytes.
    pub fn bytes(&self) -> ArrayVec<u8, UNTAGGED_HEADER_LEN> {
        let mut bytes = ArrayVec::from([0; UNTAGGED_HEADER_LEN]);
        bytes.truncate(self.len());
        self.write(&mut bytes);
        bytes
    }
}

/// Reasons to reject bytes as a DDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    /// The segment is shorter than its header.
    #[error("DDP header: {0}")]
    Truncated(#[from] Truncated),
    /// The T bit does not match the expected kind of header.
    #[error("DDP header: T bit is of the other buffer model")]
    WrongModel,
    /// DV is an undefined version.
    #[error("DDP header: version {0} is unknown")]
    Version(u8),
}

fn check_version(control: Control, tagged: bool) -> Result<DdpVersion, HeaderError> {
    if control.is_tagged() != tagged {
        return Err(HeaderError::WrongModel);
    }
    let dv = control.version_bits();
    DdpVersion::from_bits(dv).ok_or(HeaderError::Version(dv))
}

fn check_len(seen: usize, needed: usize) -> Result<(), Truncated> {
    if seen < needed { Err(Truncated { needed, seen }) } else { Ok(()) }
}
