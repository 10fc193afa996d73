//! The plan of a run: which tasks are measured, in groups. Each repetition of a group runs all its tasks consecutively.
//!
//! A *cell* is a measurement of two data planes, end to end. Rows whose ratio has a target belong to the same group.

mod bulk;
mod floods;
mod ipsec;
mod latency;
mod operations;
mod ports;
mod scale;
mod slices;

use serde::{Deserialize, Serialize};

use crate::appliance::{Appliance, ApplianceKind};
use crate::cell::{Cell, Measure};
use crate::end_config::BUFFERS_PER_STREAM;
use crate::floods::Flood;
use crate::gcm::Gcm;
use crate::limits::{Limit, LimitKind};
use crate::peers::{Peer, PeerKind};
use crate::rig_config::RigConfig;
use crate::row::Row;
use crate::stalls::Stalls;

/// A measurement, which runs in its own process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Two data planes, end to end.
    Cell(Cell),
    /// An upper bound for the rates of the cells on this machine.
    Limit(Limit),
    /// AES-GCM alone: an upper bound for the rate of streams under IPsec.
    Gcm(Gcm),
    /// Stalls of polling cores: a lower bound for tail latencies.
    Stalls(Stalls),
    /// A program that users might choose instead of `ddpd`.
    Peer(Peer),
    /// One data plane under a flood of unsolicited frames.
    Flood(Flood),
    /// Two whole appliances, including control threads and API.
    Appliance(Appliance),
}

impl Task {
    /// Returns the task's row before the measurement: with parameters, without a value.
    pub fn row(&self) -> Row {
        match self {
            Task::Cell(cell) => cell.row(),
            Task::Limit(limit) => limit.row(),
            Task::Gcm(gcm) => gcm.row(),
            Task::Stalls(stalls) => stalls.row(),
            Task::Peer(peer) => peer.row(),
            Task::Flood(flood) => flood.row(),
            Task::Appliance(appliance) => appliance.row(),
        }
    }
}

/// Tasks that are compared. Each repetition runs all of these tasks consecutively, so that disturbances of the machine
/// affect all tasks alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Name of the group, as in the option `--only`.
    pub name: &'static str,
    /// Heading in the report.
    pub title: &'static str,
    /// Repetitions of each task.
    pub repetitions: u32,
    /// Tasks in the order of the first repetition. Every second repetition runs them in reverse order.
    pub tasks: Vec<Task>,
}

/// Resources and limits of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct RunOptions {
    /// True for a quick run: fewer cells and repetitions, shorter measurements.
    pub quick: bool,
    /// Seconds of each measurement; `None` for the default of each task. Tests that run every task set a short time.
    pub seconds: Option<f64>,
    /// Maximum repetitions of each group; `None` for no maximum.
    pub repetitions: Option<u32>,
    /// Cores of the initiator's and the responder's worker.
    pub cores: [usize; 2],
    /// Linux interfaces of the veth pair for af_packet and af_xdp ports; `None` if there is no pair.
    pub veth: Option<[String; 2]>,
    /// Directory for the sockets of memif ports.
    pub sockets: String,
}

/// Repetitions of groups with a target for a ratio, in a run that is not quick.
pub const PAIRED_REPETITIONS: u32 = 7;

/// Returns all groups, in the order of the report.
pub fn groups(means: &RunOptions) -> Vec<Group> {
    let plan = Plan { options: means };
    let mut all = vec![
        plan.bulk_writes(1500, "bulk-1500", "Bulk writes, MTU 1500, beside the limits"),
        plan.bulk_writes(
            9000,
            "bulk-9000",
            "Bulk writes, MTU 9000, beside the limits and the peers",
        ),
        plan.ab_slices(),
        plan.verbs(),
        plan.sizes(),
        plan.networks(),
        plan.directions(),
        plan.depths(),
        plan.messages(),
        plan.recorder(),
        plan.latency(),
        plan.loaded_latency(),
        plan.adaptive(),
        plan.appliance(),
        plan.scrape(),
        plan.programs(),
        plan.program_operations(),
        plan.many_streams(),
        plan.stags(),
        plan.stream_growth(),
        plan.large_regions(),
        plan.memory(),
        plan.loss(),
        plan.incast(),
        plan.set_up(),
        plan.rdmap(),
        plan.sctp(),
        plan.sctp_variants(),
        plan.protected(),
        plan.floods(),
        plan.memif(),
        plan.veth(),
    ];
    if let Some(most) = means.repetitions {
        all.iter_mut().for_each(|group| group.repetitions = group.repetitions.min(most));
    }
    all
}

