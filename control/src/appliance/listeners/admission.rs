//! Streams of listeners: admission within limits, counts, and services.

use std::net::IpAddr;
use std::time::Instant;

use api::refusal::{Refusal, RefusalKind};
use config::{QueueSection, Ulp};
use dataplane::{ListenerId, Transport};
use ddp::{PdId, StreamId};

use super::Listeners;
use crate::appliance::env::Env;
use crate::appliance::limits;
use crate::appliance::pending::ReservedSlot;
use crate::files::FileId;
use crate::service::{AcceptedStream, Actions, Input, Service};

/// Settings of a listener for an accepted stream.
pub(in crate::appliance) struct StreamSettings {
    pub pd: PdId,
    pub queues: Vec<QueueSection>,
    /// Regions to advertise to the stream; empty if each stream gets a slot of one region.
    pub regions: Vec<String>,
    /// True if the listener's ULP is RDMAP, false if it is bare DDP.
    pub rdmap: bool,
}

impl Listeners {
    pub(in crate::appliance) fn contains(&self, id: ListenerId) -> bool {
        self.by_id(id).is_some()
    }

    pub(in crate::appliance) fn name_of(&self, id: ListenerId) -> Option<&str> {
        self.by_id(id).map(|listener| listener.section.name.as_str())
    }

    /// Returns the name of a listener that has this port on the other transport. `None` if there is none.
    pub(in crate::appliance) fn on_other_transport(
        &self,
        port: u16,
        transport: Transport,
    ) -> Option<&str> {
        let others = config::Transport::WORDS.into_iter().map(|(word, _)| word);
        others
            .filter(|word| *word != transport.name())
            .find_map(|word| self.index.at_port(port, word))
    }

    pub(in crate::appliance) fn ulp_of(&self, id: ListenerId) -> Option<&Ulp> {
        self.by_id(id).map(|listener| &listener.section.ulp)
    }

    /// Returns the file to which messages of a queue are delivered. `None` for a queue without a file.
    pub(in crate::appliance) fn file_of(&self, id: ListenerId, qn: u32) -> Option<FileId> {
        self.by_id(id)?.files.get(&qn).copied()
    }

    /// Returns true if a queue of the listener delivers to a file.
    pub(in crate::appliance) fn has_file_queue(&self, id: ListenerId) -> bool {
        self.by_id(id).is_some_and(|listener| !listener.files.is_empty())
    }

    /// Counts a new stream within the listener's limits.
    ///
    /// # Errors
    /// The stream would exceed a limit, or the listener was removed.
    pub(in crate::appliance) fn admit(
        &mut self,
        id: ListenerId,
        peer: IpAddr,
    ) -> Result<StreamSettings, Refusal> {
        let found = self.by_id_mut(id).ok_or_else(listener_removed)?;
        let limits = found.limits();
        found.ledger.admit(peer, &limits).map_err(|refusal| {
            let kind = match refusal {
                limits::Refusal::Listener(_) => RefusalKind::ListenerFull,
                limits::Refusal::Peer(_) => RefusalKind::PeerFull,
            };
            Refusal::new(kind, refusal.to_string())
        })?;
        found.accepted += 1;
        let section = &found.section;
        Ok(StreamSettings {
            pd: found.pd,
            queues: section.queues.clone(),
            regions: if section.has_slots() { Vec::new() } else { section.regions.clone() },
            rdmap: section.ulp.rdmap().is_some(),
        })
    }

    /// Reverts the admission of a stream for which no slot can be bound.
    pub(in crate::appliance) fn undo_admission(&mut self, id: ListenerId, peer: IpAddr) {
        if let Some(found) = self.by_id_mut(id) {
            found.accepted -= 1;
            found.ledger.release(peer);
        }
    }

    /// Counts a refused stream. Returns the listener's name. `None` if the listener was removed.
    pub(in crate::appliance) fn count_refused(&mut self, id: ListenerId) -> Option<String> {
        let found = self.by_id_mut(id)?;
        found.refused += 1;
        Some(found.section.name.clone())
    }

