//! Received SCTP packets: input of an association, handshake with a listener, or out of the blue (RFC 9260 §8.4).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base::Instant;
use ipsec::strength::Strength;
use sctp_lite::sctp::{Arrived, DropReason as Refused, Ends, Listener, out_of_the_blue};
use sctp_lite::seam::TxBatch;
use wire::sctp::{Packet, Tag, chunk_type};

use crate::api::{ConnectError, DropReason, EndpointConfig, IpFields, Transport};
use crate::flow::FlowKey;
use crate::io::PortIo;
use crate::mesh::Cover;
use crate::net::demux::{self, Kind};
use crate::net::icmp::{Quote, Report, Trouble, Unreachable};
use crate::net::limit::PeerLimit;
use crate::net::neighbour::Mac;
use crate::net::path::Path;
use crate::net::sctp_path::SctpPath;
use crate::port::ChecksumBy;
use crate::worker::arrival::{Arrival, Arrivals, Carries, Packet as Carried};
use crate::worker::flows::associations::Association;
use crate::worker::flows::schedule::CarrierKind;
use crate::worker::receive::unfinished;
use crate::worker::transmit::packets::Packets;
use crate::worker::{Core, Env, Phase};

/// Origin of a packet.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) flow: FlowKey,
    pub(super) mac: Mac,
    /// The sender's UDP port, if the packet arrived in UDP.
    pub(super) udp: Option<u16>,
    /// Protection by IPsec of the received packet.
    pub(super) strength: Strength,
}

impl Sender {
    pub(super) fn ends(&self) -> Ends {
        Ends { local: self.flow.local, remote: self.flow.remote }
    }
}

impl<Io: PortIo> Core<Io> {
    /// Sorts a demultiplexed packet: one that belongs to another worker is forwarded. The owner follows from the ports
    /// and our address alone, so that a peer with several addresses reaches its association from each. A device may
    /// have [rules](crate::port::RssTable::sctp_rules) for the same; its hash is not used here.
    pub(in crate::worker) fn sort_sctp(
        &mut self,
        port: usize,
        found: &demux::Packet,
        (source, destination): (SocketAddr, SocketAddr),
        (frame, strength): (Carried<Io::Frame>, Strength),
        may_forward: bool,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let Kind::Sctp { ref packet, udp, .. } = found.kind else { return };
        let Some(slot) = self.env.ports.get(port) else { return };
        // A device checks neither packets in UDP nor reassembled ones.
        let by = if udp.is_some() { ChecksumBy::Software } else { slot.facts.rx_sctp_checksum };
        let Some(unverified) = frame.is_unverified(by) else {
            return self.env.control.counters().drops.count_sctp(Refused::BadChecksum);
        };
        let steering = &slot.facts.steering;
        if may_forward && steering.only().is_none() {
            let owner = steering.owner_by_ports(source, destination);
            if owner.0 != self.env.index {
                let message = frame.message(port, Cover::Passed(strength));
                return self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
            }
        }
        let interface = found.interface as u16;
        let flow = FlowKey { interface, local: destination, remote: source };
        let same = arrivals.last().filter(|last| last.flow == flow && last.is_sctp());
        let follows = same.is_some();
        let hash = same.map_or_else(|| self.associations.flows().hash(&flow), |last| last.hash);
        let (span, source_mac) = (packet.clone(), found.source_mac);
        let carries = Carries::Packet { udp, unverified };
        let (port, slot) = (port as u16, None);
        arrivals.push(Arrival {
            frame,
            port,
            flow,
            hash,
            span,
            source_mac,
            carries,
            follows,
            slot,
            strength,
        });
    }

    /// Handles successive packets of one flow, at least one, after their look-up. `ahead` is called before each, with
    /// its index. Returns the number handled: processing stops after a packet that its association reports, answers at
    /// once, or that ends it.
    pub(in crate::worker) fn sctp_packets(
        &mut self,
        run: &[Arrival<Io::Frame>],
        ahead: impl Fn(usize),
        now: Instant,
    ) -> usize {
        let Some(first) = run.first() else { return 0 };
        // The burst may have opened or ended the association meanwhile.
        let found = self.associations.find_from(first.slot, first.hash, &first.flow);
        let Some((slot, association)) =
            found.and_then(|at| Some((at, self.associations.get_mut(at)?)))
        else {
            ahead(0);
            self.sctp_from_elsewhere(first, now);
            return 1;
        };
        for (at, arrival) in run.iter().enumerate() {
            ahead(at);
            let Some((from, packet)) = self.env.read_packet(arrival) else { continue };
            let taken = self.env.take_packet(slot, association, from, &packet, now);
            if taken.calls() {
                self.after_packet(slot, from, taken, now);
                return at + 1;
            }
        }
        run.len()
    }

