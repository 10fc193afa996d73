//! Reasons for which the network stack and the workers drop frames. A leaf crate without DPDK, so that `ddpctl` explains
//! them on any host. The counters are in `dataplane`. Reasons of TCP and SCTP are in their crates.

#![forbid(unsafe_code)]

base::explained! {
    /// Why a frame or segment was dropped by the network stack or the worker. What TCP, MPA and
    /// DDP refuse is counted per stream besides.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum DropReason {
        /// Shorter than its headers say, or than an Ethernet header.
        #[explain("truncated",
            cause = "A sender or a device that cuts frames. On an `af_packet` port also an IPv4 datagram longer than the MTU, \
                     which Linux has put together from fragments.",
            remedy = "Give both ends the same MTU. `ddpctl capture PORT --filter dropped` shows the sender.")]
        Truncated,
        /// An EtherType that is not supported.
        #[explain("ether_type",
            cause = "LLDP, spanning tree, PPPoE or another protocol that every switch sends: harmless.",
            remedy = "None. Where the host is to see such frames, share the interface with it (`host` in `[[interface]]`).")]
        EtherType,
        /// A VLAN without an interface, or two tags.
        #[explain("vlan",
            cause = "A trunk that carries other VLANs too, or an `[[interface]]` whose `vlan` is missing or wrong.",
            remedy = "Compare `vlan` of `[[interface]]` with the switch port, and prune the trunk to the VLANs in use.")]
        Vlan,
        /// Not addressed to the port's MAC address, broadcast or one of its multicast groups.
        #[explain("not_our_mac",
            cause = "A switch that floods frames for other hosts, or the frames of the host itself on an af_packet port. TCP and \
                     SCTP to a group address count here too.",
            remedy = "None while it is a trickle. If a peer fails, compare the MAC of `ddpctl ports` with the peer's neighbour \
                      cache (`ip neigh`).")]
        NotOurMac,
        /// Source MAC address is a group address.
        #[explain("bad_source_mac",
            cause = "A broken or hostile sender: no device has such an address.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the frames; find the switch port that they come from.")]
        BadSourceMac,
        /// IP version or header length is wrong.
        #[explain("ip_header",
            cause = "A broken or hostile sender, or a link that corrupts frames.",
            remedy = "Look at the frames with `ddpctl capture PORT --filter dropped`, and at the error counters of the device and \
                      the switch.")]
        IpHeader,
        /// IPv4 header checksum is wrong.
        #[explain("ip_checksum",
            cause = "A link or a device that corrupts frames. `corrupt` in `[port.impair]` does the same on purpose.",
            remedy = "Read the error counters of the device and the switch; replace the cable or the transceiver.")]
        IpChecksum,
        /// An option of IPv4 whose length is below two bytes or beyond the header.
        #[explain("ip_options",
            cause = "A scanner or a fuzzer: no operating system sends such options.",
            remedy = "Filter IPv4 options at the border of the network, and `deny` the sender.")]
        IpOptions,
        /// IPv4 with a loose or strict source route, which RFC 7126 §4.3 and §4.4 have dropped.
        #[explain("source_route",
            cause = "A scanner, or an attempt to get around a filter.",
            remedy = "Have the routers drop source-routed packets; `deny` the sender.")]
        SourceRoute,
        /// Not addressed to an address of the interface.
        #[explain("not_our_address",
            cause = "The peer was given a wrong address, a neighbour entry of it is stale, or the packets are for the host whose \
                     interface the port uses, and for multicast groups.",
            remedy = "Compare the addresses of `ddpctl ports` with the address that the peer uses. Traffic of the host itself \
                      needs no remedy.")]
        NotOurAddress,
        /// Source address cannot be: unspecified, multicast, broadcast, loopback or our own.
        #[explain("bad_source",
            cause = "Another host uses an address of the appliance, a loop on the link brings our own frames back, or a forged \
                     source.",
            remedy = "Look for the event `address_conflict`. `ddpctl capture PORT --filter dropped` shows the MAC address of the \
                      sender.")]
        BadSource,
        /// A fragment of a packet that is neither TCP's nor SCTP's.
        #[explain("fragment",
            cause = "Large datagrams (DNS, NFS over UDP, ping -s) to the appliance's address, or multicast.",
            remedy = "None for the appliance. Have the sender use another address, or smaller datagrams.")]
        Fragment,
        /// A fragment whose length is not that of one, or whose marks contradict the others'.
        #[explain("fragment_bad",
            cause = "A hostile sender, or one that reuses IP identifications while earlier packets are still under reassembly.",
            remedy = "Remove the need for fragments: equal MTUs along the path, and path MTU discovery at the sender.")]
        FragmentBad,
        /// A fragment that begins or ends inside the header of TCP or SCTP.
        #[explain("fragment_tiny",
            cause = "An attempt to get the header past a filter: no path has so small an MTU.",
            remedy = "Drop tiny fragments at the border of the network (RFC 1858), and `deny` the sender.")]
        FragmentTiny,
        /// A fragment that overlaps another of its packet; nothing of the packet is used.
        #[explain("fragment_overlap",
            cause = "An attack, or a sender that reuses IP identifications so fast that fragments of two packets meet.",
            remedy = "Remove the need for fragments: equal MTUs along the path, and path MTU discovery at the sender.")]
        FragmentOverlap,
        /// A fragment that came before.
        #[explain("fragment_duplicate",
            cause = "A path that duplicates packets, such as a loop, a bond in broadcast mode or a mirrored port.",
            remedy = "Find the duplicate path; a few are harmless.")]
        FragmentDuplicate,
        /// A fragment of a peer that has its share of unfinished packets, or of a packet in too many pieces.
        #[explain("fragment_limit",
            cause = "Fragments are lost, so that packets stay unfinished until their time-out, or a flood of fragments.",
            remedy = "Remove the need for fragments: equal MTUs along the path, and path MTU discovery at the sender.")]
        FragmentLimit,
        /// IPv6 hop-by-hop options that are not right behind the IPv6 header.
        #[explain("hop_by_hop",
            cause = "A scanner or a fuzzer: RFC 8200 §4.1 allows them there only.",
            remedy = "`ddpctl capture PORT --filter dropped` shows the sender; `deny` it.")]
        HopByHop,
        /// More IPv6 extension headers than are followed, or one that forbids going on.
        #[explain("extension_header",
            cause = "A routing header with segments left, an unknown option that demands a drop, or a scanner.",
            remedy = "Have the sender or the router leave the header out (segment routing ends before the appliance).")]
        ExtensionHeader,
        /// An IP protocol that is not supported.
        #[explain("ip_protocol",
            cause = "UDP, such as DHCP, mDNS and DNS answers, IGMP or OSPF: everything except TCP, SCTP and ICMP. Also SCTP in UDP \
                     to a port that is not `udp_encapsulation`.",
            remedy = "None for traffic of the link. For SCTP in UDP set `udp_encapsulation` in `[sctp]`, the same at both ends.")]
        IpProtocol,
        /// TCP or ICMP checksum is wrong.
        #[explain("l4_checksum",
            cause = "On a veth or a virtual machine's interface the peer leaves checksums to a device that does not fill them in: \
                     its connections time out. Seldom a device that corrupts frames.",
            remedy = "`ethtool -K PEER tx off gso off tso off` in the peer's network namespace, where PEER is its interface.")]
        L4Checksum,
        /// ARP packet is malformed or not for IPv4 over Ethernet.
        #[explain("arp",
            cause = "A broken or hostile sender, or ARP for another link layer.",
            remedy = "`ddpctl capture PORT --filter \"arp and dropped\"` shows the sender.")]
        Arp,
        /// ARP or neighbour discovery for another host, or not to be believed.
        #[explain("neighbour_ignored",
            cause = "Broadcast ARP requests between other hosts of the link, and answers that were not asked for: the normal noise \
                     of a link.",
            remedy = "None. If a peer is not found, see whether its address is in the subnet of the interface: `ddpctl ports`.")]
        NeighbourIgnored,
        /// Another host uses one of our addresses.
        #[explain("address_conflict",
            cause = "Another host, or another appliance on the same link, has an address of `[[interface]]`. Peers reach one of the \
                     two at random.",
            remedy = "Give one of them another address; the event `address_conflict` has the other's MAC address.")]
        AddressConflict,
        /// The neighbour cache is full of entries in use.
        #[explain("neighbour_table_full",
            cause = "More hosts of the link talk to the appliance than the cache has entries, or a scan of the subnet.",
            remedy = "Raise `neighbours` in `[limits]` above the number of hosts on the link.")]
        NeighbourTableFull,
        /// Neighbour discovery that breaks RFC 4861 §7.1 (hop limit, code, options).
        #[explain("neighbour_discovery",
            cause = "A sender off the link that forges neighbour discovery, or a proxy that lowers the hop limit.",
            remedy = "`ddpctl capture PORT --filter \"icmp6 and dropped\"` shows the sender; guard neighbour discovery at the switch.")]
        NeighbourDiscovery,
        /// ICMP that is malformed.
        #[explain("icmp",
            cause = "A router that quotes less of a packet than RFC 792 and RFC 4443 require, or a fuzzer.",
            remedy = "None while it is rare. With failing path MTU discovery, update the router that sends it.")]
        Icmp,
        /// ICMP that is not used here.
        #[explain("icmp_ignored",
            cause = "Redirects, router advertisements, time stamps, multicast listener reports: the normal noise of a link.",
            remedy = "None. Routes and addresses come from `[[interface]]` alone.")]
        IcmpIgnored,
        /// ICMP error about a packet that we cannot have sent.
        #[explain("icmp_not_believed",
            cause = "A forged error, or one for a packet whose addresses a NAT has translated wrongly.",
            remedy = "None for forged ones. Have the NAT translate the packet that an ICMP error quotes.")]
        IcmpNotBelieved,
        /// ICMP error about a flow that is no stream of ours.
        #[explain("icmp_no_stream",
            cause = "The stream ended before the error arrived, it answers a reset of ours, or it is forged.",
            remedy = "None while it is rare.")]
        IcmpNoStream,
        /// ICMP error about a segment that is not in flight.
        #[explain("icmp_not_in_flight",
            cause = "The error is late: the segment has been acknowledged. A blind attack on a stream looks the same (RFC 5927).",
            remedy = "None. The stream goes on.")]
        IcmpNotInFlight,
        /// Packet too big with an MTU that is below what is believed, or larger than the packet.
        #[explain("icmp_size",
            cause = "A forged error, or a path whose MTU is below `min_path_mtu`.",
            remedy = "Lower `min_path_mtu` in `[tcp]` and `[sctp]` only if the path really has so small an MTU.")]
        IcmpSize,
        /// ICMP errors past the rate limit.
        #[explain("icmp_rate_limited",
            cause = "A flood of ICMP errors: forged, or about many streams whose path has just failed.",
            remedy = "Repair the path, or limit ICMP at the border of the network. Streams end by their own time-outs.")]
        IcmpRateLimited,
        /// Packet too big that asks for nothing smaller than what is used already.
        #[explain("icmp_no_news",
            cause = "Several packets in flight met the same link: the first error was used.",
            remedy = "None.")]
        IcmpNoNews,
        /// Echo request, neighbour's question or INIT not answered because of the rate limit.
        #[explain("rate_limited",
            cause = "A ping flood, a scan of the link, or a flood of INITs.",
            remedy = "Find the sender with `ddpctl capture PORT`, and stop it or `deny` it. Regular peers repeat their question.")]
        RateLimited,
        /// Segment without a stream (answered by a reset if the rate allows).
        #[explain("no_stream",
            cause = "The peer goes on with a stream that this end has ended or lost by a restart, or a scanner.",
            remedy = "None if streams were closed: the reset ends them at the peer. `ddpctl why PEER` says why a stream ended.")]
        NoStream,
        /// SYN to a port without a listener (answered by a reset if the rate allows).
        #[explain("no_listener",
            cause = "The peer was given the wrong port, address or transport, or a scanner.",
            remedy = "Compare with `ddpctl listeners`; the event `handshake_failed` has the port that the peer wanted.")]
        NoListener,
        /// First packet (SYN, returned cookie, INIT, COOKIE ECHO), or one without a stream, to a listener of a peer that `allow`
        /// and `deny` refuse. Not answered.
        #[explain("peer_refused",
            cause = "The peer's address is not in `allow`, or is in `deny`, of the listener or its interface.",
            remedy = "Change `allow` and `deny` in `[[listener]]` or `[[interface]]`, then `ddpctl reload`.")]
        PeerRefused,
        /// SYN while the listener has no credit.
        #[explain("no_credit",
            cause = "Connections arrive faster than they finish their start-up, so that `limits.pending` of the listener is in use.",
            remedy = "Raise `pending` and `streams` in `[listener.limits]`. Peers retransmit the SYN, and connect later.")]
        NoCredit,
        /// SYN while the backlog is full.
        #[explain("backlog",
            cause = "Many peers connect at once and do not complete the handshake: a flood of SYNs, or packets to the peers are lost.",
            remedy = "Leave `syn_cookies = \"auto\"` in `[tcp]`; raise `pending` in `[listener.limits]`; check the route back to the \
                      peers.")]
        Backlog,
        /// SYN while the peer has as many half-open streams as it may.
        #[explain("peer_limit",
            cause = "One address opens many connections and does not complete their handshakes or start-up, such as a health check \
                     that never sends its MPA request.",
            remedy = "Stop that client; lower `startup_timeout` in `[listener.limits]` so that it holds its places for less time.")]
        PeerLimit,
        /// SYN or cookie while the peer has as many streams, and associations without one, as it may.
        #[explain("peer_streams",
            cause = "One address has `streams_per_peer` streams: a leak in its program, or a NAT with many hosts behind it.",
            remedy = "`ddpctl streams list --remote ADDRESS` shows them. Close some, or raise `streams_per_peer` in `[limits]`.")]
        PeerStreams,
        /// SYN while the worker has reached its limit of streams or is draining.
        #[explain("stream_limit",
            cause = "The appliance drains, or a worker has its share of `streams` in `[limits]`.",
            remedy = "`ddpctl status` has a note while it drains: `ddpctl undrain`. Else raise `streams` in `[limits]`, and restart.")]
        StreamLimit,
        /// Cookie of SCTP while the event ring is nearly full.
        #[explain("event_ring",
            cause = "The control thread is behind: very many associations begin and end, or its core is taken by others.",
            remedy = "Give the control thread a core that no worker uses; find the peer that opens associations without end.")]
        EventRing,
        /// No route back to the sender.
        #[explain("no_route",
            cause = "The peer is in another subnet, and the interface has neither `gateway` nor a route to it.",
            remedy = "Add `gateway` to `[[interface]]`, or an `[[interface.routes]]` with `to` and `via`.")]
        NoRoute,
        /// Arrived from the wire for another worker whose ring is full.
        #[explain("mesh_full",
            cause = "The device does not steer flows to their workers, so frames change workers, and the receiving worker is \
                     overloaded.",
            remedy = "See STEERING in `ddpctl ports` and the load in `ddpctl workers`: more workers, or one worker for that port \
                      (`workers` in `[[port]]`).")]
        MeshFull,
        /// SYN, returned cookie, or SCTP packet without an association, in a burst behind which more may wait, of which the
        /// worker examines only a few, and 10,000 a second besides.
        #[explain("overload",
            cause = "A flood of first packets: an attack, or very many peers that reconnect after an outage.",
            remedy = "Live streams are protected, and peers retransmit. Filter the flood before it reaches the port; more workers \
                      take more.")]
        Overload,
        /// For the host: its ring is full, or the burst has given it as many frames as it may (a few of a full one, and 10,000 a
        /// second besides).
        #[explain("host_full",
            cause = "The host behind a shared interface (`host = \"tap\"`) gets more traffic than it is given turns: backups, \
                     other services or a flood on the same link.",
            remedy = "Move bulk traffic of the host to another interface.")]
        HostFull,
        /// In clear, where a policy of IPsec protects (RFC 4301 §5.2).
        #[explain("ipsec_unprotected",
            cause = "The peer has no policy or no SA for this traffic, or its IKE daemon does not run.",
            remedy = "Compare `ddpctl ipsec policies` with the peer's (`ip xfrm policy`); the selectors must mirror each other.")]
        IpsecUnprotected,
        /// Came by an SA whose policy does not select it (RFC 4301 §5.2).
        #[explain("ipsec_wrong_protection",
            cause = "The peer's selectors are wider than ours, so that it sends other traffic by the same SA.",
            remedy = "Make addresses, protocol and ports of the policies equal at both ends.")]
        IpsecWrongProtection,
        /// A policy of IPsec drops it.
        #[explain("ipsec_discarded",
            cause = "A policy with the action discard selects the packet.",
            remedy = "None if it is meant. Else put a policy that protects or bypasses it before that one: `ddpctl ipsec policies` \
                      has the order.")]
        IpsecDiscarded,
        /// IPsec policies are configured, and none selects the packet.
        #[explain("ipsec_no_policy",
            cause = "Once there is a policy, traffic that none selects is dropped, pings included. IKE, ARP and neighbour \
                     discovery pass.",
            remedy = "Add a policy that protects the traffic, or one with the action bypass where it may go in clear.")]
        IpsecNoPolicy,
        /// For the host, under policies of IPsec: neither an intact IP packet nor ARP, LLDP or EAPOL.
        #[explain("ipsec_unclassified",
            cause = "A protocol other than IP on a link that is shared with the host: policies cannot classify it.",
            remedy = "None for noise. A host that needs the protocol needs an interface of its own.")]
        IpsecUnclassified,
        /// ESP of an SA that there is not (RFC 4303 §3.4.2).
        #[explain("esp_unknown_spi",
            cause = "One end has restarted or deleted its SAs, and the peer still uses the old ones; seldom a rekeying that raced.",
            remedy = "Have the IKE daemons renegotiate, with dead peer detection on. With keys from files, compare `spi` at both \
                      ends: `ddpctl ipsec sas`.")]
        EspUnknownSpi,
        /// ESP that came before, or is too old for the anti-replay window (RFC 4303 §3.4.3).
        #[explain("esp_replay",
            cause = "A path that reorders by more packets than the window has, a duplicate, or a sender whose sequence numbers began \
                     anew after a restart with keys from files.",
            remedy = "Raise `window` in `[ipsec]`. With keys from files set `sequence_file` at the sender, or renew the keys.")]
        EspReplay,
        /// ESP whose integrity check fails (RFC 4303 §3.4.4.1).
        #[explain("esp_integrity",
            cause = "The ends have different keys or algorithms for this SA, or the packet was changed on the path.",
            remedy = "Compare algorithm and key of the SA at both ends (`ddpctl ipsec sas`, `ip xfrm state`); have IKE renegotiate.")]
        EspIntegrity,
        /// ESP that is malformed inside or outside.
        #[explain("esp_malformed",
            cause = "Modes differ (transport at one end, tunnel at the other), or a packet was cut inside the tunnel.",
            remedy = "Compare `mode` and the tunnel's addresses at both ends; lower the MTU inside the tunnel.")]
        EspMalformed,
        /// ESP of an SA that is over.
        #[explain("esp_expired",
            cause = "The SA has reached its lifetime in bytes, packets or time, and was not renewed.",
            remedy = "Let the IKE daemon rekey earlier (soft lifetimes); with keys from files, put new keys in place.")]
        EspExpired,
        /// ESP without a packet in it, which hides how much is sent (RFC 4303 §2.6).
        #[explain("esp_dummy",
            cause = "The peer sends dummy packets on purpose (traffic flow confidentiality).",
            remedy = "None.")]
        EspDummy,
        /// For a listener that requires more protection by IPsec than the stream would have, or for a stream of it that requires more
        /// than the packet had.
        #[explain("not_protected",
            cause = "`require` of the listener, and a policy of the peer or here that does not encrypt, or with shorter keys.",
            remedy = "Protect this traffic at both ends (`ddpctl ipsec policies`, `ddpctl ipsec sas`), or lower `require`.")]
        NotProtected,
        /// For a port that the worker has no queue of.
        #[explain("no_port",
            cause = "A packet or ICMP error names a port that another worker serves (`workers` in `[[port]]`), such as one whose \
                     device was lost.",
            remedy = "None while it is rare. Else report it: `ddpctl ports` and `ddpctl workers` show who serves the port.")]
        NoPort,
        /// SYN to be answered with a cookie: no packet buffer, or no room in the transmit ring.
        #[explain("tx_full",
            cause = "A flood of SYNs on a port whose transmit ring or buffers are used up.",
            remedy = "See `no_buffer` and `tx_dropped` of the port in `ddpctl stats`; raise `tx_descriptors` in `[[port]]`.")]
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
