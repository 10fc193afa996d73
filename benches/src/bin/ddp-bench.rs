//! Runs benchmarks (`run`) and writes the report of an earlier run again (`report`). The child processes of a run use
//! the subcommands `task` and `serve`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use benches::cell::{self, Cell};
use benches::plan::{PAIRED_REPETITIONS, RunOptions, Task};
use benches::run::{self, Results};
use benches::{appliance, floods, limits, peers, report};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measure the appliance, and its limits and alternatives for comparison")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure all groups, or some, and write results and report
    Run(RunArguments),
    /// Write the report of a results.json again
    Report {
        /// Directory with results.json
        #[arg(default_value = "target/bench")]
        out: PathBuf,
        /// Also publish the results in README.md and docs/ of the repository at this path; only for a complete run
        #[arg(long, value_name = "REPOSITORY")]
        publish: Option<PathBuf>,
    },
    /// Measure one task, given as JSON, and print its row
    #[command(hide = true)]
    Task { json: String },
    /// Run as the other process of a measurement
    #[command(hide = true)]
    Serve { json: String },
}

#[derive(clap::Args)]
struct RunArguments {
    /// Measure fewer rows, for less time and with fewer repetitions, in under three minutes
    #[arg(long)]
    quick: bool,
    /// Duration of each measurement in seconds; a short one only checks that all of them run
    #[arg(long)]
    seconds: Option<f64>,
    /// Maximum repetitions per group; with --against, per row
    #[arg(long)]
    repetitions: Option<u32>,
    /// Compare this program with a build of another commit; the two alternate for each row
    #[arg(long, value_name = "BINARY", conflicts_with = "publish")]
    against: Option<PathBuf>,
    /// Only this group; may be repeated
    #[arg(long)]
    only: Vec<String>,
    /// Directory for results.json and report.html
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// The two cores to use
    #[arg(long, num_args = 2, default_values_t = [0, 1])]
    cores: Vec<usize>,
    /// The two interfaces of a veth pair for ports
    #[arg(long, num_args = 2)]
    veth: Vec<String>,
    /// Also publish the results in README.md and docs/ of the repository at this path; only for a complete run
    #[arg(long, value_name = "REPOSITORY")]
    publish: Option<PathBuf>,
}

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
        Command::Run(arguments) => run(arguments)?,
        Command::Report { out, publish } => {
            let text = std::fs::read_to_string(out.join("results.json"))?;
            let results: Results = serde_json::from_str(&text)?;
            report::write(&results, &out)?;
            publish.map_or(Ok(()), |root| report::publish(&results, &root))?;
        }
        Command::Task { json } => {
            let row = match serde_json::from_str(&json)? {
                Task::Cell(cell) => cell::measure_cell(&cell, None)?,
                Task::Limit(limit) => limits::measure(&limit)?,
                Task::Peer(peer) => peers::measure(&peer)?,
                Task::Flood(flood) => floods::measure(&flood)?,
                Task::Gcm(gcm) => gcm.measure()?,
                Task::Stalls(stalls) => stalls.measure()?,
                Task::Appliance(task) => appliance::measure(&task)?,
            };
            println!("{}", serde_json::to_string(&row)?);
        }
        Command::Serve { json } => {
            let cell: Cell = serde_json::from_str(&json)?;
            cell::serve_responder(&cell)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: RunArguments) -> anyhow::Result<()> {
    let RunArguments { quick, seconds, repetitions, against, only, out, cores, veth, publish } =
        arguments;
    let sockets = tempfile::tempdir()?;
    let means = RunOptions {
        quick,
        seconds,
        repetitions,
        cores: pair("--cores", cores)?,
        veth: if veth.is_empty() { None } else { Some(pair("--veth", veth)?) },
        sockets: sockets.path().display().to_string(),
    };
    if let Some(other) = against {
        return compare(&means, &only, &other, &out);
    }
    let results = run::run(&means, &only)?;
    run::write(&results, &out)?;
    report::write(&results, &out)?;
    println!("{}", run::target_table(&results));
    let directory = out.display();
    println!("{directory}/results.json and {directory}/report.html have all results");
    publish.map_or(Ok(()), |root| report::publish(&results, &root))
}

/// Measures alternately with this program and with `other`, and writes `against.json`.
fn compare(means: &RunOptions, only: &[String], other: &Path, out: &Path) -> anyhow::Result<()> {
    let repetitions = means.repetitions.unwrap_or(if means.quick { 3 } else { PAIRED_REPETITIONS });
    let comparisons = run::compare_builds(means, only, other, repetitions)?;
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("against.json"), serde_json::to_string_pretty(&comparisons)?)?;
    println!("{}", run::comparison_table(&comparisons));
    println!("{}/against.json has all results", out.display());
    Ok(())
}

fn pair<T>(option: &str, values: Vec<T>) -> anyhow::Result<[T; 2]> {
    values.try_into().map_err(|_| anyhow::anyhow!("{option} may be given once, with two values"))
}
