//! `ddpd`: the daemon that runs one or more appliances.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use config::{self, Config, Document};
use control::appliance::process::Process;
use control::appliance::thread::Signal;
use control::descriptors;
use control::doctor;
use control::host;
use control::logging;
use control::notify::watchdog::{self, Feeder};
use control::notify::{Service, Socket};
use control::sandbox::Sandbox;
use daemon::{self, Args, Command, DoctorFormat, EXIT_CONFIG, FindOnMachine};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use standard::Stdout;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return print_usage(&error),
    };
    match run(args) {
        Ok(code) => code,
        Err(sentence) => {
            // A failed write is ignored: standard error may be closed, and the exit code still reports the error.
            let _ = writeln!(std::io::stderr(), "ddpd: {sentence}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// Prints the requested usage, or the error of the command line.
fn print_usage(error: &clap::Error) -> ExitCode {
    let mut out = Stdout::open();
    if error.use_stderr() {
        let _ = write!(std::io::stderr(), "{error}");
        if let Some(hint) = daemon::usage_hint(error) {
            let _ = writeln!(std::io::stderr(), "hint: {hint}");
        }
        return ExitCode::from(EXIT_CONFIG);
    }
    print_result(write!(out, "{error}").and_then(|()| out.flush()).map(|()| ExitCode::SUCCESS))
}

/// Returns the exit code of a command that prints its result; 1 if the output cannot be written.
fn print_result(result: std::io::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "ddpd: {error}");
        ExitCode::FAILURE
    })
}

fn run(args: Args) -> Result<ExitCode, String> {
    let mut out = Stdout::open();
    if args.version {
        let version = daemon::version(Some(dataplane::eal::version()));
        return Ok(print_result(writeln!(out, "{version}").map(|()| ExitCode::SUCCESS)));
    }
    match args.command {
        Some(Command::Check { files, config, json, capabilities: true, .. }) => {
            return Ok(print_result(daemon::capabilities(
                &[files, config].concat(),
                json,
                &mut out,
            )));
        }
        Some(Command::Check { files, config, no_machine, .. }) => {
            let machine = |document: &Document| {
                let mut found = document.check_machine(&host::find_misplaced_address);
                found.extend(doctor::check_addresses(&document.config));
                found
            };
            let machine = (!no_machine).then_some(&machine as FindOnMachine<'_>);
            return Ok(print_result(daemon::check(&[files, config].concat(), machine, &mut out)));
        }
        Some(Command::Doctor { config, files, json, script }) => {
            let format = match (json, script) {
                (true, _) => DoctorFormat::Json,
                (_, true) => DoctorFormat::Script,
                _ => DoctorFormat::Text,
            };
            let examined = doctor::run(
                &[config, files].concat(),
                format,
                dataplane::eal::version(),
                &mut out,
            )?;
            return Ok(print_result(examined));
        }
        Some(Command::Schema) => {
            return Ok(print_result(daemon::print_schema(&mut out).map(|()| ExitCode::SUCCESS)));
        }
        Some(Command::Openapi) => {
            return Ok(print_result(daemon::print_openapi(&mut out).map(|()| ExitCode::SUCCESS)));
        }
        None => {}
    }
    if args.config.is_empty() {
        return Err("no configuration: name one with --config FILE".into());
    }
    let documents = config::load_all(&args.config).map_err(|errors| errors.to_string())?;
    let mut configs: Vec<Config> = documents.into_iter().map(|document| document.config).collect();
    if let Some(filter) = &args.log {
        configs.iter_mut().for_each(|config| config.override_log(filter));
    }
    let management = &configs[0].management;
    logging::start(&management.log, management.log_format)?;
    serve(configs)
}

fn serve(configs: Vec<Config>) -> Result<ExitCode, String> {
    // The signal handlers are installed first, so that no signal during the start is lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| format!("cannot take signals: {error}"))?;
    let service = Service::new(Socket::from_env(), configs.len());
    descriptors::raise_limit(&configs);
    // The process enters the sandbox before it creates threads, because threads inherit the sandbox.
    let sandbox = Sandbox::enter(&configs)?;
    let process = Process::start_with(configs, &service, &sandbox)?;
    let feeder = start_feeder(&process, service);
    // Scripts can wait for this line. A failed write is ignored, because the standard output may be closed.
    let _ = writeln!(std::io::stdout(), "ready").and_then(|()| std::io::stdout().flush());
    let controls = process.controls();
    let handle = signals.handle();
    let listener = std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut drain_requested = false;
        for signal in signals.forever() {
            let meaning = match signal {
                SIGHUP => Signal::Reload,
                _ if drain_requested => Signal::Abort,
                _ => {
                    drain_requested = true;
                    Signal::Drain
                }
            };
            controls.iter().for_each(|control| control.signal(meaning));
        }
    });
    let listener = listener.map_err(|error| {
        process.signal(Signal::Abort);
        format!("cannot start the signal thread: {error}")
    })?;
    let sound = process.join();
    drop(feeder);
    handle.close();
    let sound = listener.join().is_ok() && sound;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts the thread that feeds the service manager's watchdog. Returns `None` if the manager has not set a watchdog,
/// or if the thread cannot be created.
fn start_feeder(process: &Process, service: Service) -> Option<Feeder> {
    let interval = watchdog::interval_from_env().filter(|_| service.has_manager())?;
    let report = |stuck: &watchdog::Stuck| {
        tracing::error!("{stuck}: the service manager's watchdog is not fed and will end ddpd");
    };
    let started = Feeder::start(service, process.watched_appliances(), interval, report);
    started
        .inspect_err(|error| tracing::warn!("the watchdog is not fed: no thread for it: {error}"))
        .ok()
}
