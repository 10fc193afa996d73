//! A hierarchical timer wheel with at most one timer per token (a stream's slot). The cost of setting and clearing a
//! timer does not depend on the number of timers. A timer within the wheel's span moves at most once per level before
//! it fires.
//!
//! The wheel has six levels of 64 slots. A slot of level `n` spans `64^n` ticks of 65.536 µs. The whole wheel spans 52
//! days. A timer with a later deadline is placed at the end of the wheel and inserted again when that slot is due. The
//! level of a timer is the highest group of six bits in which its tick differs from the wheel's tick, `elapsed`. A
//! timer moves to lower levels as time passes:
//!
//! ```text
//!  tick of the deadline   ....|110101|000000|001110|
//!  elapsed                ....|110101|000000|000011|
//!                                              ^ highest group that differs: level 0, slot 14
//! ```
//!
//! A timer never fires before its deadline. The delay is at most one tick, plus the time until the next call of `pop`.

use base::Instant;

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Binary logarithm of a tick's length in nanoseconds: a tick takes 65.536 µs.
const TICK_BITS: u32 = 16;
/// Span of the wheel in ticks.
const SPAN: u64 = 1 << (SLOT_BITS * LEVELS as u32);
const NIL: u32 = u32::MAX;

/// The wheel. It stores 16 bytes for each token up to the largest one, so tokens should be small integers.
#[derive(Debug)]
pub struct TimerWheel {
    /// Time of the wheel in ticks. All slots before this tick are empty.
    elapsed: u64,
    nodes: Vec<Node>,
    levels: [Level; LEVELS],
    /// Head of the list of expired timers that [`pop`](Self::pop) has not returned yet.
    due: u32,
    armed: usize,
    /// Tick before which no timer expires and no slot must be emptied. 0 if not computed since the last
    /// [`set`](Self::set).
    no_expiry_before: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    prev: u32,
    next: u32,
    tick: Tick,
    place: Place,
}

const _: () = assert!(size_of::<Node>() == 16);

/// A tick in six bytes, least significant 16 bits first. The tick of every `Instant` fits.
#[derive(Clone, Copy, Debug)]
struct Tick([u16; 3]);

const _: () = assert!(u64::MAX >> TICK_BITS <= Tick::LAST);

impl Tick {
    /// Largest tick that fits.
    const LAST: u64 = (1 << 48) - 1;

    fn new(tick: u64) -> Tick {
        Tick([tick as u16, (tick >> 16) as u16, (tick >> 32) as u16])
    }

    fn get(self) -> u64 {
        let Tick([low, middle, high]) = self;
        u64::from(high) << 32 | u64::from(middle) << 16 | u64::from(low)
    }
}

/// List in which a timer is linked: a slot of a level, the list of expired timers (`DUE`), or none (`UNARMED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    level: u8,
    slot: u8,
}

impl Place {
    const UNARMED: Place = Place { level: u8::MAX, slot: 0 };
    const DUE: Place = Place { level: u8::MAX, slot: 1 };

    fn is_slot(self) -> bool {
        self.level != u8::MAX
    }
}

/// A slot with at least one timer.
#[derive(Clone, Copy, Debug)]
struct OccupiedSlot {
    begin: u64,
    level: usize,
    index: usize,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    occupied: u64,
    heads: [u32; SLOTS],
}

impl TimerWheel {
    /// Creates an empty wheel at time `now`.
    pub fn new(now: Instant) -> Self {
        TimerWheel {
            elapsed: now.as_nanos() >> TICK_BITS,
            nodes: Vec::new(),
            levels: [Level { occupied: 0, heads: [NIL; SLOTS] }; LEVELS],
            due: NIL,
            armed: 0,
            no_expiry_before: 0,
        }
    }

    /// Sets the timer of `token`, and replaces an earlier timer of `token`.
    pub fn set(&mut self, token: u32, deadline: Instant) {
        self.clear(token);
        let index = token as usize;
        if index >= self.nodes.len() {
            self.make_room(index);
        }
        self.nodes[index].tick = Tick::new(tick_after(deadline));
        self.armed += 1;
        self.no_expiry_before = 0;
        self.insert(token);
    }

    /// Allocates nodes for tokens up to `index`, and reserves capacity for an eighth more.
    #[cold]
    fn make_room(&mut self, index: usize) {
        let empty = Node { prev: NIL, next: NIL, tick: Tick::new(0), place: Place::UNARMED };
        if index >= self.nodes.capacity() {
            self.nodes.reserve_exact(index + 1 - self.nodes.len() + index / 8);
        }
        self.nodes.resize(index + 1, empty);
    }

    /// Clears the timer of `token`, if it is set.
    pub fn clear(&mut self, token: u32) {
        if self.nodes.get(token as usize).is_some_and(|n| n.place != Place::UNARMED) {
            self.unlink(token);
            self.armed -= 1;
        }
    }

    /// Returns the deadline of `token`, rounded up to a tick; `None` if no timer is set.
    pub fn deadline(&self, token: u32) -> Option<Instant> {
        let node = self.nodes.get(token as usize)?;
        (node.place != Place::UNARMED).then(|| Instant::from_nanos(node.tick.get() << TICK_BITS))
    }

