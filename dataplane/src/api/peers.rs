//! Admission of peers by address: prefixes that an interface and a listener allow and deny.
//!
//! A peer is admitted if no `deny` list contains its address and every non-empty `allow` list contains it. The lists
//! are checked when a packet opens a connection, an association or a session, and when a packet of an association has a
//! new source address. Other packets are not checked. The check is a binary search, at most 11 steps in a list of 1024
//! prefixes.

use core::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Peer lists of a listener and of its interface. Both must admit a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerFilter {
    /// Lists of the interface on which the listener accepts.
    pub interface: PeerLists,
    /// Lists of the listener itself.
    pub listener: PeerLists,
}

/// The lists `allow` and `deny` of one configuration section. Empty lists admit all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerLists {
    allow: Prefixes,
    deny: Prefixes,
}

/// Reason why a peer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRefusal {
    /// Section whose lists refuse the peer.
    pub owner: PeerListOwner,
    /// Rule that refuses the peer.
    pub rule: PeerRule,
}

/// Configuration section that a peer list belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerListOwner {
    /// The section of the interface.
    Interface,
    /// The section of the listener.
    Listener,
}

/// Rule that refuses a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRule {
    /// `deny` contains the address.
    Denied,
    /// `allow` is not empty, and does not contain the address.
    NotAllowed,
    /// The source is an IPv4-mapped IPv6 address. Such an address belongs to no host (RFC 4291 §2.5.5.2) and would
    /// bypass IPv4 prefixes.
    Mapped,
}

impl PeerFilter {
    /// Checks whether both the interface and the listener admit a peer.
    ///
    /// # Errors
    /// The list and the rule that refuse the peer.
    #[inline]
    pub fn check(&self, peer: IpAddr) -> Result<(), PeerRefusal> {
        if self.interface.is_open() && self.listener.is_open() {
            return Ok(());
        }
        self.interface.check(peer, PeerListOwner::Interface)?;
        self.listener.check(peer, PeerListOwner::Listener)
    }
}

impl PeerLists {
    /// Creates the lists from the prefixes of a configuration section.
    pub fn new(allow: &[IpNet], deny: &[IpNet]) -> PeerLists {
        PeerLists { allow: Prefixes::new(allow), deny: Prefixes::new(deny) }
    }

    /// Returns true if both lists are empty, so that all peers are admitted.
    #[inline]
    fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    fn check(&self, peer: IpAddr, owner: PeerListOwner) -> Result<(), PeerRefusal> {
        if self.is_open() {
            return Ok(());
        }
        let mapped = matches!(peer, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        let rule = if mapped {
            PeerRule::Mapped
        } else if self.deny.contains(peer) {
            PeerRule::Denied
        } else if self.allow.is_empty() || self.allow.contains(peer) {
            return Ok(());
        } else {
            PeerRule::NotAllowed
        };
        Err(PeerRefusal { owner, rule })
    }
}

impl fmt::Display for PeerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            PeerListOwner::Interface => "interface",
            PeerListOwner::Listener => "listener",
        };
        match self.rule {
            PeerRule::Denied => write!(f, "`deny` of the {owner} has the peer's address"),
            PeerRule::NotAllowed => {
                write!(f, "`allow` of the {owner} does not have the peer's address")
            }
            PeerRule::Mapped => write!(
                f,
                "the {owner} has `allow` or `deny`, which refuse an IPv4-mapped source address"
            ),
        }
    }
}

/// Prefixes as disjoint address ranges in ascending order. Each is a pair of first and last address, inclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Prefixes {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl Prefixes {
    fn new(prefixes: &[IpNet]) -> Prefixes {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for prefix in prefixes {
            match prefix {
                IpNet::V4(net) => v4.push((net.network().into(), net.broadcast().into())),
                IpNet::V6(net) => v6.push((net.network().into(), net.broadcast().into())),
            }
        }
        Prefixes { v4: disjoint(v4), v6: disjoint(v6) }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => within(&self.v4, v4.into()),
            IpAddr::V6(v6) => within(&self.v6, v6.into()),
        }
    }
}

/// Sorts the ranges and removes overlaps. Two prefixes are either disjoint or one contains the other, so the larger
/// range remains.
fn disjoint<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.sort_unstable_by_key(|&(first, last)| (first, core::cmp::Reverse(last)));
    ranges.dedup_by(|next, kept| next.1 <= kept.1);
    ranges
}

