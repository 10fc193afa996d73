//! Parameters of INIT, INIT ACK and HEARTBEAT chunks (RFC 9260 §3.2.1), including the adaptation layer indication and
//! the supported extensions of RFC 5061 §4.2.6, §4.2.7. Parsing checks only lengths; the association checks the
//! content.

use super::padded;
use crate::be;

/// Parameter types, 16 bits (RFC 9260 §3.2.1).
pub mod parameter_type {
    /// Heartbeat Info, the content of a HEARTBEAT.
    pub const HEARTBEAT_INFO: u16 = 1;
    /// IPv4 address.
    pub const IPV4: u16 = 5;
    /// IPv6 address.
    pub const IPV6: u16 = 6;
    /// State cookie.
    pub const STATE_COOKIE: u16 = 7;
    /// Unrecognized parameter.
    pub const UNRECOGNIZED: u16 = 8;
    /// Cookie preservative.
    pub const COOKIE_PRESERVATIVE: u16 = 9;
    /// Host name address, deprecated.
    pub const HOST_NAME: u16 = 11;
    /// Supported address types.
    pub const SUPPORTED_ADDRESS_TYPES: u16 = 12;
    /// ECN Capable, reserved by RFC 9260.
    pub const ECN_CAPABLE: u16 = 0x8000;
    /// Supported extensions (RFC 5061 §4.2.7).
    pub const SUPPORTED_EXTENSIONS: u16 = 0x8008;
    /// Adaptation layer indication (RFC 5061 §4.2.6).
    pub const ADAPTATION: u16 = 0xc006;
}

/// Bytes of type and length, before the value of a parameter.
pub(super) const PARAMETER_HEADER_LEN: usize = 4;

mod field {
    pub(super) const TYPE: usize = 0;
    pub(super) const LENGTH: usize = 2;

    const _: () = assert!(LENGTH + 2 == super::PARAMETER_HEADER_LEN);
}

/// Type, length and value of a parameter or an error cause. Only the length is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tlv<'a> {
    pub(super) kind: u16,
    /// Type, length and value, without the pad.
    pub(super) bytes: &'a [u8],
    /// Bytes after the TLV and its pad.
    pub(super) rest: &'a [u8],
}

impl<'a> Tlv<'a> {
    /// Returns the first TLV of `bytes`; `None` if its length is less than 4 or more than `bytes` has.
    pub(super) fn parse_first(bytes: &'a [u8]) -> Option<Tlv<'a>> {
        if bytes.len() < PARAMETER_HEADER_LEN {
            return None;
        }
        let len = usize::from(be::u16(bytes, field::LENGTH));
        if len < PARAMETER_HEADER_LEN || len > bytes.len() {
            return None;
        }
        // A chunk's length may include or exclude the pad of the last parameter (RFC 9260 §3.2).
        let rest = bytes.get(padded(len)..).unwrap_or_default();
        Some(Tlv { kind: be::u16(bytes, field::TYPE), bytes: &bytes[..len], rest })
    }

    pub(super) fn value(&self) -> &'a [u8] {
        &self.bytes[PARAMETER_HEADER_LEN..]
    }
}

/// Writes type, length, the pieces of the value, and the pad at the front of `out`. Returns the number of bytes
/// written, pad included. The caller has checked that these bytes fit.
pub(super) fn emit_tlv(kind: u16, pieces: &[&[u8]], out: &mut [u8]) -> usize {
    let mut at = PARAMETER_HEADER_LEN;
    for piece in pieces {
        be::put(out, at, piece);
        at += piece.len();
    }
    be::put(out, field::TYPE, &kind.to_be_bytes());
    be::put(out, field::LENGTH, &(at as u16).to_be_bytes());
    out[at..padded(at)].fill(0);
    padded(at)
}

/// The length of a parameter or an error cause is impossible, or does not match its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the length of a parameter is wrong")]
pub struct BadParameter;