    /// Removes a timer that has expired by `now` and returns its token. The caller repeats the call until it returns
    /// `None`.
    #[inline]
    pub fn pop(&mut self, now: Instant) -> Option<u32> {
        let now = now.as_nanos() >> TICK_BITS;
        // Fast path: no timer expires before this tick.
        if now < self.no_expiry_before { None } else { self.pop_due(now) }
    }

    fn pop_due(&mut self, now: u64) -> Option<u32> {
        while self.due == NIL {
            let Some(OccupiedSlot { begin, level, index }) = self.next_slot() else {
                self.no_expiry_before = u64::MAX;
                return None;
            };
            if begin > now {
                self.elapsed = self.elapsed.max(now);
                self.no_expiry_before = begin;
                return None;
            }
            self.elapsed = self.elapsed.max(begin);
            self.empty_slot(level, index);
        }
        let token = self.due;
        self.unlink(token);
        self.armed -= 1;
        Some(token)
    }

    /// Returns the time until which the caller may sleep, because no timer fires earlier. Returns `None` if no timer is
    /// set. The time is at the latest the first deadline, rounded up to a tick. The time is earlier if a timer must
    /// first move to a lower level.
    pub fn next_expiry(&self) -> Option<Instant> {
        if self.due != NIL {
            return Some(Instant::from_nanos(self.elapsed << TICK_BITS));
        }
        self.next_slot().map(|slot| Instant::from_nanos(slot.begin << TICK_BITS))
    }

    /// Returns the number of timers set.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Returns true if no timer is set.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Returns the occupied slot that begins first.
    fn next_slot(&self) -> Option<OccupiedSlot> {
        // Timers of a lower level always precede timers of a higher level. Compare the bits of the higher level's
        // group: in the tick of a lower-level timer, they equal those of `elapsed`. In the tick of a higher-level
        // timer, they are larger.
        for (level, l) in self.levels.iter().enumerate() {
            if l.occupied == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let here = (self.elapsed >> shift) as u32 & (SLOTS as u32 - 1);
            let ahead = l.occupied.rotate_right(here).trailing_zeros();
            let index = (here + ahead) as usize % SLOTS;
            let begin = ((self.elapsed >> shift) + u64::from(ahead)) << shift;
            // At the top level, the slot of `elapsed` may contain timers of the next revolution of the wheel.
            let wrapped = level == LEVELS - 1 && ahead == 0 && self.slot_is_later(level, index);
            let begin = if wrapped { begin + SPAN } else { begin };
            return Some(OccupiedSlot { begin, level, index });
        }
        None
    }

    fn slot_is_later(&self, level: usize, slot: usize) -> bool {
        let head = self.levels[level].heads[slot];
        let shift = SLOT_BITS * level as u32;
        self.nodes[head as usize].tick.get() >> shift != self.elapsed >> shift
    }

    /// Empties a slot that has begun. Its timers become due or move to lower levels.
    fn empty_slot(&mut self, level: usize, slot: usize) {
        let mut token = core::mem::replace(&mut self.levels[level].heads[slot], NIL);
        self.levels[level].occupied &= !(1 << slot);
        while token != NIL {
            let next = self.nodes[token as usize].next;
            self.insert(token);
            token = next;
        }
    }

    fn insert(&mut self, token: u32) {
        let tick = self.nodes[token as usize].tick.get();
        if tick <= self.elapsed {
            self.link_node(token, Place::DUE);
            return;
        }
        let tick = tick.min(self.elapsed + SPAN - SPAN / SLOTS as u64);
        let differs = (tick ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = ((63 - differs.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (tick >> (SLOT_BITS * level)) as usize % SLOTS;
        self.link_node(token, Place { level: level as u8, slot: slot as u8 });
    }

    fn head(&mut self, place: Place) -> &mut u32 {
        match self.levels.get_mut(usize::from(place.level)) {
            Some(level) => &mut level.heads[usize::from(place.slot)],
            None => &mut self.due,
        }
    }

    fn link_node(&mut self, token: u32, place: Place) {
        let next = core::mem::replace(self.head(place), token);
        if next != NIL {
            self.nodes[next as usize].prev = token;
        }
        let node = &mut self.nodes[token as usize];
        (node.prev, node.next, node.place) = (NIL, next, place);
        if place.is_slot() {
            self.levels[usize::from(place.level)].occupied |= 1 << place.slot;
        }
    }

    fn unlink(&mut self, token: u32) {
        let Node { prev, next, place, .. } = self.nodes[token as usize];
        if next != NIL {
            self.nodes[next as usize].prev = prev;
        }
        if prev != NIL {
            self.nodes[prev as usize].next = next;
        } else {
            *self.head(place) = next;
            if next == NIL && place.is_slot() {
                self.levels[usize::from(place.level)].occupied &= !(1 << place.slot);
            }
        }
        self.nodes[token as usize].place = Place::UNARMED;
    }
}

/// Returns the first tick that begins at or after `at`, at most [`Tick::LAST`] (after 584 years).
fn tick_after(at: Instant) -> u64 {
    at.as_nanos().div_ceil(1 << TICK_BITS).min(Tick::LAST)
}

#[cfg(test)]
mod tests;
