//! What an attack has at hand.

use std::time::Duration;

use anyhow::{Context as _, Result};
use load::bed::Appliance;
use load::frames::{self, Plan, Profile};
use load::watch::{Flow, Position};

use crate::bed::{self, SOCKETS_V4};
use crate::station::{MAC, Station};

/// An attack's tools.
pub(crate) struct Field<'a> {
    /// Raw frames.
    pub(crate) station: &'a mut Station,
    /// What is attacked: its API tells STags, which a real attacker would have to guess.
    pub(crate) target: &'a Appliance,
    /// The good TCP stream, as the target's frames have it.
    pub(crate) flow: Flow,
    /// The same in each run.
    pub(crate) random: fastrand::Rng,
    /// What was found wrong.
    pub(crate) findings: Vec<String>,
    /// Hostile frames, or messages on the attacker's own streams.
    pub(crate) attempts: u64,
    /// Counts up with each stream or association that an attack opens: their ports differ.
    pub(crate) ports: u16,
}

impl Field<'_> {
    /// Something is wrong. A few of the same are enough.
    pub(crate) fn find(&mut self, what: impl Into<String>) {
        let what = what.into();
        if self.findings.len() < 8 && !self.findings.contains(&what) {
            self.findings.push(what);
        }
    }

    /// A hostile frame.
    pub(crate) fn hostile(&mut self, frame: &[u8]) -> Result<()> {
        self.attempts += 1;
        self.station.send(frame)
    }

    /// Where the good TCP stream is.
    pub(crate) fn victim(&mut self) -> Result<Position> {
        self.station.position(&self.flow).context("no frame of the good stream was seen")
    }

    /// Frames of a profile of `scripts/load` to `port`.
    pub(crate) fn flood(
        &mut self,
        profile: Profile,
        sources: &str,
        port: u16,
        count: usize,
    ) -> Result<()> {
        let v6 = sources.contains(':');
        let to = if v6 { bed::TARGET_V6.into() } else { bed::TARGET_V4.into() };
        let ends = self.station.ends(SOCKETS_V4.into(), to);
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
            self.hostile(&frame)?;
        }
        Ok(())
    }

    /// A port of the attacker that was not used before.
    pub(crate) fn next_port(&mut self) -> u16 {
        self.ports = self.ports.checked_add(1).unwrap_or(20_000);
        self.ports
    }

    /// Lets the target take what was sent.
    pub(crate) fn rest(&mut self, time: Duration) {
        // Nothing is wanted: all answers go.
        let _: Option<()> = self.station.wait(time, |_| None);
    }
}
