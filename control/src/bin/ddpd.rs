//! `ddpd`: the appliance.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use control::appliance::process::Process;
use control::appliance::thread::Signal;
use control::config::{self, Config};
use control::daemon::{self, Args, Command, EXIT_CONFIG};
use control::log_limit::LogLimit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(code) => code,
        Err(sentence) => {
            // Standard error may be gone: the exit code still says it.
            let _ = writeln!(std::io::stderr(), "ddpd: {sentence}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

fn run(args: Args) -> Result<ExitCode, String> {
    let mut out = std::io::stdout();
    let cannot_print = |error| format!("cannot write to standard output: {error}");
    if args.version {
        writeln!(out, "{}", daemon::version(Some(dataplane::eal::version())))
            .map_err(cannot_print)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Command::Check { files, no_machine }) = args.command {
        return daemon::check(&files, !no_machine, &mut out).map_err(cannot_print);
    }
    if args.config.is_empty() {
        return Err("no configuration: name one with --config FILE".into());
    }
    let documents = config::load_all(&args.config).map_err(|errors| errors.to_string())?;
    let mut configs: Vec<Config> = documents.into_iter().map(|document| document.config).collect();
    if let Some(filter) = &args.log {
        configs.iter_mut().for_each(|config| config.override_log(filter));
    }
    start_log(&configs[0].management.log)?;
    serve(configs)
}

fn start_log(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| format!("management.log: {filter:?} is no log filter: {error}"))?;
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(LogLimit).with(lines).init();
    Ok(())
}

fn serve(configs: Vec<Config>) -> Result<ExitCode, String> {
    // Before anything is started: a signal during the start is not lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| format!("cannot take signals: {error}"))?;
    let process = Process::start(configs)?;
    // For scripts that wait until it serves; nobody need read it.
    let _ = writeln!(std::io::stdout(), "ready").and_then(|()| std::io::stdout().flush());
    let controls = process.controls();
    let handle = signals.handle();
    let listener = std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            let meaning = match signal {
                SIGHUP => Signal::Reload,
                _ if asked => Signal::Abort,
                _ => {
                    asked = true;
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
    handle.close();
    let sound = listener.join().is_ok() && sound;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
