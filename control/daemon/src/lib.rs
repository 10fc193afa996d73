//! Command line of `ddpd`, and the commands that need no data plane, such as `ddpd check`.

#![forbid(unsafe_code)]

mod build_info;
mod capabilities;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::plural::counted;
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use config::{self, Document, MachineFinding};

use crate::capabilities::Report;

/// Exit code if the command line, a configuration file or the machine is unsuitable.
pub const EXIT_CONFIG: u8 = 2;

/// Serve memory to DDP peers through DPDK ports.
#[derive(Debug, Parser)]
#[command(
    name = "ddpd",
    disable_version_flag = true,
    args_conflicts_with_subcommands = true,
    after_help = "Exit codes: 0 ended on request, 1 failed while running, 2 the command line, a configuration \
                  file or the machine is unsuitable.\nSignals: TERM and INT drain and exit, HUP reloads the \
                  configuration."
)]
pub struct Args {
    /// Configuration file; may be repeated, for several appliances in one process
    #[arg(long = "config", short = 'c', value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Log filter instead of management.log, such as debug or info,control=debug
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Print the versions of ddpd and libdpdk, the commit and the features
    #[arg(long, short = 'V')]
    pub version: bool,
    /// Command to run instead of an appliance
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Commands of `ddpd`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Report all errors of configuration files, and the resources that they need and this machine lacks
    Check {
        /// Configuration files; several are checked as the appliances of one process
        #[arg(value_name = "FILE", required_unless_present = "config")]
        files: Vec<PathBuf>,
        /// FILE as an option, as in ddpd without a command
        #[arg(long = "config", short = 'c', value_name = "FILE")]
        config: Vec<PathBuf>,
        /// Check only the files, not devices, hugepages and permissions
        #[arg(long)]
        no_machine: bool,
        /// Only print the capabilities that the ports require, per port and in total, with lines for a systemd unit
        #[arg(long, conflicts_with = "no_machine")]
        capabilities: bool,
        /// With --capabilities: print JSON, one object
        #[arg(long, requires = "capabilities")]
        json: bool,
    },
    /// Print the JSON Schema of the configuration file, for editors
    Schema,
    /// Print the OpenAPI description of the management API
    Openapi,
    /// Examine this host, with or without configuration files: report slow, wrong or missing items, each with cause and
    /// remedy
    #[command(
        after_help = "Exit codes: 0 no errors were found, 1 there are errors, 2 a configuration file cannot \
                            be read. Nothing is changed."
    )]
    Doctor {
        /// Configuration file; several are examined as the appliances of one process
        #[arg(long = "config", short = 'c', value_name = "FILE")]
        config: Vec<PathBuf>,
        /// Configuration files, equivalent to --config
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print JSON, a list of objects
        #[arg(long)]
        json: bool,
        /// Print the remedies as a shell script in which every command is commented out
        #[arg(long, conflicts_with = "json")]
        script: bool,
    },
}

/// Output format of `ddpd doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoctorFormat {
    /// Human-readable text.
    Text,
    /// A JSON array of objects.
    Json,
    /// A shell script with the remedies, in which every command is commented out.
    Script,
}

/// Returns version, commit and features as three lines. `dpdk`: version of libdpdk, if known.
pub fn version(dpdk: Option<&str>) -> String {
    build_info::text(dpdk)
}

/// If the command is unknown, returns a hint to use `--config`: usually the user has passed the path of a configuration
/// file as the command. `None` for any other error.
pub fn usage_hint(error: &clap::Error) -> Option<String> {
    let ContextValue::String(word) = error.get(ContextKind::InvalidSubcommand)? else {
        return None;
    };
    let is_file = word.contains(['/', '.']) || Path::new(word).exists();
    let file = if is_file { word.as_str() } else { "FILE" };
    Some(format!("to run an appliance write: ddpd --config {file}"))
}

/// Function that compares a configuration with this machine. Returns errors and notes.
pub type FindOnMachine<'a> = &'a dyn Fn(&Document) -> Vec<MachineFinding>;

