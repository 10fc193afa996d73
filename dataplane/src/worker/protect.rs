//! IPsec in the worker. A received frame is decrypted and checked before any other processing. A sent frame is
//! encrypted after all other processing. Packets that a policy protects never pass in clear, regardless of their
//! sender.
//!
//! An SA belongs to one worker. Received ESP packets and frames to be sealed pass through the mesh to the worker of
//! their SA. The flow of a decrypted packet may belong to a third worker. A frame whose protection has no SA yet waits
//! for at most [`waiting_frames::MAX_WAIT`].

mod keepalive;
mod protection_checks;
mod waiting_frames;

use std::net::{IpAddr, SocketAddr};

use base::Instant;
use ipsec::guard::{Guard, InboundVerdict, IpsecDrop, OutboundVerdict, Protection};
use ipsec::ip::Header;
use ipsec::policy::{Denial, Flow};
use ipsec::strength::Strength;

use self::keepalive::Keepalives;
use self::protection_checks::ProtectionChecks;
use self::waiting_frames::{WaitingFrame, WaitingFrames};
use super::{Core, Env};
use crate::api::{
    CommandError, DropReason, Event, IpsecConfig, SaChange, SaConfig, SaDirectionConfig, Ticket,
};
use crate::capture::Tap;
use crate::io::{Frame, PortIo};
use crate::mesh::{IpsecState, Message};
use crate::net::demux;
use crate::net::icmp::{self, IcmpErrorKind, Quote, Report};
use crate::net::interface::Interface;
use crate::net::link::{self, Link};
use crate::worker::arrival::{Arrivals, Forwarding, Packet, Received};

const ETHER_TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHER_TYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// State of a worker for the protection of sent frames.
pub(super) struct SealState<F> {
    /// Frames that wait for an SA, each with its minimum protection.
    waiting_frames: WaitingFrames<F>,
    keepalives: Keepalives,
    /// Checks that carriers keep the protection that they require.
    checks: ProtectionChecks,
}

impl<F: Frame> SealState<F> {
    pub(super) fn new() -> Self {
        SealState {
            waiting_frames: WaitingFrames::new(),
            keepalives: Keepalives::default(),
            checks: ProtectionChecks::default(),
        }
    }

    /// Returns the earliest deadline of the waiting frames, the keepalives and the checks.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [
            self.waiting_frames.poll_timeout(),
            self.keepalives.poll_timeout(),
            self.checks.poll_timeout(),
        ];
        timers.into_iter().flatten().min()
    }
}

/// Creates the IPsec state of a worker from a configuration, with the configured SAs.
pub(super) fn new_guard<F: Frame>(
    worker: u16,
    config: &IpsecConfig,
    seals: &mut SealState<F>,
    now: Instant,
) -> Guard {
    let owners = config.owners.iter().map(|owner| owner.0);
    let mut guard = Guard::new(worker, config.policies.clone(), owners);
    guard.share_windows(config.windows.clone());
    if config.sole_sealer {
        guard.set_sole_sealer();
    }
    for sa in &config.sas {
        // Configured SAs were checked before. Packets that require a refused SA do not pass.
        let _ = add_sa(&mut guard, seals, sa, now);
    }
    guard
}

fn add_sa<F: Frame>(
    guard: &mut Guard,
    seals: &mut SealState<F>,
    sa: &SaConfig,
    now: Instant,
) -> Result<(), CommandError> {
    let SaConfig { id, protection, ref parameters, direction_config: direction } = *sa;
    match direction {
        SaDirectionConfig::In { window, top } => {
            guard.add_inbound(id, protection, parameters, window, top).map_err(CommandError::Sa)
        }
        SaDirectionConfig::Out { reserve, keepalive } => {
            guard.add_outbound(id, protection, parameters, reserve).map_err(CommandError::Sa)?;
            if let Some(every) = keepalive.filter(|_| parameters.encapsulation.is_some()) {
                seals.keepalives.add(id, every, now);
            }
            Ok(())
        }
    }
}

/// Returns true if policies allow passing a received frame to the host's kernel. The frame must contain an IP packet
/// whose flow [`Core::admit`] has looked up, or belong to a protocol that is exempt from policies. The kernel has its
/// own parser, which must not find a different packet in the frame.
#[cold]
pub(super) fn is_classified(frame: &[u8]) -> bool {
    let Ok(link) = Link::read(frame) else { return false };
    match link.ip_offset().and_then(|at| frame.get(at..)) {
        Some(packet) => demux::is_intact(packet) && Flow::parse(packet, true).is_some(),
        None => link.passes_policies(),
    }
}

