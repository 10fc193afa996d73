//! What the flight recorder costs: the same load with it and without, in turns.

use super::{Group, Plan, Task};
use crate::cell::{Cell, Measure};
use crate::rig::{Impairment, RigConfig};

impl Plan<'_> {
    pub(super) fn recorder(&self) -> Group {
        let (name, title) = ("recorder", "The flight recorder, on of off");
        let mut tasks = Vec::new();
        for (load, len, loss_ppm) in [
            ("messages-64", 64, 0),
            ("write-1m", 1 << 20, 0),
            // Where there is something to record.
            ("write-1m-loss", 1 << 20, 10_000),
        ] {
            let delay_us = if loss_ppm > 0 { 50 } else { 0 };
            let impairment = Impairment { loss_ppm, delay_us, ..Impairment::default() };
            let rig = RigConfig { impairment, ..self.rig() };
            let row = format!("recorder-{load}");
            let cell = self.cell(name, &row, Measure::Recorder, len, rig);
            // A hundred pairs of turns.
            tasks.push(Task::Cell(Cell { seconds: 4.0 * cell.seconds, ..cell }));
        }
        // The bounds are 1 and 2 %: more repetitions than elsewhere, so that the interval is narrower.
        Group { name, title, repetitions: 3 * self.paired(), tasks }
    }
}
