//! IPsec in the worker: a received frame is opened before any other processing, and a frame to send is sealed after
//! all other processing. Packets that a policy protects never pass in clear, whoever sent them.
//!
//! An SA belongs to one worker. ESP for another worker's SA is forwarded to it by the mesh, as are frames that another
//! worker is to seal. The flow of an opened packet may belong to a third worker. A frame without an SA yet waits for
//! one for at most [`waiting::LONGEST`].

mod keepalive;
mod upkeep;
mod waiting;

use std::net::{IpAddr, SocketAddr};

use base::Instant;
use ipsec::guard::{Drop, Guard, Incoming, Outgoing, Protection};
use ipsec::ip::Header;
use ipsec::policy::{Denied, Flow};
use ipsec::strength::Strength;

use self::keepalive::Keepalives;
use self::upkeep::Upkeep;
use self::waiting::Waiting;
use super::{Core, Env};
use crate::api::{CommandError, DropReason, Event, IpsecConfig, SaChange, SaConfig, SaWay, Ticket};
use crate::capture::Tap;
use crate::io::{Frame, PortIo};
use crate::mesh::{Cover, Message};
use crate::net::demux;
use crate::net::icmp::{self, Quote, Report, Trouble};
use crate::net::interface::Interface;
use crate::net::link::{self, Link};
use crate::worker::arrival::{Arrivals, Packet};

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// A worker's state for frames to seal.
pub(super) struct Seals<F> {
    /// Frames that wait for an SA, with the protection that they require.
    waiting: Waiting<(F, Strength)>,
    keepalives: Keepalives,
    /// Carriers that require protection.
    upkeep: Upkeep,
}

impl<F: Frame> Seals<F> {
    pub(super) fn new() -> Self {
        Seals {
            waiting: Waiting::new(),
            keepalives: Keepalives::default(),
            upkeep: Upkeep::default(),
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [
            self.waiting.poll_timeout(),
            self.keepalives.poll_timeout(),
            self.upkeep.poll_timeout(),
        ];
        timers.into_iter().flatten().min()
    }
}

/// Creates a worker's guard from a configuration, and adds its SAs.
pub(super) fn guard<F: Frame>(
    worker: u16,
    config: &IpsecConfig,
    seals: &mut Seals<F>,
    now: Instant,
) -> Guard {
    let owners = config.owners.iter().map(|owner| owner.0);
    let mut guard = Guard::new(worker, config.policies.clone(), owners);
    guard.share_windows(config.windows.clone());
    if config.alone {
        guard.seals_alone();
    }
    for sa in &config.sas {
        // Configured SAs were checked. An SA that is refused nevertheless is missing: frames that require it do not
        // pass.
        let _ = add(&mut guard, seals, sa, now);
    }
    guard
}

fn add<F: Frame>(
    guard: &mut Guard,
    seals: &mut Seals<F>,
    sa: &SaConfig,
    now: Instant,
) -> Result<(), CommandError> {
    let SaConfig { id, protection, ref parameters, way } = *sa;
    let added = match way {
        SaWay::In { window, top } => guard.add_inbound(id, protection, parameters, (window, top)),
        SaWay::Out { reserve, keepalive } => {
            if let Some(every) = keepalive.filter(|_| parameters.encapsulation.is_some()) {
                seals.keepalives.add(id, every, now);
            }
            guard.add_outbound(id, protection, parameters, reserve)
        }
    };
    added.map_err(CommandError::Sa)
}

/// Returns true if a received frame may be passed to the host's kernel under policies: an IP packet that
/// [`Core::admit`] has looked up, or a protocol that passes policies. The kernel has its own parser, which must not
/// find another packet.
#[cold]
pub(super) fn is_classified(frame: &[u8]) -> bool {
    let Ok(link) = Link::read(frame) else { return false };
    match link.ip().and_then(|at| frame.get(at..)) {
        Some(packet) => demux::is_intact(packet) && Flow::read(packet, true).is_some(),
        None => link.passes_policies(),
    }
}

/// Writes the EtherType in front of the packet at `at`, whose IP version may have changed.
fn retype(frame: &mut [u8], at: usize) {
    let kind = if frame[at] >> 4 == 6 { IPV6 } else { IPV4 };
    frame[at - 2..at].copy_from_slice(&kind);
}

impl<Io: PortIo> Core<Io> {
    /// Sorts a frame or a reassembled packet, after looking it up if there are policies.
    pub(super) fn take(
        &mut self,
        port: usize,
        packet: Packet<Io::Frame>,
        now: Instant,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        match self.env.network.is_guarded() {
            true => self.admit(port, packet, now, arrivals),
            false => self.sort(port, (packet, Strength::CLEAR), now, true, arrivals),
        }
    }

