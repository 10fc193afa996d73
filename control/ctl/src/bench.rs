//! `bench`: makes the appliance load a peer, and shows progress and results.

use std::time::Duration;

use api::{
    BenchInfo, BenchLoad, BenchPeer, BenchSpec, Client, ClientError, JobInfo, JobState, RemotePlace,
};
use bytesize::ByteSize;
use indicatif::{ProgressBar, ProgressStyle};

use super::args::{Bench, Load, LoadPeer};
use super::exit::{Exit, Failure};
use super::interrupt::Interrupt;
use super::put::{POLL_INTERVAL, cancel_after_timeout};
use super::{Output, connect_spec};

impl From<Load> for BenchLoad {
    fn from(load: Load) -> Self {
        match load {
            Load::Write => Self::Write,
            Load::Read => Self::Read,
            Load::Send => Self::Send,
            Load::Echo => Self::Echo,
            Load::Connect => Self::Connect,
        }
    }
}

impl From<LoadPeer> for BenchPeer {
    fn from(peer: LoadPeer) -> Self {
        match peer {
            LoadPeer::Appliance => Self::Appliance,
            LoadPeer::Perftest => Self::Perftest,
        }
    }
}

/// Makes the appliance load a peer, and watches the job. A signal cancels the job.
pub(super) fn bench(bench: Bench, client: &Client, output: &mut Output<'_>) -> Result<(), Failure> {
    let Bench { load, to, streams, size, depth, time, rate, queue, peer, opening } = bench;
    // perftest programs use verbs, so they require RDMAP.
    let to_peer = if peer == LoadPeer::Perftest { to.peer.to_rdmap() } else { to.peer };
    let connect = connect_spec(&to_peer, opening, Vec::new(), client)?;
    let peer = peer.into();
    let target = to.region.map(|at| RemotePlace::Region { name: at.name, offset: at.offset });
    let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let load = load.into();
    let spec =
        BenchSpec { load, connect, target, peer, queue, streams, size, depth, time_us, rate };
    let interrupt = Interrupt::watch()?;
    let job = watch_job(client.post("/v1/bench", &spec)?, time, client, output, &interrupt)?;
    let done = job.bench.as_ref().is_some_and(|bench| bench.messages + bench.unfinished > 0);
    let failed = (job.state != JobState::Done).then(|| {
        let exit = if job.refused { Exit::Refused } else { Exit::Failed };
        let reason = job.error.clone().unwrap_or_else(|| "the bench was cancelled".into());
        let messages = job.bench.as_ref().map_or(0, |bench| bench.messages);
        let failure = Failure::new(exit, format!("after {messages} messages: {reason}"));
        failure.with_hint(job.hint.clone()).with_signal(interrupt.exit())
    });
    // Results of a failed or cancelled bench are also printed.
    if done || failed.is_none() {
        output.print_answer(&job, format_report)?;
    }
    failed.map_or(Ok(()), Err)
}

/// Shows the progress of a job until its end. A signal or the end of the time limit cancels the job.
fn watch_job(
    mut job: JobInfo,
    time: Duration,
    client: &Client,
    output: &Output<'_>,
    interrupt: &Interrupt,
) -> Result<JobInfo, Failure> {
    let bar = progress_bar(output, time);
    let path = format!("/v1/jobs/{}", job.id);
    let mut cancelled = false;
    while !job.state.is_finished() {
        bar.set_position((job.seconds * 1e3) as u64);
        bar.set_message(format_progress(&job));
        std::thread::sleep(POLL_INTERVAL);
        let answer = if interrupt.exit().is_some() && !cancelled {
            cancelled = true;
            client.delete(&path)
        } else {
            client.get(&path)
        };
        job = match answer {
            Err(ClientError::Late { .. }) => {
                bar.finish_and_clear();
                let messages = job.bench.as_ref().map_or(0, |bench| bench.messages);
                return Err(cancel_after_timeout(&job, &format!("{messages} messages"), client));
            }
            answer => answer?,
        };
    }
    bar.finish_and_clear();
    Ok(job)
}

fn progress_bar(output: &Output<'_>, time: Duration) -> ProgressBar {
    if !output.progress {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    match ProgressStyle::with_template("{bar:32} {percent:>3} %  {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn format_progress(job: &JobInfo) -> String {
    let Some(bench) = &job.bench else { return String::new() };
    if job.state != JobState::Running {
        return format!("{:?}, {} of {} streams", job.state, bench.open, bench.streams)
            .to_lowercase();
    }
    format!("{} messages  {}", bench.messages, format_rates(bench))
}

fn format_rates(bench: &BenchInfo) -> String {
    format!("{:.0} messages/s, {:.3} Gbit/s", bench.messages_per_s, bench.gbit_per_s)
}

fn format_report(job: &JobInfo) -> String {
    let Some(bench) = &job.bench else { return String::new() };
    let pace = match bench.rate {
        None => "closed loop".into(),
        Some(rate) => format!("open loop of {rate}/s"),
    };
    let (streams, peer, load) = (bench.streams, &job.remote, bench.load.as_str());
    let mut text = if load == BenchLoad::Connect.as_str() {
        format!(
            "{load} to {peer}: streams {streams}, {pace}\n  {} streams in {:.3} s: {:.0} streams/s\n",
            bench.messages, job.seconds, bench.messages_per_s
        )
    } else {
        format!(
            "{load} to {peer}: streams {streams}, size {}, depth {}, {pace}\n  {} messages, {} in {:.3} s: {}\n",
            bench.size,
            bench.depth,
            bench.messages,
            ByteSize(job.acknowledged).display().iec(),
            job.seconds,
            format_rates(bench)
        )
    };
    if bench.unfinished > 0 {
        text +=
            &format!("  {} were due or in flight at the end, and not complete\n", bench.unfinished);
    }
    if let Some(times) = &bench.latency {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        text += &format!(
            "  us: min {:.1}, mean {:.1}, 50 % {:.1}, 90 % {:.1}, 99 % {:.1}, 99.9 % {:.1}, 99.99 % {:.1}, \
             max {:.1}\n",
            micros(times.min_ns),
            micros(times.mean_ns),
            micros(times.p50_ns),
            micros(times.p90_ns),
            micros(times.p99_ns),
            micros(times.p999_ns),
            micros(times.p9999_ns),
            micros(times.max_ns)
        );
    }
    text
}
