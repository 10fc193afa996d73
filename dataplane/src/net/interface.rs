//! An IP interface of one worker: a port, a VLAN, addresses, routes and neighbours. It selects next hops and source
//! addresses. Announcements of the addresses and the detection of conflicts are not included ([`super::presence`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use super::neighbour::{Mac, NeighbourCache};
use crate::ids::{InterfaceId, PortId};
use port_kind::policy::{IpFields, LocalPorts, Route};

/// Configuration of an IP interface: a port, a VLAN on it and addresses.
#[derive(Clone, Debug)]
pub struct InterfaceConfig {
    /// Name in the configuration.
    pub name: String,
    /// Port that carries the interface.
    pub port: PortId,
    /// VLAN identifier, 1 to 4094; `None` for untagged and priority-tagged frames.
    pub vlan: Option<u16>,
    /// Addresses with their prefixes. If there are IPv6 addresses but no link-local address, a link-local address is
    /// added.
    pub addresses: Vec<IpNet>,
    /// Routes through gateways. Connected prefixes need none.
    pub routes: Vec<Route>,
    /// MTU in bytes, at least 576 (IPv4) or 1280 (IPv6), at most the port's.
    pub mtu: u16,
    /// IP header fields of its TCP and SCTP packets.
    pub ip: IpFields,
    /// Local port range of outgoing streams and associations.
    pub local_ports: LocalPorts,
    /// True if the interface is shared with the host's kernel. [`crate::Dataplane::hosts`] then contains its
    /// kernel-side end.
    pub host: bool,
}

/// An interface with its state.
#[derive(Debug)]
pub struct Interface {
    /// Identifier of the interface.
    pub id: InterfaceId,
    /// Index of its port.
    pub port: usize,
    /// VLAN identifier, 1 to 4094; `None` for untagged and priority-tagged frames.
    pub vlan: Option<u16>,
    /// The port's link-layer address.
    pub mac: Mac,
    /// MTU in bytes: largest IP packet.
    pub mtu: u16,
    /// Local UDP port for SCTP in UDP (RFC 6951); `None` if only SCTP directly in IP is accepted.
    pub encapsulation: Option<u16>,
    /// IP header fields of TCP and SCTP packets.
    pub ip: IpFields,
    /// Local port range of outgoing streams and associations.
    pub local_ports: LocalPorts,
    /// True if IPsec policies apply. Policies match whole packets, so fragments of UDP and ESP are then also
    /// reassembled.
    pub has_ipsec_policies: bool,
    /// Neighbours on the link.
    pub neighbours: NeighbourCache,
    addresses: Vec<IpNet>,
    /// Own IPv4 addresses without their prefixes, for fast comparison with each packet's destination.
    v4: Vec<u32>,
    broadcasts: Vec<u32>,
    routes: Vec<Route>,
}

