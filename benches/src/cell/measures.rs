//! Measurement procedures of the cells, one for each [`Measure`].

use std::time::{Duration, Instant};

use anyhow::Context as _;
use dataplane::{Command, Event, StreamStats};
use hdrhistogram::Histogram;

use super::{Cell, HeapUsage, Measure};
use crate::rig::Rig;
use crate::row::{Quantiles, Row, median};

/// Runs the procedure of the cell's [`Measure`].
pub(super) fn measure(
    cell: &Cell,
    rig: &mut Rig,
    row: &mut Row,
    heap: Option<HeapUsage<'_>>,
) -> anyhow::Result<()> {
    if let Some(b_side) = cell.b_side() {
        return measure_slices(cell, &b_side, rig, row);
    }
    match cell.what {
        Measure::Goodput
        | Measure::Read
        | Measure::Mixed
        | Measure::Send
        | Measure::WriteRate
        | Measure::SendRate => measure_goodput(cell, rig, row),
        Measure::Echo | Measure::Notify | Measure::ReadTrip => measure_latency(cell, rig, row),
        Measure::Loaded => measure_loaded_latency(cell, rig, row),
        Measure::SetUp => measure_set_up(cell, rig, row),
        Measure::Memory => {
            let heap = heap.context("this program does not count its heap")?;
            measure_memory(cell, rig, row, heap)
        }
    }
}

/// Counters at the start or the end of the measured time.
struct Sample {
    at: Instant,
    messages: u64,
    bytes: u64,
    /// Frames sent by initiator and responder. In this field, `cpu` and `busy`, the values of a worker in another
    /// process are zero.
    frames: [u64; 2],
    /// Processor seconds of the workers of initiator and responder.
    cpu: [f64; 2],
    /// Busy seconds of initiator and responder.
    busy: [f64; 2],
}

impl Sample {
    fn collect(rig: &Rig) -> Sample {
        let both = |name| {
            [Some(&rig.initiator), rig.responder.as_ref()]
                .map(|end| end.map_or(0, |end| end.counter(name)))
        };
        Sample {
            // The responder's count is zero unless both sides post messages.
            messages: both("load_messages").iter().sum(),
            bytes: both("load_bytes").iter().sum(),
            frames: both("tx_frames"),
            cpu: worker_cpu_seconds(),
            busy: both("busy_nanoseconds").map(|nanoseconds| nanoseconds as f64 * 1e-9),
            at: Instant::now(),
        }
    }

    fn messages_per_s(&self, before: &Sample) -> f64 {
        (self.messages - before.messages) as f64 / (self.at - before.at).as_secs_f64()
    }
}

fn measure_goodput(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open_streams(cell.rig.streams)?;
    rig.start_load(|n| cell.closed_load(n))?;
    pause(rig, cell.duration() / 4)?;
    let before = Sample::collect(rig);
    pause(rig, cell.duration())?;
    let after = Sample::collect(rig);
    let held = rig.responder.as_ref().map_or(0.0, |end| end.counter("held_bytes_max") as f64);
    row.add_extra("held_bytes_max", held);
    if let Some(StreamStats::Tcp(stats)) = rig.responder_stats()? {
        let unlocatable = stats.mpa_rx.unlocatable_max as f64;
        row.add_extra("unlocatable_bytes_max", unlocatable);
        row.add_extra("located_held_bytes_max", (held - unlocatable).max(0.0));
    }
    if let Some(stats) = rig.initiator_stats()? {
        let (retransmitted, timeouts, recoveries, kept) = match stats {
            StreamStats::Tcp(stats) => {
                let (tcp, kept) = (stats.tcp, stats.mpa_tx.kept_max);
                row.add_extra("paced_waits", tcp.paced_waits as f64);
                (tcp.loss.segments_retransmitted, tcp.loss.timeouts, tcp.loss.fast_recoveries, kept)
            }
            StreamStats::Sctp(session, association) => {
                let (send, kept) = (association.send, session.session.tx.kept_max);
                (send.retransmitted, send.timeouts, send.fast_recoveries, kept)
            }
        };
        row.add_extra("segments_retransmitted", retransmitted as f64);
        row.add_extra("timeouts", timeouts as f64);
        row.add_extra("fast_recoveries", recoveries as f64);
        row.add_extra("kept_bytes_max", kept as f64);
    }
    let report = rig.stop_load()?;
    let seconds = (after.at - before.at).as_secs_f64();
    let bytes = (after.bytes - before.bytes) as f64;
    anyhow::ensure!(bytes > 0.0, "no message was completed in time");
    let messages = (after.messages - before.messages) as f64 / seconds;
    match cell.what {
        Measure::WriteRate | Measure::SendRate => row.set(messages),
        _ => row.set(bytes * 8e-9 / seconds),
    }
    row.add_extra("messages_per_s", messages);
    row.add_extra("gbit_per_s", bytes * 8e-9 / seconds);
    let frames = |side: usize| (after.frames[side] - before.frames[side]) as f64 / seconds;
    row.add_extra("frames_per_s", frames(0));
    if rig.responder.is_some() {
        row.add_extra("asked_frames_per_s", frames(1));
    }
    for (side, name) in ["asking_cpu_ns_per_byte", "asked_cpu_ns_per_byte"].iter().enumerate() {
        let used = after.cpu[side] - before.cpu[side];
        row.add_extra(name, used * 1e9 / bytes);
        let used = after.busy[side] - before.busy[side];
        row.add_extra(&name.replace("cpu", "busy"), used * 1e9 / bytes);
    }
    if let Some(latency) = report.latency.as_ref().filter(|latency| !latency.is_empty()) {
        add_latencies(latency, row);
    }
    Ok(())
}

