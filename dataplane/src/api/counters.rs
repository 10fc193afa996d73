//! What a worker counts. Written by its worker alone with relaxed stores; read by anybody at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use base::histogram::{Durations, Histogram};
use base::metric::Descriptor;
use sctp_lite::sctp;
use tcp_lite::tcp;

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker may call this: it is a load and a store, not a locked add.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets a gauge.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Sets a gauge that remembers its maximum.
    #[inline]
    pub fn max(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $of:literal])+ $group:ident: $type:ident {
        $($(#[doc = $doc:literal])+ $name:ident: $kind:ident $($unit:ident)?,)+
    })+) => {
        /// One worker's counters.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $of])+ pub $group: $type,)+
            /// Frames and segments dropped, by reason.
            pub drops: Drops,
            /// Frames that a port gave at once, up to a burst.
            pub burst_frames: Histogram<1, 7>,
            /// Nanoseconds from the first packet of a stream, or from the command to open it, until messages can flow.
            pub handshake_nanoseconds: Durations,
        }

        $($(#[doc = $of])+
        #[derive(Debug, Default)]
        pub struct $type {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        })+

        impl Counters {
            /// What each of them is, but the drops.
            pub const DESCRIPTORS: &'static [Descriptor] =
                &[$($(base::descriptor!($name, $kind, [$($unit)?], $($doc)+),)+)+];

            /// Calls `f` with each and its value, but the drops.
            pub fn for_each(&self, mut f: impl FnMut(&'static Descriptor, u64)) {
                let values = [$($(self.$group.$name.get(),)+)+];
                Self::DESCRIPTORS.iter().zip(values).for_each(|(counter, value)| f(counter, value));
            }
        }
    };
}

