//! Shell completions and man pages, generated from the definitions of the command lines.

mod sections;

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;

use super::Args;
use super::args::ManualProgram;
use super::exit::{Exit, Failure};

/// Prints a shell's completions for a program.
pub(super) fn completions(
    shell: clap_complete::Shell,
    program: ManualProgram,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (name, mut command) = match program {
        ManualProgram::Ddpctl => ("ddpctl", Args::command()),
        ManualProgram::Ddpd => ("ddpd", daemon::Args::command()),
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    Ok(out.write_all(&text)?)
}

/// Writes a man page for each command of both programs, and for the configuration file a page, a JSON schema and an
/// example.
pub(super) fn man(directory: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("{}: {error}", directory.display()))
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    for (command, section, more) in [
        (Args::command(), "1", sections::ddpctl()),
        (daemon::Args::command(), "8", sections::ddpd()),
    ] {
        // In the man page, the sections below replace clap's after-help text.
        let mut command = command.disable_help_subcommand(true).after_help(None::<&str>);
        command.build();
        write_pages(&command, section, directory).map_err(failed)?;
        let page = directory.join(format!("{}.{section}", command.get_name()));
        append(&page, &more).map_err(failed)?;
    }
    let keys = config::keys();
    let files = [
        ("ddpd.toml.5", config::render_man(&keys)),
        ("ddpd.schema.json", format!("{:#}\n", config::file_schema(&keys))),
        ("ddpd.reference.toml", config::render_example(&keys)),
    ];
    files
        .into_iter()
        .try_for_each(|(name, text)| std::fs::write(directory.join(name), text).map_err(failed))
}

/// Appends roff sections to a generated page.
fn append(page: &Path, sections: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().append(true).open(page)?.write_all(sections.as_bytes())
}

/// Writes the pages of a command and of its subcommands.
fn write_pages(command: &clap::Command, section: &str, directory: &Path) -> std::io::Result<()> {
    command
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
        .try_for_each(|subcommand| write_pages(subcommand, section, directory))?;
    // All subcommand pages have the same section number, because references between pages contain it.
    let release = concat!("ddpd ", env!("CARGO_PKG_VERSION"));
    let page = clap_mangen::Man::new(command.clone()).section(section).source(release);
    page.generate_to(directory).map(drop)
}