fn measure_latency(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open_streams(cell.rig.streams)?;
    rig.start_load(|n| cell.closed_load(n))?;
    pause(rig, cell.duration() / 4)?;
    rig.stop_load()?;
    rig.start_load(|n| cell.closed_load(n))?;
    pause(rig, cell.duration())?;
    let report = rig.stop_load()?;
    let latency = report.latency.context("a load without round trips")?;
    anyhow::ensure!(!latency.is_empty(), "no answer arrived in time");
    row.set(latency.value_at_quantile(0.5) as f64 * 1e-3);
    add_latencies(&latency, row);
    Ok(())
}

/// Adds the quantiles of `latency` (nanoseconds) to the row: extra values in microseconds, and the distribution.
fn add_latencies(latency: &Histogram<u64>, row: &mut Row) {
    let at = |quantile| latency.value_at_quantile(quantile) as f64 * 1e-3;
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999)] {
        row.add_extra(&format!("{name}_us"), at(quantile));
    }
    row.add_extra("p99_9_of_p50", at(0.999) / at(0.5).max(1e-3));
    row.add_extra("max_us", latency.max() as f64 * 1e-3);
    row.add_extra("round_trips", latency.len() as f64);
    row.latency = latency_quantiles(latency);
}

/// Duration of the closed-loop calibration, relative to the cell's time.
const CALIBRATION_SHARE: f64 = 0.5;

/// Maximum time that a worker needs to start the load of one stream and to allocate its histogram. No message is due
/// before all loads have started.
const START_BOUND: Duration = Duration::from_micros(250);

/// Measures the maximum rate in a closed loop, then the latency in an open loop at a percentage of that rate. In the
/// open loop each message is due at a fixed time, even if earlier messages are not complete.
fn measure_loaded_latency(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open_streams(cell.rig.streams)?;
    rig.start_load(|n| cell.closed_load(n))?;
    let calibration = cell.duration().mul_f64(CALIBRATION_SHARE);
    pause(rig, calibration / 2)?;
    let before = Sample::collect(rig);
    pause(rig, calibration)?;
    let most = Sample::collect(rig).messages_per_s(&before);
    rig.stop_load()?;
    anyhow::ensure!(most > 0.0, "no answer arrived in time");
    let rate = most * f64::from(cell.load_percent) / 100.0;
    // The messages of the closed loop drain before the open loop begins.
    pause(rig, Duration::from_millis(5))?;
    let sleeps = |rig: &Rig| rig.responder.as_ref().map_or(0, |end| end.counter("sleeps"));
    let lead = START_BOUND * cell.rig.streams;
    rig.start_load(|n| cell.open_load(n, rate, lead))?;
    pause(rig, lead)?;
    let (before, slept) = (Sample::collect(rig), sleeps(rig));
    pause(rig, cell.duration())?;
    let after = Sample::collect(rig);
    let slept = (sleeps(rig) - slept) as f64;
    let report = rig.stop_load()?;
    let latency = report.latency.context("a load without round trips")?;
    anyhow::ensure!(!latency.is_empty(), "no answer arrived in time");
    row.set(latency.value_at_quantile(0.5) as f64 * 1e-3);
    add_latencies(&latency, row);
    let seconds = (after.at - before.at).as_secs_f64();
    row.add_extra("most_per_s", most);
    row.add_extra("offered_per_s", rate);
    row.add_extra("achieved_per_s", after.messages_per_s(&before));
    row.add_extra("sleeps_per_s", slept / seconds);
    let cpu = after.cpu[1] - before.cpu[1];
    row.add_extra("asked_cpu_share", cpu / seconds);
    // Bytes in both directions.
    let bytes = 2.0 * (after.bytes - before.bytes) as f64;
    row.add_extra("asked_cpu_s_per_gb", cpu / (bytes * 1e-9).max(1e-12));
    Ok(())
}

fn latency_quantiles(histogram: &Histogram<u64>) -> Quantiles {
    histogram
        .iter_quantiles(4)
        .map(|point| (point.quantile(), point.value_iterated_to()))
        .filter(|&(quantile, _)| quantile < 1.0)
        .collect()
}

