//! One worker's part of IPsec: the policies, its own SAs, and the owner of each other SA.
//!
//! Every packet in clear is matched against the list of policies, in both directions. A policy passes packets, drops
//! them, or requires a protection: an ESP set-up with its own SAs. A protected packet is sent with the newest SA of its
//! protection, and accepted only from an SA of that protection.
//!
//! An SA has one owner among the workers: two senders would repeat sequence numbers, and with two anti-replay windows a
//! replayed packet would be accepted twice.
//!
//! No call of this module waits or sends. Reports to the control thread are [`Notice`]s, bounded in number.

mod flows;
mod inbound;
mod info;
mod notice;
mod path;
mod replay_windows;
mod spi;
mod verdict;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::time::Duration;

use base::Instant;

use self::flows::Flows;
use self::inbound::InboundSa;
pub use self::info::{Counts, SaInfo};
pub use self::notice::Notice;
use self::notice::Notices;
pub use self::replay_windows::ReplayWindows;
use self::spi::SpiHasher;
pub use self::verdict::{InboundVerdict, IpsecDrop, OutboundVerdict};
pub use crate::esp::NAT_PORT;
use crate::esp::{self, EspOutput, Refusal};
use crate::ip::{ESP, Header, Visibility};
pub use crate::policy::Direction;
use crate::policy::{Decision, Denial, Flow, Spd};
use crate::sa::{Outbound, Parameters, Remaining, SaError, Shape};
use crate::strength::Strength;

/// Number of a protection, from 0. A protection is an ESP set-up that policies require, with its SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protection(pub u16);

/// Minimum time between two requests of one protection for a missing SA, or for more sequence numbers.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Identifier of an SA in a data plane; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId(pub u64);

/// State of the SAs of one protection.
#[derive(Debug)]
struct ProtectionState {
    /// The worker that owns the SAs.
    owner: u16,
    /// Outbound SAs of this worker, the newest last. Older SAs stay until they are removed.
    outbound: Vec<(SaId, Outbound)>,
    /// Parameters that determine the length of sealed packets, for the outbound SAs of all workers, the newest last.
    shapes: Vec<(SaId, Shape)>,
    /// Shape of the newest outbound SA; without one, the shape of the last removed SA.
    shape: Option<Shape>,
    /// Strength of the weakest inbound SA at any worker; `None` without one.
    weakest: Option<Strength>,
    /// Number of sequence numbers reserved at a time for the newest SA; `None` if reservations are not used.
    reserve: Option<u64>,
    /// Time of the last request for a missing SA.
    last_sa_request: Option<Instant>,
    /// Time of the last request for more sequence numbers.
    last_sequence_request: Option<Instant>,
    /// Path MTU reported by a router, and its time of expiry.
    path_mtu: Option<(u16, Instant)>,
}

impl ProtectionState {
    fn new(owner: u16) -> ProtectionState {
        ProtectionState {
            owner,
            outbound: Vec::new(),
            shapes: Vec::new(),
            shape: None,
            weakest: None,
            reserve: None,
            last_sa_request: None,
            last_sequence_request: None,
            path_mtu: None,
        }
    }

    /// Updates `shape` after a change of the outbound SAs.
    fn update_shape(&mut self) {
        self.shape = self.shapes.last().map(|(_, shape)| *shape).or(self.shape);
    }
}

/// One worker's part of IPsec.
#[derive(Debug)]
pub struct Guard {
    worker: u16,
    flows: Flows,
    protections: Vec<ProtectionState>,
    inbound: HashMap<u32, InboundSa, BuildHasherDefault<SpiHasher>>,
    /// True if only this data plane seals packets: packets that the host has sealed are then dropped.
    sole_sealer: bool,
    /// SPIs of the outbound SAs of all workers.
    outbound_spis: HashMap<u32, SaId>,
    notices: Notices,
    counts: Counts,
    windows: ReplayWindows,
}

