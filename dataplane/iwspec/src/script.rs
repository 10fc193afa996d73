//! `iwspec script`: plays packet dialogues against another host.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use dialogue::script::Script;
use iwspec::play::host::{Host, Service, ServiceProtocol, duration};
use iwspec::play::player::{PlaySummary, Tolerance};
use iwspec::play::{PlayError, Session};
use iwspec::raw::SendError;

use crate::RawArgs;

/// Plays packet dialogues against another host, on the raw port. The tester sends the packets of a script to the host.
/// The host must send the packets that the script expects, in time.
///
/// A script is skipped, with the reason, if it requires a local action of the host (connect, write, close) or settings
/// that the host does not have. dataplane/sim/dialogues/README.md describes the format of scripts.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 no script failed, 1 a script failed, 2 the command line, a file or the raw port \
                        is invalid.\n\nExample:\n  iwspec script --raw vs,192.0.2.2 --to 192.0.2.1:7 --takes bytes \
                        dataplane/sim/dialogues/rfc5961-attacks"
)]
pub(crate) struct ScriptArgs {
    /// Scripts, or directories of scripts
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    raw: RawArgs,
    /// Host to test; with a port number, the only service to test
    #[arg(long, value_name = "HOST[:PORT]", value_parser = parse_target)]
    to: (IpAddr, Option<u16>),
    /// Service at --to: "bytes" reads any bytes and keeps the connection open, "mpa" is an MPA responder, "sctp"
    /// accepts sessions of RFC 5043, "nothing" is a closed port
    #[arg(long, default_value = "bytes", conflicts_with = "host")]
    takes: ServiceProtocol,
    /// Setting of the service at --to, as in the `set` lines of scripts; may be repeated
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "host", value_parser = parse_setting)]
    has: Vec<(String, String)>,
    /// File that describes the host (TOML): its services, their settings, and known deviations
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// Tolerance of times: a share of the time since the previous line, plus a constant
    #[arg(long, value_name = "N%+Nms", default_value = "20%+20ms")]
    tolerance: Tolerance,
    /// Longest wait for a line with time *, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    patience: u64,
    /// Longest duration of a script, in seconds; longer scripts are skipped
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    longest: u64,
    /// Attempts per script, for busy machines: a script that fails is played again
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
    attempts: u32,
    /// Print all packets of every script played
    #[arg(long, short)]
    verbose: bool,
}

impl ScriptArgs {
    /// Plays the scripts, and prints a table of the results.
    ///
    /// # Errors
    /// An argument, a file or the raw port is invalid.
    pub(crate) fn run(self, out: &mut dyn Write) -> Result<ExitCode, String> {
        let (host, port) = self.to;
        let raw = self.raw.port()?.ok_or("`script` needs --raw INTERFACE,ADDRESS")?;
        let mut known = self.load_host(port)?;
        // The address family is not a setting of the host: scripts for IPv6 run if the host's address is IPv6.
        let family = if host.is_ipv6() { "6" } else { "4" };
        for service in &mut known.services {
            service.settings.entry("ip".into()).or_insert_with(|| family.into());
        }
        let scripts = read_scripts(&self.files)?;
        let session = Session::open(&raw, host)?;
        let failed = |error: std::io::Error| format!("cannot write to standard output: {error}");
        Runner::new(&self, known, session, out).play(scripts).map_err(failed)
    }

    /// Returns the description of the host, from its file or from the options.
    fn load_host(&self, port: Option<u16>) -> Result<Host, String> {
        match (&self.host, port) {
            (Some(file), _) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| format!("{}: {error}", file.display()))?;
                let mut host: Host = toml::from_str(&text)
                    .map_err(|error| format!("{}: {error}", file.display()))?;
                if let Some(port) = port {
                    host.services.retain(|service| service.port == port);
                }
                Ok(host)
            }
            (None, Some(port)) => {
                let settings = self.has.iter().cloned().collect();
                let services = vec![Service { port, takes: self.takes, settings }];
                Ok(Host { services, ..Host::default() })
            }
            (None, None) => Err("--to needs a port number, or --host a description".into()),
        }
    }
}

/// Name and content of a script. The name is the last directory and the file name without suffix.
type NamedScript = (String, Script);

fn read_scripts(files: &[PathBuf]) -> Result<Vec<NamedScript>, String> {
    let mut scripts = Vec::new();
    for file in files {
        let paths = match file.is_dir() {
            true => {
                dialogue::files(file).map_err(|error| format!("{}: {error}", file.display()))?
            }
            false => vec![file.clone()],
        };
        for path in paths {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let script =
                Script::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            scripts.push((script_name(&path), script));
        }
    }
    Ok(scripts)
}

