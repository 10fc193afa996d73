//! Operations that local programs post, compared with the load that a worker generates itself.
//!
//! ```text
//!  core B: both programs, one thread         core A: one worker, both ends of each stream
//!    post, poll  <--- shared memory --->       A slices: connection of the two programs
//!    request     ---- API ------------->       B slices: `ddpctl bench`, stream to an own listener
//! ```
//!
//! One appliance has one worker. Every connection is to an address of the appliance itself, so one worker serves both
//! of its ends, and no packet leaves through a port. A and B slices alternate. The row is the median over pairs of
//! adjacent slices, in the order AB as often as BA.

mod ends;
mod many;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::{BenchInfo, BenchLoad, BenchPeer, BenchSpec, Client, ConnectSpec, JobInfo, JobState};
use control::appliance::process::Process;
use control::appliance::thread::Signal;
use serde::{Deserialize, Serialize};

use self::ends::Ends;
use super::{Latencies, TIMEOUT};
use crate::end_config;
use crate::row::{Row, median};

/// Ports of two listeners: `SINK` discards Sends and accepts Writes, `ECHO` echoes Sends.
const SINK: u16 = 4791;
const ECHO: u16 = 4792;
/// Port of a listener that discards short Sends, with more receive buffers than the listener at
/// `SINK`.
const SHORT_SINK: u16 = 4793;
/// Length of an A or B slice.
const SLICE: Duration = Duration::from_millis(10);
/// Pause between two requests for the state of a job. The requesting thread shares a core with the programs, which are
/// idle then.
const POLL: Duration = Duration::from_micros(500);

/// An operation of local programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramOperation {
    /// Writes: rate of a program / rate of the worker's own load.
    Write {
        /// Length of a message, bytes.
        len: u32,
    },
    /// Sends: rate of a program / rate of the worker's own load.
    Send {
        /// Length of a message, bytes.
        len: u32,
    },
    /// Median latency of an echo between two programs minus that of an echo inside the worker, halved: the difference
    /// per side.
    Echo {
        /// Length of a message, bytes.
        len: u32,
    },
    /// Median latency of an echo by the worker to a program that sleeps until a notification, minus that to a program
    /// that polls. The worker is adaptive.
    Event {
        /// Pause before each message of the sleeping program, microseconds. After a long pause the worker is asleep,
        /// too.
        pause_us: u64,
    },
    /// Memory of an idle QP: its rings, and all other memory of appliance and library.
    IdlePair {
        /// Number of QPs of each of the two programs, which are connected to each other.
        pairs: u32,
    },
    /// Writes on all QPs of a program: total rate / the rate on the only QP of another program.
    ManyPairs {
        /// Number of QPs.
        pairs: u32,
        /// Length of a message, bytes.
        len: u32,
        /// Messages in flight on each of the QPs. The only QP of the other program has `many::DEPTH_OF_ONE` in
        /// flight.
        depth: u32,
    },
}

impl ProgramOperation {
    /// Returns the unit of the row's value; empty for ratios.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Write { .. } | Self::Send { .. } | Self::ManyPairs { .. } => "",
            Self::Echo { .. } | Self::Event { .. } => "us",
            Self::IdlePair { .. } => "bytes",
        }
    }

    /// Adds the parameters to a row.
    pub(super) fn describe(self, row: Row) -> Row {
        match self {
            Self::Write { len } | Self::Send { len } => {
                row.with("len", len).with("depth", depth(self))
            }
            Self::Echo { len } => row.with("len", len),
            Self::Event { pause_us } => row.with("pause", format!("{pause_us} us")),
            Self::IdlePair { pairs } => row.with("pairs", pairs),
            Self::ManyPairs { pairs, len, depth } => {
                row.with("pairs", pairs).with("len", len).with("depth", depth)
            }
        }
    }
}

/// Returns the number of messages in flight.
fn depth(what: ProgramOperation) -> u32 {
    match what {
        // The same numbers as the plan's defaults for the worker's own load.
        ProgramOperation::Write { len } => ((4 << 20) / len.max(1)).clamp(2, 1024),
        ProgramOperation::Send { len } => ((4 << 20) / len.max(1)).clamp(2, 64),
        _ => 1,
    }
}

