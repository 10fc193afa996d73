//! Counts the instructions of the hot paths (`hot`, `hot-worker`, `hot-programs`) and compares them with the baseline.
//! It is a separate program, so that the gate does not build the other benchmarks.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(about = "Count the instructions of the hot paths and compare them with the baseline")]
struct Arguments {
    /// Path of the baseline
    #[arg(long, default_value = "benches/instructions.toml")]
    baseline: PathBuf,
    /// Write the counts to the baseline
    #[arg(long)]
    bless: bool,
}

fn main() -> ExitCode {
    let Arguments { baseline, bless } = Arguments::parse();
    match benches::instructions::check(&baseline, bless) {
        Ok(verdict) => verdict.exit_code().into(),
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