fn script_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match absolute.parent().and_then(Path::file_name) {
        Some(directory) => format!("{}/{stem}", directory.to_string_lossy()),
        None => stem.into_owned(),
    }
}

/// Plays the scripts, and counts the results.
struct Runner<'a> {
    args: &'a ScriptArgs,
    host: Host,
    session: Session,
    out: &'a mut dyn Write,
    /// Number of scripts whose packets were all as expected.
    ok: usize,
    /// Number of scripts with a deviation that the description of the host names (`differs`).
    differs: usize,
    /// Number of scripts that were not played.
    skipped: usize,
    /// Number of scripts with another deviation.
    failed: usize,
}

impl<'a> Runner<'a> {
    fn new(args: &'a ScriptArgs, known: Host, session: Session, out: &'a mut dyn Write) -> Self {
        Runner { args, host: known, session, out, ok: 0, differs: 0, skipped: 0, failed: 0 }
    }

    fn play(mut self, scripts: Vec<NamedScript>) -> std::io::Result<ExitCode> {
        for (name, script) in scripts {
            self.play_script(&name, &script)?;
        }
        let Runner { ok, differs, skipped, failed, out, .. } = self;
        writeln!(out, "{ok} ok, {differs} differ, {skipped} skipped, {failed} FAILED")?;
        Ok(ExitCode::from(u8::from(failed > 0)))
    }

    fn play_script(&mut self, name: &str, script: &Script) -> std::io::Result<()> {
        let port = match self.host.service_for(name, script) {
            Ok(service) => service.port,
            Err(reason) => return self.skip(name, &reason),
        };
        let seconds = duration(script).as_secs();
        if seconds > self.args.longest {
            return self.skip(name, &format!("takes {seconds} s: --longest"));
        }
        let differs = self.host.differs.get(name).cloned();
        let tolerance =
            Tolerance { max_wait: Duration::from_secs(self.args.patience), ..self.args.tolerance };
        let attempts = if differs.is_some() { 1 } else { self.args.attempts };
        let mut failure = None;
        for attempt in 1..=attempts {
            match self.session.play(script.clone(), port, tolerance) {
                Ok((played, transcript)) => {
                    self.ok += 1;
                    self.row(name, "ok", &format_remarks(&played, attempt, differs.is_some()))?;
                    return self.details(&transcript);
                }
                Err(PlayError::Send(SendError::TooLong(bytes))) => {
                    let reason = format!("needs an MTU of {bytes} bytes");
                    return self.skip(name, &reason);
                }
                Err(error) => failure = Some(error.to_string()),
            }
        }
        let failure = failure.unwrap_or_default();
        match differs {
            Some(reason) => {
                self.differs += 1;
                self.row(name, "differs", &reason)?;
                self.details(&failure)
            }
            None => {
                self.failed += 1;
                self.row(name, "FAILED", &failure)
            }
        }
    }

    fn skip(&mut self, name: &str, reason: &str) -> std::io::Result<()> {
        self.skipped += 1;
        self.row(name, "skipped", reason)
    }

    fn row(&mut self, name: &str, verdict: &str, remark: &str) -> std::io::Result<()> {
        let row = format!("{verdict:<8} {name:<55} {remark}");
        writeln!(self.out, "{}", row.trim_end())?;
        self.out.flush()
    }

    fn details(&mut self, text: &str) -> std::io::Result<()> {
        if self.args.verbose {
            for line in text.lines() {
                writeln!(self.out, "         {line}")?;
            }
        }
        Ok(())
    }
}

fn format_remarks(played: &PlaySummary, attempt: u32, expected_to_differ: bool) -> String {
    let mut remarks = Vec::new();
    if attempt > 1 {
        remarks.push(format!("attempt {attempt}"));
    }
    if played.skipped_lines > 0 {
        remarks.push(format!("{} local facts not seen", played.skipped_lines));
    }
    if played.extra_acks > 0 {
        remarks.push(format!("{} more acknowledgements", played.extra_acks));
    }
    if played.retransmissions > 0 {
        remarks.push(format!("{} segments again", played.retransmissions));
    }
    if expected_to_differ {
        remarks.push("though it is listed as differing".into());
    }
    remarks.join(", ")
}

fn parse_target(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(address) = text.parse() {
        return Ok((address, None));
    }
    text.parse::<std::net::SocketAddr>()
        .map(|address| (address.ip(), Some(address.port())))
        .map_err(|_| "write ADDRESS or ADDRESS:PORT, with IPv6 as in [fd00::1]:7471".into())
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as markers=off")?;
    Ok((key.to_owned(), value.to_owned()))
}
