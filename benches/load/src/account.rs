//! Frame accounting of a run: the counts of the mixer, of the flooded port and of the workers must explain every frame.

use std::collections::BTreeMap;

use api::Stats;
use serde::{Deserialize, Serialize};

use crate::mixer::FrameCounts;

/// Counts of the mixer (see `mixer.rs`) and of the target at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The mixer's counts.
    pub mixer: FrameCounts,
    /// The target's counters and gauges.
    pub stats: Stats,
}

/// Outcome of the frames between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Growth of the mixer's counts.
    pub mixer: FrameCounts,
    /// Frames that the flooded port received, by its own counters.
    pub port_frames: u64,
    /// Frames lost by the device, by its own counters (`device_rx_missed`, `device_rx_errors`), or dropped by the port
    /// as too long (`rx_too_long`).
    pub port_lost: u64,
    /// Frames that the target's workers received from all their ports.
    pub worker_frames: u64,
    /// Outcomes of the workers' frames, by counter. Names of drop reasons begin with `drop:`. Zero counts are omitted.
    pub became: BTreeMap<String, u64>,
    /// Frames that the workers received minus their counted outcomes; 0 unless there is a defect.
    pub unaccounted: i64,
    /// Frames that the mixer delivered minus frames that the port counted; 0 unless there is a defect.
    pub lost_before_port: i64,
    /// Busy time of the workers, nanoseconds.
    pub busy_ns: u64,
}

/// Worker counters of frame outcomes, in addition to the drop reasons. Each received frame counts once, in one of
/// these counters or as a drop.
const FRAME_COUNTERS: [&str; 10] = [
    "segments",
    "sctp_packets",
    "cookies_sent",
    "sctp_cookies_sent",
    "fragments",
    "echo_replies",
    "group_queries",
    "neighbour_claims",
    "icmp_errors",
    "mesh_out",
];

/// Port counters of frames that the device lost or the port dropped for their length.
const LOSS_COUNTERS: [&str; 3] = ["device_rx_missed", "device_rx_errors", "rx_too_long"];

/// Name of the flooded port.
const FLOODED_PORT: &str = "flooded";

impl Account {
    /// Returns the growth of all counts between two snapshots.
    pub fn between(from: &Snapshot, to: &Snapshot) -> Account {
        let worker = |snapshot: &Snapshot, name: &str| -> u64 {
            let workers = snapshot.stats.workers.iter();
            workers.map(|worker| worker.counters.get(name).copied().unwrap_or(0)).sum()
        };
        let port = |snapshot: &Snapshot, name: &str| -> u64 {
            let ports = snapshot.stats.ports.iter().filter(|port| port.port == FLOODED_PORT);
            ports.map(|port| port.counters.get(name).copied().unwrap_or(0)).sum()
        };
        let counted = |name: &str| worker(to, name).saturating_sub(worker(from, name));
        let at_port = |name: &str| port(to, name).saturating_sub(port(from, name));
        let mut became: BTreeMap<String, u64> =
            FRAME_COUNTERS.iter().map(|&name| (name.to_owned(), counted(name))).collect();
        let drops = |snapshot: &Snapshot| {
            let mut sums = BTreeMap::new();
            for worker in &snapshot.stats.workers {
                for (name, n) in &worker.drops {
                    *sums.entry(name.clone()).or_insert(0) += n;
                }
            }
            sums
        };
        let before = drops(from);
        for (name, n) in drops(to) {
            let n: u64 = n;
            let more = n.saturating_sub(before.get(&name).copied().unwrap_or(0));
            became.insert(format!("drop:{name}"), more);
        }
        became.retain(|_, n| *n > 0);
        let worker_frames = counted("rx_frames");
        let taken = worker_frames + counted("mesh_in") + counted("mesh_news_in");
        let mixer = to.mixer.growth_since(&from.mixer);
        let port_frames = at_port("rx_frames");
        let port_lost = LOSS_COUNTERS.iter().map(|name| at_port(name)).sum();
        Account {
            port_frames,
            port_lost,
            worker_frames,
            unaccounted: taken as i64 - became.values().sum::<u64>() as i64,
            lost_before_port: mixer.frames_to_appliance() as i64 - (port_frames + port_lost) as i64,
            busy_ns: counted("busy_nanoseconds"),
            became,
            mixer,
        }
    }

    /// Returns true if every frame is accounted for.
    pub fn adds_up(&self) -> bool {
        self.unaccounted == 0 && self.lost_before_port == 0
    }

    /// Returns the frames counted by `names`, relative to the generator's frames that the appliance's ring accepted.
    /// Frames of good peers count under the same names, so the share may exceed 1.
    pub fn share(&self, names: &[&str]) -> f64 {
        let offered = self.mixer.generator - self.mixer.generator_lost;
        let sum: u64 = names.iter().filter_map(|name| self.became.get(*name)).sum();
        sum as f64 / (offered as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use api::{PortStats, WorkerStats};

    use super::*;

    fn snapshot(rx: u64, segments: u64, no_stream: u64) -> Snapshot {
        let map =
            |entries: &[(&str, u64)]| entries.iter().map(|&(name, n)| (name.into(), n)).collect();
        let worker = WorkerStats {
            counters: map(&[("rx_frames", rx), ("segments", segments)]),
            drops: map(&[("no_stream", no_stream)]),
            ..WorkerStats::default()
        };
        let port = PortStats {
            port: FLOODED_PORT.into(),
            counters: map(&[("rx_frames", rx), ("device_rx_missed", 1)]),
        };
        let stats = Stats { workers: vec![worker], ports: vec![port], ..Stats::default() };
        let mixer = FrameCounts { generator: rx + 5, generator_lost: 5, ..FrameCounts::default() };
        Snapshot { mixer, stats }
    }

    #[test]
    fn frame_without_counter_does_not_add_up() {
        let begin = snapshot(0, 0, 0);
        let account = Account::between(&begin, &snapshot(10, 3, 7));
        assert!(account.adds_up(), "{account:?}");
        assert_eq!(account.became["drop:no_stream"], 7);
        assert!((account.share(&["drop:no_stream"]) - 0.7).abs() < 1e-9);
        let account = Account::between(&begin, &snapshot(10, 3, 6));
        assert_eq!((account.unaccounted, account.adds_up()), (1, false));
        let mut lost = snapshot(10, 3, 7);
        lost.mixer.generator += 2;
        assert_eq!(Account::between(&begin, &lost).lost_before_port, 2);
    }
}
