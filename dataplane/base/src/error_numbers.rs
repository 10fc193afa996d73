//! Layer, type and code of a protocol error, as numbers.

use core::fmt;

/// Layer, error type and code of an error, as in a Terminate (RFC 5040 §4.8). Layer 0 is RDMAP, layer 1 DDP (RFC 5041
/// §7.2), layer 2 the LLP (RFC 5044 §8, RFC 6581 §8). Displayed in hexadecimal, such as `1/1/00`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ErrorNumbers {
    /// Layer, 0 to 15.
    pub layer: u8,
    /// Error type, 0 to 15.
    pub error_type: u8,
    /// Error code, 0 to 255. The layer and type determine its meaning.
    pub code: u8,
}

impl ErrorNumbers {
    /// Returns the numbers; the parameters are in the order of a Terminate's control field.
    #[inline]
    pub const fn new(layer: u8, error_type: u8, code: u8) -> ErrorNumbers {
        ErrorNumbers { layer, error_type, code }
    }
}

impl fmt::Display for ErrorNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}/{:x}/{:02x}", self.layer, self.error_type, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorNumbers;

    #[test]
    fn numbers_are_displayed_in_hexadecimal() {
        assert_eq!(ErrorNumbers::new(1, 1, 0).to_string(), "1/1/00");
        assert_eq!(ErrorNumbers::new(15, 10, 255).to_string(), "f/a/ff");
    }
}
