//! Data of control messages besides their function: enhanced data, then the ULP's private data.

use ddp::enhanced::{ENHANCED_LEN, EnhancedRepr};
use wire::sctp::ddp::MAX_PRIVATE_DATA;

use super::message::Control;

/// The private data exceed the room in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("private data of {seen} bytes, at most {limit} fit")]
pub struct PrivateDataTooLong {
    /// Bytes that fit: 512, or 508 after enhanced data.
    pub limit: usize,
    /// Bytes given.
    pub seen: usize,
}

impl PrivateDataTooLong {
    /// Checks that private data fit a message (RFC 5043 §5.2.3, RFC 6581 §7).
    ///
    /// # Errors
    /// The private data are too long.
    pub fn check(private_data: &[u8], enhanced: bool) -> Result<(), PrivateDataTooLong> {
        let limit = MAX_PRIVATE_DATA - if enhanced { ENHANCED_LEN } else { 0 };
        let seen = private_data.len();
        if seen > limit { Err(PrivateDataTooLong { limit, seen }) } else { Ok(()) }
    }
}

/// Data of an Initiate or its answer; with enhanced data the message has the enhanced form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionData {
    /// The ULP's private data.
    pub private_data: Vec<u8>,
    /// Read limits in the message.
    pub enhanced: Option<EnhancedRepr>,
}

impl From<&Control> for SessionData {
    fn from(control: &Control) -> Self {
        SessionData { private_data: control.private_data.clone(), enhanced: control.enhanced }
    }
}

/// Returns the private data field of a control message: enhanced data first (RFC 6581 §7).
pub(super) fn encode(data: &SessionData) -> Box<[u8]> {
    let enhanced = data.enhanced.iter().flat_map(|enhanced| enhanced.emit());
    enhanced.chain(data.private_data.iter().copied()).take(MAX_PRIVATE_DATA).collect()
}
