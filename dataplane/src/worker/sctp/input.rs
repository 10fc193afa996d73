//! Received SCTP packets. A packet belongs to an association, to a listener's handshake, or is out of the blue (RFC
//! 9260 §8.4). A packet that was not looped back is processed only if its checksum is correct. Answers to packets that
//! are not proven to be from the peer are rate-limited.
//!
//! Not included: creation and removal of associations ([`open`](super::open)).

use std::net::IpAddr;
use std::sync::Arc;

use base::Instant;
use ipsec::strength::Strength;
use sctp_lite::sctp::{
    DropReason as Refused, Ends, Listener, ListenerResult, handle_out_of_the_blue,
};
use sctp_lite::seam::TxBatch;
use wire::sctp::{Packet, Tag, chunk_type};

use crate::api::{ConnectError, DropReason, EndpointConfig, IpFields, Transport};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::mesh::IpsecState;
use crate::net::demux::{self, Kind, L4Check};
use crate::net::icmp::{IcmpErrorKind, Quote, Report, Unreachable};
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::net::rate_limit::PeerLimit;
use crate::net::sctp_path::SctpPath;
use crate::port::ChecksumSite;
use crate::worker::arrival::{Arrival, ArrivalKind, Arrivals, Forwarding, Received};
use crate::worker::flows::associations::Association;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::receive::partial_checksums;
use crate::worker::transmit::packet_batch::PacketBatch;
use crate::worker::{Core, Env, Phase};

#[derive(Clone, Copy)]
pub(super) struct PacketOrigin {
    pub(super) flow: FlowKey,
    pub(super) mac: Mac,
    /// The sender's UDP port, if the packet was encapsulated in UDP.
    pub(super) udp: Option<u16>,
    /// IPsec protection under which the packet was received.
    pub(super) strength: Strength,
}

impl PacketOrigin {
    pub(super) fn ends(&self) -> Ends {
        Ends { local: self.flow.local, remote: self.flow.remote }
    }
}

impl<Io: PortIo> Core<Io> {
    /// Appends a demultiplexed packet to the arrivals, or forwards it to the worker that owns its association. The
    /// ports and the local address alone determine the owner. A peer thus reaches its association from each of its
    /// addresses. A device may steer by the same rule ([`RssTable::sctp_rules`](crate::port::RssTable::sctp_rules)),
    /// but this function does not use the device's hash.
    pub(in crate::worker) fn classify_sctp(
        &mut self,
        port: usize,
        found: &demux::Packet,
        received: Received<Io::Frame>,
        forwarding: Forwarding,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let Kind::Sctp { source, destination, ref packet, udp } = found.kind else { return };
        let Received { packet: frame, strength } = received;
        let Some(slot) = self.env.ports.get(port) else { return };
        // Devices do not verify the SCTP checksum of packets in UDP or of reassembled packets.
        let verifier = match forwarding {
            Forwarding::Looped => ChecksumSite::Skipped,
            _ if udp.is_some() => ChecksumSite::Software,
            _ => slot.facts.rx_sctp_checksum,
        };
        let Some(check) = frame.l4_check(verifier) else {
            return self.env.control.counters().drops.count_sctp(Refused::BadChecksum);
        };
        let steering = &slot.facts.steering;
        if forwarding == Forwarding::Allowed && steering.single_worker().is_none() {
            let owner = steering.owner_by_ports(source, destination);
            if owner.0 != self.env.index {
                let message = frame.into_message(port, IpsecState::Passed(strength));
                return self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
            }
        }
        let interface = found.interface as u16;
        let flow = FlowKey { interface, local: destination, remote: source };
        let same = arrivals.last().filter(|last| last.flow == flow && last.is_sctp());
        let follows = same.is_some();
        let hash = same.map_or_else(|| self.associations.flows().hash(&flow), |last| last.hash);
        let (span, source_mac) = (packet.clone(), found.source_mac);
        let carries = ArrivalKind::Packet { udp, check };
        let (port, slot) = (port as u16, None);
        arrivals.push(Arrival {
            frame,
            port,
            flow,
            hash,
            span,
            source_mac,
            kind: carries,
            same_flow: follows,
            slot,
            strength,
        });
    }

