//! The advertisement of regions in the private data of a connection's set-up, for streams of bare DDP and of RDMAP.
//!
//! Bare DDP has no message to advertise STags (RFC 5041 §5.1.1 leaves it to the ULP). The end that has regions
//! advertises them once, at set-up. Numbers are big-endian, and fields follow each other without padding. The layout is
//! also in `docs/protocol.md`.
//!
//! ```text
//!  0       1       2       3       4       5       6       7
//! +-------+-------+-------+-------+-------+-------+-------+-------+
//! |  'D'     'D'     'P'     'A'  |version| flags |     count     |
//! +-------+-------+-------+-------+-------+-------+-------+-------+
//! then count times:
//! +-------+-------+-------+-------+-------+-------+-------+-------+
//! |             STag              | access|namelen|   reserved    |
//! +-------+-------+-------+-------+-------+-------+-------+-------+
//! |                            base TO                            |
//! +-------+-------+-------+-------+-------+-------+-------+-------+
//! |                        length (bytes)                         |
//! +-------+-------+-------+-------+-------+-------+-------+-------+
//! |  name: namelen bytes of [A-Za-z0-9._-]                        |
//! +---------------------------------------------------------------+
//! ```
//!
//! `flags` bit 0: the sender's stream is bare DDP; bit 1: the sender's stream is RDMAP. If neither or both are set, the
//! protocol is not stated. Other bits, and `reserved`, are sent as zero and ignored on receipt. `access` bit 0: the
//! receiver of the advertisement may write to the region; bit 1: the receiver may read; bit 2: the receiver may do
//! atomics. Bit 3: another stream uses the region exclusively; then bits 0 to 2 and the STag are zero. Other bits of
//! `access` are ignored. A receiver refuses versions other than 1.

use core::ops::Range;

use thiserror::Error;

use crate::ulp::UlpKind;

mod field {
    use super::Range;

    pub(super) const MAGIC: Range<usize> = 0..4;
    pub(super) const VERSION: usize = 4;
    pub(super) const FLAGS: usize = 5;
    pub(super) const DDP: u8 = 0x01;
    pub(super) const RDMAP: u8 = 0x02;
    pub(super) const COUNT: Range<usize> = 6..8;

    pub(super) const STAG: Range<usize> = 0..4;
    pub(super) const ACCESS: usize = 4;
    pub(super) const WRITE: u8 = 0x01;
    pub(super) const READ: u8 = 0x02;
    pub(super) const ATOMIC: u8 = 0x04;
    pub(super) const BUSY: u8 = 0x08;
    pub(super) const NAME_LEN: usize = 5;
    pub(super) const RESERVED: Range<usize> = 6..8;
    pub(super) const BASE_TO: Range<usize> = 8..16;
    pub(super) const LEN: Range<usize> = 16..24;

    const _: () = assert!(MAGIC.end == VERSION && FLAGS + 1 == COUNT.start);
    const _: () = assert!(STAG.end == ACCESS && RESERVED.end == BASE_TO.start);
}

/// Length of the header before the first region, bytes.
pub const HEADER_LEN: usize = field::COUNT.end;
/// Length of a region's entry without the name, bytes.
pub const ENTRY_LEN: usize = field::LEN.end;
/// Maximum length of a region's name, bytes.
pub const MAX_NAME: usize = 64;
/// Maximum length of an MPA frame's private data, bytes (RFC 5044 §7.1.1).
pub const MAX_PRIVATE_DATA: usize = wire::mpa::MAX_PRIVATE_DATA;

const MAGIC: [u8; 4] = *b"DDPA";
const VERSION: u8 = 1;

/// An advertised region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// The region's name, 1 to [`MAX_NAME`] bytes of `[A-Za-z0-9._-]`.
    pub name: String,
    /// The steering tag that names the region in tagged segments.
    pub stag: u32,
    /// Tagged offset of the region's first byte.
    pub base_to: u64,
    /// Length of the region, bytes.
    pub len: u64,
    /// True if the peer may write.
    pub remote_write: bool,
    /// True if the peer may read.
    pub remote_read: bool,
    /// True if the peer may do atomic operations.
    pub remote_atomic: bool,
    /// True if another stream uses the region exclusively: there are no rights, and the STag is 0.
    pub busy: bool,
}

/// Reasons why private data is not a valid advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AdvertError {
    /// The magic is missing: the private data has another format.
    #[error("the private data is not an advertisement of regions")]
    NotAnAdvertisement,
    /// The version is not 1.
    #[error("the advertisement has version {0}, this program supports version 1")]
    Version(u8),
    /// The data ends within the header or an entry.
    #[error("the advertisement is cut off")]
    Truncated,
    /// A name is not accepted by [`is_name`].
    #[error("the advertisement has a region whose name is not 1 to 64 of A-Z a-z 0-9 . _ -")]
    Name,
}