    /// Handles a packet whose flow has no association: the peer may have sent it from another of its addresses.
    fn sctp_from_elsewhere(&mut self, arrival: &Arrival<Io::Frame>, now: Instant) {
        let Some((from, packet)) = self.env.read_packet(arrival) else { return };
        match self.associations.by_tag(&from.flow, packet.tag()) {
            Some(at) if self.refuses_address(at, from.flow.remote.ip()) => {
                self.env.control.counters().drops.count(DropReason::PeerRefused);
            }
            Some(at) => self.take_packet(at, from, &packet, now),
            None if from.udp.is_none() && self.is_the_hosts(arrival) => {
                self.env.give_host(from.flow.interface.into(), arrival.frame.bytes());
            }
            None => self.sctp_unknown(from, &packet, now),
        }
    }

    /// Handles a packet that had no association when it was looked up, within the budget for unmatched frames.
    pub(in crate::worker) fn input_unmatched_packet(
        &mut self,
        arrival: &Arrival<Io::Frame>,
        now: Instant,
    ) {
        // The burst may have opened its association meanwhile.
        if !self.associations.flows().has(arrival.hash) && !self.unmatched_budget.take(now) {
            return self.env.control.counters().drops.count(DropReason::Overload);
        }
        self.sctp_packets(core::slice::from_ref(arrival), |_| {}, now);
    }

    /// Passes a packet with a verified checksum to the association in `at`.
    pub(super) fn take_packet(&mut self, at: u32, from: Sender, packet: &Packet<'_>, now: Instant) {
        let Some(association) = self.associations.get_mut(at) else { return };
        let taken = self.env.take_packet(at, association, from, packet, now);
        self.after_packet(at, from, taken, now);
    }

    /// Carries out the follow-up of an accepted packet.
    #[inline]
    fn after_packet(&mut self, at: u32, from: Sender, taken: Taken, now: Instant) {
        if taken.unverified {
            self.answer_unverified(at, from, now);
        }
        if taken.reports {
            // Takes the events before further packets cause more: a session out of credit is paused in time.
            self.report_association(at, now);
        }
        if taken.answer
            && let Some(association) = self.associations.get_mut(at)
        {
            self.env.send(at, &mut association.carrier, now);
        }
    }

    /// Answers a packet from an unproven address, mostly an INIT, where it came from (RFC 9260 §5.1 B). If the
    /// sender's UDP port differs from that of the association's packets, or only one of them uses UDP, this answer
    /// alone goes there. A peer that has restarted behind a NAT receives its cookie like that.
    ///
    /// The answer counts against the limit on INIT ACKs: any host can send an INIT in the peer's name. A peer that the
    /// listener no longer admits cannot restart its association.
    fn answer_unverified(&mut self, at: u32, from: Sender, now: Instant) {
        let udp = self.associations.udp_ports(from.udp);
        let refused = self.refuses_address(at, from.flow.remote.ip());
        let Some(association) = self.associations.get_mut(at) else { return };
        if refused {
            association.endpoint_mut().forget_reply();
            return self.peer_refused(Transport::Sctp, &from.flow, now);
        }
        if !self.env.network.inits().take(from.flow.remote.ip(), now) {
            association.endpoint_mut().forget_reply();
            return self.env.control.counters().frames.answers_limited.add(1);
        }
        let least = association.carrier.least();
        let (endpoint, own) = association.carrier.parts();
        if own.udp() == udp {
            return;
        }
        let mut path = SctpPath::new(own.path.clone(), udp);
        path.set_mac(from.mac);
        let Some(slot) = self.env.ports.get_mut(path.path.port()) else { return };
        let how = slot.facts.tx_checksum;
        let mut packets = Packets::new(&mut slot.io, &path, how, 1, self.env.control.counters());
        packets.require(least);
        endpoint.poll_reply(now, &mut packets);
    }

