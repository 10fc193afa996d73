//! The map from flow to owning worker: a Toeplitz hash of the received packet's flow selects a table entry. The device
//! computes the hash for its RSS queues. Software computes the hash on ports without device RSS, for SCTP (without the
//! peer's address) and for flows that ICMP errors quote. Software also uses the hash to choose source ports whose
//! inbound packets reach the same worker.
//!
//! ```text
//!  hash input (IPv4, TCP)   source address 4 | destination address 4 | source port 2 | destination port 2
//!  hash input (IPv6, TCP)   source address 16 | destination address 16 | source port 2 | destination port 2
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::ids::WorkerId;

/// Length of an RSS key, in bytes.
pub const KEY_LEN: usize = 40;

/// Length of the longest hash input, in bytes.
const INPUT_LEN: usize = 36;

/// RSS key of equal 16-bit words, with which both directions of a flow have the same hash.
pub const SYMMETRIC_KEY: [u8; KEY_LEN] = {
    let mut key = [0; KEY_LEN];
    let mut i = 0;
    while i < KEY_LEN {
        key[i] = if i % 2 == 0 { 0x6d } else { 0x5a };
        i += 1;
    }
    key
};

/// RSS key and redirection table of one port.
#[derive(Clone, Debug)]
pub struct Steering {
    /// XOR term of each input byte, indexed by `[position][byte]`. The hash is the XOR of these terms.
    hash_terms: Box<[[u32; 256]]>,
    /// Redirection table. The hash modulo its length selects the entry.
    table: Box<[WorkerId]>,
    /// The owner of all flows if `table` has only one worker.
    single_worker: Option<WorkerId>,
}

impl Steering {
    /// Creates steering with a device's RSS key and redirection table. Each entry of `table` is the worker that owns
    /// the entry's queue. `table` must not be empty.
    pub fn new(key: &[u8; KEY_LEN], table: Vec<WorkerId>) -> Self {
        assert!(!table.is_empty(), "a port has at least one worker");
        let first = table[0];
        let only = table.iter().all(|&worker| worker == first).then_some(first);
        Steering { hash_terms: terms(key), table: table.into(), single_worker: only }
    }

    /// Creates steering for a port without device RSS: the symmetric key, and a table of 128 entries assigned round
    /// robin.
    pub fn software(workers: &[WorkerId]) -> Self {
        Steering::new(&SYMMETRIC_KEY, workers.iter().copied().cycle().take(128).collect())
    }

    /// Returns the owner of all flows if the port has a single worker. The caller then needs no hash.
    pub fn single_worker(&self) -> Option<WorkerId> {
        self.single_worker
    }

    /// Returns the owner of the flow whose packets arrive from `source` at `destination`.
    pub fn owner(&self, source: SocketAddr, destination: SocketAddr) -> WorkerId {
        self.owner_of_hash(self.hash(source, destination))
    }

    /// Returns the owner of the SCTP association whose packets arrive from `source` at `destination`. The owner depends
    /// on both ports and the local address, not on the peer's address.
    pub fn owner_by_ports(&self, source: SocketAddr, destination: SocketAddr) -> WorkerId {
        let unspecified: IpAddr = match destination.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.owner(SocketAddr::new(unspecified, source.port()), destination)
    }

    /// Returns the owner of the flows with this RSS hash.
    pub fn owner_of_hash(&self, hash: u32) -> WorkerId {
        self.table[hash as usize % self.table.len()]
    }

    /// Returns the Toeplitz hash of a packet from `source` to `destination`, or 0 if their address families differ.
    pub fn hash(&self, source: SocketAddr, destination: SocketAddr) -> u32 {
        let mut input = [0; INPUT_LEN];
        let len = match (source.ip(), destination.ip()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                input[..4].copy_from_slice(&s.octets());
                input[4..8].copy_from_slice(&d.octets());
                8
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                input[..16].copy_from_slice(&s.octets());
                input[16..32].copy_from_slice(&d.octets());
                32
            }
            _ => return 0,
        };
        input[len..len + 2].copy_from_slice(&source.port().to_be_bytes());
        input[len + 2..len + 4].copy_from_slice(&destination.port().to_be_bytes());
        let bytes = input[..len + 4].iter().zip(self.hash_terms.iter());
        bytes.fold(0, |hash, (&byte, terms)| hash ^ terms[byte as usize])
    }
}

