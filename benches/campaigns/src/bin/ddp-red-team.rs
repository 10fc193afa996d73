//! Attacks an appliance while good peers transfer data, and judges each attack. `scripts/red-team` creates the network
//! namespaces.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use campaigns::red_team::{Arguments, run};
use clap::Parser as _;

fn main() -> ExitCode {
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