fn within<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let begun = ranges.partition_point(|&(first, _)| first <= address);
    begun.checked_sub(1).is_some_and(|at| address <= ranges[at].1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nets(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|prefix| prefix.parse().expect("a prefix")).collect()
    }

    fn lists(allow: &[&str], deny: &[&str]) -> PeerLists {
        PeerLists::new(&nets(allow), &nets(deny))
    }

    fn rule(filter: &PeerFilter, peer: &str) -> Option<PeerRule> {
        filter.check(peer.parse().expect("an address")).err().map(|refusal| refusal.rule)
    }

    #[test]
    fn deny_overrides_allow_and_empty_allow_admits_all() {
        let all = PeerFilter::default();
        assert_eq!(rule(&all, "192.0.2.1"), None);
        assert_eq!(rule(&all, "::ffff:192.0.2.1"), None);
        let only_deny =
            PeerFilter { listener: lists(&[], &["192.0.2.0/28"]), ..PeerFilter::default() };
        assert_eq!(rule(&only_deny, "192.0.2.15"), Some(PeerRule::Denied));
        assert_eq!(rule(&only_deny, "192.0.2.16"), None);
        assert_eq!(rule(&only_deny, "2001:db8::1"), None);
        let both = PeerFilter {
            listener: lists(&["192.0.2.0/24", "192.0.2.128/25"], &["192.0.2.7/32"]),
            ..PeerFilter::default()
        };
        assert_eq!(rule(&both, "192.0.2.6"), None);
        assert_eq!(rule(&both, "192.0.2.255"), None);
        assert_eq!(rule(&both, "192.0.2.7"), Some(PeerRule::Denied));
        assert_eq!(rule(&both, "192.0.3.0"), Some(PeerRule::NotAllowed));
        // An address family without entries in `allow` is refused.
        assert_eq!(rule(&both, "2001:db8::1"), Some(PeerRule::NotAllowed));
    }

    #[test]
    fn interface_and_listener_must_both_admit() {
        let filter = PeerFilter {
            interface: lists(&["2001:db8::/32"], &[]),
            listener: lists(&["2001:db8:1::/48"], &["2001:db8:1::bad/128"]),
        };
        let check = |peer: &str| filter.check(peer.parse().expect("an address"));
        assert_eq!(check("2001:db8:1::1"), Ok(()));
        let by_listener = |rule| PeerRefusal { owner: PeerListOwner::Listener, rule };
        assert_eq!(check("2001:db8:2::1"), Err(by_listener(PeerRule::NotAllowed)));
        assert_eq!(check("2001:db8:1::bad"), Err(by_listener(PeerRule::Denied)));
        let by_interface =
            PeerRefusal { owner: PeerListOwner::Interface, rule: PeerRule::NotAllowed };
        assert_eq!(check("2001:db9::1"), Err(by_interface));
        assert_eq!(
            by_interface.to_string(),
            "`allow` of the interface does not have the peer's address"
        );
    }

    #[test]
    fn mapped_ipv4_source_is_refused_by_any_list() {
        for lists in
            [lists(&["192.0.2.0/24"], &[]), lists(&[], &["192.0.2.0/24"]), lists(&["::/0"], &[])]
        {
            let filter = PeerFilter { listener: lists, ..PeerFilter::default() };
            assert_eq!(rule(&filter, "::ffff:192.0.2.1"), Some(PeerRule::Mapped), "{filter:?}");
        }
    }

    proptest! {
        #[test]
        fn ranges_contain_the_addresses_of_their_prefixes(
            prefixes in prop::collection::vec((any::<u8>(), 0u8..=8), 0..20),
            v6: bool,
        ) {
            let net = |(bits, len): (u8, u8)| -> IpNet {
                let address: IpAddr = match v6 {
                    false => [10, 0, 0, bits].into(),
                    true => u128::from(bits).to_be_bytes().into(),
                };
                let before = if v6 { 120 } else { 24 };
                IpNet::new_assert(address, before + len).trunc()
            };
            let prefixes: Vec<IpNet> = prefixes.into_iter().map(net).collect();
            let set = Prefixes::new(&prefixes);
            for bits in 0..=u8::MAX {
                let address = net((bits, 8)).addr();
                let expected = prefixes.iter().any(|prefix| prefix.contains(&address));
                prop_assert_eq!(set.contains(address), expected, "{}", address);
            }
        }
    }
}
