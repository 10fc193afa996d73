//! Counters of a worker. The worker writes them with relaxed stores; any thread may read them at any time.

use base::histogram::{Durations, Histogram};
use base::metric::Descriptor;

use crate::counter::Counter;
use crate::drops::Drops;

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
            /// Frames per receive call of a port, up to a burst.
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
            /// Descriptors of all counters except the drops.
            pub const DESCRIPTORS: &'static [Descriptor] =
                &[$($(base::descriptor!($name, $kind, [$($unit)?], $($doc)+),)+)+];

            /// Calls `f` with each counter and its value, except the drops.
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
        /// Turns without work.
        idle_turns: Counter,
        /// Nanoseconds spent in turns with work.
        busy_nanoseconds: Counter Nanoseconds,
        /// Sleeps of the idle worker.
        sleeps: Counter,
        /// Expired timers.
        timers: Counter,
        /// Commands received from the control thread.
        commands: Counter,
        /// Events sent to the control thread.
        events: Counter,
        /// Turns in which no command was processed because the event ring was nearly full.
        event_stalls: Counter,
        /// Pauses of streams whose events the control thread had not read.
        event_waits: Counter,
        /// Streams paused until the control thread reads their events.
        streams_waiting: Gauge,
        /// Events queued behind the full event ring.
        events_waiting: Gauge,
        /// Completed messages of the load that the worker generates.
        load_messages: Counter,
        /// Bytes of the completed messages of generated load.
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
        /// Times that streams waited because a port's transmit ring was full.
        tx_stalls: Counter,
        /// Times that a port had no packet buffer for a frame to send.
        tx_no_buffer: Counter,
        /// Frames and ICMP errors forwarded to the worker that owns their flow.
        mesh_out: Counter,
        /// Frames and ICMP errors received from other workers.
        mesh_in: Counter,
        /// Neighbour announcements forwarded to other workers.
        mesh_news_out: Counter,
        /// Neighbour announcements received from other workers.
        mesh_news_in: Counter,
        /// Neighbour announcements not forwarded to other workers because of the rate limit.
        mesh_news_limited: Counter,
        /// Messages to other workers lost because their ring was full.
        mesh_full: Counter,
        /// Resets, ABORTs and INIT ACKs not sent because of the rate limit; their causes are counted elsewhere.
        answers_limited: Counter,
        /// Answers and last segments of streams not sent because packet buffers or the transmit ring were exhausted.
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
        /// ARP and neighbour discovery packets processed by the neighbour cache, from the link or from other workers.
        neighbour_claims: Counter,
        /// Entries of the neighbour caches.
        neighbours: Gauge,
        /// SCTP packets sent in fragments, because the path MTU fell below their size.
        tx_cut: Counter,
        /// Fragments received that did not complete a packet.
        fragments: Counter,
        /// Packets reassembled from fragments.
        reassembled: Counter,
        /// Incomplete packets dropped because fragments were missing at the time-out.
        reassembly_timeouts: Counter,
        /// Incomplete packets evicted for other packets.
        reassembly_evicted: Counter,
        /// Memory of packets in reassembly.
        reassembly_bytes: Gauge Bytes,
        /// Echo requests answered.
        echo_replies: Counter,
        /// MLD queries accepted, to be answered with reports of multicast groups.
        group_queries: Counter,
        /// Path MTUs reduced by an ICMP error.
        path_mtu_updates: Counter,
        /// ICMP errors accepted, because they quote a segment or packet in flight or the SPI of an SA.
        icmp_errors: Counter,
        /// Reports of a smaller path MTU that take effect if the quoted segment is lost (RFC 5927 §7).
        path_mtu_remembered: Counter,
        /// Destination-unreachable errors about streams, counted without ending the stream (RFC 5927 §5.2).
        icmp_soft_errors: Counter,
        /// Peers whose path MTU is cached.
        path_mtus: Gauge,
    }
    /// Frames to and from the host's kernel, on interfaces that share their port with it.
    host: HostCounters {
        /// Frames passed to the host's kernel alone.
        host_frames: Counter,
        /// Bytes of frames passed to the host's kernel alone, Ethernet headers included.
        host_bytes: Counter Bytes,
        /// Frames copied to the host's kernel that the worker also processed: announcements of neighbours and routers.
        host_copies: Counter,
        /// Copies and ICMP errors for the host's kernel lost because its ring was full or the budget was used up.
        host_copies_lost: Counter,
        /// Frames for the host that its kernel refused.
        host_lost: Counter,
        /// Frames of the host's kernel sent; tx_frames includes them.
        host_sent: Counter,
        /// Frames of the host's kernel not sent: invalid length, full ring to the worker, or no packet buffer.
        host_sent_lost: Counter,
    }
    /// IPsec: packets sealed and opened, and frames not sent.
    ipsec: IpsecCounters {
        /// ESP packets sealed.
        ipsec_sealed: Counter,
        /// Bytes of sealed packets before sealing, IP headers included.
        ipsec_sealed_bytes: Counter Bytes,
        /// ESP packets opened.
        ipsec_opened: Counter,
        /// Bytes of opened packets after opening, IP headers included.
        ipsec_opened_bytes: Counter Bytes,
        /// NAT keepalives received (RFC 3948 §2.3).
        nat_keepalives_in: Counter,
        /// NAT keepalives sent (RFC 3948 §4).
        nat_keepalives_out: Counter,
        /// Routers' reports of a smaller path MTU accepted for an SA (RFC 4301 §8.2.1).
        ipsec_path_mtu_updates: Counter,
        /// Frames not sent because their policy had no SA and none was added in time.
        unsent_no_sa: Counter,
        /// Frames not sent because a policy discards them, or no policy matches.
        unsent_policy: Counter,
        /// Frames not sent because their protection would be weaker than their stream requires (listener's `require`).
        unsent_not_protected: Counter,
        /// Frames not sent because their sealed length would exceed the MTU.
        unsent_too_long: Counter,
        /// Frames not sent because sealing failed, for example with an expired SA or without sequence numbers.
        unsent_refused: Counter,
        /// ICMP errors to the host's kernel about frames whose sealed length would exceed the MTU.
        host_too_long: Counter,
        /// Frames of the host's kernel not sent because it had sealed them with an SA of this appliance.
        unsent_twice: Counter,
        /// Frames of the host's kernel not sent because policies cannot classify them: neither IP, ARP, LLDP nor EAPOL,
        /// or with two VLAN tags.
        unsent_unclassified: Counter,
        /// Frames of other workers and NAT keepalives not sent for lack of packet buffers or room in the transmit ring.
        unsent_full: Counter,
        /// Frames forwarded to the worker that has their SA, and path MTU reports to the owner of a flow or SA.
        mesh_seal_out: Counter,
        /// Frames to seal and path MTU reports received from other workers.
        mesh_seal_in: Counter,
        /// IPsec notices dropped because of the rate limit, or because the control thread did not read them in time.
        ipsec_notices_lost: Counter,
    }
    /// Streams of TCP and SCTP.
    streams: StreamCounters {
        /// Segments that streams accepted, including SYNs that opened one. Refused segments count as dropped.
        segments: Counter,
        /// Resets sent for segments without a stream.
        resets_sent: Counter,
        /// SYNs answered with a SYN cookie.
        cookies_sent: Counter,
        /// Returned SYN cookies that opened a stream.
        cookies_accepted: Counter,
        /// Acknowledgements without a stream or a valid SYN cookie, received while cookies were outstanding.
        cookies_failed: Counter,
        /// Half-open streams evicted for a peer with a valid SYN cookie.
        half_open_evicted: Counter,
        /// Streams in TIME-WAIT evicted for new ones.
        time_wait_recycled: Counter,
        /// Streams that the control thread accepted or opened.
        streams_established: Counter,
        /// Streams in all states.
        streams: Gauge,
        /// Streams of peers between their SYN and the report to the control thread.
        half_open: Gauge,
    }
    /// Packets, handshakes and sessions of SCTP associations.
    sctp: SctpCounters {
        /// Packets that associations accepted. Packets refused entirely or in part count as dropped.
        sctp_packets: Counter,
        /// SCTP associations in all states.
        associations: Gauge,
        /// SCTP associations established, opened by this appliance or by peers.
        associations_up: Counter,
        /// SCTP associations without a stream that were aborted at a limit of their peer or of the worker, most of them
        /// while they shut down.
        associations_evicted: Counter,
        /// INITs answered with a state cookie, without keeping state.
        sctp_cookies_sent: Counter,
        /// Returned state cookies, expired or invalid; the drops sctp_stale_cookie and sctp_bad_cookie count them
        /// instead.
        sctp_cookies_failed: Counter,
        /// Sessions refused at the limit of streams of the worker, the listener or the peer.
        sessions_refused: Counter,
        /// Streams opened again because the association that they shared ended before the peer answered.
        sessions_reopened: Counter,
        /// ABORTs and SHUTDOWN COMPLETEs sent for SCTP packets without an association.
        sctp_aborts_sent: Counter,
    }
    /// Memory for received and sent data: held, kept and in use, with maxima and refusals.
    memory: MemoryCounters {
        /// Received bytes held until they can be located or passed up: beyond gaps, and in fragments of SCTP messages.
        held_bytes: Gauge Bytes,
        /// Maximum of held_bytes.
        held_bytes_max: Maximum Bytes,
        /// Memory for copies of sent data, kept until acknowledged because their source may change.
        kept_bytes: Gauge Bytes,
        /// Maximum of kept_bytes.
        kept_bytes_max: Maximum Bytes,
        /// Times that a stream or association did not send because its share of the memory for copies was used up.
        keep_waits: Counter,
        /// Bytes by which receive windows exceed their configured size.
        window_bytes: Gauge Bytes,
        /// Times that a receive window did not grow because the rest of the budget for growth was too small.
        window_refusals: Counter,
        /// Bytes of untagged receive buffers in use.
        untagged_bytes: Gauge Bytes,
        /// Maximum of untagged_bytes.
        untagged_bytes_max: Maximum Bytes,
        /// Untagged buffers refused because too few bytes were free.
        untagged_refused_full: Counter,
        /// Untagged buffers refused because a stream or its peer had used up its share of the bytes.
        untagged_refused_share: Counter,
    }
}

impl Counters {
    /// Returns the frames and messages taken minus those with a counted result: zero between two turns, since each is
    /// counted once.
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

#[cfg(test)]
mod tests {
    use base::metric::Kind;

    use super::*;

    #[test]
    fn for_each_returns_every_counter_value() {
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