    /// Handles one or more successive packets of one flow after their look-up. Calls `prefetch` with the index of each
    /// packet before it is handled. Returns the number of handled packets. Handling stops after a packet that requires
    /// a follow-up: events, an immediate acknowledgement or an answer to an unverified packet.
    pub(in crate::worker) fn input_sctp_run(
        &mut self,
        run: &[Arrival<Io::Frame>],
        prefetch: impl Fn(usize),
        now: Instant,
    ) -> usize {
        let Some(first) = run.first() else { return 0 };
        // An earlier packet of the burst may have opened or ended the association since the look-up.
        let found = self.associations.find_flow(first.slot, first.hash, &first.flow);
        let Some((slot, association)) =
            found.and_then(|at| Some((at, self.associations.get_mut(at)?)))
        else {
            prefetch(0);
            self.input_sctp_by_tag(first, now);
            return 1;
        };
        for (at, arrival) in run.iter().enumerate() {
            prefetch(at);
            let Some((from, packet)) = self.env.read_sctp_packet(arrival) else { continue };
            let follow_up = self.env.input_sctp_packet(slot, association, from, &packet, now);
            if follow_up.is_needed() {
                self.finish_packet(slot, from, follow_up, now);
                return at + 1;
            }
        }
        run.len()
    }

    /// Handles a packet whose flow has no association. A multi-homed peer may have sent it from another of its
    /// addresses, so the association is looked up by verification tag.
    fn input_sctp_by_tag(&mut self, arrival: &Arrival<Io::Frame>, now: Instant) {
        let Some((from, packet)) = self.env.read_sctp_packet(arrival) else { return };
        match self.associations.find_by_tag(&from.flow, packet.tag()) {
            Some(at) if self.refuses_address(at, from.flow.remote.ip()) => {
                self.env.control.counters().drops.count(DropReason::PeerRefused);
            }
            Some(at) => self.input_sctp_packet(at, from, &packet, now),
            None if from.udp.is_none() && self.is_for_host(arrival) => {
                self.env.send_to_host(from.flow.interface.into(), arrival.frame.bytes());
            }
            None => self.input_out_of_the_blue(from, &packet, now),
        }
    }

    /// Handles a packet that the look-up did not match, within the budget for unmatched frames.
    pub(in crate::worker) fn input_unmatched_packet(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        now: Instant,
    ) {
        // An earlier packet of the burst may have opened the association since the look-up. The budget then does not
        // apply.
        if !self.associations.flows().contains(arrival.hash) && !self.unmatched_budget.take(now) {
            return self.env.control.counters().drops.count(DropReason::Overload);
        }
        self.input_sctp_run(core::slice::from_ref(arrival), |_| {}, now);
    }

    /// Passes a packet to the association in `slot`, and performs the follow-up. The packet's checksum was verified.
    pub(super) fn input_sctp_packet(
        &mut self,
        slot: u32,
        origin: PacketOrigin,
        packet: &Packet<'_>,
        now: Instant,
    ) {
        let Some(association) = self.associations.get_mut(slot) else { return };
        let follow_up = self.env.input_sctp_packet(slot, association, origin, packet, now);
        self.finish_packet(slot, origin, follow_up, now);
    }

    /// Acts after an association has processed a packet: answers an unverified packet, reports events, and sends a due
    /// acknowledgement.
    #[inline]
    fn finish_packet(&mut self, at: u32, from: PacketOrigin, taken: FollowUp, now: Instant) {
        if taken.unverified {
            self.answer_unverified(at, from, now);
        }
        if taken.has_events {
            // The events are reported before further packets cause more events, so that a session without credit is
            // paused in time.
            self.report_association(at, now);
        }
        if taken.answer_now
            && let Some(association) = self.associations.get_mut(at)
        {
            self.env.transmit_carrier(at, &mut association.carrier, now);
        }
    }

