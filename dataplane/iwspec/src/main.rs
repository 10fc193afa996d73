//! `iwspec`: tests an iWARP implementation against RFC 5044, 5041, 5040, 6581 and 7306.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod script;

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use iwspec::case::{CAPABILITIES, Transport};
use iwspec::catalogue::Catalogue;
use iwspec::device::{Permits, Service, Setup};
use iwspec::link::Target;
use iwspec::profile::Profile;
use iwspec::raw::Raw;
use iwspec::report::{Subject, Summary, html, json, junit, pcapng, terminal};
use iwspec::run::Verdict;
use iwspec::startup;
use iwspec::suite;

/// Tests an iWARP implementation: MPA, DDP and RDMAP over TCP, or DDP and RDMAP over SCTP.
///
/// Exit codes: 0 without a new failure, 1 with a new failure, 2 if the arguments are wrong, 3 if the device cannot be
/// tested. With --strict, an inconclusive case also gives 3.
#[derive(Debug, Parser)]
#[command(name = "iwspec", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Address of the device, which accepts connections
    #[arg(value_name = "HOST:PORT")]
    device: Option<String>,
    /// Cases: an id, a section (mpa/7.1.2) or a file (mpa/startup). Default: all
    #[arg(value_name = "CASE")]
    cases: Vec<String>,
    /// Accepts connections of the device at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Program on the device. Default with --transport sctp: region
    #[arg(
        long,
        value_enum,
        default_value = "rping",
        default_value_if("transport", "sctp", "region")
    )]
    service: Service,
    /// Lower layer of DDP
    #[arg(long, value_enum, default_value = "tcp")]
    transport: Transport,
    /// UDP port of the device for SCTP in UDP (RFC 6951), with --listen that of this host
    #[arg(long, value_name = "PORT", default_value = "9899")]
    udp_port: u16,
    #[command(flatten)]
    raw: RawArgs,
    /// Shows a case and ends
    #[arg(long, value_name = "ID")]
    show: Option<String>,
    /// Lists all cases and ends
    #[arg(long)]
    list: bool,
    /// More cases, from a file
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// Only cases of this level
    #[arg(long, value_name = "LEVEL", value_parser = ["MUST", "must", "SHOULD", "MAY"])]
    level: Vec<String>,
    /// Known deviations of the device: a file, or the name of a profile of the package (siw)
    #[arg(long, value_name = "PROFILE")]
    profile: Option<PathBuf>,
    /// Maximum number of concurrent cases
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    /// Factor on all times, for slow devices
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    slow: f64,
    /// Pause after the TCP handshake and before the first FPDU, for devices that lose data sent immediately
    #[arg(long, value_name = "MILLISECONDS", default_value = "0", value_parser = clap::value_parser!(u64).range(0..=2000))]
    settle: u64,
    /// Prints passed and inapplicable cases, too
    #[arg(long, short)]
    verbose: bool,
    /// Exit code 3 if a case is inconclusive
    #[arg(long)]
    strict: bool,
    /// Prints JSON instead of text
    #[arg(long)]
    json: bool,
    /// Writes a JUnit report
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Writes an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes a pcapng file of each failed or inconclusive case
    #[arg(long, value_name = "DIRECTORY")]
    pcapng: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Script(Box<script::ScriptArgs>),
    /// Writes the man pages to a directory
    #[command(hide = true)]
    Man {
        /// Directory
        directory: PathBuf,
    },
}

/// The raw port.
#[derive(Debug, Args)]
struct RawArgs {
    /// Raw port: an interface of this host, and an unused address on its link. The test then builds each TCP segment
    /// itself; with --transport sctp it uses SCTP in IP instead of UDP. Needs CAP_NET_RAW
    #[arg(long, value_name = "INTERFACE,ADDRESS")]
    raw: Option<Raw>,
    /// Router to the device from the raw port, if the device is on another link
    #[arg(long, value_name = "IP", requires = "raw")]
    via: Option<IpAddr>,
    /// Maximum length of an IP packet of the raw port
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..))]
    mtu: u16,
}

impl RawArgs {
    /// Returns the settings of the raw port; `None` without `--raw`.
    fn port(&self) -> Result<Option<Raw>, String> {
        let Some(raw) = &self.raw else { return Ok(None) };
        if self.via.is_some_and(|via| via.is_ipv4() != raw.address.is_ipv4()) {
            return Err("--raw and --via have addresses of different families".into());
        }
        Ok(Some(Raw { via: self.via, mtu: self.mtu, ..raw.clone() }))
    }
}

