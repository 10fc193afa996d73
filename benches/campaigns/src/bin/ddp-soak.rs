//! Soak test: opens and closes streams of all kinds under faults, then checks that all resources are released.
//! `scripts/soak` creates the network namespaces.
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