    /// Handles a packet without an association (RFC 9260 §5.1, §8.4): an INIT is answered with a cookie, a returned
    /// cookie creates an association, others are answered as §8.4 requires. All answers go to the link-layer address
    /// that the packet came from.
    fn sctp_unknown(&mut self, from: Sender, packet: &Packet<'_>, now: Instant) {
        let at = usize::from(from.flow.interface);
        let interface = self.env.network.interface(at);
        let (local, remote) = (from.flow.local.ip(), from.flow.remote.ip());
        let listeners = self.env.admission.listeners();
        let listener = listeners.find(Transport::Sctp, interface.id, from.flow.local).cloned();
        if listener.as_ref().is_some_and(|listener| listener.peers.check(remote).is_err()) {
            self.env.control.counters().drops.count(DropReason::PeerRefused);
            if begins_with_init(packet) {
                self.peer_refused(Transport::Sctp, &from.flow, now);
            }
            return;
        }
        let Some(path) = Path::by(at, interface, local, remote, remote) else {
            return self.env.control.counters().drops.count(DropReason::NoRoute);
        };
        let protected = listener.as_ref().is_none_or(|listener| {
            let udp = self.associations.udp_ports(from.udp);
            self.env.network.protects(listener, &from.flow, udp, from.strength)
        });
        let jar =
            listener.as_ref().filter(|_| protected).and_then(|listener| match &listener.endpoint {
                EndpointConfig::Sctp(config) if self.env.phase == Phase::Running => {
                    let secrets = self.associations.secrets();
                    Some(Listener::new(Arc::clone(&config.sctp), secrets))
                }
                _ => None,
            });
        // Answers to unknown senders are limited by address. Answers to INITs have a limit of their own with room for
        // many honest peers: an unanswered INIT is retransmitted.
        let begins = jar.is_some() && begins_with_init(packet);
        let path = path.with_fields(listener.as_ref().map_or_else(IpFields::default, |l| l.ip));
        let mut path = SctpPath::new(path, self.associations.udp_ports(from.udp));
        path.set_mac(from.mac);
        let Some(slot) = self.env.ports.get_mut(path.path.port()) else { return };
        let how = slot.facts.tx_checksum;
        let packets = Packets::new(&mut slot.io, &path, how, 1, self.env.control.counters());
        let limit = match begins {
            true => self.env.network.inits(),
            false => self.env.network.resets(),
        };
        let mut packets = Limited { packets, limit, peer: (remote, now), refused: false };
        let arrived = match &jar {
            Some(jar) => jar.input(now, &from.ends(), packet, &mut packets),
            None => Arrived::Dropped(out_of_the_blue(&from.ends(), packet, &mut packets)),
        };
        let (answered, refused) = (packets.packets.has_sent(), packets.refused);
        self.env.control.counters().frames.answers_limited.add(u64::from(refused));
        match arrived {
            Arrived::Answered => self.env.control.counters().sctp.sctp_cookies_sent.add(1),
            Arrived::Accept(cookie) => {
                if let Some(listener) = listener
                    && let Err(why) = self.accept_association(&listener, from, &cookie, packet, now)
                {
                    self.env.control.counters().drops.count(why);
                }
            }
            // An INIT above the limit: the peer retransmits it.
            Arrived::Dropped(Refused::NoRoom) if refused => {
                self.env.control.counters().drops.count(DropReason::RateLimited);
            }
            Arrived::Dropped(reason) => {
                self.env.control.counters().drops.count_sctp(reason);
                self.env.control.counters().sctp.sctp_aborts_sent.add(u64::from(answered));
                if answered && begins_with_init(packet) && !protected {
                    let udp = self.associations.udp_ports(from.udp);
                    self.not_protected(Transport::Sctp, (&from.flow, udp), now);
                } else if answered && begins_with_init(packet) {
                    self.init_refused(&from, listener.as_deref(), packet, reason, now);
                }
            }
        }
    }

    /// Handles an ICMP error about a packet of an association (RFC 9260 §10).
    pub(in crate::worker) fn icmp_for_association(
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
        let at = self.associations.find_from(None, hash, &flow).ok_or(DropReason::IcmpNoStream)?;
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
        match report.trouble {
            Trouble::TooBig(mtu) => {
                let limit = association.carrier.path().packet_limit(mtu);
                if association.endpoint_mut().packet_too_big(now, limit) {
                    self.env.control.counters().ip.path_mtu_updates.add(1);
                    association
                        .carrier
                        .make_ready(at, self.env.schedules.of(CarrierKind::Association));
                } else {
                    return Err(DropReason::IcmpNoNews);
                }
            }
            // RFC 9260 §10, ICMP8: handled as an ABORT.
            Trouble::Unreachable(Unreachable::Protocol) if !association.is_opening() => {
                let of_init = matches!(quote, Quote::SctpInit(_));
                let cx = &mut self.env.tables.session_context();
                association.endpoint_mut().protocol_unreachable(now, of_init, cx);
                association.carrier.make_ready(at, self.env.schedules.of(CarrierKind::Association));
            }
            Trouble::Unreachable(what) => {
                if association.is_opening() {
                    let last = association.carrier.soft_error();
                    if what.is_hard() || last {
                        self.give_up_association(at, &ConnectError::Icmp(what));
                        return Ok(());
                    }
                }
                self.env.control.counters().ip.icmp_soft_errors.add(1);
            }
        }
        Ok(())
    }
}

