//! The neighbour cache of one interface, for both ARP and neighbour discovery, with the states of RFC 4861
//! §7.3.2.
//!
//! ```text
//!            resolve                 answer               30 s            use            5 s
//!  (none) -----------> incomplete ----------> reachable -------> stale -------> delay ------> probe
//!     ^                   | 3 x 1 s              ^                 ^                            |  |
//!     |                   v                      +-- answer -------|----------------------------+  |
//!     +------- 1 s --- failed  <--- 3 x 1 s -- incomplete <--------|------ 3 x 1 s unanswered -----+
//! ```
//!
//! Not drawn: a solicitation of *our* address creates a stale entry. A solicitation or unsolicited announcement makes
//! an incomplete or failed entry stale. An answer from the known link-layer address makes any entry reachable, and an
//! answer from any address makes a failed entry reachable. Acknowledged segments of a stream make a delayed or probed
//! entry reachable. Probing also begins when a packet announces another link-layer address, when a stream's segments
//! are probably lost, or when the link may have changed.
//!
//! Every host on the link can forge announcements and answers. Announcements and answers create no entry and change no
//! known link-layer address. Instead the known address is probed at once, and the neighbour is resolved again if there
//! is no answer. So a forged ARP reply cannot displace a host that answers. An IP address that moves to another host is
//! unreachable for a few seconds.
//!
//! A failed entry stays until it is evicted. After one second it is treated like an absent entry: the address can be
//! resolved again. The cache does not queue packets: streams are polled for segments only once the next hop is known.
//! The cache performs no I/O: [`NeighbourCache::resolve`] and [`NeighbourCache::poll`] return the solicitations to
//! send.
//!
//! The number of entries is bounded. While a quarter of the capacity is used by incomplete entries, no new address is
//! resolved. At most half of the capacity is used by *unsolicited* entries: entries that a neighbour's solicitation
//! of our address has created, and that no packet has used since. A new unsolicited entry evicts only unsolicited
//! entries, and the neighbours of streams are pinned. So a flood does not evict neighbours in use.

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
/// DELAY_FIRST_PROBE_TIME of RFC 4861 §10.
const DELAY: Duration = Duration::from_secs(5);
/// RETRANS_TIMER of RFC 4861 §10.
const RETRANS: Duration = Duration::from_secs(1);
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT of RFC 4861 §10.
const MAX_SOLICITS: u8 = 3;
/// Time after a failed resolution in which the address is not resolved again.
const FAILURE_HOLD: Duration = Duration::from_secs(1);
/// Minimum time from a scan of all entries to the next scan that it schedules, so that scans are rare. A change of
/// state may schedule an earlier scan.
const SCAN: Duration = Duration::from_millis(10);
/// Maximum number of entries examined to select the entry to evict.
const MAX_EVICT_SCAN: usize = 16;

/// The neighbour cache of one interface.
#[derive(Debug)]
pub struct NeighbourCache {
    entries: Vec<Entry>,
    index: HashTable<u32>,
    keys: KeyedState,
    capacity: usize,
    incomplete: usize,
    unsolicited: usize,
    clock_hand: usize,
    /// Time of the next scan: the earliest deadline of an entry, or up to [`SCAN`] later.
    next_deadline: Option<Instant>,
    /// Index at which `poll` continues a scan that it interrupted to return an action.
    scan_index: Option<usize>,
}

#[derive(Debug)]
struct Entry {
    address: IpAddr,
    mac: Mac,
    state: State,
    last_used: Instant,
    /// True if the neighbour's solicitation created the entry, and no packet was sent to the neighbour since.
    unsolicited: bool,
    /// Number of streams that use this neighbour. An entry with pins is not evicted.
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

/// Result of [`NeighbourCache::resolve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Resolved: packets are sent to this link-layer address.
    Known(Mac),
    /// Resolution is in progress.
    Wait {
        /// True if the caller must send the first solicitation now, by broadcast or multicast.
        solicit: bool,
    },
    /// Resolution failed less than a second ago.
    Failed,
    /// No entry is free or can be evicted, or too many resolutions are in progress.
    Full,
}

