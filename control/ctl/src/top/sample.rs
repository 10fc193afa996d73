//! Samples of the API's answers, and rates computed from two samples.
//!
//! The list of streams is limited to [`MOST_STREAMS`], each with the displayed counters only.

use std::time::{Duration, Instant};

use api::{
    Client, ClientError, Counters, PortInfo, ProgramInfo, RegionInfo, Stats, Status, StreamInfo,
    WorkerInfo,
};

/// Maximum number of streams that are requested.
pub(super) const MOST_STREAMS: usize = 10_000;

/// Counters of bytes that a stream's peer placed in local regions.
pub(super) const PLACED: [&str; 2] = ["placed_in_order_bytes", "placed_out_of_order_bytes"];
/// Counter of bytes sent in a stream's messages.
pub(super) const SENT: [&str; 1] = ["sent_bytes"];
/// Counter of a stream's retransmitted bytes.
pub(super) const RETRANSMITTED: [&str; 1] = ["retransmitted_bytes"];
/// Counters of frames that a port lost before a worker received them, or dropped instead of sending them.
pub(super) const PORT_DROPS: [&str; 4] =
    ["device_rx_missed", "device_rx_no_buffer", "no_buffer", "tx_dropped"];

/// A value and the time at which it was received.
#[derive(Clone, Debug)]
pub(super) struct Timestamped<T> {
    pub(super) taken_at: Instant,
    pub(super) value: T,
}

/// One sample of the appliance.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) status: Status,
    pub(super) stats: Timestamped<Stats>,
    pub(super) workers: Timestamped<Vec<WorkerInfo>>,
    pub(super) regions: Timestamped<Vec<RegionInfo>>,
    pub(super) ports: Timestamped<Vec<PortInfo>>,
    pub(super) programs: Vec<ProgramInfo>,
    /// `None` if the view does not need the streams.
    pub(super) streams: Option<Timestamped<Vec<StreamInfo>>>,
}

/// Rates of the whole appliance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// Bytes per second that the ports received.
    pub(super) rx: Option<f64>,
    /// Bytes per second that the ports sent.
    pub(super) tx: Option<f64>,
    /// Frames per second that workers and ports dropped.
    pub(super) drops: Option<f64>,
}

impl Sample {
    pub(super) fn fetch(client: &Client, streams: bool) -> Result<Self, ClientError> {
        let counters = [&PLACED[..], &SENT, &RETRANSMITTED].concat().join(",");
        let counters = format!("&counters={counters}");
        let list = || client.list_first("/v1/streams", &counters, MOST_STREAMS);
        Ok(Self {
            status: client.get("/v1/status")?,
            stats: timestamped(client.get("/v1/stats")?),
            workers: timestamped(client.get("/v1/workers")?),
            regions: timestamped(client.list("/v1/regions")?),
            ports: timestamped(client.get("/v1/ports")?),
            programs: client.get("/v1/programs")?,
            streams: if streams { Some(timestamped(list()?)) } else { None },
        })
    }

    /// Returns true if `before` is a sample of the same process, so that stream numbers and counters are comparable.
    pub(super) fn is_same_process(&self, before: &Sample) -> bool {
        self.status.pid == before.status.pid
            && self.status.uptime_seconds >= before.status.uptime_seconds
    }

    pub(super) fn totals(&self, before: Option<&Sample>) -> Totals {
        let Some(before) = before else { return Totals::default() };
        let ports = |name: &'static str| {
            let sum = |ports: &Timestamped<Vec<PortInfo>>| port_counter_sum(&ports.value, name);
            rate(sum(&before.ports), sum(&self.ports), self.ports.taken_at - before.ports.taken_at)
        };
        let elapsed = self.stats.taken_at - before.stats.taken_at;
        let drops =
            rate(dropped_frames(&before.stats.value), dropped_frames(&self.stats.value), elapsed);
        Totals { rx: ports("rx_bytes"), tx: ports("tx_bytes"), drops }
    }
}

fn timestamped<T>(of: T) -> Timestamped<T> {
    Timestamped { taken_at: Instant::now(), value: of }
}

fn port_counter_sum(ports: &[PortInfo], name: &str) -> u64 {
    ports.iter().filter_map(|port| port.counters.get(name)).sum()
}

/// Returns the number of frames that workers and ports dropped.
fn dropped_frames(stats: &Stats) -> u64 {
    let workers: u64 = stats.workers.iter().flat_map(|worker| worker.drops.values()).sum();
    let ports = stats.ports.iter();
    let ports =
        ports.flat_map(|port| PORT_DROPS.iter().filter_map(|name| port.counters.get(*name)));
    workers + ports.sum::<u64>()
}

/// Returns the rate of a counter per second. `None` if no time elapsed or the counter decreased, for instance after a
/// restart of the appliance.
pub(super) fn rate(before: u64, now: u64, elapsed: Duration) -> Option<f64> {
    let seconds = elapsed.as_secs_f64();
    (now >= before && seconds > 0.0).then(|| (now - before) as f64 / seconds)
}

/// Returns the rate of a sum of counters per second. `None` if either sample has none of the counters, or if [`rate`]
/// returns `None`.
pub(super) fn counter_rate(
    names: &[&str],
    before: Option<&Counters>,
    now: &Counters,
    elapsed: Duration,
) -> Option<f64> {
    rate(counter_sum(names, before?)?, counter_sum(names, now)?, elapsed)
}

/// Returns the sum of counters; `None` if none of them exists.
pub(super) fn counter_sum(names: &[&str], counters: &Counters) -> Option<u64> {
    names.iter().filter_map(|name| counters.get(*name)).copied().reduce(|a, b| a + b)
}
