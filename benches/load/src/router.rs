//! The router to the generator's addresses. It answers the appliance's ARP requests and neighbour solicitations for the
//! router's own address.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpEthIpv4Packet, ArpHardwareId, ArpOperation, ArpPacket, EtherType, Ethernet2Header,
    Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
};

/// IPv4 address of the router in the flooded network.
pub const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 254);
/// IPv6 address of the router in the flooded network.
pub const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd80, 0, 0, 0, 0, 0, 0, 0xfe);

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Simulated router, which answers requests for its hardware address.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// Source MAC address of the answers.
    pub mac: [u8; 6],
}

impl Router {
    /// Returns the answer to a request for the router's hardware address; `None` for other frames.
    pub fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let asker: [u8; 6] = frame.get(6..12)?.try_into().ok()?;
        match packet.net? {
            NetSlice::Arp(request) => self.answer_arp(&request.to_packet().try_eth_ipv4().ok()?),
            NetSlice::Ipv6(ip) => {
                let TransportSlice::Icmpv6(icmp) = packet.transport? else { return None };
                let target = icmp.payload().get(..16)?;
                let is_for_router = icmp.type_u8() == SOLICITATION && target == ROUTER_V6.octets();
                let source = ip.header().source();
                (is_for_router && source != [0; 16])
                    .then(|| self.build_advertisement(asker, source))
                    .flatten()
            }
            NetSlice::Ipv4(_) => None,
        }
    }

    fn answer_arp(&self, request: &ArpEthIpv4Packet) -> Option<Vec<u8>> {
        let is_for_router =
            request.operation == ArpOperation::REQUEST && request.target_ipv4 == ROUTER_V4.octets();
        if !is_for_router {
            return None;
        }
        let reply = ArpPacket::new(
            ArpHardwareId::ETHERNET,
            EtherType::IPV4,
            ArpOperation::REPLY,
            &self.mac,
            &ROUTER_V4.octets(),
            &request.sender_mac,
            &request.sender_ipv4,
        )
        .ok()?;
        let ethernet = Ethernet2Header {
            source: self.mac,
            destination: request.sender_mac,
            ether_type: EtherType::ARP,
        };
        let mut bytes = ethernet.to_bytes().to_vec();
        bytes.extend_from_slice(&reply.to_bytes());
        bytes.resize(60, 0);
        Some(bytes)
    }

    /// Builds a neighbour advertisement with the flags solicited and override, and the target link-layer address option
    /// (RFC 4861 §4.4). `None` if it cannot be encoded.
    fn build_advertisement(&self, asker: [u8; 6], source: [u8; 16]) -> Option<Vec<u8>> {
        let mut body = ROUTER_V6.octets().to_vec();
        body.extend_from_slice(&[2, 1]);
        body.extend_from_slice(&self.mac);
        let kind =
            Icmpv6Type::Unknown { type_u8: ADVERTISEMENT, code_u8: 0, bytes5to8: [0x60, 0, 0, 0] };
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2(self.mac, asker)
            .ipv6(ROUTER_V6.octets(), source, 255)
            .icmpv6(kind)
            .write(&mut bytes, &body)
            .ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn request(target: Ipv4Addr) -> Vec<u8> {
        let mut bytes = vec![0xff; 6];
        bytes.extend_from_slice(&ASKER);
        bytes.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        bytes.extend_from_slice(&ASKER);
        bytes.extend_from_slice(&[10, 80, 0, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&target.octets());
        bytes
    }

    #[test]
    fn arp_request_for_router_only_is_answered() {
        let router = Router { mac: MAC };
        assert_eq!(router.answer(&request(Ipv4Addr::new(10, 80, 0, 2))), None);
        let reply = router.answer(&request(ROUTER_V4)).unwrap();
        assert_eq!(
            (&reply[..6], &reply[6..12], &reply[20..22]),
            (&ASKER[..], &MAC[..], &[0, 2][..])
        );
        assert_eq!((&reply[22..28], &reply[28..32]), (&MAC[..], &ROUTER_V4.octets()[..]));
        assert_eq!(reply.len(), 60);
    }

    #[test]
    fn solicitation_is_answered_with_valid_checksum() {
        let router = Router { mac: MAC };
        let own = Ipv6Addr::new(0xfd80, 0, 0, 0, 0, 0, 0, 1).octets();
        let ask = |target: Ipv6Addr| {
            let mut body = target.octets().to_vec();
            body.extend_from_slice(&[1, 1]);
            body.extend_from_slice(&ASKER);
            let kind = Icmpv6Type::Unknown { type_u8: 135, code_u8: 0, bytes5to8: [0; 4] };
            let group = [0x33, 0x33, 0xff, 0, 0, 0xfe];
            let mut bytes = Vec::new();
            PacketBuilder::ethernet2(ASKER, group)
                .ipv6(own, [0xff; 16], 255)
                .icmpv6(kind)
                .write(&mut bytes, &body)
                .unwrap();
            bytes
        };
        assert_eq!(router.answer(&ask(Ipv6Addr::LOCALHOST)), None);
        let reply = router.answer(&ask(ROUTER_V6)).unwrap();
        let packet = SlicedPacket::from_ethernet(&reply).unwrap();
        let (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(icmp))) =
            (packet.net, packet.transport)
        else {
            panic!("{reply:?}")
        };
        assert_eq!((ip.header().destination(), ip.header().hop_limit()), (own, 255));
        assert!(icmp.is_checksum_valid(ROUTER_V6.octets(), own));
        assert_eq!(&icmp.payload()[18..], &MAC);
        assert!(router.answer(&reply).is_none());
    }

    #[test]
    fn malformed_frame_is_not_answered() {
        let router = Router { mac: MAC };
        let whole = request(ROUTER_V4);
        for len in 0..whole.len() {
            assert_eq!(router.answer(&whole[..len]), None, "{len} bytes");
        }
    }
}
