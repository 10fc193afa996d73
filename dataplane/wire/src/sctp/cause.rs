//! Error causes of ERROR and ABORT chunks (RFC 9260 §3.3.10). Parsing checks only lengths; the association checks the
//! content.

use super::parameter::{PARAMETER_HEADER_LEN, Tlv, emit_tlv};
use super::{BadParameter, Tsn, padded};

mod code {
    pub(super) const INVALID_STREAM: u16 = 1;
    pub(super) const MISSING_PARAMETER: u16 = 2;
    pub(super) const STALE_COOKIE: u16 = 3;
    pub(super) const OUT_OF_RESOURCE: u16 = 4;
    pub(super) const UNRESOLVABLE_ADDRESS: u16 = 5;
    pub(super) const UNRECOGNIZED_CHUNK: u16 = 6;
    pub(super) const INVALID_PARAMETER: u16 = 7;
    pub(super) const UNRECOGNIZED_PARAMETERS: u16 = 8;
    pub(super) const NO_USER_DATA: u16 = 9;
    pub(super) const COOKIE_WHILE_SHUTTING_DOWN: u16 = 10;
    pub(super) const RESTART_WITH_NEW_ADDRESSES: u16 = 11;
    pub(super) const USER_INITIATED_ABORT: u16 = 12;
    pub(super) const PROTOCOL_VIOLATION: u16 = 13;
}

