//! Initial sequence numbers that cannot be guessed (RFC 9293 §3.4.1, RFC 6528).

use std::net::{IpAddr, SocketAddr};

use base::Instant;
use siphasher::sip::SipHasher13;
use transport::seq::SeqNumber;

/// The two ends of a connection: addresses and ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FourTuple {
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
}

/// MSS assumed for a peer that sends no MSS option, bytes (RFC 9293 §3.7.1 MUST-15).
const DEFAULT_MSS_V4: u16 = 536;
const DEFAULT_MSS_V6: u16 = 1220;

impl FourTuple {
    /// Returns the MSS assumed for a peer that sends no MSS option, bytes (RFC 9293 §3.7.1 MUST-15).
    pub fn default_mss(&self) -> u16 {
        default_mss(self.remote.is_ipv6())
    }

    /// Returns the ports and addresses of both ends as input of a hash, and the length: 12 bytes for IPv4, 36 for IPv6.
    pub(super) fn hash_input(&self) -> ([u8; 36], usize) {
        let mut out = [0; 36];
        let ports = [self.local.port().to_be_bytes(), self.remote.port().to_be_bytes()];
        out[..4].copy_from_slice(ports.as_flattened());
        match (self.local.ip(), self.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                out[4..8].copy_from_slice(&local.octets());
                out[8..12].copy_from_slice(&remote.octets());
                (out, 12)
            }
            (local, remote) => {
                let v6 = |ip: IpAddr| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                out[4..20].copy_from_slice(&v6(local));
                out[20..].copy_from_slice(&v6(remote));
                (out, 36)
            }
        }
    }
}

/// Returns the MSS assumed for a peer that sends no MSS option, bytes (RFC 9293 §3.7.1 MUST-15).
pub(super) fn default_mss(v6: bool) -> u16 {
    if v6 { DEFAULT_MSS_V6 } else { DEFAULT_MSS_V4 }
}

/// Initial sequence number and timestamp offset of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitialNumbers {
    /// ISS: our initial sequence number.
    pub iss: SeqNumber,
    /// Offset added to the millisecond clock to obtain TSval (RFC 7323 §5.4).
    pub ts_offset: u32,
}

/// Derives the timestamp offset from the ISS: for connections whose four-tuple is not reused.
impl From<SeqNumber> for InitialNumbers {
    fn from(iss: SeqNumber) -> InitialNumbers {
        InitialNumbers { iss, ts_offset: iss.0.rotate_left(16) ^ 0x9e37_79b9 }
    }
}

/// Generator of initial sequence numbers: a clock with ticks of 4 µs plus a keyed hash of the four-tuple.
#[derive(Clone)]
pub struct IsnGenerator {
    key: [u8; 16],
}

impl core::fmt::Debug for IsnGenerator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IsnGenerator") // the key is secret
    }
}

impl IsnGenerator {
    /// Creates the generator. `key` must come from a good random source. All workers that may open the same four-tuple
    /// share the key.
    pub fn new(key: [u8; 16]) -> Self {
        IsnGenerator { key }
    }

    /// Returns ISN = M + F(local, remote, key), where M counts ticks of 4 µs (RFC 9293 §3.4.1 MUST-8, MUST-9). All
    /// incarnations of a connection have the same timestamp offset, a hash of the four-tuple (RFC 7323 §5.4, §7.1).
    /// Timestamps never go backwards, so a peer in TIME-WAIT may accept a new SYN (RFC 6191 §2).
    pub fn generate(&self, tuple: &FourTuple, now: Instant) -> InitialNumbers {
        let hash = self.hash(tuple);
        let ticks = (now.as_micros() / 4) as u32;
        InitialNumbers {
            iss: SeqNumber(ticks.wrapping_add(hash as u32)),
            ts_offset: (hash >> 32) as u32,
        }
    }

    /// Returns the [`InitialNumbers::ts_offset`] of all incarnations of a connection.
    pub(super) fn ts_offset(&self, tuple: &FourTuple) -> u32 {
        (self.hash(tuple) >> 32) as u32
    }

    fn hash(&self, tuple: &FourTuple) -> u64 {
        let (ends, len) = tuple.hash_input();
        SipHasher13::new_with_key(&self.key).hash(&ends[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: SocketAddr::from(([10, 0, 0, 1], 4791)),
            remote: SocketAddr::from(([10, 0, 0, 2], port)),
        }
    }

    // RFC 9293 §3.4.1 MUST-8: one tick per 4 µs. The timestamp offset is constant.
    #[test]
    fn isn_follows_the_clock() {
        let isn = IsnGenerator::new([7; 16]);
        let first = isn.generate(&tuple(1000), Instant::from_millis(1));
        let later = isn.generate(&tuple(1000), Instant::from_millis(3));
        assert_eq!(later.iss, first.iss.add(500));
        assert_eq!(later.ts_offset, first.ts_offset, "equal for every incarnation");
    }

    // RFC 9293 §3.4.1 SHLD-1: the ISN depends on a secret key. The debug output does not contain the key.
    #[test]
    fn isn_depends_on_key_and_tuple() {
        let now = Instant::ZERO;
        let isn = IsnGenerator::new([7; 16]);
        let [one, two] = [1000, 1001].map(|port| isn.generate(&tuple(port), now));
        assert!(one.iss != two.iss && one.ts_offset != two.ts_offset);
        let other = IsnGenerator::new([8; 16]);
        let two = other.generate(&tuple(1000), now);
        assert!(one.iss != two.iss && one.ts_offset != two.ts_offset);
        assert!(!format!("{isn:?}").contains('7'));
    }
}
