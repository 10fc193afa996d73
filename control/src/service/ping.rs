//! The client of librdmacm's rping. In a round the peer reads one buffer and writes the data back to another buffer.
//! The round is timed and the data compared.

use std::time::{Duration, Instant};

use super::rping::{Buffer, MESSAGE_LEN};
use super::{RemoteBuffer, Slot};

/// Maximum number of bytes per round: rping's limit.
pub const MAX_SIZE: u32 = 65_536;

/// Next step of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Fill the slot's first half with [`Ping::pattern`] and send this message.
    Begin(Vec<u8>),
    /// Send this message.
    Send(Vec<u8>),
    /// Compare the slot's second half with the pattern, then [`Ping::begin`] the next round.
    Compare,
    /// All rounds are done. Compare the data of the last round with the pattern.
    CompareLast,
    /// The peer does not behave like an rping server. Contains the reason, one sentence.
    Failed(String),
}

/// State of a run.
#[derive(Debug)]
pub struct Ping {
    slot: Slot,
    /// Bytes per round.
    size: u32,
    /// Number of rounds of the run.
    count: u32,
    /// Number of the current round, from 1; 0 before the first round.
    round: u32,
    /// Start of the current round. `None` between rounds.
    began_at: Option<Instant>,
    /// True once the server was sent the buffer to which it writes the data back.
    sink_sent: bool,
    /// Durations of the complete rounds.
    times: Vec<Duration>,
}

/// Round times of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Number of complete rounds.
    pub rounds: u32,
    /// Shortest round.
    pub min: Duration,
    /// Mean of all rounds.
    pub mean: Duration,
    /// Median round.
    pub median: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// Longest round.
    pub max: Duration,
}

impl Ping {
    /// Creates a run of `count` rounds of `size` bytes, both at least 1. The slot has at least 2 · `size` bytes.
    pub fn new(slot: Slot, size: u32, count: u32) -> Ping {
        let times = Vec::with_capacity(count as usize);
        Ping { slot, size, count, round: 0, began_at: None, sink_sent: false, times }
    }

    /// Returns the data of this round: characters that differ from the data of the preceding 57 rounds, and a final
    /// zero. rping's server copies back the bytes up to the first zero, so the data is a C string.
    pub fn pattern(&self) -> Vec<u8> {
        let letter = |at: u32| b'A' + (at.wrapping_mul(31).wrapping_add(self.round) % 58) as u8;
        (0..self.size).map(|at| if at + 1 < self.size { letter(at) } else { 0 }).collect()
    }

    /// Begins a round at `now`.
    pub fn begin(&mut self, now: Instant) -> Step {
        self.round += 1;
        self.began_at = Some(now);
        self.sink_sent = false;
        Step::Begin(self.buffer(0))
    }

    /// Handles a Send of the server.
    pub fn on_received(&mut self, bytes: &[u8], now: Instant) -> Step {
        if bytes.len() != MESSAGE_LEN {
            let bytes = bytes.len();
            return Step::Failed(format!("a Send of {bytes} bytes, {MESSAGE_LEN} are expected"));
        }
        let Some(began_at) = self.began_at else {
            return Step::Failed("a Send before the first round or between two rounds".into());
        };
        if !self.sink_sent {
            self.sink_sent = true;
            return Step::Send(self.buffer(self.sink_offset()));
        }
        self.began_at = None;
        self.times.push(now.duration_since(began_at));
        if self.round < self.count { Step::Compare } else { Step::CompareLast }
    }

    /// Returns the offset of the sink in the slot, bytes.
    pub fn sink_offset(&self) -> u64 {
        u64::from(self.size)
    }

    /// Returns the number of complete rounds.
    pub fn rounds(&self) -> u32 {
        self.times.len() as u32
    }

    /// Returns statistics of the complete rounds.
    pub fn times(&self) -> Times {
        let mut sorted = self.times.clone();
        sorted.sort_unstable();
        let rounds = sorted.len();
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Times::default();
        };
        let at = |part: usize| sorted[(rounds * part).div_ceil(100).max(1) - 1];
        let sum: Duration = sorted.iter().sum();
        let (median, p99) = (at(50), at(99));
        Times { rounds: rounds as u32, min, mean: sum / rounds as u32, median, p99, max }
    }

    fn buffer(&self, offset: u64) -> Vec<u8> {
        let at = RemoteBuffer { stag: self.slot.stag, to: self.slot.to + offset };
        Buffer { memory: at, len: self.size }.emit()
    }
}

#[cfg(test)]
mod tests {
    use ddp::Stag;

    use super::*;

    #[test]
    fn ping_rounds_are_timed() {
        let mut ping = Ping::new(Slot { stag: Stag(9), to: 100, len: 128 }, 64, 3);
        let start = Instant::now();
        for round in 1..=3 {
            let source = Buffer { memory: RemoteBuffer { stag: Stag(9), to: 100 }, len: 64 };
            assert_eq!(ping.begin(start), Step::Begin(source.emit()));
            let sink = Buffer { memory: RemoteBuffer { stag: Stag(9), to: 164 }, len: 64 };
            assert_eq!(ping.on_received(&[0; 16], start), Step::Send(sink.emit()));
            let last = if round < 3 { Step::Compare } else { Step::CompareLast };
            assert_eq!(ping.on_received(&[0; 16], start + Duration::from_micros(round)), last);
        }
        let micros = Duration::from_micros;
        let (min, mean, median) = (micros(1), micros(2), micros(2));
        let times = Times { rounds: 3, min, mean, median, p99: micros(3), max: micros(3) };
        assert_eq!(ping.times(), times);
    }

    #[test]
    fn non_rping_server_fails_the_ping() {
        let mut ping = Ping::new(Slot { stag: Stag(9), to: 0, len: 2 }, 1, 1);
        assert!(matches!(ping.on_received(&[0; 16], Instant::now()), Step::Failed(_)));
        ping.begin(Instant::now());
        assert!(matches!(ping.on_received(&[0; 15], Instant::now()), Step::Failed(_)));
    }

    #[test]
    fn each_ping_round_has_a_different_pattern() {
        let mut ping = Ping::new(Slot { stag: Stag(9), to: 0, len: 64 }, 32, 2);
        ping.begin(Instant::now());
        let first = ping.pattern();
        ping.begin(Instant::now());
        let second = ping.pattern();
        assert_eq!(first.iter().position(|&byte| byte == 0), Some(31), "a C string");
        assert!(first[..31].iter().zip(&second[..31]).all(|(a, b)| a != b));
    }
}
