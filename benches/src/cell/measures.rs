//! Measurement procedures of the cells, one for each [`Measure`].

use std::time::{Duration, Instant};

use anyhow::Context as _;
use dataplane::{Command, Event, StreamStats};
use hdrhistogram::Histogram;

use super::{Cell, Heap, Measure};
use crate::rig::Rig;
use crate::row::{Quantiles, Row, median};

/// Runs the procedure of the cell's [`Measure`].
pub(super) fn measure(
    cell: &Cell,
    rig: &mut Rig,
    row: &mut Row,
    heap: Option<Heap<'_>>,
) -> anyhow::Result<()> {
    if let Some(beside) = cell.beside() {
        return turns(cell, &beside, rig, row);
    }
    match cell.what {
        Measure::Goodput
        | Measure::Read
        | Measure::Mixed
        | Measure::Send
        | Measure::WriteRate
        | Measure::SendRate => goodput(cell, rig, row),
        Measure::Echo | Measure::Notify | Measure::ReadTrip => latency(cell, rig, row),
        Measure::Loaded => loaded(cell, rig, row),
        Measure::SetUp => set_up(cell, rig, row),
        Measure::Memory => {
            let heap = heap.context("this program does not count its heap")?;
            memory(cell, rig, row, heap)
        }
    }
}

/// Counters at the begin or the end of the measured time.
struct Sample {
    at: Instant,
    messages: u64,
    bytes: u64,
    /// Frames sent by the asking and the asked worker; zero for a worker in another process, as in
    /// `cpu` and `busy`.
    frames: [u64; 2],
    cpu: [f64; 2],
    /// Busy seconds of the two workers.
    busy: [f64; 2],
}

impl Sample {
    fn take(rig: &Rig) -> Sample {
        let both = |name| {
            [Some(&rig.asking), rig.asked.as_ref()].map(|end| end.map_or(0, |end| end.count(name)))
        };
        Sample {
            // The asked side's count is zero unless both sides make the load.
            messages: both("load_messages").iter().sum(),
            bytes: both("load_bytes").iter().sum(),
            frames: both("tx_frames"),
            cpu: worker_seconds(),
            busy: both("busy_nanoseconds").map(|nanoseconds| nanoseconds as f64 * 1e-9),
            at: Instant::now(),
        }
    }

    fn messages_per_s(&self, before: &Sample) -> f64 {
        (self.messages - before.messages) as f64 / (self.at - before.at).as_secs_f64()
    }
}

fn goodput(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open(cell.rig.streams)?;
    rig.start(|n| cell.load(n))?;
    pause(rig, cell.time() / 4)?;
    let before = Sample::take(rig);
    pause(rig, cell.time())?;
    let after = Sample::take(rig);
    let held = rig.asked.as_ref().map_or(0.0, |asked| asked.count("held_bytes_max") as f64);
    row.also("held_bytes_max", held);
    if let Some(StreamStats::Tcp(stats)) = rig.asked_stats()? {
        let unlocatable = stats.mpa_rx.unlocatable_max as f64;
        row.also("unlocatable_bytes_max", unlocatable);
        row.also("located_held_bytes_max", (held - unlocatable).max(0.0));
    }
    if let Some(stats) = rig.asking_stats()? {
        let (retransmitted, timeouts, recoveries, kept) = match stats {
            StreamStats::Tcp(stats) => {
                let (tcp, kept) = (stats.tcp, stats.mpa_tx.kept_max);
                row.also("paced_waits", tcp.paced_waits as f64);
                (tcp.loss.segments_retransmitted, tcp.loss.timeouts, tcp.loss.fast_recoveries, kept)
            }
            StreamStats::Sctp(session, association) => {
                let (send, kept) = (association.send, session.session.tx.kept_max);
                (send.retransmitted, send.timeouts, send.fast_recoveries, kept)
            }
        };
        row.also("segments_retransmitted", retransmitted as f64);
        row.also("timeouts", timeouts as f64);
        row.also("fast_recoveries", recoveries as f64);
        row.also("kept_bytes_max", kept as f64);
    }
    let report = rig.stop()?;
    let seconds = (after.at - before.at).as_secs_f64();
    let bytes = (after.bytes - before.bytes) as f64;
    anyhow::ensure!(bytes > 0.0, "not one message was complete in the time");
    let messages = (after.messages - before.messages) as f64 / seconds;
    match cell.what {
        Measure::WriteRate | Measure::SendRate => row.set(messages),
        _ => row.set(bytes * 8e-9 / seconds),
    }
    row.also("messages_per_s", messages);
    row.also("gbit_per_s", bytes * 8e-9 / seconds);
    let frames = |side: usize| (after.frames[side] - before.frames[side]) as f64 / seconds;
    row.also("frames_per_s", frames(0));
    if rig.asked.is_some() {
        row.also("asked_frames_per_s", frames(1));
    }
    for (side, name) in ["asking_cpu_ns_per_byte", "asked_cpu_ns_per_byte"].iter().enumerate() {
        let used = after.cpu[side] - before.cpu[side];
        row.also(name, used * 1e9 / bytes);
        let used = after.busy[side] - before.busy[side];
        row.also(&name.replace("cpu", "busy"), used * 1e9 / bytes);
    }
    if let Some(latency) = report.latency.as_ref().filter(|latency| !latency.is_empty()) {
        times(latency, row);
    }
    Ok(())
}