struct Plan<'a> {
    options: &'a RunOptions,
}

impl Plan<'_> {
    fn seconds(&self) -> f64 {
        self.options.seconds.unwrap_or(if self.options.quick { 0.15 } else { 0.5 })
    }

    /// Returns the number of repetitions of a group in which a ratio has a target.
    fn paired_repetitions(&self) -> u32 {
        if self.options.quick { 3 } else { PAIRED_REPETITIONS }
    }

    /// Returns the number of repetitions of a group in which no ratio has a target.
    fn unpaired_repetitions(&self) -> u32 {
        if self.options.quick { 1 } else { 3 }
    }

    fn default_rig(&self) -> RigConfig {
        RigConfig { cores: self.options.cores, ..RigConfig::default() }
    }

    fn cell(&self, group: &str, name: &str, what: Measure, len: u32, rig: RigConfig) -> Cell {
        Cell {
            group: group.to_owned(),
            name: name.to_owned(),
            what,
            rig,
            len,
            depth: default_depth(what, len),
            load_percent: 0,
            random: false,
            b_side: None,
            seconds: self.seconds(),
        }
    }

    /// Lengthens a cell to at least 0.4 s, unless the options fix the duration. A cell with a delay on the link needs
    /// this time to reach its full rate.
    fn lengthen_cell(&self, cell: Cell) -> Cell {
        let least = if self.options.seconds.is_none() { 0.4 } else { 0.0 };
        Cell { seconds: cell.seconds.max(least), ..cell }
    }

    fn limit_task(&self, group: &str, name: &str, what: LimitKind, rig: RigConfig) -> Task {
        let (group, name) = (group.to_owned(), name.to_owned());
        Task::Limit(Limit { group, name, what, rig, seconds: self.seconds() })
    }

    fn peer_task(&self, group: &str, name: &str, what: PeerKind) -> Task {
        let (group, name) = (group.to_owned(), name.to_owned());
        let seconds = self.seconds();
        Task::Peer(Peer { group, name, what, seconds, cores: self.options.cores })
    }

    fn appliance_task(&self, group: &str, name: &str, what: ApplianceKind) -> Task {
        let (group, name) = (group.to_owned(), name.to_owned());
        let seconds = self.seconds();
        Task::Appliance(Appliance { group, name, what, seconds, cores: self.options.cores })
    }
}

/// The appliance's limit for messages in flight on a bare DDP stream and for operations in flight on an RDMAP stream.
const MAX_POSTS: u32 = 1024;

