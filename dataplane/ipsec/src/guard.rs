//! One worker's part of IPsec: the policies, its own SAs, and the owners of the others.
//!
//! Every packet in clear is matched against the list of policies, in both directions. A packet that a policy
//! protects is sent with the newest SA of its protection, and accepted only from an SA of that protection. An
//! SA has one owner: two senders would repeat sequence numbers, and two windows would each accept a replayed
//! packet.
//!
//! No call here waits or sends. Reports to the control thread are [`Notice`]s, bounded in number.

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

/// Index of a protection in the list of policies that protect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protection(pub u16);

/// Shortest time between two requests for a missing SA, or for more sequence numbers.
const ASK: Duration = Duration::from_secs(1);

/// Identifies an SA in a data plane; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId(pub u64);

/// State of the SAs of one protection.
#[derive(Debug)]
struct Protected {
    /// The worker that owns the SAs.
    owner: u16,
    /// Our outbound SAs, the newest last. Older ones stay until they are removed.
    outbound: Vec<(SaId, Outbound)>,
    /// Shapes of all outbound SAs, regardless of the worker, in the same order.
    shapes: Vec<(SaId, Shape)>,
    /// Shape of the newest outbound SA, or of the last one that existed.
    shape: Option<Shape>,
    /// Strength of the weakest inbound SA at any worker; `None` without one.
    weakest: Option<Strength>,
    /// Sequence numbers reserved at a time for the newest SA.
    reserve: Option<u64>,
    /// Time of the last request for a missing SA.
    asked: Option<Instant>,
    /// Time of the last request for more sequence numbers.
    reserving: Option<Instant>,
    /// Path MTU reported by a router, and its time of expiry.
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

    /// Updates the shape after a change of the outbound SAs.
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
    /// True when no other party seals: packets sealed by the host are not sent.
    alone: bool,
    /// SPIs of the outbound SAs of all workers.
    sending: HashMap<u32, SaId>,
    notices: Notices,
    counts: Counts,
    windows: ReplayWindows,
}

impl Guard {
    /// Returns a guard without SAs. `owners` lists the worker of each protection's SAs, by index.
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

    /// Sets the windows of ended SAs, shared with the other workers' guards. Call it before any SA is added.
    pub fn share_windows(&mut self, windows: ReplayWindows) {
        self.windows = windows;
    }

    /// Declares the kernel's SAs ours: packets sealed by the host are not sent, even with an SA that is not
    /// known yet.
    pub fn seals_alone(&mut self) {
        self.alone = true;
    }

    /// True for an SPI of an outbound SA of any worker.
    pub fn sends_by(&self, spi: u32) -> bool {
        self.sending.contains_key(&spi)
    }

    /// Replaces the policies. `owners` lists the worker of each protection's SAs; existing protections keep
    /// their owner and their SAs. The owner must remove SAs of protections that no policy names any more.
    pub fn set_policies(&mut self, spd: Spd<Protection>, owners: impl IntoIterator<Item = u16>) {
        self.flows = Flows::new(spd);
        for owner in owners.into_iter().skip(self.protected.len()) {
            self.protected.push(Protected::new(owner));
        }
    }

    /// Adds the newest SA to the peer, which seals packets from now on. `reserve` is the first usable sequence
    /// number and how many are reserved from it on.
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

    /// Makes an older SA to the peer the current one again.
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

    /// Removes an SA. Returns whether this worker had it, or knew its owner.
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

    /// Permits the sequence numbers of an SA up to `last`.
    pub fn reserve(&mut self, id: SaId, last: u64) {
        for protected in &mut self.protected {
            for (_, sa) in protected.outbound.iter_mut().filter(|(known, _)| *known == id) {
                sa.reserve(last);
                protected.reserving = None;
            }
        }
    }

    /// Returns the verdict on a packet from the wire.
    ///
    /// # Errors
    /// The reason of the drop.
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
        // A malformed packet belongs to no flow; it is left to the layers above.
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

    /// Decides whether a fragment in clear passes that is not reassembled here (RFC 4301 §7.4).
    ///
    /// # Errors
    /// The fragment must be dropped.
    pub fn piece(&mut self, packet: &[u8], now: Instant) -> Result<(), Drop> {
        let Some((flow, part)) = Flow::see(packet, true) else { return Ok(()) };
        let Err(denied) = self.flows.piece(&flow, part, Direction::In) else { return Ok(()) };
        self.audit(denied.into(), None, packet, now);
        Err(denied.into())
    }

    /// Opens the packet in `at` of a buffer with our SA of this SPI. Returns the range of the inner packet, and
    /// the strength of its protection.
    ///
    /// # Errors
    /// The reason of the drop.
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
                        // A packet that failed authentication is unchanged up to its payload.
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

    /// Returns the verdict on a packet to the wire.
    ///
    /// # Errors
    /// The reason of the drop.
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

    /// Returns the policies' decision on any packet to the wire. Foreign ESP passes where they protect. ESP in
    /// UDP does not, as any program may send from or to port 4500.
    #[inline(never)]
    fn decide_outgoing(&mut self, packet: &[u8]) -> Result<Decision<Protection>, Drop> {
        let (flow, part) = Flow::see(packet, false).ok_or(Refused::Malformed)?;
        let sealed = esp::spi_of(packet, &flow);
        if sealed.is_some_and(|spi| self.alone || self.sending.contains_key(&spi)) {
            return Err(Drop::Twice);
        }
        if part != Part::Whole {
            // RFC 4303 §3.3.4: ESP accepts no fragments. In clear a fragment passes only if no policy may
            // protect it.
            self.flows.piece(&flow, part, Direction::Out)?;
            return Ok(Decision::Bypass);
        }
        Ok(match self.flows.decide(&flow, Direction::Out) {
            Decision::Protect(_) if sealed.is_some() && flow.protocol == ESP => Decision::Bypass,
            decision => decision,
        })
    }

    /// Seals the packet in `at` of a buffer. Returns the range of the sealed packet.
    ///
    /// # Errors
    /// The reason of the drop.
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
                    // The request or its answer was lost.
                    Refused::Unreserved if is_time(&mut protected.reserving, now) => {
                        self.notices.push(Notice::Reserve(id));
                    }
                    _ => {}
                }
                Err(why.into())
            }
        }
    }

    /// Returns the current SA of a protection if it is encapsulated in UDP: a NAT on the path needs keepalives.
    pub fn behind_nat(&self, protection: Protection) -> Option<SaId> {
        let (id, sa) = self.protected.get(usize::from(protection.0))?.outbound.last()?;
        sa.shape().udp.then_some(*id)
    }

    /// Returns the oldest notice.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// True when a notice waits.
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

/// True if the last request was at least [`ASK`] ago; records a request now.
fn is_time(asked: &mut Option<Instant>, now: Instant) -> bool {
    let time = asked.is_none_or(|asked| now - asked >= ASK);
    if time {
        *asked = Some(now);
    }
    time
}