    /// Admits a frame from the wire, or for an SA of this worker: a protected packet is opened, and packets that pass
    /// are sorted.
    #[inline(never)]
    pub(super) fn admit(
        &mut self,
        port: usize,
        mut packet: Packet<Io::Frame>,
        now: Instant,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        let counters = self.env.control.counters();
        let (interfaces, guard) = self.env.network.interfaces_and_guard();
        let Some(guard) = guard else { return };
        let Some(at) = demux::ip_to_us(packet.bytes(), port, interfaces) else {
            return self.sort(port, (packet, Strength::CLEAR), now, true, arrivals);
        };
        let bytes = packet.bytes_mut();
        let end = bytes.len();
        let opened = match guard.incoming(&bytes[at..], now) {
            Ok(Incoming::Clear) => {
                return self.sort(port, (packet, Strength::CLEAR), now, true, arrivals);
            }
            Ok(Incoming::Piece) => {
                let judged = match demux::is_put_together_here(bytes, port, interfaces) {
                    true => Ok(()),
                    false => guard.piece(&bytes[at..], now),
                };
                match judged {
                    Ok(()) => {
                        return self.sort(port, (packet, Strength::CLEAR), now, true, arrivals);
                    }
                    Err(why) => Err(why),
                }
            }
            // A NAT keepalive needs no further processing.
            Ok(Incoming::Keepalive) => return counters.ipsec.nat_keepalives_in.add(1),
            Ok(Incoming::Elsewhere(owner)) => {
                let message = packet.message(port, Cover::Sealed);
                return self.mesh.send(usize::from(owner), message, counters);
            }
            Ok(Incoming::Protected(spi)) => guard.open(spi, bytes, at..end, now),
            Err(why) => Err(why),
        };
        match opened {
            Ok((range, strength)) => {
                let front = range.start - at;
                bytes.copy_within(..at, front);
                retype(&mut bytes[front..], at);
                packet.cut(front, at + range.len());
                self.watch_opened(port, packet.bytes());
                self.sort(port, (packet, strength), now, true, arrivals);
            }
            Err(why) => counters.drops.count(reason_of(why)),
        }
    }

    /// Protects the frames to send, and passes them to the ports. Frames that policies and SAs refuse are counted.
    #[inline(never)]
    pub(super) fn protect(&mut self, now: Instant) {
        for port in 0..self.env.ports.places() {
            while let Some(frame) =
                self.env.ports.get_mut(port).and_then(|slot| slot.io.take_held())
            {
                self.protect_frame(port, frame, now, None);
            }
        }
        let expired = self.env.seals.waiting.expire(now);
        self.env.control.counters().ipsec.unsent_no_sa.add(expired);
        self.send_keepalives(now);
        self.tell_notices();
    }

