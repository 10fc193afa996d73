//! The kernel's SAs, and the subset that the data plane has.
//!
//! A sequence number of an outbound SA is used only after the kernel has recorded it as sent. A later user of the same
//! keys therefore continues with higher numbers (RFC 4106 §2).
//!
//! ```text
//!   sent before | reserved: may be used | pending: may be used once the kernel acknowledges |
//!                 first …          last   first …                                     last
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ipsec::crypto::Fingerprint;
use ipsec::guard::Protection;
use ipsec::policy::Direction;
use netlink_packet_xfrm::UserSaInfo;
use netlink_packet_xfrm::constants::{IPPROTO_AH, IPPROTO_COMP, IPPROTO_ESP};

use crate::ages::{Age, AgeCounter};
use crate::event::{Event, EventQueue, RefusedKind, SaId, SaInfo, SequenceState};
use crate::message::Attributes;
use crate::protections::Protections;
use crate::request::{self, Request, SequenceNumbers};
use crate::sa::{Sa, SaKey, Usage};

/// Maximum number of mirrored SAs.
pub const MOST_SAS: usize = 4096;
/// Maximum number of waiting requests of one SA: one each for sequence numbers, use, soft expiry and hard
/// expiry.
const REQUESTS_PER_SA: usize = 4;

/// Maximum number of ended SAs whose sequence numbers are kept.
const MAX_REMOVED: usize = MOST_SAS;

/// SPI and keys of an SA. Addresses are not included: they change if a daemon moves the SA (MOBIKE).
type SaFingerprint = (u32, Fingerprint);

/// Direction and protection that an SA serves in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SaService {
    direction: Direction,
    protection: Protection,
}

/// Progress of an SA towards the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaStage {
    /// No policy requires the SA, or it is refused.
    Waiting,
    /// The SA waits for the reservation of its first sequence numbers.
    Reserving(SaId, SaService),
    /// The data plane has the SA.
    Serving(SaId, SaService),
    /// The kernel did not reserve the first sequence numbers. Retried at the next dump.
    Failed,
}

/// A range of sequence numbers whose reservation is pending.
#[derive(Clone, Copy, Debug)]
struct PendingReservation {
    first: u64,
    last: u64,
    /// Netlink sequence number of the request, once it is sent.
    request: Option<u32>,
}

struct SaEntry {
    sa: Sa,
    age: Age,
    /// True if the kernel's last sent number is known; see [`Sas::needs_dump`].
    sent_number_known: bool,
    stage: SaStage,
    /// True if properties of the SA have changed, so that the data plane must replace it.
    changed: bool,
    /// Reason of the refusal that was reported last.
    refused: Option<String>,
    /// Last sequence number that the kernel has recorded as sent. The data plane may use the numbers up to it.
    reserved_sequence: u64,
    pending: Option<PendingReservation>,
    /// Highest received sequence number that the kernel or the data plane has reported.
    received_sequence: u64,
    /// Use of the SA since the kernel added it, including `usage_before`.
    usage: Usage,
    /// Use of the SA before it was added to the data plane.
    usage_before: Usage,
    /// True if a report of the SA's use is queued.
    report_queued: bool,
    /// Expiries whose report is queued: soft, hard.
    expire_queued: [bool; 2],
    /// Expiries that were reported to the kernel: soft, hard.
    expire_reported: [bool; 2],
}

/// A request to the kernel about an SA that is not yet sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum QueuedRequest {
    /// Reserves sequence numbers.
    Reserve(SaKey),
    /// Reports the use of the SA.
    Report(SaKey),
    /// Reports an expiry: true for a hard expiry, false for a soft one.
    Expire(SaKey, bool),
}

/// The mirrored SAs, at most [`MOST_SAS`].
pub(crate) struct Sas {
    entries: HashMap<SaKey, SaEntry>,
    /// Keys of the SAs that have an identifier, by that identifier.
    ids: HashMap<SaId, SaKey>,
    next_id: u64,
    /// The outbound SA selected for sending, by protection.
    selected: HashMap<u16, SaId>,
    /// Ended SAs that have reserved sequence numbers, with the last reserved number. The numbers are needed if a daemon
    /// moves an SA: the daemon deletes the SA and adds it again with sequence numbers that the daemon has read earlier.
    /// The daemon may remove the policies first.
    removed: VecDeque<(SaFingerprint, u64)>,
    pub(crate) ages: AgeCounter,
    /// True if an outbound SA needs another dump before it is used. The SA is known only from an update, which does not
    /// contain the kernel's last sent number.
    pub(crate) needs_dump: bool,
    /// Number of SAs omitted since the last dump began, because the mirror was full.
    pub(crate) left_out: u64,
    requests: VecDeque<QueuedRequest>,
    /// Netlink sequence numbers of requests that await an acknowledgement.
    in_flight: HashMap<u32, SaKey>,
}

