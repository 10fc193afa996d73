//! A middlebox that splits and merges segments, as segmentation offload, proxies and firewalls do.
//!
//! TCP semantics are preserved: sequence numbers, acknowledgements and bytes are unchanged, only segment boundaries
//! move. The middlebox holds at most one segment per direction, for at most [`Config::hold`].

use core::time::Duration;

use base::Instant;
use link::{Probability, Rng};

use crate::segment::{Flags, Segment};

/// Probabilities and limits of splitting and merging. Segments without payload pass unchanged.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Probability that a segment is split into two or more pieces.
    pub split: Probability,
    /// Smallest piece, bytes, at least 1.
    pub min_piece: usize,
    /// Probability that a segment is held back to be merged with the next segment.
    pub merge: Probability,
    /// Largest payload of a merged segment, bytes.
    pub max_payload: usize,
    /// Maximum time for which a segment is held back.
    pub hold: Duration,
}

impl Config {
    /// Returns the configuration of a middlebox that changes nothing.
    pub fn transparent() -> Self {
        Config {
            split: Probability::NEVER,
            min_piece: 1,
            merge: Probability::NEVER,
            max_payload: 0,
            hold: Duration::ZERO,
        }
    }
}

/// State of a middlebox for one direction.
#[derive(Debug)]
pub struct Middlebox {
    config: Config,
    rng: Rng,
    /// Held segment and the expiry of its hold time.
    held_segment: Option<(Instant, Segment)>,
    counters: Counters,
}

/// Counters of a middlebox, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Segments split into pieces.
    pub split: u64,
    /// Segments merged with the previous segment.
    pub merged: u64,
}

impl Middlebox {
    /// Creates one direction of a middlebox. `seed` determines its random decisions.
    pub fn new(config: Config, seed: u64) -> Self {
        Middlebox { config, rng: Rng::new(seed), held_segment: None, counters: Counters::default() }
    }

