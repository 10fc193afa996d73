//! Plan of the throughput groups: bulk writes with limits and peers, Reads and Sends, message sizes, IPv6 and VLANs,
//! both directions, SCTP.

use dataplane::port::MAX_MTU;

use super::{Group, Plan, Task};
use crate::cell::Measure;
use crate::limits::LimitKind;
use crate::peers::PeerKind;
use crate::rig_config::{Impairment, Network, RigConfig};

impl Plan<'_> {
    /// Returns the cells of 1 MiB writes in the configurations of README.md, and the limits to compare them with. At
    /// MTU 9000 the group also has the peer programs and the cells of MTU 65280.
    pub(super) fn bulk_writes(&self, mtu: u16, group: &'static str, title: &'static str) -> Group {
        let rig = || RigConfig { mtu, ..self.default_rig() };
        let trusted = || RigConfig { trusted: true, ..rig() };
        let write =
            |name: &str, rig| Task::Cell(self.cell(group, name, Measure::Goodput, 1 << 20, rig));
        let hand_off = |name: &str, rig| self.limit_task(group, name, LimitKind::HandOff, rig);
        let unstable = || RigConfig { unstable: true, ..rig() };
        let markers = RigConfig { markers: true, ..rig() };
        let mut tasks = vec![
            hand_off(&format!("handoff-{mtu}"), rig()),
            write(&format!("write-{mtu}"), rig()),
            write(&format!("write-{mtu}-markers"), markers),
            write(&format!("write-{mtu}-unstable"), unstable()),
        ];
        if mtu == 9000 {
            let largest = || RigConfig { mtu: MAX_MTU, ..self.default_rig() };
            tasks.push(write("write-65280", largest()));
            tasks.push(hand_off("handoff-65280", largest()));
            let peer = |name: &str, what| self.peer_task(group, name, what);
            tasks.push(peer("sockets-crc-copy", PeerKind::SocketBandwidth));
            tasks.push(peer("ucx-put-bw", PeerKind::UcxBandwidth { tcp: true }));
            tasks.push(peer("ucx-put-bw-auto", PeerKind::UcxBandwidth { tcp: false }));
        }
        tasks.push(write(&format!("write-{mtu}-trusted"), trusted()));
        tasks.push(hand_off(&format!("handoff-{mtu}-trusted"), trusted()));
        tasks.push(write(&format!("write-{mtu}-no-crc"), RigConfig { crc: false, ..rig() }));
        tasks.push(self.limit_task(group, &format!("copy-crc-{mtu}"), LimitKind::CopyCrc, rig()));
        Group { name: group, title, repetitions: self.paired_repetitions(), tasks }
    }

    /// Returns the cells that transfer 1 MiB messages by RDMA Write, RDMA Read and Send.
    pub(super) fn verbs(&self) -> Group {
        let (name, title) = ("verbs", "RDMAP: Writes, Reads and Sends of 1 MiB");
        let mut tasks = Vec::new();
        for mtu in [9000, 1500] {
            for (verb, what) in
                [("write", Measure::Goodput), ("read", Measure::Read), ("send", Measure::Send)]
            {
                let rig = RigConfig { mtu, rdmap: true, buffer: 1 << 20, ..self.default_rig() };
                let cell = format!("rdmap-{verb}-{mtu}");
                tasks.push(Task::Cell(self.cell(name, &cell, what, 1 << 20, rig)));
            }
        }
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn sizes(&self) -> Group {
        let (name, title) = ("sizes", "Goodput by message size");
        let all = [64, 256, 1024, 4096, 16384, 65536, 262_144, 1 << 20];
        let few = [64, 4096];
        let sizes: &[u32] = if self.options.quick { &few } else { &all };
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for markers in [false, true] {
                for &len in sizes {
                    let rig = RigConfig { mtu, markers, ..self.default_rig() };
                    let mark = if markers { "-markers" } else { "" };
                    let cell = format!("size-{mtu}{mark}-{len}");
                    tasks.push(Task::Cell(self.cell(name, &cell, Measure::Goodput, len, rig)));
                }
            }
        }
        Group { name, title, repetitions: 1, tasks }
    }

    pub(super) fn networks(&self) -> Group {
        let (name, title) = ("networks", "Bulk writes over IPv6 and on a VLAN, MTU 1500");
        let write = |cell: &str, rig| {
            Task::Cell(self.cell(name, &format!("net-{cell}"), Measure::Goodput, 1 << 20, rig))
        };
        let over = |v6, vlan| RigConfig {
            network: Network { v6, vlan, ..Network::default() },
            ..self.default_rig()
        };
        let tasks = vec![
            write("ipv4", over(false, None)),
            write("ipv6", over(true, None)),
            write("ipv4-vlan", over(false, Some(7))),
            write("ipv6-vlan", over(true, Some(7))),
        ];
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn directions(&self) -> Group {
        let (name, title) = ("directions", "One direction and both, Writes and Reads mixed");
        let rdmap = || RigConfig { rdmap: true, streams: 2, mtu: 9000, ..self.default_rig() };
        let cell = |cell: &str, what, rig| {
            Task::Cell(self.cell(name, &format!("directions-{cell}"), what, 1 << 20, rig))
        };
        let tasks = vec![
            cell("one", Measure::Goodput, rdmap()),
            cell("both", Measure::Goodput, RigConfig { both: true, ..rdmap() }),
            cell("reads", Measure::Read, rdmap()),
            cell("mixed", Measure::Mixed, rdmap()),
            cell("mixed-both", Measure::Mixed, RigConfig { both: true, ..rdmap() }),
        ];
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn rdmap(&self) -> Group {
        let (name, title) = ("rdmap", "RDMAP by message size");
        let sizes: &[u32] = if self.options.quick { &[4096] } else { &[64, 4096, 65536, 1 << 20] };
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for (verb, what) in
                [("write", Measure::Goodput), ("read", Measure::Read), ("send", Measure::Send)]
            {
                for &len in sizes {
                    let buffer = len.max(4096);
                    let rig = RigConfig { mtu, rdmap: true, buffer, ..self.default_rig() };
                    let cell = format!("rdmap-{verb}-{mtu}-{len}");
                    tasks.push(Task::Cell(self.cell(name, &cell, what, len, rig)));
                }
            }
        }
        Group { name, title, repetitions: 1, tasks }
    }

    /// Returns the cells of 1 MiB writes over SCTP and of the same writes with MPA over TCP.
    pub(super) fn sctp(&self) -> Group {
        let (name, title) = ("sctp", "DDP over SCTP, beside MPA over TCP: writes of 1 MiB");
        let mut tasks = Vec::new();
        for mtu in [1500, 9000] {
            for (llp, sctp) in [("tcp", false), ("sctp", true)] {
                let rig = RigConfig { mtu, sctp, ..self.default_rig() };
                let cell = format!("{llp}-write-1m-{mtu}");
                tasks.push(Task::Cell(self.cell(name, &cell, Measure::Goodput, 1 << 20, rig)));
            }
        }
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn sctp_variants(&self) -> Group {
        let (name, title) = ("sctp-more", "DDP over SCTP: small writes, round trips, loss");
        let mut tasks = Vec::new();
        for (llp, sctp) in [("tcp", false), ("sctp", true)] {
            let rig = || RigConfig { sctp, ..self.default_rig() };
            let cell = |cell: &str, what, len, rig| {
                Task::Cell(self.cell(name, &format!("{llp}-{cell}"), what, len, rig))
            };
            tasks.push(cell("write-64-1500", Measure::Goodput, 64, rig()));
            if self.options.quick {
                continue;
            }
            let jumbo = RigConfig { mtu: 9000, ..rig() };
            tasks.push(cell("write-64-9000", Measure::Goodput, 64, jumbo));
            tasks.push(cell("echo-1500", Measure::Echo, 64, rig()));
            let read = RigConfig { rdmap: true, ..rig() };
            tasks.push(cell("rdmap-read-1500", Measure::Read, 1 << 20, read));
            for (percent, loss_ppm) in [("0.1", 1000), ("1", 10_000)] {
                let impairment = Impairment { loss_ppm, delay_us: 50, ..Impairment::default() };
                let rig = RigConfig { markers: !sctp, impairment, ..rig() };
                tasks.push(cell(&format!("loss-{percent}-1500"), Measure::Goodput, 1 << 20, rig));
            }
        }
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }
}
