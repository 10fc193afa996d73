//! One direction of a simulated path: an MTU, a middlebox, stretch ACKs, ESP and a faulty link.
//!
//! ```text
//!  push ─> larger than the MTU? ─> hidden damage? ─> middlebox ─> stretch ─> ESP ─> faulty link ─> ESP ─> checksum ─> pop
//! ```
//!
//! The MTU changes at configured times ([`Config::mtu_changes`]) or by [`Path::set_mtu`]. The two directions between
//! two hosts are independent paths.
//!
//! The checksum is computed before the link, so the receiver detects a bit that the link flips and drops the packet.
//! Hidden damage happens before the checksum is computed, as in a host with bad memory. Only the CRC of MPA detects
//! hidden damage. SCTP packets bypass hidden damage and the middlebox.

use core::time::Duration;
use std::collections::VecDeque;
use std::num::NonZeroU64;

use base::Instant;
use link::{FaultyLink, Loss, Probability, Rate, Rng};

use crate::esp::{self, Esp};
use crate::middlebox::{self, Middlebox};
use crate::packet::{Ecn, IP_HEADER, Packet, Protocol};
use crate::segment::{self, Segment};
use crate::stretch_ack::{self, Stretch};

/// Configuration of one direction of a path.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Transport protocol of the packets; [`crate::pair::Pair`] sets it.
    pub protocol: Protocol,
    /// Largest IP packet in bytes, IP header included.
    pub mtu: usize,
    /// Later MTUs in bytes, each with the time from which it applies, in order of time.
    pub mtu_changes: Vec<(Instant, usize)>,
    /// Probability that one payload bit of a TCP segment is flipped before the checksum is computed.
    pub hidden_damage: Probability,
    /// Middlebox that splits and merges TCP segments.
    pub middlebox: middlebox::Config,
    /// Stretch ACKs, if set: the path forwards only some of the pure acknowledgements.
    pub stretch: Option<stretch_ack::Config>,
    /// ESP, if set: packets are sealed before the link and opened after it.
    pub esp: Option<esp::Config>,
    /// Link that loses, damages, delays, duplicates and reorders packets.
    pub link: link::Config,
}

impl Config {
    /// Returns a configuration with this MTU and link, without hidden damage, middlebox, stretch ACKs and ESP.
    pub fn new(mtu: usize, link: link::Config) -> Self {
        Config {
            protocol: Protocol::Tcp,
            mtu,
            mtu_changes: Vec::new(),
            hidden_damage: Probability::NEVER,
            middlebox: middlebox::Config::transparent(),
            stretch: None,
            esp: None,
            link,
        }
    }

    /// Returns a configuration with this bit rate, a queue of 200,000 bytes and a delay of 2 ms. `percent` % of the
    /// packets are lost at random.
    ///
    /// # Panics
    /// The rate is zero, or `percent` is not between 0 and 100.
    pub fn slow(mtu: usize, seed: u64, bits_per_second: u64, percent: f64) -> Self {
        let bits_per_second = NonZeroU64::new(bits_per_second).expect("a rate");
        let rate = Some(Rate { bits_per_second, queue_bytes: 200_000 });
        let lost = Probability::from_percent(percent).expect("a percentage");
        let loss = if percent > 0.0 { Loss::Random(lost) } else { Loss::None };
        let delay = Duration::from_millis(2);
        Config::new(mtu, link::Config { loss, rate, delay, ..link::Config::seeded(seed) })
    }
}

/// Result of pushing a packet into the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushResult {
    /// The path accepted the packet, but may still lose it.
    Accepted,
    /// The packet was dropped because it exceeds this MTU in bytes. A router would report the MTU by ICMP.
    TooBig(usize),
}

/// State of one direction of a path.
#[derive(Debug)]
pub struct Path {
    protocol: Protocol,
    mtu: usize,
    mtu_changes: VecDeque<(Instant, usize)>,
    hidden_damage: Probability,
    rng: Rng,
    middlebox: Middlebox,
    stretch: Option<Stretch>,
    esp: Option<Esp>,
    link: FaultyLink<Packet>,
    forwarded: Vec<Segment>,
    counters: Counters,
}

/// Counters of a path, in packets. Link, middlebox and ESP have separate counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets dropped because they were larger than the MTU.
    pub too_big: u64,
    /// Packets dropped at the receiver because of a wrong checksum.
    pub bad_checksum: u64,
    /// Packets whose payload was damaged before the checksum was computed.
    pub hidden_damage: u64,
    /// Malformed TCP or SCTP packets sent by the stack under test, and packets that ESP could not seal.
    pub malformed: u64,
}

