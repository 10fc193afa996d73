//! The answers of the API at one time, and rates between two times.
//!
//! The list of streams is bounded to [`MOST_STREAMS`], each with the displayed counters only.

use std::time::{Duration, Instant};

use api::{
    Client, ClientError, Counters, PortInfo, RegionInfo, Stats, Status, StreamInfo, WorkerInfo,
};

/// Most streams that are requested.
pub(super) const MOST_STREAMS: usize = 10_000;

/// Bytes that a stream's peer placed here.
pub(super) const PLACED: [&str; 2] = ["placed_in_order_bytes", "placed_out_of_order_bytes"];
/// Bytes of its messages that were sent.
pub(super) const SENT: [&str; 1] = ["sent_bytes"];
/// Bytes that were sent again.
pub(super) const RETRANSMITTED: [&str; 1] = ["retransmitted_bytes"];
/// Frames that a port lost before a worker saw them, or instead of sending them.
pub(super) const PORT_DROPS: [&str; 4] =
    ["device_rx_missed", "device_rx_no_buffer", "no_buffer", "tx_dropped"];

/// A value and its time.
#[derive(Clone, Debug)]
pub(super) struct Timed<T> {
    pub(super) at: Instant,
    pub(super) of: T,
}

/// One sample of the appliance.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) status: Status,
    pub(super) stats: Timed<Stats>,
    pub(super) workers: Timed<Vec<WorkerInfo>>,
    pub(super) regions: Timed<Vec<RegionInfo>>,
    pub(super) ports: Timed<Vec<PortInfo>>,
    /// `None` if the view does not need them.
    pub(super) streams: Option<Timed<Vec<StreamInfo>>>,
}

/// Rates of the whole appliance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// Bytes per second that its ports received.
    pub(super) rx: Option<f64>,
    /// And sent.
    pub(super) tx: Option<f64>,
    /// Frames per second that it dropped.
    pub(super) drops: Option<f64>,
}

impl Sample {
    pub(super) fn fetch(client: &Client, streams: bool) -> Result<Self, ClientError> {
        let counters = [&PLACED[..], &SENT, &RETRANSMITTED].concat().join(",");
        let list = format!("/v1/streams?limit={MOST_STREAMS}&counters={counters}");
        Ok(Self {
            status: client.get("/v1/status")?,
            stats: timed(client.get("/v1/stats")?),
            workers: timed(client.get("/v1/workers")?),
            regions: timed(client.get("/v1/regions")?),
            ports: timed(client.get("/v1/ports")?),
            streams: if streams { Some(timed(client.get(&list)?)) } else { None },
        })
    }

    /// Returns true if `before` is of the same process, so that numbers and counters can be
    /// compared.
    pub(super) fn continues(&self, before: &Sample) -> bool {
        self.status.pid == before.status.pid
            && self.status.uptime_seconds >= before.status.uptime_seconds
    }

    pub(super) fn totals(&self, before: Option<&Sample>) -> Totals {
        let Some(before) = before else { return Totals::default() };
        let ports = |name: &'static str| {
            let sum = |ports: &Timed<Vec<PortInfo>>| total(&ports.of, name);
            rate(sum(&before.ports), sum(&self.ports), self.ports.at - before.ports.at)
        };
        let elapsed = self.stats.at - before.stats.at;
        let drops = rate(drops(&before.stats.of), drops(&self.stats.of), elapsed);
        Totals { rx: ports("rx_bytes"), tx: ports("tx_bytes"), drops }
    }
}

fn timed<T>(of: T) -> Timed<T> {
    Timed { at: Instant::now(), of }
}

fn total(ports: &[PortInfo], name: &str) -> u64 {
    ports.iter().filter_map(|port| port.counters.get(name)).sum()
}

/// Returns the number of frames that workers and ports dropped.
fn drops(stats: &Stats) -> u64 {
    let workers: u64 = stats.workers.iter().flat_map(|worker| worker.drops.values()).sum();
    let ports = stats.ports.iter();
    let ports =
        ports.flat_map(|port| PORT_DROPS.iter().filter_map(|name| port.counters.get(*name)));
    workers + ports.sum::<u64>()
}

/// Returns the rate of a counter per second. `None` if it decreased, as after a restart of the
/// appliance.
pub(super) fn rate(before: u64, now: u64, elapsed: Duration) -> Option<f64> {
    let seconds = elapsed.as_secs_f64();
    (now >= before && seconds > 0.0).then(|| (now - before) as f64 / seconds)
}

/// Returns the rate of a sum of counters. `None` if none of them exists now or existed before.
pub(super) fn rate_of(
    names: &[&str],
    before: Option<&Counters>,
    now: &Counters,
    elapsed: Duration,
) -> Option<f64> {
    rate(sum_of(names, before?)?, sum_of(names, now)?, elapsed)
}

/// Returns the sum of counters; `None` if none of them exists.
pub(super) fn sum_of(names: &[&str], counters: &Counters) -> Option<u64> {
    names.iter().filter_map(|name| counters.get(*name)).copied().reduce(|a, b| a + b)
}