/// Writes the EtherType of the IP packet at offset `at`, in the two bytes before the packet. In tunnel mode, sealing
/// and opening may change the IP version.
fn write_ether_type(frame: &mut [u8], at: usize) {
    let kind = if frame[at] >> 4 == 6 { ETHER_TYPE_IPV6 } else { ETHER_TYPE_IPV4 };
    frame[at - 2..at].copy_from_slice(&kind);
}

impl<Io: PortIo> Core<Io> {
    /// Classifies a frame or a reassembled packet. With IPsec, only packets that the policies admit are classified.
    pub(super) fn input_packet(
        &mut self,
        port: usize,
        packet: Packet<Io::Frame>,
        now: Instant,
        arrivals: &mut Arrivals<Io::Frame>,
    ) {
        match self.env.network.is_guarded() {
            true => self.admit(port, packet, now, arrivals),
            false => self.classify_in_clear(port, packet, now, arrivals),
        }
    }

    /// Checks a frame from a port, or an ESP frame that another worker has forwarded, against the policies. Decrypts an
    /// ESP packet. Classifies packets that pass.
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
        let Some(at) = demux::local_ip_offset(packet.bytes(), port, interfaces) else {
            return self.classify_in_clear(port, packet, now, arrivals);
        };
        let bytes = packet.bytes_mut();
        let end = bytes.len();
        let opened = match guard.inbound_verdict(&bytes[at..], now) {
            Ok(InboundVerdict::Clear) => {
                return self.classify_in_clear(port, packet, now, arrivals);
            }
            Ok(InboundVerdict::Fragment) => {
                let judged = match demux::is_reassembled_here(bytes, port, interfaces) {
                    true => Ok(()),
                    false => guard.decide_fragment(&bytes[at..], now),
                };
                match judged {
                    Ok(()) => {
                        return self.classify_in_clear(port, packet, now, arrivals);
                    }
                    Err(reason) => Err(reason),
                }
            }
            // A NAT keepalive needs no further processing.
            Ok(InboundVerdict::Keepalive) => return counters.ipsec.nat_keepalives_in.add(1),
            Ok(InboundVerdict::OtherWorker(owner)) => {
                let message = packet.into_message(port, IpsecState::Sealed);
                return self.mesh.send(usize::from(owner), message, counters);
            }
            Ok(InboundVerdict::Protected(spi)) => guard.open(spi, bytes, at..end, now),
            Err(reason) => Err(reason),
        };
        match opened {
            Ok((range, strength)) => {
                let front = range.start - at;
                bytes.copy_within(..at, front);
                write_ether_type(&mut bytes[front..], at);
                packet.cut(front, at + range.len());
                self.capture_opened(port, packet.bytes());
                let received = Received { packet, strength };
                self.classify(port, received, now, Forwarding::Allowed, arrivals);
            }
            Err(refused) => counters.drops.count(drop_reason(refused)),
        }
    }

    /// Seals the held frames and passes them to the ports. Drops and counts frames that policies or SAs refuse. Also
    /// expires waiting frames, and sends NAT keepalives and IPsec notices.
    #[inline(never)]
    pub(super) fn protect(&mut self, now: Instant) {
        for port in 0..self.env.ports.count() {
            while let Some((frame, min_strength)) =
                self.env.ports.get_mut(port).and_then(|slot| slot.io.take_held())
            {
                self.protect_frame(port, frame, min_strength, now, None);
            }
        }
        let expired = self.env.seal_state.waiting_frames.expire(now);
        self.env.control.counters().ipsec.unsent_no_sa.add(expired);
        self.send_keepalives(now);
        self.send_notices();
    }

    /// Seals and sends one frame, or sends it in clear if a policy permits it and `min_strength` is `CLEAR`. A frame
    /// whose protection would be weaker than `min_strength` is dropped. A frame may also wait for an SA, or be passed
    /// to the worker that owns the SA. `until`: time at which the wait for an SA ends, if the frame has waited already.
    #[inline]
    fn protect_frame(
        &mut self,
        port: usize,
        mut frame: Io::Frame,
        min_strength: Strength,
        now: Instant,
        until: Option<Instant>,
    ) {
        let Some(slot) = self.env.ports.get_mut(port) else { return };
        let (interfaces, guard) = self.env.network.interfaces_and_guard();
        let Some(guard) = guard else { return };
        let counters = self.env.control.counters();
        let reason = match seal_outgoing(
            guard,
            interfaces,
            port,
            &mut frame,
            min_strength,
            slot.io.tap(),
            now,
        ) {
            Ok(SealOutcome::Clear) => return slot.io.send_now(frame),
            Ok(SealOutcome::Unclassified) => return counters.ipsec.unsent_unclassified.add(1),
            Ok(SealOutcome::Sealed(protection)) => {
                self.env.seal_state.keepalives.record_sent(
                    guard,
                    protection,
                    port,
                    frame.bytes(),
                    now,
                );
                return slot.io.send_now(frame);
            }
            Ok(SealOutcome::Wait(protection)) => {
                let expires_at = until.unwrap_or(now + waiting_frames::MAX_WAIT);
                let waiting = WaitingFrame { protection, port, frame, min_strength, expires_at };
                if !self.env.seal_state.waiting_frames.push(waiting) {
                    counters.ipsec.unsent_no_sa.add(1);
                }
                return;
            }
            Ok(SealOutcome::TooLong(report)) => {
                counters.ipsec.unsent_too_long.add(1);
                return self.report_too_long(port, report, &frame, now);
            }
            Ok(SealOutcome::OtherWorker(owner)) => {
                // The owner may have older policies, under which the frame would pass in clear. The message therefore
                // requires protection of any strength.
                let least = min_strength.max(Strength::from_bits(0));
                let message = Message::Seal { port, frame, min_strength: least };
                return self.mesh.send(usize::from(owner), message, counters);
            }
            Err(reason) => reason,
        };
        match reason {
            IpsecDrop::NoSa => counters.ipsec.unsent_no_sa.add(1),
            IpsecDrop::Denied(_) => counters.ipsec.unsent_policy.add(1),
            IpsecDrop::AlreadySealed => counters.ipsec.unsent_twice.add(1),
            IpsecDrop::TooWeak => counters.ipsec.unsent_not_protected.add(1),
            IpsecDrop::Refused(_) | IpsecDrop::UnknownSpi => counters.ipsec.unsent_refused.add(1),
        }
    }

    /// Handles a frame that would be too long once sealed. Reports the maximum packet length to its sender, like a
    /// router that receives the frame in clear (RFC 4301 §8.2.1). The sender is a flow of this data plane or the host's
    /// kernel.
    #[cold]
    fn report_too_long(
        &mut self,
        port: usize,
        too_long: TooLongReport,
        frame: &Io::Frame,
        now: Instant,
    ) {
        let TooLongReport { interface, mtu, addresses: (local, remote), flow } = too_long;
        let shared = self.env.host.is_shared(interface);
        if let Some(report) = flow.filter(|report| !shared || self.quotes_our_flow(report)) {
            match self.env.ports.report_owner(port, &report).filter(|of| of.0 != self.env.index) {
                Some(owner) => {
                    let message = Message::PacketTooBig(report);
                    self.mesh.send(usize::from(owner.0), message, self.env.control.counters());
                }
                // The report is ignored if the flow has ended.
                None => drop(self.apply_icmp(&report, now)),
            }
        } else if shared {
            let Some(at) = link::find_ip(frame.bytes()) else { return };
            let (mut report, packet) = (Vec::new(), &frame.bytes()[at..]);
            let here = self.env.network.interface(interface);
            icmp::write_packet_too_big(here, packet, local, remote, mtu, &mut report);
            self.env.report_to_host(interface, &report);
        }
    }

    /// Tries to seal the waiting frames again, after a change of SAs or policies.
    fn retry_waiting(&mut self, now: Instant) {
        for waiting in self.env.seal_state.waiting_frames.take_all() {
            let WaitingFrame { port, frame, min_strength, expires_at, .. } = waiting;
            self.protect_frame(port, frame, min_strength, now, Some(expires_at));
        }
    }

    /// Sends the NAT keepalives that are due.
    fn send_keepalives(&mut self, now: Instant) {
        while let Some((port, bytes)) = self.env.seal_state.keepalives.take_due(now) {
            let Some(slot) = self.env.ports.get_mut(port) else { continue };
            let counters = &self.env.control.counters().ipsec;
            match (slot.io.free_tx_slots() > 0).then(|| slot.io.allocate(bytes.len())).flatten() {
                Some(mut frame) => {
                    frame.bytes_mut().copy_from_slice(&bytes);
                    slot.io.send_now(frame);
                    counters.nat_keepalives_out.add(1);
                }
                None => counters.unsent_full.add(1),
            }
        }
    }

    /// Sends the IPsec notices to the control thread while the event ring has room.
    fn send_notices(&mut self) {
        let Some(guard) = self.env.network.guard() else { return };
        if !guard.has_notices() {
            return;
        }
        while !self.env.control.is_congested()
            && let Some(notice) = self.env.network.guard().and_then(Guard::take_notice)
        {
            self.env.control.send(Event::Ipsec(Box::new(notice)));
        }
    }

    /// Applies a change of IPsec policies or SAs.
    ///
    /// # Errors
    /// The reason why no policy or SA was changed.
    pub(super) fn change_sa(&mut self, change: SaChange, now: Instant) -> Result<(), CommandError> {
        let guard = self.env.network.guard().ok_or(CommandError::NoIpsec)?;
        match change {
            SaChange::Policies { policies, owners } => {
                guard.set_policies((*policies).clone(), owners.iter().map(|owner| owner.0));
                self.retry_waiting(now);
            }
            SaChange::Add(sa) => {
                add_sa(guard, &mut self.env.seal_state, &sa, now)?;
                self.retry_waiting(now);
            }
            SaChange::Remove(id, direction) => {
                // All workers receive the command. A worker without this SA ignores it.
                guard.remove(id, direction);
                self.env.seal_state.keepalives.remove(id);
            }
            SaChange::Select(id) => guard.select(id),
            SaChange::Reserve(id, last) => {
                guard.reserve(id, last);
                return Ok(());
            }
        }
        self.env.seal_state.checks.begin_round();
        Ok(())
    }

    /// Reports the SAs of this worker to the control thread.
    pub(super) fn list_sas(&mut self, ticket: Ticket) {
        let sas = self.env.network.guard().map(|guard| guard.sas().collect());
        self.env.control.send(Event::Sas { ticket, sas: sas.unwrap_or_default() });
    }
}

