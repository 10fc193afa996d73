//! Plan of the groups that scale one parameter: streams, STags, region size, heap, loss, incast, connection set-up.

use super::{Group, Plan, Task};
use crate::appliance::ApplianceKind;
use crate::cell::{Cell, Measure};
use crate::rig_config::{Impairment, RigConfig};

impl Plan<'_> {
    pub(super) fn many_streams(&self) -> Group {
        let (name, title) = ("streams", "Goodput with many active streams into one region");
        let counts: &[u32] = if self.options.quick { &[1, 100] } else { &[1, 10_000, 100, 1000] };
        let tasks = counts.iter().map(|&streams| {
            let rig = RigConfig { streams, ..self.default_rig() };
            let cell = self.cell(name, &format!("streams-{streams}"), Measure::Goodput, 16384, rig);
            let depth = if streams > 100 { 2 } else { 16 };
            Task::Cell(Cell { depth, ..cell })
        });
        Group { name, title, repetitions: self.paired_repetitions(), tasks: tasks.collect() }
    }

    /// Returns the cells of 64-byte writes into 256 MiB: consecutive and random offsets with one STag, and random
    /// offsets with 100 000 STags.
    pub(super) fn stags(&self) -> Group {
        let (name, title) = ("stags", "Writes of 64 bytes to random STags and offsets");
        let cell = |cell: &str, stags, random| {
            let rig = RigConfig { stags, region: 256 << 20, ..self.default_rig() };
            let cell = self.cell(name, &format!("stags-{cell}"), Measure::WriteRate, 64, rig);
            Task::Cell(Cell { random, ..cell })
        };
        let tasks = vec![
            cell("1-sequential", 1, false),
            cell("1-random", 1, true),
            cell("100000-random", 100_000, true),
        ];
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    /// Returns the cells of writes by region size and by number of ring slots. The smallest sizes fit in a cache, the
    /// largest do not.
    pub(super) fn stream_growth(&self) -> Group {
        let (name, title) = ("footprint", "Goodput by region size and by ring slots");
        let regions: &[u64] = if self.options.quick { &[1, 64] } else { &[1, 4, 16, 64, 256] };
        let slots: &[u16] = if self.options.quick { &[128] } else { &[64, 128, 256, 512, 2048] };
        let cell =
            |cell: String, rig| Task::Cell(self.cell(name, &cell, Measure::Goodput, 1 << 20, rig));
        let regions = regions.iter().map(|&mib| {
            cell(format!("region-{mib}"), RigConfig { region: mib << 20, ..self.default_rig() })
        });
        let slots = slots.iter().map(|&slots| {
            cell(format!("slots-{slots}"), RigConfig { slots: Some(slots), ..self.default_rig() })
        });
        Group { name, title, repetitions: 1, tasks: regions.chain(slots).collect() }
    }

    /// Returns the cells of large regions. Each cell has one repetition, because the set-up of the region takes most
    /// of the time.
    pub(super) fn large_regions(&self) -> Group {
        let (name, title) = ("large", "Large regions: registration, and writes at MTU 9000");
        let sizes: &[u64] = if self.options.quick { &[16, 256] } else { &[16, 256, 4096] };
        let mut tasks = Vec::new();
        for &mib in sizes {
            let rig = RigConfig { region: mib << 20, mtu: 9000, ..self.default_rig() };
            let write = format!("region-9000-{mib}");
            let write = self.cell(name, &write, Measure::Goodput, 1 << 20, rig);
            tasks.push(Task::Cell(self.lengthen_cell(write)));
        }
        for &mib in &sizes[1..] {
            let what = ApplianceKind::Register { len: mib << 20 };
            tasks.push(self.appliance_task(name, &format!("register-{mib}"), what));
        }
        Group { name, title, repetitions: 1, tasks }
    }

    pub(super) fn memory(&self) -> Group {
        let (name, title) = ("memory", "Heap per stream, both ends counted alike");
        let counts: &[u32] = if self.options.quick { &[100] } else { &[1, 100, 10_000] };
        let mut tasks = Vec::new();
        for &streams in counts {
            for (recorder, suffix) in [(true, ""), (false, "-unrecorded")] {
                let rig =
                    RigConfig { streams, adaptive: [true; 2], recorder, ..self.default_rig() };
                let cell = format!("memory-{streams}{suffix}");
                let cell = self.cell(name, &cell, Measure::Memory, 16384, rig);
                tasks.push(Task::Cell(Cell { depth: 2, ..cell }));
            }
        }
        Group { name, title, repetitions: 1, tasks }
    }

    pub(super) fn loss(&self) -> Group {
        let (name, title) = ("loss", "Loss at a round trip of 100 us");
        let mut tasks = Vec::new();
        for markers in [true, false] {
            for (loss_ppm, percent) in [(0, "0"), (10_000, "1"), (1000, "0.1")] {
                if self.options.quick && (!markers || percent == "0.1") {
                    continue;
                }
                let impairment = Impairment { loss_ppm, delay_us: 50, ..Impairment::default() };
                let rig = RigConfig { markers, impairment, ..self.default_rig() };
                let mark = if markers { "" } else { "-no-markers" };
                let cell = format!("loss-{percent}{mark}");
                let cell = self.cell(name, &cell, Measure::Goodput, 1 << 20, rig);
                tasks.push(Task::Cell(self.lengthen_cell(cell)));
            }
        }
        // A lossless link of 1 Gbit/s with evenly spaced frames. The rate is about the goodput at 1 % loss. This cell
        // shows the cost of fewer frames per iteration of the worker, without the cost of loss.
        let (delay_us, rate_mbit, queue) = (50, 1000, 400_000);
        let impairment = Impairment { delay_us, rate_mbit, queue, ..Impairment::default() };
        let rig = RigConfig { markers: true, impairment, ..self.default_rig() };
        let cell = self.cell(name, "loss-0-slow", Measure::Goodput, 1 << 20, rig);
        tasks.push(Task::Cell(self.lengthen_cell(cell)));
        Group { name, title, repetitions: self.paired_repetitions(), tasks }
    }

    /// Returns the cells of 64 streams from 64 addresses to one worker. There are three links: without loss, with
    /// random loss, and with a bottleneck and a short queue.
    pub(super) fn incast(&self) -> Group {
        let (name, title) = ("incast", "Incast of 64 streams, RTT 100 us");
        let delayed = Impairment { delay_us: 50, ..Impairment::default() };
        let rig =
            |impairment| RigConfig { streams: 64, markers: true, impairment, ..self.default_rig() };
        let cell = |cell: &str, rig| {
            let cell = self.cell(name, &format!("incast-64{cell}"), Measure::Goodput, 65536, rig);
            Task::Cell(self.lengthen_cell(Cell { depth: 4, ..cell }))
        };
        let tasks = vec![
            cell("", rig(delayed)),
            cell("-loss-1", rig(Impairment { loss_ppm: 10_000, ..delayed })),
            cell("-queue", rig(Impairment { rate_mbit: 1000, queue: 256 << 10, ..delayed })),
        ];
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn set_up(&self) -> Group {
        let (name, title) = ("set-up", "Streams opened and closed");
        // `streams` is the maximum number of streams, including those in TIME-WAIT, which accumulate during the
        // measurement.
        let rig = RigConfig { streams: 500_000, adaptive: [true; 2], ..self.default_rig() };
        let cell = self.cell(name, "set-up", Measure::SetUp, 64, rig);
        let tasks = vec![Task::Cell(Cell { depth: 128, ..cell })];
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }
}
