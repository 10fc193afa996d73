//! The policies, with a cache of their decisions on recent flows. Without the cache, each packet would need a look-up
//! in the list, whose time is proportional to the list's length.

use std::net::IpAddr;

use super::Protection;
use crate::ip::{IPV4_HEADER, IPV6_HEADER, SCTP, TCP, Visibility};
use crate::policy::{Decision, Denial, Direction, Flow, Spd};

/// Number of flows in the direct-mapped cache: a flow replaces another one in the same slot.
const FLOWS: usize = 256;

/// Length of both ports, bytes.
const PORTS: usize = 4;

/// A flow and a direction as integers, so that a comparison with a packet's flow stays in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    local: u128,
    remote: u128,
    /// From the most significant bit: local port (16 bits), remote port (16), protocol (8), ICMP type (8), flags (16).
    ports_and_flags: u64,
}

impl Key {
    /// Set in every key, so that no key equals the value 0 of an empty slot.
    const USED: u64 = 1;
    const HAS_PORTS: u64 = 2;
    const HAS_ICMP: u64 = 4;
    const LOCAL_V6: u64 = 8;
    const REMOTE_V6: u64 = 16;
    const OUT: u64 = 32;
    const IKE: u64 = 64;

    const FREE: Key = Key { local: 0, remote: 0, ports_and_flags: 0 };

    #[inline]
    fn new(flow: &Flow, direction: Direction) -> Key {
        let number = |address: &IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from_ne_bytes(address.octets())),
            IpAddr::V6(address) => u128::from_ne_bytes(address.octets()),
        };
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = flag(flow.ports.is_some(), Key::HAS_PORTS)
            | flag(flow.icmp.is_some(), Key::HAS_ICMP)
            | flag(flow.local.is_ipv6(), Key::LOCAL_V6)
            | flag(flow.remote.is_ipv6(), Key::REMOTE_V6)
            | flag(direction == Direction::Out, Key::OUT)
            | flag(flow.ike, Key::IKE)
            | Key::USED;
        let (local, remote) = flow.ports.unwrap_or_default();
        let icmp = flow.icmp.unwrap_or_default();
        let rest = Key::pack_rest(local, remote, flow.protocol, icmp, flags);
        Key { local: number(&flow.local), remote: number(&flow.remote), ports_and_flags: rest }
    }

    /// Returns the key of a whole TCP or SCTP packet without IP options or extension headers, `None` for other packets.
    /// The key equals the key of the flow that [`Flow::parse_with_visibility`] returns, but no intermediate [`Flow`] is
    /// built. Storing the fields of a `Flow` and reloading them as wider words would cost more than the rest of this
    /// function.
    #[inline]
    fn read(packet: &[u8], direction: Direction) -> Option<Key> {
        let (ends, protocol, ports, families) = match packet.first()? {
            0x45 => {
                let header = packet.first_chunk::<{ IPV4_HEADER + PORTS }>()?;
                let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
                if fragment || total < header.len() || total > packet.len() {
                    return None;
                }
                let number = |at: usize| u32::from_ne_bytes(*header[at..].first_chunk().unwrap());
                let ends = [number(12), number(16)].map(u128::from);
                (ends, header[9], header.last_chunk::<PORTS>()?, 0)
            }
            first if first >> 4 == 6 => {
                let header = packet.first_chunk::<{ IPV6_HEADER + PORTS }>()?;
                let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
                if payload < PORTS || IPV6_HEADER + payload > packet.len() {
                    return None;
                }
                let number = |at: usize| u128::from_ne_bytes(*header[at..].first_chunk().unwrap());
                let families = Key::LOCAL_V6 | Key::REMOTE_V6;
                ([number(8), number(24)], header[6], header.last_chunk::<PORTS>()?, families)
            }
            _ => return None,
        };
        if protocol != TCP && protocol != SCTP {
            return None;
        }
        let [source, destination] = ends;
        let &[s0, s1, d0, d1] = ports;
        let (from, to) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
        let (local, remote, local_port, remote_port, way) = match direction {
            Direction::Out => (source, destination, from, to, Key::OUT),
            Direction::In => (destination, source, to, from, 0),
        };
        let flags = families | Key::HAS_PORTS | Key::USED | way;
        let rest = Key::pack_rest(local_port, remote_port, protocol, 0, flags);
        Some(Key { local, remote, ports_and_flags: rest })
    }

    #[inline]
    fn pack_rest(local: u16, remote: u16, protocol: u8, icmp: u8, flags: u64) -> u64 {
        u64::from(local) << 48
            | u64::from(remote) << 32
            | u64::from(protocol) << 24
            | u64::from(icmp) << 16
            | flags
    }

    /// Returns the index of the key's slot in the cache.
    #[inline]
    fn slot(&self) -> usize {
        let fold = |address: u128| (address >> 64) as u64 ^ address as u64;
        let sum = fold(self.local).rotate_left(17)
            ^ fold(self.remote)
            ^ self.ports_and_flags.rotate_left(40);
        (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % FLOWS
    }
}

#[derive(Debug)]
pub(super) struct Flows {
    spd: Spd<Protection>,
    cache: Box<[(Key, Decision<Protection>); FLOWS]>,
}

impl Flows {
    pub(super) fn new(spd: Spd<Protection>) -> Flows {
        Flows { spd, cache: Box::new([(Key::FREE, Decision::Bypass); FLOWS]) }
    }

