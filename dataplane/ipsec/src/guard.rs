//! One worker's part of IPsec: the policies, the SAs that it has, and which worker has the others.
//!
//! Every packet in clear is looked up in the list of policies, in both directions. What a policy protects goes out by the
//! newest SA of its protection and is taken only if it came by one of them. An SA has one owner: two that send by it
//! would repeat sequence numbers, and two windows would each let a replayed packet in.
//!
//! Nothing here waits or sends. What others should know is a [`Notice`], of which a bounded number is kept.

mod flows;
mod notice;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use base::Instant;

use self::flows::Flows;
pub use self::notice::Notice;
use self::notice::Notices;
use crate::crypto::Algorithm;
pub use crate::esp::NAT_PORT;
use crate::esp::{self, Done, Refused};
use crate::ip::{Header, Part};
pub use crate::policy::Direction;
use crate::policy::{Decision, Denied, Flow, Spd};
use crate::sa::{Inbound, Left, Mode, Outbound, Parameters, SaError, Shape, Use};

/// What one policy asks of SAs, by its place in the list of policies that protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protection(pub u16);

/// A missing SA is asked for this often at most.
const ASK: Duration = Duration::from_secs(1);
/// A path MTU that a router reported is forgotten after this (RFC 1191 §6.3, RFC 8201 §4).
const PATH_MTU_AGE: Duration = Duration::from_secs(600);
/// A router quotes a packet that is among the last so many of its SA, or it is not believed.
const QUOTED: u64 = 1 << 16;

/// Names an SA among those of a data plane; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId(pub u64);

/// What is to be done with a packet from the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// It is taken as it is.
    Clear,
    /// It is to be opened by this SA of ours: see [`Guard::open`].
    Protected(u32),
    /// It is to be opened by this worker.
    Elsewhere(u16),
    /// It is a fragment in clear. It is put together and looked up then; what is not put together, see [`Guard::piece`].
    Piece,
    /// It keeps the ports of NATs, and nothing else (RFC 3948 §2.3).
    Keepalive,
}

/// What is to be done with a packet to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It is sent as it is.
    Clear,
    /// It is to be sealed: see [`Guard::seal`].
    Protect {
        /// By an SA of this.
        protection: Protection,
        /// Bytes that it grows by in front.
        ahead: usize,
        /// Bytes of what it becomes.
        total: usize,
        /// Bytes that the path carries, as far as a router has reported it.
        path_mtu: Option<u16>,
    },
    /// There is no SA for it yet: it waits for one, or is dropped.
    Wait(Protection),
    /// It is to be sealed by this worker.
    Elsewhere(u16),
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drop {
    /// By the policies.
    Denied(Denied),
    /// By ESP.
    Refused(Refused),
    /// It came by an SA that there is not (RFC 4303 §3.4.2).
    UnknownSpi,
    /// There is no SA that it may go by.
    NoSa,
    /// Somebody else has sealed it by an SA of ours: two that send by one would repeat sequence numbers.
    Twice,
}

impl Drop {
    /// Stable name for counters.
    pub const fn name(self) -> &'static str {
        match self {
            Drop::Denied(denied) => denied.name(),
            Drop::Refused(refused) => refused.name(),
            Drop::UnknownSpi => "unknown_spi",
            Drop::NoSa => "no_sa",
            Drop::Twice => "twice",
        }
    }
}

impl From<Denied> for Drop {
    fn from(denied: Denied) -> Drop {
        Drop::Denied(denied)
    }
}

impl From<Refused> for Drop {
    fn from(refused: Refused) -> Drop {
        Drop::Refused(refused)
    }
}

/// What is known of the SAs of a protection.
#[derive(Debug)]
struct Protected {
    /// The worker that has them.
    owner: u16,
    /// Ours, the newest last; others end when they are removed.
    outbound: Vec<(SaId, Outbound)>,
    /// Of the newest, which another worker may have.
    shape: Option<Shape>,
    /// Sequence numbers that are reserved at a time for the newest.
    reserve: Option<u64>,
    /// When a missing one was asked for.
    asked: Option<Instant>,
    /// When more sequence numbers were asked for.
    reserving: Option<Instant>,
    /// What a router reported, and until when it counts.
    path_mtu: Option<(u16, Instant)>,
}