    /// Answers a packet, mostly an INIT, that is not proven to be from the peer. The answer is sent to the packet's
    /// source address (RFC 9260 §5.1 B). If the packet's UDP encapsulation or UDP port differs from the association's,
    /// the answer has the packet's encapsulation and port. A peer that has restarted behind a NAT thus receives its
    /// cookie.
    ///
    /// The answer counts against the limit on INIT ACKs, because any host can send an INIT in the peer's name. A peer
    /// that the listener no longer admits cannot restart its association.
    fn answer_unverified(&mut self, association_slot: u32, origin: PacketOrigin, now: Instant) {
        let udp = self.associations.udp_ports(origin.udp);
        let refused = self.refuses_address(association_slot, origin.flow.remote.ip());
        let Some(association) = self.associations.get_mut(association_slot) else { return };
        if refused {
            association.endpoint_mut().drop_reply();
            return self.report_peer_refused(Transport::Sctp, &origin.flow, now);
        }
        if !self.env.network.init_limit_mut().take(origin.flow.remote.ip(), now) {
            association.endpoint_mut().drop_reply();
            return self.env.control.counters().frames.answers_limited.add(1);
        }
        let min_strength = association.carrier.min_strength();
        let (endpoint, own) = association.carrier.endpoint_and_path();
        if own.udp() == udp {
            return;
        }
        let mut path = SctpPath::new(own.path.clone(), udp);
        path.set_mac(origin.mac);
        let Some(slot) = self.env.ports.get_mut(path.path.port()) else { return };
        let checksum = slot.facts.tx_checksum;
        let mut packets =
            PacketBatch::new(&mut slot.io, &path, checksum, 1, self.env.control.counters());
        packets.require_strength(min_strength);
        endpoint.poll_reply(now, &mut packets);
    }

    /// Handles a packet without an association (RFC 9260 §5.1, §8.4). An INIT is answered with a cookie. A returned
    /// cookie creates an association. Other packets are answered as §8.4 requires. All answers are sent to the
    /// link-layer address from which the packet arrived.
    fn input_out_of_the_blue(&mut self, origin: PacketOrigin, packet: &Packet<'_>, now: Instant) {
        let interface_index = usize::from(origin.flow.interface);
        let interface = self.env.network.interface(interface_index);
        let (local, remote) = (origin.flow.local.ip(), origin.flow.remote.ip());
        let listeners = self.env.admission.listeners();
        let listener = listeners.find(Transport::Sctp, interface.id, origin.flow.local).cloned();
        if listener.as_ref().is_some_and(|listener| listener.peers.check(remote).is_err()) {
            self.env.control.counters().drops.count(DropReason::PeerRefused);
            if begins_with_init(packet) {
                self.report_peer_refused(Transport::Sctp, &origin.flow, now);
            }
            return;
        }
        let Some(path) = Path::via(interface_index, interface, local, remote, remote) else {
            return self.env.control.counters().drops.count(DropReason::NoRoute);
        };
        let protected = listener.as_ref().is_none_or(|listener| {
            let udp = self.associations.udp_ports(origin.udp);
            self.env.network.satisfies_listener(listener, &origin.flow, udp, origin.strength)
        });
        let cookie_listener =
            listener.as_ref().filter(|_| protected).and_then(|listener| match &listener.endpoint {
                EndpointConfig::Sctp(config) if self.env.phase == Phase::Running => {
                    let secrets = self.associations.secrets();
                    Some(Listener::new(Arc::clone(&config.sctp), secrets))
                }
                _ => None,
            });
        // Replies to packets without an association are limited per peer address. Replies to INITs have a separate
        // limit, so that a flood of other packets does not prevent new associations.
        let is_init = cookie_listener.is_some() && begins_with_init(packet);
        let path = path.with_fields(listener.as_ref().map_or_else(IpFields::default, |l| l.ip));
        let mut path = SctpPath::new(path, self.associations.udp_ports(origin.udp));
        path.set_mac(origin.mac);
        let Some(slot) = self.env.ports.get_mut(path.path.port()) else { return };
        let checksum = slot.facts.tx_checksum;
        let packets =
            PacketBatch::new(&mut slot.io, &path, checksum, 1, self.env.control.counters());
        let limit = match is_init {
            true => self.env.network.init_limit_mut(),
            false => self.env.network.reset_limit_mut(),
        };
        let mut packets = LimitedBatch { packets, limit, peer: (remote, now), refused: false };
        let arrived = match &cookie_listener {
            Some(cookies) => cookies.input(now, &origin.ends(), packet, &mut packets),
            None => ListenerResult::Dropped(handle_out_of_the_blue(
                &origin.ends(),
                packet,
                &mut packets,
            )),
        };
        let (answered, refused) = (packets.packets.has_sent(), packets.refused);
        self.env.control.counters().frames.answers_limited.add(u64::from(refused));
        match arrived {
            ListenerResult::Answered => self.env.control.counters().sctp.sctp_cookies_sent.add(1),
            ListenerResult::Accept(cookie) => {
                if let Some(listener) = listener
                    && let Err(reason) =
                        self.accept_association(&listener, origin, &cookie, packet, now)
                {
                    self.env.control.counters().drops.count(reason);
                }
            }
            // The INIT has exceeded the rate limit. The peer retransmits it.
            ListenerResult::Dropped(Refused::NoRoom) if refused => {
                self.env.control.counters().drops.count(DropReason::RateLimited);
            }
            ListenerResult::Dropped(reason) => {
                self.env.count_sctp_drop(reason);
                self.env.control.counters().sctp.sctp_aborts_sent.add(u64::from(answered));
                if answered && begins_with_init(packet) && !protected {
                    let udp = self.associations.udp_ports(origin.udp);
                    self.report_not_protected(Transport::Sctp, &origin.flow, udp, now);
                } else if answered && begins_with_init(packet) {
                    self.report_init_refused(&origin, listener.as_deref(), packet, reason, now);
                }
            }
        }
    }