    /// Releases the admission of a stream that has ended, and reports the end to the writer of the listener's files.
    pub(in crate::appliance) fn on_stream_closed(
        &mut self,
        env: &mut Env,
        id: ListenerId,
        peer: IpAddr,
    ) {
        if let Some(found) = self.by_id_mut(id) {
            found.ledger.release(peer);
            found.files.values().for_each(|&file| env.writer.on_stream_closed(file));
        }
        self.forget_retired(env, id);
    }

    // --- services ---

    /// Reserves a slot of the listener's region for a new stream. Returns `None` if the listener does not divide a
    /// region into slots.
    ///
    /// # Errors
    /// All slots are in use.
    pub(in crate::appliance) fn reserve_slot(
        &mut self,
        id: ListenerId,
    ) -> Result<Option<ReservedSlot>, Refusal> {
        let Some(found) = self.by_id_mut(id) else { return Ok(None) };
        let Some(kind) = found.section.ulp.rdmap().map(|rdmap| rdmap.service) else {
            return Ok(None);
        };
        if !kind.has_slots() {
            return Ok(None);
        }
        let region = found.section.regions.first().cloned().unwrap_or_default();
        let Some(serving) = &mut found.serving else { return Ok(None) };
        let (number, slot_len) = serving.take().ok_or_else(|| {
            let sentence = "the listener has no memory for another stream";
            Refusal::new(RefusalKind::RegionTaken, sentence)
        })?;
        Ok(Some(ReservedSlot { listener: id, number, slot_len, kind, region }))
    }

    pub(in crate::appliance) fn free_slot(&mut self, id: ListenerId, number: u32) {
        if let Some(serving) = self.serving(id) {
            serving.free(number);
        }
    }

    /// Returns true if the service handles messages in the control thread.
    pub(in crate::appliance) fn has_service(&mut self, id: ListenerId) -> bool {
        self.serving(id).is_some_and(|serving| !matches!(serving.service, Service::Passive))
    }

    pub(in crate::appliance) fn service_opened(
        &mut self,
        id: ListenerId,
        stream: StreamId,
        arrival: AcceptedStream,
    ) {
        self.with_service(id, |service| service.on_opened(stream, arrival));
    }

    pub(in crate::appliance) fn service_closed(
        &mut self,
        id: ListenerId,
        stream: StreamId,
        now: Instant,
    ) -> Actions {
        let mut actions = Actions::new();
        self.with_service(id, |service| service.on_closed(stream, now, &mut actions));
        actions
    }

    pub(in crate::appliance) fn service_input(
        &mut self,
        id: ListenerId,
        stream: StreamId,
        input: Input,
        now: Instant,
    ) -> Actions {
        let mut actions = Actions::new();
        self.with_service(id, |service| service.input(stream, input, now, &mut actions));
        actions
    }

    /// Calls a listener's service, if it has one, and updates its timer.
    fn with_service(&mut self, id: ListenerId, call: impl FnOnce(&mut Service)) {
        let Some(listener) = self.by_id_mut(id) else { return };
        if let Some(serving) = &mut listener.serving {
            call(&mut serving.service);
            let (first, timeout) = (listener.first_id(), listener.timeout());
            self.timers.set(first, timeout);
        }
    }

    /// Returns the time at which the next timer of a service expires. `None` if no timer is set.
    pub(in crate::appliance) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles the expired timers of services.
    pub(in crate::appliance) fn handle_timeout(&mut self, now: Instant) -> Actions {
        let mut actions = Actions::new();
        for id in self.timers.take_expired(now) {
            self.with_service(id, |service| service.handle_timeout(now, &mut actions));
        }
        actions
    }
}

/// Returns the refusal of a peer whose listener was removed during its connection setup.
pub(in crate::appliance) fn listener_removed() -> Refusal {
    Refusal::new(RefusalKind::ListenerRemoved, "the listener was removed")
}