/// Kind of a message that reports an SA.
#[derive(Clone, Copy)]
pub(crate) struct SaMessage {
    /// True if the message changes an existing SA.
    pub(crate) is_update: bool,
    /// True if the message is part of a dump.
    pub(crate) of_dump: bool,
}

impl Sas {
    pub(crate) fn new() -> Sas {
        Sas {
            entries: HashMap::new(),
            ids: HashMap::new(),
            next_id: 0,
            selected: HashMap::new(),
            removed: VecDeque::new(),
            ages: AgeCounter::default(),
            needs_dump: false,
            left_out: 0,
            requests: VecDeque::new(),
            in_flight: HashMap::new(),
        }
    }

    /// Repeats requests for reservations whose acknowledgements may have been lost. SAs in [`SaStage::Failed`] become
    /// candidates again.
    pub(crate) fn retry_reservations(&mut self) {
        self.in_flight.clear();
        let mut again = Vec::new();
        for (key, entry) in &mut self.entries {
            if let Some(pending) = &mut entry.pending
                && pending.request.take().is_some()
            {
                again.push((entry.age.order, *key));
            }
            if entry.stage == SaStage::Failed {
                entry.stage = SaStage::Waiting;
            }
        }
        again.sort_by_key(|(age, _)| *age);
        again.into_iter().for_each(|(_, key)| self.queue_request(QueuedRequest::Reserve(key)));
    }

    pub(crate) fn begin_dump(&mut self) {
        self.ages.begin_dump();
        self.left_out = 0;
    }

    /// Removes SAs that the dump did not list.
    pub(crate) fn end_dump(&mut self, events: &mut EventQueue) {
        let is_unlisted =
            |(key, entry): (&SaKey, &SaEntry)| (!self.ages.is_current(entry.age)).then_some(*key);
        let unlisted: Vec<SaKey> = self.entries.iter().filter_map(is_unlisted).collect();
        unlisted.iter().for_each(|key| self.record_removed(key, events));
    }

    /// Adds or updates an SA.
    pub(crate) fn insert(
        &mut self,
        info: UserSaInfo,
        attributes: Attributes,
        origin: SaMessage,
        events: &mut EventQueue,
    ) {
        let SaMessage { is_update, of_dump } = origin;
        let age = self.ages.next_age(of_dump);
        if !matches!(info.id.proto, IPPROTO_ESP | IPPROTO_AH | IPPROTO_COMP) {
            return;
        }
        let key = SaKey::new(info.family, &info.id.daddr, info.id.spi, info.id.proto, &attributes);
        let Some(mut sa) = Sa::translate(info, attributes) else { return };
        if let Some(entry) = self.entries.get_mut(&key) {
            let kept = is_update && sa.keep_unchanged_values(&mut entry.sa);
            if kept || sa.has_same_keys(&entry.sa) {
                let order = if of_dump { age } else { self.ages.mark_seen(entry.age) };
                return entry.update(sa, order, of_dump);
            }
            self.record_removed(&key, events);
        } else if self.entries.len() >= MOST_SAS {
            self.left_out += 1;
            if self.left_out == 1 {
                events.warn(format!("more than {MOST_SAS} SAs: the others are left out"));
            }
            return;
        }
        let mut entry = SaEntry::new(sa, age, !is_update);
        if let Some(name) = entry.fingerprint() {
            let known = self.removed.iter().filter(|(known, _)| *known == name);
            entry.reserved_sequence =
                known.map(|(_, reserved)| *reserved).fold(entry.reserved_sequence, u64::max);
        }
        self.entries.insert(key, entry);
    }

    /// Deletes an SA. Returns true if a new dump is needed: SAs were omitted because the mirror was full, and now it
    /// can store more.
    pub(crate) fn remove(&mut self, key: &SaKey, events: &mut EventQueue) -> bool {
        self.record_removed(key, events);
        self.has_room()
    }

    fn has_room(&self) -> bool {
        self.left_out > 0 && self.entries.len() < MOST_SAS
    }