fn latency(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open(cell.rig.streams)?;
    rig.start(|n| cell.load(n))?;
    pause(rig, cell.time() / 4)?;
    rig.stop()?;
    rig.start(|n| cell.load(n))?;
    pause(rig, cell.time())?;
    let report = rig.stop()?;
    let latency = report.latency.context("a load without round trips")?;
    anyhow::ensure!(!latency.is_empty(), "not one answer came in the time");
    row.set(latency.value_at_quantile(0.5) as f64 * 1e-3);
    times(&latency, row);
    Ok(())
}

/// Adds the quantiles of a distribution to the row.
fn times(latency: &Histogram<u64>, row: &mut Row) {
    let at = |quantile| latency.value_at_quantile(quantile) as f64 * 1e-3;
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999)] {
        row.also(&format!("{name}_us"), at(quantile));
    }
    row.also("p99_9_of_p50", at(0.999) / at(0.5).max(1e-3));
    row.also("max_us", latency.max() as f64 * 1e-3);
    row.also("round_trips", latency.len() as f64);
    row.latency = quantiles(latency);
}

/// Duration of the closed-loop calibration, relative to the cell's time.
const CALIBRATION: f64 = 0.5;

/// Upper bound of a load's start at the worker, which allocates its histogram. No message is due
/// before.
const START: Duration = Duration::from_micros(250);

/// Measures the maximum rate in a closed loop, then the latency in an open loop at a fraction of
/// that rate. In the open loop each message is due at its time, whatever the progress of earlier
/// ones.
fn loaded(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.open(cell.rig.streams)?;
    rig.start(|n| cell.load(n))?;
    let calibration = cell.time().mul_f64(CALIBRATION);
    pause(rig, calibration / 2)?;
    let before = Sample::take(rig);
    pause(rig, calibration)?;
    let most = Sample::take(rig).messages_per_s(&before);
    rig.stop()?;
    anyhow::ensure!(most > 0.0, "not one answer came in the time");
    let rate = most * f64::from(cell.load_percent) / 100.0;
    // The rest of the closed loop drains before the open loop begins.
    pause(rig, Duration::from_millis(5))?;
    let sleeps = |rig: &Rig| rig.asked.as_ref().map_or(0, |asked| asked.count("sleeps"));
    let lead = START * cell.rig.streams;
    rig.start(|n| cell.paced(n, rate, lead))?;
    pause(rig, lead)?;
    let (before, slept) = (Sample::take(rig), sleeps(rig));
    pause(rig, cell.time())?;
    let after = Sample::take(rig);
    let slept = (sleeps(rig) - slept) as f64;
    let report = rig.stop()?;
    let latency = report.latency.context("a load without round trips")?;
    anyhow::ensure!(!latency.is_empty(), "not one answer came in the time");
    row.set(latency.value_at_quantile(0.5) as f64 * 1e-3);
    times(&latency, row);
    let seconds = (after.at - before.at).as_secs_f64();
    row.also("most_per_s", most);
    row.also("offered_per_s", rate);
    row.also("achieved_per_s", after.messages_per_s(&before));
    row.also("sleeps_per_s", slept / seconds);
    let cpu = after.cpu[1] - before.cpu[1];
    row.also("asked_cpu_share", cpu / seconds);
    // Both directions.
    let bytes = 2.0 * (after.bytes - before.bytes) as f64;
    row.also("asked_cpu_s_per_gb", cpu / (bytes * 1e-9).max(1e-12));
    Ok(())
}

