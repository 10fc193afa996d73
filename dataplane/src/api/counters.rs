//! Counters of a worker. The worker writes them with relaxed stores; any thread may read them at any time.

use base::histogram::{Durations, Histogram};
use base::metric::Descriptor;

use crate::counter::Counter;
use crate::drops::Drops;

macro_rules! counters {
    ($($(#[doc = $of:literal])+ $group:ident: $type:ident {
        $($(#[doc = $doc:literal])+ $name:ident: $kind:ident $($unit:ident)?,)+
    })+) => {
        /// Counters of one worker, by group.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $of])+ pub $group: $type,)+
            /// Frames and segments dropped, by reason.
            pub drops: Drops,
            /// Frames per receive burst of a port.
            pub burst_frames: Histogram<1, 7>,
            /// Nanoseconds from the first packet of a stream, or from the command to open it, until it is established.
            pub handshake_nanoseconds: Durations,
        }

        $($(#[doc = $of])+
        #[derive(Debug, Default)]
        pub struct $type {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        })+

        impl Counters {
            /// Name, kind, unit and help text of each counter, without drops and histograms.
            pub const DESCRIPTORS: &'static [Descriptor] =
                &[$($(base::descriptor!($name, $kind, [$($unit)?], $($doc)+),)+)+];

            /// Calls `f` with each counter of [`DESCRIPTORS`](Self::DESCRIPTORS) and its value.
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
        /// Iterations of the worker's loop.
        turns: Counter,
        /// Iterations without work.
        idle_turns: Counter,
        /// Time spent in iterations with work, nanoseconds.
        busy_nanoseconds: Counter Nanoseconds,
        /// Times that the worker slept.
        sleeps: Counter,
        /// Expired timers.
        timers: Counter,
        /// Commands received from the control thread.
        commands: Counter,
        /// Events sent to the control thread.
        events: Counter,
        /// Iterations that read no commands because the event ring was nearly full.
        event_stalls: Counter,
        /// Streams paused because the control thread had not read their events.
        event_waits: Counter,
        /// Streams paused at present because the control thread has not read their events.
        streams_waiting: Gauge,
        /// Events that wait in the worker because the event ring is full.
        events_waiting: Gauge,
        /// Completed messages of benchmark loads that the worker generates.
        load_messages: Counter,
        /// Bytes of the completed messages of benchmark loads.
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
        /// Frames between two addresses of the appliance, looped back inside it. Also counted as sent and received.
        looped_frames: Counter,
        /// Times that streams had to wait because a port's transmit ring or loopback queue was full.
        tx_stalls: Counter,
        /// Times that a port had no packet buffer for sending or, for an IP fragment, that its transmit ring was full.
        tx_no_buffer: Counter,
        /// Frames and ICMP errors forwarded to the worker that owns their flow or SA.
        mesh_out: Counter,
        /// Frames and ICMP errors received from other workers.
        mesh_in: Counter,
        /// Neighbour solicitations, answers and announcements forwarded to other workers.
        mesh_news_out: Counter,
        /// Neighbour solicitations, answers and announcements received from other workers.
        mesh_news_in: Counter,
        /// Neighbour solicitations, answers and announcements not forwarded to other workers because of the rate limit.
        mesh_news_limited: Counter,
        /// Messages to other workers lost because the ring to the worker was full.
        mesh_full: Counter,
        /// Resets, ABORTs and INIT ACKs not sent because of the rate limit. The packets that they would answer have
        /// their own counters, such as drops.
        answers_limited: Counter,
        /// Resets, last segments of streams, and packets of ARP, ICMP, neighbour discovery and MLD that were not sent
        /// because no packet buffer was free or the transmit ring was full.
        answers_lost: Counter,
    }
    /// Neighbours, fragments, ICMP and path MTUs.
    ip: IpCounters {
        /// ARP requests and neighbour solicitations sent to resolve or to probe neighbours.
        neighbour_solicitations: Counter,
        /// Address resolutions that failed without an answer.
        neighbour_failures: Counter,
        /// ARP replies and neighbour advertisements sent.
        neighbour_answers: Counter,
        /// Neighbour solicitations, answers and announcements accepted, from the wire or from other workers.
        neighbour_claims: Counter,
        /// Entries of the neighbour cache.
        neighbours: Gauge,
        /// Packets sent as IP fragments, because they were built for an earlier, larger path MTU.
        tx_cut: Counter,
        /// Fragments stored or consumed without completing a packet.
        fragments: Counter,
        /// Packets reassembled from fragments.
        reassembled: Counter,
        /// Reassemblies that timed out.
        reassembly_timeouts: Counter,
        /// Incomplete packets evicted to make room for others.
        reassembly_evicted: Counter,
        /// Memory of incomplete packets in reassembly.
        reassembly_bytes: Gauge Bytes,
        /// Echo requests answered.
        echo_replies: Counter,
        /// MLD queries received that this appliance answers.
        group_queries: Counter,
        /// Path MTU reductions by ICMP.
        path_mtu_updates: Counter,
        /// ICMP errors accepted: they quote a segment in flight, or a packet of an SCTP association or of an SA.
        icmp_errors: Counter,
        /// Packet Too Big messages stored until the segment that they concern is lost.
        path_mtu_remembered: Counter,
        /// Soft ICMP errors: recorded for a stream or association, which continues.
        icmp_soft_errors: Counter,
        /// Peers with a stored path MTU.
        path_mtus: Gauge,
    }
    /// Frames to and from the host's kernel, on interfaces that share their port with it.
    host: HostCounters {
        /// Frames passed to the host only.
        host_frames: Counter,
        /// Bytes of frames passed to the host only, Ethernet headers included.
        host_bytes: Counter Bytes,
        /// Frames that the worker processed and copied to the host: ARP, neighbour and router discovery, and MLD
        /// queries.
        host_copies: Counter,
        /// Copies and ICMP errors for the host lost because its ring was full or the rate limit of frames to the host
        /// was reached.
        host_copies_lost: Counter,
        /// Frames for the host that its kernel did not accept.
        host_lost: Counter,
        /// Frames of the host sent; `tx_frames` includes them.
        host_sent: Counter,
        /// Frames of the host not sent because they were too long or too short, the ring to the worker was full, or no
        /// packet buffer was free.
        host_sent_lost: Counter,
    }
    /// IPsec: packets sealed and opened, and frames not sent.
    ipsec: IpsecCounters {
        /// Packets sealed with ESP.
        ipsec_sealed: Counter,
        /// Bytes of sealed packets before sealing, IP headers included.
        ipsec_sealed_bytes: Counter Bytes,
        /// Packets opened from ESP.
        ipsec_opened: Counter,
        /// Bytes of opened packets after opening, IP headers included.
        ipsec_opened_bytes: Counter Bytes,
        /// NAT keepalives received (RFC 3948 §2.3).
        nat_keepalives_in: Counter,
        /// NAT keepalives sent (RFC 3948 §2.3).
        nat_keepalives_out: Counter,
        /// Path MTU reductions by ICMP errors about ESP.
        ipsec_path_mtu_updates: Counter,
        /// Frames not sent because no SA was available in time.
        unsent_no_sa: Counter,
        /// Frames not sent because a policy discards them or no policy matches them.
        unsent_policy: Counter,
        /// Frames not sent because their stream requires stronger IPsec protection (`require` of the listener).
        unsent_not_protected: Counter,
        /// Frames not sent because they would exceed the MTU after sealing.
        unsent_too_long: Counter,
        /// Frames not sent because they could not be sealed, usually because the SA has expired or has no sequence
        /// numbers left.
        unsent_refused: Counter,
        /// Packet Too Big messages to the host's kernel about its frames, which would be too long after sealing.
        host_too_long: Counter,
        /// Frames of the host not sent because its kernel had already sealed them, with an SA of this appliance.
        unsent_twice: Counter,
        /// Frames of the host not sent because policies cannot classify them: frames with two tags, and frames other
        /// than IP, ARP, LLDP and EAPOL.
        unsent_unclassified: Counter,
        /// Frames of other workers and NAT keepalives not sent because the transmit ring was full or, for a keepalive,
        /// no packet buffer was free.
        unsent_full: Counter,
        /// Frames forwarded for sealing to the worker that owns their SA, and Packet Too Big messages to the worker
        /// that owns the flow.
        mesh_seal_out: Counter,
        /// Frames received from other workers for sealing, and Packet Too Big messages from them.
        mesh_seal_in: Counter,
        /// IPsec notices lost because of their rate limit, or because the control thread was too slow.
        ipsec_notices_lost: Counter,
    }
    /// Streams of TCP and SCTP.
    streams: StreamCounters {
        /// Segments accepted by streams, SYNs of new streams included. Refused segments are counted as dropped.
        segments: Counter,
        /// Resets sent for segments without a stream.
        resets_sent: Counter,
        /// SYNs answered with a SYN cookie.
        cookies_sent: Counter,
        /// Returned cookies that created a stream.
        cookies_accepted: Counter,
        /// Acknowledgements without a stream and without a valid cookie, while cookies were in use.
        cookies_failed: Counter,
        /// Half-open streams evicted for a peer with a valid cookie.
        half_open_evicted: Counter,
        /// Streams in TIME-WAIT evicted for new ones.
        time_wait_recycled: Counter,
        /// Streams established after the control thread has accepted or opened them.
        streams_established: Counter,
        /// Streams in all states.
        streams: Gauge,
        /// Half-open streams: from the SYN, or a returned SCTP cookie, until their request is reported to the control
        /// thread.
        half_open: Gauge,
    }
    /// Operations of local programs.
    programs: ProgramCounters {
        /// Send requests taken from programs: Sends, Writes, Reads, atomics, Immediate Data, window bindings and local
        /// invalidations.
        program_sends: Counter,
        /// Send requests of programs that were performed.
        program_sends_completed: Counter,
        /// Receives taken from programs.
        program_receives: Counter,
        /// Receives of programs completed by a message.
        program_receives_completed: Counter,
        /// Queue pairs of programs.
        queue_pairs: Gauge,
        /// Queue pairs that failed because of an error of their program, or because their completion queue was full.
        queue_pairs_failed: Counter,
    }
    /// Packets, handshakes and sessions of SCTP associations.
    sctp: SctpCounters {
        /// Packets accepted by associations. Packets refused entirely or in part are counted as dropped.
        sctp_packets: Counter,
        /// SCTP associations in all states.
        associations: Gauge,
        /// SCTP associations established, opened by the appliance or by peers.
        associations_up: Counter,
        /// SCTP associations aborted to free a slot at the limit of their peer or of the worker. Most were shutting
        /// down, and none had a stream.
        associations_evicted: Counter,
        /// INITs answered with a cookie, without local state.
        sctp_cookies_sent: Counter,
        /// SCTP cookies that were returned too late, or that this worker did not issue.
        sctp_cookies_failed: Counter,
        /// Sessions refused because the worker, the listener or the peer has reached its maximum number of streams,
        /// because the peer is no longer admitted, or because the worker is draining.
        sessions_refused: Counter,
        /// Streams reopened because the association that they were to share ended before the peer answered.
        sessions_reopened: Counter,
        /// ABORTs, SHUTDOWN COMPLETEs and Stale Cookie errors sent for SCTP packets without an association.
        sctp_aborts_sent: Counter,
    }
    /// Memory for received data, for data kept for retransmission and for untagged buffers, and its limits.
    memory: MemoryCounters {
        /// Received bytes held in buffers because they cannot be placed yet.
        held_bytes: Gauge Bytes,
        /// Largest value of `held_bytes` so far.
        held_bytes_max: Maximum Bytes,
        /// Memory of copies kept for retransmission, of data whose source may change.
        kept_bytes: Gauge Bytes,
        /// Largest value of `kept_bytes` so far.
        kept_bytes_max: Maximum Bytes,
        /// Times that a stream or association sent nothing because it or its peer had reached the limit of kept data.
        keep_waits: Counter,
        /// Current growth of receive windows beyond their configured size.
        window_bytes: Gauge Bytes,
        /// Times that a receive window did not grow because the limit for all windows was reached.
        window_refusals: Counter,
        /// Memory of untagged receive buffers in use.
        untagged_bytes: Gauge Bytes,
        /// Largest value of `untagged_bytes` so far.
        untagged_bytes_max: Maximum Bytes,
        /// Untagged buffers refused because the worker's limit was reached.
        untagged_refused_full: Counter,
        /// Untagged buffers refused because a stream or its peer had used up its share.
        untagged_refused_share: Counter,
    }
}

impl Counters {
    /// Returns the number of received frames and messages minus the number of their counted results. Zero between two
    /// iterations of the worker's loop, because each frame or message has exactly one result.
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