/// Returns the default number of messages in flight per stream. Round trips have one message in flight. Throughput
/// measurements have up to 4 MiB or two messages in flight, within the appliance's limits for a stream.
fn default_depth(what: Measure, len: u32) -> u32 {
    let bytes = |most: u32| ((4 << 20) / len.max(1)).clamp(2, most);
    match what {
        Measure::Echo | Measure::Notify | Measure::ReadTrip => 1,
        // At most as many as the initiator has untagged buffers for replies.
        Measure::Loaded => 32,
        // At most as many outstanding Reads as the responder accepts.
        Measure::Read | Measure::Mixed => 16,
        // At most as many as the receiver has untagged buffers.
        Measure::Send | Measure::SendRate => bytes(BUFFERS_PER_STREAM / 4),
        _ => bytes(MAX_POSTS),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::end_config::EndConfig;
    use crate::targets::targets;

    fn options(quick: bool) -> RunOptions {
        let (veth, sockets) = (None, "/tmp".to_owned());
        RunOptions { quick, seconds: None, repetitions: None, cores: [0, 1], veth, sockets }
    }

    #[test]
    fn every_row_has_unique_name_and_its_group() {
        for quick in [true, false] {
            let mut names = BTreeSet::new();
            for group in groups(&options(quick)) {
                for task in &group.tasks {
                    let row = task.row();
                    assert_eq!(row.group, group.name);
                    assert!(names.insert(row.name.clone()), "{} occurs twice", row.name);
                }
            }
        }
    }

    #[test]
    fn ab_cell_lists_difference_of_b_side() {
        let turns = groups(&options(false)).into_iter().filter(|group| group.name == "turns");
        let rows: Vec<Row> = turns.flat_map(|g| g.tasks).map(|task| task.row()).collect();
        let differs = |name: &str| {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            row.parameters["in turns with"].clone()
        };
        assert!(differs("turns-markers-1500").contains("markers: off"));
        assert_eq!(differs("turns-unstable-9000"), "source: stable");
        assert!(differs("turns-sctp-1500").contains("llp: mpa/tcp"));
        assert_eq!(differs("turns-read-9000"), "goodput, depth: 4");
        assert_eq!(differs("turns-send-1500"), "goodput");
        assert_eq!(rows.len(), 10);
    }

    /// A configuration that the appliance refuses must fail in this test, not during a run.
    #[test]
    fn appliance_accepts_configuration_of_every_row() {
        let veth = Some(["bench0".to_owned(), "bench1".to_owned()]);
        for quick in [true, false] {
            let means = RunOptions { veth: veth.clone(), ..options(quick) };
            for task in groups(&means).into_iter().flat_map(|group| group.tasks) {
                let rig = match &task {
                    Task::Cell(cell) => &cell.rig,
                    Task::Limit(limit) => &limit.rig,
                    Task::Flood(flood) => &flood.rig,
                    Task::Peer(_) | Task::Appliance(_) | Task::Gcm(_) | Task::Stalls(_) => continue,
                };
                let b_side = match &task {
                    Task::Cell(cell) => cell.b_side.as_ref().map(|b_side| &b_side.rig),
                    _ => None,
                };
                for rig in [Some(rig), b_side].into_iter().flatten() {
                    if let Err(error) = EndConfig::for_both_sides(rig) {
                        panic!("{}: {error}", task.row().name);
                    }
                }
            }
        }
    }

    #[test]
    fn task_round_trips_through_json() {
        for task in groups(&options(true)).into_iter().flat_map(|group| group.tasks) {
            let text = serde_json::to_string(&task).unwrap();
            assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task);
        }
    }

    // `compare_builds` passes tasks as JSON to a program of another version, so the JSON format must remain stable.
    #[test]
    fn rig_fields_are_flat_in_json() {
        let rig: RigConfig = serde_json::from_str(r#"{"mtu":9000,"loss_ppm":7}"#).unwrap();
        assert_eq!((rig.mtu, rig.impairment.loss_ppm, rig.streams), (9000, 7, 1));
        let value = serde_json::to_value(&rig).unwrap();
        assert!(value["loss_ppm"] == 7 && value["queue"] == 0 && value["mtu"] == 9000);
    }

    /// Every target needs a row in the plan, or every report would show the target as "not run". Both rows of a ratio
    /// must be in the same group, with enough repetitions for an interval.
    #[test]
    fn every_target_has_rows_and_ratios_have_five_repetitions() {
        for quick in [true, false] {
            let mut rows = Vec::new();
            for group in groups(&options(quick)) {
                let required = if quick { 2 } else { 5 };
                for task in &group.tasks {
                    let mut row = task.row();
                    for repetition in 0..group.repetitions {
                        let mut measured = row.clone();
                        measured.set(1.0);
                        for name in [
                            "p50_us",
                            "p99_us",
                            "p99_9_us",
                            "frames_per_s",
                            "messages_per_s",
                            "asked_busy_ns_per_byte",
                            "asked_cpu_share",
                            "located_held_bytes_max",
                            "series",
                            "seal_ns",
                            "open_ns",
                            "echo_p99_9_us",
                        ] {
                            measured.add_extra(name, 1.0);
                        }
                        let run = crate::row::Repetition { repetition, ..Default::default() };
                        row.merge(run, measured);
                    }
                    rows.push(row);
                }
                // `rows` also contains the rows of previous groups.
                let here: Vec<Row> =
                    rows.iter().filter(|row| row.group == group.name).cloned().collect();
                for target in targets(&here).iter().filter(|target| target.kind.has_interval()) {
                    let n = target.samples.len();
                    assert!(n == 0 || n >= required, "{}: n = {n}", target.name);
                }
            }
            for target in targets(&rows).iter().filter(|_| !quick) {
                assert!(target.value.is_some(), "{}: {:?}", target.name, target.why);
                let within = !target.kind.has_interval() || one_group_has(&rows, &target.name);
                assert!(within, "{} belongs to two groups", target.name);
            }
        }
    }

    fn one_group_has(rows: &[Row], target: &str) -> bool {
        let names: BTreeSet<&str> = rows.iter().map(|row| row.group.as_str()).collect();
        names.into_iter().any(|name| {
            let here: Vec<Row> = rows.iter().filter(|row| row.group == name).cloned().collect();
            targets(&here).iter().any(|t| t.name == target && t.value.is_some())
        })
    }
}
