//! User messages of the DDP adaptation (RFC 5043 §5.2): DDP segments have the payload protocol identifier (PPID) 16,
//! session control messages have PPID 17. Each message begins with a DDP Source Sequence Number (DDP-SSN).
//!
//! ```text
//!  PPID 16                              PPID 17
//!   0  | DDP-SSN (16) | segment ...      0  | DDP-SSN (16) | function code (16) |
//!                                        4  private data, 0 to 512 bytes
//! ```

use crate::be;

/// Adaptation layer indication of DDP (RFC 5043 §5.1).
pub const ADAPTATION_DDP: u32 = 0x0000_0001;
/// Payload protocol identifier of DDP segments.
pub const PPID_SEGMENT: u32 = 16;
/// Payload protocol identifier of session control messages.
pub const PPID_CONTROL: u32 = 17;
/// Length of a segment message before the DDP segment, bytes.
pub const SEGMENT_HEADER_LEN: usize = 2;
/// Length of a session control message before its private data, bytes.
pub const CONTROL_HEADER_LEN: usize = field::PRIVATE_DATA;
/// Maximum length of private data, enhanced data included, bytes (RFC 5043 §5.2.3, RFC 6581 §7).
pub const MAX_PRIVATE_DATA: usize = 512;
/// Smallest maximum message size of an association, bytes (RFC 5043 §9): the length of a session control message
/// with [`MAX_PRIVATE_DATA`] bytes of private data.
pub const MIN_MESSAGE: usize = CONTROL_HEADER_LEN + MAX_PRIVATE_DATA;

mod field {
    pub(super) const SSN: usize = 0;
    pub(super) const FUNCTION: usize = 2;
    pub(super) const PRIVATE_DATA: usize = 4;

    const _: () = assert!(SSN + super::SEGMENT_HEADER_LEN == FUNCTION);
    const _: () = assert!(super::MIN_MESSAGE == 516);
}

/// DDP Source Sequence Number: counts the messages of one session from 0, modulo 2^16.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DdpSsn(pub u16);

impl DdpSsn {
    /// First DDP-SSN of every session (RFC 5043 §6.1).
    pub const FIRST: DdpSsn = DdpSsn(0);

    /// Returns `self + n`, modulo 2^16.
    #[must_use]
    pub const fn add(self, n: u16) -> DdpSsn {
        DdpSsn(self.0.wrapping_add(n))
    }

    /// Returns the distance from `earlier` to `self`, modulo 2^16.
    pub const fn distance_from(self, earlier: DdpSsn) -> u16 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// Returns the DDP-SSN at the front of a message of either PPID; `None` if the message is shorter than 2 bytes.
pub fn ssn(message: &[u8]) -> Option<DdpSsn> {
    message.first_chunk().map(|ssn| DdpSsn(u16::from_be_bytes(*ssn)))
}

/// Writes the DDP-SSN at the front of a message; `out` has at least [`SEGMENT_HEADER_LEN`] bytes.
pub fn emit_ssn(ssn: DdpSsn, out: &mut [u8]) {
    be::put(out, field::SSN, &ssn.0.to_be_bytes());
}

/// Function codes of session control messages (RFC 5043 §5.2.3, RFC 6581 §7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Function {
    /// DDP Stream Session Initiate, code 1.
    Initiate,
    /// DDP Stream Session Accept, code 2.
    Accept,
    /// DDP Stream Session Reject, code 3.
    Reject,
    /// DDP Stream Session Terminate, code 4; has no private data.
    Terminate,
    /// Enhanced DDP Stream Session Initiate, code 5 (RFC 6581).
    EnhancedInitiate,
    /// Enhanced DDP Stream Session Accept, code 6 (RFC 6581).
    EnhancedAccept,
    /// Enhanced DDP Stream Session Reject, code 7 (RFC 6581).
    EnhancedReject,
}

impl Function {
    /// All functions, in the order of their codes.
    pub const ALL: [Function; 7] = [
        Function::Initiate,
        Function::Accept,
        Function::Reject,
        Function::Terminate,
        Function::EnhancedInitiate,
        Function::EnhancedAccept,
        Function::EnhancedReject,
    ];

    /// Returns the function with this code; `None` if it is undefined.
    pub const fn from_code(code: u16) -> Option<Function> {
        Some(match code {
            1 => Function::Initiate,
            2 => Function::Accept,
            3 => Function::Reject,
            4 => Function::Terminate,
            5 => Function::EnhancedInitiate,
            6 => Function::EnhancedAccept,
            7 => Function::EnhancedReject,
            _ => return None,
        })
    }

    /// Returns the function code.
    pub const fn code(self) -> u16 {
        match self {
            Function::Initiate => 1,
            Function::Accept => 2,
            Function::Reject => 3,
            Function::Terminate => 4,
            Function::EnhancedInitiate => 5,
            Function::EnhancedAccept => 6,
            Function::EnhancedReject => 7,
        }
    }

    /// Returns true for the functions of RFC 6581. Their private data begins with an
    /// [`EnhancedRepr`](crate::mpa::EnhancedRepr), which is optional in a Reject.
    pub const fn is_enhanced(self) -> bool {
        matches!(
            self,
            Function::EnhancedInitiate | Function::EnhancedAccept | Function::EnhancedReject
        )
    }
}

/// Reasons to reject a session control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadControl {
    /// The message is shorter than DDP-SSN and function code together, 4 bytes.
    #[error("{0} bytes where a session control message has at least 4")]
    Short(usize),
    /// The function code is undefined.
    #[error("function code {0} of a session control message is not defined")]
    Function(u16),
    /// The private data is longer than [`MAX_PRIVATE_DATA`].
    #[error("{0} bytes of private data where 512 are the most")]
    PrivateDataTooLong(usize),
    /// A Terminate has private data, which RFC 5043 §5.2.3 forbids.
    #[error("a session Terminate with private data")]
    TerminateWithPrivateData,
}

/// A session control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlRepr<'a> {
    /// DDP-SSN of the message.
    pub ssn: DdpSsn,
    /// Function of the message.
    pub function: Function,
    /// Private data, at most [`MAX_PRIVATE_DATA`] bytes, enhanced data included; empty in a Terminate.
    pub private_data: &'a [u8],
}

impl<'a> ControlRepr<'a> {
    /// Parses a session control message and checks its function code and the length of its private data.
    pub fn parse(message: &'a [u8]) -> Result<ControlRepr<'a>, BadControl> {
        let private_data =
            message.get(CONTROL_HEADER_LEN..).ok_or(BadControl::Short(message.len()))?;
        let code = be::u16(message, field::FUNCTION);
        let function = Function::from_code(code).ok_or(BadControl::Function(code))?;
        // RFC 5043 §5.2.3.
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(BadControl::PrivateDataTooLong(private_data.len()));
        }
        if function == Function::Terminate && !private_data.is_empty() {
            return Err(BadControl::TerminateWithPrivateData);
        }
        Ok(ControlRepr { ssn: DdpSsn(be::u16(message, field::SSN)), function, private_data })
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes.
    pub const fn wire_len(&self) -> usize {
        CONTROL_HEADER_LEN + self.private_data.len()
    }

    /// Writes the message at the front of `out`, which has at least [`wire_len`](Self::wire_len) bytes.
    pub fn emit(&self, out: &mut [u8]) {
        emit_ssn(self.ssn, out);
        be::put(out, field::FUNCTION, &self.function.code().to_be_bytes());
        be::put(out, field::PRIVATE_DATA, self.private_data);
    }
}