/// A copy of a cache entry, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Link-layer address, if known.
    pub mac: Option<Mac>,
    /// Name of the state (RFC 4861 §7.3.2), or "failed".
    pub state: &'static str,
}

/// A neighbour's claim to an IP address, parsed from an ARP packet, a neighbour solicitation or a neighbour
/// advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The neighbour's IP address. With [`ClaimKind::Conflict`], our own address that the other host uses.
    pub address: IpAddr,
    /// The neighbour's link-layer address, never a group address.
    pub mac: Mac,
    /// Kind of the packet.
    pub kind: ClaimKind,
}

/// Kind of the packet that carried a [`Claim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimKind {
    /// An ARP reply to our request, or a neighbour advertisement with the Solicited flag.
    Answer {
        /// The Override flag (RFC 4861 §4.4); true for ARP.
        overrides: bool,
    },
    /// A solicitation of one of our addresses.
    Solicitation,
    /// Unsolicited: gratuitous ARP, or an unsolicited advertisement.
    Announcement,
    /// Another host announces one of our addresses. The cache is not changed.
    Conflict,
}

/// Effect of a [`Claim`] on the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The address was unresolved and is now known: waiting streams can send.
    Resolved,
    /// The claim was accepted. No stream was waiting for the address.
    Noted,
    /// The claim was discarded: the neighbour has no entry, or is being probed at another link-layer address.
    Ignored,
    /// The neighbour needs an entry, and none is free or can be evicted.
    Full,
}

/// Result of [`NeighbourCache::poll`], for the caller to carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a solicitation of the address, to the last known link-layer address; if `None`, by broadcast or multicast.
    Solicit(IpAddr, Option<Mac>),
    /// Resolution of the address has failed.
    Failed(IpAddr),
}

impl NeighbourCache {
    /// Creates an empty cache of at most `capacity` entries, at least 4. `key` is the secret key of the hash.
    pub fn new(capacity: usize, key: [u8; 16]) -> Self {
        NeighbourCache {
            entries: Vec::new(),
            index: HashTable::new(),
            keys: KeyedState(SipHasher13::new_with_key(&key)),
            capacity: capacity.max(4),
            incomplete: 0,
            unsolicited: 0,
            clock_hand: 0,
            next_deadline: None,
            scan_index: None,
        }
    }

    /// Returns the link-layer address of `address`, which is on this link, or starts its resolution. The call counts as
    /// use of the entry.
    pub fn resolve(&mut self, address: IpAddr, now: Instant) -> Resolution {
        let Some(at) = self.find(address) else { return self.start_resolution(address, now) };
        let entry = &mut self.entries[at];
        entry.last_used = now;
        self.unsolicited -= usize::from(core::mem::take(&mut entry.unsolicited));
        match entry.state {
            State::Reachable { .. } | State::Delay { .. } | State::Probe { .. } => {
                Resolution::Known(entry.mac)
            }
            State::Stale => {
                // RFC 4861 §7.3.3: the first packet to a stale neighbour starts the delay before a probe.
                let mac = entry.mac;
                self.set_state(at, State::Delay { until: now + DELAY });
                Resolution::Known(mac)
            }
            State::Incomplete { .. } => Resolution::Wait { solicit: false },
            State::Failed { until } if now < until => Resolution::Failed,
            State::Failed { .. } => self.solicit(at, now),
        }
    }

    /// Returns the link-layer address, if known. The call does not count as use of the entry.
    pub fn get(&self, address: IpAddr) -> Option<Mac> {
        let entry = &self.entries[self.find(address)?];
        entry.state.has_mac().then_some(entry.mac)
    }