    /// Protects one frame, under at least the strength `least`. `until` bounds the wait for an SA of a frame that has
    /// waited already.
    #[inline]
    fn protect_frame(
        &mut self,
        port: usize,
        (mut frame, least): (Io::Frame, Strength),
        now: Instant,
        until: Option<Instant>,
    ) {
        let Some(slot) = self.env.ports.get_mut(port) else { return };
        let (interfaces, guard) = self.env.network.interfaces_and_guard();
        let Some(guard) = guard else { return };
        let counters = self.env.control.counters();
        let why = match out(guard, interfaces, port, (&mut frame, least), slot.io.tap(), now) {
            Ok(Way::Clear) => return slot.io.pass(frame),
            Ok(Way::Unclassified) => return counters.ipsec.unsent_unclassified.add(1),
            Ok(Way::Sealed(protection)) => {
                self.env.seals.keepalives.sent(guard, protection, (port, frame.bytes()), now);
                return slot.io.pass(frame);
            }
            Ok(Way::Wait(protection)) => {
                let until = until.unwrap_or(now + waiting::LONGEST);
                if !self.env.seals.waiting.push(protection, (port, (frame, least)), until) {
                    counters.ipsec.unsent_no_sa.add(1);
                }
                return;
            }
            Ok(Way::TooLong(report)) => {
                counters.ipsec.unsent_too_long.add(1);
                return self.report_too_long(port, report, &frame, now);
            }
            Ok(Way::Elsewhere(owner)) => {
                // The owner may have older policies, by which the frame would pass in clear.
                let least = least.max(Strength::of_bits(0));
                let message = Message::Seal { port, frame, least };
                return self.mesh.send(usize::from(owner), message, counters);
            }
            Err(why) => why,
        };
        match why {
            Drop::NoSa => counters.ipsec.unsent_no_sa.add(1),
            Drop::Denied(_) => counters.ipsec.unsent_policy.add(1),
            Drop::Twice => counters.ipsec.unsent_twice.add(1),
            Drop::TooWeak => counters.ipsec.unsent_not_protected.add(1),
            Drop::Refused(_) | Drop::UnknownSpi => counters.ipsec.unsent_refused.add(1),
        }
    }

    /// Reports the largest packet length to the sender of a frame that would be too long once sealed, as would a
    /// router that sees it in clear (RFC 4301 §8.2.1). The sender is a flow of ours, or the host's kernel.
    #[cold]
    fn report_too_long(&mut self, port: usize, told: TooLong, frame: &Io::Frame, now: Instant) {
        let TooLong { interface, mtu, ends, flow } = told;
        let shared = self.env.host.is_shared(interface);
        if let Some(report) = flow.filter(|report| !shared || self.is_about_us(report)) {
            match self.env.ports.owner_of(port, &report).filter(|of| of.0 != self.env.index) {
                Some(owner) => {
                    let message = Message::TooLong(report);
                    self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
                }
                // The flow may have ended meanwhile; the report is ignored then.
                None => drop(self.reported(&report, now)),
            }
        } else if shared {
            let Some(at) = link::ip_at(frame.bytes()) else { return };
            let (mut report, packet) = (Vec::new(), &frame.bytes()[at..]);
            let here = self.env.network.interface(interface);
            icmp::packet_too_big(here, packet, ends, mtu, &mut report);
            self.env.report_to_host(interface, &report);
        }
    }

    /// Retries waiting frames after a change of SAs or policies.
    fn retry_waiting(&mut self, now: Instant) {
        for (port, frame, until) in self.env.seals.waiting.take() {
            self.protect_frame(port, frame, now, Some(until));
        }
    }

    /// Sends due NAT keepalives.
    fn send_keepalives(&mut self, now: Instant) {
        while let Some((port, bytes)) = self.env.seals.keepalives.due(now) {
            let Some(slot) = self.env.ports.get_mut(port) else { continue };
            let counters = &self.env.control.counters().ipsec;
            match (slot.io.room() > 0).then(|| slot.io.allocate(bytes.len())).flatten() {
                Some(mut frame) => {
                    frame.bytes_mut().copy_from_slice(&bytes);
                    slot.io.pass(frame);
                    counters.nat_keepalives_out.add(1);
                }
                None => counters.unsent_full.add(1),
            }
        }
    }