    /// Returns the cached decision on the flow of a whole TCP or SCTP packet without IP options or extension headers.
    /// `None` for other packets and on a cache miss: use [`Flows::decide`].
    #[inline]
    pub(super) fn look_up_cached(
        &self,
        packet: &[u8],
        direction: Direction,
    ) -> Option<Decision<Protection>> {
        let key = Key::read(packet, direction)?;
        let (known, decision) = &self.cache[key.slot()];
        (*known == key).then_some(*decision)
    }

    #[inline]
    pub(super) fn decide(&mut self, flow: &Flow, direction: Direction) -> Decision<Protection> {
        let key = Key::new(flow, direction);
        let slot = key.slot();
        let (known, decision) = self.cache[slot];
        if known == key { decision } else { self.look_up(flow, direction, key, slot) }
    }

    #[inline(never)]
    fn look_up(
        &mut self,
        flow: &Flow,
        direction: Direction,
        key: Key,
        place: usize,
    ) -> Decision<Protection> {
        let decision = match self.spd.decide(flow, direction) {
            Decision::Protect(&protection) => Decision::Protect(protection),
            Decision::Bypass => Decision::Bypass,
            Decision::Denied(denied) => Decision::Denied(denied),
        };
        self.cache[place] = (key, decision);
        decision
    }

    /// Decides on a packet whose ports are not visible: see [`Spd::decide_fragment`].
    pub(super) fn decide_fragment(
        &self,
        flow: &Flow,
        visibility: Visibility,
        direction: Direction,
    ) -> Result<(), Denial> {
        self.spd.decide_fragment(flow, visibility, direction)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates IPv4 or IPv6 packets, mostly TCP or SCTP, with at most two bytes changed at random.
    fn packets() -> impl Strategy<Value = Vec<u8>> {
        let protocol = prop_oneof![4 => Just(TCP), 4 => Just(SCTP), 1 => any::<u8>()];
        let changes = prop::collection::vec((0..48usize, any::<u8>()), 0..3);
        let ends = any::<[u8; 32]>();
        (any::<bool>(), protocol, ends, 0..12usize, 0..4usize, changes).prop_map(
            |(v6, protocol, ends, payload, behind, changes)| {
                let (header, at) = if v6 { (IPV6_HEADER, 8) } else { (IPV4_HEADER, 12) };
                let mut packet = vec![0; header];
                if v6 {
                    (packet[0], packet[5], packet[6]) = (0x60, payload as u8, protocol);
                } else {
                    (packet[0], packet[3], packet[9]) = (0x45, (header + payload) as u8, protocol);
                }
                packet[at..].copy_from_slice(&ends[..header - at]);
                packet.extend((1..).take(payload + behind));
                for (at, byte) in changes {
                    if let Some(place) = packet.get_mut(at) {
                        *place = byte;
                    }
                }
                packet
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Fast and slow path find the same key, and the fast path accepts only whole TCP and SCTP packets.
        #[test]
        fn fast_and_slow_path_read_same_flow_key(packet in packets()) {
            for direction in [Direction::In, Direction::Out] {
                let seen = Flow::parse_with_visibility(&packet, direction == Direction::In);
                if let Some(key) = Key::read(&packet, direction) {
                    let (flow, part) = seen.unwrap();
                    prop_assert_eq!(key, Key::new(&flow, direction));
                    prop_assert_eq!(part, Visibility::Whole);
                    prop_assert!([TCP, SCTP].contains(&flow.protocol));
                } else if let Some((flow, Visibility::Whole)) = seen {
                    // Options and extension headers take the slow path.
                    let direct = match packet[0] {
                        0x45 => packet[9] == flow.protocol,
                        first => first >> 4 == 6 && packet[6] == flow.protocol,
                    };
                    let taken = [TCP, SCTP].contains(&flow.protocol) && flow.ports.is_some();
                    prop_assert!(!(direct && taken), "the fast path omits {:?}", flow);
                }
            }
        }
    }

    /// Flows that differ in any field have different keys, even if a field is zero in one and absent in the other.
    #[test]
    fn different_flows_have_different_keys() {
        let v4 = Flow {
            local: [0, 0, 0, 1].into(),
            remote: [0, 0, 0, 2].into(),
            protocol: 6,
            ports: Some((0, 0)),
            icmp: None,
            ike: false,
        };
        let (one, two) = ([0; 8].into(), [0, 0, 0, 0, 0, 0, 0, 2].into());
        let flows = [
            v4,
            Flow { local: [0, 0, 0, 3].into(), ..v4 },
            Flow { remote: [0, 0, 0, 3].into(), ..v4 },
            Flow { protocol: 17, ..v4 },
            Flow { ports: Some((1, 0)), ..v4 },
            Flow { ports: Some((0, 1)), ..v4 },
            Flow { ports: None, ..v4 },
            Flow { icmp: Some(0), ..v4 },
            Flow { icmp: Some(1), ..v4 },
            Flow { ike: true, ..v4 },
            Flow { local: [0; 4].into(), ..v4 },
            Flow { local: one, remote: two, ..v4 },
            Flow { local: one, ..v4 },
        ];
        let both = [Direction::In, Direction::Out];
        let keys: Vec<Key> =
            flows.iter().flat_map(|flow| both.map(|way| Key::new(flow, way))).collect();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(keys.iter().position(|other| other == key), Some(at));
            assert!(*key != Key::FREE && key.slot() < FLOWS);
        }
    }
}
