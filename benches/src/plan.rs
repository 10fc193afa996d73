//! What a run measures: every cell, limit and peer, in groups that are run interleaved.

use serde::{Deserialize, Serialize};

use crate::cell::{Cell, What};
use crate::limits::{Limit, LimitKind};
use crate::peers::{Peer, PeerKind};
use crate::rig::{Link, RigConfig};
use crate::row::Row;

/// One thing to measure, in a process of its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// The appliance.
    Cell(Cell),
    /// What it cannot beat.
    Limit(Limit),
    /// What users would pick instead.
    Peer(Peer),
}

impl Task {
    /// Its row, without number.
    pub fn row(&self) -> Row {
        match self {
            Task::Cell(cell) => cell.row(),
            Task::Limit(limit) => limit.row(),
            Task::Peer(peer) => peer.row(),
        }
    }
}

/// Tasks that belong side by side: each repetition does all of them in turn, so that what the machine does
/// meanwhile hits all alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Its name, for `--only`.
    pub name: &'static str,
    /// What it shows, as a heading.
    pub title: &'static str,
    /// How often.
    pub repetitions: u32,
    /// In order.
    pub tasks: Vec<Task>,
}

/// What the run may use.
#[derive(Clone, PartialEq, Debug)]
pub struct Means {
    /// Less of everything.
    pub quick: bool,
    /// The two cores.
    pub cores: [usize; 2],
    /// The veth pair for ports at MTU 1500, if there is one.
    pub veth: Option<[String; 2]>,
    /// A directory for sockets.
    pub sockets: String,
}

const REGION: u64 = 16 << 20;
const SLOTS: u16 = 512;

/// All groups, in the order of the report.
pub fn groups(means: &Means) -> Vec<Group> {
    let plan = Plan { means };
    vec![
        plan.headline(1500, "bulk-1500", "Bulk writes, MTU 1500, beside the limits"),
        plan.headline(9000, "bulk-9000", "Bulk writes, MTU 9000, beside the limits and the peers"),
        plan.sizes(),
        plan.messages(),
        plan.latency(),
        plan.many(),
        plan.growth(),
        plan.memory(),
        plan.loss(),
        plan.set_up(),
        plan.rdmap(),
        plan.sctp(),
        plan.memif(),
        plan.veth(),
    ]
}

struct Plan<'a> {
    means: &'a Means,
}