/// Returns true for a name that configuration, API and advertisement accept: 1 to [`MAX_NAME`]
/// characters of `[A-Za-z0-9._-]`, not beginning with a dot or a dash.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Returns the length of an advertisement of regions with these names, bytes.
pub fn encoded_len<'a>(names: impl IntoIterator<Item = &'a str>) -> usize {
    names.into_iter().fold(HEADER_LEN, |sum, name| sum + ENTRY_LEN + name.len())
}

/// Returns the advertisement of `regions`, in this order. The caller has checked with [`encoded_len`] that the
/// advertisement fits into the private data. Regions after the first 65535 are omitted.
pub fn encode(regions: &[Advertised]) -> Vec<u8> {
    let count = u16::try_from(regions.len()).unwrap_or(u16::MAX);
    let mut out = Vec::with_capacity(encoded_len(regions.iter().map(|r| r.name.as_str())));
    let mut header = [0; HEADER_LEN];
    header[field::MAGIC].copy_from_slice(&MAGIC);
    header[field::VERSION] = VERSION;
    header[field::FLAGS] = 0;
    header[field::COUNT].copy_from_slice(&count.to_be_bytes());
    out.extend_from_slice(&header);
    for region in &regions[..usize::from(count)] {
        encode_entry(region, &mut out);
    }
    out
}

/// Returns an advertisement as [`encode`] does, with the protocol of the sender's stream. A peer that uses the other
/// protocol can then report the mismatch.
pub fn encode_for(ulp: UlpKind, regions: &[Advertised]) -> Vec<u8> {
    let mut out = encode(regions);
    out[field::FLAGS] = match ulp {
        UlpKind::Ddp => field::DDP,
        UlpKind::Rdmap => field::RDMAP,
    };
    out
}

/// Returns the protocol of the sender's stream, if the private data is an advertisement that states it.
pub fn ulp(private_data: &[u8]) -> Option<UlpKind> {
    let header = private_data.first_chunk::<HEADER_LEN>()?;
    if header[field::MAGIC] != MAGIC || header[field::VERSION] != VERSION {
        return None;
    }
    match header[field::FLAGS] & (field::DDP | field::RDMAP) {
        field::DDP => Some(UlpKind::Ddp),
        field::RDMAP => Some(UlpKind::Rdmap),
        _ => None,
    }
}

fn encode_entry(region: &Advertised, out: &mut Vec<u8>) {
    let name = &region.name.as_bytes()[..region.name.len().min(MAX_NAME)];
    let mut fixed = [0; ENTRY_LEN];
    fixed[field::STAG].copy_from_slice(&region.stag.to_be_bytes());
    fixed[field::ACCESS] = if region.remote_write { field::WRITE } else { 0 }
        | if region.remote_read { field::READ } else { 0 }
        | if region.remote_atomic { field::ATOMIC } else { 0 }
        | if region.busy { field::BUSY } else { 0 };
    fixed[field::NAME_LEN] = name.len() as u8;
    fixed[field::RESERVED].fill(0);
    fixed[field::BASE_TO].copy_from_slice(&region.base_to.to_be_bytes());
    fixed[field::LEN].copy_from_slice(&region.len.to_be_bytes());
    out.extend_from_slice(&fixed);
    out.extend_from_slice(name);
}

/// Parses an advertisement. Bytes after the last region are ignored, so that later versions of the appliance can append
/// bytes.
///
/// # Errors
/// The data is not a valid advertisement of version 1.
pub fn decode(private_data: &[u8]) -> Result<Vec<Advertised>, AdvertError> {
    if !private_data.starts_with(&MAGIC) {
        return Err(AdvertError::NotAnAdvertisement);
    }
    let (header, mut rest) =
        private_data.split_first_chunk::<HEADER_LEN>().ok_or(AdvertError::Truncated)?;
    if header[field::VERSION] != VERSION {
        return Err(AdvertError::Version(header[field::VERSION]));
    }
    let mut regions = Vec::new();
    for _ in 0..number(&header[field::COUNT]) {
        let (fixed, tail) = rest.split_first_chunk::<ENTRY_LEN>().ok_or(AdvertError::Truncated)?;
        let (region, tail) = decode_entry(fixed, tail)?;
        regions.push(region);
        rest = tail;
    }
    Ok(regions)
}

