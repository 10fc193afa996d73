//! Plan of the A/B cells: two configurations run in alternating time slices between the same two workers.

use super::{Group, Plan, Task, default_depth};
use crate::cell::{BSide, Cell, Measure};
use crate::rig_config::{Impairment, RigConfig};

/// Length of a bulk message, bytes.
const WRITE_LEN: u32 = 1 << 20;

impl Plan<'_> {
    /// Returns the cells that measure the cost of the flight recorder.
    pub(super) fn recorder(&self) -> Group {
        let (name, title) = ("recorder", "Flight recorder: on / off");
        let mut tasks = Vec::new();
        for (load, len, loss_ppm) in [
            ("messages-64", 64, 0),
            ("write-1m", WRITE_LEN, 0),
            // Losses give the recorder events to record.
            ("write-1m-loss", WRITE_LEN, 10_000),
        ] {
            let delay_us = if loss_ppm > 0 { 50 } else { 0 };
            let impairment = Impairment { loss_ppm, delay_us, ..Impairment::default() };
            let rig = RigConfig { impairment, ..self.default_rig() };
            let off = RigConfig { recorder: false, ..rig.clone() };
            let cell = self.cell(name, &format!("recorder-{load}"), Measure::Goodput, len, rig);
            tasks.push(self.ab_task(4.0, cell, Measure::Goodput, off));
        }
        // The targets of 1 and 2 % need narrower intervals and therefore more repetitions.
        Group { name, title, repetitions: 3 * self.paired_repetitions(), tasks }
    }

    /// Returns the A/B cells of markers, unstable sources, SCTP, Reads and Sends.
    pub(super) fn ab_slices(&self) -> Group {
        let (name, title) = ("turns", "A/B slices of 10 ms, 1 MiB messages: rate of A / rate of B");
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            let rig = || RigConfig { mtu, ..self.default_rig() };
            let rdmap = || RigConfig { rdmap: true, buffer: WRITE_LEN, ..rig() };
            let mut add = |row: &str, what, rig, b_side| {
                let cell = self.cell(name, &format!("turns-{row}-{mtu}"), what, WRITE_LEN, rig);
                tasks.push(self.ab_task(2.0, cell, Measure::Goodput, b_side));
            };
            add("markers", Measure::Goodput, RigConfig { markers: true, ..rig() }, rig());
            add("unstable", Measure::Goodput, RigConfig { unstable: true, ..rig() }, rig());
            add("sctp", Measure::Goodput, RigConfig { sctp: true, ..rig() }, rig());
            add("read", Measure::Read, rdmap(), rdmap());
            add("send", Measure::Send, rdmap(), rdmap());
        }
        Group { name, title, repetitions: self.paired_repetitions(), tasks }
    }

    /// Builds an A/B cell that alternates `cell` with `what` on `rig`. The duration is `times` that of `cell`.
    fn ab_task(&self, times: f64, cell: Cell, what: Measure, rig: RigConfig) -> Task {
        let b_side = Some(Box::new(BSide { what, depth: default_depth(what, cell.len), rig }));
        Task::Cell(Cell { b_side, seconds: times * cell.seconds, ..cell })
    }
}
