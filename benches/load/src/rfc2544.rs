//! Search for the highest rate without loss (RFC 2544 §26.1), for each frame size.
//!
//! An appliance is an end system and forwards nothing, so a frame counts as lost if the appliance's receive ring is
//! full. The mixer limits the generator to the rate of a trial.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use etherparse::PacketBuilder;
use serde::{Deserialize, Serialize};

use crate::account::{Account, Snapshot};
use crate::capture;
use crate::generator::{Generator, Job, Kind};
use crate::testbed::{
    FLOODED_NET_OCTET, ROUTER_MAC, TARGET_MAC, Testbed, mac_text, target_address,
};

/// Frame sizes, bytes with FCS (RFC 2544 §9.1).
pub const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Maximum number of trials for each size.
const MAX_TRIALS: u32 = 12;

/// Range of the search, frames per second.
const RATE_RANGE: (f64, f64) = (20e3, 20e6);

/// Loss allowed by the second search, as a share of the offered frames.
pub const ALLOWED_LOSS: f64 = 1e-3;

/// One trial of the search, at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Requested rate, frames per second.
    pub rate: f64,
    /// Offered frames.
    pub offered: u64,
    /// Frames that the appliance's receive ring accepted.
    pub seen: u64,
    /// Rate that the generator achieved, frames per second.
    pub offered_rate: f64,
}

impl Trial {
    fn loss_share(&self) -> f64 {
        1.0 - self.seen as f64 / (self.offered as f64).max(1.0)
    }

    /// Returns true if the generator achieved more than 95 % of the requested rate.
    fn reached_rate(&self) -> bool {
        self.offered_rate > 0.95 * self.rate
    }
}

/// Result for one frame size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SizeResult {
    /// Frame size, bytes with FCS.
    pub size: u32,
    /// Highest rate without loss, frames per second.
    pub no_loss: f64,
    /// Highest rate with a loss of at most [`ALLOWED_LOSS`], frames per second.
    pub some_loss: f64,
    /// True if the generator limited the rate, false if the appliance did.
    pub generator_bound: bool,
    /// The trials, in order.
    pub trials: Vec<Trial>,
}

/// Results of the search for all frame sizes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SearchResults {
    /// Generator program.
    pub generator: Kind,
    /// Seconds of each trial.
    pub seconds: f64,
    /// Description of the machine: names and values.
    pub machine: BTreeMap<String, String>,
    /// Result for each size.
    pub rates: Vec<SizeResult>,
}

/// Returns the next rate of a search that allows the loss `limit`: the geometric mean of the two bounds. `None` if the
/// bounds differ by at most 5 %.
fn next_rate(limit: f64, trials: &[Trial]) -> Option<f64> {
    let (low, high) = rate_bounds(limit, trials);
    (high / low > 1.05).then(|| (low * high).sqrt())
}

/// Returns the bounds of the search, in frames per second. The lower bound is the highest offered rate that passed, at
/// least the minimum of the range. The upper bound is the lowest offered rate of a trial that failed or whose requested
/// rate the generator did not reach.
fn rate_bounds(limit: f64, trials: &[Trial]) -> (f64, f64) {
    let (mut low, mut high) = RATE_RANGE;
    for trial in trials {
        if !trial.reached_rate() {
            // The generator cannot offer more.
            high = high.min(trial.offered_rate.max(low));
        }
        if trial.loss_share() > limit {
            high = high.min(trial.offered_rate);
        }
    }
    low = passed_rates(limit, high, trials).fold(low, f64::max);
    (low, high)
}

/// Returns the offered rates of the trials that passed, up to `high`.
fn passed_rates(limit: f64, high: f64, trials: &[Trial]) -> impl Iterator<Item = f64> {
    let good = trials.iter().filter(move |t| t.loss_share() <= limit && t.offered_rate <= high);
    good.map(|trial| trial.offered_rate)
}

/// Returns the highest rate that passed and is not above a rate that failed; 0 if none passed.
fn highest_passed_rate(limit: f64, trials: &[Trial]) -> f64 {
    let (_, high) = rate_bounds(limit, trials);
    passed_rates(limit, high, trials).fold(0.0, f64::max)
}