impl Guard {
    /// Returns a guard without SAs. `owners` are the workers that own the protections' SAs, in the order of the
    /// protections' numbers.
    pub fn new(worker: u16, spd: Spd<Protection>, owners: impl IntoIterator<Item = u16>) -> Guard {
        Guard {
            worker,
            flows: Flows::new(spd),
            protections: owners.into_iter().map(ProtectionState::new).collect(),
            inbound: HashMap::default(),
            sole_sealer: false,
            outbound_spis: HashMap::new(),
            notices: Notices::new(),
            counts: Counts::default(),
            windows: ReplayWindows::default(),
        }
    }

    /// Sets the store of the anti-replay windows of ended SAs, shared by the guards of all workers. An SA that is added
    /// again continues with its window. Must be called before any SA is added.
    pub fn share_windows(&mut self, windows: ReplayWindows) {
        self.windows = windows;
    }

    /// Declares that all SAs of the kernel belong to this data plane. Packets that the host has sealed are then not
    /// sent, even if this guard has no record of their SA.
    pub fn set_sole_sealer(&mut self) {
        self.sole_sealer = true;
    }

    /// Returns true if an outbound SA of any worker has the SPI `spi`.
    pub fn has_outbound_spi(&self, spi: u32) -> bool {
        self.outbound_spis.contains_key(&spi)
    }

    /// Replaces the policies. `owners` are the workers that own the protections' SAs, in the order of the
    /// protections' numbers. Existing protections keep their owner and SAs. The caller must remove the SAs of
    /// protections that no policy requires any more.
    pub fn set_policies(&mut self, spd: Spd<Protection>, owners: impl IntoIterator<Item = u16>) {
        self.flows = Flows::new(spd);
        for owner in owners.into_iter().skip(self.protections.len()) {
            self.protections.push(ProtectionState::new(owner));
        }
    }

    /// Adds the newest outbound SA, which seals packets from now on. `reserve` is the first usable sequence number and
    /// the count of reserved numbers from there on; with `None`, all are usable. If another worker owns the protection,
    /// only the SA's SPI and shape are recorded.
    ///
    /// # Errors
    /// The protection does not exist, or the parameters are invalid.
    pub fn add_outbound(
        &mut self,
        id: SaId,
        protection: Protection,
        parameters: &Parameters,
        reserve: Option<(u64, u64)>,
    ) -> Result<(), SaError> {
        let worker = self.worker;
        let Some(protected) = self.protections.get_mut(usize::from(protection.0)) else {
            return Err(SaError::Protection(protection.0));
        };
        if protected.owner == worker {
            let mut sa = Outbound::new(parameters)?;
            if let Some((first, numbers)) = reserve {
                sa.resume(first.saturating_sub(1));
                sa.reserve(first.saturating_sub(1).saturating_add(numbers));
            }
            protected.outbound.push((id, sa));
            protected.reserve = reserve.map(|(_, numbers)| numbers);
            protected.last_sequence_request = None;
        }
        protected.shapes.push((id, Shape::from(parameters)));
        protected.update_shape();
        protected.last_sa_request = None;
        self.outbound_spis.insert(parameters.spi, id);
        Ok(())
    }

    /// Makes an older outbound SA the newest one again, so that it seals packets.
    pub fn select(&mut self, id: SaId) {
        for protected in &mut self.protections {
            if let Some(at) = protected.outbound.iter().position(|(known, _)| *known == id) {
                protected.outbound[at..].rotate_left(1);
            }
            if let Some(at) = protected.shapes.iter().position(|(known, _)| *known == id) {
                protected.shapes[at..].rotate_left(1);
                protected.update_shape();
            }
        }
    }

    /// Removes an SA of this or another worker. Returns true if this guard had a record of the SA.
    pub fn remove(&mut self, id: SaId, direction: Direction) -> bool {
        match direction {
            Direction::In => self.remove_inbound(id),
            Direction::Out => {
                self.outbound_spis.retain(|_, known| *known != id);
                self.remove_outbound(id)
            }
        }
    }

    fn remove_outbound(&mut self, id: SaId) -> bool {
        self.protections.iter_mut().any(|protected| {
            let before = protected.shapes.len();
            protected.outbound.retain(|(known, _)| *known != id);
            protected.shapes.retain(|(known, _)| *known != id);
            protected.update_shape();
            protected.shapes.len() < before
        })
    }

