//! What associations tell, translated for their streams.

use base::Instant;
use sctp_lite::endpoint::{Event, SessionEvent, SessionId};

use super::Counts;
use crate::api::{CloseReason, StreamParams, StreamStats};
use crate::io::PortIo;
use crate::worker::conn::Origin;
use crate::worker::listen::Progress;
use crate::worker::lower::Session;
use crate::worker::{Core, Phase};

impl<Io: PortIo> Core<Io> {
    /// Takes the events of an association, but for those of sessions that have no credit for them.
    pub(super) fn report_association(&mut self, at: u32, now: Instant) {
        while let Some(event) = self.associations.endpoint_mut(at).and_then(|e| e.poll_event()) {
            match event {
                Event::Up { .. } => self.association_up(at),
                Event::Session(id, event) => {
                    let slot = self.associations.all.get(at).and_then(|a| a.sessions.get(&id));
                    let (slot, before) = (slot.copied(), self.control.events_sent());
                    self.report_session(at, id, event, now);
                    if let (Some(slot), true) = (slot, self.control.events_sent() != before) {
                        self.charge(slot, before);
                    }
                }
                // Its sessions have said it.
                Event::Down { .. } => {}
            }
        }
    }

    fn association_up(&mut self, at: u32) {
        self.control.counters().associations_up.add(1);
        let Some(association) = self.associations.all.get_mut(at) else { return };
        let path = &association.carrier.path;
        if !association.pinned {
            association.pinned = self.network.pin(path);
        }
    }

    fn report_session(&mut self, at: u32, id: SessionId, event: SessionEvent, now: Instant) {
        let slot = self.associations.all.get(at).and_then(|a| a.sessions.get(&id)).copied();
        let slot = match (slot, event) {
            (_, SessionEvent::Request { private_data, enhanced }) => {
                return match self.take_session(at, id, now) {
                    Some(slot) => self.incoming(slot, private_data, None, enhanced),
                    None => self.turn_away(at, id, now),
                };
            }
            (Some(slot), event) => (slot, event),
            // Of a stream that nobody waits for any more.
            (None, _) => return,
        };
        match slot {
            (slot, SessionEvent::Established { private_data, params }) => {
                self.established(slot, private_data, StreamParams::Sctp(params));
            }
            (slot, SessionEvent::Ddp(event)) => self.ddp(slot, event, now),
            (slot, SessionEvent::Rdmap(event)) => self.rdmap(slot, event, now),
            (slot, SessionEvent::Closed { reason, stats }) => {
                let association = self.associations.stats(at);
                let stats = StreamStats::Sctp(*stats, association.unwrap_or_default());
                self.closed(slot, CloseReason::Sctp(reason), stats);
                // RFC 5043 §6: nothing of a session outlives it here.
                self.forget(slot);
            }
            (_, SessionEvent::Request { .. }) => {}
        }
    }

    /// A peer's Initiate takes the place that its association has, or one of its own.
    fn take_session(&mut self, at: u32, id: SessionId, now: Instant) -> Option<u32> {
        let association = self.associations.all.get(at)?;
        let (listener, peer) = (association.listener?, association.key.remote.ip());
        if self.phase != Phase::Running {
            return None;
        }
        let stream = self.vacancy(now)?;
        let association = self.associations.all.get_mut(at)?;
        if association.counts == Counts::Place {
            association.counts = Counts::Nothing;
        } else {
            // From here on the session counts, and not the association.
            self.uncount(at);
            if let Err(reason) = self.take_place(listener, peer, stream, now) {
                self.control.counters().drops.count(reason);
                self.count_if_idle(at);
                return None;
            }
        }
        let origin = Origin::Accepted { listener, progress: Progress::Starting };
        self.begin_session(Session { association: at, id }, origin, now)
    }

    /// RFC 5043 §6.4: a request that there is no room for gets a Terminate.
    fn turn_away(&mut self, at: u32, id: SessionId, now: Instant) {
        if let Some(endpoint) = self.associations.endpoint_mut(at) {
            endpoint.abort_session(now, id, &mut self.tables.session_context());
            self.associations.touch(at);
        }
    }
}