fn quantiles(histogram: &Histogram<u64>) -> Quantiles {
    histogram
        .iter_quantiles(4)
        .map(|point| (point.quantile(), point.value_iterated_to()))
        .filter(|&(quantile, _)| quantile < 1.0)
        .collect()
}

/// Opens and closes streams from one address after the other, so that streams in TIME-WAIT
/// accumulate as in production.
fn set_up(cell: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    let (warm, time) = (cell.time() / 4, cell.time());
    let begin = Instant::now();
    let (mut asked, mut ended, mut at_warm) = (0, 0u64, None);
    for _ in 0..cell.depth {
        rig.asking.connect(asked)?;
        asked += 1;
    }
    let ended = rig.until("streams", time * 2 + Duration::from_secs(10), |asking, event| {
        match event {
            Event::Established { stream, .. } => {
                asking.command(Command::Close { stream, abort: false })?;
            }
            Event::Closed { .. } => {
                ended += 1;
                asking.connect(asked)?;
                asked += 1;
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
    row.also("time_wait_recycled", rig.asking.count("time_wait_recycled") as f64);
    row.also("streams_in_all_states", rig.asking.count("streams") as f64);
    Ok(())
}

/// Length of an A or B slice.
const TURN: Duration = Duration::from_millis(10);

/// Alternates two streams between the same workers in A/B slices. Each ratio is of two adjacent
/// slices, in the order AB as often as BA. The row is the median ratio, so that a slice in which
/// the host preempts a core has no influence.
fn turns(cell: &Cell, beside: &Cell, rig: &mut Rig, row: &mut Row) -> anyhow::Result<()> {
    rig.add_way(&beside.rig)?;
    rig.open_by(0, 1)?;
    rig.open_by(1, 1)?;
    let pairs = (cell.seconds / (2.0 * TURN.as_secs_f64())).ceil() as usize;
    let mut ratios = Vec::with_capacity(pairs);
    // The first pair is the warm-up.
    for pair in 0..=pairs.max(1) {
        let mut rates = [0.0; 2];
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for stream in order {
            rig.start_one(stream, [cell, beside][stream].load(0))?;
            pause(rig, TURN)?;
            let report = rig.stop_one(stream)?;
            anyhow::ensure!(report.messages > 0, "not one message was complete in a turn");
            rates[stream] = report.messages as f64 / (report.nanoseconds.max(1) as f64 * 1e-9);
        }
        if pair > 0 {
            ratios.push(rates[0] / rates[1]);
        }
    }
    row.set(median(&ratios));
    row.also("pairs", ratios.len() as f64);
    Ok(())
}

/// Silence after which a stream has freed the memory of its start-up.
const IDLE: Duration = Duration::from_millis(2500);

fn memory(cell: &Cell, rig: &mut Rig, row: &mut Row, heap: Heap<'_>) -> anyhow::Result<()> {
    let n = cell.rig.streams;
    // The first stream causes the one-time allocations: tables, caches, the ends' own vectors.
    rig.open(1)?;
    let before = heap();
    rig.open(n)?;
    pause(rig, IDLE)?;
    let idle = heap();
    row.set((idle.saturating_sub(before)) as f64 / f64::from(2 * n));
    row.also("idle_both_ends_bytes", idle.saturating_sub(before) as f64);
    rig.start(|n| cell.load(n))?;
    pause(rig, cell.time())?;
    let busy = heap();
    rig.stop()?;
    row.also("busy_bytes_per_stream", busy.saturating_sub(before) as f64 / f64::from(2 * n));
    row.also("resident_bytes", resident() as f64);
    Ok(())
}

/// Lets `time` pass and runs the control side meanwhile.
fn pause(rig: &mut Rig, time: Duration) -> anyhow::Result<()> {
    let end = Instant::now() + time;
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        rig.serve()?;
        // Polls rarely, because the cores belong to the workers.
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
    Ok(())
}

/// Returns the processor seconds of the asking and the asked worker; zero for a worker in another
/// process. The threads have the same name, and the asked one is created first.
fn worker_seconds() -> [f64; 2] {
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
        [asking] => [asking.1, 0.0],
        [asked, asking, ..] => [asking.1, asked.1],
        [] => [0.0; 2],
    }
}

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}
