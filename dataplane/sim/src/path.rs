//! One direction of a simulated path: an MTU, a box that moves segment boundaries, and a faulty link.
//!
//! ```text
//!  push ──> larger than the MTU? ──> hidden damage? ──> middlebox ──> faulty link ──> checksum ──> pop
//! ```
//!
//! The sender fills the checksum in before the link, so a bit that the link flips is noticed at the
//! other end and the segment dropped. Hidden damage happens before the checksum is computed, as in a
//! host with bad memory: only MPA's CRC notices it.

use link::{FaultyLink, Probability, Rng};
use wire::Instant;

use crate::middlebox::{self, Middlebox};
use crate::segment::{self, Segment};

/// Octets of an IPv4 header, which count against the MTU.
pub const IP_HEADER: usize = 20;

/// How one direction treats segments.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Largest IP packet, in octets.
    pub mtu: usize,
    /// Segments of which one payload bit is flipped under a right checksum.
    pub hidden_damage: Probability,
    /// What moves segment boundaries.
    pub middlebox: middlebox::Config,
    /// What loses, delays and reorders.
    pub link: link::Config,
}

impl Config {
    /// A path with this MTU and link, and nothing else.
    pub fn new(mtu: usize, link: link::Config) -> Self {
        Config {
            mtu,
            hidden_damage: Probability::NEVER,
            middlebox: middlebox::Config::transparent(),
            link,
        }
    }
}

/// What happened to a segment at the entry of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// It is on its way, or lost on it.
    Taken,
    /// It is larger than the MTU and was dropped; a router would report this MTU.
    TooBig(usize),
}

/// One direction of a path.
#[derive(Debug)]
pub struct Path {
    mtu: usize,
    hidden_damage: Probability,
    rng: Rng,
    middlebox: Middlebox,
    link: FaultyLink<Vec<u8>>,
    ready: Vec<Segment>,
    counters: Counters,
}

/// What a path did besides its link and its middlebox, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Dropped because they were larger than the MTU.
    pub too_big: u64,
    /// Dropped at the far end because the checksum was wrong.
    pub bad_checksum: u64,
    /// Damaged under a right checksum.
    pub hidden_damage: u64,
    /// Not TCP at all; the stack under test made them.
    pub malformed: u64,
}

impl Path {
    /// An idle path.
    pub fn new(config: Config) -> Self {
        let seed = config.link.seed;
        Path {
            mtu: config.mtu,
            hidden_damage: config.hidden_damage,
            rng: Rng::new(seed ^ 0xDA3A6E),
            middlebox: Middlebox::new(config.middlebox, seed ^ 0xB0C5),
            link: FaultyLink::new(config.link),
            ready: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Sends one segment whose checksum need not be filled in.
    pub fn push(&mut self, now: Instant, octets: &[u8]) -> Entry {
        if octets.len() + IP_HEADER > self.mtu {
            self.counters.too_big += 1;
            return Entry::TooBig(self.mtu);
        }
        let Some(mut segment) = Segment::parse(octets) else {
            self.counters.malformed += 1;
            return Entry::Taken;
        };
        if !segment.payload.is_empty() && self.rng.chance(self.hidden_damage) {
            let at = self.rng.below(segment.payload.len() as u64) as usize;
            segment.payload[at] ^= 1 << self.rng.below(8);
            self.counters.hidden_damage += 1;
        }
        self.middlebox.push(now, segment, &mut self.ready);
        self.forward(now);
        Entry::Taken
    }

    /// The next segment that arrives at `now`. Call until `None`.
    pub fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.middlebox.expire(now, &mut self.ready);
        self.forward(now);
        loop {
            let octets = self.link.pop(now)?;
            if segment::verify_checksum(&octets) {
                return Some(octets);
            }
            self.counters.bad_checksum += 1;
        }
    }

    /// When [`pop`](Self::pop) is worth calling next.
    pub fn next_time(&self) -> Option<Instant> {
        match (self.middlebox.next_time(), self.link.next_time()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Changes the largest packet that passes from now on.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Changes the link's behaviour from now on.
    pub fn set_link(&mut self, config: link::Config) {
        self.link.set_config(config);
    }

    /// What the path did.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What the link did.
    pub fn link_counters(&self) -> &link::Counters {
        self.link.counters()
    }

    /// What the middlebox did.
    pub fn middlebox_counters(&self) -> middlebox::Counters {
        self.middlebox.counters()
    }

    fn forward(&mut self, now: Instant) {
        for segment in self.ready.drain(..) {
            self.link.push(now, segment.emit());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Flags;

    fn data(len: usize) -> Vec<u8> {
        Segment { flags: Flags::ACK, payload: vec![0; len], ..Segment::default() }.emit()
    }

    #[test]
    fn what_is_larger_than_the_mtu_does_not_pass() {
        let mut path = Path::new(Config::new(1500, link::Config::default()));
        assert_eq!(path.push(Instant::ZERO, &data(1460)), Entry::Taken);
        assert_eq!(path.push(Instant::ZERO, &data(1461)), Entry::TooBig(1500));
        path.set_mtu(1400);
        assert_eq!(path.push(Instant::ZERO, &data(1460)), Entry::TooBig(1400));
        assert!(path.pop(Instant::ZERO).is_some());
        assert!(path.pop(Instant::ZERO).is_none());
    }

    #[test]
    fn damage_on_the_link_is_noticed_and_hidden_damage_is_not() {
        let always = link::Config { corrupt: Probability::ALWAYS, ..link::Config::default() };
        let mut path = Path::new(Config::new(1500, always));
        path.push(Instant::ZERO, &data(100));
        assert!(path.pop(Instant::ZERO).is_none());
        assert_eq!(path.counters().bad_checksum, 1);

        let config = Config::new(1500, link::Config::default());
        let mut path = Path::new(Config { hidden_damage: Probability::ALWAYS, ..config });
        path.push(Instant::ZERO, &data(100));
        let got = Segment::parse(&path.pop(Instant::ZERO).expect("arrives")).expect("TCP");
        assert_eq!(got.payload.iter().filter(|&&o| o != 0).count(), 1);
    }
}
