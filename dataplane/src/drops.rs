//! Reasons for which frames and segments are dropped, with one counter each.

use sctp_lite::sctp;
use tcp_lite::tcp;

use crate::counter::Counter;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Why a frame or segment was dropped by the network stack or the worker. What TCP, MPA and
        /// DDP refuse is counted per stream besides.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl DropReason {
            /// All of them, in the order of [`Drops`].
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)+];

            /// Stable name for output and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DropReason::$name => $text,)+
                }
            }

            /// What it means.
            pub const fn description(self) -> &'static str {
                match self {
                    $(DropReason::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than its headers say, or than an Ethernet header.
    Truncated = "truncated",
    /// An EtherType that is not supported.
    EtherType = "ether_type",
    /// A VLAN without an interface, or two tags.
    Vlan = "vlan",
    /// Not addressed to the port's MAC address, broadcast or one of its multicast groups.
    NotOurMac = "not_our_mac",
    /// Source MAC address is a group address.
    BadSourceMac = "bad_source_mac",
    /// IP version or header length is wrong.
    IpHeader = "ip_header",
    /// IPv4 header checksum is wrong.
    IpChecksum = "ip_checksum",
    /// An option of IPv4 whose length is below two bytes or beyond the header.
    IpOptions = "ip_options",
    /// IPv4 with a loose or strict source route, which RFC 7126 §4.3 and §4.4 have dropped.
    SourceRoute = "source_route",
    /// Not addressed to an address of the interface.
    NotOurAddress = "not_our_address",
    /// Source address cannot be: unspecified, multicast, broadcast, loopback or our own.
    BadSource = "bad_source",
    /// A fragment of a packet that is neither TCP's nor SCTP's.
    Fragment = "fragment",
    /// A fragment whose length is not that of one, or whose marks contradict the others'.
    FragmentBad = "fragment_bad",
    /// A fragment that begins or ends inside the header of TCP or SCTP.
    FragmentTiny = "fragment_tiny",
    /// A fragment that overlaps another of its packet; nothing of the packet is used.
    FragmentOverlap = "fragment_overlap",
    /// A fragment that came before.
    FragmentDuplicate = "fragment_duplicate",
    /// A fragment of a peer that has its share of unfinished packets, or of a packet in too many pieces.
    FragmentLimit = "fragment_limit",
    /// IPv6 hop-by-hop options that are not right behind the IPv6 header.
    HopByHop = "hop_by_hop",
    /// More IPv6 extension headers than are followed, or one that forbids going on.
    ExtensionHeader = "extension_header",
    /// An IP protocol that is not supported.
    IpProtocol = "ip_protocol",
    /// TCP or ICMP checksum is wrong.
    L4Checksum = "l4_checksum",
    /// ARP packet is malformed or not for IPv4 over Ethernet.
    Arp = "arp",
    /// ARP or neighbour discovery for somebody else, or not to be believed.
    NeighbourIgnored = "neighbour_ignored",
    /// Somebody else uses one of our addresses.
    AddressConflict = "address_conflict",
    /// The neighbour cache is full of entries in use.
    NeighbourTableFull = "neighbour_table_full",
    /// Neighbour discovery that breaks RFC 4861 §7.1 (hop limit, code, options).
    NeighbourDiscovery = "neighbour_discovery",
    /// ICMP that is malformed.
    Icmp = "icmp",
    /// ICMP that is not used here.
    IcmpIgnored = "icmp_ignored",
    /// ICMP error about a packet that we cannot have sent.
    IcmpNotBelieved = "icmp_not_believed",
    /// ICMP error about a flow that is no stream of ours.
    IcmpNoStream = "icmp_no_stream",
    /// ICMP error about a segment that is not under way.
    IcmpNotInFlight = "icmp_not_in_flight",
    /// Packet too big with an MTU that is below what is believed, or larger than the packet.
    IcmpSize = "icmp_size",
    /// ICMP errors past the rate limit.
    IcmpRateLimited = "icmp_rate_limited",
    /// Packet too big that asks for nothing smaller than what is used already.
    IcmpNoNews = "icmp_no_news",
    /// Echo request, neighbour's question or INIT not answered because of the rate limit.
    RateLimited = "rate_limited",
    /// Segment without a stream (answered by a reset if the rate allows).
    NoStream = "no_stream",
    /// SYN to a port without a listener (answered by a reset if the rate allows).
    NoListener = "no_listener",
    /// First packet (SYN, returned cookie, INIT, COOKIE ECHO), or one without a stream, to a listener of a peer that `allow`
    /// and `deny` refuse. Not answered.
    PeerRefused = "peer_refused",
    /// SYN while the listener has no credit.
    NoCredit = "no_credit",
    /// SYN while the backlog is full.
    Backlog = "backlog",
    /// SYN while the peer has as many half-open streams as it may.
    PeerLimit = "peer_limit",
    /// SYN or cookie while the peer has as many streams, and associations without one, as it may.
    PeerStreams = "peer_streams",
    /// SYN while the worker has reached its limit of streams or is draining.
    StreamLimit = "stream_limit",
    /// Cookie of SCTP while the event ring is nearly full.
    EventRing = "event_ring",
    /// No route back to the sender.
    NoRoute = "no_route",
    /// Arrived from the wire for another worker whose ring is full.
    MeshFull = "mesh_full",
    /// SYN, returned cookie, or SCTP packet without an association, in a burst behind which more may wait, of which the
    /// worker examines only a few, and 10,000 a second besides.
    Overload = "overload",
    /// For the host: its ring is full, or the burst has given it as many frames as it may (a few of a full one, and 10,000 a
    /// second besides).
    HostFull = "host_full",
    /// In clear, where a policy of IPsec protects (RFC 4301 §5.2).
    IpsecUnprotected = "ipsec_unprotected",
    /// Came by an SA whose policy does not select it (RFC 4301 §5.2).
    IpsecWrongProtection = "ipsec_wrong_protection",
    /// A policy of IPsec drops it.
    IpsecDiscarded = "ipsec_discarded",
    /// There are policies of IPsec, and none names it.
    IpsecNoPolicy = "ipsec_no_policy",
    /// For the host, under policies of IPsec: neither an intact IP packet nor ARP, LLDP or EAPOL.
    IpsecUnclassified = "ipsec_unclassified",
    /// ESP of an SA that there is not (RFC 4303 §3.4.2).
    EspUnknownSpi = "esp_unknown_spi",
    /// ESP that came before, or is too old for the anti-replay window (RFC 4303 §3.4.3).
    EspReplay = "esp_replay",
    /// ESP whose integrity check fails (RFC 4303 §3.4.4.1).
    EspIntegrity = "esp_integrity",
    /// ESP that is malformed inside or outside.
    EspMalformed = "esp_malformed",
    /// ESP of an SA that is over.
    EspExpired = "esp_expired",
    /// ESP without a packet in it, which hides how much is sent (RFC 4303 §2.6).
    EspDummy = "esp_dummy",
    /// For a listener that requires more protection by IPsec than the stream would have, or for a stream of it that requires more
    /// than the packet had.
    NotProtected = "not_protected",
    /// For a port that the worker has no queue of.
    NoPort = "no_port",
    /// SYN to be answered with a cookie: no packet buffer, or no room in the transmit ring.
    TxFull = "tx_full",
}

/// One counter per [`DropReason`], and one per reason of TCP's and SCTP's own.
#[derive(Debug)]
pub struct Drops {
    stack: [Counter; DropReason::ALL.len()],
    tcp: [Counter; tcp::DropReason::ALL.len()],
    sctp: [Counter; sctp::DropReason::ALL.len()],
}

impl Default for Drops {
    fn default() -> Self {
        Drops {
            stack: std::array::from_fn(|_| Counter::default()),
            tcp: std::array::from_fn(|_| Counter::default()),
            sctp: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl Drops {
    /// Counts one.
    #[inline]
    pub fn count(&self, reason: DropReason) {
        self.stack[reason as usize].add(1);
    }

    /// Counts a segment that TCP refused.
    #[inline]
    pub fn count_tcp(&self, reason: tcp::DropReason) {
        self.tcp[reason.index()].add(1);
    }

    /// Counts a packet that SCTP refused, or of which it refused something.
    #[inline]
    pub fn count_sctp(&self, reason: sctp::DropReason) {
        self.sctp[reason.index()].add(1);
    }

    /// How many there were.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.stack[reason as usize].get()
    }

    /// How many segments TCP refused for this.
    pub fn get_tcp(&self, reason: tcp::DropReason) -> u64 {
        self.tcp[reason.index()].get()
    }

    /// How many packets SCTP refused for this.
    pub fn get_sctp(&self, reason: sctp::DropReason) -> u64 {
        self.sctp[reason.index()].get()
    }

    /// Layer (`net`, `tcp` or `sctp`), name and number of each reason.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let stack = DropReason::ALL.iter().map(|&r| ("net", r.name(), self.get(r)));
        let tcp = tcp::DropReason::ALL
            .iter()
            .map(|&r| ("tcp", r.name().trim_start_matches("tcp_"), self.get_tcp(r)));
        let sctp = sctp::DropReason::ALL
            .iter()
            .map(|&r| ("sctp", r.name().trim_start_matches("sctp_"), self.get_sctp(r)));
        stack.chain(tcp).chain(sctp)
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.iter().map(|(.., n)| n).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter_and_name() {
        let drops = Drops::default();
        for (i, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, i);
            drops.count(reason);
            assert_eq!(drops.total(), i as u64 + 1);
            assert!(!reason.description().is_empty());
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