/// Follow-up of an accepted packet.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The packet is not proven to be the peer's, and its answer goes to where it came from.
    unverified: bool,
    /// The association may have events.
    reports: bool,
    /// The association is to answer now: enough packets are unanswered.
    answer: bool,
}

impl Taken {
    /// No follow-up: the packet was dropped.
    const NOTHING: Taken = Taken { unverified: false, reports: false, answer: false };

    /// Returns true if there is a follow-up.
    #[inline]
    fn calls(self) -> bool {
        self.unverified || self.reports || self.answer
    }
}

impl<Io: PortIo> Env<Io> {
    /// Reads the packet of an arrival and its origin. Returns `None`, and counts the drop, if it is malformed or its
    /// checksum wrong (RFC 9260 §6.8). The device may have verified the checksum already.
    #[inline]
    fn read_packet<'a>(&mut self, arrival: &'a Arrival<Io::Frame>) -> Option<(Sender, Packet<'a>)> {
        let Carries::Packet { udp, unverified } = arrival.carries else { return None };
        let refused = match Packet::new(&arrival.frame.bytes()[arrival.span.clone()]) {
            Ok(packet) if !unverified || packet.checksum_ok() => {
                let Arrival { flow, source_mac: mac, strength, .. } = *arrival;
                return Some((Sender { flow, mac, udp, strength }, packet));
            }
            Ok(_) => {
                if unfinished::of_packet(&arrival.frame.bytes()[arrival.span.clone()]) {
                    self.unfinished_checksum(arrival.port, arrival.flow.remote.ip());
                }
                Refused::BadChecksum
            }
            Err(_) => Refused::BadHeader,
        };
        self.control.counters().drops.count_sctp(refused);
        None
    }

    /// Passes a packet to its association.
    #[inline]
    fn take_packet(
        &mut self,
        at: u32,
        association: &mut Association,
        from: Sender,
        packet: &Packet<'_>,
        now: Instant,
    ) -> Taken {
        let carrier = &mut association.carrier;
        if from.strength < carrier.least() {
            self.control.counters().drops.count(DropReason::NotProtected);
            return Taken::NOTHING;
        }
        // RFC 9260 §5.2.4: a cookie may restart the association, and may be older than the peer lists.
        if begins_with(packet, chunk_type::COOKIE_ECHO)
            && let Some(listener) = association.listener
            && self.admission.listeners().admits(listener, from.flow.remote.ip()).is_err()
        {
            self.control.counters().drops.count(DropReason::PeerRefused);
            return Taken::NOTHING;
        }
        let acknowledged = carrier.bytes_acknowledged();
        let cx = &mut self.tables.session_context();
        let accepted = carrier.endpoint_mut().input(now, packet, cx);
        match accepted.result {
            Ok(()) => self.control.counters().sctp.sctp_packets.add(1),
            Err(reason) => self.control.counters().drops.count_sctp(reason),
        }
        // RFC 6951 §5.4: the peer's UDP port is updated once the verification tag was checked.
        if accepted.verified
            && let Some(port) = from.udp
        {
            carrier.path_mut().set_peer_port(port);
        }
        let answer = carrier.packet_taken(acknowledged, &mut self.network, now);
        carrier.make_ready(at, self.schedules.of(CarrierKind::Association));
        let unverified = accepted.answer_waits && !accepted.verified;
        Taken { unverified, reports: carrier.endpoint_mut().may_report(), answer }
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

/// Sends answers to unknown senders within a limit. Packets that need no answer do not count.
struct Limited<'a, 'b, Io: PortIo> {
    packets: Packets<'a, Io>,
    limit: &'b mut PeerLimit,
    /// Peer that would be answered, and the present time.
    peer: (IpAddr, Instant),
    /// An answer exceeded the limit.
    refused: bool,
}

impl<Io: PortIo> TxBatch for Limited<'_, '_, Io> {
    fn wants_checksum(&self) -> bool {
        self.packets.wants_checksum()
    }

    fn packet(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.limit.take(self.peer.0, self.peer.1) {
            self.refused = true;
            return None;
        }
        self.packets.packet(len)
    }

    fn commit(&mut self, len: usize) {
        self.packets.commit(len);
    }
}
