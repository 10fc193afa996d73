//! Loads an appliance with a packet generator and accounts for every frame (`run`), or searches for the highest rate
//! (`rfc2544`).
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use load::bed::{Bed, Cores};
use load::generator::{Generator, Kind};
use load::profile::cases;
use load::run::{self, Plan};
use load::work::Files;

#[derive(Parser)]
#[command(about = "Loads an appliance with a packet generator and accounts for every frame")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs profiles, all of them unless some are named
    Run(RunArguments),
}

#[derive(clap::Args)]
struct RunArguments {
    /// Names of profiles
    profiles: Vec<String>,
    /// The program that makes load: dpdk-testpmd, which replays captures, or Pktgen-DPDK
    #[arg(long)]
    program: PathBuf,
    /// The program is Pktgen-DPDK
    #[arg(long)]
    pktgen: bool,
    /// The appliance's program
    #[arg(long)]
    ddpd: PathBuf,
    /// Directory of the profiles
    #[arg(long, default_value = "scripts/load.d")]
    directory: PathBuf,
    /// Seconds of each time
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

fn main() -> ExitCode {
    let Command::Run(arguments) = Arguments::parse().command;
    match execute(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(arguments: RunArguments) -> anyhow::Result<bool> {
    let cases = cases(&arguments.profiles)?;
    let directory = tempfile::tempdir()?;
    let eal = dpdk::Eal::start(&dpdk::EalConfig {
        memory_mib: 384,
        // A vhost-user backend maps 8 files of its frontend's memory at most.
        extra: vec!["--single-file-segments".into()],
        log_level: dpdk::LogLevel::Warning,
        log: |level, line| eprintln!("dpdk {level:?}: {line}"),
        ..dpdk::EalConfig::default()
    })?;
    let cores = Cores { generator: 0, target: 1 };
    let bed = Bed::start(&arguments.ddpd, &eal, directory.path(), cores)?;
    let files = Files::make(directory.path())?;
    let kind = if arguments.pktgen { Kind::Pktgen } else { Kind::Testpmd };
    let generator = Generator { kind, program: arguments.program, core: cores.generator };
    let plan = Plan {
        time: Duration::from_secs_f64(arguments.seconds),
        directory: directory.path().to_owned(),
        profiles: arguments.directory,
        frames: 4096,
    };
    for case in cases {
        let outcome = run::run(&bed, &generator, case, &plan, &files)?;
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    }
    Ok(true)
}
