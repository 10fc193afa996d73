//! A/B cells: two loads in alternating slices between the same two workers.

use super::{Group, Plan, Task, depth};
use crate::cell::{Beside, Cell, Measure};
use crate::setup::{Impairment, RigConfig};

/// Bytes of a long message.
const LONG: u32 = 1 << 20;

impl Plan<'_> {
    /// Returns the cells that measure the cost of the flight recorder.
    pub(super) fn recorder(&self) -> Group {
        let (name, title) = ("recorder", "The flight recorder, on of off");
        let mut tasks = Vec::new();
        for (load, len, loss_ppm) in [
            ("messages-64", 64, 0),
            ("write-1m", LONG, 0),
            // Loss causes events to record.
            ("write-1m-loss", LONG, 10_000),
        ] {
            let delay_us = if loss_ppm > 0 { 50 } else { 0 };
            let impairment = Impairment { loss_ppm, delay_us, ..Impairment::default() };
            let rig = RigConfig { impairment, ..self.rig() };
            let off = RigConfig { recorder: false, ..rig.clone() };
            let cell = self.cell(name, &format!("recorder-{load}"), Measure::Goodput, len, rig);
            tasks.push(self.turns(4.0, cell, Measure::Goodput, off));
        }
        // The bounds of 1 and 2 % need narrower intervals, and so more repetitions.
        Group { name, title, repetitions: 3 * self.paired(), tasks }
    }

    /// Returns the A/B cells of verbs, markers, sources and lower layers.
    pub(super) fn in_turns(&self) -> Group {
        let (name, title) = ("turns", "1 MiB in turns of 10 ms: the rate of the one, of the other");
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            let rig = || RigConfig { mtu, ..self.rig() };
            let rdmap = || RigConfig { rdmap: true, buffer: LONG, ..rig() };
            let mut add = |row: &str, what, rig, beside| {
                let cell = self.cell(name, &format!("turns-{row}-{mtu}"), what, LONG, rig);
                tasks.push(self.turns(2.0, cell, Measure::Goodput, beside));
            };
            add("markers", Measure::Goodput, RigConfig { markers: true, ..rig() }, rig());
            add("unstable", Measure::Goodput, RigConfig { unstable: true, ..rig() }, rig());
            add("sctp", Measure::Goodput, RigConfig { sctp: true, ..rig() }, rig());
            add("read", Measure::Read, rdmap(), rdmap());
            add("send", Measure::Send, rdmap(), rdmap());
        }
        Group { name, title, repetitions: self.paired(), tasks }
    }

    /// Builds an A/B cell that alternates `cell` with `what` on `rig`, `times` as long as other
    /// cells.
    fn turns(&self, times: f64, cell: Cell, what: Measure, rig: RigConfig) -> Task {
        let beside = Some(Box::new(Beside { what, depth: depth(what, cell.len), rig }));
        Task::Cell(Cell { beside, seconds: times * cell.seconds, ..cell })
    }
}
