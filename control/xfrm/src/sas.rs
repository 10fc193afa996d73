//! The kernel's SAs, and those of them in the data plane.
//!
//! A sequence number of an outbound SA is used only after the kernel has recorded it as sent: a later user of
//! the keys continues behind it (RFC 4106 §2).
//!
//! ```text
//!   sent before | first … last: may be used |  first … last: pending  |
//!                                           ^reserved                 ^what the kernel is asked to take as sent
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ipsec::crypto::Fingerprint;
use ipsec::guard::Protection;
use ipsec::policy::Direction;
use netlink_packet_xfrm::constants::{IPPROTO_AH, IPPROTO_COMP, IPPROTO_ESP};
use netlink_packet_xfrm::{UserSaInfo, XfrmMessage};

use crate::ages::{Age, Ages};
use crate::event::{Event, Events, Refusal, SaId, SaInfo, Sequence};
use crate::message::Attributes;
use crate::protections::Protections;
use crate::request::{self, Numbers};
use crate::sa::{Key, Sa, Used};

/// Most mirrored SAs.
pub const MOST_SAS: usize = 4096;
/// Most waiting requests of one SA: sequence numbers, use, and both ends of lifetimes.
const REQUESTS: usize = 4;

/// Ended SAs whose sequence numbers are remembered.
const GONE: usize = MOST_SAS;

/// SPI and keys of an SA. Addresses are not part of the name: a daemon that moves an SA changes them.
type Name = (u32, Fingerprint);

/// Service of an SA in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    direction: Direction,
    protection: Protection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No policy requires the SA, or it is refused.
    Waiting,
    /// The first sequence numbers are being reserved.
    Reserving(SaId, Service),
    /// The data plane has the SA.
    Serving(SaId, Service),
    /// The kernel did not reserve the first sequence numbers. Retried at the next dump.
    Failed,
}

/// Sequence numbers whose reservation is pending.
#[derive(Clone, Copy, Debug)]
struct Pending {
    first: u64,
    last: u64,
    /// Sequence number of the request, once it is sent.
    request: Option<u32>,
}

struct Entry {
    sa: Sa,
    age: Age,
    /// True if the kernel's last sent number is known.
    trusted: bool,
    stage: Stage,
    /// Changed so that the data plane must replace it.
    changed: bool,
    refused: Option<String>,
    reserved: u64,
    pending: Option<Pending>,
    received: u64,
    used: Used,
    /// Use by others before the SA was added to the data plane.
    before: Used,
    /// A report of the use waits.
    report: bool,
    over: [bool; 2],
    /// Ends of lifetimes reported to the kernel: soft and hard.
    told_over: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Request {
    Reserve(Key),
    Report(Key),
    Over(Key, bool),
}

/// The mirrored SAs.
pub(crate) struct Sas {
    entries: HashMap<Key, Entry>,
    names: HashMap<SaId, Key>,
    next: u64,
    /// The outbound SA that sends for each protection.
    selected: HashMap<u16, SaId>,
    /// Ended outbound SAs, with the last sequence number reserved. A daemon that moves an SA deletes it and
    /// adds it again, with numbers that it has read before. Its policies may have been removed first.
    gone: VecDeque<(Name, u64)>,
    pub(crate) ages: Ages,
    /// Some outbound SAs need another dump before they are used: they are known by an update alone, which does
    /// not contain the kernel's last sent number.
    pub(crate) distrusted: bool,
    /// SAs left out since the last dump began.
    pub(crate) left_out: u64,
    requests: VecDeque<Request>,
    /// Sequence numbers of requests that await an acknowledgement.
    sent: HashMap<u32, Key>,
}

impl Sas {
    pub(crate) fn new() -> Sas {
        Sas {
            entries: HashMap::new(),
            names: HashMap::new(),
            next: 0,
            selected: HashMap::new(),
            gone: VecDeque::new(),
            ages: Ages::default(),
            distrusted: false,
            left_out: 0,
            requests: VecDeque::new(),
            sent: HashMap::new(),
        }
    }

    /// Requests reservations again whose acknowledgements may have been lost.
    pub(crate) fn retry(&mut self) {
        self.sent.clear();
        let mut again = Vec::new();
        for (key, entry) in &mut self.entries {
            if let Some(pending) = &mut entry.pending
                && pending.request.take().is_some()
            {
                again.push((entry.age.order, *key));
            }
            if entry.stage == Stage::Failed {
                entry.stage = Stage::Waiting;
            }
        }
        again.sort_by_key(|(age, _)| *age);
        again.into_iter().for_each(|(_, key)| self.push(Request::Reserve(key)));
    }