/// An error cause of an ERROR or ABORT chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause<'a> {
    /// A DATA chunk has the identifier of a stream that does not exist. The cause contains this identifier.
    InvalidStream(u16),
    /// Mandatory parameters are missing. The cause contains their types, two bytes each.
    MissingParameters(&'a [u8]),
    /// The cookie expired this many microseconds ago; zero if not stated.
    StaleCookie(u32),
    /// The sender of the cause lacks resources.
    OutOfResource,
    /// An address cannot be resolved. Contains the address parameter with its type and length.
    UnresolvableAddress(&'a [u8]),
    /// A chunk has an unknown type. Contains the chunk with its header.
    UnrecognizedChunk(&'a [u8]),
    /// A mandatory parameter has an invalid value.
    InvalidMandatoryParameter,
    /// An INIT ACK has unknown parameters. Contains these parameters with their types and lengths.
    UnrecognizedParameters(&'a [u8]),
    /// The DATA chunk with this TSN has no user data.
    NoUserData(Tsn),
    /// A COOKIE ECHO arrived in state SHUTDOWN-ACK-SENT.
    CookieWhileShuttingDown,
    /// A restart adds addresses that are not part of the association. Contains their address parameters.
    RestartWithNewAddresses(&'a [u8]),
    /// The upper layer aborts the association. Contains its reason.
    UserInitiatedAbort(&'a [u8]),
    /// A protocol violation. Contains additional information.
    ProtocolViolation(&'a [u8]),
    /// Any other cause.
    Unknown {
        /// Cause code.
        code: u16,
        /// Bytes after the cause's code and length.
        info: &'a [u8],
    },
}

impl<'a> Cause<'a> {
    fn parse(tlv: Tlv<'a>) -> Option<Cause<'a>> {
        let info = tlv.value();
        let word = || info.first_chunk().map(|word| u32::from_be_bytes(*word));
        Some(match tlv.kind {
            code::INVALID_STREAM => Cause::InvalidStream((word()? >> 16) as u16),
            code::MISSING_PARAMETER => {
                let count = word()? as usize;
                Cause::MissingParameters(info.get(4..)?.get(..count.checked_mul(2)?)?)
            }
            code::STALE_COOKIE => Cause::StaleCookie(word()?),
            code::OUT_OF_RESOURCE => Cause::OutOfResource,
            code::UNRESOLVABLE_ADDRESS => Cause::UnresolvableAddress(info),
            code::UNRECOGNIZED_CHUNK => Cause::UnrecognizedChunk(info),
            code::INVALID_PARAMETER => Cause::InvalidMandatoryParameter,
            code::UNRECOGNIZED_PARAMETERS => Cause::UnrecognizedParameters(info),
            code::NO_USER_DATA => Cause::NoUserData(Tsn(word()?)),
            code::COOKIE_WHILE_SHUTTING_DOWN => Cause::CookieWhileShuttingDown,
            code::RESTART_WITH_NEW_ADDRESSES => Cause::RestartWithNewAddresses(info),
            code::USER_INITIATED_ABORT => Cause::UserInitiatedAbort(info),
            code::PROTOCOL_VIOLATION => Cause::ProtocolViolation(info),
            code => Cause::Unknown { code, info },
        })
    }

    /// Returns the cause code.
    pub const fn code(&self) -> u16 {
        match self {
            Cause::InvalidStream(_) => code::INVALID_STREAM,
            Cause::MissingParameters(_) => code::MISSING_PARAMETER,
            Cause::StaleCookie(_) => code::STALE_COOKIE,
            Cause::OutOfResource => code::OUT_OF_RESOURCE,
            Cause::UnresolvableAddress(_) => code::UNRESOLVABLE_ADDRESS,
            Cause::UnrecognizedChunk(_) => code::UNRECOGNIZED_CHUNK,
            Cause::InvalidMandatoryParameter => code::INVALID_PARAMETER,
            Cause::UnrecognizedParameters(_) => code::UNRECOGNIZED_PARAMETERS,
            Cause::NoUserData(_) => code::NO_USER_DATA,
            Cause::CookieWhileShuttingDown => code::COOKIE_WHILE_SHUTTING_DOWN,
            Cause::RestartWithNewAddresses(_) => code::RESTART_WITH_NEW_ADDRESSES,
            Cause::UserInitiatedAbort(_) => code::USER_INITIATED_ABORT,
            Cause::ProtocolViolation(_) => code::PROTOCOL_VIOLATION,
            Cause::Unknown { code, .. } => *code,
        }
    }

    /// Returns the cause's fixed four bytes, if any, and its variable part.
    fn parts(&self) -> (Option<[u8; 4]>, &'a [u8]) {
        match *self {
            Cause::InvalidStream(stream) => (Some((u32::from(stream) << 16).to_be_bytes()), &[]),
            Cause::MissingParameters(types) => {
                (Some((types.len() as u32 / 2).to_be_bytes()), types)
            }
            Cause::StaleCookie(micros) => (Some(micros.to_be_bytes()), &[]),
            Cause::NoUserData(tsn) => (Some(tsn.0.to_be_bytes()), &[]),
            Cause::OutOfResource
            | Cause::InvalidMandatoryParameter
            | Cause::CookieWhileShuttingDown => (None, &[]),
            Cause::UnresolvableAddress(info)
            | Cause::UnrecognizedChunk(info)
            | Cause::UnrecognizedParameters(info)
            | Cause::RestartWithNewAddresses(info)
            | Cause::UserInitiatedAbort(info)
            | Cause::ProtocolViolation(info)
            | Cause::Unknown { info, .. } => (None, info),
        }
    }

    /// Returns the cause with its variable part cut to at most `max_len` bytes, rounded down to a multiple of four. A
    /// quoted chunk or parameter keeps its type and length fields, so the peer can identify it and detect the
    /// truncation.
    #[must_use]
    pub fn truncate_info(self, max_len: usize) -> Cause<'a> {
        let cut = |info: &'a [u8]| &info[..info.len().min(max_len & !3)];
        match self {
            Cause::MissingParameters(types) => Cause::MissingParameters(cut(types)),
            Cause::UnresolvableAddress(info) => Cause::UnresolvableAddress(cut(info)),
            Cause::UnrecognizedChunk(info) => Cause::UnrecognizedChunk(cut(info)),
            Cause::UnrecognizedParameters(info) => Cause::UnrecognizedParameters(cut(info)),
            Cause::RestartWithNewAddresses(info) => Cause::RestartWithNewAddresses(cut(info)),
            Cause::UserInitiatedAbort(info) => Cause::UserInitiatedAbort(cut(info)),
            Cause::ProtocolViolation(info) => Cause::ProtocolViolation(cut(info)),
            Cause::Unknown { code, info } => Cause::Unknown { code, info: cut(info) },
            Cause::InvalidStream(_)
            | Cause::StaleCookie(_)
            | Cause::OutOfResource
            | Cause::InvalidMandatoryParameter
            | Cause::NoUserData(_)
            | Cause::CookieWhileShuttingDown => self,
        }
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes, pad included.
    pub fn padded_len(&self) -> usize {
        let (fixed, info) = self.parts();
        padded(PARAMETER_HEADER_LEN + fixed.map_or(0, |fixed| fixed.len()) + info.len())
    }

    /// Writes the cause with its pad at the front of `out`, which has at least [`padded_len`](Self::padded_len) bytes.
    /// Returns the number of bytes written.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (fixed, info) = self.parts();
        match fixed {
            Some(fixed) => emit_tlv(self.code(), &[&fixed, info], out),
            None => emit_tlv(self.code(), &[info], out),
        }
    }
}

/// The causes of a chunk, in the order of the chunk. Iteration ends after the first cause that cannot be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Causes<'a>(&'a [u8]);

impl<'a> Causes<'a> {
    /// Returns the causes in the value of an ERROR or ABORT chunk.
    pub const fn new(bytes: &'a [u8]) -> Causes<'a> {
        Causes(bytes)
    }
}

impl<'a> IntoIterator for Causes<'a> {
    type Item = Result<Cause<'a>, BadParameter>;
    type IntoIter = CausesIter<'a>;

    fn into_iter(self) -> CausesIter<'a> {
        CausesIter(self.0)
    }
}

/// Iterator over [`Causes`].
#[derive(Clone, Debug)]
pub struct CausesIter<'a>(&'a [u8]);

impl<'a> Iterator for CausesIter<'a> {
    type Item = Result<Cause<'a>, BadParameter>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let tlv = Tlv::parse_first(core::mem::take(&mut self.0));
        let cause = tlv.and_then(|tlv| Cause::parse(tlv).map(|cause| (cause, tlv.rest)));
        Some(match cause {
            Some((cause, rest)) => {
                self.0 = rest;
                Ok(cause)
            }
            None => Err(BadParameter),
        })
    }
}