    /// Deletes all SAs of a protocol; 0 and 255 mean all protocols. Returns true if a new dump is needed, like
    /// [`remove`](Self::remove).
    pub(crate) fn flush(&mut self, protocol: u8, events: &mut EventQueue) -> bool {
        let all = matches!(protocol, 0 | u8::MAX);
        let flushed: Vec<SaKey> =
            self.entries.keys().filter(|key| all || key.protocol == protocol).copied().collect();
        flushed.iter().for_each(|key| self.record_removed(key, events));
        self.has_room()
    }

    /// Removes an SA, also from the data plane, and records its reserved sequence numbers.
    fn record_removed(&mut self, key: &SaKey, events: &mut EventQueue) {
        let Some(mut entry) = self.entries.remove(key) else { return };
        let reserved = entry.pending.map_or(entry.reserved_sequence, |pending| pending.last);
        if let Some(name) = entry.fingerprint().filter(|_| reserved > 0) {
            self.removed.push_back((name, reserved));
            self.removed.drain(..self.removed.len().saturating_sub(MAX_REMOVED));
        }
        entry.remove_from_dataplane(&mut self.ids, events);
        if let Some(request) = entry.pending.and_then(|pending| pending.request) {
            self.in_flight.remove(&request);
        }
    }

    /// Removes from the data plane all SAs whose properties, direction or protection have changed. Returns the SAs for
    /// [`Sas::add_to_dataplane`], the oldest first.
    pub(crate) fn assign_services(
        &mut self,
        protections: &Protections,
        events: &mut EventQueue,
    ) -> Vec<(SaKey, SaService)> {
        self.needs_dump = false;
        let mut order: Vec<(bool, u64, SaKey)> =
            self.entries.iter().map(SaEntry::sort_key).collect();
        order.sort_by_key(|(waits, age, _)| (*waits, *age));
        let mut spis = HashSet::new();
        let mut begin = Vec::new();
        for (_, age, key) in order {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let (mut service, refused) = entry.find_service(protections, &mut spis);
            let distrusted =
                service.take_if(|of| of.direction == Direction::Out && !entry.sent_number_known);
            self.needs_dump |= distrusted.is_some();
            let changed = std::mem::take(&mut entry.changed);
            if changed || entry.current_service() != service {
                if entry.stage != SaStage::Failed || changed {
                    entry.remove_from_dataplane(&mut self.ids, events);
                }
                let idle = entry.stage == SaStage::Waiting;
                begin.extend(service.filter(|_| idle).map(|service| (age, key, service)));
            }
            let reported = entry.refused.take();
            entry.refused =
                events.report_refusal(RefusedKind::Sa, &entry.sa, reported, refused.as_deref());
        }
        self.select_named(protections, events);
        begin.sort_by_key(|(age, ..)| *age);
        begin.into_iter().map(|(_, key, service)| (key, service)).collect()
    }

    /// Selects an outbound SA for sending if its policies require exactly its SPI, even if another SA was added later.
    fn select_named(&mut self, protections: &Protections, events: &mut EventQueue) {
        for entry in self.entries.values() {
            let SaStage::Serving(id, service @ SaService { direction: Direction::Out, .. }) =
                entry.stage
            else {
                continue;
            };
            let Ok((facts, _)) = &entry.sa.translation else { continue };
            if protections.requires_spi(&facts.endpoints(Direction::Out), Direction::Out, facts.spi)
                && self.selected.insert(service.protection.0, id) != Some(id)
            {
                events.push(Event::SelectSa { id });
            }
        }
    }

    /// Adds the SAs in `begin` to the data plane. Outbound SAs follow later, once their first sequence numbers are
    /// reserved.
    pub(crate) fn add_to_dataplane(
        &mut self,
        begin: Vec<(SaKey, SaService)>,
        least_window: u16,
        chunk: u64,
        events: &mut EventQueue,
    ) {
        for (key, service) in begin {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let id = SaId(self.next_id);
            self.next_id += 1;
            self.ids.insert(id, key);
            match service.direction {
                Direction::In => entry.add_inbound(id, service, least_window, events),
                Direction::Out => {
                    entry.stage = SaStage::Reserving(id, service);
                    if entry.begin_reservation(chunk) {
                        self.queue_request(QueuedRequest::Reserve(key));
                    }
                }
            }
        }
    }

