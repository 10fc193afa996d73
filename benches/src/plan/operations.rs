//! Plan of the group with operations of local programs.

use super::{Group, Plan, Task};
use crate::appliance::{Appliance, ApplianceKind, ProgramOperation};

impl Plan<'_> {
    /// Returns the measurements of operations that local programs post.
    pub(super) fn program_operations(&self) -> Group {
        let (name, title) = ("program-operations", "Operations of local programs");
        let many = if self.options.quick { 100 } else { 10_000 };
        let mut tasks = Vec::new();
        let mut add = |row: &str, times: f64, what| {
            let kind = ApplianceKind::Operation(what);
            let Task::Appliance(task) = self.appliance_task(name, row, kind) else { return };
            let seconds = times * task.seconds;
            tasks.push(Task::Appliance(Appliance { seconds, ..task }));
        };
        for (size, len) in [("64", 64), ("1MiB", 1 << 20)] {
            add(&format!("program-write-{size}"), 2.0, ProgramOperation::Write { len });
            add(&format!("program-send-{size}"), 2.0, ProgramOperation::Send { len });
        }
        add("program-echo-64", 2.0, ProgramOperation::Echo { len: 64 });
        for (row, pause_us) in [("program-event", 0), ("program-event-asleep", 1000)] {
            add(row, 1.0, ProgramOperation::Event { pause_us });
        }
        add("program-idle-pair", 1.0, ProgramOperation::IdlePair { pairs: many });
        for (size, len, depth) in [("64", 64, 1), ("16KiB", 16384, 2)] {
            let what = ProgramOperation::ManyPairs { pairs: many, len, depth };
            add(&format!("program-pairs-{size}"), 1.0, what);
        }
        Group { name, title, repetitions: self.paired_repetitions().min(5), tasks }
    }
}