    pub(crate) fn begin_dump(&mut self) {
        self.ages.begin();
        self.left_out = 0;
    }

    /// Removes SAs that the dump did not list.
    pub(crate) fn end_dump(&mut self, events: &mut Events) {
        let gone =
            |(key, entry): (&Key, &Entry)| (!self.ages.is_current(entry.age)).then_some(*key);
        let gone: Vec<Key> = self.entries.iter().filter_map(gone).collect();
        gone.iter().for_each(|key| self.forget(key, events));
    }

    /// Adds or updates an SA.
    pub(crate) fn take(
        &mut self,
        info: UserSaInfo,
        attributes: Attributes,
        update: bool,
        of_dump: bool,
        events: &mut Events,
    ) {
        let age = self.ages.next(of_dump);
        if !matches!(info.id.proto, IPPROTO_ESP | IPPROTO_AH | IPPROTO_COMP) {
            return;
        }
        let key = Key::new(info.family, &info.id.daddr, info.id.spi, info.id.proto, &attributes);
        let Some(mut sa) = Sa::read(info, attributes) else { return };
        if let Some(entry) = self.entries.get_mut(&key) {
            let kept = update && sa.keep_what_updates_keep(&mut entry.sa);
            if kept || sa.has_same_keys(&entry.sa) {
                let order = if of_dump { age } else { self.ages.seen(entry.age) };
                return entry.renew(sa, order, of_dump);
            }
            self.forget(&key, events);
        } else if self.entries.len() >= MOST_SAS {
            self.left_out += 1;
            if self.left_out == 1 {
                events.warn(format!("more than {MOST_SAS} SAs: the others are left out"));
            }
            return;
        }
        let mut entry = Entry::new(sa, age, !update);
        if let Some(name) = entry.name() {
            let known = self.gone.iter().filter(|(known, _)| *known == name);
            entry.reserved = known.map(|(_, reserved)| *reserved).fold(entry.reserved, u64::max);
        }
        self.entries.insert(key, entry);
    }

    /// Deletes an SA. Returns true if an SA that was left out may now fit.
    pub(crate) fn remove(&mut self, key: &Key, events: &mut Events) -> bool {
        self.forget(key, events);
        self.has_room()
    }

    fn has_room(&self) -> bool {
        self.left_out > 0 && self.entries.len() < MOST_SAS
    }

    /// Deletes all SAs of a protocol. Returns as [`remove`](Self::remove).
    pub(crate) fn flush(&mut self, protocol: u8, events: &mut Events) -> bool {
        let all = matches!(protocol, 0 | u8::MAX);
        let gone: Vec<Key> =
            self.entries.keys().filter(|key| all || key.protocol == protocol).copied().collect();
        gone.iter().for_each(|key| self.forget(key, events));
        self.has_room()
    }

    fn forget(&mut self, key: &Key, events: &mut Events) {
        let Some(mut entry) = self.entries.remove(key) else { return };
        let reserved = entry.pending.map_or(entry.reserved, |pending| pending.last);
        if let Some(name) = entry.name().filter(|_| reserved > 0) {
            self.gone.push_back((name, reserved));
            self.gone.drain(..self.gone.len().saturating_sub(GONE));
        }
        entry.stop(&mut self.names, events);
        if let Some(request) = entry.pending.and_then(|pending| pending.request) {
            self.sent.remove(&request);
        }
    }

    /// Stops SAs whose service has changed. Returns the SAs to start, the oldest first: see [`Sas::start`].
    pub(crate) fn settle(
        &mut self,
        protections: &Protections,
        events: &mut Events,
    ) -> Vec<(Key, Service)> {
        self.distrusted = false;
        let mut order: Vec<(bool, u64, Key)> = self.entries.iter().map(Entry::place).collect();
        order.sort_by_key(|(waits, age, _)| (*waits, *age));
        let mut spis = HashSet::new();
        let mut begin = Vec::new();
        for (_, age, key) in order {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let (mut service, refused) = entry.service(protections, &mut spis);
            let distrusted = service.take_if(|of| of.direction == Direction::Out && !entry.trusted);
            self.distrusted |= distrusted.is_some();
            let changed = std::mem::take(&mut entry.changed);
            if changed || entry.serves() != service {
                if entry.stage != Stage::Failed || changed {
                    entry.stop(&mut self.names, events);
                }
                let idle = entry.stage == Stage::Waiting;
                begin.extend(service.filter(|_| idle).map(|service| (age, key, service)));
            }
            let told = entry.refused.take();
            entry.refused = events.refuse(Refusal::Sa, &entry.sa, told, refused.as_deref());
        }
        self.select(protections, events);
        begin.sort_by_key(|(age, ..)| *age);
        begin.into_iter().map(|(_, key, service)| (key, service)).collect()
    }