    /// Requests more sequence numbers for an outbound SA.
    pub(crate) fn reserve_sequence(&mut self, id: SaId, chunk: u64) {
        let Some((key, entry)) = self.find(id) else { return };
        let outbound =
            matches!(entry.stage, SaStage::Serving(_, of) if of.direction == Direction::Out);
        if outbound && entry.begin_reservation(chunk) {
            self.queue_request(QueuedRequest::Reserve(key));
        }
    }

    /// Handles the kernel's answer to a request: 0, or a negative error number.
    pub(crate) fn handle_ack(&mut self, request: u32, code: i32, events: &mut EventQueue) {
        let Some(key) = self.in_flight.remove(&request) else { return };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(pending) = entry.pending.take_if(|pending| pending.request == Some(request))
        else {
            return;
        };
        if code == 0 {
            entry.reserved_sequence = entry.reserved_sequence.max(pending.last);
            match entry.stage {
                SaStage::Reserving(id, service) => {
                    self.selected.insert(service.protection.0, id);
                    entry.add_outbound(id, service, pending, events);
                }
                SaStage::Serving(id, _) => {
                    events.push(Event::Reserved { id, last: pending.last });
                }
                SaStage::Waiting | SaStage::Failed => {}
            }
            return;
        }
        let error = std::io::Error::from_raw_os_error(code.wrapping_neg());
        let what = match entry.stage {
            SaStage::Reserving(id, _) => {
                self.ids.remove(&id);
                entry.stage = SaStage::Failed;
                "the SA is not added"
            }
            _ => "no more are reserved",
        };
        events.warn(format!(
            "{}: the kernel reserved no sequence numbers ({error}): {what}",
            entry.sa
        ));
    }

    /// Records the use of an SA since it was added to the data plane, and the highest sequence number of the SA. Queues
    /// a report to the kernel.
    pub(crate) fn report_usage(&mut self, id: SaId, used: Usage, sequence: u64, now: u64) {
        let Some((key, entry)) = self.find(id) else { return };
        let SaStage::Serving(_, service) = entry.stage else { return };
        entry.usage = Usage {
            bytes: entry.usage_before.bytes.saturating_add(used.bytes),
            packets: entry.usage_before.packets.saturating_add(used.packets),
        };
        if service.direction == Direction::In {
            entry.received_sequence = entry.received_sequence.max(sequence);
        }
        let first_use = &mut entry.sa.info.lifetime_cur.use_time;
        if *first_use == 0 && used.packets > 0 {
            *first_use = now;
        }
        if !std::mem::replace(&mut entry.report_queued, true) {
            self.queue_request(QueuedRequest::Report(key));
        }
    }

    /// Queues a report of an expiry, unless the same expiry or the hard expiry was already reported. `hard`: true for
    /// the hard expiry.
    pub(crate) fn expire(&mut self, id: SaId, hard: bool) {
        let Some((key, entry)) = self.find(id) else { return };
        let reported = entry.expire_reported[usize::from(hard)] || entry.expire_reported[1];
        if !reported {
            entry.expire_reported[usize::from(hard)] = true;
            entry.expire_queued[usize::from(hard)] = true;
            self.queue_request(QueuedRequest::Expire(key, hard));
        }
    }

    /// Returns the entry of the SA with this identifier.
    fn find(&mut self, id: SaId) -> Option<(SaKey, &mut SaEntry)> {
        let key = *self.ids.get(&id)?;
        self.entries.get_mut(&key).map(|entry| (key, entry))
    }

    fn queue_request(&mut self, request: QueuedRequest) {
        if self.requests.len() >= REQUESTS_PER_SA * MOST_SAS {
            // Drops requests of ended SAs and duplicates; `poll_transmit` would skip both.
            let mut known = HashSet::new();
            let entries = &self.entries;
            self.requests.retain(|request| {
                let entry = entries.get(&request.key());
                entry.is_some_and(|entry| entry.is_queued(request)) && known.insert(*request)
            });
        }
        self.requests.push_back(request);
    }

    /// Returns the next request, with the given netlink sequence number, and true if it needs an acknowledgement.
    pub(crate) fn poll_transmit(&mut self, sequence: u32) -> Option<(Request, bool)> {
        loop {
            let request = self.requests.pop_front()?;
            let key = request.key();
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if !entry.is_queued(&request) {
                continue;
            }
            let numbers = entry.reported_numbers();
            return Some(match request {
                QueuedRequest::Reserve(_) => {
                    if let Some(pending) = &mut entry.pending {
                        pending.request = Some(sequence);
                    }
                    self.in_flight.insert(sequence, key);
                    (request::update_state(&entry.sa, numbers, None), true)
                }
                QueuedRequest::Report(_) => {
                    entry.report_queued = false;
                    (request::update_state(&entry.sa, numbers, Some(entry.usage)), false)
                }
                QueuedRequest::Expire(_, hard) => {
                    entry.expire_queued[usize::from(hard)] = false;
                    (request::expire(&entry.sa, hard), false)
                }
            });
        }
    }