    /// Returns true if the middlebox changes nothing.
    pub fn is_transparent(&self) -> bool {
        self.config.split.is_never() && self.config.merge.is_never()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the time at which to call [`expire`](Self::expire); `None` if no segment is held.
    pub fn next_time(&self) -> Option<Instant> {
        self.held_segment.as_ref().map(|(until, _)| *until)
    }

    /// Appends the held segment to `out` if its hold time has expired.
    pub fn expire(&mut self, now: Instant, out: &mut Vec<Segment>) {
        if self.next_time().is_some_and(|until| until <= now)
            && let Some((_, segment)) = self.held_segment.take()
        {
            out.push(segment);
        }
    }

    /// Processes a segment, and appends the segments that leave the middlebox now to `out`.
    pub fn push(&mut self, now: Instant, segment: Segment, out: &mut Vec<Segment>) {
        if let Some((_, mut held)) = self.held_segment.take() {
            if is_mergeable(&held, &segment, self.config.max_payload) {
                self.counters.merged += 1;
                held.payload.extend(segment.payload);
                held.flags = held.flags.with(segment.flags);
                held.ack = segment.ack;
                held.window = segment.window;
                held.options = segment.options;
                // RFC 3168 §5.3: the merged segment is CE-marked if one of its parts was.
                held.ecn = held.ecn.max(segment.ecn);
                self.forward(held, out);
                return;
            }
            out.push(held);
        }
        if !segment.payload.is_empty() && self.rng.chance(self.config.merge) {
            self.held_segment = Some((now + self.config.hold, segment));
            return;
        }
        self.forward(segment, out);
    }

    fn forward(&mut self, segment: Segment, out: &mut Vec<Segment>) {
        let min = self.config.min_piece.max(1);
        if segment.payload.len() < 2 * min || !self.rng.chance(self.config.split) {
            out.push(segment);
            return;
        }
        self.counters.split += 1;
        let mut rest = segment;
        while rest.payload.len() >= 2 * min {
            let cut = min + self.rng.next_below((rest.payload.len() - 2 * min + 1) as u64) as usize;
            let tail = rest.payload.split_off(cut);
            let mut head = rest.clone();
            head.flags = head.flags.without(Flags::FIN).without(Flags::PSH);
            rest.seq = rest.seq.wrapping_add(cut as u32);
            rest.payload = tail;
            out.push(head);
        }
        out.push(rest);
    }
}

fn is_mergeable(first: &Segment, second: &Segment, max_payload: usize) -> bool {
    const PLAIN: Flags = Flags(Flags::ACK.0 | Flags::PSH.0);
    second.seq == first.seq.wrapping_add(first.payload.len() as u32)
        && first.payload.len() + second.payload.len() <= max_payload
        && first.flags.without(PLAIN) == Flags::default()
        && second.flags.without(PLAIN.with(Flags::FIN)) == Flags::default()
        && !second.payload.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Ecn;

    fn data(seq: u32, len: usize) -> Segment {
        let payload = (0..len).map(|i| (seq as usize + i) as u8).collect();
        Segment { seq, flags: Flags::ACK, payload, ..Segment::default() }
    }

    fn config(split: f64, merge: f64) -> Config {
        let p = |p| Probability::new(p).expect("a probability");
        Config {
            split: p(split),
            min_piece: 1,
            merge: p(merge),
            max_payload: 3000,
            hold: Duration::from_micros(10),
        }
    }

    #[test]
    fn split_and_merge_preserve_the_byte_stream() {
        let mut whole_run = Counters::default();
        for seed in 0..50 {
            let mut middlebox = Middlebox::new(config(0.5, 0.5), seed);
            let mut out = Vec::new();
            for i in 0..20 {
                middlebox.push(Instant::ZERO, data(i * 1000, 1000), &mut out);
            }
            middlebox.expire(Instant::from_micros(10), &mut out);
            let mut next = 0;
            for segment in out {
                assert_eq!(segment.seq, next);
                assert!(segment.payload.len() <= 3000);
                for (i, byte) in segment.payload.iter().enumerate() {
                    assert_eq!(*byte, (next as usize + i) as u8);
                }
                next += segment.payload.len() as u32;
            }
            assert_eq!(next, 20_000);
            whole_run.split += middlebox.counters().split;
            whole_run.merged += middlebox.counters().merged;
        }
        assert!(whole_run.split > 100 && whole_run.merged > 100, "{whole_run:?}");
    }

    #[test]
    fn held_segment_is_forwarded_on_expiry() {
        let mut middlebox = Middlebox::new(config(0.0, 1.0), 0);
        let mut out = Vec::new();
        middlebox.push(Instant::ZERO, data(0, 10), &mut out);
        assert!(out.is_empty());
        middlebox.expire(Instant::from_micros(9), &mut out);
        assert!(out.is_empty());
        assert_eq!(middlebox.next_time(), Some(Instant::from_micros(10)));
        middlebox.expire(Instant::from_micros(10), &mut out);
        assert_eq!(out, [data(0, 10)]);
    }

    // RFC 3168 §5.3: a CE mark is kept on the merged segment and on all pieces of a split segment.
    #[test]
    fn ce_mark_survives_merge_and_split() {
        let mut middlebox = Middlebox::new(config(0.0, 1.0), 0);
        let mut out = Vec::new();
        middlebox.push(Instant::ZERO, Segment { ecn: Ecn::Ce, ..data(0, 10) }, &mut out);
        middlebox.push(Instant::ZERO, Segment { ecn: Ecn::Ect, ..data(10, 10) }, &mut out);
        assert_eq!(
            out.iter().map(|s| (s.payload.len(), s.ecn)).collect::<Vec<_>>(),
            [(20, Ecn::Ce)]
        );

        let mut middlebox = Middlebox::new(config(1.0, 0.0), 0);
        out.clear();
        middlebox.push(Instant::ZERO, Segment { ecn: Ecn::Ce, ..data(0, 100) }, &mut out);
        assert!(out.len() > 1 && out.iter().all(|s| s.ecn == Ecn::Ce));
    }

    #[test]
    fn split_keeps_fin_last_and_syn_is_never_merged() {
        let mut middlebox = Middlebox::new(config(1.0, 0.0), 0);
        let mut out = Vec::new();
        let mut last = data(0, 100);
        last.flags = last.flags.with(Flags::FIN);
        middlebox.push(Instant::ZERO, last, &mut out);
        assert!(out.len() > 1);
        let fins = out.iter().filter(|s| s.flags.has(Flags::FIN)).count();
        assert_eq!(fins, 1);
        assert!(out.last().is_some_and(|s| s.flags.has(Flags::FIN)));
        let syn = Segment { flags: Flags::SYN, payload: vec![1], ..Segment::default() };
        assert!(!is_mergeable(&syn, &data(1, 5), 3000));
    }
}
