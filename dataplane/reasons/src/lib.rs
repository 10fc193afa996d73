//! Reasons for which the network stack and the workers drop frames. The crate does not depend on DPDK, so that `ddpctl`
//! can explain the reasons on any host. The counters are in `dataplane`. Reasons of TCP and SCTP are in their crates.

#![forbid(unsafe_code)]

base::explained! {
    /// Reason for which the network stack or the worker dropped a frame or segment. Refusals by TCP, MPA and DDP are
    /// counted per stream in addition.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum DropReason {
        /// A frame that is shorter than its headers state, or than an Ethernet header.
        #[explain("truncated",
            cause = "A sender or a device that truncates frames. On an `af_packet` port also an IPv4 datagram longer \
                     than the MTU, which Linux has reassembled from fragments.",
            remedy = "Give both ends the same MTU. `ddpctl capture PORT --filter dropped` shows the sender.")]
        Truncated,
        /// An EtherType that is not supported.
        #[explain("ether_type",
            cause = "LLDP, spanning tree, PPPoE or another protocol that switches send: harmless.",
            remedy = "None. If the host needs such frames, share the interface with it (`host` in `[[interface]]`).")]
        EtherType,
        /// A VLAN without an interface, or a frame with two tags.
        #[explain("vlan",
            cause = "A trunk that carries other VLANs, too, or an `[[interface]]` whose `vlan` is missing or wrong.",
            remedy = "Compare `vlan` of `[[interface]]` with the switch port, and prune the trunk to the VLANs in \
                      use.")]
        Vlan,
        /// A frame that is not addressed to the port's MAC address, broadcast or one of its multicast groups.
        #[explain("not_our_mac",
            cause = "A switch that floods frames for other hosts, or on an `af_packet` port the host's own frames. \
                     TCP and SCTP to a group address count here, too.",
            remedy = "None while the rate is low. If a peer cannot connect, compare the MAC address in `ddpctl ports` \
                      with the peer's neighbour cache (`ip neigh`).")]
        NotOurMac,
        /// The source MAC address is a group address.
        #[explain("bad_source_mac",
            cause = "A defective or hostile sender: no device has such an address.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the frames; find the switch port that they come \
                      from.")]
        BadSourceMac,
        /// The IP version or header length is wrong.
        #[explain("ip_header",
            cause = "A defective or hostile sender, or a link that corrupts frames.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the frames. Check the error counters of the device \
                      and the switch.")]
        IpHeader,
        /// The IPv4 header checksum is wrong.
        #[explain("ip_checksum",
            cause = "A link or a device that corrupts frames. `corrupt` in `[port.impair]` does so on purpose.",
            remedy = "Check the error counters of the device and the switch; replace the cable or the transceiver.")]
        IpChecksum,
        /// An IPv4 option whose length is below two bytes or exceeds the header.
        #[explain("ip_options",
            cause = "A scanner or a fuzzer: no operating system sends such options.",
            remedy = "Filter IPv4 options at the border of the network, and `deny` the sender.")]
        IpOptions,
        /// An IPv4 packet with a loose or strict source route, dropped as RFC 7126 §4.3 and §4.4 advise.
        #[explain("source_route",
            cause = "A scanner, or an attempt to bypass a filter.",
            remedy = "Configure the routers to drop source-routed packets; `deny` the sender.")]
        SourceRoute,
        /// The destination is not an address of the interface.
        #[explain("not_our_address",
            cause = "The peer uses a wrong address or has a stale neighbour entry, or the packets are for multicast \
                     groups or for the host whose interface the port uses.",
            remedy = "Compare the addresses in `ddpctl ports` with the address that the peer uses. None for the \
                      host's own traffic.")]
        NotOurAddress,
        /// An impossible source address: unspecified, multicast, broadcast, loopback or our own.
        #[explain("bad_source",
            cause = "Another host uses an address of the appliance, a loop on the link returns our own frames, or the \
                     source is forged.",
            remedy = "Look for the event `address_conflict`. `ddpctl capture PORT --filter dropped` shows the MAC \
                      address of the sender.")]
        BadSource,
        /// A fragment of a packet that is neither TCP nor SCTP.
        #[explain("fragment",
            cause = "Large datagrams (DNS, NFS over UDP, ping -s) to the appliance's address, or multicast.",
            remedy = "None for the appliance. Have the sender use another address, or smaller datagrams.")]
        Fragment,
        /// A fragment with an invalid length, or one whose ECN codepoint contradicts those of the others (RFC 3168
        /// §5.3).
        #[explain("fragment_bad",
            cause = "A hostile sender, or one that reuses IP identifications while earlier packets are still under \
                     reassembly.",
            remedy = "Remove the need for fragments: equal MTUs along the path, and path MTU discovery at the sender.")]
        FragmentBad,
        /// A fragment that begins or ends inside the header of TCP or SCTP.
        #[explain("fragment_tiny",
            cause = "An attempt to bypass a filter: no path has so small an MTU.",
            remedy = "Drop tiny fragments at the border of the network (RFC 1858), and `deny` the sender.")]
        FragmentTiny,
        /// A fragment that overlaps another fragment of the same packet. The whole packet is discarded.
        #[explain("fragment_overlap",
            cause = "An attack, or a sender that reuses IP identifications so fast that fragments of two packets mix.",
            remedy = "Remove the need for fragments: equal MTUs along the path, and path MTU discovery at the sender.")]
        FragmentOverlap,
        /// A fragment that was received before.
        #[explain("fragment_duplicate",
            cause = "A path that duplicates packets, such as a loop, a bond in broadcast mode or a mirrored port.",
            remedy = "Find the duplicate path; a few are harmless.")]
        FragmentDuplicate,
        /// A fragment that exceeds the peer's share of incomplete packets, or a packet's maximum number of fragments.
        #[explain("fragment_limit",
            cause = "Fragments are lost, so that packets stay incomplete until their time-out, or a flood of \
                     fragments.",
            remedy = "Remove the need for fragments: equal MTUs along the path, and path MTU discovery at the sender.")]
        FragmentLimit,
        /// IPv6 hop-by-hop options that do not follow the IPv6 header immediately.
        #[explain("hop_by_hop",
            cause = "A scanner or a fuzzer: RFC 8200 §4.1 allows these options only there.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the sender; `deny` it.")]
        HopByHop,
        /// Too many IPv6 extension headers, or one that requires the packet to be discarded.
        #[explain("extension_header",
            cause = "A routing header with segments left, an unknown option that demands a drop, or a scanner.",
            remedy = "Configure the sender or the router to omit the header (segment routing must end before the \
                      appliance).")]
        ExtensionHeader,
        /// An IP protocol that is not supported.
        #[explain("ip_protocol",
            cause = "UDP, such as DHCP, mDNS and DNS answers, IGMP or OSPF: all protocols except TCP, SCTP and ICMP. \
                     Also SCTP in UDP to another port than `udp_encapsulation`.",
            remedy = "None for such traffic. For SCTP in UDP set `udp_encapsulation` in `[sctp]` to the same port at \
                      both ends.")]
        IpProtocol,
        /// The TCP or ICMP checksum is wrong, or the UDP checksum of SCTP in UDP.
        #[explain("l4_checksum",
            cause = "On a veth or a virtual machine's interface, the peer leaves checksums to a device that does not \
                     fill them in: its connections time out. Rarely a device that corrupts frames.",
            remedy = concat!("`", base::veth_peer_offloads_off!(), "` in the peer's network namespace, where PEER is its interface."))]
        L4Checksum,
        /// An ARP packet that is malformed or not for IPv4 over Ethernet.
        #[explain("arp",
            cause = "A defective or hostile sender, or ARP for another link layer.",
            remedy = "`ddpctl capture PORT --filter \"arp and dropped\"` shows the sender.")]
        Arp,
        /// ARP or neighbour discovery for another host, or an unsolicited answer that is not trusted.
        #[explain("neighbour_ignored",
            cause = "Broadcast ARP requests between other hosts of the link, and unsolicited answers: normal \
                     background traffic of a link.",
            remedy = "None. If a peer is not resolved, check that its address is in the subnet of the interface: \
                      `ddpctl ports`.")]
        NeighbourIgnored,
        /// Another host uses one of our addresses.
        #[explain("address_conflict",
            cause = "Another host, or another appliance on the same link, has an address of `[[interface]]`. Peers \
                     reach one of the two at random.",
            remedy = "Give one of them another address; the event `address_conflict` has the other's MAC address.")]
        AddressConflict,
        /// The neighbour cache is full of entries in use.
        #[explain("neighbour_table_full",
            cause = "More hosts of the link communicate with the appliance than the cache has entries, or the subnet \
                     is scanned.",
            remedy = "Raise `neighbours` in `[limits]` above the number of hosts on the link.")]
        NeighbourTableFull,
        /// Neighbour discovery that violates RFC 4861 §7.1 (hop limit, code, options).
        #[explain("neighbour_discovery",
            cause = "An off-link sender that forges neighbour discovery, or a proxy that decrements the hop limit.",
            remedy = "`ddpctl capture PORT --filter \"icmp6 and dropped\"` shows the sender. Enable neighbour \
                      discovery inspection at the switch.")]
        NeighbourDiscovery,
        /// A malformed ICMP packet.
        #[explain("icmp",
            cause = "A router that quotes less of a packet than RFC 792 and RFC 4443 require, or a fuzzer.",
            remedy = "None while it is rare. If path MTU discovery fails, update the router that sends it.")]
        Icmp,
        /// ICMP of a type that is not used.
        #[explain("icmp_ignored",
            cause = "Redirects, router advertisements, timestamps, multicast listener reports: normal background \
                     traffic of a link.",
            remedy = "None. Routes and addresses come from `[[interface]]` alone.")]
        IcmpIgnored,
        /// An ICMP error about a packet that the appliance cannot have sent.
        #[explain("icmp_not_believed",
            cause = "A forged error, or one for a packet whose addresses a NAT has translated wrongly.",
            remedy = "None for forged errors. Configure the NAT to translate the packet that an ICMP error quotes.")]
        IcmpNotBelieved,
        /// An ICMP error about a flow without a stream.
        #[explain("icmp_no_stream",
            cause = "The stream ended before the error arrived, the error is about a reset that was sent, or it is \
                     forged.",
            remedy = "None while it is rare.")]
        IcmpNoStream,
        /// An ICMP error about a segment that is not in flight.
        #[explain("icmp_not_in_flight",
            cause = "The error is late: the segment has been acknowledged. A blind attack on a stream looks the same \
                     (RFC 5927).",
            remedy = "None. The stream continues.")]
        IcmpNotInFlight,
        /// Packet Too Big with an invalid MTU: below the minimum, at least the interface's MTU, or at least the
        /// packet's length.
        #[explain("icmp_size",
            cause = "A forged error, or a path whose MTU is below `min_path_mtu`.",
            remedy = "Lower `min_path_mtu` in `[tcp]` and `[sctp]` only if the path really has so small an MTU.")]
        IcmpSize,
        /// ICMP errors above the rate limit.
        #[explain("icmp_rate_limited",
            cause = "A flood of ICMP errors: forged, or about many streams whose path has just failed.",
            remedy = "Repair the path, or limit ICMP at the border of the network. Streams end by their own \
                      time-outs.")]
        IcmpRateLimited,
        /// Packet Too Big with an MTU that is not below the present path MTU.
        #[explain("icmp_no_news",
            cause = "Several packets in flight reached the same link. The first error was used.",
            remedy = "None.")]
        IcmpNoNews,
        /// An echo request, ARP request, neighbour solicitation, MLD query or INIT that was not answered because of the
        /// rate limit.
        #[explain("rate_limited",
            cause = "A ping flood, a scan of the link, or a flood of INITs.",
            remedy = "Find the sender with `ddpctl capture PORT`, and stop it or `deny` it. Regular peers retransmit \
                      their requests.")]
        RateLimited,
        /// A segment without a stream. Answered with a reset if the rate limit allows.
        #[explain("no_stream",
            cause = "A scan, or a peer that continues a stream which this end has closed or lost by a restart.",
            remedy = "None if streams were closed: the reset ends them at the peer. `ddpctl why PEER` shows why a \
                      stream ended.")]
        NoStream,
        /// A SYN to a port without a listener. Answered with a reset if the rate limit allows.
        #[explain("no_listener",
            cause = "A wrong port, address or transport at the peer, or a port scan.",
            remedy = "Compare with `ddpctl listeners`; the event `handshake_failed` has the port that the peer used.")]
        NoListener,
        /// A first packet (SYN, returned cookie, INIT, COOKIE ECHO), or one without a stream, to a listener whose
        /// `allow` and `deny` refuse the peer. Not answered.
        #[explain("peer_refused",
            cause = "The peer's address is not in `allow`, or is in `deny`, of the listener or its interface.",
            remedy = "Change `allow` and `deny` in `[[listener]]` or `[[interface]]`, then `ddpctl reload`.")]
        PeerRefused,
        /// A SYN to a listener that has reached its maximum number of streams in start-up (`pending`).
        #[explain("no_credit",
            cause = "Connections arrive faster than they complete their start-up, so that `limits.pending` of the \
                     listener is used up.",
            remedy = "Raise `pending` and `streams` in `[listener.limits]`. Peers retransmit the SYN and connect \
                      later.")]
        NoCredit,
        /// A SYN while the listener or the worker has reached its maximum number of half-open streams.
        #[explain("backlog",
            cause = "Many peers connect at once and do not complete the handshake: a SYN flood, or packets to the \
                     peers are lost.",
            remedy = "Leave `syn_cookies = \"auto\"` in `[tcp]`; raise `pending` in `[listener.limits]`; check the \
                      route back to the peers.")]
        Backlog,
        /// A SYN of a peer that has reached its maximum number of half-open streams.
        #[explain("peer_limit",
            cause = "One address opens many connections and does not complete their handshakes or start-up, such as a \
                     health check that never sends its MPA request.",
            remedy = "Stop that client, or lower `startup_timeout` in `[listener.limits]` so that its half-open \
                      streams expire earlier.")]
        PeerLimit,
        /// A SYN or cookie of a peer that has reached its maximum number of streams. An association without a stream
        /// counts as a stream.
        #[explain("peer_streams",
            cause = "One address has `streams_per_peer` streams: a leak in its program, or a NAT with many hosts \
                     behind it.",
            remedy = "`ddpctl streams list --remote ADDRESS` shows them. Close some, or raise `streams_per_peer` in \
                      `[limits]`.")]
        PeerStreams,
        /// A SYN while the worker has reached its maximum number of streams or is draining.
        #[explain("stream_limit",
            cause = "The appliance drains, or a worker has used up its share of `streams` in `[limits]`.",
            remedy = "While it drains, `ddpctl status` has a note: `ddpctl undrain`. Else raise `streams` in \
                      `[limits]`, and restart.")]
        StreamLimit,
        /// An SCTP cookie while the event ring is nearly full.
        #[explain("event_ring",
            cause = "The control thread cannot keep up: very many associations begin and end, or other processes use \
                     its core.",
            remedy = "Give the control thread a core that no worker uses; find the peer that opens associations \
                      continuously.")]
        EventRing,
        /// No route back to the sender.
        #[explain("no_route",
            cause = "The peer is in another subnet, and the interface has neither `gateway` nor a route to it.",
            remedy = "Add `gateway` to `[[interface]]`, or an `[[interface.routes]]` with `to` and `via`.")]
        NoRoute,
        /// A received frame for another worker whose ring is full.
        #[explain("mesh_full",
            cause = "The device does not steer flows to their workers, so frames are forwarded between workers, and \
                     the receiving worker is overloaded.",
            remedy = "See STEERING in `ddpctl ports` and the load in `ddpctl workers`: use more workers, or one \
                      worker for that port (`workers` in `[[port]]`).")]
        MeshFull,
        /// A SYN, returned cookie, or SCTP packet without an association, beyond the budget for such frames: eight per
        /// full burst, and 10,000 more per second.
        #[explain("overload",
            cause = "A flood of first packets: an attack, or very many peers that reconnect after an outage.",
            remedy = "Live streams are protected, and peers retransmit. Filter the flood before it reaches the port; \
                      more workers handle more.")]
        Overload,
        /// A frame for the host while the host's ring is full, or beyond the budget for such frames: eight per full
        /// burst, and 10,000 more per second.
        #[explain("host_full",
            cause = "The host behind a shared interface (`host = \"tap\"`) receives more traffic than the worker \
                     forwards: backups, other services or a flood on the same link.",
            remedy = "Move bulk traffic of the host to another interface.")]
        HostFull,
        /// A packet in clear for which an IPsec policy requires protection (RFC 4301 §5.2).
        #[explain("ipsec_unprotected",
            cause = "The peer has no policy or no SA for this traffic, or its IKE daemon does not run.",
            remedy = "Compare `ddpctl ipsec policies` with the peer's (`ip xfrm policy`); the selectors must mirror \
                      each other.")]
        IpsecUnprotected,
        /// A packet that arrived with an SA, but is not selected by the SA's policy (RFC 4301 §5.2).
        #[explain("ipsec_wrong_protection",
            cause = "The peer's selectors are wider than ours, so that it sends other traffic through the same SA.",
            remedy = "Make addresses, protocol and ports of the policies equal at both ends.")]
        IpsecWrongProtection,
        /// A packet that an IPsec policy discards.
        #[explain("ipsec_discarded",
            cause = "A policy with the action `discard` selects the packet.",
            remedy = "None if intended. Else put a policy that protects or bypasses the packet before that one: \
                      `ddpctl ipsec policies` has the order.")]
        IpsecDiscarded,
        /// A packet that no IPsec policy selects, although there are policies.
        #[explain("ipsec_no_policy",
            cause = "With IPsec policies, traffic that none selects is dropped, pings included. IKE, ARP and \
                     neighbour discovery pass.",
            remedy = "Add a policy that protects the traffic, or one with the action `bypass` for traffic in clear.")]
        IpsecNoPolicy,
        /// While IPsec policies are in force: a frame for the host that is neither an intact IP packet nor ARP, LLDP or
        /// EAPOL.
        #[explain("ipsec_unclassified",
            cause = "A protocol other than IP on a link that is shared with the host: policies cannot classify it.",
            remedy = "None for background traffic. A host that needs the protocol needs an interface of its own.")]
        IpsecUnclassified,
        /// An ESP packet of an unknown SA (RFC 4303 §3.4.2).
        #[explain("esp_unknown_spi",
            cause = "One end has restarted or deleted its SAs, and the peer still uses the old ones. Rarely a race \
                     during rekeying.",
            remedy = "Let the IKE daemons renegotiate, with dead peer detection enabled. With keys from files, \
                      compare `spi` at both ends: `ddpctl ipsec sas`.")]
        EspUnknownSpi,
        /// An ESP packet that was received before, or is too old for the anti-replay window (RFC 4303 §3.4.3).
        #[explain("esp_replay",
            cause = "A path that reorders beyond the window, a duplicate, or a sender whose sequence numbers \
                     restarted after a restart with keys from files.",
            remedy = "Raise `window` in `[ipsec]`. With keys from files set `sequence_file` at the sender, or renew \
                      the keys.")]
        EspReplay,
        /// An ESP packet whose integrity check fails (RFC 4303 §3.4.4.1).
        #[explain("esp_integrity",
            cause = "The ends have different keys or algorithms for this SA, or the packet was modified on the path.",
            remedy = "Compare algorithm and key of the SA at both ends (`ddpctl ipsec sas`, `ip xfrm state`); let IKE \
                      renegotiate.")]
        EspIntegrity,
        /// An ESP packet whose ESP fields or inner packet are malformed.
        #[explain("esp_malformed",
            cause = "The modes differ (transport at one end, tunnel at the other), or a packet was truncated inside \
                     the tunnel.",
            remedy = "Compare `mode` and the tunnel's addresses at both ends; lower the MTU inside the tunnel.")]
        EspMalformed,
        /// An ESP packet of an SA that has expired.
        #[explain("esp_expired",
            cause = "The SA has reached its lifetime in bytes, packets or time, and was not renewed.",
            remedy = "Configure the IKE daemon to rekey earlier (soft lifetimes); with keys from files, install new \
                      keys.")]
        EspExpired,
        /// An ESP dummy packet, which conceals the traffic volume (RFC 4303 §2.6).
        #[explain("esp_dummy",
            cause = "The peer sends dummy packets on purpose (traffic flow confidentiality).",
            remedy = "None.")]
        EspDummy,
        /// A packet with less IPsec protection than its stream requires, or a first packet whose stream would have less
        /// protection than its listener requires.
        #[explain("not_protected",
            cause = "`require` of the listener, together with a policy of the peer or of this end that does not \
                     encrypt, or with shorter keys.",
            remedy = "Protect this traffic at both ends (`ddpctl ipsec policies`, `ddpctl ipsec sas`), or lower \
                      `require`.")]
        NotProtected,
        /// A received packet or ICMP error of a port that has no queue at this worker.
        #[explain("no_port",
            cause = "Another worker forwarded the packet, but this worker does not serve the port: `workers` in \
                     `[[port]]` excludes it, or the port's device was lost.",
            remedy = "None while it is rare. Else report it with the output of `ddpctl ports` and `ddpctl workers`.")]
        NoPort,
        /// A SYN that could not be answered with a cookie: no packet buffer, or no room in the transmit ring.
        #[explain("tx_full",
            cause = "A SYN flood on a port whose transmit ring or packet buffers are used up.",
            remedy = "See `no_buffer` and `tx_dropped` of the port in `ddpctl stats`; raise `tx_descriptors` in \
                      `[[port]]`.")]
        TxFull,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_indices_and_names_are_distinct() {
        for (i, &reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, i);
            assert!(DropReason::ALL[..i].iter().all(|other| other.name() != reason.name()));
        }
    }
}
