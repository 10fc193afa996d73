//! Errors of MPA (RFC 5044 §8, RFC 6581 §8). Each error has exactly one error code. Not included: the messages that
//! report the errors, which the endpoint sends.

use super::foreign::ForeignProtocol;
use ddp::enhanced::NegotiationError;
use ddp::llp::OrderKey;
use thiserror::Error;

/// An error that MPA found in Full Operation (RFC 5044 §8), including the end of the TCP connection inside an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{fault} (FPDU at stream offset {})", .at.0)]
pub struct MpaError {
    /// Stream offset of the faulty FPDU's first byte.
    pub at: OrderKey,
    /// The fault of that FPDU.
    pub fault: Fault,
}

impl MpaError {
    /// Layer of the error in a Terminate: LLP (RFC 5040 §4.8).
    pub const LAYER: u8 = 2;
    /// Type of the error in a Terminate: MPA.
    pub const ETYPE: u8 = 0;

    /// Returns the error code of RFC 5044 §8.
    pub fn code(&self) -> u8 {
        self.fault.code()
    }
}

/// Fault of an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// The TCP connection ended inside the FPDU (code 1).
    #[error("TCP connection closed inside an FPDU")]
    Truncated,
    /// The CRC field differs from the CRC of the received bytes (code 2).
    #[error("MPA CRC: expected {expected:#010x}, seen {seen:#010x}")]
    Crc {
        /// CRC32c of the received bytes.
        expected: u32,
        /// Content of the CRC field.
        seen: u32,
    },
    /// The FPDU exceeds `max_fpdu`. The CRC was not checked, so the error is reported as a local error (RFC 6581 §8,
    /// code 5) and not as a CRC error (code 2).
    #[error("FPDU of {seen} bytes, at most {limit} are accepted")]
    TooLong {
        /// Largest FPDU, in bytes with markers.
        limit: u32,
        /// Length of the received FPDU, in bytes with markers.
        seen: u32,
    },
    /// A marker and the ULPDU_Length fields disagree on the start of the FPDU (code 3).
    #[error("marker at stream offset {marker}: expected FPDUPTR {expected:#06x}, seen {seen:#06x}")]
    Marker {
        /// Stream offset of the marker.
        marker: u64,
        /// FPDUPTR according to the ULPDU_Length fields.
        expected: u16,
        /// FPDUPTR as received.
        seen: u16,
    },
    /// An FPDU extends beyond `boundary`, where a marker has located another FPDU's start (code 3).
    #[error(
        "the FPDU's length leads past stream offset {boundary}, where a marker locates another"
    )]
    Boundary {
        /// Stream offset at which the located FPDU begins.
        boundary: u64,
    },
}

impl Fault {
    /// Returns the error code of RFC 5044 §8 or RFC 6581 §8.
    pub fn code(&self) -> u8 {
        match self {
            Fault::Truncated => 1,
            Fault::Crc { .. } => 2,
            Fault::Marker { .. } | Fault::Boundary { .. } => 3,
            Fault::TooLong { .. } => 5,
        }
    }
}

/// Errors of the Startup Phase. Errors of RFC 5044 §8 (codes 1 and 4) reset the TCP connection at once. If an FPDU may
/// be sent, errors of RFC 6581 §8 (codes 5 to 7) are sent to the peer, in a Terminate or in bare DDP's last message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StartupError {
    /// The first bytes are not a key that this role expects (RFC 5044 §7.1.2 (5)).
    #[error("the peer does not speak MPA: its key differs at byte {at}")]
    BadKey {
        /// Number of leading bytes that match a key.
        at: u8,
    },
    /// The first bytes belong to a known protocol other than MPA.
    #[error("the peer does not speak MPA but {0}")]
    Foreign(ForeignProtocol),
    /// Both ends sent a request (RFC 5044 §7.1.2 (8)).
    #[error("both ends are MPA initiators")]
    BothInitiators,
    /// Both ends wait for a request, and the peer sent a reply (RFC 5044 §7.1.2 (8)).
    #[error("both ends are MPA responders")]
    BothResponders,
    /// A revision that is not implemented, or not allowed by the configuration (RFC 5044 §7.1.1).
    #[error("MPA revision {seen} is not accepted")]
    Revision {
        /// Content of the Rev field.
        seen: u8,
    },
    /// More private data than the protocol allows (RFC 5044 §7.1.2 (9)).
    #[error("private data of {seen} bytes, at most 512 are allowed")]
    PrivateData {
        /// Content of PD_Length.
        seen: u16,
    },
    /// S is set, but the private data is shorter than the enhanced data (RFC 6581 §6).
    #[error("the frame's flag S announces enhanced data, but it has {seen} bytes of private data")]
    EnhancedData {
        /// Content of PD_Length.
        seen: u16,
    },
    /// An enhanced request was answered by a frame without S (RFC 6581 §10).
    #[error("the peer answers an enhanced request without enhanced data")]
    NotEnhanced,
    /// Local error of this end (RFC 6581 §8, code 5).
    #[error("local catastrophic error")]
    Local,
    /// One end accepts fewer concurrent RDMA Reads than the other requires (RFC 6581 §9.1, code 6).
    #[error("insufficient IRD: {needed} needed, {offered} offered")]
    InsufficientIrd {
        /// IRD of the end that receives the Reads.
        offered: u16,
        /// ORD of the end that issues the Reads.
        needed: u16,
    },
    /// No ready-to-receive message, or connection model, in common (RFC 6581 §9.2, code 7).
    #[error("no matching ready-to-receive message")]
    NoRtr,
    /// The start-up frames did not arrive in time (RFC 5044 §7.1.2 (10)).
    #[error("MPA start-up timed out")]
    Timeout,
    /// The peer closed its direction before the start-up was complete.
    #[error("the peer closed the connection during MPA start-up")]
    Closed,
}