/// A parsed parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter<'a> {
    /// Heartbeat Info: bytes that only the sender of the HEARTBEAT interprets.
    HeartbeatInfo(&'a [u8]),
    /// An IPv4 address of the sender.
    Ipv4([u8; 4]),
    /// An IPv6 address of the sender.
    Ipv6([u8; 16]),
    /// State cookie: bytes that only the sender of the INIT ACK interprets.
    StateCookie(&'a [u8]),
    /// A parameter of the INIT, with its type and length, that the sender of the INIT ACK does not recognise.
    Unrecognized(&'a [u8]),
    /// Cookie preservative: milliseconds by which the lifetime of the cookie is to be extended.
    CookiePreservative(u32),
    /// A host name address, which is refused (RFC 9260 §3.3.2.1.4): the whole parameter with type and length, for the
    /// error cause.
    HostName(&'a [u8]),
    /// Address types that the sender supports, two bytes each.
    SupportedAddressTypes(&'a [u8]),
    /// ECN Capable, reserved by RFC 9260; has no value.
    EcnCapable,
    /// Chunk types beyond RFC 9260's that the sender supports, one byte each.
    SupportedExtensions(&'a [u8]),
    /// Adaptation layer indication: the code point of the adaptation, 1 for DDP (RFC 5043 §5.1).
    Adaptation(u32),
    /// A parameter of another type.
    Unknown {
        /// The whole parameter with type and length.
        bytes: &'a [u8],
        /// Bit 2^15 of the type. True: the following parameters are processed. False: the rest of the chunk is ignored.
        skip: bool,
        /// Bit 2^14 of the type: the parameter must be reported to its sender (RFC 9260 §3.2.1, table 3).
        report: bool,
    },
}

impl<'a> Parameter<'a> {
    fn parse(tlv: Tlv<'a>) -> Option<Parameter<'a>> {
        let value = tlv.value();
        Some(match tlv.kind {
            parameter_type::HEARTBEAT_INFO => Parameter::HeartbeatInfo(value),
            parameter_type::IPV4 => Parameter::Ipv4(value.try_into().ok()?),
            parameter_type::IPV6 => Parameter::Ipv6(value.try_into().ok()?),
            parameter_type::STATE_COOKIE => Parameter::StateCookie(value),
            parameter_type::UNRECOGNIZED => Parameter::Unrecognized(value),
            parameter_type::COOKIE_PRESERVATIVE => {
                Parameter::CookiePreservative(u32::from_be_bytes(value.try_into().ok()?))
            }
            parameter_type::HOST_NAME => Parameter::HostName(tlv.bytes),
            parameter_type::SUPPORTED_ADDRESS_TYPES => Parameter::SupportedAddressTypes(value),
            parameter_type::ECN_CAPABLE => Parameter::EcnCapable,
            parameter_type::SUPPORTED_EXTENSIONS => Parameter::SupportedExtensions(value),
            parameter_type::ADAPTATION => {
                Parameter::Adaptation(u32::from_be_bytes(value.try_into().ok()?))
            }
            // RFC 9260 §3.2.1, table 3.
            kind => Parameter::Unknown {
                bytes: tlv.bytes,
                skip: kind & 0x8000 != 0,
                report: kind & 0x4000 != 0,
            },
        })
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes, pad included.
    pub fn padded_len(&self) -> usize {
        padded(match self {
            Parameter::EcnCapable => PARAMETER_HEADER_LEN,
            Parameter::Ipv4(_) | Parameter::CookiePreservative(_) | Parameter::Adaptation(_) => {
                PARAMETER_HEADER_LEN + 4
            }
            Parameter::Ipv6(_) => PARAMETER_HEADER_LEN + 16,
            Parameter::HeartbeatInfo(value)
            | Parameter::StateCookie(value)
            | Parameter::Unrecognized(value)
            | Parameter::SupportedAddressTypes(value)
            | Parameter::SupportedExtensions(value) => PARAMETER_HEADER_LEN + value.len(),
            Parameter::HostName(bytes) | Parameter::Unknown { bytes, .. } => bytes.len(),
        })
    }

    /// Writes the parameter with its pad at the front of `out`, which has at least [`padded_len`](Self::padded_len)
    /// bytes. Returns the number of bytes written.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        use parameter_type as t;
        match self {
            Parameter::HeartbeatInfo(value) => emit_tlv(t::HEARTBEAT_INFO, &[value], out),
            Parameter::Ipv4(address) => emit_tlv(t::IPV4, &[address], out),
            Parameter::Ipv6(address) => emit_tlv(t::IPV6, &[address], out),
            Parameter::StateCookie(value) => emit_tlv(t::STATE_COOKIE, &[value], out),
            Parameter::Unrecognized(value) => emit_tlv(t::UNRECOGNIZED, &[value], out),
            Parameter::CookiePreservative(millis) => {
                emit_tlv(t::COOKIE_PRESERVATIVE, &[&millis.to_be_bytes()], out)
            }
            Parameter::SupportedAddressTypes(value) => {
                emit_tlv(t::SUPPORTED_ADDRESS_TYPES, &[value], out)
            }
            Parameter::EcnCapable => emit_tlv(t::ECN_CAPABLE, &[], out),
            Parameter::SupportedExtensions(value) => {
                emit_tlv(t::SUPPORTED_EXTENSIONS, &[value], out)
            }
            Parameter::Adaptation(indication) => {
                emit_tlv(t::ADAPTATION, &[&indication.to_be_bytes()], out)
            }
            Parameter::HostName(bytes) | Parameter::Unknown { bytes, .. } => {
                let len = padded(bytes.len());
                be::put(out, 0, bytes);
                out[bytes.len()..len].fill(0);
                len
            }
        }
    }
}

/// The parameters of a chunk, in the order of the chunk. Iteration ends after the first parameter that cannot be
/// parsed.
#[derive(Clone, Debug)]
pub struct Parameters<'a>(&'a [u8]);

impl<'a> Parameters<'a> {
    /// Returns an iterator over the parameters in `bytes`, which follow the fixed fields of a chunk.
    pub const fn new(bytes: &'a [u8]) -> Parameters<'a> {
        Parameters(bytes)
    }
}

impl<'a> Iterator for Parameters<'a> {
    type Item = Result<Parameter<'a>, BadParameter>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let tlv = Tlv::parse_first(core::mem::take(&mut self.0));
        let parameter =
            tlv.and_then(|tlv| Parameter::parse(tlv).map(|parameter| (parameter, tlv.rest)));
        Some(match parameter {
            Some((parameter, rest)) => {
                self.0 = rest;
                Ok(parameter)
            }
            None => Err(BadParameter),
        })
    }
}
