//! The ECN field of the IP header (RFC 3168 §5): the two low bits of IPv4's Type of Service and of IPv6's
//! Traffic Class.
//!
//! ```text
//!  00 not capable   01 ECT(1)   10 ECT(0)   11 congestion experienced
//!
//!  IPv4  | 4 | IHL |  DSCP 6  | ECN 2 |         byte 1, bits 1..0
//!  IPv6  | 6 | class hi 4 | class lo 4 | flow   class is bits 3..0 of byte 0 and 7..4 of byte 1
//! ```

/// Codepoint ECT(0), at its position in IPv4's second byte (bits 1..0).
pub(super) const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;
const MASK: u8 = 0b11;
const V6_SHIFT: u8 = 4;

/// Bytes of an Ethernet header, and of an 802.1Q tag. `TAGGED` is the tag's EtherType.
const ETHERNET: usize = 14;
const TAG: usize = 4;
const TAGGED: [u8; 2] = [0x81, 0];

/// Returns true if the IP packet in this Ethernet frame is marked CE.
pub fn is_marked(frame: &[u8]) -> bool {
    let tag = if frame.get(12..14) == Some(&TAGGED) { TAG } else { 0 };
    match frame.get(ETHERNET + tag..) {
        Some([first, second, ..]) if first >> 4 == 4 => second & MASK == CE,
        Some([first, second, ..]) if first >> 4 == 6 => second >> V6_SHIFT & MASK == CE,
        _ => false,
    }
}

/// Sets ECT(0) in an IP header whose ECN field is zero. The caller updates IPv4's header checksum afterwards.
pub fn set_capable(ip: &mut [u8]) {
    match ip {
        [first, second, ..] if *first >> 4 == 4 => *second |= ECT_0,
        [first, second, ..] if *first >> 4 == 6 => *second |= ECT_0 << V6_SHIFT,
        _ => {}
    }
}

/// Sets the DSCP, 0 to 63, in the six bits before the ECN field (RFC 2474 §3).
pub fn set_dscp(ip: &mut [u8], dscp: u8) {
    match ip {
        [first, second, ..] if *first >> 4 == 4 => *second = dscp << 2 | *second & MASK,
        [first, second, ..] if *first >> 4 == 6 => {
            *first = *first & 0xf0 | dscp >> 2 & 0x0f;
            *second = dscp << 6 | *second & 0x3f;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

    // RFC 3168 §5: for both IP versions, an independent implementation (smoltcp) reads the ECN field from the same
    // bits.
    #[test]
    fn ecn_field_is_low_bits_of_traffic_class() {
        let mut v4 = [0; 20];
        Ipv4Packet::new_unchecked(&mut v4[..]).set_version(4);
        let mut v6 = [0; 40];
        Ipv6Packet::new_unchecked(&mut v6[..]).set_version(6);
        set_capable(&mut v4);
        set_capable(&mut v6);
        assert_eq!(Ipv4Packet::new_unchecked(&v4[..]).ecn(), 0b10);
        assert_eq!(Ipv4Packet::new_unchecked(&v4[..]).dscp(), 0);
        assert_eq!(Ipv6Packet::new_unchecked(&v6[..]).traffic_class(), 0b10);
        assert_eq!(Ipv6Packet::new_unchecked(&v6[..]).flow_label(), 0);
        let framed = |ip: &[u8]| is_marked(&[&[0; 14], ip].concat());
        let tagged = |ip: &[u8]| is_marked(&[&[0; 12][..], &TAGGED, &[0, 7, 8, 0], ip].concat());
        assert!(!framed(&v4) && !framed(&v6) && !framed(&[0x45]) && !is_marked(&[]));
        Ipv4Packet::new_unchecked(&mut v4[..]).set_ecn(0b11);
        Ipv6Packet::new_unchecked(&mut v6[..]).set_traffic_class(0b1111_1111);
        assert!(framed(&v4) && framed(&v6) && tagged(&v4) && tagged(&v6));
        Ipv6Packet::new_unchecked(&mut v6[..]).set_traffic_class(0b1111_1101);
        Ipv6Packet::new_unchecked(&mut v6[..]).set_flow_label(0xf_ffff);
        assert!(!framed(&v6), "the flow label is not the class");
    }
}
