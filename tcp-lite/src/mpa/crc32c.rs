//! CRC32c as iSCSI and MPA use it (RFC 5044 §4.4).
//!
//! The value goes on the wire least significant octet first: the figures of RFC 5044 and of the draft
//! show it, and the tests below pin it.

/// The CRC32c of `octets` that follow octets whose CRC32c is `crc`; start with zero.
#[inline]
pub fn update(crc: u32, octets: &[u8]) -> u32 {
    crc32c_hw::update(crc, octets)
}

/// The CRC field of an FPDU whose octets before the field are `octets`.
#[inline]
pub fn field(octets: &[u8]) -> [u8; 4] {
    to_field(update(0, octets))
}

/// A CRC32c as the four octets of the CRC field.
#[inline]
pub fn to_field(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_polynomial() {
        assert_eq!(update(0, b"123456789"), 0xe306_9283);
        assert_eq!(update(update(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn iscsi_digest_of_32_zeros() {
        // RFC 7143 appendix A.4 (iSCSI): 32 octets of zeros have the digest aa 36 91 8a.
        assert_eq!(field(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    }
}