/// Measures an operation for about `seconds`.
pub(super) fn measure(
    what: ProgramOperation,
    seconds: f64,
    cores: [usize; 2],
    row: &mut Row,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let polls = !matches!(what, ProgramOperation::Event { .. });
    let appliance = LoneAppliance::start(directory.path(), cores[0], polls)?;
    // Restricts the threads of the programs to this core. The appliance's threads are not affected, because they were
    // started before.
    let core = core_affinity::CoreId { id: cores[1] };
    anyhow::ensure!(core_affinity::set_for_current(core), "no core {}", cores[1]);
    let pairs = ((seconds / (2.0 * SLICE.as_secs_f64())).ceil() as usize).max(1);
    let measured = match what {
        ProgramOperation::Write { len } => appliance.rate(BenchLoad::Write, what, len, pairs, row),
        ProgramOperation::Send { len } => appliance.rate(BenchLoad::Send, what, len, pairs, row),
        ProgramOperation::Echo { len } => appliance.echo(len, pairs, row),
        ProgramOperation::Event { pause_us } => {
            appliance.event(Duration::from_micros(pause_us), pairs, row)
        }
        ProgramOperation::IdlePair { pairs } => many::idle(&appliance, pairs, row),
        ProgramOperation::ManyPairs { pairs: number, len, depth } => {
            many::rate(&appliance, (number, len, depth), pairs, row)
        }
    };
    appliance.stop();
    measured
}

/// An appliance with one worker.
struct LoneAppliance {
    process: Process,
    client: Client,
    /// Socket for local programs.
    programs: PathBuf,
}

/// Returns the configuration file. `polls`: true if the worker never sleeps.
fn config_text(directory: &Path, core: usize, polls: bool) -> String {
    let directory = directory.display();
    let idle = if polls { "poll" } else { "adaptive" };
    format!(
        "name = \"lone\"\n[workers]\ncores = [{core}]\nidle = \"{idle}\"\n[limits]\nstreams = 40000\n\
         memory = \"16 GiB\"\n\
         [management]\nsocket = \"{directory}/lone.sock\"\nbench = true\n\
         [[port]]\nname = \"p0\"\nkind = \"ring\"\nlink = \"unused\"\n\
         [[port]]\nname = \"p1\"\nkind = \"ring\"\nlink = \"unused\"\n\
         [[interface]]\nname = \"lan\"\nport = \"p0\"\naddresses = [\"10.9.0.1/24\"]\n\
         [programs]\nsocket = \"{directory}/programs.sock\"\nmemory = \"4 GiB\"\narena = \"8 GiB\"\n\
         queue_pairs = 16384\ncompletions = 1048576\n\
         [[region]]\nname = \"box\"\nsize = \"16 MiB\"\naccess = \"w\"\nshared = true\n\
         [[listener]]\nname = \"sink\"\ninterface = \"lan\"\nport = {SINK}\nulp = \"rdmap\"\nservice = \"sink\"\n\
         regions = [\"box\"]\n[[listener.queue]]\nqn = 0\nbuffers = 32\nbuffer_size = 1048576\n\
         [[listener]]\nname = \"short\"\ninterface = \"lan\"\nport = {SHORT_SINK}\nulp = \"rdmap\"\nservice = \"sink\"\n\
         [[listener.queue]]\nqn = 0\nbuffers = 256\nbuffer_size = 4096\n\
         [[listener]]\nname = \"echo\"\ninterface = \"lan\"\nport = {ECHO}\nulp = \"rdmap\"\nservice = \"echo\"\n"
    )
}

fn local(port: u16) -> std::net::SocketAddr {
    std::net::SocketAddr::new(std::net::Ipv4Addr::new(10, 9, 0, 1).into(), port)
}

impl LoneAppliance {
    fn start(directory: &Path, core: usize, polls: bool) -> anyhow::Result<LoneAppliance> {
        let config = end_config::parse_config(&config_text(directory, core, polls))?;
        let process = Process::start(vec![config]).map_err(anyhow::Error::msg)?;
        let client = Client::new(&directory.join("lone.sock"))?;
        let programs = directory.join("programs.sock");
        Ok(LoneAppliance { process, client, programs })
    }

    fn stop(self) {
        self.process.signal(Signal::Abort);
        self.process.join();
    }

    /// Runs the worker's own load for one slice.
    fn own_load(&self, load: BenchLoad, len: u32, depth: u32) -> anyhow::Result<BenchInfo> {
        let port = match load {
            BenchLoad::Echo => ECHO,
            BenchLoad::Send if len <= 4096 => SHORT_SINK,
            _ => SINK,
        };
        let mut connect = ConnectSpec::to_remote(local(port));
        connect.ulp = api::UlpChoice::Rdmap;
        let spec = BenchSpec {
            load,
            connect,
            target: None,
            peer: BenchPeer::Appliance,
            queue: 0,
            streams: 1,
            size: len,
            depth,
            time_us: SLICE.as_micros() as u64,
            rate: None,
        };
        let from = Instant::now();
        let mut job: JobInfo = self.client.post("/v1/bench", &spec)?;
        while !job.state.is_finished() {
            anyhow::ensure!(from.elapsed() < TIMEOUT, "the worker's own load does not end");
            std::thread::sleep(POLL);
            job = self.client.get(&format!("/v1/jobs/{}", job.id))?;
        }
        anyhow::ensure!(job.state == JobState::Done, "{}", job.error.unwrap_or_default());
        let bench = *job.bench.context("a bench without results")?;
        anyhow::ensure!(bench.messages > 0, "the worker's own load completed no message");
        Ok(bench)
    }