    pub(crate) fn infos(&self) -> impl Iterator<Item = SaInfo> {
        let mut entries: Vec<&SaEntry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.age.order);
        entries.into_iter().map(SaEntry::info)
    }
}

impl QueuedRequest {
    fn key(&self) -> SaKey {
        match *self {
            QueuedRequest::Reserve(key)
            | QueuedRequest::Report(key)
            | QueuedRequest::Expire(key, _) => key,
        }
    }
}

impl SaEntry {
    /// Creates the entry of an SA. `trusted`: true if the message contains the kernel's last sent number, which updates
    /// do not.
    fn new(sa: Sa, age: Age, trusted: bool) -> SaEntry {
        let lifetime = &sa.info.lifetime_cur;
        let used = Usage { bytes: lifetime.bytes, packets: lifetime.packets };
        SaEntry {
            age,
            sent_number_known: trusted,
            stage: SaStage::Waiting,
            changed: false,
            refused: None,
            reserved_sequence: sa.sent_sequence(),
            pending: None,
            received_sequence: sa.received_sequence(),
            usage: used,
            usage_before: used,
            report_queued: false,
            expire_queued: [false; 2],
            expire_reported: [false; 2],
            sa,
        }
    }

    /// Applies a message about this SA, whose keys are unchanged. `of_dump`: true if the message is part of a dump.
    fn update(&mut self, sa: Sa, age: Age, of_dump: bool) {
        self.reserved_sequence = self.reserved_sequence.max(sa.sent_sequence());
        self.received_sequence = self.received_sequence.max(sa.received_sequence());
        self.usage.bytes = self.usage.bytes.max(sa.info.lifetime_cur.bytes);
        self.usage.packets = self.usage.packets.max(sa.info.lifetime_cur.packets);
        if !sa.has_same_properties(&self.sa) {
            self.changed = true;
            self.expire_reported = [false; 2];
        }
        self.sent_number_known |= of_dump;
        self.age = age;
        self.sa = sa;
    }

    /// Removes the SA from the data plane.
    fn remove_from_dataplane(&mut self, names: &mut HashMap<SaId, SaKey>, events: &mut EventQueue) {
        if let SaStage::Reserving(id, _) | SaStage::Serving(id, _) = self.stage {
            names.remove(&id);
            if matches!(self.stage, SaStage::Serving(..)) {
                events.push(Event::RemoveSa { id });
            }
        }
        self.stage = SaStage::Waiting;
    }

    fn sort_key((key, entry): (&SaKey, &SaEntry)) -> (bool, u64, SaKey) {
        (entry.current_service().is_none(), entry.age.order, *key)
    }

    fn current_service(&self) -> Option<SaService> {
        match self.stage {
            SaStage::Reserving(_, service) | SaStage::Serving(_, service) => Some(service),
            SaStage::Waiting | SaStage::Failed => None,
        }
    }

    /// Returns the service of the SA, or the reason why the SA is refused. `spis`: SPIs of the inbound SAs that already
    /// have a service; the SPI of this SA is added. An inbound SA with one of these SPIs is refused.
    fn find_service(
        &self,
        protections: &Protections,
        spis: &mut HashSet<u32>,
    ) -> (Option<SaService>, Option<String>) {
        let facts = match &self.sa.translation {
            Ok((facts, _)) => facts,
            Err(reason) => return (None, Some(reason.clone())),
        };
        let both = [Direction::Out, Direction::In];
        let possible = both.into_iter().filter(|way| facts.direction.is_none_or(|of| of == *way));
        let found = possible.into_iter().find_map(|direction| {
            let ends = facts.endpoints(direction);
            let protection = protections.for_sa(&ends, direction, facts.spi)?;
            Some(SaService { direction, protection })
        });
        // RFC 7296 §2.8: after a rekey the old outbound SA stays in the data plane until the daemon deletes it.
        let found = found.or_else(|| {
            let old = self
                .current_service()
                .filter(|old| old.direction == Direction::Out && !self.changed)?;
            (protections.for_endpoints(&facts.endpoints(Direction::Out)) == Some(old.protection))
                .then_some(old)
        });
        match found {
            Some(SaService { direction: Direction::In, .. }) if !spis.insert(facts.spi) => {
                (None, Some("another inbound SA has its SPI".into()))
            }
            Some(service @ SaService { direction: Direction::Out, .. }) => {
                let serving = self.current_service().is_some() && !self.changed;
                let left = serving || self.reserved_sequence < facts.last_sequence();
                match left {
                    true => (Some(service), None),
                    false => (None, Some("its sequence numbers are used up".into())),
                }
            }
            found => (found, None),
        }
    }