/// Opens and closes streams, using local addresses in rotation, so that streams in TIME-WAIT accumulate as in
/// production.
fn measure_set_up(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    let (warm, time) = (cell.duration() / 4, cell.duration());
    let begin = Instant::now();
    let (mut requested, mut ended, mut at_warm) = (0, 0u64, None);
    for _ in 0..cell.depth {
        rig.initiator.connect(requested)?;
        requested += 1;
    }
    let ended =
        rig.poll_until("streams", time * 2 + Duration::from_secs(10), |initiator, event| {
            match event {
                Event::Established { stream, .. } => {
                    initiator.send_command(Command::Close { stream, abort: false })?;
                }
                Event::Closed { .. } => {
                    ended += 1;
                    initiator.connect(requested)?;
                    requested += 1;
                }
                Event::ConnectFailed { reason, .. } => anyhow::bail!("no stream: {reason}"),
                _ => {}
            }
            let now = begin.elapsed();
            let (from, before) = *at_warm.get_or_insert((now, ended));
            if from < warm && now >= warm {
                at_warm = Some((now, ended));
            }
            let rate = (ended - before) as f64 / (now - from).as_secs_f64();
            Ok((now >= warm + time).then_some(rate))
        })?;
    row.set(ended);
    row.add_extra("time_wait_recycled", rig.initiator.counter("time_wait_recycled") as f64);
    row.add_extra("streams_in_all_states", rig.initiator.counter("streams") as f64);
    Ok(())
}

/// Length of an A or B slice.
const SLICE: Duration = Duration::from_millis(10);

/// Alternates two streams between the same workers in A/B slices. The row is the median of the ratios `cell` / `b_side`
/// of adjacent slices, in the order AB as often as BA. A slice in which the host preempts a core thus hardly changes
/// the median.
fn measure_slices(cell: &Cell, b_side: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.add_endpoint(&b_side.rig)?;
    rig.open_with(0, 1)?;
    rig.open_with(1, 1)?;
    let pairs = (cell.seconds / (2.0 * SLICE.as_secs_f64())).ceil() as usize;
    let mut ratios = Vec::with_capacity(pairs);
    // The first pair is the warm-up.
    for pair in 0..=pairs.max(1) {
        let mut rates = [0.0; 2];
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for stream in order {
            rig.start_load_on(stream, [cell, b_side][stream].closed_load(0))?;
            pause(rig, SLICE)?;
            let report = rig.stop_load_on(stream)?;
            anyhow::ensure!(report.messages > 0, "no message was completed in a slice");
            rates[stream] = report.messages as f64 / (report.nanoseconds.max(1) as f64 * 1e-9);
        }
        if pair > 0 {
            ratios.push(rates[0] / rates[1]);
        }
    }
    row.set(median(&ratios));
    row.add_extra("pairs", ratios.len() as f64);
    Ok(())
}

/// Idle time after which a stream has freed its start-up memory.
const IDLE_TIME: Duration = Duration::from_millis(2500);

fn measure_memory(
    cell: &Cell,
    rig: &mut Rig,
    row: &mut Row,
    heap: HeapUsage<'_>,
) -> anyhow::Result<()> {
    let n = cell.rig.streams;
    // The first stream causes one-time allocations: tables, caches, the ends' own vectors.
    rig.open_streams(1)?;
    let before = heap();
    rig.open_streams(n)?;
    pause(rig, IDLE_TIME)?;
    let idle = heap();
    row.set((idle.saturating_sub(before)) as f64 / f64::from(2 * n));
    row.add_extra("idle_both_ends_bytes", idle.saturating_sub(before) as f64);
    rig.start_load(|n| cell.closed_load(n))?;
    pause(rig, cell.duration())?;
    let busy = heap();
    rig.stop_load()?;
    row.add_extra("busy_bytes_per_stream", busy.saturating_sub(before) as f64 / f64::from(2 * n));
    row.add_extra("resident_bytes", resident_bytes() as f64);
    Ok(())
}

/// Waits for `time` and handles the responder's events meanwhile.
fn pause(rig: &mut Rig, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        rig.serve()?;
        // Polls rarely, because the workers need the cores.
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
    Ok(())
}

/// Returns the processor seconds of initiator and responder; zero for a worker in another process. The threads have the
/// same name, and the responder's is created first.
fn worker_cpu_seconds() -> [f64; 2] {
    let mut times: Vec<(u32, f64)> = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let stat = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            let thread = entry.file_name().to_str()?.parse().ok()?;
            let nanoseconds: f64 = stat.split_whitespace().next()?.parse().ok()?;
            name.trim().starts_with("worker-").then_some((thread, nanoseconds * 1e-9))
        })
        .collect();
    times.sort_by_key(|&(thread, _)| thread);
    match times[..] {
        [initiator] => [initiator.1, 0.0],
        [responder, initiator, ..] => [initiator.1, responder.1],
        [] => [0.0; 2],
    }
}

/// Returns the resident set size of this process, bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}
