//! Streams that require protection by IPsec keep it. Each of their packets is checked at reception and at sealing:
//! packets with less protection are dropped, in both directions. This module bounds the outage: a stream whose
//! policies or SAs allow weaker packets ends after [`TIMEOUT`]. A missing SA alone ends no stream: no packet passes
//! then, and IKE creates the next SA.
//!
//! ```text
//!   policies or SAs change --> a round over all carriers, a few in a turn --> protected: no action
//!                                                                        `--> less: ends at its time, unless a later
//!                                                                             round finds it protected
//! ```

use std::collections::HashMap;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use ipsec::strength::Strength;

use crate::api::Transport;
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::conn::Stage;
use crate::worker::flows::lower::Lower;
use crate::worker::flows::schedule::CarrierKind;

/// Time after which a stream without its required protection ends. Restarts of an IKE daemon take less.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Slots that a round checks in a turn, and carriers that end in a turn, at most.
const STEP: usize = 64;

/// A connection or an association.
type Name = (CarrierKind, StreamId);

/// The carriers of a worker that require protection.
#[derive(Default)]
pub(super) struct Upkeep {
    /// Whether any carrier has required protection so far.
    is_used: bool,
    /// The next slot to check in the current round; `None` between rounds.
    next: Option<usize>,
    /// Policies or SAs have changed during the current round: another one follows.
    again: bool,
    /// End times of carriers without their required protection.
    ends: HashMap<Name, Instant>,
    /// Lower bound of the end times.
    earliest: Option<Instant>,
}

impl Upkeep {
    /// Begins a round after a change of policies or SAs, or requests another one after the current round.
    pub(super) fn begin(&mut self) {
        match self.next {
            None => self.next = self.is_used.then_some(0),
            Some(_) => self.again = true,
        }
    }

    /// Returns when the next carrier may end.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.earliest
    }

    fn note(&mut self, name: Name, is_kept: bool, now: Instant) {
        if is_kept {
            self.ends.remove(&name);
        } else {
            let at = *self.ends.entry(name).or_insert(now + TIMEOUT);
            self.earliest = self.earliest.into_iter().chain([at]).min();
        }
    }

    /// Removes and returns some of the carriers that end now.
    fn take_due(&mut self, now: Instant) -> Vec<Name> {
        let due = self.ends.iter().filter(|(_, at)| **at <= now).take(STEP);
        let due: Vec<Name> = due.map(|(name, _)| *name).collect();
        for name in &due {
            self.ends.remove(name);
        }
        self.earliest = self.ends.values().min().copied();
        due
    }
}

impl<Io: PortIo> Core<Io> {
    /// Requires this protection of each packet of a connection or an association, for the rest of its lifetime.
    pub(in crate::worker) fn require(
        &mut self,
        kind: CarrierKind,
        slot: Option<u32>,
        least: Strength,
    ) {
        let Some(slot) = slot.filter(|_| least > Strength::CLEAR) else { return };
        match kind {
            CarrierKind::Connection => {
                self.streams.carrier_mut(slot).into_iter().for_each(|c| c.require(least));
            }
            CarrierKind::Association => {
                let association = self.associations.get_mut(slot);
                association.into_iter().for_each(|a| a.carrier.require(least));
            }
        }
        self.env.seals.upkeep.is_used = true;
    }

    /// Continues a round, and ends carriers that were without protection for too long. Returns whether there was
    /// anything to do.
    pub(in crate::worker) fn check_protection(&mut self, now: Instant) -> bool {
        let upkeep = &mut self.env.seals.upkeep;
        let (next, is_due) = (upkeep.next, upkeep.earliest.is_some_and(|at| at <= now));
        if let Some(next) = next {
            self.check_places(next, now);
        }
        if is_due {
            for name in self.env.seals.upkeep.take_due(now) {
                if self.is_protected(name) == Some(false) {
                    self.end_unprotected(name, now);
                }
            }
        }
        next.is_some() || is_due
    }

    fn check_places(&mut self, from: usize, now: Instant) {
        let places = self.streams.places().max(self.associations.places());
        let until = (from + STEP).min(places);
        for place in from as u32..until as u32 {
            let connection = self.streams.get(place).map(|conn| conn.id);
            let association = self.associations.name(place);
            let names = [
                connection.map(|id| (CarrierKind::Connection, id)),
                association.map(|id| (CarrierKind::Association, id)),
            ];
            for name in names.into_iter().flatten() {
                if let Some(is_kept) = self.is_protected(name) {
                    self.env.seals.upkeep.note(name, is_kept, now);
                }
            }
        }
        let upkeep = &mut self.env.seals.upkeep;
        upkeep.next = match until < places {
            true => Some(until),
            false => std::mem::take(&mut upkeep.again).then_some(0),
        };
    }

    /// Returns whether policies and SAs allow a carrier's packets only with the protection that it requires; `None` if
    /// it requires none.
    fn is_protected(&mut self, (kind, id): Name) -> Option<bool> {
        let (transport, flow, udp, least) = match kind {
            CarrierKind::Connection => {
                let conn = self.streams.get(self.streams.find(id)?)?;
                let Lower::Tcp(carrier) = &conn.lower else { return None };
                if conn.stage == Stage::Ended {
                    return None;
                }
                (Transport::Tcp, carrier.flow(), None, carrier.least())
            }
            CarrierKind::Association => {
                let carrier = &self.associations.get(self.associations.find_name(id)?)?.carrier;
                (Transport::Sctp, carrier.flow(), carrier.path().udp(), carrier.least())
            }
        };
        if least == Strength::CLEAR {
            return None;
        }
        Some(self.env.network.keeps(transport, &flow, udp, least))
    }

    #[cold]
    fn end_unprotected(&mut self, (kind, id): Name, now: Instant) {
        match kind {
            CarrierKind::Connection => {
                let Some((mut stream, env)) = self.find(id) else { return };
                if let Some(carrier) = stream.conn.lower.connection() {
                    carrier.endpoint_mut().unprotected(now, &mut env.tables.context());
                }
                env.make_ready(&mut stream);
            }
            CarrierKind::Association => {
                let Some(at) = self.associations.find_name(id) else { return };
                self.association_unprotected(at, now);
            }
        }
    }
}
