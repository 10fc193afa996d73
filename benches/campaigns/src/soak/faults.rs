//! Faults of a soak, injected one at a time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use link::{BurstLoss, Config, Loss, Probability, Reorder};
use load::testbed::Appliance;

use super::appliances;
use crate::lossy_cable::LossyCable;
use crate::testbed::Environment;

/// Injector of random faults, counted by kind.
pub(super) struct FaultInjector<'a> {
    environment: Environment<'a>,
    lossy: &'a LossyCable,
    peer: Option<Appliance>,
    random: fastrand::Rng,
    counts: BTreeMap<&'static str, u64>,
}

impl<'a> FaultInjector<'a> {
    pub(super) fn new(
        place: Environment<'a>,
        lossy: &'a LossyCable,
        peer: Appliance,
        seed: u64,
    ) -> Self {
        let random = fastrand::Rng::with_seed(seed ^ 0x5a5a);
        FaultInjector {
            environment: place,
            lossy,
            peer: Some(peer),
            random,
            counts: BTreeMap::new(),
        }
    }

    /// Injects a random fault or repairs the cable, then waits for 0.2 to 2 s. `lives` is incremented when the peer is
    /// killed and when it has restarted.
    pub(super) fn inject_next(&mut self, target: &Appliance, lives: &AtomicU64) -> Result<()> {
        match self.random.u8(..8) {
            0 | 1 => self.restart_peer(lives)?,
            2 | 3 => self.reload_with_random_limit(target)?,
            4 => self.repair_cable("cable made good again"),
            _ => self.impair_cable()?,
        }
        std::thread::sleep(Duration::from_millis(self.random.u64(200..2000)));
        Ok(())
    }

    /// Ends all faults: the cable forwards every frame, and the target has its initial configuration.
    pub(super) fn clear_all(&mut self, target: &Appliance) {
        self.repair_cable("cable made good again");
        // The result is ignored: a failed reload shows in the final comparison of resources.
        let _ = self.load_config(target, 512);
    }

    /// Returns the number of faults of each kind, and the cable's counters.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = self.counts.clone();
        for direction in self.lossy.counters() {
            for (name, n) in [
                ("frames carried", direction.delivered),
                ("frames lost", direction.total_lost()),
                ("frames reordered", direction.reordered),
                ("frames repeated", direction.duplicated),
                ("frames damaged", direction.corrupted),
            ] {
                *counts.entry(name).or_default() += n;
            }
        }
        counts
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn restart_peer(&mut self, lives: &AtomicU64) -> Result<()> {
        self.count("peer killed and started");
        lives.fetch_add(1, Ordering::Relaxed);
        if let Some(peer) = self.peer.take() {
            peer.kill()?;
        }
        self.peer = Some(
            appliances::start_peer(&self.environment).context("the peer does not start again")?,
        );
        lives.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn reload_with_random_limit(&mut self, target: &Appliance) -> Result<()> {
        self.count("configuration reloaded");
        let streams = 256 + self.random.u32(..256);
        self.load_config(target, streams).context("reload")
    }

    fn load_config(&self, target: &Appliance, streams: u32) -> Result<()> {
        let file = self.environment.directory.join("target.toml");
        std::fs::write(file, appliances::target_config(&self.environment, streams))?;
        let _: serde_json::Value = target.client.post("/v1/reload", &serde_json::json!({}))?;
        Ok(())
    }

    fn repair_cable(&mut self, name: &'static str) {
        self.count(name);
        self.lossy.set_faults(Config::default());
    }

    fn impair_cable(&mut self) -> Result<()> {
        let percent = |percent: f64| Probability::from_percent(percent);
        let mut config = Config::seeded(self.random.u64(..));
        match self.random.u8(..5) {
            0 => {
                self.count("cable loses in bursts");
                config.loss = Loss::Burst(BurstLoss {
                    good_to_bad: percent(0.2)?,
                    bad_to_good: percent(20.0)?,
                    loss_in_good: Probability::NEVER,
                    loss_in_bad: percent(100.0)?,
                });
            }
            1 => {
                self.count("cable reorders and repeats");
                config.reorder =
                    Reorder { probability: percent(2.0)?, delay: Duration::from_millis(2) };
                config.duplicate = percent(1.0)?;
            }
            2 => {
                self.count("cable damages");
                config.corrupt = percent(1.0)?;
            }
            3 => {
                self.count("cable cut for a moment");
                self.lossy.set_faults(Config { loss: Loss::Random(percent(100.0)?), ..config });
                std::thread::sleep(Duration::from_millis(self.random.u64(20..300)));
                self.lossy.set_faults(Config::default());
                return Ok(());
            }
            _ => {
                self.count("cable loses at random");
                config.loss = Loss::Random(percent([0.1, 1.0, 3.0][self.random.usize(..3)])?);
                config.delay = Duration::from_micros(self.random.u64(..500));
            }
        }
        self.lossy.set_faults(config);
        Ok(())
    }
}