/// Searches for the highest rates of one frame size, in at most 12 trials of duration `time`.
pub fn search(
    bed: &Testbed,
    generator: &Generator,
    size: u32,
    time: Duration,
    directory: &Path,
) -> anyhow::Result<SizeResult> {
    let path = directory.join("generator.pcap");
    capture::write(&path, &[test_frame(size)?])?;
    let target = target_address(FLOODED_NET_OCTET);
    let commands = format!(
        "set 0 count 0\nset 0 rate 100\nset 0 size {size}\nset 0 proto udp\nset 0 dport 9\n\
         set 0 dst mac {}\nset 0 src mac {}\nset 0 dst ip {target}\nset 0 src ip 198.18.0.1/15",
        mac_text(TARGET_MAC),
        mac_text(ROUTER_MAC),
    );
    let pause = Duration::from_millis(700);
    let job = Job {
        socket: &bed.generator_socket,
        directory,
        capture: (generator.kind == Kind::Testpmd).then_some(path.as_path()),
        commands,
        time: (time + pause) * MAX_TRIALS + Duration::from_secs(5),
    };
    // Between trials the mixer forwards one frame per second at most.
    bed.mixer.set_rate_limit(Some(1));
    let running = generator.start(&job)?;
    std::thread::sleep(Duration::from_secs(4));
    let mut trials = Vec::new();
    for index in 0..MAX_TRIALS {
        let limit = if index < MAX_TRIALS * 2 / 3 { 0.0 } else { ALLOWED_LOSS };
        let rate = next_rate(limit, &trials).or_else(|| next_rate(ALLOWED_LOSS, &trials));
        let Some(rate) = rate else { break };
        trials.push(
            run_trial(bed, rate, time, pause).with_context(|| format!("frames of {size} bytes"))?,
        );
    }
    bed.mixer.set_rate_limit(None);
    drop(running);
    bed.mixer.settled_counts(Duration::from_secs(60))?;
    let some_loss = highest_passed_rate(ALLOWED_LOSS, &trials);
    let bound = trials.iter().any(|t| !t.reached_rate() && t.loss_share() <= ALLOWED_LOSS);
    Ok(SizeResult {
        size,
        no_loss: highest_passed_rate(0.0, &trials),
        some_loss,
        generator_bound: bound,
        trials,
    })
}

fn run_trial(bed: &Testbed, rate: f64, time: Duration, pause: Duration) -> anyhow::Result<Trial> {
    let from = Snapshot { mixer: bed.mixer.counts(), stats: bed.target.stats()? };
    bed.mixer.set_rate_limit(Some(rate as u64));
    let began = std::time::Instant::now();
    std::thread::sleep(time);
    let took = began.elapsed();
    bed.mixer.set_rate_limit(Some(1));
    std::thread::sleep(pause);
    let to = Snapshot { mixer: bed.mixer.counts(), stats: bed.target.stats()? };
    let account = Account::between(&from, &to);
    let offered = account.mixer.generator;
    anyhow::ensure!(offered > 0, "the generator sends nothing");
    anyhow::ensure!(
        account.lost_before_port == 0,
        "{} frames have no counted outcome",
        account.lost_before_port
    );
    let offered_rate = offered as f64 / took.as_secs_f64();
    Ok(Trial { rate, offered, seen: offered - account.mixer.generator_lost, offered_rate })
}

/// Returns a UDP datagram to the discard port, in a frame of `size` bytes with FCS.
fn test_frame(size: u32) -> anyhow::Result<Vec<u8>> {
    let IpAddr::V4(target) = target_address(FLOODED_NET_OCTET) else {
        anyhow::bail!("the flooded network has IPv4 addresses")
    };
    let source = Ipv4Addr::new(198, 18, 0, 1);
    let builder = PacketBuilder::ethernet2(ROUTER_MAC, TARGET_MAC)
        .ipv4(source.octets(), target.octets(), 64)
        .udp(9, 9);
    let payload = vec![0; (size as usize - 4).saturating_sub(builder.size(0))];
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &payload)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates the trials of an appliance that receives at most `most` frames per second, with a generator that
    /// sends at most `made`.
    fn run(most: f64, made: f64) -> Vec<Trial> {
        let mut trials = Vec::new();
        while let Some(rate) = next_rate(0.0, &trials) {
            let offered_rate = rate.min(made);
            let offered = offered_rate as u64 * 10;
            let seen = offered.min(most as u64 * 10);
            trials.push(Trial { rate, offered, seen, offered_rate });
            assert!(trials.len() <= 12, "{trials:?}");
        }
        trials
    }

    #[test]
    fn search_ends_within_5_percent_below_throughput() {
        for most in [30e3, 1.1e6, 7.7e6] {
            let found = highest_passed_rate(0.0, &run(most, 50e6));
            assert!(found <= most && found > most / 1.06, "{found} of {most}");
        }
        assert_eq!(highest_passed_rate(0.0, &run(1e3, 50e6)), 0.0);
    }

    #[test]
    fn a_slow_generator_ends_the_search() {
        let trials = run(30e6, 3e6);
        let found = highest_passed_rate(0.0, &trials);
        assert!((2.8e6..=3e6).contains(&found), "{found}");
        assert!(trials.iter().any(|trial| !trial.reached_rate()));
    }

    #[test]
    fn frame_has_requested_size() {
        for size in SIZES {
            assert_eq!(test_frame(size).unwrap().len(), size as usize - 4);
        }
    }
}