    /// Sends the guard's notices to the control thread, as far as its ring has room.
    fn tell_notices(&mut self) {
        let Some(guard) = self.env.network.guard() else { return };
        if !guard.has_notices() {
            return;
        }
        while !self.env.control.is_short()
            && let Some(notice) = self.env.network.guard().and_then(Guard::take_notice)
        {
            self.env.control.send(Event::Ipsec(Box::new(notice)));
        }
    }

    /// Changes policies or SAs.
    ///
    /// # Errors
    /// The reason for which they are unchanged.
    pub(super) fn change_sa(&mut self, change: SaChange, now: Instant) -> Result<(), CommandError> {
        let guard = self.env.network.guard().ok_or(CommandError::NoIpsec)?;
        match change {
            SaChange::Policies { policies, owners } => {
                guard.set_policies((*policies).clone(), owners.iter().map(|owner| owner.0));
                self.retry_waiting(now);
            }
            SaChange::Add(sa) => {
                add(guard, &mut self.env.seals, &sa, now)?;
                self.retry_waiting(now);
            }
            SaChange::Remove(id, direction) => {
                // Every worker has the SA. An unknown one is ignored.
                guard.remove(id, direction);
                self.env.seals.keepalives.remove(id);
            }
            SaChange::Select(id) => guard.select(id),
            SaChange::Reserve(id, last) => {
                guard.reserve(id, last);
                return Ok(());
            }
        }
        self.env.seals.upkeep.begin();
        Ok(())
    }

