//! What a link does to frames, as checked values.

use core::num::NonZeroU64;
use core::time::Duration;

use base::Instant;

/// How one direction of a link treats frames. [`Default`] is a perfect link.
///
/// Give the two directions different seeds, or they lose frames in step.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Names the random sequence.
    pub seed: u64,
    /// Which frames are lost.
    pub loss: Loss,
    /// Which frames are made late.
    pub reorder: Reorder,
    /// Propagation time of every frame.
    pub delay: Duration,
    /// At most this much more delay, uniformly; jitter alone keeps the order.
    pub jitter: Duration,
    /// The slow link, if it is one.
    pub rate: Option<Rate>,
    /// A frame that finds more bytes than this waiting in front of the slow link is marked, if it can
    /// be ([`Frame::mark`](crate::Frame::mark)): congestion is signalled before the queue is full.
    pub mark_bytes: Option<u64>,
    /// Frames that arrive twice.
    pub duplicate: Probability,
    /// Frames of which one bit is flipped.
    pub corrupt: Probability,
    /// When nothing passes.
    pub black_holes: Vec<BlackHole>,
    /// Most frames inside at a time (1 and more); one more is dropped and counted.
    pub max_frames: usize,
}

impl Config {
    /// Default bound on frames inside.
    pub const DEFAULT_MAX_FRAMES: usize = 65_536;

    /// A perfect link whose random sequence is named by `seed`.
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

/// Which frames are lost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Loss {
    /// None.
    #[default]
    None,
    /// Each with this probability.
    Random(Probability),
    /// Every n-th frame offered, so that the pattern repeats exactly.
    EveryNth(NonZeroU64),
    /// In bursts.
    Burst(BurstLoss),
}

/// Gilbert-Elliott: two states with a loss probability each; the state may change before each frame.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BurstLoss {
    /// From the good state to the bad one, per frame.
    pub good_to_bad: Probability,
    /// From the bad state to the good one, per frame; its inverse is the mean burst in frames.
    pub bad_to_good: Probability,
    /// Loss in the good state, usually never.
    pub loss_in_good: Probability,
    /// Loss in the bad state, usually always.
    pub loss_in_bad: Probability,
}

/// Frames made late, so that those behind overtake them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reorder {
    /// Which frames.
    pub probability: Probability,
    /// How much later than otherwise they come out.
    pub delay: Duration,
}

/// A slow link with a queue in front of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Bits per second.
    pub bits_per_second: NonZeroU64,
    /// Bytes that may wait, the frame being sent included; a frame that finds the link idle always
    /// passes. What does not fit is dropped (tail drop).
    pub queue_bytes: u64,
}

impl Rate {
    /// How long the link sends a frame of `len` bytes.
    pub fn time_for(&self, len: usize) -> Duration {
        let nanos = len as u128 * 8 * 1_000_000_000 / u128::from(self.bits_per_second.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes that the link sends in `time`, rounded up.
    pub fn bytes_in(&self, time: Duration) -> u64 {
        let bytes =
            (time.as_nanos() * u128::from(self.bits_per_second.get())).div_ceil(8_000_000_000);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// A period in which nothing passes, once or repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlackHole {
    /// When it (first) starts.
    pub start: Instant,
    /// How long it lasts.
    pub length: Duration,
    /// From one start to the next; `None`: it happens once.
    pub every: Option<Duration>,
}

impl BlackHole {
    /// True when `now` is inside a period.
    pub fn covers(&self, now: Instant) -> bool {
        if now < self.start {
            return false;
        }
        let since = now.saturating_since(self.start).as_nanos();
        match self.every.map(|every| every.as_nanos()) {
            Some(every) if every > 0 => since % every < self.length.as_nanos(),
            _ => since < self.length.as_nanos(),
        }
    }
}

/// A probability, 0 to 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Probability(f64);

impl Probability {
    /// 0.
    pub const NEVER: Probability = Probability(0.0);
    /// 1.
    pub const ALWAYS: Probability = Probability(1.0);

    /// The probability `p`.
    ///
    /// # Errors
    /// When `p` is not a number from 0 to 1.
    pub fn new(p: f64) -> Result<Self, ConfigError> {
        if (0.0..=1.0).contains(&p) { Ok(Probability(p)) } else { Err(ConfigError::Probability(p)) }
    }

    /// `percent` / 100.
    ///
    /// # Errors
    /// When `percent` is not a number from 0 to 100.
    pub fn from_percent(percent: f64) -> Result<Self, ConfigError> {
        Self::new(percent / 100.0)
    }

    /// As a number from 0 to 1.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// True for 0.
    pub fn is_never(self) -> bool {
        self.0 <= 0.0
    }

    /// True for 1.
    pub fn is_always(self) -> bool {
        self.0 >= 1.0
    }
}

/// A value that no link can have.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Outside 0 to 1, or not a number.
    #[error("a probability is a number from 0 to 1, not {0}")]
    Probability(f64),
}
