//! CRC32c for iSCSI, MPA (RFC 5044 §4.4) and SCTP (RFC 9260 appendix A).
//!
//! The CRC field is sent least significant byte first, as in the figures of RFC 5044 and the MPA draft, and in the
//! sample code of RFC 9260. The tests below and those of `sctp` check the byte order.
//!
//! The crate [`crc32c`](::crc32c) selects the implementation by CPU and length.

pub use ::crc32c::{Digest, Inserts, Sum, Target, combine, crc_sum, update, update_numbers};

/// Returns the CRC field that follows `bytes`, for example at the end of an FPDU.
#[inline]
pub fn field(bytes: &[u8]) -> [u8; 4] {
    to_field(update(0, bytes))
}

/// Returns a CRC32c as the four bytes of the CRC field.
#[inline]
pub fn to_field(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ::crc32c::{Engine, Path};

    fn clmul_crc(crc: u32, bytes: &[u8]) -> u32 {
        Engine::with_path(Path::Clmul).expect("every CPU supports this path").update(crc, bytes)
    }

    proptest! {
        // All implementations give the same CRC32c, for any split of the bytes into two updates.
        #[test]
        fn crc_engines_agree_on_any_split(bytes in prop::collection::vec(any::<u8>(), 0..3000), cut in any::<prop::sample::Index>()) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            let whole = bytes.iter().fold(0, |crc, byte| update(crc, &[*byte]));
            prop_assert_eq!(update(0, &bytes), whole);
            prop_assert_eq!(update(update(0, head), tail), whole);
            prop_assert_eq!(clmul_crc(clmul_crc(0, head), tail), whole);
        }
    }

    #[test]
    fn crc32c_matches_check_value() {
        assert_eq!(update(0, b"123456789"), 0xe306_9283);
        assert_eq!(update(update(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn crc_field_matches_iscsi_zero_digest() {
        // RFC 7143 appendix A.4 (iSCSI): 32 bytes of zeros have the digest aa 36 91 8a.
        assert_eq!(field(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    }
}