impl Interface {
    /// Creates the interface `id` as configured, on a port with link-layer address `mac`. `neighbours` is the capacity
    /// of its neighbour cache, and `key` is the secret key of the cache's hash.
    pub fn new(
        id: InterfaceId,
        config: &InterfaceConfig,
        mac: Mac,
        neighbours: usize,
        key: [u8; 16],
    ) -> Self {
        let mut addresses = config.addresses.clone();
        let has_v6 = addresses.iter().any(|net| net.addr().is_ipv6());
        if has_v6 && !addresses.iter().any(|net| is_link_local(&net.addr())) {
            addresses.push(Ipv6Net::new_assert(link_local(mac), 64).into());
        }
        let mut routes = config.routes.clone();
        routes.sort_by_key(|route| core::cmp::Reverse(route.to.prefix_len()));
        let v4 = |net: &IpNet| match *net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        };
        let links = addresses.iter().filter_map(v4).filter(|net| net.prefix_len() < 31);
        let mut broadcasts: Vec<u32> = links.map(|net| net.broadcast().into()).collect();
        broadcasts.push(u32::MAX);
        broadcasts.sort_unstable();
        broadcasts.dedup();
        Interface {
            v4: addresses.iter().filter_map(v4).map(|net| net.addr().into()).collect(),
            broadcasts,
            id,
            port: config.port.0 as usize,
            vlan: config.vlan,
            mac,
            mtu: config.mtu,
            encapsulation: None,
            has_ipsec_policies: false,
            ip: config.ip,
            local_ports: config.local_ports,
            neighbours: NeighbourCache::new(neighbours, key),
            addresses,
            routes,
        }
    }

    /// Returns the interface's addresses, including its IPv6 link-local address.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(IpNet::addr)
    }

    /// Returns true if `address` is one of the interface's own.
    pub fn has_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.has_v4_address(address),
            IpAddr::V6(_) => self.addresses.iter().any(|net| net.addr() == address),
        }
    }

    /// Returns true if `address` is one of the interface's own IPv4 addresses.
    #[inline]
    pub fn has_v4_address(&self, address: Ipv4Addr) -> bool {
        self.v4.contains(&u32::from(address))
    }

    /// Returns true if the address is on this link: in the prefix of an address of the interface, or IPv6
    /// link-local if the interface has an IPv6 address.
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V6(a) if a.is_unicast_link_local() && self.has_v6_address())
            || self.addresses.iter().any(|net| net.contains(&address))
    }

    /// Returns the next hop for `destination`: the destination itself if it is on the link, otherwise the gateway of
    /// the route with the longest matching prefix. Returns `None` if no route matches.
    pub fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        if self.is_on_link(destination) {
            return Some(destination);
        }
        self.routes.iter().find(|route| route.to.contains(&destination)).map(|route| route.via)
    }

    /// Returns the source address for `destination`: the address whose prefix contains the next hop, otherwise the
    /// first address of the same family. The source for a link-local destination is a link-local address; the source
    /// for any other destination is not. Returns `None` if no route matches or the interface has no such address.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        source_address(&self.addresses, self.next_hop(destination)?, destination)
    }

    /// Returns a source address for solicitations of `neighbour`: the address that [`source_for`](Self::source_for)
    /// returns, otherwise any address of the same family.
    pub fn solicitation_source(&self, neighbour: IpAddr) -> Option<IpAddr> {
        self.source_for(neighbour)
            .or_else(|| self.addresses().find(|a| a.is_ipv4() == neighbour.is_ipv4()))
    }

    /// Returns true for the broadcast addresses of the interface's prefixes and for 255.255.255.255.
    #[inline]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        self.broadcasts.contains(&u32::from(address))
    }

    /// Returns true if the interface is a member of the IPv6 multicast group: all nodes, or the solicited-node group of
    /// one of its addresses (RFC 4291 §2.8). False without an IPv6 address.
    pub fn is_in_group(&self, group: Ipv6Addr) -> bool {
        self.has_v6_address()
            && (group == ALL_NODES
                || self
                    .addresses()
                    .any(|a| matches!(a, IpAddr::V6(a) if solicited_node(a) == group)))
    }

    /// Returns true if the interface accepts frames to this destination: its own address, broadcast, IPv6's group of
    /// all nodes, or the solicited-node group of one of its IPv6 addresses.
    pub fn accepts_mac(&self, mac: Mac) -> bool {
        mac == self.mac
            || mac == BROADCAST
            || (mac[..2] == [0x33, 0x33]
                && (mac == group_mac(ALL_NODES)
                    || self.addresses().any(|a| match a {
                        IpAddr::V6(a) => mac == group_mac(solicited_node(a)),
                        IpAddr::V4(_) => false,
                    })))
    }

    fn has_v6_address(&self) -> bool {
        self.addresses.iter().any(|net| net.addr().is_ipv6())
    }
}

/// The broadcast link-layer address.
pub const BROADCAST: Mac = [0xff; 6];

/// The all-nodes group of a link, ff02::1 (RFC 4291 §2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the solicited-node group of `address` (RFC 4291 §2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z])
}

/// Returns the Ethernet address of an IPv6 multicast group (RFC 2464 §7).
pub fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., w, x, y, z] = group.octets();
    [0x33, 0x33, w, x, y, z]
}

