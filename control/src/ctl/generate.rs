//! Shell completions and man pages, made from the command lines themselves.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;

use super::Args;
use super::exit::{Exit, Failure};
use crate::daemon;

/// A shell's completions of `ddpctl`.
pub(super) fn completions(shell: clap_complete::Shell, out: &mut dyn Write) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "ddpctl", &mut text);
    Ok(out.write_all(&text)?)
}

/// A page for each command of both programs.
pub(super) fn man(directory: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("{}: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    for command in [Args::command(), daemon::Args::command()] {
        clap_mangen::generate_to(command, directory).map_err(failed)?;
    }
    Ok(())
}
