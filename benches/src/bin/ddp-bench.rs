//! Runs benchmarks: `ddp-bench run`; the other commands are its own processes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use benches::cell::{self, Cell};
use benches::instructions;
use benches::plan::{Means, PAIRED, Task};
use benches::run::{self, Results};
use benches::{appliance, limits, peers, report};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    about = "Benchmarks of the appliance, beside its limits and what users would pick instead"
)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Measures everything, or the groups named, and writes results and report
    Run {
        /// Less of everything, in under three minutes
        #[arg(long)]
        quick: bool,
        /// Seconds of each measurement, to see that all of them run
        #[arg(long)]
        seconds: Option<f64>,
        /// Repetitions of each group at most; with --against, of each row
        #[arg(long)]
        repetitions: Option<u32>,
        /// Sets this program beside another one, built of another commit: each row by both in turn
        #[arg(long, value_name = "BINARY", conflicts_with = "publish")]
        against: Option<PathBuf>,
        /// Only this group; may stand several times
        #[arg(long)]
        only: Vec<String>,
        /// Where results.json and report.html go
        #[arg(long, default_value = "target/bench")]
        out: PathBuf,
        /// The two cores
        #[arg(long, num_args = 2, default_values_t = [0, 1])]
        cores: Vec<usize>,
        /// The two interfaces of a veth pair for ports
        #[arg(long, num_args = 2)]
        veth: Vec<String>,
        /// Also shows it in README.md and docs/ of the repository at this path; only a whole run
        #[arg(long, value_name = "REPOSITORY")]
        publish: Option<PathBuf>,
    },
    /// Writes the report of a results.json again
    Report {
        /// The directory with results.json
        #[arg(default_value = "target/bench")]
        out: PathBuf,
        /// Also shows it in README.md and docs/ of the repository at this path; only a whole run
        #[arg(long, value_name = "REPOSITORY")]
        publish: Option<PathBuf>,
    },
    /// Counts the instructions of the hot paths and compares them with the baseline
    Instructions {
        /// The baseline
        #[arg(long, default_value = "benches/instructions.toml")]
        baseline: PathBuf,
        /// Makes what is counted the baseline
        #[arg(long)]
        bless: bool,
    },
    /// Measures one thing, given as JSON, and prints its row
    #[command(hide = true)]
    Task { json: String },
    /// Is the other process of a measurement
    #[command(hide = true)]
    Serve { json: String },
}

fn main() -> ExitCode {
    match go(Arguments::parse().what) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn go(what: What) -> anyhow::Result<ExitCode> {
    match what {
        What::Run { quick, seconds, repetitions, against, only, out, cores, veth, publish } => {
            let sockets = tempfile::tempdir()?;
            let means = Means {
                quick,
                seconds,
                repetitions,
                cores: [cores[0], cores[1]],
                veth: <[String; 2]>::try_from(veth).ok(),
                sockets: sockets.path().display().to_string(),
            };
            if let Some(other) = against {
                let n = repetitions.unwrap_or(if quick { 3 } else { PAIRED });
                let all = run::against(&means, &only, &other, n)?;
                std::fs::create_dir_all(&out)?;
                std::fs::write(out.join("against.json"), serde_json::to_string_pretty(&all)?)?;
                println!("{}", run::compared(&all));
                println!("{}/against.json has it all", out.display());
                return Ok(ExitCode::SUCCESS);
            }
            let results = run::run(&means, &only)?;
            run::write(&results, &out)?;
            report::write(&results, &out)?;
            println!("{}", run::table(&results));
            let directory = out.display();
            println!("{directory}/results.json and {directory}/report.html have it all");
            publish.map_or(Ok(()), |root| report::publish(&results, &root))?;
        }
        What::Report { out, publish } => {
            let text = std::fs::read_to_string(out.join("results.json"))?;
            let results: Results = serde_json::from_str(&text)?;
            report::write(&results, &out)?;
            publish.map_or(Ok(()), |root| report::publish(&results, &root))?;
        }
        What::Instructions { baseline, bless } => {
            return Ok(instructions::check(&baseline, bless)?.exit_code().into());
        }
        What::Task { json } => {
            let row = match serde_json::from_str(&json)? {
                Task::Cell(cell) => cell::measure(&cell, None)?,
                Task::Limit(limit) => limits::measure(&limit)?,
                Task::Peer(peer) => peers::measure(&peer)?,
                Task::Appliance(task) => appliance::measure(&task)?,
            };
            println!("{}", serde_json::to_string(&row)?);
        }
        What::Serve { json } => {
            let cell: Cell = serde_json::from_str(&json)?;
            cell::serve(&cell)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
