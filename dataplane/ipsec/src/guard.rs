//! One worker's part of IPsec: the policies, the SAs that it has, and which worker has the others.
//!
//! Every packet in clear is looked up in the list of policies, in both directions. What a policy protects goes out by the
//! newest SA of its protection and is taken only if it came by one of them. An SA has one owner: two that send by it
//! would repeat sequence numbers, and two windows would each let a replayed packet in.
//!
//! Nothing here waits or sends. What others should know is a [`Notice`], of which a bounded number is kept.

mod flows;
mod inbound;
mod info;
mod notice;
mod path;
mod spi;
mod verdict;
mod windows;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::time::Duration;

use base::Instant;

use self::flows::Flows;
use self::inbound::Known;
pub use self::info::{Counts, SaInfo};
pub use self::notice::Notice;
use self::notice::Notices;
use self::spi::SpiHasher;
pub use self::verdict::{Drop, Incoming, Outgoing};
pub use self::windows::ReplayWindows;
pub use crate::esp::NAT_PORT;
use crate::esp::{self, Done, Refused};
use crate::ip::{ESP, Header, Part};
pub use crate::policy::Direction;
use crate::policy::{Decision, Denied, Flow, Spd};
use crate::sa::{Left, Outbound, Parameters, SaError, Shape};
use crate::strength::Strength;

/// What one policy asks of SAs, by its place in the list of policies that protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protection(pub u16);

/// A missing SA is asked for this often at most.
const ASK: Duration = Duration::from_secs(1);

/// Names an SA among those of a data plane; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId(pub u64);

/// What is known of the SAs of a protection.
#[derive(Debug)]
struct Protected {
    /// The worker that has them.
    owner: u16,
    /// Ours, the newest last; others end when they are removed.
    outbound: Vec<(SaId, Outbound)>,
    /// Of all SAs to the peer, whichever worker has them, in the same order.
    shapes: Vec<(SaId, Shape)>,
    /// Of the newest, or of the last one there was.
    shape: Option<Shape>,
    /// Strength of the weakest SA from the peer, at any worker; `None` without one.
    weakest: Option<Strength>,
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
            shapes: Vec::new(),
            shape: None,
            weakest: None,
            reserve: None,
            asked: None,
            reserving: None,
            path_mtu: None,
        }
    }

    /// The SAs to the peer have changed.
    fn note_newest(&mut self) {
        self.shape = self.shapes.last().map(|(_, shape)| *shape).or(self.shape);
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
    windows: ReplayWindows,
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
            windows: ReplayWindows::default(),
        }
    }

    /// The windows of ended SAs are these, which the other workers' guards have too. Before any SA is added.
    pub fn share_windows(&mut self, windows: ReplayWindows) {
        self.windows = windows;
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
        protected.shapes.push((id, Shape::from(parameters)));
        protected.note_newest();
        protected.asked = None;
        self.sending.insert(parameters.spi, id);
        Ok(())
    }

    /// Packets go by this SA to the peer again, although it is not the newest.
    pub fn select(&mut self, id: SaId) {
        for protected in &mut self.protected {
            if let Some(at) = protected.outbound.iter().position(|(known, _)| *known == id) {
                protected.outbound[at..].rotate_left(1);
            }
            if let Some(at) = protected.shapes.iter().position(|(known, _)| *known == id) {
                protected.shapes[at..].rotate_left(1);
                protected.note_newest();
            }
        }
    }

    /// An SA ends. Returns whether this worker had it, or knew whose it was.
    pub fn remove(&mut self, id: SaId, direction: Direction) -> bool {
        match direction {
            Direction::In => self.remove_inbound(id),
            Direction::Out => {
                self.sending.retain(|_, known| *known != id);
                self.remove_outbound(id)
            }
        }
    }

    fn remove_outbound(&mut self, id: SaId) -> bool {
        self.protected.iter_mut().any(|protected| {
            let before = protected.shapes.len();
            protected.outbound.retain(|(known, _)| *known != id);
            protected.shapes.retain(|(known, _)| *known != id);
            protected.note_newest();
            protected.shapes.len() < before
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
                Some(known) if known.awaits.is_some() => self.await_window(found.spi, packet, now),
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

    /// Opens the packet that stands in `at` of a buffer by our SA with this SPI. Returns where it is, and how strongly it was
    /// protected.
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
    ) -> Result<(Range<usize>, Strength), Drop> {
        let Some(Known { id, protection, strength, ours: Some(sa), .. }) =
            self.inbound.get_mut(&spi)
        else {
            return Err(Drop::UnknownSpi);
        };
        let (id, protection, strength) = (*id, *protection, *strength);
        match sa.open(buffer, at.clone(), now) {
            Ok(Done { packet, left, .. }) => {
                if left == Left::Soft {
                    self.notices.push(Notice::Soft(id));
                }
                self.check_opened(protection, spi, &buffer[packet.clone()], now)?;
                self.counts.opened += 1;
                self.counts.opened_bytes += packet.len() as u64;
                Ok((packet, strength))
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
        let (shape, path_mtu) = (&newest.sa.shape, protected.path_mtu(now));
        let header = Header::read(packet).map_err(Refused::from)?;
        let total = shape.sealed_len(header.total, header.len);
        let (ahead, strength) = (shape.ahead(), shape.algorithm.into());
        Ok(Outgoing::Protect { protection, ahead, total, path_mtu, strength })
    }

    /// The policies' decision about any packet to the wire. ESP of others passes where they protect; ESP in UDP does not, as any
    /// program may send from port 4500, or to it.
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
            Decision::Protect(_) if sealed.is_some() && flow.protocol == ESP => Decision::Bypass,
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
