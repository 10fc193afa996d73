//! Socket addresses of C: `sockaddr_in` and `sockaddr_in6`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ibverbs::errno::Result;
use libc::{AF_INET, AF_INET6, EAFNOSUPPORT};

/// Size of `sockaddr_in6`, the larger of the two, bytes.
pub(crate) const LEN: usize = 28;
/// Size of `sockaddr_in`, bytes.
pub(crate) const LEN_V4: usize = 16;

const _: () = assert!(LEN == size_of::<libc::sockaddr_in6>());
const _: () = assert!(LEN_V4 == size_of::<libc::sockaddr_in>());

/// Bytes of the C structure: family (2 bytes, host order), port (2 bytes, network order), then for IPv4 the address (4
/// bytes); for IPv6 flow information (4 bytes), address (16 bytes) and scope ID (4 bytes).
pub(crate) type RawAddress = [u8; LEN];

/// Returns the size of the C structure of a family, bytes.
///
/// # Errors
/// `EAFNOSUPPORT`: neither IPv4 nor IPv6.
pub(crate) fn len_of(family: u16) -> Result<usize> {
    match i32::from(family) {
        AF_INET => Ok(LEN_V4),
        AF_INET6 => Ok(LEN),
        _ => Err(EAFNOSUPPORT),
    }
}

/// Returns an address in the form of C, and the size of its structure.
pub(crate) fn encode(address: SocketAddr) -> (RawAddress, usize) {
    let mut raw = [0; LEN];
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            raw[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
            raw[4..8].copy_from_slice(&address.ip().octets());
            (raw, LEN_V4)
        }
        SocketAddr::V6(address) => {
            raw[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
            raw[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
            raw[8..24].copy_from_slice(&address.ip().octets());
            raw[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
            (raw, LEN)
        }
    }
}

/// Returns the address of a C structure. Flow information is dropped.
///
/// # Errors
/// `EAFNOSUPPORT`: neither IPv4 nor IPv6.
pub(crate) fn decode(raw: &RawAddress) -> Result<SocketAddr> {
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    match i32::from(u16::from_ne_bytes([raw[0], raw[1]])) {
        AF_INET => {
            let ip = Ipv4Addr::new(raw[4], raw[5], raw[6], raw[7]);
            Ok(SocketAddr::new(ip.into(), port))
        }
        AF_INET6 => {
            let octets: [u8; 16] = std::array::from_fn(|at| raw[8 + at]);
            let scope = u32::from_ne_bytes([raw[24], raw[25], raw[26], raw[27]]);
            Ok(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into())
        }
        _ => Err(EAFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_layout_of_c_and_return_unchanged() {
        for (text, len) in [("10.1.2.3:4791", LEN_V4), ("[2001:db8::7]:1", LEN), ("[::]:0", LEN)] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, encoded) = encode(address);
            assert_eq!((decode(&raw), encoded), (Ok(address), len));
        }
        let (raw, _) = encode("10.1.2.3:4791".parse().unwrap());
        assert_eq!(raw[2..8], [0x12, 0xb7, 10, 1, 2, 3]);
        let scoped = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 9, 0, 3));
        assert_eq!(decode(&encode(scoped).0), Ok(scoped));
    }

    #[test]
    fn other_families_are_refused() {
        assert_eq!(decode(&[0; LEN]), Err(EAFNOSUPPORT));
        assert_eq!(len_of(libc::AF_UNIX as u16), Err(EAFNOSUPPORT));
    }
}
