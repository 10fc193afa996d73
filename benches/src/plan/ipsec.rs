//! Plan of the IPsec group: streams under ESP, the same streams in clear text, and AES-GCM alone.

use super::{Group, Plan, Task};
use crate::cell::Measure;
use crate::gcm::Gcm;
use crate::rig_config::{Network, RigConfig};

/// Length of the IP packet of a 64-byte echo under ESP, bytes.
const ECHO: u16 = 176;

impl Plan<'_> {
    pub(super) fn protected(&self) -> Group {
        let (name, title) = ("ipsec", "Under ESP with AES-GCM-128, beside the same in clear");
        let mut tasks = Vec::new();
        let mut cells = |kind: &str, what, len, mtu| {
            for (way, protected) in [("clear", false), ("esp", true)] {
                let network = Network { protected, ..Network::default() };
                let rig = RigConfig { mtu, network, ..self.default_rig() };
                let cell = self.cell(name, &format!("{way}-{kind}"), what, len, rig);
                tasks.push(Task::Cell(cell));
            }
        };
        for mtu in [1500, 9000] {
            cells(&format!("write-{mtu}"), Measure::Goodput, 1 << 20, mtu);
        }
        cells("echo", Measure::Echo, 64, 1500);
        for (at, mtu) in [(0, 1500), (3, 9000), (6, ECHO)] {
            let (group, name, seconds) = (name.into(), format!("gcm-{mtu}"), self.seconds());
            let core = self.options.cores[1];
            tasks.insert(at, Task::Gcm(Gcm { name, group, mtu, core, seconds }));
        }
        Group { name, title, repetitions: self.paired_repetitions(), tasks }
    }
}
