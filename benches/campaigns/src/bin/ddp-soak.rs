//! Runs a soak: streams of all kinds under faults, after which all resources must be back.
//! `scripts/soak` makes the namespaces.
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