counters! {
    /// The worker's loop and its rings to and from the control thread.
    run: RunCounters {
        /// Turns of the worker's loop.
        turns: Counter,
        /// Turns that found nothing to do.
        idle_turns: Counter,
        /// Nanoseconds spent in turns in which there was something to do.
        busy_nanoseconds: Counter Nanoseconds,
        /// Times the worker slept.
        sleeps: Counter,
        /// Timers that fired.
        timers: Counter,
        /// Commands taken.
        commands: Counter,
        /// Events given.
        events: Counter,
        /// Turns in which no commands were taken because the event ring was nearly full.
        event_stalls: Counter,
        /// Times that a stream was paused because the control thread had not taken its events.
        event_waits: Counter,
        /// Streams that are paused for that.
        streams_waiting: Gauge,
        /// Events that wait for room in the event ring.
        events_waiting: Gauge,
        /// Messages complete of loads that the worker makes itself.
        load_messages: Counter,
        /// Bytes of those.
        load_bytes: Counter Bytes,
    }
    /// Frames from and to ports and other workers.
    frames: FrameCounters {
        /// Frames received.
        rx_frames: Counter,
        /// Bytes received, Ethernet headers included.
        rx_bytes: Counter Bytes,
        /// Frames sent.
        tx_frames: Counter,
        /// Bytes sent, Ethernet headers included.
        tx_bytes: Counter Bytes,
        /// Times that a port's transmit ring was full and streams had to wait.
        tx_stalls: Counter,
        /// Times that a port had no packet buffer to send with.
        tx_no_buffer: Counter,
        /// Frames, and ICMP errors, sent on to the worker that owns their flow.
        mesh_out: Counter,
        /// Frames, and ICMP errors, that came from other workers.
        mesh_in: Counter,
        /// Announcements of neighbours sent on to other workers.
        mesh_news_out: Counter,
        /// Announcements of neighbours that came from other workers.
        mesh_news_in: Counter,
        /// Announcements of neighbours not sent on to other workers because of the rate limit.
        mesh_news_limited: Counter,
        /// Messages to other workers lost because their ring was full.
        mesh_full: Counter,
        /// Resets, ABORTs and INIT ACKs not sent because of the rate limit, for packets that are counted already.
        answers_limited: Counter,
        /// Answers, and last segments of streams, not sent: there was no packet buffer, or no room in the transmit ring.
        answers_lost: Counter,
    }
    /// Neighbours, fragments, ICMP and path MTUs.
    ip: IpCounters {
        /// Address resolutions started.
        neighbour_solicitations: Counter,
        /// Address resolutions without an answer.
        neighbour_failures: Counter,
        /// ARP replies and neighbour advertisements sent.
        neighbour_answers: Counter,
        /// Questions, answers and announcements of neighbours taken in, from the wire or from other workers.
        neighbour_claims: Counter,
        /// Neighbours known.
        neighbours: Gauge,
        /// Packets sent in fragments: of a size that the path had carried before.
        tx_cut: Counter,
        /// Fragments kept, or used up, without being the one that made their packet whole.
        fragments: Counter,
        /// Packets put together from fragments.
        reassembled: Counter,
        /// Packets of which not all fragments came in time.
        reassembly_timeouts: Counter,
        /// Packets given up for others because there was no room.
        reassembly_evicted: Counter,
        /// Bytes that unfinished packets take.
        reassembly_bytes: Gauge Bytes,
        /// Echo requests answered.
        echo_replies: Counter,
        /// Queries for multicast groups (MLD) that are answered.
        group_queries: Counter,
        /// Path MTU reductions taken from ICMP.
        path_mtu_updates: Counter,
        /// ICMP errors taken in: about a segment or a packet that is under way.
        icmp_errors: Counter,
        /// Reports of a smaller path MTU that wait until the segment they are about is lost.
        path_mtu_remembered: Counter,
        /// ICMP errors about streams, noted and no more: only a reset ends them.
        icmp_soft_errors: Counter,
        /// Peers whose path MTU is remembered.
        path_mtus: Gauge,
    }
    /// Frames for and of the host's kernel, on interfaces that share their port with it.
    host: HostCounters {
        /// Frames that were not for this worker and went to the host.
        host_frames: Counter,
        /// Bytes of those, Ethernet headers included.
        host_bytes: Counter Bytes,
        /// Frames that this worker took itself and the host got as well: what neighbours and routers say of themselves.
        host_copies: Counter,
        /// Copies of those that the host did not get because its ring was full, or a burst had given as many as it may.
        host_copies_lost: Counter,
        /// Frames for the host that its kernel did not take.
        host_lost: Counter,
        /// Frames of the host sent; they are in tx_frames too.
        host_sent: Counter,
        /// Frames of the host not sent: too long or too short, the ring to the worker was full, or no packet buffer.
        host_sent_lost: Counter,
    }
    /// IPsec.
    ipsec: IpsecCounters {
        /// Packets sealed.
        ipsec_sealed: Counter,
        /// Bytes of those before they were sealed, IP headers included.
        ipsec_sealed_bytes: Counter Bytes,
        /// Packets opened.
        ipsec_opened: Counter,
        /// Bytes of those after they were opened, IP headers included.
        ipsec_opened_bytes: Counter Bytes,
        /// Datagrams that keep the ports of NATs, received (RFC 3948 §2.3).
        nat_keepalives_in: Counter,
        /// The same, sent.
        nat_keepalives_out: Counter,
        /// Reports of routers about ESP that were taken: the path carries less.
        ipsec_path_mtu_updates: Counter,
        /// Frames not sent because there was no SA for them, and none came in time.
        unsent_no_sa: Counter,
        /// Frames not sent because a policy drops them, or none names them.
        unsent_policy: Counter,
        /// Frames not sent because their stream requires more protection than they would have had (listener's `require`).
        unsent_not_protected: Counter,
        /// Frames not sent because they would have been longer than the MTU once sealed.
        unsent_too_long: Counter,
        /// Frames not sent because they could not be sealed: the SA is over, or has no sequence numbers left.
        unsent_refused: Counter,
        /// Reports to the host's kernel that a frame of its is too long once it is sealed.
        host_too_long: Counter,
        /// Frames of the host not sent because its kernel had sealed them by an SA of this appliance.
        unsent_twice: Counter,
        /// Frames of the host not sent because they are neither IP nor ARP, LLDP or EAPOL, or have two tags: no policy can be
        /// applied to them.
        unsent_unclassified: Counter,
        /// Frames of other workers, and those that keep the ports of NATs, not sent because the transmit ring was full.
        unsent_full: Counter,
        /// Frames sent on to the worker that has their SA, to be sealed there, and reports to the worker of a flow whose frame was too
        /// long for that.
        mesh_seal_out: Counter,
        /// The same, from other workers.
        mesh_seal_in: Counter,
        /// Notices of IPsec past their rate limit, or lost because the control thread did not keep up.
        ipsec_notices_lost: Counter,
    }
    /// Streams of TCP and SCTP.
    streams: StreamCounters {
        /// Segments that streams took, SYNs that began one included. Those that they refused are counted as dropped.
        segments: Counter,
        /// Resets sent for segments without a stream.
        resets_sent: Counter,
        /// SYNs answered with a cookie.
        cookies_sent: Counter,
        /// Cookies that came back and made a stream.
        cookies_accepted: Counter,
        /// Acknowledgements without a stream that brought no good cookie, while cookies were about.
        cookies_failed: Counter,
        /// Half-open streams evicted for a peer with a cookie.
        half_open_evicted: Counter,
        /// Streams in TIME-WAIT evicted for new ones.
        time_wait_recycled: Counter,
        /// Streams accepted by the control thread or opened by it.
        streams_established: Counter,
        /// Streams in all states.
        streams: Gauge,
        /// Streams between SYN and the control thread's knowledge of them.
        half_open: Gauge,
    }
    /// SCTP associations.
    sctp: SctpCounters {
        /// Packets that associations took. Those that they refused, or of which they refused something, are counted as
        /// dropped.
        sctp_packets: Counter,
        /// SCTP associations in all states.
        associations: Gauge,
        /// SCTP associations that came up, opened from here or by peers.
        associations_up: Counter,
        /// SCTP associations without a stream that were aborted, most of them while they shut down, because their peer
        /// or the worker had as many as it may.
        associations_evicted: Counter,
        /// INITs answered with a cookie, of which nothing is kept.
        sctp_cookies_sent: Counter,
        /// Cookies of SCTP that came back too late, or were no cookies of ours.
        sctp_cookies_failed: Counter,
        /// Sessions refused because the worker, the listener or the peer has as many streams as it may.
        sessions_refused: Counter,
        /// Streams opened anew because the association that they were to share ended before the peer answered.
        sessions_reopened: Counter,
        /// ABORTs and SHUTDOWN COMPLETEs sent for SCTP packets without an association.
        sctp_aborts_sent: Counter,
    }
    /// Bytes that are held, kept or in use, and their bounds.
    memory: MemoryCounters {
        /// Bytes that streams hold because they cannot be located yet.
        held_bytes: Gauge Bytes,
        /// The most that has been held at a time.
        held_bytes_max: Maximum Bytes,
        /// Memory for what was sent and is kept until it is acknowledged, because its source may change.
        kept_bytes: Gauge Bytes,
        /// The most that has been kept at a time.
        kept_bytes_max: Maximum Bytes,
        /// Times that a stream or association sent nothing because as much was kept for it or its peer as may be.
        keep_waits: Counter,
        /// Bytes by which receive windows have grown.
        window_bytes: Gauge Bytes,
        /// Times that a receive window did not grow because others had grown by as much as may be.
        window_refusals: Counter,
        /// Bytes of untagged receive buffers in use.
        untagged_bytes: Gauge Bytes,
        /// The most that has been in use at a time.
        untagged_bytes_max: Maximum Bytes,
        /// Untagged buffers refused because too few bytes were left.
        untagged_refused_full: Counter,
        /// Untagged buffers refused because a stream or its peer already had its share of the bytes.
        untagged_refused_share: Counter,
    }
}