    /// Processes a neighbour's claim. The caller has checked that the address can be a neighbour's and is not ours.
    pub fn handle_claim(&mut self, claim: &Claim, now: Instant) -> ClaimOutcome {
        let Some(at) = self.find(claim.address) else {
            return match claim.kind {
                // RFC 826, RFC 4861 §7.2.3: an entry is created for a host that solicits our address.
                ClaimKind::Solicitation => match self.insert(claim.address, true, now) {
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
            // RFC 4861 §7.2.5: only an answer proves reachability.
            State::Incomplete { .. } | State::Failed { .. } => {
                self.learn(at, claim.mac, if answered { reachable } else { State::Stale });
                ClaimOutcome::Resolved
            }
            _ if self.entries[at].mac == claim.mac => {
                if answered {
                    self.set_state(at, reachable);
                }
                ClaimOutcome::Noted
            }
            // The known link-layer address is being probed. Answers from other hosts are ignored until the probes have
            // failed, although RFC 4861 §7.2.5 allows them. Otherwise a flood of forged answers could take over the
            // address.
            State::Probe { .. } => ClaimOutcome::Ignored,
            State::Reachable { .. } | State::Stale | State::Delay { .. } => {
                self.set_state(at, State::Probe { tries: 0, next: now });
                ClaimOutcome::Noted
            }
        }
    }

    /// Confirms that the neighbour is reachable, because a stream's segments were acknowledged (RFC 4861 §7.3.1).
    pub fn confirm(&mut self, address: IpAddr, now: Instant) {
        if let Some(at) = self.find(address)
            && matches!(self.entries[at].state, State::Delay { .. } | State::Probe { .. })
        {
            self.set_state(at, State::Reachable { until: now + REACHABLE });
        }
    }

    /// Probes the neighbour if its entry is reachable or delayed. Called when a stream's segments are probably lost.
    pub fn suspect(&mut self, address: IpAddr, now: Instant) {
        if let Some(at) = self.find(address) {
            self.suspect_at(at, now);
        }
    }

    /// Probes reachable and delayed neighbours, and pinned stale neighbours. Called when the link may have changed.
    pub fn suspect_all(&mut self, now: Instant) {
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if entry.state == State::Stale && entry.pins > 0 {
                self.set_state(at, State::Probe { tries: 0, next: now });
            } else {
                self.suspect_at(at, now);
            }
        }
    }

    fn suspect_at(&mut self, at: usize, now: Instant) {
        if matches!(self.entries[at].state, State::Reachable { .. } | State::Delay { .. }) {
            self.set_state(at, State::Probe { tries: 0, next: now });
        }
    }

    /// Pins a neighbour's entry until [`unpin`](Self::unpin). Each stream pins its neighbour once. Returns false if the
    /// neighbour has no entry.
    pub fn pin(&mut self, address: IpAddr) -> bool {
        let at = self.find(address);
        if let Some(at) = at {
            self.entries[at].pins += 1;
        }
        at.is_some()
    }

    /// Releases one pin, when a stream ends.
    pub fn unpin(&mut self, address: IpAddr) {
        if let Some(at) = self.find(address) {
            self.entries[at].pins = self.entries[at].pins.saturating_sub(1);
        }
    }

    /// Returns the due time of the next [`poll`](Self::poll); `None` if nothing is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Updates the entries whose deadline has passed, until an entry requires an action. Returns the action. The caller
    /// repeats the call until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.scan_index.is_none() {
            if self.next_deadline.is_none_or(|next| next > now) {
                return None;
            }
            self.next_deadline = None;
        }
        let mut at = self.scan_index.take().unwrap_or(0);
        while at < self.entries.len() {
            let action = self.step(at, now);
            self.schedule(self.entries[at].state, now);
            at += 1;
            if action.is_some() {
                self.scan_index = Some(at);
                return action;
            }
        }
        None
    }

    /// Returns all entries.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.entries.iter().map(|e| Neighbour {
            address: e.address,
            mac: e.state.has_mac().then_some(e.mac),
            state: e.state.name(),
        })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn step(&mut self, at: usize, now: Instant) -> Option<Action> {
        let Entry { address, mac, state, .. } = self.entries[at];
        match state {
            State::Reachable { until } if until <= now => {
                self.set_state(at, State::Stale);
                None
            }
            State::Delay { until } if until <= now => {
                self.set_state(at, State::Probe { tries: 1, next: now + RETRANS });
                Some(Action::Solicit(address, Some(mac)))
            }
            State::Probe { tries: MAX_SOLICITS.., next } if next <= now => {
                self.solicit(at, now);
                Some(Action::Solicit(address, None))
            }
            State::Probe { tries, next } if next <= now => {
                self.set_state(at, State::Probe { tries: tries + 1, next: now + RETRANS });
                Some(Action::Solicit(address, Some(mac)))
            }
            State::Incomplete { tries: MAX_SOLICITS.., next } if next <= now => {
                self.set_state(at, State::Failed { until: now + FAILURE_HOLD });
                Some(Action::Failed(address))
            }
            State::Incomplete { tries, next } if next <= now => {
                self.set_state(at, State::Incomplete { tries: tries + 1, next: now + RETRANS });
                Some(Action::Solicit(address, None))
            }
            _ => None,
        }
    }

    fn start_resolution(&mut self, address: IpAddr, now: Instant) -> Resolution {
        if self.incomplete >= self.capacity / 4 {
            return Resolution::Full;
        }
        match self.insert(address, false, now) {
            Some(at) => self.solicit(at, now),
            None => Resolution::Full,
        }
    }

    fn solicit(&mut self, at: usize, now: Instant) -> Resolution {
        self.set_state(at, State::Incomplete { tries: 1, next: now + RETRANS });
        Resolution::Wait { solicit: true }
    }

    fn learn(&mut self, at: usize, mac: Mac, state: State) {
        self.entries[at].mac = mac;
        self.set_state(at, state);
    }

    fn set_state(&mut self, at: usize, state: State) {
        let previous = core::mem::replace(&mut self.entries[at].state, state);
        self.incomplete -= usize::from(previous.is_incomplete());
        self.incomplete += usize::from(state.is_incomplete());
        if let Some(at) = state.deadline() {
            self.next_deadline = Some(self.next_deadline.map_or(at, |next| next.min(at)));
        }
    }

    fn schedule(&mut self, state: State, now: Instant) {
        if let Some(at) = state.deadline() {
            let at = at.max(now + SCAN);
            self.next_deadline = Some(self.next_deadline.map_or(at, |next| next.min(at)));
        }
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        let hash = self.keys.hash_one(address);
        let found = self.index.find(hash, |&at| self.entries[at as usize].address == address);
        found.map(|&at| at as usize)
    }

    /// Inserts an entry for an address that has none. Its state is stale until the caller changes it. Returns its
    /// index, or `None` if no entry is free or can be evicted.
    fn insert(&mut self, address: IpAddr, unsolicited: bool, now: Instant) -> Option<usize> {
        let (mac, state) = ([0; 6], State::Stale);
        let entry = Entry { address, mac, state, last_used: now, unsolicited, pins: 0 };
        let crowded = unsolicited && self.unsolicited >= self.capacity / 2;
        let at = if self.entries.len() < self.capacity && !crowded {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.evict(unsolicited, now)?;
            self.unsolicited -= usize::from(self.entries[at].unsolicited);
            self.entries[at] = entry;
            at
        };
        self.unsolicited += usize::from(unsolicited);
        let hash = self.keys.hash_one(address);
        let (entries, keys) = (&self.entries, &self.keys);
        self.index
            .insert_unique(hash, at as u32, |&at| keys.hash_one(entries[at as usize].address));
        Some(at)
    }

    /// Removes one unpinned entry from the index and returns its position. The entry is stale, or its resolution failed
    /// at least a second ago; with `unsolicited_only` it is also unsolicited. At most [`MAX_EVICT_SCAN`] entries are
    /// examined. Of these, unsolicited entries are preferred, then the least recently used.
    fn evict(&mut self, unsolicited_only: bool, now: Instant) -> Option<usize> {
        let mut oldest: Option<usize> = None;
        for _ in 0..MAX_EVICT_SCAN.min(self.entries.len()) {
            self.clock_hand = (self.clock_hand + 1) % self.entries.len();
            let entry = &self.entries[self.clock_hand];
            let idle = match entry.state {
                State::Stale => true,
                State::Failed { until } => until <= now,
                _ => false,
            };
            let is_evictable = idle && entry.pins == 0 && (entry.unsolicited || !unsolicited_only);
            let rank = |e: &Entry| (!e.unsolicited, e.last_used);
            if is_evictable && oldest.is_none_or(|o| rank(entry) < rank(&self.entries[o])) {
                oldest = Some(self.clock_hand);
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

/// SipHash-1-3 under a secret key, so that peers cannot choose addresses whose hashes collide.
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
