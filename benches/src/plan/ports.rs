//! Plan of the groups with other ports than rings: memif between two processes, and a veth pair.

use super::{Group, Plan, Task};
use crate::cell::Measure;
use crate::peers::PeerKind;
use crate::rig_config::{Link, RigConfig};

impl Plan<'_> {
    pub(super) fn memif(&self) -> Group {
        let (name, title) = ("memif", "Between two processes, over memif");
        let socket = |n: &str| format!("{}/{n}.sock", self.options.sockets);
        let rig = |n: &str, mtu| RigConfig {
            link: Link::Memif,
            mtu,
            devices: [socket(n), socket(n)],
            ..self.default_rig()
        };
        let devices = [socket("pmd"), socket("pmd")];
        let pmd = PeerKind::Testpmd { link: Link::Memif, devices, mtu: 1500 };
        let mut tasks = vec![
            Task::Cell(self.cell(
                name,
                "memif-write-1500",
                Measure::Goodput,
                1 << 20,
                rig("a", 1500),
            )),
            Task::Cell(self.cell(name, "memif-echo", Measure::Echo, 64, rig("d", 1500))),
            self.peer_task(name, "testpmd-memif", pmd),
        ];
        if !self.options.quick {
            let (jumbo, small) = (rig("b", 9000), rig("c", 1500));
            tasks.push(Task::Cell(self.cell(
                name,
                "memif-write-9000",
                Measure::Goodput,
                1 << 20,
                jumbo,
            )));
            tasks.push(Task::Cell(self.cell(
                name,
                "memif-messages-64",
                Measure::WriteRate,
                64,
                small,
            )));
        }
        Group { name, title, repetitions: self.unpaired_repetitions(), tasks }
    }

    pub(super) fn veth(&self) -> Group {
        let (name, title) = ("veth", "Over a Linux veth pair, beside the kernel's TCP");
        let devices = self.options.veth.clone().unwrap_or_default();
        let mut tasks = Vec::new();
        for link in [Link::AfPacket, Link::AfXdp] {
            let rig = || RigConfig { link, devices: devices.clone(), ..self.default_rig() };
            let kind = link.name();
            let pmd = PeerKind::Testpmd { link, devices: devices.clone(), mtu: 1500 };
            tasks.push(self.peer_task(name, &format!("testpmd-{kind}"), pmd));
            let write = format!("{kind}-write-1500");
            tasks.push(Task::Cell(self.cell(name, &write, Measure::Goodput, 1 << 20, rig())));
            if !self.options.quick {
                let echo = format!("{kind}-echo");
                tasks.push(Task::Cell(self.cell(name, &echo, Measure::Echo, 64, rig())));
            }
        }
        for offload in [false, true] {
            let gso = if offload { "on" } else { "off" };
            let kind = PeerKind::IperfVeth { offload };
            tasks.push(self.peer_task(name, &format!("iperf3-veth-gso-{gso}"), kind));
        }
        tasks.push(self.peer_task(name, "iperf3-lo", PeerKind::Iperf));
        let repetitions = if self.options.quick { 2 } else { 5 };
        Group { name, title, repetitions, tasks }
    }
}
