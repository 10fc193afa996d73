//! SMB Direct's encoding of IRD and ORD in revision 1.

use wire::mpa::{EnhancedRepr, MAX_DEPTH};

/// IRD and ORD in front of SMB Direct's private data, in revision 1.
///
/// ```text
///  0  IRD, 32 bits    4  ORD, 32 bits
/// ```
pub(super) struct SmbDirect;

impl SmbDirect {
    /// Length of both fields, in bytes.
    pub(super) const LEN: usize = 8;

    /// Parses IRD and ORD. Values above [`MAX_DEPTH`] are reduced to it.
    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> EnhancedRepr {
        let depth = |at: usize| {
            let value =
                u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            value.min(u32::from(MAX_DEPTH)) as u16
        };
        EnhancedRepr { ird: depth(0), ord: depth(4), rtr: None }
    }

    /// Encodes IRD and ORD.
    pub(super) fn emit(enhanced: &EnhancedRepr) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&u32::from(enhanced.ird).to_be_bytes());
        bytes[4..].copy_from_slice(&u32::from(enhanced.ord).to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IRD and ORD are 32 bits each. Values above the maximum are reduced.
    #[test]
    fn smb_direct_depths_round_trip() {
        let enhanced = EnhancedRepr { ird: 16, ord: 1, rtr: None };
        assert_eq!(SmbDirect::emit(&enhanced), [0, 0, 0, 16, 0, 0, 0, 1]);
        assert_eq!(SmbDirect::parse(&SmbDirect::emit(&enhanced)), enhanced);
        let most = SmbDirect::parse(&[0xff; 8]);
        assert_eq!((most.ird, most.ord), (MAX_DEPTH, MAX_DEPTH));
    }
}