impl Protected {
    fn new(owner: u16) -> Protected {
        Protected {
            owner,
            outbound: Vec::new(),
            shape: None,
            reserve: None,
            asked: None,
            reserving: None,
            path_mtu: None,
        }
    }
}

/// An SA from the peer.
#[derive(Debug)]
struct Known {
    id: SaId,
    protection: Protection,
    algorithm: Algorithm,
    /// `None`: the owner of its protection has it.
    ours: Option<Box<Inbound>>,
}

/// An SA as the operator sees it: no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaInfo {
    /// Which it is.
    pub id: SaId,
    /// Its name at its receiver.
    pub spi: u32,
    /// Which way it carries packets.
    pub direction: Direction,
    /// Whose it is.
    pub protection: Protection,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The mode.
    pub mode: Mode,
    /// It has UDP around it.
    pub udp: bool,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// What has been used of it.
    pub used: Use,
}

/// How many packets went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sealed.
    pub sealed: u64,
    /// Bytes of those before.
    pub sealed_bytes: u64,
    /// Packets opened.
    pub opened: u64,
    /// Bytes of those after.
    pub opened_bytes: u64,
    /// Notices that were not kept.
    pub notices_lost: u64,
}

/// Of SPIs of SAs from peers, which we choose ourselves: no peer makes them collide.
#[derive(Default)]
struct SpiHasher(u64);

