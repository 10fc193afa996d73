//! Strength of a packet's protection.

use crate::crypto::Algorithm;

/// Protection of a packet by IPsec. Order: in clear, integrity alone, then by key bits of the encryption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Strength(u8);

impl Strength {
    /// No protection.
    pub const CLEAR: Strength = Strength(0);

    /// The greatest strength: for packets that never leave through a port.
    pub const MAX: Strength = Strength(u8::MAX);

    /// Returns the strength of integrity plus encryption with keys of at least `bits` bits (0: integrity alone). More
    /// than 2032 bits count as 2032.
    pub const fn from_bits(bits: u16) -> Strength {
        let bytes = bits.div_ceil(8);
        Strength(if bytes < 254 { bytes as u8 + 1 } else { 255 })
    }

    /// Returns the key bits of the encryption, 0 for integrity alone; `None` in clear.
    pub const fn bits(self) -> Option<u16> {
        match self.0 {
            0 => None,
            above => Some((above as u16 - 1) * 8),
        }
    }
}

impl From<Algorithm> for Strength {
    fn from(algorithm: Algorithm) -> Strength {
        Strength::from_bits(algorithm.confidentiality_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_are_ordered_by_key_bits() {
        let order = [
            Strength::CLEAR,
            Algorithm::NullHmacSha256.into(),
            Algorithm::AesGcm128.into(),
            Algorithm::AesCbc256HmacSha256.into(),
            Strength::from_bits(u16::MAX),
        ];
        assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
        assert_eq!(Strength::from_bits(0), Algorithm::AesGmac256.into());
        assert_eq!(Strength::from_bits(256), Algorithm::ChaCha20Poly1305.into());
        // Bits are rounded up to bytes: a requirement of 129 bits exceeds 128 bits.
        assert!(Strength::from_bits(129) > Algorithm::AesGcm128.into());
    }
}