impl Path {
    /// Creates an idle path.
    ///
    /// # Panics
    /// The ESP configuration is invalid.
    pub fn new(config: Config) -> Self {
        let seed = config.link.seed;
        Path {
            protocol: config.protocol,
            mtu: config.mtu,
            mtu_changes: config.mtu_changes.into(),
            hidden_damage: config.hidden_damage,
            rng: Rng::new(seed ^ 0xDA3A6E),
            middlebox: Middlebox::new(config.middlebox, seed ^ 0xB0C5),
            stretch: config.stretch.map(Stretch::new),
            esp: config.esp.map(|esp| Esp::new(esp).expect("a valid ESP configuration")),
            link: FaultyLink::new(config.link),
            forwarded: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Sends one packet. The path computes the TCP checksum; an SCTP packet must have a correct checksum.
    pub fn push(&mut self, now: Instant, bytes: Vec<u8>, ecn: Ecn) -> PushResult {
        while let Some(&(at, mtu)) = self.mtu_changes.front()
            && at <= now
        {
            self.mtu = mtu;
            self.mtu_changes.pop_front();
        }
        // The sealing host reports the path MTU minus the overhead of ESP (RFC 4301 §8.2.1).
        let mtu = self.esp.as_ref().map_or(self.mtu, |esp| esp.config().inner_mtu(self.mtu));
        if bytes.len() + IP_HEADER > mtu {
            self.counters.too_big += 1;
            return PushResult::TooBig(mtu);
        }
        self.push_whole(now, bytes, ecn)
    }

    /// Sends one packet that IP may fragment, so the MTU does not apply. The path handles the fragments as one packet.
    pub fn push_in_fragments(&mut self, now: Instant, bytes: Vec<u8>, ecn: Ecn) -> PushResult {
        self.push_whole(now, bytes, ecn)
    }

    fn push_whole(&mut self, now: Instant, mut bytes: Vec<u8>, ecn: Ecn) -> PushResult {
        if self.protocol == Protocol::Sctp {
            if is_sound_sctp(&bytes) {
                self.put_on_link(now, Packet { bytes, ecn, flow: 0 });
            } else {
                self.counters.malformed += 1;
            }
            return PushResult::Accepted;
        }
        if self.middlebox.is_transparent() && self.hidden_damage.is_never() {
            if segment::is_well_formed(&bytes) {
                segment::fill_checksum(&mut bytes);
                self.put_on_link(now, Packet { bytes, ecn, flow: 0 });
            } else {
                self.counters.malformed += 1;
            }
            return PushResult::Accepted;
        }
        let Some(mut segment) = Segment::parse(&bytes) else {
            self.counters.malformed += 1;
            return PushResult::Accepted;
        };
        segment.ecn = ecn;
        if !segment.payload.is_empty() && self.rng.chance(self.hidden_damage) {
            let at = self.rng.next_below(segment.payload.len() as u64) as usize;
            segment.payload[at] ^= 1 << self.rng.next_below(8);
            self.counters.hidden_damage += 1;
        }
        self.middlebox.push(now, segment, &mut self.forwarded);
        self.forward(now);
        PushResult::Accepted
    }

    /// Returns the next packet that has arrived by `now`; `None` if there are no more.
    pub fn pop(&mut self, now: Instant) -> Option<Packet> {
        self.middlebox.expire(now, &mut self.forwarded);
        self.forward(now);
        if let Some(stretch) = &mut self.stretch
            && let Some(packet) = stretch.expire(now, self.protocol)
        {
            self.put_sealed(now, packet);
        }
        loop {
            let packet = self.link.pop(now)?;
            let packet = match &mut self.esp {
                Some(esp) => match esp.open(now, packet) {
                    Some(packet) => packet,
                    None => continue,
                },
                None => packet,
            };
            let sound = match self.protocol {
                Protocol::Tcp => segment::verify_checksum(&packet.bytes),
                Protocol::Sctp => is_sound_sctp(&packet.bytes),
            };
            if sound {
                return Some(packet);
            }
            self.counters.bad_checksum += 1;
        }
    }

    /// Returns the time at which to call [`pop`](Self::pop) next; `None` if the path is empty.
    pub fn next_time(&self) -> Option<Instant> {
        let stretch = self.stretch.as_ref().and_then(Stretch::next_time);
        let times = [self.middlebox.next_time(), stretch, self.link.next_delivery()];
        times.into_iter().flatten().min()
    }

    /// Sets the MTU: the largest IP packet in bytes. A later entry of [`Config::mtu_changes`] replaces it.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    /// Replaces the configuration of the link for packets sent from now on.
    pub fn set_link(&mut self, config: link::Config) {
        self.link.set_config(config);
    }

    /// Returns the counters of the path.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the counters of the link.
    pub fn link_counters(&self) -> &link::Counters {
        self.link.counters()
    }

    /// Returns the counters of ESP; zero without ESP.
    pub fn esp_counters(&self) -> esp::Counters {
        self.esp.as_ref().map(Esp::counters).unwrap_or_default()
    }

    /// Returns the counters of the middlebox.
    pub fn middlebox_counters(&self) -> middlebox::Counters {
        self.middlebox.counters()
    }

    fn forward(&mut self, now: Instant) {
        for segment in core::mem::take(&mut self.forwarded) {
            self.put_on_link(now, Packet { bytes: segment.emit(), ecn: segment.ecn, flow: 0 });
        }
    }

    fn put_on_link(&mut self, now: Instant, packet: Packet) {
        match &mut self.stretch {
            None => self.put_sealed(now, packet),
            Some(stretch) => {
                for packet in stretch.push(now, packet, self.protocol).into_iter().flatten() {
                    self.put_sealed(now, packet);
                }
            }
        }
    }

    fn put_sealed(&mut self, now: Instant, packet: Packet) {
        let protocol = match self.protocol {
            Protocol::Tcp => 6,
            Protocol::Sctp => 132,
        };
        let packet = match &mut self.esp {
            Some(esp) => esp.seal(now, packet, protocol),
            None => Some(packet),
        };
        match packet {
            Some(packet) => drop(self.link.push(now, packet)),
            None => self.counters.malformed += 1,
        }
    }
}

/// Returns true if `bytes` is an SCTP packet with a correct checksum (RFC 9260 §6.8).
fn is_sound_sctp(bytes: &[u8]) -> bool {
    wire::sctp::Packet::new(bytes).is_ok_and(|packet| packet.checksum_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Flags;

    fn data(len: usize) -> Vec<u8> {
        Segment { flags: Flags::ACK, payload: vec![0; len], ..Segment::default() }.emit()
    }

    #[test]
    fn packet_larger_than_mtu_is_dropped() {
        let mut path = Path::new(Config::new(1500, link::Config::default()));
        assert_eq!(path.push(Instant::ZERO, data(1460), Ecn::NotEct), PushResult::Accepted);
        assert_eq!(path.push(Instant::ZERO, data(1461), Ecn::NotEct), PushResult::TooBig(1500));
        path.set_mtu(1400);
        assert_eq!(path.push(Instant::ZERO, data(1460), Ecn::NotEct), PushResult::TooBig(1400));
        assert!(path.pop(Instant::ZERO).is_some());
        assert!(path.pop(Instant::ZERO).is_none());
    }

    #[test]
    fn mtu_changes_at_the_configured_time() {
        let at = Instant::from_millis;
        let mut config = Config::new(1500, link::Config::default());
        config.mtu_changes = vec![(at(10), 600), (at(20), 9000)];
        let mut path = Path::new(config);
        let mut entry = |ms, len| path.push(at(ms), data(len), Ecn::NotEct);
        assert_eq!(entry(9, 1460), PushResult::Accepted);
        assert_eq!(entry(10, 1460), PushResult::TooBig(600));
        assert_eq!(entry(19, 561), PushResult::TooBig(600));
        assert_eq!(entry(20, 8960), PushResult::Accepted);
    }

    #[test]
    fn long_queue_marks_packets_through_any_middlebox() {
        for split in [Probability::NEVER, Probability::ALWAYS] {
            let rate = link::Rate {
                bits_per_second: core::num::NonZeroU64::new(8_000_000).expect("not zero"),
                queue_bytes: 10_000,
            };
            let link = link::Config {
                rate: Some(rate),
                mark_bytes: Some(1000),
                ..link::Config::default()
            };
            let mut config = Config::new(1500, link);
            config.middlebox = middlebox::Config { split, ..middlebox::Config::transparent() };
            config.middlebox.min_piece = 400;
            let mut path = Path::new(config);
            for _ in 0..5 {
                path.push(Instant::ZERO, data(1000), Ecn::Ect);
            }
            let mut marks = Vec::new();
            while let Some(at) = path.next_time() {
                marks.push(path.pop(at).expect("due").ecn == Ecn::Ce);
            }
            assert!(!marks[0] && marks.ends_with(&[true; 3]), "{marks:?}");
        }
    }

    #[test]
    fn link_damage_is_detected_and_hidden_damage_is_not() {
        let always = link::Config { corrupt: Probability::ALWAYS, ..link::Config::default() };
        let mut path = Path::new(Config::new(1500, always));
        path.push(Instant::ZERO, data(100), Ecn::NotEct);
        assert!(path.pop(Instant::ZERO).is_none());
        assert_eq!(path.counters().bad_checksum, 1);

        let config = Config::new(1500, link::Config::default());
        let mut path = Path::new(Config { hidden_damage: Probability::ALWAYS, ..config });
        path.push(Instant::ZERO, data(100), Ecn::NotEct);
        let got = Segment::parse(&path.pop(Instant::ZERO).expect("arrives").bytes).expect("TCP");
        assert_eq!(got.payload.iter().filter(|&&o| o != 0).count(), 1);
    }
}