/// Returns the XOR terms of the hash. Each set bit of the input contributes the 32 bits of the key that begin at the
/// bit's position.
fn terms(key: &[u8; KEY_LEN]) -> Box<[[u32; 256]]> {
    (0..INPUT_LEN)
        .map(|position| {
            let window = key[position..].iter().chain([0; 5].iter()).take(5);
            let window = window.fold(0u64, |w, &byte| w << 8 | u64::from(byte));
            core::array::from_fn(|byte| {
                (0..8)
                    .filter(|bit| byte & (0x80 >> bit) != 0)
                    .fold(0, |hash, bit| hash ^ (window >> (8 - bit)) as u32)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Key from Microsoft's "Verifying the RSS Hash Calculation". Many devices and DPDK's own tests use this key.
    const VERIFY_KEY: [u8; KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn toeplitz_hashes_match_verification_suite() {
        let steering = Steering::new(&VERIFY_KEY, vec![WorkerId(0)]);
        let hash = |s: &str, d: &str| steering.hash(s.parse().unwrap(), d.parse().unwrap());
        assert_eq!(hash("66.9.149.187:2794", "161.142.100.80:1766"), 0x51ccc178);
        assert_eq!(hash("199.92.111.2:14230", "65.69.140.83:4739"), 0xc626b0ea);
        assert_eq!(hash("24.19.198.95:12898", "12.22.207.184:38024"), 0x5c2b394a);
        assert_eq!(hash("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766"), 0x40207d3d);
        assert_eq!(hash("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739"), 0xdde51bbf);
    }

    proptest! {
        #[test]
        fn both_directions_steer_to_one_worker(a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), pa: u16, pb: u16) {
            let workers: Vec<_> = (0..3).map(WorkerId).collect();
            let steering = Steering::software(&workers);
            let (a, b) = (SocketAddr::new(a.into(), pa), SocketAddr::new(b.into(), pb));
            prop_assert_eq!(steering.owner(a, b), steering.owner(b, a));
        }
    }

    /// A device rule hashes only the destination address and the ports (RTE_ETH_RSS_L3_DST_ONLY). Software finds an
    /// association's owner by the hash with a zero source address. Both hashes are equal. All 16-bit words of the key
    /// are equal, so the positions of the fields in the device's input do not matter.
    #[test]
    fn destination_only_hash_selects_association_owner() {
        let workers: Vec<_> = (0..128).map(WorkerId).collect();
        let steering = Steering::software(&workers);
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let words = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => vec![word(&ip.octets())],
            IpAddr::V6(ip) => ip.octets().chunks(4).map(word).collect(),
        };
        let addresses = [
            ["192.0.2.77", "198.51.100.3", "203.0.113.9"],
            ["2001:db8::5:77", "2001:db8:0:2:3::9", "fe80::1"],
        ];
        let mut owners = std::collections::BTreeSet::new();
        for (n, [to, a, b]) in addresses.into_iter().cycle().take(200).enumerate() {
            let to = SocketAddr::new(to.parse().unwrap(), 7471);
            let from = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 40_000 + 7 * n as u16);
            let ports = vec![u32::from(from(a).port()) << 16 | u32::from(to.port())];
            let hash = dpdk::softrss(&[words(to.ip()), ports.clone()].concat(), &SYMMETRIC_KEY);
            let owner = steering.owner_of_hash(hash);
            assert_eq!(owner, steering.owner_by_ports(from(a), to));
            assert_eq!(owner, steering.owner_by_ports(from(b), to));
            owners.insert(owner.0);
            // RSS over both addresses and ports, as for TCP, selects another owner.
            let all = [words(from(a).ip()), words(to.ip()), ports].concat();
            assert_eq!(dpdk::softrss(&all, &SYMMETRIC_KEY), steering.hash(from(a), to));
            assert_ne!(steering.owner(from(a), to), owner);
        }
        assert!(owners.len() > 50, "{}", owners.len());
    }

    #[test]
    fn flows_spread_over_the_workers() {
        let workers: Vec<_> = (0..4).map(WorkerId).collect();
        let steering = Steering::software(&workers);
        let mut hits = [0; 4];
        for port in 1024..5120 {
            let (s, d) = (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 4791).into());
            hits[steering.owner(s, d).0 as usize] += 1;
        }
        assert!(hits.iter().all(|&n| (800..1300).contains(&n)), "{hits:?}");
        assert_eq!(steering.single_worker(), None);
        assert_eq!(Steering::software(&workers[1..2]).single_worker(), Some(WorkerId(1)));
    }
}
