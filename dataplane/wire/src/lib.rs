//! Header views and values of MPA, DDP, RDMAP and SCTP, their common newtypes, and CRC32c.
//!
//! A *view* (`TaggedHeader<T: AsRef<[u8]>>`) checks only the length and reads or writes single fields. A
//! *value* (`TaggedRepr`) holds only legal fields. Offsets, masks and shifts of a field are side by side in one
//! `field` module per header.
//!
//! Ethernet, ARP, IP, ICMP and TCP headers are in smoltcp's `wire`.
#![forbid(unsafe_code)]

pub mod crc32c;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod sctp;

pub use ddp::{DdpVersion, MessageOffset, Msn, Qn, Stag, TaggedOffset};

/// Fewer bytes than the header requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{seen} bytes where the header needs {needed}")]
pub struct Truncated {
    /// Bytes that the header requires.
    pub needed: usize,
    /// Bytes available.
    pub seen: usize,
}

/// Big-endian field access; the callers have checked the length of the whole header.
pub(crate) mod be {
    pub(crate) fn u16(bytes: &[u8], at: usize) -> u16 {
        u16::from_be_bytes(array(bytes, at))
    }

    pub(crate) fn u32(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(array(bytes, at))
    }

    pub(crate) fn u64(bytes: &[u8], at: usize) -> u64 {
        u64::from_be_bytes(array(bytes, at))
    }

    pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&bytes[at..at + N]);
        out
    }

    pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }
}
