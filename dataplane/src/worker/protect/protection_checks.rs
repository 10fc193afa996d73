//! Ends carriers (TCP connections and SCTP associations) that have lost the IPsec protection that they require. Each of
//! their packets is checked at reception and at sealing. Packets with less protection are dropped in both directions.
//! This module bounds the resulting outage: a carrier whose policies or SAs allow weaker packets ends after
//! [`UNPROTECTED_TIMEOUT`]. A missing SA alone does not end a carrier, because no packet passes then and IKE creates
//! the next SA.
//!
//! ```text
//!   policies or SAs change --> round over all carriers --> as required: no action
//!                                                     `--> less: ends after UNPROTECTED_TIMEOUT, unless a later
//!                                                          round finds it protected as required
//! ```
//!
//! A round checks at most [`MAX_SLOTS_PER_TURN`] slots per turn.

use std::collections::HashMap;
use std::time::Duration;

use base::Instant;
use ddp::StreamId;
use ipsec::strength::Strength;

use crate::api::Transport;
use crate::io::PortIo;
use crate::worker::Core;
use crate::worker::flows::conn::Stage;
use crate::worker::flows::lower_layer::LowerLayer;
use crate::worker::flows::schedule::CarrierKind;

/// Time without the required protection after which a carrier ends. The restart of an IKE daemon takes less time.
const UNPROTECTED_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of slots checked per turn in a round, and of carriers ended per turn.
const MAX_SLOTS_PER_TURN: usize = 64;

/// A connection or an association of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CarrierId {
    kind: CarrierKind,
    id: StreamId,
}

/// State of the checks of one worker's carriers.
#[derive(Default)]
pub(super) struct ProtectionChecks {
    /// True once any carrier has required protection. Carriers are checked only from then on.
    is_used: bool,
    /// Next slot to check in the current round; `None` between rounds.
    next_slot: Option<usize>,
    /// True if policies or SAs have changed during the current round. Another round then follows.
    repeat: bool,
    /// Time at which each carrier without its required protection ends.
    deadlines: HashMap<CarrierId, Instant>,
    /// Lower bound of the times in `deadlines`.
    earliest_deadline: Option<Instant>,
}

impl ProtectionChecks {
    /// Begins a round after a change of policies or SAs. If a round is in progress, another round follows it.
    pub(super) fn begin_round(&mut self) {
        match self.next_slot {
            None => self.next_slot = self.is_used.then_some(0),
            Some(_) => self.repeat = true,
        }
    }

    /// Returns the earliest time at which a carrier may have to end.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.earliest_deadline
    }

    fn record(&mut self, carrier: CarrierId, is_protected: bool, now: Instant) {
        if is_protected {
            self.deadlines.remove(&carrier);
        } else {
            let at = *self.deadlines.entry(carrier).or_insert(now + UNPROTECTED_TIMEOUT);
            self.earliest_deadline = self.earliest_deadline.into_iter().chain([at]).min();
        }
    }

    /// Removes and returns the carriers whose deadline has passed, at most [`MAX_SLOTS_PER_TURN`].
    fn take_due(&mut self, now: Instant) -> Vec<CarrierId> {
        let due = self.deadlines.iter().filter(|(_, at)| **at <= now).take(MAX_SLOTS_PER_TURN);
        let due: Vec<CarrierId> = due.map(|(carrier, _)| *carrier).collect();
        for carrier in &due {
            self.deadlines.remove(carrier);
        }
        self.earliest_deadline = self.deadlines.values().min().copied();
        due
    }
}

impl<Io: PortIo> Core<Io> {
    /// Requires this minimum protection of each packet of a connection or an association, for the rest of its lifetime.
    pub(in crate::worker) fn require_strength(
        &mut self,
        kind: CarrierKind,
        slot: Option<u32>,
        min_strength: Strength,
    ) {
        let Some(slot) = slot.filter(|_| min_strength > Strength::CLEAR) else { return };
        match kind {
            CarrierKind::Connection => {
                self.streams
                    .carrier_mut(slot)
                    .into_iter()
                    .for_each(|c| c.require_strength(min_strength));
            }
            CarrierKind::Association => {
                let association = self.associations.get_mut(slot);
                association.into_iter().for_each(|a| a.carrier.require_strength(min_strength));
            }
        }
        self.env.seal_state.checks.is_used = true;
    }

    /// Continues a round, and ends carriers that have lacked protection for too long. Returns true if there was work.
    pub(in crate::worker) fn check_protection(&mut self, now: Instant) -> bool {
        let upkeep = &mut self.env.seal_state.checks;
        let (next, is_due) =
            (upkeep.next_slot, upkeep.earliest_deadline.is_some_and(|at| at <= now));
        if let Some(next) = next {
            self.check_slots(next, now);
        }
        if is_due {
            for carrier in self.env.seal_state.checks.take_due(now) {
                if self.is_protected(carrier) == Some(false) {
                    self.end_unprotected(carrier, now);
                }
            }
        }
        next.is_some() || is_due
    }

    fn check_slots(&mut self, from: usize, now: Instant) {
        let slots = self.streams.slot_count().max(self.associations.slot_count());
        let until = (from + MAX_SLOTS_PER_TURN).min(slots);
        for slot in from as u32..until as u32 {
            let connection = self.streams.get(slot).map(|conn| conn.id);
            let association = self.associations.id(slot);
            let carriers = [
                connection.map(|id| CarrierId { kind: CarrierKind::Connection, id }),
                association.map(|id| CarrierId { kind: CarrierKind::Association, id }),
            ];
            for carrier in carriers.into_iter().flatten() {
                if let Some(is_protected) = self.is_protected(carrier) {
                    self.env.seal_state.checks.record(carrier, is_protected, now);
                }
            }
        }
        let upkeep = &mut self.env.seal_state.checks;
        upkeep.next_slot = match until < slots {
            true => Some(until),
            false => std::mem::take(&mut upkeep.repeat).then_some(0),
        };
    }

    /// Returns true if policies and SAs let a carrier's packets pass only with the protection that it requires. Returns
    /// `None` if the carrier requires no protection or has ended.
    fn is_protected(&mut self, carrier: CarrierId) -> Option<bool> {
        let CarrierId { kind, id } = carrier;
        let (transport, flow, udp, min_strength) = match kind {
            CarrierKind::Connection => {
                let conn = self.streams.get(self.streams.find_stream(id)?)?;
                let LowerLayer::Tcp(carrier) = &conn.lower else { return None };
                if conn.stage == Stage::Ended {
                    return None;
                }
                (Transport::Tcp, carrier.flow(), None, carrier.min_strength())
            }
            CarrierKind::Association => {
                let carrier = &self.associations.get(self.associations.find_by_id(id)?)?.carrier;
                (Transport::Sctp, carrier.flow(), carrier.path().udp(), carrier.min_strength())
            }
        };
        if min_strength == Strength::CLEAR {
            return None;
        }
        Some(self.env.network.ensures_strength(transport, &flow, udp, min_strength))
    }

    #[cold]
    fn end_unprotected(&mut self, carrier: CarrierId, now: Instant) {
        let CarrierId { kind, id } = carrier;
        match kind {
            CarrierKind::Connection => {
                let Some((mut stream, env)) = self.find(id) else { return };
                if let Some(carrier) = stream.conn.lower.connection() {
                    carrier.endpoint_mut().abort_unprotected(now, &mut env.tables.context());
                }
                env.make_ready(&mut stream);
            }
            CarrierKind::Association => {
                let Some(at) = self.associations.find_by_id(id) else { return };
                self.end_unprotected_association(at, now);
            }
        }
    }
}
