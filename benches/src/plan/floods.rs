//! Plan of the flood measurements: a worker's time for each unsolicited frame, by kind of frame.

use super::{Group, Plan, Task};
use crate::floods::Flood;
use crate::floods::frames::Kind;

impl Plan<'_> {
    pub(super) fn floods(&self) -> Group {
        let (name, title) = ("floods", "Floods, nanoseconds of a worker for each frame");
        let seconds = self.seconds();
        let task = |kind: Kind| {
            let (group, name) = (name.to_owned(), format!("flood-{}", kind.name()));
            Task::Flood(Flood {
                group,
                name,
                kind,
                rig: kind.adapt_rig(self.default_rig()),
                seconds,
            })
        };
        let tasks = Kind::ALL.into_iter().map(task).collect();
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }
}
