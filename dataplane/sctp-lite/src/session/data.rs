//! Private data field of control messages: enhanced data, then the ULP's private data.

use ddp::enhanced::{ENHANCED_LEN, EnhancedRepr};
use wire::sctp::ddp::MAX_PRIVATE_DATA;

use super::message::Control;

/// Private data that exceeds the room in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("private data of {seen} bytes, at most {limit} fit")]
pub struct PrivateDataTooLong {
    /// Maximum length, bytes: 512, or 508 after enhanced data.
    pub limit: usize,
    /// Length of the private data, bytes.
    pub seen: usize,
}

impl PrivateDataTooLong {
    /// Checks the length of private data (RFC 5043 §5.2.3, RFC 6581 §7).
    ///
    /// # Errors
    /// The private data is too long.
    pub fn check(private_data: &[u8], enhanced: bool) -> Result<(), PrivateDataTooLong> {
        let limit = MAX_PRIVATE_DATA - if enhanced { ENHANCED_LEN } else { 0 };
        let seen = private_data.len();
        if seen > limit { Err(PrivateDataTooLong { limit, seen }) } else { Ok(()) }
    }
}

/// Data of an Initiate, Accept or Reject. Enhanced data selects the enhanced form of the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionData {
    /// The ULP's private data.
    pub private_data: Vec<u8>,
    /// Read depths (IRD, ORD) and peer-to-peer flags of the message; `None` for the plain form.
    pub enhanced: Option<EnhancedRepr>,
}

impl From<&Control> for SessionData {
    fn from(control: &Control) -> Self {
        SessionData { private_data: control.private_data.clone(), enhanced: control.enhanced }
    }
}

/// Returns the private data field of a control message, with the enhanced data first (RFC 6581 §7).
pub(super) fn encode(data: &SessionData) -> Box<[u8]> {
    let enhanced = data.enhanced.iter().flat_map(|enhanced| enhanced.emit());
    enhanced.chain(data.private_data.iter().copied()).take(MAX_PRIVATE_DATA).collect()
}