    /// Permits the sequence numbers of an SA up to `last`, inclusive.
    pub fn reserve(&mut self, id: SaId, last: u64) {
        for protected in &mut self.protections {
            for (_, sa) in protected.outbound.iter_mut().filter(|(known, _)| *known == id) {
                sa.reserve(last);
                protected.last_sequence_request = None;
            }
        }
    }

    /// Returns the verdict on a packet from the wire.
    ///
    /// # Errors
    /// The reason to drop the packet.
    #[inline]
    pub fn inbound_verdict(
        &mut self,
        packet: &[u8],
        now: Instant,
    ) -> Result<InboundVerdict, IpsecDrop> {
        match esp::find_esp(packet, Some(NAT_PORT)) {
            Some(found) => match self.inbound.get(&found.spi) {
                Some(known) if known.sa.is_some() => Ok(InboundVerdict::Protected(found.spi)),
                Some(known) if known.pending.is_some() => self.retry_window(found.spi, packet, now),
                Some(known) => Ok(InboundVerdict::OtherWorker(
                    self.protections[usize::from(known.protection.0)].owner,
                )),
                None => {
                    self.audit(IpsecDrop::UnknownSpi, Some(found.spi), packet, now);
                    Err(IpsecDrop::UnknownSpi)
                }
            },
            None if esp::is_keepalive(packet, NAT_PORT) => Ok(InboundVerdict::Keepalive),
            None => match self.flows.look_up_cached(packet, Direction::In) {
                Some(Decision::Bypass) => Ok(InboundVerdict::Clear),
                _ => self.clear_verdict(packet, now),
            },
        }
    }

    fn clear_verdict(&mut self, packet: &[u8], now: Instant) -> Result<InboundVerdict, IpsecDrop> {
        // A malformed packet belongs to no flow. The layers above drop it.
        let Some((flow, part)) = Flow::parse_with_visibility(packet, true) else {
            return Ok(InboundVerdict::Clear);
        };
        let denial = match part {
            Visibility::Fragment => return Ok(InboundVerdict::Fragment),
            Visibility::Hidden => match self.flows.decide_fragment(&flow, part, Direction::In) {
                Ok(()) => return Ok(InboundVerdict::Clear),
                Err(denied) => denied,
            },
            Visibility::Whole => match self.flows.decide(&flow, Direction::In) {
                Decision::Bypass => return Ok(InboundVerdict::Clear),
                Decision::Protect(_) => Denial::Unprotected,
                Decision::Denied(denied) => denied,
            },
        };
        self.audit(denial.into(), None, packet, now);
        Err(denial.into())
    }

    /// Decides whether a fragment in clear passes if this worker does not reassemble it (RFC 4301 §7.4).
    ///
    /// # Errors
    /// The fragment must be dropped.
    pub fn decide_fragment(&mut self, packet: &[u8], now: Instant) -> Result<(), IpsecDrop> {
        let Some((flow, part)) = Flow::parse_with_visibility(packet, true) else { return Ok(()) };
        let Err(denied) = self.flows.decide_fragment(&flow, part, Direction::In) else {
            return Ok(());
        };
        self.audit(denied.into(), None, packet, now);
        Err(denied.into())
    }

    /// Opens the packet in range `at` of a buffer with this worker's SA of this SPI. Returns the range of the inner
    /// packet and the strength of its protection.
    ///
    /// # Errors
    /// The reason to drop the packet.
    #[inline]
    pub fn open(
        &mut self,
        spi: u32,
        buffer: &mut [u8],
        at: Range<usize>,
        now: Instant,
    ) -> Result<(Range<usize>, Strength), IpsecDrop> {
        let Some(InboundSa { id, protection, strength, sa: Some(sa), .. }) =
            self.inbound.get_mut(&spi)
        else {
            return Err(IpsecDrop::UnknownSpi);
        };
        let (id, protection, strength) = (*id, *protection, *strength);
        match sa.open(buffer, at.clone(), now) {
            Ok(EspOutput { packet, sequence, remaining: left }) => {
                if left == Remaining::SoftExpired {
                    self.notices.push(Notice::SoftExpired(id));
                }
                let opened = Opened { protection, spi, sequence: sequence as u32 };
                self.check_opened(opened, &buffer[packet.clone()], now)?;
                self.counts.opened += 1;
                self.counts.opened_bytes += packet.len() as u64;
                Ok((packet, strength))
            }
            Err(why) => {
                match why {
                    Refusal::Expired if sa.take_expiry_report() => {
                        self.notices.push(Notice::HardExpired(id))
                    }
                    why if why.is_auditable() => {
                        // If authentication failed, the headers of the packet are unchanged and can be reported.
                        let outer = buffer.get(at).unwrap_or_default();
                        self.audit(why.into(), Some(spi), outer, now);
                    }
                    _ => {}
                }
                Err(why.into())
            }
        }
    }