/// Exit code and message if the program ends without a result.
type Refusal = (u8, String);

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err((code, message)) => {
            eprintln!("iwspec: {message}");
            ExitCode::from(code)
        }
    }
}

fn run(mut cli: Cli) -> Result<ExitCode, Refusal> {
    let usage = |message: String| (2, message);
    match cli.command.take() {
        Some(Command::Script(arguments)) => {
            return arguments.run(&mut std::io::stdout()).map_err(usage);
        }
        Some(Command::Man { directory }) => return man(&directory).map_err(usage),
        None => {}
    }
    let mut catalogue = Catalogue::built_in().map_err(usage)?;
    for file in &cli.add {
        catalogue.add_file(file).map_err(usage)?;
    }
    let all = catalogue.clone();
    // With --list and --listen, the first argument is a case.
    if cli.listen.is_some() || cli.list {
        cli.cases.splice(0..0, cli.device.take());
    }
    catalogue.select(&cli.cases).map_err(usage)?;
    if !cli.level.is_empty() {
        catalogue.cases.retain(|c| cli.level.iter().any(|l| l == c.level.name()));
    }
    if let Some(id) = &cli.show {
        return show(&all, id).map_err(usage);
    }
    if cli.list {
        list(&catalogue, cli.cases.is_empty());
        return Ok(ExitCode::SUCCESS);
    }
    let profile =
        cli.profile.as_deref().map_or(Ok(Profile::default()), Profile::find).map_err(usage)?;
    profile.check(all.cases.iter().map(|c| c.id.as_str())).map_err(usage)?;
    test(&cli, &catalogue, &profile)
}

/// Writes the man pages of the program and of its commands.
fn man(directory: &Path) -> Result<ExitCode, String> {
    let command = Cli::command().disable_help_subcommand(true);
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .map(|()| ExitCode::SUCCESS)
        .map_err(|e| format!("{}: {e}", directory.display()))
}