fn decode_entry<'a>(
    fixed: &[u8; ENTRY_LEN],
    tail: &'a [u8],
) -> Result<(Advertised, &'a [u8]), AdvertError> {
    let name_len = usize::from(fixed[field::NAME_LEN]);
    let (name, tail) = tail.split_at_checked(name_len).ok_or(AdvertError::Truncated)?;
    let name = std::str::from_utf8(name).map_err(|_| AdvertError::Name)?;
    if !is_name(name) {
        return Err(AdvertError::Name);
    }
    let access = fixed[field::ACCESS];
    let region = Advertised {
        name: name.to_owned(),
        stag: number(&fixed[field::STAG]) as u32,
        base_to: number(&fixed[field::BASE_TO]),
        len: number(&fixed[field::LEN]),
        remote_write: access & field::WRITE != 0,
        remote_read: access & field::READ != 0,
        remote_atomic: access & field::ATOMIC != 0,
        busy: access & field::BUSY != 0,
    };
    Ok((region, tail))
}

/// Returns the number that `bytes`, at most 8, encode in big-endian order.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region() -> impl Strategy<Value = Advertised> {
        ("[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", any::<u32>(), any::<[u64; 2]>(), any::<[bool; 4]>())
            .prop_map(
                |(name, stag, [base_to, len], [remote_write, remote_read, remote_atomic, busy])| {
                    Advertised {
                        name,
                        stag,
                        base_to,
                        len,
                        remote_write,
                        remote_read,
                        remote_atomic,
                        busy,
                    }
                },
            )
    }

    #[test]
    fn advertisement_layout_matches_document() {
        let region = Advertised {
            name: "in".into(),
            stag: 0x0102_0304,
            base_to: 0x1122_3344_5566_7788,
            len: 4096,
            remote_write: true,
            remote_read: false,
            remote_atomic: false,
            busy: false,
        };
        // The same bytes as the example in docs/protocol.md.
        let expected = [
            &b"DDPA\x01\x00\x00\x01"[..],
            &[1, 2, 3, 4, 1, 2, 0, 0],
            &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
            &[0, 0, 0, 0, 0, 0, 0x10, 0],
            b"in",
        ]
        .concat();
        assert_eq!(encode(&[region]), expected);
    }

    // A client that ignores bit 3 finds the region without rights.
    #[test]
    fn busy_region_is_encoded_without_access_rights() {
        let mut region = decode(
            b"DDPA\x01\0\0\x01\x01\x02\x03\x04\x01\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0in",
        )
        .unwrap();
        region[0] = Advertised { stag: 0, remote_write: false, busy: true, ..region[0].clone() };
        let bytes = encode(&region);
        assert_eq!(bytes[HEADER_LEN + field::ACCESS], 0x08);
        assert_eq!(decode(&bytes).unwrap(), region);
    }

    #[test]
    fn advertisement_carries_the_senders_protocol() {
        for kind in [UlpKind::Ddp, UlpKind::Rdmap] {
            let bytes = encode_for(kind, &[]);
            assert_eq!((ulp(&bytes), decode(&bytes)), (Some(kind), Ok(Vec::new())));
        }
        for unknown in [
            &b""[..],
            b"DDPA\x01\x01\0",
            b"DDPA\x01\0\0\0",
            b"DDPA\x01\x03\0\0",
            b"DDPA\x02\x01\0\0",
            b"XXPA\x01\x01\0\0",
        ] {
            assert_eq!(ulp(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn malformed_advertisements_are_refused() {
        assert_eq!(decode(b""), Err(AdvertError::NotAnAdvertisement));
        assert_eq!(decode(b"XXPA\x01\0\0\0"), Err(AdvertError::NotAnAdvertisement));
        assert_eq!(decode(b"DDPA\x02\0\0\0"), Err(AdvertError::Version(2)));
        assert_eq!(decode(b"DDPA\x01\0\0\x01"), Err(AdvertError::Truncated));
        let mut evil = encode(&[Advertised {
            name: "a".into(),
            stag: 1,
            base_to: 0,
            len: 1,
            remote_write: true,
            remote_read: true,
            remote_atomic: true,
            busy: false,
        }]);
        *evil.last_mut().unwrap() = b'/';
        assert_eq!(decode(&evil), Err(AdvertError::Name));
    }

    proptest! {
        #[test]
        fn advertisements_round_trip(regions in prop::collection::vec(region(), 0..8), trailing: Vec<u8>) {
            let mut bytes = encode(&regions);
            prop_assert_eq!(bytes.len(), encoded_len(regions.iter().map(|r| r.name.as_str())));
            bytes.extend_from_slice(&trailing);
            prop_assert_eq!(decode(&bytes), Ok(regions));
        }

        #[test]
        fn arbitrary_private_data_never_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
            let _ = decode(&[&b"DDPA\x01\x00"[..], &bytes].concat());
        }
    }
}
