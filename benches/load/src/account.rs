//! What became of every frame: the mixer's counts, the port's and the workers', compared.

use std::collections::BTreeMap;

use api::Stats;
use serde::{Deserialize, Serialize};

use crate::mixer::Counts;

/// What the target had counted at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Of the mixer.
    pub mixer: Counts,
    /// Of the target.
    pub stats: Stats,
}

/// What became of the frames between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// Between the mixer's ends.
    pub mixer: Counts,
    /// Frames that the flooded port received, by its own counter.
    pub port_frames: u64,
    /// Frames that the device lost, by its own counters (`device_rx_missed`, `device_rx_errors`), or we because of its
    /// length (`rx_too_long`).
    pub port_lost: u64,
    /// Frames that the target's workers took from all their ports.
    pub worker_frames: u64,
    /// What they became, by counter; the names of drops begin with `drop:`. Only what is not zero.
    pub became: BTreeMap<String, u64>,
    /// Frames of workers that no counter accounts for; 0 unless there is a defect.
    pub unaccounted: i64,
    /// Frames between the mixer and the port that no counter accounts for.
    pub on_the_way: i64,
    /// Nanoseconds in which the workers had something to do.
    pub busy_ns: u64,
}

/// Counters of a worker that account for a frame each, beside the drops.
const KEPT: [&str; 10] = [
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

/// Counters of a port that say that its device lost a frame.
const LOST: [&str; 3] = ["device_rx_missed", "device_rx_errors", "rx_too_long"];

/// Name of the flooded port.
const PORT: &str = "flooded";

impl Account {
    /// What happened from one to the other.
    pub fn between(from: &Snapshot, to: &Snapshot) -> Account {
        let worker = |snapshot: &Snapshot, name: &str| -> u64 {
            let workers = snapshot.stats.workers.iter();
            workers.map(|worker| worker.counters.get(name).copied().unwrap_or(0)).sum()
        };
        let port = |snapshot: &Snapshot, name: &str| -> u64 {
            let ports = snapshot.stats.ports.iter().filter(|port| port.port == PORT);
            ports.map(|port| port.counters.get(name).copied().unwrap_or(0)).sum()
        };
        let counted = |name: &str| worker(to, name).saturating_sub(worker(from, name));
        let at_port = |name: &str| port(to, name).saturating_sub(port(from, name));
        let mut became: BTreeMap<String, u64> =
            KEPT.iter().map(|&name| (name.to_owned(), counted(name))).collect();
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
        let mixer = to.mixer.since(&from.mixer);
        let port_frames = at_port("rx_frames");
        let port_lost = LOST.iter().map(|name| at_port(name)).sum();
        Account {
            port_frames,
            port_lost,
            worker_frames,
            unaccounted: taken as i64 - became.values().sum::<u64>() as i64,
            on_the_way: mixer.into_appliance() as i64 - (port_frames + port_lost) as i64,
            busy_ns: counted("busy_nanoseconds"),
            became,
            mixer,
        }
    }

    /// True when every frame is accounted for.
    pub fn adds_up(&self) -> bool {
        self.unaccounted == 0 && self.on_the_way == 0
    }

    /// Of the generator's frames, the share that ended under one of these names. Frames of good peers are among them
    /// where the names are theirs, too, so that it may be above 1.
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
        let map = |entries: &[(&str, u64)]| {
            entries.iter().map(|&(name, n)| (name.to_owned(), n)).collect()
        };
        let worker = WorkerStats {
            counters: map(&[("rx_frames", rx), ("segments", segments)]),
            drops: map(&[("no_stream", no_stream)]),
            ..WorkerStats::default()
        };
        let port = PortStats {
            port: PORT.into(),
            counters: map(&[("rx_frames", rx), ("device_rx_missed", 1)]),
        };
        let stats = Stats { workers: vec![worker], ports: vec![port], ..Stats::default() };
        let mixer = Counts { generator: rx + 5, generator_lost: 5, ..Counts::default() };
        Snapshot { mixer, stats }
    }

    #[test]
    fn a_frame_without_counter_is_seen() {
        let begin = snapshot(0, 0, 0);
        let account = Account::between(&begin, &snapshot(10, 3, 7));
        assert!(account.adds_up(), "{account:?}");
        assert_eq!(account.became["drop:no_stream"], 7);
        assert!((account.share(&["drop:no_stream"]) - 0.7).abs() < 1e-9);
        let account = Account::between(&begin, &snapshot(10, 3, 6));
        assert_eq!((account.unaccounted, account.adds_up()), (1, false));
        let mut lost = snapshot(10, 3, 7);
        lost.mixer.generator += 2;
        assert_eq!(Account::between(&begin, &lost).on_the_way, 2);
    }
}
