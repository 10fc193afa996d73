//! The policies, with what they decided of the flows that were seen last: a look-up in the list costs as much as the list is
//! long, and each packet takes one.

use std::net::IpAddr;

use super::Protection;
use crate::ip::Part;
use crate::policy::{Decision, Denied, Direction, Flow, Spd};

/// Flows whose policy is remembered. Direct-mapped: one takes another's place.
const FLOWS: usize = 256;

/// A flow and a direction, in words: compared with each packet, without a way through memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    local: u128,
    remote: u128,
    /// From the top: both ports, the protocol, ICMP's type, and [flags](Key::USED).
    rest: u64,
}

impl Key {
    /// Of a place that is not free.
    const USED: u64 = 1;
    const HAS_PORTS: u64 = 2;
    const HAS_ICMP: u64 = 4;
    const LOCAL_V6: u64 = 8;
    const REMOTE_V6: u64 = 16;
    const OUT: u64 = 32;

    const FREE: Key = Key { local: 0, remote: 0, rest: 0 };

    #[inline]
    fn new(flow: &Flow, direction: Direction) -> Key {
        let number = |address: &IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from_ne_bytes(address.octets())),
            IpAddr::V6(address) => u128::from_ne_bytes(address.octets()),
        };
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let (local, remote) = flow.ports.unwrap_or_default();
        let icmp = flow.icmp.unwrap_or_default();
        let rest = u64::from(local) << 48
            | u64::from(remote) << 32
            | u64::from(flow.protocol) << 24
            | u64::from(icmp) << 16
            | flag(flow.ports.is_some(), Key::HAS_PORTS)
            | flag(flow.icmp.is_some(), Key::HAS_ICMP)
            | flag(flow.local.is_ipv6(), Key::LOCAL_V6)
            | flag(flow.remote.is_ipv6(), Key::REMOTE_V6)
            | flag(direction == Direction::Out, Key::OUT)
            | Key::USED;
        Key { local: number(&flow.local), remote: number(&flow.remote), rest }
    }

    /// Where it is remembered.
    #[inline]
    fn place(&self) -> usize {
        let fold = |address: u128| (address >> 64) as u64 ^ address as u64;
        let sum = fold(self.local).rotate_left(17) ^ fold(self.remote) ^ self.rest.rotate_left(40);
        (sum.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % FLOWS
    }
}

#[derive(Debug)]
pub(super) struct Flows {
    spd: Spd<Protection>,
    known: Box<[(Key, Decision<Protection>); FLOWS]>,
}

impl Flows {
    pub(super) fn new(spd: Spd<Protection>) -> Flows {
        Flows { spd, known: Box::new([(Key::FREE, Decision::Bypass); FLOWS]) }
    }

    #[inline]
    pub(super) fn decide(&mut self, flow: &Flow, direction: Direction) -> Decision<Protection> {
        let key = Key::new(flow, direction);
        let place = key.place();
        let (known, decision) = self.known[place];
        if known == key { decision } else { self.look_up(flow, direction, (key, place)) }
    }

    #[inline(never)]
    fn look_up(
        &mut self,
        flow: &Flow,
        direction: Direction,
        (key, place): (Key, usize),
    ) -> Decision<Protection> {
        let decision = match self.spd.decide(flow, direction) {
            Decision::Protect(&protection) => Decision::Protect(protection),
            Decision::Bypass => Decision::Bypass,
            Decision::Denied(denied) => Decision::Denied(denied),
        };
        self.known[place] = (key, decision);
        decision
    }

    /// See [`Spd::piece`].
    pub(super) fn piece(
        &self,
        flow: &Flow,
        part: Part,
        direction: Direction,
    ) -> Result<(), Denied> {
        self.spd.piece(flow, part, direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What differs in anything is another key, also where a field is there and zero.
    #[test]
    fn keys_differ_where_flows_do() {
        let v4 = Flow {
            local: [0, 0, 0, 1].into(),
            remote: [0, 0, 0, 2].into(),
            protocol: 6,
            ports: Some((0, 0)),
            icmp: None,
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
            Flow { local: [0; 4].into(), ..v4 },
            Flow { local: one, remote: two, ..v4 },
            Flow { local: one, ..v4 },
        ];
        let both = [Direction::In, Direction::Out];
        let keys: Vec<Key> =
            flows.iter().flat_map(|flow| both.map(|way| Key::new(flow, way))).collect();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(keys.iter().position(|other| other == key), Some(at));
            assert!(*key != Key::FREE && key.place() < FLOWS);
        }
    }
}