/// Returns the IPv6 link-local address derived from an Ethernet address (RFC 4291 appendix A).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns the source address for a destination with the next hop `hop`: see [`Interface::source_for`].
pub fn source_address(addresses: &[IpNet], hop: IpAddr, destination: IpAddr) -> Option<IpAddr> {
    let fits = |net: &&IpNet| {
        net.addr().is_ipv4() == destination.is_ipv4()
            && is_link_local(&net.addr()) == is_link_local(&destination)
    };
    let same_prefix = addresses.iter().filter(fits).find(|net| net.contains(&hop));
    same_prefix.or_else(|| addresses.iter().find(fits)).map(IpNet::addr)
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.is_unicast_link_local())
}

#[cfg(test)]
impl Interface {
    /// Returns an interface on port 0 with two addresses, in prefixes of 24 bits (IPv4) and 64 bits (IPv6), and an MTU
    /// of 1500.
    pub(crate) fn with_addresses(vlan: Option<u16>, mac: Mac, addresses: [&str; 2]) -> Interface {
        let addresses = addresses
            .map(|a| IpNet::new_assert(a.parse().unwrap(), if a.contains(':') { 64 } else { 24 }));
        let config = InterfaceConfig {
            ip: Default::default(),
            local_ports: Default::default(),
            host: false,
            name: String::new(),
            port: crate::ids::PortId(0),
            vlan,
            addresses: addresses.to_vec(),
            routes: Vec::new(),
            mtu: 1500,
        };
        Interface::new(InterfaceId(0), &config, mac, 16, [0; 16])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PortId;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    fn net(s: &str) -> IpNet {
        s.parse().unwrap()
    }

    fn interface() -> Interface {
        let config = InterfaceConfig {
            ip: Default::default(),
            local_ports: Default::default(),
            host: false,
            name: "lan".into(),
            port: PortId(0),
            vlan: None,
            addresses: vec![net("10.1.0.5/24"), net("192.0.2.9/28"), net("2001:db8::5/64")],
            routes: vec![
                Route { to: net("0.0.0.0/0"), via: ip("10.1.0.1") },
                Route { to: net("172.16.0.0/12"), via: ip("192.0.2.1") },
            ],
            mtu: 1500,
        };
        Interface::new(InterfaceId(0), &config, [2, 0, 0, 0xab, 0xcd, 0xef], 16, [0; 16])
    }

    #[test]
    fn next_hop_uses_longest_matching_route() {
        let i = interface();
        assert_eq!(i.next_hop(ip("10.1.0.77")), Some(ip("10.1.0.77")));
        assert_eq!(i.next_hop(ip("172.17.1.1")), Some(ip("192.0.2.1")));
        assert_eq!(i.next_hop(ip("8.8.8.8")), Some(ip("10.1.0.1")));
        assert_eq!(i.next_hop(ip("fe80::1")), Some(ip("fe80::1")));
        assert_eq!(i.next_hop(ip("2001:db9::1")), None);
    }

    #[test]
    fn source_is_in_the_prefix_of_the_next_hop() {
        let i = interface();
        assert_eq!(i.source_for(ip("172.17.1.1")), Some(ip("192.0.2.9")));
        assert_eq!(i.source_for(ip("8.8.8.8")), Some(ip("10.1.0.5")));
        assert_eq!(i.source_for(ip("2001:db8::9")), Some(ip("2001:db8::5")));
        assert_eq!(i.source_for(ip("fe80::1")), Some(ip("fe80::ff:feab:cdef")));
    }

    #[test]
    fn only_own_groups_and_broadcasts_match() {
        let i = interface();
        assert!(i.is_in_group("ff02::1:ff00:5".parse().unwrap()));
        assert!(i.is_in_group("ff02::1:ffab:cdef".parse().unwrap()));
        assert!(!i.is_in_group("ff02::1:ff00:6".parse().unwrap()));
        assert!(
            i.accepts_mac([0x33, 0x33, 0xff, 0, 0, 5])
                && !i.accepts_mac([0x33, 0x33, 0xff, 0, 0, 6])
        );
        assert!(i.is_broadcast([10, 1, 0, 255].into()) && i.is_broadcast([192, 0, 2, 15].into()));
        assert!(!i.is_broadcast([10, 1, 0, 254].into()) && !i.is_broadcast([10, 2, 0, 255].into()));
    }
}