    /// Starts a reservation of the next `chunk` sequence numbers. Returns false if none are left, a reservation is
    /// pending, or the SA is refused.
    fn begin_reservation(&mut self, chunk: u64) -> bool {
        let Ok((facts, _)) = &self.sa.translation else { return false };
        if self.pending.is_some() || self.reserved_sequence >= facts.last_sequence() {
            return false;
        }
        let last = self.reserved_sequence.saturating_add(chunk.max(1)).min(facts.last_sequence());
        self.pending =
            Some(PendingReservation { first: self.reserved_sequence + 1, last, request: None });
        true
    }

    /// Returns the sequence numbers to report. Pending numbers are reported as sent, so that a later message does not
    /// revert an earlier reservation.
    fn reported_numbers(&self) -> SequenceNumbers {
        let sent = self
            .pending
            .map_or(self.reserved_sequence, |pending| pending.last.max(self.reserved_sequence));
        SequenceNumbers { sent, received: self.received_sequence }
    }

    /// Returns the SPI and the fingerprint of the keys; `None` for a refused SA, whose keys are not kept.
    fn fingerprint(&self) -> Option<SaFingerprint> {
        let (facts, suite) = self.sa.translation.as_ref().ok()?;
        Some((facts.spi, suite.secret.keys().fingerprint()))
    }

    fn is_queued(&self, request: &QueuedRequest) -> bool {
        match *request {
            QueuedRequest::Reserve(_) => {
                self.pending.is_some_and(|pending| pending.request.is_none())
            }
            QueuedRequest::Report(_) => self.report_queued,
            QueuedRequest::Expire(_, hard) => self.expire_queued[usize::from(hard)],
        }
    }

    fn add_inbound(
        &mut self,
        id: SaId,
        service: SaService,
        least_window: u16,
        events: &mut EventQueue,
    ) {
        let Ok((facts, _)) = &self.sa.translation else { return };
        let window = facts.replay_window(least_window);
        let sequence = SequenceState::Inbound { highest: self.received_sequence, window };
        self.push_add_event(id, service, sequence, events);
    }

    fn add_outbound(
        &mut self,
        id: SaId,
        service: SaService,
        of: PendingReservation,
        events: &mut EventQueue,
    ) {
        let numbers = of.last.saturating_sub(of.first).saturating_add(1);
        self.push_add_event(
            id,
            service,
            SequenceState::Outbound { first: of.first, numbers },
            events,
        );
    }

    fn push_add_event(
        &mut self,
        id: SaId,
        service: SaService,
        sequence: SequenceState,
        events: &mut EventQueue,
    ) {
        let Ok((facts, suite)) = &self.sa.translation else { return };
        let SaService { direction, protection } = service;
        let parameters = Arc::new(facts.parameters(suite, direction, self.usage));
        self.usage_before = self.usage;
        self.stage = SaStage::Serving(id, service);
        events.push(Event::AddSa { id, direction, protection, parameters, sequence });
    }

    fn info(&self) -> SaInfo {
        let info = &self.sa.info;
        let refused = match self.stage {
            SaStage::Failed => Some("the kernel reserved no sequence numbers".to_owned()),
            _ => self.refused.clone(),
        };
        SaInfo {
            id: match self.stage {
                SaStage::Serving(id, _) => Some(id),
                _ => None,
            },
            service: self.current_service().map(|of| (of.direction, of.protection)),
            spi: info.id.spi,
            source: self.sa.source(),
            destination: self.sa.destination(),
            reqid: info.reqid,
            tunnel: info.mode == netlink_packet_xfrm::constants::XFRM_MODE_TUNNEL,
            algorithm: self.sa.algorithm.clone(),
            refused,
        }
    }
}
