//! Parameters of a link, as checked values.

use core::num::NonZeroU64;
use core::time::Duration;

use base::Instant;

/// Treatment of frames in one direction of a link. The default is a perfect link.
///
/// The two directions need different seeds, otherwise their faults coincide.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Seed of the random sequence.
    pub seed: u64,
    /// Loss model.
    pub loss: Loss,
    /// Delay of some frames, so that later frames overtake them.
    pub reorder: Reorder,
    /// Propagation time of every frame.
    pub delay: Duration,
    /// Upper bound of an additional, uniformly distributed delay. Jitter alone does not reorder frames.
    pub jitter: Duration,
    /// Rate and queue of a slow link; `None`: unlimited.
    pub rate: Option<Rate>,
    /// Queue length of the slow link, in bytes, above which arriving frames are marked if they support ECN
    /// ([`Frame::mark`](crate::Frame::mark)). Marks signal congestion before the queue is full. `None`: no marks.
    pub mark_bytes: Option<u64>,
    /// Probability that a frame arrives twice.
    pub duplicate: Probability,
    /// Probability that one bit of a frame is flipped.
    pub corrupt: Probability,
    /// Periods in which all frames are lost.
    pub black_holes: Vec<BlackHole>,
    /// Maximum number of frames inside the link at one time, at least 1. A further frame is dropped and counted.
    pub max_frames: usize,
}

impl Config {
    /// Default of [`max_frames`](Self::max_frames).
    pub const DEFAULT_MAX_FRAMES: usize = 65_536;

    /// Returns a perfect link whose random sequence is seeded with `seed`.
    pub fn seeded(seed: u64) -> Self {
        Config { seed, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            seed: 0,
            loss: Loss::None,
            reorder: Reorder::default(),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            mark_bytes: None,
            duplicate: Probability::NEVER,
            corrupt: Probability::NEVER,
            black_holes: Vec::new(),
            max_frames: Self::DEFAULT_MAX_FRAMES,
        }
    }
}

/// Loss model.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Each frame is lost with this probability.
    Random(Probability),
    /// Every n-th frame is lost, in an exactly repeating pattern. Frames in black holes do not count.
    EveryNth(NonZeroU64),
    /// Frames are lost in bursts.
    Burst(BurstLoss),
}

/// Gilbert-Elliott model: two states with a loss probability each. The state may change before each frame.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BurstLoss {
    /// Probability, per frame, of the transition from the good to the bad state.
    pub good_to_bad: Probability,
    /// Probability, per frame, of the transition from the bad to the good state. Its reciprocal is the mean length of a
    /// bad state in frames.
    pub bad_to_good: Probability,
    /// Loss in the good state, usually [`Probability::NEVER`].
    pub loss_in_good: Probability,
    /// Loss in the bad state, usually [`Probability::ALWAYS`].
    pub loss_in_bad: Probability,
}

/// Delay of some frames, so that later frames overtake them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reorder {
    /// Probability, per frame, that the frame is delayed.
    pub probability: Probability,
    /// Additional delay.
    pub delay: Duration,
}

/// A slow link and the queue before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Bits per second.
    pub bits_per_second: NonZeroU64,
    /// Maximum number of waiting bytes, including the frame in transmission. A frame that arrives at an idle link is
    /// always accepted. Any other frame that does not fit is dropped (tail drop).
    pub queue_bytes: u64,
}

impl Rate {
    /// Returns the transmission time of a frame of `len` bytes.
    pub fn time_for(&self, len: usize) -> Duration {
        let nanos = len as u128 * 8 * 1_000_000_000 / u128::from(self.bits_per_second.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the bytes that the link sends in `time`, rounded up.
    pub fn bytes_in(&self, time: Duration) -> u64 {
        let bytes =
            (time.as_nanos() * u128::from(self.bits_per_second.get())).div_ceil(8_000_000_000);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// A period in which all frames are lost, once or repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlackHole {
    /// Start of the (first) period.
    pub start: Instant,
    /// Length of a period.
    pub length: Duration,
    /// Time from one start to the next; `None`: a single period.
    pub interval: Option<Duration>,
}

impl BlackHole {
    /// Returns true if `now` is inside a period.
    pub fn contains(&self, now: Instant) -> bool {
        if now < self.start {
            return false;
        }
        let since = now.saturating_since(self.start).as_nanos();
        match self.interval.map(|every| every.as_nanos()) {
            Some(every) if every > 0 => since % every < self.length.as_nanos(),
            _ => since < self.length.as_nanos(),
        }
    }
}

/// A probability, 0 to 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Probability(f64);

impl Probability {
    /// Probability 0: the event never happens.
    pub const NEVER: Probability = Probability(0.0);
    /// Probability 1: the event always happens.
    pub const ALWAYS: Probability = Probability(1.0);

    /// Returns the probability `p`.
    ///
    /// # Errors
    /// `p` is not a number from 0 to 1.
    pub fn new(p: f64) -> Result<Self, ConfigError> {
        if (0.0..=1.0).contains(&p) { Ok(Probability(p)) } else { Err(ConfigError::Probability(p)) }
    }

    /// Returns the probability `percent` / 100.
    ///
    /// # Errors
    /// `percent` is not a number from 0 to 100.
    pub fn from_percent(percent: f64) -> Result<Self, ConfigError> {
        Self::new(percent / 100.0)
    }

    /// Returns the probability as a number from 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns true for probability 0.
    pub fn is_never(self) -> bool {
        self.0 <= 0.0
    }

    /// Returns true for probability 1.
    pub fn is_always(self) -> bool {
        self.0 >= 1.0
    }
}

/// Error in a parameter of a link.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The probability is outside 0 to 1, or not a number.
    #[error("a probability is a number from 0 to 1, not {0}")]
    Probability(f64),
}