enum SealOutcome {
    Clear,
    /// The frame is neither an IP packet nor of a protocol that is exempt from policies.
    Unclassified,
    /// The frame was sealed under this protection.
    Sealed(Protection),
    /// The policy's protection has no SA yet.
    Wait(Protection),
    OtherWorker(u16),
    /// The sealed packet would be longer than the MTU of the interface or of the path.
    TooLong(TooLongReport),
}

/// Contents of the report to the sender of a frame that is too long once sealed.
struct TooLongReport {
    interface: usize,
    /// Maximum length of the sender's IP packets in clear, in bytes.
    mtu: u16,
    /// Local and remote address.
    addresses: (IpAddr, IpAddr),
    /// Path MTU report for a flow of this data plane; `None` if the packet is neither TCP nor SCTP.
    flow: Option<Report>,
}

fn seal_outgoing<F: Frame>(
    guard: &mut Guard,
    interfaces: &[Interface],
    port: usize,
    frame: &mut F,
    min_strength: Strength,
    tap: Option<&mut Tap>,
    now: Instant,
) -> Result<SealOutcome, IpsecDrop> {
    let clear = || {
        if min_strength > Strength::CLEAR {
            Err(IpsecDrop::TooWeak)
        } else {
            Ok(SealOutcome::Clear)
        }
    };
    let bytes = frame.bytes();
    let Ok(link) = Link::read(bytes) else { return Ok(SealOutcome::Unclassified) };
    let Some(at) = link.ip_offset() else {
        return if link.passes_policies() { clear() } else { Ok(SealOutcome::Unclassified) };
    };
    let len = bytes.len();
    match guard.outbound_verdict(&bytes[at..], now)? {
        OutboundVerdict::Clear => clear(),
        OutboundVerdict::OtherWorker(owner) => Ok(SealOutcome::OtherWorker(owner)),
        OutboundVerdict::AwaitSa(protection) => Ok(SealOutcome::Wait(protection)),
        OutboundVerdict::Protect { strength, .. } if strength < min_strength => {
            Err(IpsecDrop::TooWeak)
        }
        OutboundVerdict::Protect { protection, headroom: ahead, total, path_mtu, .. } => {
            if let Some(here) = link.find_interface(port, interfaces) {
                let max_len = interfaces[here].mtu.min(path_mtu.unwrap_or(u16::MAX));
                if total > usize::from(max_len) {
                    return build_too_long_report(guard, here, max_len, &bytes[at..], now)
                        .map(SealOutcome::TooLong);
                }
            }
            let longest = at + ahead + total;
            if let Some(tap) = tap {
                tap.record_plaintext(bytes);
            }
            if !frame.expand(ahead, longest.saturating_sub(ahead + len)) {
                return Err(ipsec::esp::Refusal::NoRoom.into());
            }
            let bytes = frame.bytes_mut();
            bytes.copy_within(ahead..ahead + at, 0);
            // Only the link header was moved. Sealing copies the IP header.
            let range = guard.seal(protection, bytes, at + ahead..ahead + len, now)?;
            write_ether_type(bytes, at);
            frame.trim(0, at + range.len());
            Ok(SealOutcome::Sealed(protection))
        }
    }
}

