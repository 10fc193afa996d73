//! Runs a soak: streams of all kinds under faults. At the end all resources must be released. `scripts/soak` creates
//! the network namespaces.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use campaigns::soak::{Arguments, run};
use clap::Parser as _;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(report) => {
            println!("{}", report.text);
            if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("ddp-soak: {error:#}");
            ExitCode::from(2)
        }
    }
}
