//! What the flight recorder costs: the same load with it and without.

use super::{Group, Plan, Task};
use crate::cell::Measure;
use crate::rig::{Impairment, RigConfig};

impl Plan<'_> {
    pub(super) fn recorder(&self) -> Group {
        let (name, title) = ("recorder", "The flight recorder, on and off");
        let mut tasks = Vec::new();
        for (load, what, len, loss_ppm) in [
            ("messages-64", Measure::WriteRate, 64, 0),
            ("write-1m", Measure::Goodput, 1 << 20, 0),
            // Where there is something to record.
            ("write-1m-loss", Measure::Goodput, 1 << 20, 10_000),
        ] {
            for (state, recorder) in [("on", true), ("off", false)] {
                let delay_us = if loss_ppm > 0 { 50 } else { 0 };
                let impairment = Impairment { loss_ppm, delay_us, ..Impairment::default() };
                let rig = RigConfig { recorder, impairment, ..self.rig() };
                let cell = format!("recorder-{state}-{load}");
                let cell = self.cell(name, &cell, what, len, rig);
                tasks.push(Task::Cell(if loss_ppm > 0 { self.slow(cell) } else { cell }));
            }
        }
        // The bounds are 1 and 2 %: more repetitions than elsewhere, so that the interval is narrower.
        Group { name, title, repetitions: 3 * self.paired(), tasks }
    }
}