impl Hasher for SpiHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    #[inline]
    fn write_u32(&mut self, spi: u32) {
        let product = (self.0 ^ u64::from(spi)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// One worker's part of IPsec.
#[derive(Debug)]
pub struct Guard {
    worker: u16,
    flows: Flows,
    protected: Vec<Protected>,
    inbound: HashMap<u32, Known, BuildHasherDefault<SpiHasher>>,
    /// Nobody else seals: what the host has sealed is not sent.
    alone: bool,
    /// SPIs by which some worker sends.
    sending: HashMap<u32, SaId>,
    notices: Notices,
    counts: Counts,
}

impl Guard {
    /// Without SAs. `owners` has the worker of each protection's SAs, by place.
    pub fn new(worker: u16, spd: Spd<Protection>, owners: impl IntoIterator<Item = u16>) -> Guard {
        Guard {
            worker,
            flows: Flows::new(spd),
            protected: owners.into_iter().map(Protected::new).collect(),
            inbound: HashMap::default(),
            alone: false,
            sending: HashMap::new(),
            notices: Notices::new(),
            counts: Counts::default(),
        }
    }

    /// The kernel's SAs are ours: whatever the host has sealed, by an SA that is not known yet, too, is not sent.
    pub fn seals_alone(&mut self) {
        self.alone = true;
    }

    /// True for an SPI by which some worker sends.
    pub fn sends_by(&self, spi: u32) -> bool {
        self.sending.contains_key(&spi)
    }

    /// Other policies, from now on. `owners` has the worker of each protection's SAs: those that were there keep theirs, and
    /// their SAs. SAs of protections that no policy names any more are to be removed by their owner.
    pub fn set_policies(&mut self, spd: Spd<Protection>, owners: impl IntoIterator<Item = u16>) {
        self.flows = Flows::new(spd);
        for owner in owners.into_iter().skip(self.protected.len()) {
            self.protected.push(Protected::new(owner));
        }
    }

    /// One more SA to the peer, by which packets go from now on. `reserve` gives the first sequence number that may be
    /// used and how many from there are reserved.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add_outbound(
        &mut self,
        id: SaId,
        protection: Protection,
        parameters: &Parameters,
        reserve: Option<(u64, u64)>,
    ) -> Result<(), SaError> {
        let worker = self.worker;
        let Some(protected) = self.protected.get_mut(usize::from(protection.0)) else {
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
            protected.reserving = None;
        }
        protected.shape = Some(Shape::from(parameters));
        protected.asked = None;
        self.sending.insert(parameters.spi, id);
        Ok(())
    }

    /// Packets go by this SA to the peer again, although it is not the newest.
    pub fn select(&mut self, id: SaId) {
        for protected in &mut self.protected {
            let at = protected.outbound.iter().position(|(known, _)| *known == id);
            if let Some(at) = at {
                protected.outbound[at..].rotate_left(1);
                protected.shape = protected.outbound.last().map(|(_, sa)| sa.shape());
            }
        }
    }

    /// One more SA from the peer, with an anti-replay window of so many packets, of which all up to `top` were received.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add_inbound(
        &mut self,
        id: SaId,
        protection: Protection,
        parameters: &Parameters,
        (window, top): (u16, u64),
    ) -> Result<(), SaError> {
        let Some(protected) = self.protected.get(usize::from(protection.0)) else {
            return Err(SaError::Protection(protection.0));
        };
        let ours = match protected.owner == self.worker {
            true => {
                let mut sa = Inbound::new(parameters, window)?;
                if top > 0 {
                    sa.resume(top);
                }
                Some(Box::new(sa))
            }
            false => None,
        };
        let algorithm = parameters.algorithm;
        self.inbound.insert(parameters.spi, Known { id, protection, algorithm, ours });
        Ok(())
    }

    /// An SA ends. Returns whether this worker had it, or knew whose it was.
    pub fn remove(&mut self, id: SaId, direction: Direction) -> bool {
        match direction {
            Direction::In => {
                let before = self.inbound.len();
                self.inbound.retain(|_, known| known.id != id);
                self.inbound.len() < before
            }
            Direction::Out => {
                self.sending.retain(|_, known| *known != id);
                self.remove_outbound(id)
            }
        }
    }

    fn remove_outbound(&mut self, id: SaId) -> bool {
        self.protected.iter_mut().any(|protected| {
            let before = protected.outbound.len();
            protected.outbound.retain(|(known, _)| *known != id);
            let newest = protected.outbound.last().map(|(_, sa)| sa.shape());
            protected.shape = newest.or(protected.shape);
            protected.outbound.len() < before
        })
    }

    /// The sequence numbers of an SA up to `last` may be used.
    pub fn reserve(&mut self, id: SaId, last: u64) {
        for protected in &mut self.protected {
            for (_, sa) in protected.outbound.iter_mut().filter(|(known, _)| *known == id) {
                sa.reserve(last);
                protected.reserving = None;
            }
        }
    }

    /// What is to be done with a packet from the wire.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn incoming(&mut self, packet: &[u8], now: Instant) -> Result<Incoming, Drop> {
        match esp::find(packet, Some(NAT_PORT)) {
            Some(found) => match self.inbound.get(&found.spi) {
                Some(known) if known.ours.is_some() => Ok(Incoming::Protected(found.spi)),
                Some(known) => {
                    Ok(Incoming::Elsewhere(self.protected[usize::from(known.protection.0)].owner))
                }
                None => {
                    self.audit(Drop::UnknownSpi, Some(found.spi), packet, now);
                    Err(Drop::UnknownSpi)
                }
            },
            None if esp::is_keepalive(packet, NAT_PORT) => Ok(Incoming::Keepalive),
            None => match self.flows.recall(packet, Direction::In) {
                Some(Decision::Bypass) => Ok(Incoming::Clear),
                _ => self.in_clear(packet, now),
            },
        }
    }

    fn in_clear(&mut self, packet: &[u8], now: Instant) -> Result<Incoming, Drop> {
        // What is malformed is nobody's.
        let Some((flow, part)) = Flow::see(packet, true) else { return Ok(Incoming::Clear) };
        let why = match part {
            Part::Fragment => return Ok(Incoming::Piece),
            Part::Hidden => match self.flows.piece(&flow, part, Direction::In) {
                Ok(()) => return Ok(Incoming::Clear),
                Err(denied) => denied,
            },
            Part::Whole => match self.flows.decide(&flow, Direction::In) {
                Decision::Bypass => return Ok(Incoming::Clear),
                Decision::Protect(_) => Denied::Unprotected,
                Decision::Denied(denied) => denied,
            },
        };
        self.audit(why.into(), None, packet, now);
        Err(why.into())
    }

    /// Whether a fragment in clear passes that is not put together here (RFC 4301 §7.4).
    ///
    /// # Errors
    /// It is dropped.
    pub fn piece(&mut self, packet: &[u8], now: Instant) -> Result<(), Drop> {
        let Some((flow, part)) = Flow::see(packet, true) else { return Ok(()) };
        let Err(denied) = self.flows.piece(&flow, part, Direction::In) else { return Ok(()) };
        self.audit(denied.into(), None, packet, now);
        Err(denied.into())
    }

    /// Opens the packet that stands in `at` of a buffer by our SA with this SPI.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn open(
        &mut self,
        spi: u32,
        buffer: &mut [u8],
        at: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, Drop> {
        let Some(Known { id, protection, ours: Some(sa), .. }) = self.inbound.get_mut(&spi) else {
            return Err(Drop::UnknownSpi);
        };
        let (id, protection) = (*id, *protection);
        match sa.open(buffer, at.clone(), now) {
            Ok(Done { packet, left, .. }) => {
                if left == Left::Soft {
                    self.notices.push(Notice::Soft(id));
                }
                self.check_opened(protection, spi, &buffer[packet.clone()], now)?;
                self.counts.opened += 1;
                self.counts.opened_bytes += packet.len() as u64;
                Ok(packet)
            }
            Err(why) => {
                match why {
                    Refused::Expired if sa.is_first_time() => self.notices.push(Notice::Over(id)),
                    why if why.is_auditable() => {
                        // What failed to be authenticated was not changed before its payload.
                        let outer = buffer.get(at).unwrap_or_default();
                        self.audit(why.into(), Some(spi), outer, now);
                    }
                    _ => {}
                }
                Err(why.into())
            }
        }
    }

    /// RFC 4301 §5.2: what came by an SA must be what its policy selects.
    #[inline]
    fn check_opened(
        &mut self,
        protection: Protection,
        spi: u32,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Drop> {
        match self.flows.recall(packet, Direction::In) {
            Some(Decision::Protect(asked)) if asked == protection => Ok(()),
            _ => self.decide_opened(protection, spi, packet, now),
        }
    }

    #[inline(never)]
    fn decide_opened(
        &mut self,
        protection: Protection,
        spi: u32,
        packet: &[u8],
        now: Instant,
    ) -> Result<(), Drop> {
        let (flow, part) = Flow::see(packet, true).ok_or(Refused::Malformed)?;
        if part != Part::Whole {
            // RFC 4301 §7.2: fragments in a tunnel are not supported.
            return Err(Refused::Fragment.into());
        }
        let why = match self.flows.decide(&flow, Direction::In) {
            Decision::Protect(asked) if asked == protection => return Ok(()),
            Decision::Protect(_) | Decision::Bypass => Denied::WrongProtection,
            Decision::Denied(denied) => denied,
        };
        self.audit(why.into(), Some(spi), packet, now);
        Err(why.into())
    }

    /// What is to be done with a packet to the wire.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn outgoing(&mut self, packet: &[u8], now: Instant) -> Result<Outgoing, Drop> {
        let decision = match self.flows.recall(packet, Direction::Out) {
            Some(decision) => decision,
            None => self.decide_outgoing(packet)?,
        };
        let protection = match decision {
            Decision::Bypass => return Ok(Outgoing::Clear),
            Decision::Denied(denied) => return Err(denied.into()),
            Decision::Protect(protection) => protection,
        };
        let protected = &mut self.protected[usize::from(protection.0)];
        if protected.owner != self.worker {
            return Ok(Outgoing::Elsewhere(protected.owner));
        }
        let Some((_, newest)) = protected.outbound.last() else {
            if is_time(&mut protected.asked, now) {
                let flow = Flow::read(packet, false).ok_or(Refused::Malformed)?;
                self.notices.push(Notice::Wanted { protection, flow });
            }
            return Ok(Outgoing::Wait(protection));
        };
        let (shape, path_mtu) = (&newest.sa.shape, current(protected.path_mtu, now));
        let header = Header::read(packet).map_err(Refused::from)?;
        let total = shape.sealed_len(header.total, header.len);
        Ok(Outgoing::Protect { protection, ahead: shape.ahead(), total, path_mtu })
    }

    /// What the policies say of a packet to the wire, whatever it is. What is ESP already passes where they protect.
    #[inline(never)]
    fn decide_outgoing(&mut self, packet: &[u8]) -> Result<Decision<Protection>, Drop> {
        let (flow, part) = Flow::see(packet, false).ok_or(Refused::Malformed)?;
        let sealed = esp::spi_of(packet, &flow);
        if sealed.is_some_and(|spi| self.alone || self.sending.contains_key(&spi)) {
            return Err(Drop::Twice);
        }
        if part != Part::Whole {
            // RFC 4303 §3.3.4: ESP takes no fragments, and in clear only what no policy may protect goes.
            self.flows.piece(&flow, part, Direction::Out)?;
            return Ok(Decision::Bypass);
        }
        Ok(match self.flows.decide(&flow, Direction::Out) {
            Decision::Protect(_) if sealed.is_some() => Decision::Bypass,
            decision => decision,
        })
    }

    /// Seals the packet that stands in `at` of a buffer.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub fn seal(
        &mut self,
        protection: Protection,
        buffer: &mut [u8],
        at: Range<usize>,
        now: Instant,
    ) -> Result<Range<usize>, Drop> {
        let protected = &mut self.protected[usize::from(protection.0)];
        let (id, sa) = protected.outbound.last_mut().ok_or(Drop::NoSa)?;
        let (len, id) = (at.len(), *id);
        match sa.seal(buffer, at, now) {
            Ok(Done { packet, left, .. }) => {
                let low = protected.reserve.is_some_and(|numbers| sa.left() < numbers / 2);
                if low && is_time(&mut protected.reserving, now) {
                    self.notices.push(Notice::Reserve(id));
                }
                if left == Left::Soft {
                    self.notices.push(Notice::Soft(id));
                }
                self.counts.sealed += 1;
                self.counts.sealed_bytes += len as u64;
                Ok(packet)
            }
            Err(why) => {
                match why {
                    Refused::Expired | Refused::SequenceExhausted if sa.is_first_time() => {
                        self.notices.push(Notice::Over(id));
                    }
                    // The answer, or the question, was lost.
                    Refused::Unreserved if is_time(&mut protected.reserving, now) => {
                        self.notices.push(Notice::Reserve(id));
                    }
                    _ => {}
                }
                Err(why.into())
            }
        }
    }

    /// The SA by which packets of a protection go, where they are in UDP: a NAT on the way forgets it unless something is sent.
    pub fn behind_nat(&self, protection: Protection) -> Option<SaId> {
        let (id, sa) = self.protected.get(usize::from(protection.0))?.outbound.last()?;
        sa.shape().udp.then_some(*id)
    }

    /// What protects a flow that we send, if anything.
    pub fn protection(&mut self, flow: &Flow) -> Option<Protection> {
        match self.flows.decide(flow, Direction::Out) {
            Decision::Protect(protection) => Some(protection),
            Decision::Bypass | Decision::Denied(_) => None,
        }
    }

    /// Bits of the weakest encryption that protects a flow, both ways; 0 for integrity alone. `None` where it is not protected,
    /// or has no SA yet.
    pub fn strength(&mut self, flow: &Flow) -> Option<u16> {
        let protection = self.protection(flow)?;
        if self.flows.decide(flow, Direction::In) != Decision::Protect(protection) {
            return None;
        }
        let out = self.protected[usize::from(protection.0)].shape?.algorithm;
        let inbound = self.inbound.values().filter(|known| known.protection == protection);
        let bits = inbound.map(|known| known.algorithm.confidentiality_bits()).min()?;
        Some(bits.min(out.confidentiality_bits()))
    }

    /// The longest packet of a flow, bytes, that fits `mtu` as it goes out, with a header of `header` bytes. `None` where
    /// its header alone does not fit.
    pub fn largest(&mut self, flow: &Flow, mtu: usize, header: usize) -> Option<usize> {
        let protected = self.protection(flow).map(|of| &self.protected[usize::from(of.0)]);
        let Some(Protected { shape: Some(shape), path_mtu, .. }) = protected else {
            return Some(mtu);
        };
        let path = path_mtu.map_or(usize::MAX, |(path, _)| path.into());
        shape.largest(mtu.min(path), header)
    }

    /// A router reports that the path carries no more than `mtu` bytes, and quotes a packet of this SA to `destination` (RFC 4301
    /// §8.2.1). It is believed of a packet that was sent not long ago: an attacker would have to guess its SPI and number.
    /// Returns whether it is.
    pub fn too_big(&mut self, spi: u32, sequence: u32, mtu: u16, now: Instant) -> bool {
        for protected in &mut self.protected {
            for (_, sa) in &protected.outbound {
                // How far behind the last one the quoted one is.
                let behind = u64::from((sa.sequence() as u32).wrapping_sub(sequence));
                if sa.spi() == spi && behind < QUOTED.min(sa.sequence()) {
                    let known = current(protected.path_mtu, now).unwrap_or(u16::MAX);
                    protected.path_mtu = Some((mtu.min(known), now + PATH_MTU_AGE));
                    return true;
                }
            }
        }
        false
    }

    /// The other end of the tunnel that a flow goes by, if it does.
    pub fn tunnel(&mut self, flow: &Flow) -> Option<IpAddr> {
        let protection = self.protection(flow)?;
        match self.protected[usize::from(protection.0)].shape?.mode {
            Mode::Transport => None,
            Mode::Tunnel(tunnel) => Some(tunnel.destination),
        }
    }

    /// The SAs that this worker has.
    pub fn sas(&self) -> impl Iterator<Item = SaInfo> {
        let info = |id, spi, direction, protection, shape: Shape, sequence, used| SaInfo {
            id,
            spi,
            direction,
            protection,
            algorithm: shape.algorithm,
            mode: shape.mode,
            udp: shape.udp,
            sequence,
            used,
        };
        let inbound = self.inbound.iter().filter_map(move |(&spi, known)| {
            let sa = known.ours.as_ref()?;
            let (of, shape) = (known.protection, sa.shape());
            Some(info(known.id, spi, Direction::In, of, shape, sa.top(), sa.used()))
        });
        let outbound = (0..).zip(&self.protected).flat_map(move |(at, protected)| {
            protected.outbound.iter().map(move |(id, sa)| {
                let (of, sequence) = (Protection(at), sa.sequence());
                info(*id, sa.spi(), Direction::Out, of, sa.shape(), sequence, sa.used())
            })
        });
        inbound.chain(outbound)
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        Counts { notices_lost: self.notices.lost(), ..self.counts }
    }

    /// The oldest thing that others should know.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// There is something that others should know.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    fn audit(&mut self, why: Drop, spi: Option<u32>, packet: &[u8], now: Instant) {
        self.notices.audit(now, || {
            let sequence = spi.and_then(|_| esp::sequence(packet));
            let flow = Flow::read(packet, true);
            Notice::Audit { why, spi, flow, sequence }
        });
    }
}

/// True if it was not asked for a while; it is now.
fn is_time(asked: &mut Option<Instant>, now: Instant) -> bool {
    let time = asked.is_none_or(|asked| now - asked >= ASK);
    if time {
        *asked = Some(now);
    }
    time
}

/// What counts of it by now.
fn current(known: Option<(u16, Instant)>, now: Instant) -> Option<u16> {
    known.filter(|(_, until)| now < *until).map(|(mtu, _)| mtu)
}