impl Plan<'_> {
    fn seconds(&self) -> f64 {
        if self.means.quick { 0.25 } else { 1.5 }
    }

    fn repetitions(&self) -> u32 {
        if self.means.quick { 1 } else { 3 }
    }

    fn rig(&self) -> RigConfig {
        RigConfig { cores: self.means.cores, region: REGION, slots: SLOTS, ..RigConfig::default() }
    }

    fn cell(&self, group: &str, name: &str, what: What, len: u32, rig: RigConfig) -> Cell {
        // Enough under way to keep the link busy, in messages of any size.
        let depth = match what {
            What::Echo | What::Notify | What::ReadTrip => 1,
            What::Read => 16,
            _ => ((1 << 20) / len.max(1)).clamp(8, 8192),
        };
        let (group, name) = (group.to_owned(), name.to_owned());
        Cell { group, name, what, rig, len, depth, seconds: self.seconds() }
    }

    fn limit(&self, group: &str, name: &str, what: LimitKind, mtu: u16) -> Task {
        Task::Limit(Limit {
            group: group.to_owned(),
            name: name.to_owned(),
            what,
            mtu,
            region: REGION,
            slots: SLOTS,
            seconds: self.seconds(),
            cores: self.means.cores,
        })
    }

    fn peer(&self, group: &str, name: &str, what: PeerKind) -> Task {
        let (group, name) = (group.to_owned(), name.to_owned());
        let seconds = self.seconds().max(0.5);
        Task::Peer(Peer { group, name, what, seconds, cores: self.means.cores })
    }

    fn headline(&self, mtu: u16, group: &'static str, title: &'static str) -> Group {
        let rig = || RigConfig { mtu, ..self.rig() };
        let write =
            |name: &str, rig| Task::Cell(self.cell(group, name, What::Goodput, 1 << 20, rig));
        let mut tasks = vec![
            self.limit(group, &format!("handoff-{mtu}"), LimitKind::HandOff, mtu),
            self.limit(group, &format!("copy-crc-{mtu}"), LimitKind::CopyCrc, mtu),
            write(&format!("write-{mtu}"), rig()),
            write(&format!("write-{mtu}-trusted"), RigConfig { trusted: true, ..rig() }),
            write(&format!("write-{mtu}-markers"), RigConfig { markers: true, ..rig() }),
            write(&format!("write-{mtu}-no-crc"), RigConfig { crc: false, ..rig() }),
        ];
        if mtu == 9000 {
            tasks.push(self.peer(group, "ucx-put-bw", PeerKind::UcxBandwidth));
            tasks.push(self.peer(group, "sockets-crc-copy", PeerKind::SocketBandwidth));
            tasks.push(self.peer(group, "iperf3-lo", PeerKind::Iperf));
        }
        Group { name: group, title, repetitions: self.repetitions(), tasks }
    }

    fn sizes(&self) -> Group {
        let (name, title) = ("sizes", "Goodput by message size");
        let all = [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20];
        let few = [64, 4096, 1 << 20];
        let sizes: &[u32] = if self.means.quick { &few } else { &all };
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for markers in [false, true] {
                for &len in sizes {
                    let rig = RigConfig { mtu, markers, ..self.rig() };
                    let mark = if markers { "-markers" } else { "" };
                    let cell = format!("size-{mtu}{mark}-{len}");
                    tasks.push(Task::Cell(self.cell(name, &cell, What::Goodput, len, rig)));
                }
            }
        }
        Group { name, title, repetitions: 1, tasks }
    }

    fn messages(&self) -> Group {
        let (name, title) = ("messages", "Message rate: writes of 64 octets");
        let cell = |cell: &str, rig| Task::Cell(self.cell(name, cell, What::Goodput, 64, rig));
        let tasks = vec![
            cell("messages-64", self.rig()),
            cell("messages-64-trusted", RigConfig { trusted: true, ..self.rig() }),
            cell("messages-64-9000", RigConfig { mtu: 9000, ..self.rig() }),
        ];
        Group { name, title, repetitions: self.repetitions(), tasks }
    }

    fn latency(&self) -> Group {
        let (name, title) = ("latency", "Round trips of 64 octets");
        let cell = |cell: &str, what, rig| Task::Cell(self.cell(name, cell, what, 64, rig));
        let rdmap = || RigConfig { rdmap: true, ..self.rig() };
        let tasks = vec![
            cell("echo", What::Echo, self.rig()),
            cell("write-notify", What::Notify, self.rig()),
            cell("rdmap-send-echo", What::Echo, rdmap()),
            cell("rdmap-read", What::ReadTrip, rdmap()),
            self.peer(name, "ucx-put-lat", PeerKind::UcxLatency),
            self.peer(name, "sockets-latency", PeerKind::SocketLatency),
        ];
        Group { name, title, repetitions: self.repetitions(), tasks }
    }

    fn many(&self) -> Group {
        let (name, title) = ("streams", "Goodput with many active streams into one region");
        let counts: &[u32] = if self.means.quick { &[1, 100] } else { &[1, 100, 1000, 10_000] };
        let tasks = counts.iter().map(|&streams| {
            let rig = RigConfig { streams, ..self.rig() };
            let mut cell =
                self.cell(name, &format!("streams-{streams}"), What::Goodput, 16384, rig);
            cell.depth = if streams > 100 { 2 } else { 16 };
            Task::Cell(cell)
        });
        Group { name, title, repetitions: self.repetitions(), tasks: tasks.collect() }
    }

    /// The region from what a cache holds to what it does not, and the ring likewise.
    fn growth(&self) -> Group {
        let (name, title) = ("footprint", "Goodput by region size and by ring slots");
        let regions: &[u64] = if self.means.quick { &[1, 64] } else { &[1, 4, 16, 64, 256] };
        let slots: &[u16] = if self.means.quick { &[128] } else { &[64, 128, 256, 1024, 2048] };
        let cell =
            |cell: String, rig| Task::Cell(self.cell(name, &cell, What::Goodput, 1 << 20, rig));
        let regions = regions.iter().map(|&mib| {
            cell(format!("region-{mib}"), RigConfig { region: mib << 20, ..self.rig() })
        });
        let slots = slots
            .iter()
            .map(|&slots| cell(format!("slots-{slots}"), RigConfig { slots, ..self.rig() }));
        Group { name, title, repetitions: 1, tasks: regions.chain(slots).collect() }
    }

    fn memory(&self) -> Group {
        let (name, title) = ("memory", "Heap per stream, both ends counted alike");
        let counts: &[u32] = if self.means.quick { &[1, 100] } else { &[1, 100, 10_000] };
        let tasks = counts.iter().map(|&streams| {
            let rig = RigConfig { streams, sleepy: true, ..self.rig() };
            let mut cell = self.cell(name, &format!("memory-{streams}"), What::Memory, 16384, rig);
            cell.depth = 2;
            Task::Cell(cell)
        });
        Group { name, title, repetitions: 1, tasks: tasks.collect() }
    }

    fn loss(&self) -> Group {
        let (name, title) = ("loss", "Loss at a round trip of 100 us, markers on");
        let mut tasks = Vec::new();
        for markers in [true, false] {
            for (ppm, percent) in [(0, "0"), (1000, "0.1"), (10_000, "1")] {
                let rig =
                    RigConfig { markers, loss_ppm: ppm, delay_us: 50, slots: 1024, ..self.rig() };
                let mark = if markers { "" } else { "-no-markers" };
                let cell = format!("loss-{percent}{mark}");
                tasks.push(Task::Cell(self.cell(name, &cell, What::Goodput, 1 << 20, rig)));
            }
        }
        Group { name, title, repetitions: self.repetitions().min(2), tasks }
    }

    fn set_up(&self) -> Group {
        let (name, title) = ("set-up", "Streams opened and closed");
        // TIME-WAIT holds them for a while: room for what comes in that time.
        let rig = RigConfig { streams: 500_000, sleepy: true, ..self.rig() };
        let mut cell = self.cell(name, "set-up", What::SetUp, 64, rig);
        cell.depth = 128;
        Group { name, title, repetitions: self.repetitions().min(2), tasks: vec![Task::Cell(cell)] }
    }

    fn rdmap(&self) -> Group {
        let (name, title) = ("rdmap", "RDMAP: Writes, Reads and Sends");
        let sizes: &[u32] =
            if self.means.quick { &[4096, 1 << 20] } else { &[64, 4096, 65536, 1 << 20] };
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for (verb, what) in
                [("write", What::Goodput), ("read", What::Read), ("send", What::Send)]
            {
                for &len in sizes {
                    let buffer = len.max(4096);
                    let rig = RigConfig { mtu, rdmap: true, buffer, ..self.rig() };
                    let cell = format!("rdmap-{verb}-{mtu}-{len}");
                    let mut cell = self.cell(name, &cell, what, len, rig);
                    if what == What::Send {
                        // As many as the peer has buffers, and no more octets than its pool gives a stream.
                        cell.depth = (4 << 20 >> len.ilog2()).clamp(2, 32);
                    }
                    tasks.push(Task::Cell(cell));
                }
            }
        }
        Group { name, title, repetitions: 1, tasks }
    }

    /// Beside MPA over TCP in the same run: the octets that both move are those of the writes.
    fn sctp(&self) -> Group {
        let (name, title) = ("sctp", "DDP over SCTP, beside MPA over TCP");
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for (llp, sctp) in [("tcp", false), ("sctp", true)] {
                let rig = || RigConfig { mtu, sctp, ..self.rig() };
                let cell = |cell: &str, what, len, rig| {
                    Task::Cell(self.cell(name, &format!("{llp}-{cell}-{mtu}"), what, len, rig))
                };
                tasks.push(cell("write-1m", What::Goodput, 1 << 20, rig()));
                tasks.push(cell("write-64", What::Goodput, 64, rig()));
                if mtu == 1500 {
                    tasks.push(cell("echo", What::Echo, 64, rig()));
                    let read = RigConfig { rdmap: true, ..rig() };
                    tasks.push(cell("rdmap-read", What::Read, 1 << 20, read));
                    for (percent, loss_ppm) in [("0.1", 1000), ("1", 10_000)] {
                        let rig = RigConfig {
                            markers: !sctp,
                            loss_ppm,
                            delay_us: 50,
                            slots: 1024,
                            ..rig()
                        };
                        let loss = format!("loss-{percent}");
                        tasks.push(cell(&loss, What::Goodput, 1 << 20, rig));
                    }
                }
            }
        }
        Group { name, title, repetitions: self.repetitions(), tasks }
    }

    fn memif(&self) -> Group {
        let (name, title) = ("memif", "Between two processes, over memif");
        let socket = |n: &str| format!("{}/{n}.sock", self.means.sockets);
        let rig = |n: &str, mtu| RigConfig {
            link: Link::Memif,
            mtu,
            devices: [socket(n), socket(n)],
            ..self.rig()
        };
        let devices = [socket("pmd"), socket("pmd")];
        let tasks = vec![
            Task::Cell(self.cell(name, "memif-write-1500", What::Goodput, 1 << 20, rig("a", 1500))),
            Task::Cell(self.cell(name, "memif-write-9000", What::Goodput, 1 << 20, rig("b", 9000))),
            Task::Cell(self.cell(name, "memif-messages-64", What::Goodput, 64, rig("c", 1500))),
            Task::Cell(self.cell(name, "memif-echo", What::Echo, 64, rig("d", 1500))),
            self.peer(
                name,
                "testpmd-memif",
                PeerKind::Testpmd { link: Link::Memif, devices, mtu: 1500 },
            ),
        ];
        Group { name, title, repetitions: self.repetitions().min(2), tasks }
    }

    fn veth(&self) -> Group {
        let (name, title) = ("veth", "Over a Linux veth pair, beside the kernel's TCP");
        let devices = self.means.veth.clone().unwrap_or_default();
        let mut tasks = Vec::new();
        for link in [Link::AfPacket, Link::AfXdp] {
            let rig = |trusted| RigConfig { link, trusted, devices: devices.clone(), ..self.rig() };
            let kind = link.name();
            let devices = devices.clone();
            tasks.push(self.peer(
                name,
                &format!("testpmd-{kind}"),
                PeerKind::Testpmd { link, devices, mtu: 1500 },
            ));
            let write =
                |cell: String, rig| Task::Cell(self.cell(name, &cell, What::Goodput, 1 << 20, rig));
            tasks.push(write(format!("{kind}-write-1500"), rig(false)));
            tasks.push(write(format!("{kind}-write-1500-trusted"), rig(true)));
            let echo = self.cell(name, &format!("{kind}-echo"), What::Echo, 64, rig(false));
            tasks.push(Task::Cell(echo));
        }
        for offload in [false, true] {
            let gso = if offload { "on" } else { "off" };
            let kind = PeerKind::IperfVeth { offload };
            tasks.push(self.peer(name, &format!("iperf3-veth-gso-{gso}"), kind));
        }
        Group { name, title, repetitions: self.repetitions().min(2), tasks }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_its_groups() {
        for quick in [true, false] {
            let means = Means { quick, cores: [0, 1], veth: None, sockets: "/tmp".into() };
            let mut names = BTreeSet::new();
            for group in groups(&means) {
                for task in &group.tasks {
                    let row = task.row();
                    assert_eq!(row.group, group.name);
                    assert!(names.insert(row.name.clone()), "{} stands twice", row.name);
                }
            }
        }
    }

    #[test]
    fn a_task_survives_the_way_to_its_process() {
        let means = Means { quick: true, cores: [0, 1], veth: None, sockets: "/tmp".into() };
        for task in groups(&means).into_iter().flat_map(|group| group.tasks) {
            let text = serde_json::to_string(&task).unwrap();
            assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
        }
    }
}
