//! The context of an attack: sender of raw frames, target, random numbers, and results.

use std::time::Duration;

use anyhow::{Context as _, Result};
use load::frames::{self, Plan, Profile};
use load::stream_watch::{Flow, StreamPosition};
use load::testbed::Appliance;

use crate::attacker_port::{AttackerPort, MAC};
use crate::testbed::{self, SOCKETS_V4};

/// Resources and results of one attack.
pub(crate) struct AttackContext<'a> {
    /// Attacker's port, which sends raw frames.
    pub(crate) station: &'a mut AttackerPort,
    /// The appliance under attack. Attacks read STags from its API; a real attacker would have to guess them.
    pub(crate) target: &'a Appliance,
    /// TCP flow of the good peer, from the target to the peer.
    pub(crate) flow: Flow,
    /// Random numbers with a fixed seed.
    pub(crate) random: fastrand::Rng,
    /// Violations found by the attack.
    pub(crate) findings: Vec<String>,
    /// Attempts so far: raw frames sent, or streams opened and messages sent if the attack opens streams.
    pub(crate) attempts: u64,
    /// Port of the attacker's newest stream or association. Each stream or association uses a new port.
    pub(crate) last_port: u16,
}

impl AttackContext<'_> {
    /// Records a violation. Duplicates, and all violations after the eighth, are discarded.
    pub(crate) fn report_violation(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.findings.len() < 8 && !self.findings.contains(&what) {
            self.findings.push(what);
        }
    }

    /// Sends a hostile frame and counts it as an attempt.
    pub(crate) fn send_hostile(&mut self, frame: &[u8]) -> Result<()> {
        self.attempts += 1;
        self.station.send_frame(frame)
    }

    /// Returns the sequence state of the good TCP stream, from the target's newest frame.
    ///
    /// # Errors
    /// No frame of the stream was seen.
    pub(crate) fn victim_position(&mut self) -> Result<StreamPosition> {
        self.station.position(&self.flow).context("no frame of the good stream was seen")
    }

    /// Sends `count` frames of a profile of `scripts/load` from addresses in `sources` to `port` of the target.
    pub(crate) fn flood(
        &mut self,
        profile: Profile,
        sources: &str,
        port: u16,
        count: usize,
    ) -> Result<()> {
        let v6 = sources.contains(':');
        let to = if v6 { testbed::TARGET_V6.into() } else { testbed::TARGET_V4.into() };
        let ends = self.station.frame_ends(SOCKETS_V4.into(), to);
        let plan = Plan {
            source_mac: MAC,
            destination_mac: ends.destination_mac,
            sources: sources.parse()?,
            one_source: sources.ends_with("/32") || sources.ends_with("/128"),
            destination: (to, port).into(),
            stream: None,
            capture: Vec::new(),
        };
        for frame in frames::frames(profile, &plan, count, self.random.u64(..))? {
            self.send_hostile(&frame)?;
        }
        Ok(())
    }

    /// Returns the attacker's next port: one above the last, or 20,000 after 65,535.
    pub(crate) fn next_port(&mut self) -> u16 {
        self.last_port = self.last_port.checked_add(1).unwrap_or(20_000);
        self.last_port
    }

    /// Waits for `time`, so that the target can process the sent frames. Discards the target's answers.
    pub(crate) fn settle(&mut self, time: Duration) {
        let _: Option<()> = self.station.wait_answer(time, |_| None);
    }
}