    /// Selects SAs that policies name again, although another was added after them.
    fn select(&mut self, protections: &Protections, events: &mut Events) {
        for entry in self.entries.values() {
            let Stage::Serving(id, service @ Service { direction: Direction::Out, .. }) =
                entry.stage
            else {
                continue;
            };
            let Ok((facts, _)) = &entry.sa.reading else { continue };
            if protections.names(&facts.ends(Direction::Out), Direction::Out, facts.spi)
                && self.selected.insert(service.protection.0, id) != Some(id)
            {
                events.push(Event::SelectSa { id });
            }
        }
    }

    /// Adds these SAs to the data plane. For outbound ones the first sequence numbers are reserved before.
    pub(crate) fn start(
        &mut self,
        begin: Vec<(Key, Service)>,
        least_window: u16,
        chunk: u64,
        events: &mut Events,
    ) {
        for (key, service) in begin {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let id = SaId(self.next);
            self.next += 1;
            self.names.insert(id, key);
            match service.direction {
                Direction::In => entry.add(id, service, least_window, events),
                Direction::Out => {
                    entry.stage = Stage::Reserving(id, service);
                    if entry.reserve(chunk) {
                        self.push(Request::Reserve(key));
                    }
                }
            }
        }
    }

    /// Requests more sequence numbers for an outbound SA.
    pub(crate) fn reserve(&mut self, id: SaId, chunk: u64) {
        let Some((key, entry)) = self.named(id) else { return };
        let outbound =
            matches!(entry.stage, Stage::Serving(_, of) if of.direction == Direction::Out);
        if outbound && entry.reserve(chunk) {
            self.push(Request::Reserve(key));
        }
    }

    /// Handles the kernel's answer to a request: 0, or an error as a negative number.
    pub(crate) fn acknowledged(&mut self, request: u32, code: i32, events: &mut Events) {
        let Some(key) = self.sent.remove(&request) else { return };
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(pending) = entry.pending.take_if(|pending| pending.request == Some(request))
        else {
            return;
        };
        if code == 0 {
            entry.reserved = entry.reserved.max(pending.last);
            match entry.stage {
                Stage::Reserving(id, service) => {
                    self.selected.insert(service.protection.0, id);
                    entry.add_outbound(id, service, pending, events);
                }
                Stage::Serving(id, _) => {
                    events.push(Event::Reserved { id, last: pending.last });
                }
                Stage::Waiting | Stage::Failed => {}
            }
            return;
        }
        let error = std::io::Error::from_raw_os_error(code.wrapping_neg());
        let what = match entry.stage {
            Stage::Reserving(id, _) => {
                self.names.remove(&id);
                entry.stage = Stage::Failed;
                "it is not added"
            }
            _ => "it gets no more",
        };
        events.warn(format!(
            "{}: the kernel reserved no sequence numbers ({error}): {what}",
            entry.sa
        ));
    }

    /// Reports the use in the data plane since an SA was added, and its highest sequence number.
    pub(crate) fn report(&mut self, id: SaId, used: Used, sequence: u64, now: u64) {
        let Some((key, entry)) = self.named(id) else { return };
        let Stage::Serving(_, service) = entry.stage else { return };
        entry.used = Used {
            bytes: entry.before.bytes.saturating_add(used.bytes),
            packets: entry.before.packets.saturating_add(used.packets),
        };
        if service.direction == Direction::In {
            entry.received = entry.received.max(sequence);
        }
        let first_use = &mut entry.sa.info.lifetime_cur.use_time;
        if *first_use == 0 && used.packets > 0 {
            *first_use = now;
        }
        if !std::mem::replace(&mut entry.report, true) {
            self.push(Request::Report(key));
        }
    }

