//! `ddpctl top`: streams, workers, regions, peers, ports and programs, sampled at an interval.
//!
//! A [sample](sample) of the API becomes a [table](table); rates are computed from two samples. The [state](state)
//! handles samples and keys, and the [view](view) draws the state. The [screen](screen) contains the terminal and the
//! main loop. A separate thread sends requests, so that keys are handled while the appliance is slow. [once] prints the
//! same tables.

mod columns;
mod once;
mod sample;
mod screen;
mod state;
mod table;
mod view;

#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::Duration;

use api::Client;
use clap::{Args as ClapArgs, ValueEnum};

use super::Output;
use super::exit::{Exit, Failure};
use state::State;

/// Minimum and maximum interval between two samples.
const INTERVALS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(60)];

/// Arguments of `ddpctl top`.
#[derive(Debug, ClapArgs)]
pub struct Top {
    /// Interval between samples, 200ms to 1m
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    interval: Duration,
    /// First view, by default streams; with --once the only view, by default all
    #[arg(long, value_enum)]
    view: Option<View>,
    /// Sort order: busiest, or a column as named by --once --json (rx_rate, rtt, ...); numbers descending, text
    /// ascending
    #[arg(long, value_name = "COLUMN", default_value = "busiest")]
    sort: String,
    /// Only rows that contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the tables with the rates of one interval, and exit
    #[arg(long)]
    once: bool,
}

/// A view of `ddpctl top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum View {
    /// Streams
    Streams,
    /// Workers
    Workers,
    /// Regions
    Regions,
    /// Streams grouped by peer address
    Peers,
    /// Ports
    Ports,
    /// Local programs
    Programs,
}

impl View {
    const ALL: [View; 6] =
        [View::Streams, View::Workers, View::Regions, View::Peers, View::Ports, View::Programs];

    fn as_str(self) -> &'static str {
        match self {
            View::Streams => "streams",
            View::Workers => "workers",
            View::Regions => "regions",
            View::Peers => "peers",
            View::Ports => "ports",
            View::Programs => "programs",
        }
    }

    fn needs_streams(self) -> bool {
        matches!(self, View::Streams | View::Peers | View::Programs)
    }
}

pub(super) fn top(args: &Top, client: Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let terminal = standard::is_capable(&std::io::stdout()) && std::io::stdin().is_terminal();
    check_arguments(args, OutputMode { json: output.json, terminal })?;
    if args.once {
        return once::print_once(args, &client, output);
    }
    let mut state = State::new(args.view.unwrap_or(View::Streams), args.interval);
    state.set_initial(&args.sort, &args.filter);
    screen::run(state, client, output.out)
}

/// Format and destination of the output.
#[derive(Clone, Copy)]
struct OutputMode {
    json: bool,
    /// True if standard input is a terminal, and standard output is a terminal that supports escape codes.
    terminal: bool,
}

/// Checks the conditions that clap cannot check: the terminal, `--json` and the sort column.
fn check_arguments(args: &Top, mode: OutputMode) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    if mode.json && !args.once {
        let message = "top with --json prints one object: it needs --once".to_owned();
        return Err(usage(message).with_hint(Some("ddpctl --json top --once".into())));
    }
    if !mode.terminal && !args.once {
        let message = "top needs a terminal: the standard input or output is none".to_owned();
        return Err(usage(message).with_hint(Some("ddpctl top --once prints the tables".into())));
    }
    let views = match args.view {
        Some(view) => vec![view],
        None if args.once => View::ALL.to_vec(),
        None => vec![View::Streams],
    };
    let known = |view: &View| columns::heads(*view).iter().any(|head| head.key == args.sort);
    if args.sort != table::SORT_BUSIEST && !views.iter().any(known) {
        let keys = views.iter().flat_map(|view| columns::heads(*view)).map(|head| head.key);
        let mut keys: Vec<&str> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        let message = format!("--sort is {:?}, which is no column", args.sort);
        let hint = format!("{}, {}", table::SORT_BUSIEST, keys.join(", "));
        return Err(usage(message).with_hint(Some(hint)));
    }
    Ok(())
}

fn interval(text: &str) -> Result<Duration, String> {
    let [least, most] = INTERVALS;
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (least..=most).contains(&time) {
        return Ok(time);
    }
    let [least, most] = INTERVALS.map(humantime::format_duration);
    Err(format!("must be {least} to {most}"))
}