    /// Applies an ICMP error about a packet of an association (RFC 9260 §10).
    pub(in crate::worker) fn apply_icmp_to_association(
        &mut self,
        report: &Report,
        quote: Quote,
        now: Instant,
    ) -> Result<(), DropReason> {
        let flow = FlowKey {
            interface: report.interface as u16,
            local: report.local,
            remote: report.remote,
        };
        let hash = self.associations.flows().hash(&flow);
        let at = self.associations.find_flow(None, hash, &flow).ok_or(DropReason::IcmpNoStream)?;
        let association = self.associations.get_mut(at).ok_or(DropReason::IcmpNoStream)?;
        let sctp = association.endpoint().association();
        let ours = match quote {
            Quote::Sctp(tag) => sctp.is_quoted(Tag(tag), None),
            Quote::SctpInit(tag) => sctp.is_quoted(Tag::NONE, Some(Tag(tag))),
            Quote::Tcp(_) | Quote::Esp(..) => false,
        };
        if !ours {
            return Err(DropReason::IcmpNotInFlight);
        }
        match report.kind {
            IcmpErrorKind::TooBig(mtu) => {
                let limit = association.carrier.path().packet_limit(mtu);
                if association.endpoint_mut().on_packet_too_big(now, limit) {
                    self.env.control.counters().ip.path_mtu_updates.add(1);
                    association
                        .carrier
                        .make_ready(at, self.env.schedules.get_mut(CarrierKind::Association));
                } else {
                    return Err(DropReason::IcmpNoNews);
                }
            }
            // RFC 9260 §10, ICMP8: the error is handled like an ABORT.
            IcmpErrorKind::Unreachable(Unreachable::Protocol) if !association.is_opening() => {
                let of_init = matches!(quote, Quote::SctpInit(_));
                let cx = &mut self.env.tables.session_context();
                association.endpoint_mut().protocol_unreachable(now, of_init, cx);
                association
                    .carrier
                    .make_ready(at, self.env.schedules.get_mut(CarrierKind::Association));
            }
            IcmpErrorKind::Unreachable(code) => {
                if association.is_opening() {
                    let is_second = association.carrier.record_soft_error();
                    if code.is_hard() || is_second {
                        self.fail_opening_association(at, &ConnectError::Icmp(code));
                        return Ok(());
                    }
                }
                self.env.control.counters().ip.icmp_soft_errors.add(1);
            }
        }
        Ok(())
    }
}

/// Work that remains after an association has processed a packet.
#[derive(Clone, Copy, Debug)]
struct FollowUp {
    /// True if the packet is not proven to be from the peer. The answer is sent to the packet's source address.
    unverified: bool,
    /// True if the association may have events to report.
    has_events: bool,
    /// True if the association must send an acknowledgement now, because too many packets are unacknowledged.
    answer_now: bool,
}

impl FollowUp {
    const NONE: FollowUp = FollowUp { unverified: false, has_events: false, answer_now: false };