    /// Reports the SAs of this worker.
    pub(super) fn list_sas(&mut self, ticket: Ticket) {
        let sas = self.env.network.guard().map(|guard| guard.sas().collect());
        self.env.control.send(Event::Sas { ticket, sas: sas.unwrap_or_default() });
    }
}

/// Outcome for a frame to send.
enum Way {
    Clear,
    /// Neither an IP packet nor a protocol that passes policies.
    Unclassified,
    /// The frame has been sealed.
    Sealed(Protection),
    /// No SA of the protection exists yet.
    Wait(Protection),
    Elsewhere(u16),
    /// The sealed packet would exceed the path MTU.
    TooLong(TooLong),
}

/// Report to the sender of a frame that is too long.
struct TooLong {
    interface: usize,
    /// Length limit of the sender's IP packets in clear, bytes.
    mtu: u16,
    /// Our address and the peer's.
    ends: (IpAddr, IpAddr),
    /// Path MTU report for our stream, if the packet is TCP or SCTP.
    flow: Option<Report>,
}

fn out<F: Frame>(
    guard: &mut Guard,
    interfaces: &[Interface],
    port: usize,
    (frame, least): (&mut F, Strength),
    tap: Option<&mut Tap>,
    now: Instant,
) -> Result<Way, Drop> {
    let clear = || if least > Strength::CLEAR { Err(Drop::TooWeak) } else { Ok(Way::Clear) };
    let bytes = frame.bytes();
    let Ok(link) = Link::read(bytes) else { return Ok(Way::Unclassified) };
    let Some(at) = link.ip() else {
        return if link.passes_policies() { clear() } else { Ok(Way::Unclassified) };
    };
    let len = bytes.len();
    match guard.outgoing(&bytes[at..], now)? {
        Outgoing::Clear => clear(),
        Outgoing::Elsewhere(owner) => Ok(Way::Elsewhere(owner)),
        Outgoing::Wait(protection) => Ok(Way::Wait(protection)),
        Outgoing::Protect { strength, .. } if strength < least => Err(Drop::TooWeak),
        Outgoing::Protect { protection, ahead, total, path_mtu, .. } => {
            if let Some(here) = link.interface(port, interfaces) {
                let most = interfaces[here].mtu.min(path_mtu.unwrap_or(u16::MAX));
                if total > usize::from(most) {
                    return too_long(guard, here, most, &bytes[at..], now).map(Way::TooLong);
                }
            }
            let longest = at + ahead + total;
            if let Some(tap) = tap {
                tap.record_inside(bytes);
            }
            if !frame.stretch(ahead, longest.saturating_sub(ahead + len)) {
                return Err(ipsec::esp::Refused::NoRoom.into());
            }
            let bytes = frame.bytes_mut();
            bytes.copy_within(ahead..ahead + at, 0);
            // Sealing copies the IP header.
            let range = guard.seal(protection, bytes, at + ahead..ahead + len, now)?;
            retype(bytes, at);
            frame.cut(0, at + range.len());
            Ok(Way::Sealed(protection))
        }
    }
}

/// Builds the report for a packet whose sealed form exceeds `mtu`, bytes.
#[cold]
fn too_long(
    guard: &mut Guard,
    interface: usize,
    mtu: u16,
    packet: &[u8],
    now: Instant,
) -> Result<TooLong, Drop> {
    let header = Header::read(packet).map_err(ipsec::esp::Refused::from)?;
    let flow = Flow::read(packet, false).ok_or(ipsec::esp::Refused::Malformed)?;
    let mtu = guard.largest(&flow, mtu.into(), header.len, now).unwrap_or_default() as u16;
    let word = |at: usize| {
        let bytes = packet.get(header.len + at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let quote = match flow.protocol {
        6 => word(4).map(Quote::Tcp),
        132 => word(4).map(Quote::Sctp),
        _ => None,
    };
    let report = quote.zip(flow.ports).map(|(quote, (local, remote))| Report {
        interface,
        local: SocketAddr::new(flow.local, local),
        remote: SocketAddr::new(flow.remote, remote),
        quote,
        trouble: Trouble::TooBig(mtu),
    });
    Ok(TooLong { interface, mtu, ends: (flow.local, flow.remote), flow: report })
}

impl<Io: PortIo> Env<Io> {
    /// Queues a frame of another worker, to be sealed with an SA of this one.
    pub(super) fn hold_for_seal(&mut self, port: usize, frame: Io::Frame, least: Strength) {
        let slot = self.ports.get_mut(port);
        match slot.and_then(|slot| (slot.io.room() > 0).then_some(slot)) {
            Some(slot) => slot.io.send_under(frame, least),
            None => self.control.counters().ipsec.unsent_full.add(1),
        }
    }
}

/// Returns the counted reason of a drop by IPsec.
fn reason_of(why: Drop) -> DropReason {
    use ipsec::esp::Refused;
    match why {
        Drop::UnknownSpi | Drop::NoSa | Drop::Twice => DropReason::EspUnknownSpi,
        Drop::TooWeak => DropReason::NotProtected,
        Drop::Denied(Denied::Unprotected) => DropReason::IpsecUnprotected,
        Drop::Denied(Denied::WrongProtection) => DropReason::IpsecWrongProtection,
        Drop::Denied(Denied::Discarded) => DropReason::IpsecDiscarded,
        Drop::Denied(Denied::NoPolicy) => DropReason::IpsecNoPolicy,
        Drop::Refused(refused) => match refused {
            Refused::TooOld | Refused::Duplicate | Refused::ImpossibleSequence => {
                DropReason::EspReplay
            }
            Refused::Integrity => DropReason::EspIntegrity,
            Refused::Expired | Refused::SequenceExhausted => DropReason::EspExpired,
            Refused::Dummy => DropReason::EspDummy,
            Refused::Malformed
            | Refused::Fragment
            | Refused::NoRoom
            | Refused::TooLong
            | Refused::Unreserved
            | Refused::NotOfSa
            | Refused::Padding
            | Refused::NextHeader
            | Refused::NotEct => DropReason::EspMalformed,
        },
    }
}