    /// Reports the end of a lifetime, once.
    pub(crate) fn over(&mut self, id: SaId, hard: bool) {
        let Some((key, entry)) = self.named(id) else { return };
        let told = entry.told_over[usize::from(hard)] || entry.told_over[1];
        if !told {
            entry.told_over[usize::from(hard)] = true;
            entry.over[usize::from(hard)] = true;
            self.push(Request::Over(key, hard));
        }
    }

    fn named(&mut self, id: SaId) -> Option<(Key, &mut Entry)> {
        let key = *self.names.get(&id)?;
        self.entries.get_mut(&key).map(|entry| (key, entry))
    }

    fn push(&mut self, request: Request) {
        if self.requests.len() >= REQUESTS * MOST_SAS {
            // Drops requests of ended SAs, and duplicates, which `transmit` would skip.
            let mut known = HashSet::new();
            let entries = &self.entries;
            self.requests.retain(|request| {
                let entry = entries.get(&request.key());
                entry.is_some_and(|entry| entry.waits_for(request)) && known.insert(*request)
            });
        }
        self.requests.push_back(request);
    }

    /// Returns the next request, to be sent with this sequence number, and whether it needs an acknowledgement.
    pub(crate) fn transmit(&mut self, sequence: u32) -> Option<((XfrmMessage, u16), bool)> {
        loop {
            let request = self.requests.pop_front()?;
            let key = request.key();
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if !entry.waits_for(&request) {
                continue;
            }
            let numbers = entry.numbers();
            return Some(match request {
                Request::Reserve(_) => {
                    if let Some(pending) = &mut entry.pending {
                        pending.request = Some(sequence);
                    }
                    self.sent.insert(sequence, key);
                    (request::state(&entry.sa, numbers, None), true)
                }
                Request::Report(_) => {
                    entry.report = false;
                    (request::state(&entry.sa, numbers, Some(entry.used)), false)
                }
                Request::Over(_, hard) => {
                    entry.over[usize::from(hard)] = false;
                    (request::expire(&entry.sa, hard), false)
                }
            });
        }
    }

    pub(crate) fn infos(&self) -> impl Iterator<Item = SaInfo> {
        let mut entries: Vec<&Entry> = self.entries.values().collect();
        entries.sort_by_key(|entry| entry.age.order);
        entries.into_iter().map(Entry::info)
    }
}

impl Request {
    fn key(&self) -> Key {
        match *self {
            Request::Reserve(key) | Request::Report(key) | Request::Over(key, _) => key,
        }
    }
}

impl Entry {
    fn new(sa: Sa, age: Age, trusted: bool) -> Entry {
        let of = &sa.info.lifetime_cur;
        let used = Used { bytes: of.bytes, packets: of.packets };
        Entry {
            age,
            trusted,
            stage: Stage::Waiting,
            changed: false,
            refused: None,
            reserved: sa.sent(),
            pending: None,
            received: sa.received(),
            used,
            before: used,
            report: false,
            over: [false; 2],
            told_over: [false; 2],
            sa,
        }
    }

    /// Applies a message about an SA with the same keys.
    fn renew(&mut self, sa: Sa, age: Age, of_dump: bool) {
        self.reserved = self.reserved.max(sa.sent());
        self.received = self.received.max(sa.received());
        self.used.bytes = self.used.bytes.max(sa.info.lifetime_cur.bytes);
        self.used.packets = self.used.packets.max(sa.info.lifetime_cur.packets);
        if !sa.has_same_facts(&self.sa) {
            self.changed = true;
            self.told_over = [false; 2];
        }
        self.trusted |= of_dump;
        self.age = age;
        self.sa = sa;
    }

    /// Removes the SA from the data plane.
    fn stop(&mut self, names: &mut HashMap<SaId, Key>, events: &mut Events) {
        if let Stage::Reserving(id, _) | Stage::Serving(id, _) = self.stage {
            names.remove(&id);
            if matches!(self.stage, Stage::Serving(..)) {
                events.push(Event::RemoveSa { id });
            }
        }
        self.stage = Stage::Waiting;
    }

    fn place((key, entry): (&Key, &Entry)) -> (bool, u64, Key) {
        (entry.serves().is_none(), entry.age.order, *key)
    }

    fn serves(&self) -> Option<Service> {
        match self.stage {
            Stage::Reserving(_, service) | Stage::Serving(_, service) => Some(service),
            Stage::Waiting | Stage::Failed => None,
        }
    }