    /// Checks that a packet from an SA matches a policy of the SA's protection (RFC 4301 §5.2).
    #[inline]
    fn check_opened(
        &mut self,
        opened: Opened,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), IpsecDrop> {
        match self.flows.look_up_cached(packet, Direction::In) {
            Some(Decision::Protect(asked)) if asked == opened.protection => Ok(()),
            _ => self.decide_opened(opened, packet, now),
        }
    }

    #[inline(never)]
    fn decide_opened(
        &mut self,
        Opened { protection, spi, sequence }: Opened,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), IpsecDrop> {
        let (flow, part) = Flow::parse_with_visibility(packet, true).ok_or(Refusal::Malformed)?;
        if part != Visibility::Whole {
            // RFC 4301 §7.2: fragments in a tunnel are not supported.
            return Err(Refusal::Fragment.into());
        }
        let denial = match self.flows.decide(&flow, Direction::In) {
            Decision::Protect(asked) if asked == protection => return Ok(()),
            Decision::Protect(_) | Decision::Bypass => Denial::WrongProtection,
            Decision::Denied(denied) => denied,
        };
        self.audit_with(denial.into(), Some(spi), packet, now, |_| Some(sequence));
        Err(denial.into())
    }

    /// Returns the verdict on a packet to the wire.
    ///
    /// # Errors
    /// The reason to drop the packet.
    #[inline]
    pub fn outbound_verdict(
        &mut self,
        packet: &[u8],
        now: Instant,
    ) -> Result<OutboundVerdict, IpsecDrop> {
        let decision = match self.flows.look_up_cached(packet, Direction::Out) {
            Some(decision) => decision,
            None => self.decide_outgoing(packet)?,
        };
        let protection = match decision {
            Decision::Bypass => return Ok(OutboundVerdict::Clear),
            Decision::Denied(denied) => return Err(denied.into()),
            Decision::Protect(protection) => protection,
        };
        let protected = &mut self.protections[usize::from(protection.0)];
        if protected.owner != self.worker {
            return Ok(OutboundVerdict::OtherWorker(protected.owner));
        }
        let Some((_, newest)) = protected.outbound.last() else {
            if request_is_due(&mut protected.last_sa_request, now) {
                let flow = Flow::parse(packet, false).ok_or(Refusal::Malformed)?;
                self.notices.push(Notice::Acquire { protection, flow });
            }
            return Ok(OutboundVerdict::AwaitSa(protection));
        };
        let (shape, path_mtu) = (&newest.sa.shape, protected.path_mtu(now));
        let header = Header::read(packet).map_err(Refusal::from)?;
        let total = shape.sealed_len(header.total, header.len);
        let (ahead, strength) = (shape.headroom(), shape.algorithm.into());
        Ok(OutboundVerdict::Protect { protection, headroom: ahead, total, path_mtu, strength })
    }

    /// Returns the policies' decision on a packet to the wire. Plain ESP that the host has sealed with another SA
    /// passes even if a policy requires protection. ESP in UDP does not pass, because any program may send from or to
    /// port 4500.
    #[inline(never)]
    fn decide_outgoing(&mut self, packet: &[u8]) -> Result<Decision<Protection>, IpsecDrop> {
        let (flow, part) = Flow::parse_with_visibility(packet, false).ok_or(Refusal::Malformed)?;
        let sealed = esp::esp_spi(packet, &flow);
        if sealed.is_some_and(|spi| self.sole_sealer || self.outbound_spis.contains_key(&spi)) {
            return Err(IpsecDrop::AlreadySealed);
        }
        if part != Visibility::Whole {
            // RFC 4303 §3.3.4: ESP does not accept fragments. A fragment in clear passes only if no policy may protect
            // its packet.
            self.flows.decide_fragment(&flow, part, Direction::Out)?;
            return Ok(Decision::Bypass);
        }
        Ok(match self.flows.decide(&flow, Direction::Out) {
            Decision::Protect(_) if sealed.is_some() && flow.protocol == ESP => Decision::Bypass,
            decision => decision,
        })
    }