/// Checks the files. Prints to `out`, in this order, one line per item:
///
/// 1. all errors of the files; if there are any, nothing else is printed;
/// 2. notes about ring links that only one port uses;
/// 3. with `machine`, errors and notes about the machine;
/// 4. without errors, a summary of each file.
///
/// The exit code is 2 if there are errors, else 0.
pub fn check(
    files: &[PathBuf],
    machine: Option<FindOnMachine<'_>>,
    out: &mut dyn Write,
) -> std::io::Result<ExitCode> {
    let Some(documents) = load(files, out)? else { return Ok(ExitCode::from(EXIT_CONFIG)) };
    for error in config::check_one_ended_links(&documents) {
        writeln!(out, "note: {error}")?;
    }
    let mut failed = false;
    if let Some(machine) = machine {
        for finding in documents.iter().flat_map(machine) {
            match finding {
                MachineFinding::Error(error) => {
                    failed = true;
                    writeln!(out, "{error}")?;
                }
                MachineFinding::Note(note) => writeln!(out, "note: {note}")?,
            }
        }
    }
    if failed {
        return Ok(ExitCode::from(EXIT_CONFIG));
    }
    for document in &documents {
        let config = &document.config;
        writeln!(
            out,
            "{}: valid: appliance \"{}\" with {}, {}, {} and {}",
            config.file.display(),
            config.name,
            counted(config.workers.len(), "worker"),
            counted(config.ports.len(), "port"),
            counted(config.regions.len(), "region"),
            counted(config.listeners.len(), "listener"),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the JSON Schema of the configuration file.
pub fn print_schema(out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{:#}", config::file_schema(&config::keys()))
}

/// Prints the OpenAPI description of the management API.
pub fn print_openapi(out: &mut dyn Write) -> std::io::Result<()> {
    writeln!(out, "{:#}", api::openapi())
}

/// Prints the capabilities that the configured ports need. The exit code is 2 if a file has errors.
pub fn capabilities(
    files: &[PathBuf],
    json: bool,
    out: &mut dyn Write,
) -> std::io::Result<ExitCode> {
    let Some(documents) = load(files, out)? else { return Ok(ExitCode::from(EXIT_CONFIG)) };
    let configs = documents.iter().map(|document| &document.config);
    let report = Report::for_configs(Path::new("/"), configs);
    if json {
        report.json(out)?
    } else {
        report.text(out)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads the files. If there are errors, prints them to `out` and returns `None`.
fn load(files: &[PathBuf], out: &mut dyn Write) -> std::io::Result<Option<Vec<Document>>> {
    match config::load_all(files) {
        Ok(documents) => Ok(Some(documents)),
        Err(errors) => writeln!(out, "{errors}").map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(files: &[PathBuf]) -> (bool, String) {
        let mut out = Vec::new();
        let code = check(files, None, &mut out).unwrap();
        (code == ExitCode::SUCCESS, String::from_utf8(out).unwrap())
    }

    fn example(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name)
    }

    #[test]
    fn valid_files_pass_check() {
        let (good, text) = run(&[example("demo.toml"), example("demo-peer.toml")]);
        assert!(good, "{text}");
        assert!(!text.contains("note:"), "{text}");
        assert!(
            text.contains(
                "valid: appliance \"demo\" with 1 worker, 1 port, 1 region and 2 listeners"
            )
        );
    }

    #[test]
    fn unpaired_ring_link_is_noted_and_passes_check() {
        let (good, text) = run(&[example("demo.toml")]);
        assert!(good, "{text}");
        assert!(text.contains("port.link: \"demo\" has one end only"), "{text}");
    }

    #[test]
    fn file_without_option_gets_the_command_line_to_run_it() {
        let hint = |word: &str| {
            let error = Args::try_parse_from(["ddpd", word]).unwrap_err();
            usage_hint(&error)
        };
        let run = |file: &str| Some(format!("to run an appliance write: ddpd --config {file}"));
        assert_eq!(hint("appliance.toml"), run("appliance.toml"));
        assert_eq!(hint("/etc/ddpd/a"), run("/etc/ddpd/a"));
        assert_eq!(hint("run"), run("FILE"));
        assert_eq!(hint("--colour"), None);
    }

    #[test]
    fn findings_on_the_machine_are_printed_and_errors_fail_check() {
        let finding = |document: &Document| config::ConfigError {
            file: document.config.file.clone(),
            line: 3,
            key: "interface.addresses".into(),
            message: "the kernel has it, too".into(),
        };
        let run = |machine: FindOnMachine<'_>| {
            let mut out = Vec::new();
            let code = check(&[example("demo.toml")], Some(machine), &mut out).unwrap();
            (code == ExitCode::SUCCESS, String::from_utf8(out).unwrap())
        };
        let (good, text) = run(&|document| vec![MachineFinding::Note(finding(document))]);
        let line = "demo.toml:3: interface.addresses: the kernel has it, too\n";
        assert!(good && text.contains("note: ") && text.contains(line), "{text}");
        let (good, text) = run(&|document| vec![MachineFinding::Error(finding(document))]);
        assert!(!good && text.contains(line) && !text.contains("right"), "{text}");
    }

    #[test]
    fn check_prints_every_error_of_every_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bad.toml");
        std::fs::write(&file, "colour = 1\n[workers]\ncount = 0\n").unwrap();
        let (good, text) = run(&[dir.path().join("none.toml"), file]);
        assert!(!good);
        assert!(text.contains("none.toml: cannot be read: "), "{text}");
        assert!(text.contains("bad.toml:1: colour: is not a known key"), "{text}");
        assert!(
            text.contains("bad.toml:3: workers.count: is 0, but must be from 1 to 128"),
            "{text}"
        );
    }

    #[test]
    fn printed_schema_and_openapi_match_docs() {
        let (mut schema, mut openapi) = (Vec::new(), Vec::new());
        print_schema(&mut schema).unwrap();
        print_openapi(&mut openapi).unwrap();
        assert!(schema == include_bytes!("../../../docs/ddpd.schema.json"));
        assert!(openapi == include_bytes!("../../../docs/openapi.json"));
    }

    #[test]
    fn command_line_definition_is_valid() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        let args = Args::try_parse_from(["ddpd", "-c", "a", "--config", "b", "--log", "debug"]);
        assert_eq!(args.unwrap().config.len(), 2);
        assert!(Args::try_parse_from(["ddpd", "check"]).is_err());
        assert!(Args::try_parse_from(["ddpd", "schema"]).is_ok());
        assert!(Args::try_parse_from(["ddpd", "openapi"]).is_ok());
        assert!(Args::try_parse_from(["ddpd", "doctor"]).is_ok());
        assert!(Args::try_parse_from(["ddpd", "doctor", "-c", "a", "--json"]).is_ok());
        assert!(Args::try_parse_from(["ddpd", "doctor", "--script", "--json"]).is_err());
        assert!(Args::command().render_help().to_string().contains("doctor"));
    }
}