impl Counters {
    /// Frames and messages taken less those of which it is counted what became of them: zero between two turns, since
    /// each is counted once.
    ///
    /// ```text
    /// rx_frames + mesh_in + mesh_news_in
    ///     = segments + sctp_packets + cookies_sent + sctp_cookies_sent + fragments + echo_replies + group_queries
    ///     + neighbour_claims + icmp_errors + mesh_out + host_frames + nat_keepalives_in + all drops
    /// ```
    pub fn unaccounted(&self) -> i64 {
        let (frames, ip) = (&self.frames, &self.ip);
        let taken = [&frames.rx_frames, &frames.mesh_in, &frames.mesh_news_in];
        let ends = [
            &self.streams.segments,
            &self.sctp.sctp_packets,
            &self.streams.cookies_sent,
            &self.sctp.sctp_cookies_sent,
            &ip.fragments,
            &ip.echo_replies,
            &ip.group_queries,
            &ip.neighbour_claims,
            &ip.icmp_errors,
            &frames.mesh_out,
            &self.host.host_frames,
            &self.ipsec.nat_keepalives_in,
        ];
        let sum = |all: &[&Counter]| all.iter().map(|counter| counter.get()).sum::<u64>();
        sum(&taken).wrapping_sub(sum(&ends) + self.drops.total()).cast_signed()
    }
}

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
    use base::metric::Kind;

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

    #[test]
    fn for_each_gives_what_was_counted() {
        let counters = Counters::default();
        counters.frames.rx_frames.add(7);
        counters.memory.held_bytes_max.max(5);
        counters.memory.held_bytes_max.max(3);
        let mut seen = Vec::new();
        counters.for_each(|counter, value| {
            if value > 0 {
                seen.push((counter.name, counter.kind, value));
            }
        });
        assert_eq!(seen, [("rx_frames", Kind::Counter, 7), ("held_bytes_max", Kind::Maximum, 5)]);
    }
}
