//! Numbers of the specifications: RDMAP opcodes, errors of a Terminate, and access rights.

/// Layer, type and code of an error (RFC 5040 §4.8).
pub(super) type TerminateError = (u8, u8, u8);

/// RDMAP opcodes (RFC 5040 §4.1, RFC 7306 §4.1).
pub(super) mod opcode {
    pub(crate) const WRITE: u8 = 0;
    pub(crate) const READ_REQUEST: u8 = 1;
    pub(crate) const READ_RESPONSE: u8 = 2;
    pub(crate) const SEND: u8 = 3;
    pub(crate) const SEND_INVALIDATE: u8 = 4;
    pub(crate) const SEND_SE: u8 = 5;
    pub(crate) const SEND_SE_INVALIDATE: u8 = 6;
    pub(crate) const TERMINATE: u8 = 7;
    pub(crate) const IMMEDIATE: u8 = 8;
    pub(crate) const IMMEDIATE_SE: u8 = 9;
    pub(crate) const ATOMIC_REQUEST: u8 = 10;
}

/// Errors of tagged segments (RFC 5041 §7.2).
pub(super) mod tagged {
    use super::TerminateError;

    pub(crate) const INVALID_STAG: TerminateError = (1, 1, 0);
    pub(crate) const BOUNDS: TerminateError = (1, 1, 1);
    pub(crate) const TO_WRAP: TerminateError = (1, 1, 3);
    pub(crate) const INVALID_VERSION: TerminateError = (1, 1, 4);
}

/// Errors of untagged segments (RFC 5041 §7.2).
pub(super) mod untagged {
    use super::TerminateError;

    pub(crate) const INVALID_QN: TerminateError = (1, 2, 1);
    pub(crate) const NO_BUFFER: TerminateError = (1, 2, 2);
    pub(crate) const INVALID_MSN: TerminateError = (1, 2, 3);
    pub(crate) const INVALID_MO: TerminateError = (1, 2, 4);
    pub(crate) const TOO_LONG: TerminateError = (1, 2, 5);
    pub(crate) const INVALID_VERSION: TerminateError = (1, 2, 6);
}

/// Errors of RDMAP (RFC 5040 §4.8): remote protection (type 1) and remote operation (type 2).
pub(super) mod rdmap {
    use super::TerminateError;

    pub(crate) const INVALID_STAG: TerminateError = (0, 1, 0);
    pub(crate) const BOUNDS: TerminateError = (0, 1, 1);
    pub(crate) const ACCESS: TerminateError = (0, 1, 2);
    pub(crate) const TO_WRAP: TerminateError = (0, 1, 4);
    pub(crate) const INVALID_VERSION: TerminateError = (0, 2, 5);
    pub(crate) const UNEXPECTED_OPCODE: TerminateError = (0, 2, 6);
    /// Catastrophic error, localized to the stream.
    pub(crate) const CATASTROPHIC: TerminateError = (0, 2, 7);
}

/// Errors of MPA (RFC 5044 §8, RFC 6581 §8) and of the SCTP adaptation of DDP (RFC 5043).
pub(super) mod llp {
    use super::TerminateError;

    pub(crate) const CLOSED: TerminateError = (2, 0, 1);
    pub(crate) const CRC: TerminateError = (2, 0, 2);
    pub(crate) const MARKER: TerminateError = (2, 0, 3);
    pub(crate) const CATASTROPHIC: TerminateError = (2, 0, 5);
    pub(crate) const INSUFFICIENT_IRD: TerminateError = (2, 0, 6);
    pub(crate) const NO_MATCHING_RTR: TerminateError = (2, 0, 7);
}

/// Access rights of a region, as bits.
pub(super) mod access {
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const READ: u8 = 2;
    pub(crate) const ATOMIC: u8 = 4;
}
