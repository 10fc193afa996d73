//! Loads an appliance with a packet generator. `run` accounts for every frame, `rfc2544` searches for the highest rate,
//! and `publish` inserts the results of both into the documents.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use load::generator::{Generator, Kind};
use load::peer_work::TestFiles;
use load::profile::{Case, cases};
use load::rfc2544::{self, SIZES, SearchResults};
use load::run::{self, Plan, Results};
use load::testbed::{Cores, Testbed};
use load::{profile, report};

#[derive(Parser)]
#[command(about = "Load an appliance with a packet generator and account for every frame")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run profiles, by default all
    Run {
        /// Names of profiles
        profiles: Vec<String>,
        /// Directory of the profiles
        #[arg(long, default_value = "scripts/load.d")]
        directory: PathBuf,
        /// Run some profiles for 1.5 s each
        #[arg(long, conflicts_with_all = ["profiles", "seconds"])]
        short: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Search for the highest rate of frames of 64 to 1518 bytes
    Rfc2544 {
        /// Only these frame sizes, bytes with FCS
        sizes: Vec<u32>,
        #[command(flatten)]
        common: Common,
    },
    /// Publish the results in docs/load-testing.md of a repository
    Publish {
        /// Path of the repository
        root: PathBuf,
        /// Directory with results.json and rfc2544.json
        #[arg(long, default_value = "target/load")]
        out: PathBuf,
    },
}

#[derive(clap::Args)]
struct Common {
    /// Path of the load generator: dpdk-testpmd, which replays captures, or Pktgen-DPDK
    #[arg(long)]
    program: PathBuf,
    /// Treat the load generator as Pktgen-DPDK
    #[arg(long)]
    pktgen: bool,
    /// Path of ddpd
    #[arg(long)]
    ddpd: PathBuf,
    /// Seconds of each run (default 5) or of each RFC 2544 trial (default 10)
    #[arg(long)]
    seconds: Option<f64>,
    /// Directory for the results
    #[arg(long, default_value = "target/load")]
    out: PathBuf,
    /// Cores of the generator and the appliance
    #[arg(long, num_args = 2, default_values_t = [0, 1])]
    cores: Vec<usize>,
}

/// Number of frames in a profile's capture.
const CAPTURE_FRAMES: usize = 4096;

/// Seconds of each profile of a short run.
const SHORT_SECONDS: f64 = 1.5;

/// Minimum seconds per profile of a run whose results count as complete.
const WHOLE_SECONDS: f64 = 5.0;

fn main() -> ExitCode {
    match execute(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run { profiles, directory, short, common } => {
            let cases = if short { profile::short_cases() } else { cases(&profiles)? };
            let seconds =
                if short { SHORT_SECONDS } else { common.seconds.unwrap_or(WHOLE_SECONDS) };
            run(cases, seconds, directory, &common)
        }
        Command::Rfc2544 { sizes, common } => search(&sizes, &common),
        Command::Publish { root, out } => publish(&root, &out),
    }
}

/// Test bed and generator of `run` and `rfc2544`.
struct Rig {
    bed: Testbed,
    generator: Generator,
    directory: tempfile::TempDir,
}

impl Rig {
    fn start(common: &Common) -> anyhow::Result<Rig> {
        let [generator, target] = common.cores[..] else { anyhow::bail!("--cores takes two") };
        let directory = tempfile::tempdir()?;
        let eal = dpdk::Eal::start(&dpdk::EalConfig {
            memory_mib: 384,
            // A vhost-user backend maps at most 8 memory files of its frontend. This option keeps the number of files
            // below that.
            extra: vec!["--single-file-segments".into()],
            log_level: dpdk::LogLevel::Error,
            log: |level, line| eprintln!("dpdk {level:?}: {line}"),
            ..dpdk::EalConfig::default()
        })?;
        let bed =
            Testbed::start(&common.ddpd, &eal, directory.path(), Cores { generator, target })?;
        let kind = if common.pktgen { Kind::Pktgen } else { Kind::Testpmd };
        let (program, core) = (common.program.clone(), generator);
        let generator = Generator { kind, program, core };
        Ok(Rig { bed, generator, directory })
    }
}

fn run(
    cases: Vec<Case>,
    seconds: f64,
    directory: PathBuf,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    let rig = Rig::start(common)?;
    let files = TestFiles::create(rig.directory.path())?;
    let plan = Plan {
        time: Duration::from_secs_f64(seconds),
        directory: rig.directory.path().to_owned(),
        profiles: directory,
        frames: CAPTURE_FRAMES,
    };
    let mut results = Results {
        generator: rig.generator.kind,
        seconds,
        whole: cases.len() == profile::cases(&[])?.len() && seconds >= WHOLE_SECONDS,
        machine: benches::machine::describe(),
        outcomes: Vec::new(),
    };
    let mut failed = 0;
    for case in cases {
        let name = case.name();
        let of = if name.one_source { ", one source" } else { "" };
        let outcome = run::run(&rig.bed, &rig.generator, case, &plan, &files)
            .with_context(|| format!("{}{of}", name.profile))?;
        let verdict = if outcome.failures.is_empty() { "ok" } else { "FAILED" };
        eprintln!("{verdict:7} {}{of}", name.profile);
        outcome.failures.iter().for_each(|failure| eprintln!("        {failure}"));
        failed += usize::from(!outcome.failures.is_empty());
        results.outcomes.push(outcome);
    }
    save(&common.out.join("results.json"), &results)?;
    println!("{}", report::format_tables(&results));
    println!("{}/results.json has all results", common.out.display());
    if failed > 0 {
        eprintln!("{failed} of {} profiles failed", results.outcomes.len());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn search(sizes: &[u32], common: &Common) -> anyhow::Result<ExitCode> {
    let sizes = if sizes.is_empty() { &SIZES[..] } else { sizes };
    anyhow::ensure!(
        sizes.iter().all(|size| (64..=1518).contains(size)),
        "a frame has 64 to 1518 bytes"
    );
    let rig = Rig::start(common)?;
    // RFC 2544 §24 requires trials of 60 s; `--seconds 60` selects them.
    let seconds = common.seconds.unwrap_or(10.0);
    let mut found = SearchResults {
        generator: rig.generator.kind,
        seconds,
        machine: benches::machine::describe(),
        rates: Vec::new(),
    };
    let time = Duration::from_secs_f64(seconds);
    for &size in sizes {
        let rate = rfc2544::search(&rig.bed, &rig.generator, size, time, rig.directory.path())?;
        eprintln!("{size} bytes: {:.0} frames/s without loss", rate.no_loss);
        found.rates.push(rate);
    }
    save(&common.out.join("rfc2544.json"), &found)?;
    println!("{}", report::rates_table(&found.rates));
    println!("{}/rfc2544.json has all results", common.out.display());
    Ok(ExitCode::SUCCESS)
}

fn save(path: &Path, value: &impl serde::Serialize) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    Ok(std::fs::write(path, serde_json::to_string_pretty(value)?)?)
}

fn publish(root: &Path, out: &Path) -> anyhow::Result<ExitCode> {
    let read = |name: &str| {
        let path = out.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("no run: {}", path.display()))
    };
    report::publish(&serde_json::from_str(&read("results.json")?)?, root)?;
    if out.join("rfc2544.json").exists() {
        report::publish_rates(&serde_json::from_str(&read("rfc2544.json")?)?, root)?;
    }
    Ok(ExitCode::SUCCESS)
}