fn show(catalogue: &Catalogue, id: &str) -> Result<ExitCode, String> {
    let mut found = catalogue.clone();
    if let Some(u) = catalogue.unseen.iter().find(|u| u.id == id) {
        println!(
            "{} {}\n{}\n{}\nnot tested: {}",
            u.id,
            u.level.name(),
            u.section,
            u.text,
            u.because
        );
        return Ok(ExitCode::SUCCESS);
    }
    found.select(&[id.to_string()])?;
    let texts: Vec<String> = found.cases.iter().map(iwspec::case::Case::show).collect();
    print!("{}", texts.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn list(catalogue: &Catalogue, all: bool) {
    for c in &catalogue.cases {
        println!("{:<22} {:<6} {:<20} {}", c.id, c.level.name(), c.section, c.text);
    }
    if all {
        for u in &catalogue.unseen {
            println!(
                "{:<22} {:<6} {:<20} {} (not tested: {})",
                u.id,
                u.level.name(),
                u.section,
                u.text,
                u.because
            );
        }
        println!("\ncapabilities that cases need:");
        for (name, what) in CAPABILITIES {
            println!("{name:<22} {what}");
        }
    }
}

fn test(cli: &Cli, catalogue: &Catalogue, profile: &Profile) -> Result<ExitCode, Refusal> {
    let (target, device) = target(cli).map_err(|e| (2, e))?;
    if !(0.1..=100.0).contains(&cli.slow) {
        return Err((2, "--slow is a factor of 0.1 to 100".into()));
    }
    let mut setup = Setup {
        target: Arc::new(target),
        service: cli.service,
        timing: suite::timing(cli.slow),
        lane: (0, 1),
        revision: 1,
        permits: Permits::default(),
    };
    setup.timing.settle = Duration::from_millis(cli.settle);
    // Tries revision 2 first, because some devices permit no Reads without its enhanced data.
    setup.revision = 2;
    if suite::control(&setup).is_err() {
        setup.revision = 1;
        if let Err(why) = suite::control(&setup) {
            setup.revision = 0;
            suite::control(&setup)
                .map_err(|_| (3, format!("the device cannot be tested: {why}")))?;
        }
    }
    startup::probe(&mut setup);
    let subject = Subject {
        device,
        service: format!("{:?}", cli.service).to_lowercase(),
        role: setup.role().name().into(),
        profile: profile.name.clone(),
    };
    let jobs = match setup.target.is_serial() {
        true => 1,
        false => cli.jobs.map_or(cli.service.parallel(setup.role()), usize::from),
    };
    let mut progress = |report: &suite::Report| {
        if !cli.json {
            print!("{}", terminal::case(report, cli.verbose));
        }
    };
    let reports = suite::run(&catalogue.cases, &setup, jobs, profile, &mut progress);
    let summary = Summary::of(&reports);
    if cli.json {
        println!("{}", json::document(&subject, &reports, &catalogue.unseen).map_err(|e| (3, e))?);
    } else {
        print!("{}", terminal::summary(&summary));
    }
    write_files(cli, catalogue, &subject, &reports).map_err(|e| (2, e))?;
    Ok(match summary {
        Summary { fail: 1.., .. } => ExitCode::from(1),
        Summary { inconclusive: 1.., .. } if cli.strict => ExitCode::from(3),
        _ => ExitCode::SUCCESS,
    })
}

fn target(cli: &Cli) -> Result<(Target, String), String> {
    let raw = cli.raw.port()?;
    if let Some(address) = cli.listen {
        return listen(cli, address, raw);
    }
    let device =
        cli.device.as_deref().ok_or("name a device (HOST:PORT), or --listen ADDRESS:PORT")?;
    let mut addresses =
        device.to_socket_addrs().map_err(|e| format!("`{device}` is not HOST:PORT: {e}"))?;
    let address = addresses.next().ok_or(format!("{device} has no address"))?;
    Ok(match (cli.transport, raw) {
        (Transport::Tcp, None) => (Target::Connect(address), device.into()),
        (Transport::Tcp, Some(raw)) => {
            let name = format!("{device} (raw port {})", raw.address);
            (Target::Raw(raw, address), name)
        }
        (Transport::Sctp, None) => {
            let udp_port = cli.udp_port;
            (Target::Sctp { address, udp_port }, format!("{device} (SCTP in UDP port {udp_port})"))
        }
        (Transport::Sctp, Some(raw)) => {
            let name = format!("{device} (SCTP, raw port {})", raw.address);
            (Target::RawSctp(raw, address), name)
        }
    })
}

fn listen(cli: &Cli, address: SocketAddr, raw: Option<Raw>) -> Result<(Target, String), String> {
    let name = format!("listening at {address}");
    let error = |at: SocketAddr| move |e: std::io::Error| format!("cannot listen at {at}: {e}");
    if raw.as_ref().is_some_and(|raw| raw.address != address.ip()) {
        return Err("--listen must have the address of --raw".into());
    }
    Ok(match (cli.transport, raw) {
        (Transport::Tcp, None) => {
            let listener = TcpListener::bind(address).map_err(error(address))?;
            listener.set_nonblocking(true).map_err(|e| e.to_string())?;
            (Target::Listen(Mutex::new(listener)), name)
        }
        (Transport::Tcp, Some(raw)) => (Target::RawListen(raw, address.port()), name),
        (Transport::Sctp, None) => {
            let at = SocketAddr::new(address.ip(), cli.udp_port);
            let socket = UdpSocket::bind(at).map_err(error(at))?;
            let name = format!("{name} (SCTP in UDP port {})", cli.udp_port);
            (Target::SctpListen { socket, port: address.port() }, name)
        }
        (Transport::Sctp, Some(raw)) => {
            (Target::RawSctpListen(raw, address.port()), format!("{name} (SCTP)"))
        }
    })
}

fn write_files(
    cli: &Cli,
    catalogue: &Catalogue,
    subject: &Subject,
    reports: &[suite::Report],
) -> Result<(), String> {
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    if let Some(path) = &cli.junit {
        write(path, junit::document(subject, reports)?)?;
    }
    if let Some(path) = &cli.html {
        write(path, html::document(subject, reports, &catalogue.unseen)?)?;
    }
    if let Some(directory) = &cli.pcapng {
        std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let without_pass = |r: &&suite::Report| {
            matches!(r.outcome.verdict, Verdict::Fail(_) | Verdict::Inconclusive(_))
        };
        for report in reports.iter().filter(without_pass) {
            pcapng::write(directory, report)?;
        }
    }
    Ok(())
}
