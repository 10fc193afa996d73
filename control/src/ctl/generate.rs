//! Shell completions and man pages, made from the command lines themselves.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;

use super::Args;
use super::exit::{Exit, Failure};
use crate::{config, daemon};

/// A shell's completions of `ddpctl`.
pub(super) fn completions(shell: clap_complete::Shell, out: &mut dyn Write) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "ddpctl", &mut text);
    Ok(out.write_all(&text)?)
}

/// A page for each command of both programs, and of the configuration file a page, a JSON schema and an example.
pub(super) fn man(directory: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("{}: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    for command in [Args::command(), daemon::Args::command()] {
        clap_mangen::generate_to(command, directory).map_err(failed)?;
    }
    let keys = config::keys();
    let files = [
        ("ddpd.toml.5", config::man(&keys)),
        ("ddpd.schema.json", format!("{:#}\n", config::schema(&keys))),
        ("ddpd.reference.toml", config::example(&keys)),
    ];
    files
        .into_iter()
        .try_for_each(|(name, text)| std::fs::write(directory.join(name), text).map_err(failed))
}
