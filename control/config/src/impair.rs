//! `[port.impair]`: impairments of a link inside one process.

use std::time::Duration;

use super::key_values;
use super::keys::{Key, keys, section};
use super::reader::Section;
use super::values::*;

const MAX_DELAY: Duration = Duration::from_secs(10);

section! {
    /// Impairments of the frames that a `ring` port receives.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Impairment in "port.impair" {
        /// Probability that a frame is lost; with `burst_loss`, between bursts.
        loss: f64 = probability_rule(), or 0.0;
        /// Probability that a frame is delayed by `reorder_delay`, so that later frames overtake it.
        reorder: f64 = probability_rule(), or 0.0;
        /// Additional delay of a reordered frame.
        reorder_delay: Duration = duration_rule(Duration::ZERO, MAX_DELAY), or Duration::from_micros(200);
        /// Delay of every frame.
        delay: Duration = duration_rule(Duration::ZERO, MAX_DELAY), or Duration::ZERO;
        /// Upper bound of an additional, uniformly distributed delay. Jitter alone does not reorder frames.
        jitter: Duration = duration_rule(Duration::ZERO, MAX_DELAY), or Duration::ZERO;
        /// Probability that a frame arrives twice.
        duplicate: f64 = probability_rule(), or 0.0;
        /// Probability that one bit of a frame is flipped.
        corrupt: f64 = probability_rule(), or 0.0;
        /// Rate of the link, bits per second; without it the link is not limited.
        rate: Option<u64> = rate_rule().optional(), or None;
        /// Maximum bytes that wait for the slow link, the frame in transmission included. Further frames are dropped.
        queue: u64 = size_rule(9022, 1 << 32), or 1 << 20;
        /// Seed of the random sequence. The same seed and the same frames give the same impairments.
        seed: u64 = seed_rule(), or 1;
    } by_hand {
        /// Loss in bursts (Gilbert-Elliott).
        burst_loss: Option<BurstLoss> = read_burst_loss, burst_keys, key_values::skip;
    }
}

/// Bad state (burst) of the Gilbert-Elliott model. In the good state, [`Impairment::loss`] is the probability of loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// Probability per frame that a burst begins.
    pub enter: f64,
    /// Probability per frame that the burst ends.
    pub leave: f64,
    /// Probability of loss of a frame inside a burst.
    pub loss: f64,
}

keys! { burst_keys in "port.impair.burst_loss", reload: false {
    /// Probability per frame that a burst begins.
    enter: f64 = probability_rule(), "";
    /// Probability per frame that a burst ends.
    leave: f64 = probability_rule(), "";
    /// Probability that a frame inside a burst is lost.
    loss: f64 = probability_rule(), "1";
}}

pub(super) fn read_impairment(mut section: Section<'_, '_>) -> Impairment {
    let impairment = Impairment::read(&mut section);
    if impairment.reorder > 0.0 && impairment.reorder_delay.is_zero() {
        section.report(
            "reorder_delay",
            "is 0, so nothing would be reordered: write such as \"200 us\"",
        );
    }
    section.finish();
    impairment
}

fn read_burst_loss(impair: &mut Section<'_, '_>) -> Option<BurstLoss> {
    if !impair.contains("burst_loss") {
        return None;
    }
    let mut section = impair.table("burst_loss");
    let burst = BurstLoss {
        enter: section.required("enter", "write such as enter = 0.001", enter()).unwrap_or(0.0),
        leave: section.required("leave", "write such as leave = 0.25", leave()).unwrap_or(1.0),
        loss: section.or_default("loss", 1.0, loss()),
    };
    if burst.leave == 0.0 {
        section.report("leave", "is 0, so the first burst would never end: write such as 0.25");
    }
    section.finish();
    Some(burst)
}

/// Returns the keys of `[port.impair]` and `[port.impair.burst_loss]`.
pub(super) fn burst_loss_keys() -> Vec<Key> {
    Impairment::keys()
}
