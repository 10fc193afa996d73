//! Plan of the groups with small messages: rate by depth, round trips, latency under load, idle workers, whole
//! appliances. The depth is the number of messages in flight.

use super::{Group, Plan, Task};
use crate::appliance::ApplianceKind;
use crate::cell::{Cell, Measure};
use crate::peers::PeerKind;
use crate::rig_config::RigConfig;
use crate::stalls::Stalls;

impl Plan<'_> {
    /// Returns the cells of 64-byte messages with 1 to 64 in flight, as from a program that waits for completions.
    pub(super) fn depths(&self) -> Group {
        let (name, title) =
            ("depths", "64-byte writes and Sends by depth, from post to completion");
        let depths: &[u32] = if self.options.quick { &[1, 64] } else { &[1, 2, 4, 16, 64] };
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for (verb, what, rdmap) in
                [("write", Measure::WriteRate, false), ("send", Measure::SendRate, true)]
            {
                for &depth in depths {
                    let rig = RigConfig { mtu, rdmap, ..self.default_rig() };
                    let cell = format!("{verb}-64-{mtu}-depth-{depth}");
                    let cell = self.cell(name, &cell, what, 64, rig);
                    tasks.push(Task::Cell(Cell { depth, ..cell }));
                }
            }
        }
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn messages(&self) -> Group {
        let (name, title) = ("messages", "Message rate: writes of 64 bytes");
        let cell = |cell: &str, rig| Task::Cell(self.cell(name, cell, Measure::WriteRate, 64, rig));
        let tasks = vec![
            cell("messages-64", self.default_rig()),
            cell("messages-64-trusted", RigConfig { trusted: true, ..self.default_rig() }),
            cell("messages-64-9000", RigConfig { mtu: 9000, ..self.default_rig() }),
        ];
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn latency(&self) -> Group {
        let (name, title) = ("latency", "Round trips of 64 bytes, one at a time");
        let cell = |cell: &str, what, rig| Task::Cell(self.cell(name, cell, what, 64, rig));
        let rdmap = || RigConfig { rdmap: true, ..self.default_rig() };
        let write = self.cell(name, "write-64", Measure::WriteRate, 64, self.default_rig());
        let write = Task::Cell(Cell { depth: 1, ..write });
        let tasks = vec![
            self.peer_task(name, "sockets-latency", PeerKind::SocketLatency),
            cell("echo", Measure::Echo, self.default_rig()),
            self.stalls(name, "stalls-echo"),
            self.peer_task(name, "ucx-put-lat", PeerKind::UcxLatency { tcp: true }),
            self.peer_task(name, "ucx-put-lat-auto", PeerKind::UcxLatency { tcp: false }),
            cell("write-notify", Measure::Notify, self.default_rig()),
            write,
            cell("rdmap-send-echo", Measure::Echo, rdmap()),
            cell("rdmap-read", Measure::ReadTrip, rdmap()),
        ];
        Group { name, title, repetitions: self.paired_repetitions(), tasks }
    }

    fn stalls(&self, group: &str, name: &str) -> Task {
        let (name, group, seconds) = (name.into(), group.into(), self.seconds());
        Task::Stalls(Stalls { name, group, cores: self.options.cores, seconds })
    }

    fn loaded_task(&self, group: &str, name: &str, percent: u32, rig: RigConfig) -> Task {
        let cell = self.cell(group, name, Measure::Loaded, 64, rig);
        // 256 messages in flight are divided among the streams, with at least two per stream and at most the default
        // depth.
        let depth = (256 / cell.rig.streams).clamp(2, cell.depth);
        Task::Cell(Cell { depth, load_percent: percent, ..cell })
    }

    pub(super) fn loaded_latency(&self) -> Group {
        let (name, title) = ("load", "Echo of 64 bytes at a rate, open loop");
        let streams: &[u32] = if self.options.quick { &[1] } else { &[1, 100, 1000] };
        let mut tasks = Vec::new();
        for &streams in streams {
            for percent in [10, 50, 90] {
                let rig = RigConfig { streams, ..self.default_rig() };
                tasks.push(self.loaded_task(
                    name,
                    &format!("loaded-{streams}-{percent}"),
                    percent,
                    rig,
                ));
            }
        }
        tasks.push(self.stalls(name, "stalls-load"));
        Group { name, title, repetitions: self.paired_repetitions().min(5), tasks }
    }

    /// Returns the cells that compare a responder that polls with a responder that sleeps when idle. The initiator
    /// always polls.
    pub(super) fn adaptive(&self) -> Group {
        let (name, title) = ("adaptive", "A worker that sleeps when idle, beside one that polls");
        let mut tasks = Vec::new();
        for percent in [1, 10, 50] {
            for (idle, adaptive) in [("polling", false), ("adaptive", true)] {
                let rig = RigConfig { adaptive: [false, adaptive], ..self.default_rig() };
                tasks.push(self.loaded_task(name, &format!("{idle}-{percent}"), percent, rig));
            }
        }
        Group { name, title, repetitions: self.paired_repetitions().min(5), tasks }
    }

    /// Returns the measurements of whole appliances, including control threads, API and shared memory.
    pub(super) fn appliance(&self) -> Group {
        let (name, title) = ("appliance", "Whole appliances: start, local programs");
        let mut tasks = vec![self.appliance_task(name, "start-up", ApplianceKind::StartUp)];
        tasks.push(self.appliance_task(
            name,
            "put-to-ring",
            ApplianceKind::PutToRing { len: 4096 },
        ));
        tasks.push(self.appliance_task(name, "api-send-echo", ApplianceKind::SendEcho { len: 64 }));
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    /// Returns the measurements of local programs' sessions: registration of memory, and death.
    pub(super) fn programs(&self) -> Group {
        let (name, title) = ("programs", "Local programs: registration of memory, death");
        let mut tasks = Vec::new();
        let large = if self.options.quick { ("64MiB", 64 << 20) } else { ("1GiB", 1 << 30) };
        for (size, len) in [("4KiB", 4096), large] {
            let kind = ApplianceKind::ProgramRegister { len };
            tasks.push(self.appliance_task(name, &format!("program-register-{size}"), kind));
        }
        let pairs = if self.options.quick { 100 } else { 1000 };
        for (state, connected) in [("idle", false), ("connected", true)] {
            let kind = ApplianceKind::ProgramDeath { pairs, connected };
            tasks.push(self.appliance_task(name, &format!("program-death-{pairs}-{state}"), kind));
        }
        Group { name, title, repetitions: self.paired_repetitions().min(5), tasks }
    }

    /// Returns the measurements of the control thread's CPU time for one scrape of the metrics, by number of streams.
    pub(super) fn scrape(&self) -> Group {
        let (name, title) = ("scrape", "A scrape of the metrics: time of the control thread");
        let counts: &[u32] = if self.options.quick { &[10] } else { &[10, 10_000] };
        let whole = |&streams| {
            self.appliance_task(
                name,
                &format!("scrape-{streams}"),
                ApplianceKind::Scrape { streams },
            )
        };
        let tasks = counts.iter().map(whole).collect();
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }
}
