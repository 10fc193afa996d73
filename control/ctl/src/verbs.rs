//! `get`, `ping`, `fetch-add` and `compare-swap`: the appliance as a verbs client.

use std::time::Duration;

use api::{
    AtomicChoice, AtomicDone, AtomicSpec, Client, ConnectSpec, GetSink, GetSpec, PingReport,
    PingSpec, RemotePlace, UlpChoice, Via,
};
use serde_json::json;

use super::args::{CompareSwap, FetchAdd, Get, Ping, RemoteArgs, ViaArgs};
use super::exit::{Exit, Failure};
use super::interrupt::Interrupt;
use super::put::{self, WatchOptions};
use super::{Output, connect_spec, input};

/// Time limit of one round of a ping without --timeout. With --timeout, a round takes at most [`MAX_ROUND_TIMEOUT`].
const ROUND_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the appliance fetch bytes from a peer's memory, and watches the job.
pub(super) fn get(get: Get, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let Get { place, file, into, length, verbs, detach } = get;
    let (source, via) = remote_source(&place, &verbs, client)?;
    let region = into.as_ref().map(|region| region.name.clone());
    let sink = match (file, into) {
        (Some(file), None) if input::is_stream(&file) => {
            let message = "get writes a file of the appliance's host, and not the standard output";
            let hint = "get --into REGION, and then ddpctl regions read REGION";
            return Err(Failure::new(Exit::Usage, message).with_hint(Some(hint.into())));
        }
        (Some(file), None) => GetSink::File(input::absolute_utf8_path(&file)?),
        (None, Some(region)) => GetSink::Region { name: region.name, offset: region.offset },
        _ => {
            let message = "write the file that the bytes go to, or --into REGION";
            return Err(Failure::new(Exit::Usage, message));
        }
    };
    let spec = GetSpec { via, source, length, sink };
    let interrupt = Interrupt::watch()?;
    let job = client.post("/v1/get", &spec)?;
    let transfer =
        WatchOptions { detach, is_get: true, destination_region: region, name: String::new() };
    put::watch_job(job, client, output, transfer, &interrupt)
}

pub(super) fn ping(ping: Ping, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let Ping { peer, count, size, connect } = ping;
    // With --timeout, the remaining time of the command limits a round instead of the default.
    let round = client.time_left().map_or(ROUND_TIMEOUT, |left| left.min(MAX_ROUND_TIMEOUT));
    let timeout_us = u64::try_from(round.as_micros()).unwrap_or(u64::MAX);
    let connect = connect_spec(&peer.to_rdmap(), connect, Vec::new(), client)?;
    let report: PingReport =
        client.post("/v1/ping", &PingSpec { connect, count, size, timeout_us })?;
    output.print_answer(&report, |report| {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        format!(
            "{} rounds of {} bytes with {}, each byte compared: min {:.1}, mean {:.1}, median {:.1}, \
             99 % {:.1}, max {:.1} us\n",
            report.rounds,
            report.size,
            report.remote,
            micros(report.min_ns),
            micros(report.mean_ns),
            micros(report.median_ns),
            micros(report.p99_ns),
            micros(report.max_ns)
        )
    })
}

pub(super) fn fetch_add(
    command: FetchAdd,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let operation = AtomicChoice::FetchAdd { add: command.add };
    run_atomic(&command.place, &command.verbs, operation, client, output)
}

pub(super) fn compare_swap(
    command: CompareSwap,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let CompareSwap { place, compare, swap, verbs } = command;
    run_atomic(&place, &verbs, AtomicChoice::CompareSwap { compare, swap }, client, output)
}

fn run_atomic(
    place: &RemoteArgs,
    verbs: &ViaArgs,
    operation: AtomicChoice,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (target, via) = remote_source(place, verbs, client)?;
    let done: AtomicDone = client.post("/v1/atomic", &AtomicSpec { via, target, operation })?;
    output.print_answer(&json!({ "original": done.original, "time_us": done.time_us }), |_| {
        format!("the memory held {}; {} us\n", done.original, done.time_us)
    })
}

/// Returns the location in the peer's memory, and the stream to use: an existing stream, or the parameters of a new
/// stream.
fn remote_source(
    place: &RemoteArgs,
    verbs: &ViaArgs,
    client: &Client,
) -> Result<(RemotePlace, Via), Failure> {
    let url = &place.url;
    let target = match (&url.region, place.stag.zip(place.to)) {
        (Some(region), None) => {
            RemotePlace::Region { name: region.name.clone(), offset: region.offset }
        }
        (None, Some((stag, to))) => RemotePlace::Tagged { stag, to },
        (Some(_), Some(_)) => {
            let message = "the region and --stag both name the place: leave one out";
            return Err(Failure::new(Exit::Usage, message));
        }
        (None, None) => return Err(put::missing_target(url.peer.to_rdmap().scheme())),
    };
    let via = match verbs.stream {
        Some(id) => Via::Stream(id),
        None => {
            let connect: ConnectSpec =
                connect_spec(&url.peer.to_rdmap(), verbs.connect.clone(), Vec::new(), client)?;
            debug_assert_eq!(connect.ulp, UlpChoice::Rdmap);
            Via::Connect(connect)
        }
    };
    Ok((target, via))
}