    /// Seals the packet in range `at` of a buffer. Returns the range of the sealed packet.
    ///
    /// # Errors
    /// The reason to drop the packet.
    #[inline]
    pub fn seal(
        &mut self,
        protection: Protection,
        buffer: &mut [u8],
        at: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, IpsecDrop> {
        let protected = &mut self.protections[usize::from(protection.0)];
        let (id, sa) = protected.outbound.last_mut().ok_or(IpsecDrop::NoSa)?;
        let (len, id) = (at.len(), *id);
        match sa.seal(buffer, at, now) {
            Ok(EspOutput { packet, remaining: left, .. }) => {
                let low =
                    protected.reserve.is_some_and(|numbers| sa.remaining_sequences() < numbers / 2);
                if low && request_is_due(&mut protected.last_sequence_request, now) {
                    self.notices.push(Notice::SequencesLow(id));
                }
                if left == Remaining::SoftExpired {
                    self.notices.push(Notice::SoftExpired(id));
                }
                self.counts.sealed += 1;
                self.counts.sealed_bytes += len as u64;
                Ok(packet)
            }
            Err(why) => {
                match why {
                    Refusal::Expired | Refusal::SequenceExhausted if sa.take_expiry_report() => {
                        self.notices.push(Notice::HardExpired(id));
                    }
                    // Requests numbers again: the previous request or its answer may be lost.
                    Refusal::Unreserved
                        if request_is_due(&mut protected.last_sequence_request, now) =>
                    {
                        self.notices.push(Notice::SequencesLow(id));
                    }
                    _ => {}
                }
                Err(why.into())
            }
        }
    }

    /// Returns the newest outbound SA of a protection if this SA is encapsulated in UDP: the NAT on its path needs
    /// keepalives.
    pub fn nat_keepalive_sa(&self, protection: Protection) -> Option<SaId> {
        let (id, sa) = self.protections.get(usize::from(protection.0))?.outbound.last()?;
        sa.shape().udp.then_some(*id)
    }

    /// Removes and returns the oldest notice.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Returns true if a notice is pending.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Reports the drop of `packet`, whose bytes must be unchanged since it arrived. `spi` is the SPI of an ESP packet,
    /// `None` for a packet in clear.
    fn audit(&mut self, reason: IpsecDrop, spi: Option<u32>, packet: &[u8], now: Instant) {
        self.audit_with(reason, spi, packet, now, |packet| {
            spi.and_then(|_| esp::esp_sequence(packet))
        });
    }

    /// Reports a drop. `sequence` returns the packet's sequence number; it is called only if the rate limit permits the
    /// notice.
    fn audit_with(
        &mut self,
        reason: IpsecDrop,
        spi: Option<u32>,
        packet: &[u8],
        now: Instant,
        sequence: impl FnOnce(&[u8]) -> Option<u32>,
    ) {
        self.notices.audit(now, || {
            let (flow, sequence) = (Flow::parse(packet, true), sequence(packet));
            Notice::Audit { reason, spi, flow, sequence }
        });
    }
}

/// SA and sequence number of an opened packet.
#[derive(Clone, Copy)]
struct Opened {
    protection: Protection,
    spi: u32,
    /// Low 32 bits.
    sequence: u32,
}

/// Returns true if no request was made in the last [`REQUEST_INTERVAL`]. In this case also records `now` as the time of
/// the last request.
fn request_is_due(last_request: &mut Option<Instant>, now: Instant) -> bool {
    let time = last_request.is_none_or(|asked| now - asked >= REQUEST_INTERVAL);
    if time {
        *last_request = Some(now);
    }
    time
}
