//! The search for the highest rate (RFC 2544 §26.1), by frame size.

use serde::{Deserialize, Serialize};

/// What was found for one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rate {
    /// Bytes of a frame, with its frame check.
    pub size: u32,
}