    #[inline]
    fn is_needed(self) -> bool {
        self.unverified || self.has_events || self.answer_now
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reads the packet of an arrival, and its origin. If the packet is malformed or its checksum is wrong (RFC 9260
    /// §6.8), counts the drop and returns `None`. A checksum that the device has verified is not verified again.
    #[inline]
    fn read_sctp_packet<'a>(
        &mut self,
        arrival: &'a Arrival<Io::Frame>,
    ) -> Option<(PacketOrigin, Packet<'a>)> {
        let ArrivalKind::Packet { udp, check } = arrival.kind else { return None };
        let refused = match Packet::new(&arrival.frame.bytes()[arrival.span.clone()]) {
            Ok(packet) if check == L4Check::Good || packet.checksum_ok() => {
                let Arrival { flow, source_mac: mac, strength, .. } = *arrival;
                return Some((PacketOrigin { flow, mac, udp, strength }, packet));
            }
            Ok(_) => {
                if partial_checksums::has_partial_sctp_checksum(
                    &arrival.frame.bytes()[arrival.span.clone()],
                ) {
                    self.record_partial_checksum(arrival.port, arrival.flow.remote.ip());
                }
                Refused::BadChecksum
            }
            Err(_) => Refused::BadHeader,
        };
        self.control.counters().drops.count_sctp(refused);
        None
    }

    /// Counts a packet that SCTP has dropped. A bad or stale state cookie is also counted as a failed cookie.
    fn count_sctp_drop(&self, reason: Refused) {
        let counters = self.control.counters();
        counters.drops.count_sctp(reason);
        if matches!(reason, Refused::BadCookie | Refused::StaleCookie) {
            counters.sctp.sctp_cookies_failed.add(1);
        }
    }

    /// Passes a packet to its association, unless the packet lacks the required protection or the peer lists forbid it.
    #[inline]
    fn input_sctp_packet(
        &mut self,
        slot: u32,
        association: &mut Association,
        origin: PacketOrigin,
        packet: &Packet<'_>,
        now: Instant,
    ) -> FollowUp {
        let carrier = &mut association.carrier;
        if origin.strength < carrier.min_strength() {
            self.control.counters().drops.count(DropReason::NotProtected);
            return FollowUp::NONE;
        }
        // RFC 9260 §5.2.4: a returned cookie may restart the association. The cookie may also be older than the present
        // peer lists.
        if begins_with(packet, chunk_type::COOKIE_ECHO)
            && let Some(listener) = association.listener
            && self.admission.listeners().admits(listener, origin.flow.remote.ip()).is_err()
        {
            self.control.counters().drops.count(DropReason::PeerRefused);
            return FollowUp::NONE;
        }
        let acknowledged = carrier.bytes_acknowledged();
        let cx = &mut self.tables.session_context();
        let accepted = carrier.endpoint_mut().input(now, packet, cx);
        match accepted.result {
            Ok(()) => self.control.counters().sctp.sctp_packets.add(1),
            Err(reason) => self.count_sctp_drop(reason),
        }
        // RFC 6951 §5.4: the peer's UDP port is updated only after the verification tag was checked.
        if accepted.verified
            && let Some(port) = origin.udp
        {
            carrier.path_mut().set_peer_port(port);
        }
        let answer = carrier.record_packet(acknowledged, &mut self.network, now);
        carrier.make_ready(slot, self.schedules.get_mut(CarrierKind::Association));
        let unverified = accepted.reply_pending && !accepted.verified;
        FollowUp {
            unverified,
            has_events: carrier.endpoint_mut().may_have_events(),
            answer_now: answer,
        }
    }
}

fn begins_with_init(packet: &Packet<'_>) -> bool {
    begins_with(packet, chunk_type::INIT)
}

#[inline]
fn begins_with(packet: &Packet<'_>, kind: u8) -> bool {
    let first = packet.chunks().next().and_then(Result::ok);
    first.is_some_and(|chunk| chunk.kind == kind)
}

/// Batch that transmits answers to unknown senders within a rate limit. A packet without an answer does not count
/// against the limit.
struct LimitedBatch<'a, 'b, Io: PortIo> {
    packets: PacketBatch<'a, Io>,
    limit: &'b mut PeerLimit,
    /// Address of the peer to be answered, and the present time.
    peer: (IpAddr, Instant),
    /// True if an answer was not sent because of the limit.
    refused: bool,
}

impl<Io: PortIo> TxBatch for LimitedBatch<'_, '_, Io> {
    fn needs_checksum(&self) -> bool {
        self.packets.needs_checksum()
    }

    fn reserve_packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.limit.take(self.peer.0, self.peer.1) {
            self.refused = true;
            return None;
        }
        self.packets.reserve_packet(len)
    }

    fn commit(&mut self, len: usize) {
        self.packets.commit(len);
    }
}