/// Builds the report to the sender of a packet whose sealed form is longer than `mtu` bytes.
#[cold]
fn build_too_long_report(
    guard: &mut Guard,
    interface: usize,
    mtu: u16,
    packet: &[u8],
    now: Instant,
) -> Result<TooLongReport, IpsecDrop> {
    let header = Header::read(packet).map_err(ipsec::esp::Refusal::from)?;
    let flow = Flow::parse(packet, false).ok_or(ipsec::esp::Refusal::Malformed)?;
    let mtu = guard.max_packet_len(&flow, mtu.into(), header.len, now).unwrap_or_default() as u16;
    let read_u32 = |at: usize| {
        let bytes = packet.get(header.len + at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let quote = match flow.protocol {
        6 => read_u32(4).map(Quote::Tcp),
        132 => read_u32(4).map(Quote::Sctp),
        _ => None,
    };
    let report = quote.zip(flow.ports).map(|(quote, (local, remote))| Report {
        interface,
        local: SocketAddr::new(flow.local, local),
        remote: SocketAddr::new(flow.remote, remote),
        quote,
        kind: IcmpErrorKind::TooBig(mtu),
    });
    Ok(TooLongReport { interface, mtu, addresses: (flow.local, flow.remote), flow: report })
}

impl<Io: PortIo> Env<Io> {
    /// Queues a frame that another worker has forwarded, to be sealed with an SA of this worker. Drops and counts the
    /// frame if the port's transmit ring is full.
    pub(super) fn hold_for_seal(&mut self, port: usize, frame: Io::Frame, min_strength: Strength) {
        let slot = self.ports.get_mut(port);
        match slot.and_then(|slot| (slot.io.free_tx_slots() > 0).then_some(slot)) {
            Some(slot) => slot.io.send_protected(frame, min_strength),
            None => self.control.counters().ipsec.unsent_full.add(1),
        }
    }
}

/// Returns the drop reason that counts a received packet refused by IPsec.
fn drop_reason(reason: IpsecDrop) -> DropReason {
    use ipsec::esp::Refusal;
    match reason {
        IpsecDrop::UnknownSpi | IpsecDrop::NoSa | IpsecDrop::AlreadySealed => {
            DropReason::EspUnknownSpi
        }
        IpsecDrop::TooWeak => DropReason::NotProtected,
        IpsecDrop::Denied(Denial::Unprotected) => DropReason::IpsecUnprotected,
        IpsecDrop::Denied(Denial::WrongProtection) => DropReason::IpsecWrongProtection,
        IpsecDrop::Denied(Denial::Discarded) => DropReason::IpsecDiscarded,
        IpsecDrop::Denied(Denial::NoPolicy) => DropReason::IpsecNoPolicy,
        IpsecDrop::Refused(refused) => match refused {
            Refusal::TooOld | Refusal::Duplicate | Refusal::ImpossibleSequence => {
                DropReason::EspReplay
            }
            Refusal::Integrity => DropReason::EspIntegrity,
            Refusal::Expired | Refusal::SequenceExhausted => DropReason::EspExpired,
            Refusal::Dummy => DropReason::EspDummy,
            Refusal::Malformed
            | Refusal::Fragment
            | Refusal::NoRoom
            | Refusal::TooLong
            | Refusal::Unreserved
            | Refusal::NotOfSa
            | Refusal::Padding
            | Refusal::NextHeader
            | Refusal::NotEct => DropReason::EspMalformed,
        },
    }
}
