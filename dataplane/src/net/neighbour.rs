//! The neighbour cache of one interface, for ARP and for neighbour discovery alike, with the states of
//! RFC 4861 §7.3.2.
//!
//! ```text
//!            resolve                 answer               30 s            use            5 s
//!  (none) -----------> incomplete ----------> reachable -------> stale -------> delay ------> probe
//!     ^                   | 3 x 1 s              ^                 ^                            |  |
//!     |                   v                      +-- answer -------|----------------------------+  |
//!     +------- 1 s --- failed  <--- 3 x 1 s -- incomplete <--------|------ 3 x 1 s unanswered -----+
//! ```
//!
//! Unsolicited announcements are not trusted, because every host on the link can forge them. They never make
//! an entry, except that a peer that asks for *our* address becomes a stale one. They never change a known
//! link-layer address: the old one is probed at once and, if it does not answer, resolved afresh. So a move of an
//! address costs a few seconds, and a forged ARP reply has no effect.
//!
//! No packets are queued here: streams are polled for segments only once the next hop is known.
//! Sans-IO: solicitations to send come out of [`NeighbourCache::resolve`] and [`NeighbourCache::poll`].
//! Bounds: the number of entries; of these at most a quarter incomplete, and at most half *strangers* (hosts that
//! asked for our address and to which we never sent). A new stranger evicts only strangers, and neighbours of streams are
//! pinned: no flood evicts them.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Duration;

use base::Instant;
use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// REACHABLE_TIME of RFC 4861 §10.
const REACHABLE: Duration = Duration::from_secs(30);
/// DELAY_FIRST_PROBE_TIME.
const DELAY: Duration = Duration::from_secs(5);
/// RETRANS_TIMER.
const RETRANS: Duration = Duration::from_secs(1);
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT.
const TRIES: u8 = 3;
/// How long a failure is remembered: requests for one address are not sent more often.
const FAILED: Duration = Duration::from_secs(1);
/// The least time between two scans of all entries.
const SCAN: Duration = Duration::from_millis(10);
/// Entries that are examined to find one to evict.
const EVICT_LOOKS: usize = 16;

/// The cache.
#[derive(Debug)]
pub struct NeighbourCache {
    entries: Vec<Entry>,
    index: HashTable<u32>,
    keys: KeyedState,
    capacity: usize,
    incomplete: usize,
    strangers: usize,
    hand: usize,
    /// No entry needs attention before this.
    next: Option<Instant>,
    /// Where `poll` goes on in the scan that it is in.
    scanning: Option<usize>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    mac: Mac,
    state: State,
    used: Instant,
    /// Nothing was ever sent to it.
    stranger: bool,
    /// Streams that keep it here.
    pins: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Incomplete { tries: u8, next: Instant },
    Reachable { until: Instant },
    Stale,
    Delay { until: Instant },
    Probe { tries: u8, next: Instant },
    Failed { until: Instant },
}

/// What [`NeighbourCache::resolve`] knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Send there.
    Known(Mac),
    /// Not yet known. With `solicit`, the caller sends the first solicitation now, to all.
    Wait {
        /// True the first time.
        solicit: bool,
    },
    /// Resolution has failed a moment ago.
    Failed,
    /// The cache has no room.
    Full,
}

/// An announcement by a neighbour: ARP, or a neighbour advertisement or solicitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address; never a group's.
    pub mac: Mac,
    /// What kind of packet carried it.
    pub kind: ClaimKind,
}

/// How a [`Claim`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimKind {
    /// An ARP reply to us, or a neighbour advertisement with the Solicited flag.
    Answer {
        /// The Override flag (RFC 4861 §4.4); true for ARP.
        overrides: bool,
    },
    /// It asked for one of our addresses.
    Question,
    /// Unsolicited: gratuitous ARP, unsolicited advertisement.
    Announcement,
    /// Of an address of ours, by another host: of no use for the cache.
    Conflict,
}

