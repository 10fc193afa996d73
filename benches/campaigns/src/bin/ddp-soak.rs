//! Soak test: opens and closes streams of all kinds under faults, then checks that all resources are released.
//! `scripts/soak` creates the network namespaces.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use campaigns::programs;
use campaigns::soak::{Arguments, run};
use clap::Parser as _;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == programs::SUBCOMMAND) {
        return match programs::main() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
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
