//! Attacks an appliance while good peers transfer data, and judges each attack. `scripts/red-team` creates the network
//! namespaces.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use campaigns::programs;
use campaigns::red_team::{Arguments, run};
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
            if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("ddp-red-team: {error:#}");
            ExitCode::from(2)
        }
    }
}