/// What became of a [`Claim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// A stream was waiting for it.
    Resolved,
    /// Taken note of.
    Noted,
    /// Invalid, or not trusted.
    Ignored,
    /// There is no room for it.
    Full,
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a request for the address: to all, or to the host that had it.
    Solicit(IpAddr, Option<Mac>),
    /// No host answers for the address.
    Failed(IpAddr),
}

impl NeighbourCache {
    /// An empty cache of at most `capacity` entries, at least 4. `key` seeds the hash.
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        NeighbourCache {
            entries: Vec::new(),
            index: HashTable::new(),
            keys: KeyedState(SipHasher13::new_with_key(&key)),
            capacity: capacity.max(4),
            incomplete: 0,
            strangers: 0,
            hand: 0,
            next: None,
            scanning: None,
        }
    }

    /// Where to send what is for `address`, which is on this link. Counts as use.
    pub fn resolve(&mut self, address: IpAddr, now: Instant) -> Resolution {
        let Some(at) = self.find(address) else { return self.begin(address, now) };
        let entry = &mut self.entries[at];
        entry.used = now;
        self.strangers -= usize::from(core::mem::take(&mut entry.stranger));
        match entry.state {
            State::Reachable { .. } | State::Delay { .. } | State::Probe { .. } => {
                Resolution::Known(entry.mac)
            }
            State::Stale => {
                // RFC 4861 §7.3.3
                let mac = entry.mac;
                self.enter(at, State::Delay { until: now + DELAY });
                Resolution::Known(mac)
            }
            State::Incomplete { .. } => Resolution::Wait { solicit: false },
            State::Failed { until } if now < until => Resolution::Failed,
            State::Failed { .. } => self.ask(at, now),
        }
    }

    /// The link-layer address, if known; does not count as use.
    pub fn get(&self, address: IpAddr) -> Option<Mac> {
        let entry = &self.entries[self.find(address)?];
        entry.state.has_mac().then_some(entry.mac)
    }

    /// Processes an announcement by a neighbour. The caller has checked that the address can be a
    /// neighbour's and is not our own.
    pub fn claim(&mut self, claim: &Claim, now: Instant) -> ClaimOutcome {
        let Some(at) = self.find(claim.address) else {
            return match claim.kind {
                // RFC 826's "target is me" and RFC 4861 §7.2.3: it will want to be answered.
                ClaimKind::Question => match self.insert(claim.address, true, now) {
                    Some(at) => {
                        self.learn(at, claim.mac, State::Stale);
                        ClaimOutcome::Noted
                    }
                    None => ClaimOutcome::Full,
                },
                ClaimKind::Answer { .. } | ClaimKind::Announcement | ClaimKind::Conflict => {
                    ClaimOutcome::Ignored
                }
            };
        };
        let reachable = State::Reachable { until: now + REACHABLE };
        let answered = matches!(claim.kind, ClaimKind::Answer { .. });
        match self.entries[at].state {
            // RFC 4861 §7.2.5: unless it is an answer, the other direction is unproven.
            State::Incomplete { .. } | State::Failed { .. } => {
                self.learn(at, claim.mac, if answered { reachable } else { State::Stale });
                ClaimOutcome::Resolved
            }
            _ if self.entries[at].mac == claim.mac => {
                if answered {
                    self.enter(at, reachable);
                }
                ClaimOutcome::Noted
            }
            // The known link-layer address is being probed. Answers from others are ignored until the probes have
            // failed, or a flood of forged answers would take the address over (RFC 4861 §7.2.5 allows it).
            State::Probe { .. } => ClaimOutcome::Ignored,
            State::Reachable { .. } | State::Stale | State::Delay { .. } => {
                self.enter(at, State::Probe { tries: 0, next: now });
                ClaimOutcome::Noted
            }
        }
    }

    /// A stream has proof that its segments arrive (RFC 4861 §7.3.1).
    pub fn confirm(&mut self, address: IpAddr, now: Instant) {
        if let Some(at) = self.find(address)
            && matches!(self.entries[at].state, State::Delay { .. } | State::Probe { .. })
        {
            self.enter(at, State::Reachable { until: now + REACHABLE });
        }
    }

    /// A stream's segments are probably not arriving: the neighbour is probed.
    pub fn doubt(&mut self, address: IpAddr, now: Instant) {
        if let Some(at) = self.find(address) {
            self.doubt_at(at, now);
        }
    }

    /// All neighbours in use are probed: the link may be another one.
    pub fn doubt_all(&mut self, now: Instant) {
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if entry.state == State::Stale && entry.pins > 0 {
                self.enter(at, State::Probe { tries: 0, next: now });
            } else {
                self.doubt_at(at, now);
            }
        }
    }

    fn doubt_at(&mut self, at: usize, now: Instant) {
        if matches!(self.entries[at].state, State::Reachable { .. } | State::Delay { .. }) {
            self.enter(at, State::Probe { tries: 0, next: now });
        }
    }

    /// Keeps the place of a neighbour that has a stream until [`unpin`](Self::unpin), once for each stream.
    /// Returns false when it has none.
    pub fn pin(&mut self, address: IpAddr) -> bool {
        let at = self.find(address);
        if let Some(at) = at {
            self.entries[at].pins += 1;
        }
        at.is_some()
    }

    /// A stream that was pinned is gone.
    pub fn unpin(&mut self, address: IpAddr) {
        if let Some(at) = self.find(address) {
            self.entries[at].pins = self.entries[at].pins.saturating_sub(1);
        }
    }

    /// When [`poll`](Self::poll) is to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// One thing to do now. To be called until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.scanning.is_none() {
            if self.next.is_none_or(|next| next > now) {
                return None;
            }
            self.next = None;
        }
        let mut at = self.scanning.take().unwrap_or(0);
        while at < self.entries.len() {
            let action = self.step(at, now);
            self.schedule(self.entries[at].state, now);
            at += 1;
            if action.is_some() {
                self.scanning = Some(at);
                return action;
            }
        }
        None
    }

    /// Address, link-layer address and state of each entry.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Option<Mac>, &'static str)> + '_ {
        self.entries.iter().map(|e| (e.address, e.state.has_mac().then_some(e.mac), e.state.name()))
    }

    /// Entries in the cache.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn step(&mut self, at: usize, now: Instant) -> Option<Action> {
        let Entry { address, mac, state, .. } = self.entries[at];
        match state {
            State::Reachable { until } if until <= now => {
                self.enter(at, State::Stale);
                None
            }
            State::Delay { until } if until <= now => {
                self.enter(at, State::Probe { tries: 1, next: now + RETRANS });
                Some(Action::Solicit(address, Some(mac)))
            }
            State::Probe { tries: TRIES.., next } if next <= now => {
                self.ask(at, now);
                Some(Action::Solicit(address, None))
            }
            State::Probe { tries, next } if next <= now => {
                self.enter(at, State::Probe { tries: tries + 1, next: now + RETRANS });
                Some(Action::Solicit(address, Some(mac)))
            }
            State::Incomplete { tries: TRIES.., next } if next <= now => {
                self.enter(at, State::Failed { until: now + FAILED });
                Some(Action::Failed(address))
            }
            State::Incomplete { tries, next } if next <= now => {
                self.enter(at, State::Incomplete { tries: tries + 1, next: now + RETRANS });
                Some(Action::Solicit(address, None))
            }
            _ => None,
        }
    }

    fn begin(&mut self, address: IpAddr, now: Instant) -> Resolution {
        if self.incomplete >= self.capacity / 4 {
            return Resolution::Full;
        }
        match self.insert(address, false, now) {
            Some(at) => self.ask(at, now),
            None => Resolution::Full,
        }
    }

    fn ask(&mut self, at: usize, now: Instant) -> Resolution {
        self.enter(at, State::Incomplete { tries: 1, next: now + RETRANS });
        Resolution::Wait { solicit: true }
    }

    fn learn(&mut self, at: usize, mac: Mac, state: State) {
        self.entries[at].mac = mac;
        self.enter(at, state);
    }

    fn enter(&mut self, at: usize, state: State) {
        let was = core::mem::replace(&mut self.entries[at].state, state);
        self.incomplete -= usize::from(was.is_incomplete());
        self.incomplete += usize::from(state.is_incomplete());
        if let Some(at) = state.deadline() {
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    fn schedule(&mut self, state: State, now: Instant) {
        if let Some(at) = state.deadline() {
            let at = at.max(now + SCAN);
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let hash = self.keys.hash_one(address);
        let found = self.index.find(hash, |&at| self.entries[at as usize].address == address);
        found.map(|&at| at as usize)
    }

    /// A place for a new entry, which is stale until the caller changes it.
    fn insert(&mut self, address: IpAddr, stranger: bool, now: Instant) -> Option<usize> {
        let (mac, state) = ([0; 6], State::Stale);
        let entry = Entry { address, mac, state, used: now, stranger, pins: 0 };
        let crowded = stranger && self.strangers >= self.capacity / 2;
        let at = if self.entries.len() < self.capacity && !crowded {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.evict(stranger, now)?;
            self.strangers -= usize::from(self.entries[at].stranger);
            self.entries[at] = entry;
            at
        };
        self.strangers += usize::from(stranger);
        let hash = self.keys.hash_one(address);
        let (entries, keys) = (&self.entries, &self.keys);
        self.index
            .insert_unique(hash, at as u32, |&at| keys.hash_one(entries[at as usize].address));
        Some(at)
    }

    /// Removes an entry that was not used for a while from the index: of those examined a stranger, or
    /// else, without `strangers_only`, the oldest.
    fn evict(&mut self, strangers_only: bool, now: Instant) -> Option<usize> {
        let mut oldest: Option<usize> = None;
        for _ in 0..EVICT_LOOKS.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &self.entries[self.hand];
            let idle = match entry.state {
                State::Stale => true,
                State::Failed { until } => until <= now,
                _ => false,
            };
            let may_go = idle && entry.pins == 0 && (entry.stranger || !strangers_only);
            let rank = |e: &Entry| (!e.stranger, e.used);
            if may_go && oldest.is_none_or(|o| rank(entry) < rank(&self.entries[o])) {
                oldest = Some(self.hand);
            }
        }
        let at = oldest?;
        let hash = self.keys.hash_one(self.entries[at].address);
        if let Ok(found) = self.index.find_entry(hash, |&i| i as usize == at) {
            found.remove();
        }
        Some(at)
    }
}

impl State {
    fn has_mac(self) -> bool {
        !matches!(self, State::Incomplete { .. } | State::Failed { .. })
    }

    fn is_incomplete(self) -> bool {
        matches!(self, State::Incomplete { .. })
    }

    fn deadline(self) -> Option<Instant> {
        match self {
            State::Incomplete { next, .. } | State::Probe { next, .. } => Some(next),
            State::Reachable { until } | State::Delay { until } => Some(until),
            State::Stale | State::Failed { .. } => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            State::Incomplete { .. } => "incomplete",
            State::Reachable { .. } => "reachable",
            State::Stale => "stale",
            State::Delay { .. } => "delay",
            State::Probe { .. } => "probe",
            State::Failed { .. } => "failed",
        }
    }
}

/// SipHash-1-3 under one secret key: peers cannot choose keys that collide.
#[derive(Clone, Debug)]
pub(crate) struct KeyedState(pub(crate) SipHasher13);

impl BuildHasher for KeyedState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        self.0
    }
}

#[cfg(test)]
mod tests;