impl From<NegotiationError> for StartupError {
    fn from(error: NegotiationError) -> Self {
        match error {
            NegotiationError::InsufficientIrd { offered, needed } => {
                StartupError::InsufficientIrd { offered, needed }
            }
            NegotiationError::NoRtr => StartupError::NoRtr,
        }
    }
}

impl StartupError {
    /// Returns a stable name for counters and machine-readable output.
    pub fn name(&self) -> &'static str {
        match self {
            StartupError::BadKey { .. } => "not_mpa",
            StartupError::Foreign(foreign) => foreign.name(),
            StartupError::BothInitiators => "both_initiators",
            StartupError::BothResponders => "both_responders",
            StartupError::Revision { .. } => "revision",
            StartupError::PrivateData { .. } => "private_data",
            StartupError::EnhancedData { .. } => "enhanced_data",
            StartupError::NotEnhanced => "not_enhanced",
            StartupError::Local => "local_error",
            StartupError::InsufficientIrd { .. } => "insufficient_ird",
            StartupError::NoRtr => "no_rtr",
            StartupError::Timeout => "timeout",
            StartupError::Closed => "closed",
        }
    }

    /// Returns the error code of RFC 5044 §8 or RFC 6581 §8.
    pub fn code(&self) -> u8 {
        match self {
            StartupError::Timeout | StartupError::Closed => 1,
            // RFC 6581 §8: codes 5 to 7.
            StartupError::Local => 5,
            StartupError::InsufficientIrd { .. } => 6,
            StartupError::NoRtr => 7,
            _ => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_have_rfc_5044_error_codes() {
        let faults = [
            (Fault::Truncated, 1),
            (Fault::Crc { expected: 1, seen: 2 }, 2),
            (Fault::TooLong { limit: 1, seen: 2 }, 5),
            (Fault::Marker { marker: 1, expected: 2, seen: 3 }, 3),
            (Fault::Boundary { boundary: 1 }, 3),
        ];
        for (fault, code) in faults {
            let error = MpaError { at: OrderKey(7), fault };
            assert_eq!((fault.code(), error.code()), (code, code), "{error}");
            assert!(error.to_string().ends_with("(FPDU at stream offset 7)"));
        }
    }

    #[test]
    fn startup_errors_have_codes_and_names() {
        let unsuitable = NegotiationError::InsufficientIrd { offered: 1, needed: 2 };
        let errors = [
            (StartupError::BadKey { at: 0 }, 4, "not_mpa"),
            (StartupError::Foreign(ForeignProtocol::Ssh), 4, "ssh"),
            (StartupError::BothInitiators, 4, "both_initiators"),
            (StartupError::BothResponders, 4, "both_responders"),
            (StartupError::Revision { seen: 3 }, 4, "revision"),
            (StartupError::PrivateData { seen: 513 }, 4, "private_data"),
            (StartupError::EnhancedData { seen: 3 }, 4, "enhanced_data"),
            (StartupError::NotEnhanced, 4, "not_enhanced"),
            (StartupError::Local, 5, "local_error"),
            (unsuitable.into(), 6, "insufficient_ird"),
            (NegotiationError::NoRtr.into(), 7, "no_rtr"),
            (StartupError::Timeout, 1, "timeout"),
            (StartupError::Closed, 1, "closed"),
        ];
        for (error, code, name) in errors {
            assert_eq!((error.code(), error.name()), (code, name), "{error}");
        }
        let ird = StartupError::from(unsuitable).to_string();
        assert_eq!(ird, "insufficient IRD: 2 needed, 1 offered");
    }
}