    /// Measures the rate of a program relative to that of the worker's own load.
    fn rate(
        &self,
        load: BenchLoad,
        what: ProgramOperation,
        len: u32,
        pairs: usize,
        row: &mut Row,
    ) -> anyhow::Result<()> {
        let depth = depth(what);
        let mut ends = Ends::connect(&self.programs, len, depth)?;
        let rates = alternate(pairs, ratio, |side| match (side, load) {
            (0, BenchLoad::Write) => ends.write_for(SLICE),
            (0, _) => ends.send_for(SLICE),
            _ => Ok(self.own_load(load, len, depth)?.messages_per_s),
        })?;
        rates.add_to(row, ["program_per_s", "own_per_s"]);
        row.add_extra("pairs", pairs as f64);
        Ok(())
    }

    /// Measures the echo between two programs, and inside the worker.
    fn echo(&self, len: u32, pairs: usize, row: &mut Row) -> anyhow::Result<()> {
        let mut ends = Ends::connect(&self.programs, len, 1)?;
        let per_side = |programs: f64, worker: f64| (programs - worker) / 2.0;
        let medians = alternate(pairs, per_side, |side| match side {
            0 => Ok(p50_us(&ends.echo_for(SLICE)?)),
            _ => {
                let bench = self.own_load(BenchLoad::Echo, len, 1)?;
                Ok(bench.latency.context("no echo was timed")?.p50_ns as f64 * 1e-3)
            }
        })?;
        medians.add_to(row, ["programs_p50_us", "worker_p50_us"]);
        Ok(())
    }

    /// Measures the echo to a program that sleeps, and to a program that polls.
    fn event(&self, pause: Duration, pairs: usize, row: &mut Row) -> anyhow::Result<()> {
        let end = ends::Echoed::connect(&self.programs, local(ECHO))?;
        let difference = |sleeping: f64, polling: f64| sleeping - polling;
        let medians = alternate(pairs, difference, |side| {
            Ok(p50_us(&match side {
                // A slice has several messages despite the pauses.
                0 => end.sleep_for(SLICE.max(20 * pause), pause)?,
                _ => end.poll_for(SLICE)?,
            }))
        })?;
        medians.add_to(row, ["event_p50_us", "poll_p50_us"]);
        Ok(())
    }
}

fn p50_us(latencies: &Latencies) -> f64 {
    latencies.0.value_at_quantile(0.5) as f64 * 1e-3
}

fn ratio(first: f64, second: f64) -> f64 {
    first / second
}

/// Result of alternating slices of two measurements, A and B.
struct Alternated {
    /// Median of the row's comparison (a ratio or a difference) of each A slice with the B slice beside it.
    compared: f64,
    /// Median of the A slices, and median of the B slices.
    sides: [f64; 2],
}

impl Alternated {
    /// Sets the value of the row, and adds the median of each side under its name.
    fn add_to(&self, row: &mut Row, names: [&str; 2]) {
        row.set(self.compared);
        for (name, side) in names.into_iter().zip(self.sides) {
            row.add_extra(name, side);
        }
    }
}

/// Measures `pairs` pairs of adjacent slices, after a pair as warm-up, in the order AB as often as BA. `slice` measures
/// a slice of side 0 (A) or 1 (B). `compare` compares the two slices of a pair.
fn alternate(
    pairs: usize,
    compare: impl Fn(f64, f64) -> f64,
    mut slice: impl FnMut(usize) -> anyhow::Result<f64>,
) -> anyhow::Result<Alternated> {
    let (mut compared, mut sides) = (Vec::new(), [Vec::new(), Vec::new()]);
    for pair in 0..=pairs {
        let mut now = [0.0; 2];
        for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            now[side] = slice(side)?;
        }
        if pair > 0 {
            compared.push(compare(now[0], now[1]));
            (0..2).for_each(|side| sides[side].push(now[side]));
        }
    }
    Ok(Alternated { compared: median(&compared), sides: sides.map(|side| median(&side)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appliance_accepts_the_configuration_file() {
        for polls in [false, true] {
            let text = config_text(Path::new("/tmp"), 0, polls);
            let config = end_config::parse_config(&text).unwrap();
            assert!(config.management.bench && config.programs.is_some());
        }
    }

    #[test]
    fn slices_have_both_orders_after_a_warm_up() {
        let mut slices = Vec::new();
        let alternated = alternate(2, ratio, |side| {
            slices.push(side);
            // The warm-up's values are a hundredth of the others, so that they would change the medians.
            let value = if side == 0 { 6.0 } else { 2.0 };
            Ok(if slices.len() <= 2 { value / 100.0 } else { value })
        })
        .unwrap();
        assert_eq!(slices, [0, 1, 1, 0, 0, 1]);
        assert_eq!((alternated.compared, alternated.sides), (3.0, [6.0, 2.0]));
    }
}