    /// Returns the service of the SA, or the reason if it is refused. `spis` holds the SPIs of preceding
    /// inbound SAs.
    fn service(
        &self,
        protections: &Protections,
        spis: &mut HashSet<u32>,
    ) -> (Option<Service>, Option<String>) {
        let facts = match &self.sa.reading {
            Ok((facts, _)) => facts,
            Err(reason) => return (None, Some(reason.clone())),
        };
        let both = [Direction::Out, Direction::In];
        let possible = both.into_iter().filter(|way| facts.direction.is_none_or(|of| of == *way));
        let found = possible.into_iter().find_map(|direction| {
            let ends = facts.ends(direction);
            let protection = protections.served(&ends, direction, facts.spi)?;
            Some(Service { direction, protection })
        });
        // RFC 7296 §2.8: a replaced SA continues until it is deleted, so that one always exists.
        let found = found.or_else(|| {
            let old =
                self.serves().filter(|old| old.direction == Direction::Out && !self.changed)?;
            (protections.of(&facts.ends(Direction::Out)) == Some(old.protection)).then_some(old)
        });
        match found {
            Some(Service { direction: Direction::In, .. }) if !spis.insert(facts.spi) => {
                (None, Some("another inbound SA has its SPI".into()))
            }
            Some(service @ Service { direction: Direction::Out, .. }) => {
                let serving = self.serves().is_some() && !self.changed;
                let left = serving || self.reserved < facts.last();
                match left {
                    true => (Some(service), None),
                    false => (None, Some("its sequence numbers are used up".into())),
                }
            }
            found => (found, None),
        }
    }

    /// Requests the next sequence numbers. Returns false if none are left, or a reservation is pending.
    fn reserve(&mut self, chunk: u64) -> bool {
        let Ok((facts, _)) = &self.sa.reading else { return false };
        if self.pending.is_some() || self.reserved >= facts.last() {
            return false;
        }
        let last = self.reserved.saturating_add(chunk.max(1)).min(facts.last());
        self.pending = Some(Pending { first: self.reserved + 1, last, request: None });
        true
    }

    /// Returns the numbers to report. Pending ones count as sent: a later message must not revert the
    /// reservation of an earlier one.
    fn numbers(&self) -> Numbers {
        let sent = self.pending.map_or(self.reserved, |pending| pending.last.max(self.reserved));
        Numbers { sent, received: self.received }
    }

    /// Returns `None` for a refused SA: its keys are not kept.
    fn name(&self) -> Option<Name> {
        let (facts, suite) = self.sa.reading.as_ref().ok()?;
        Some((facts.spi, suite.secret.keys().fingerprint()))
    }

    fn waits_for(&self, request: &Request) -> bool {
        match *request {
            Request::Reserve(_) => self.pending.is_some_and(|pending| pending.request.is_none()),
            Request::Report(_) => self.report,
            Request::Over(_, hard) => self.over[usize::from(hard)],
        }
    }

    fn add(&mut self, id: SaId, service: Service, least_window: u16, events: &mut Events) {
        let Ok((facts, _)) = &self.sa.reading else { return };
        let window = facts.window(least_window);
        let sequence = Sequence::Inbound { top: self.received, window };
        self.tell(id, service, sequence, events);
    }

    fn add_outbound(&mut self, id: SaId, service: Service, of: Pending, events: &mut Events) {
        let numbers = of.last.saturating_sub(of.first).saturating_add(1);
        self.tell(id, service, Sequence::Outbound { first: of.first, numbers }, events);
    }

    fn tell(&mut self, id: SaId, service: Service, sequence: Sequence, events: &mut Events) {
        let Ok((facts, suite)) = &self.sa.reading else { return };
        let Service { direction, protection } = service;
        let parameters = Arc::new(facts.parameters(suite, direction, self.used));
        self.before = self.used;
        self.stage = Stage::Serving(id, service);
        events.push(Event::AddSa { id, direction, protection, parameters, sequence });
    }

    fn info(&self) -> SaInfo {
        let info = &self.sa.info;
        let refused = match self.stage {
            Stage::Failed => Some("the kernel reserved no sequence numbers".to_owned()),
            _ => self.refused.clone(),
        };
        SaInfo {
            id: match self.stage {
                Stage::Serving(id, _) => Some(id),
                _ => None,
            },
            serves: self.serves().map(|of| (of.direction, of.protection)),
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
