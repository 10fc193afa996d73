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
