//! The columns of each view, and their rows from two samples.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use api::{Counters, PortInfo, RegionInfo, StreamInfo, WorkerInfo, WorkerStats};

use super::View;
use super::sample::{
    MOST_STREAMS, PLACED, PORT_DROPS, RETRANSMITTED, SENT, Sample, Timed, rate, rate_of, sum_of,
};
use super::table::{Cell, Head, Row, Table};
use crate::show;
use crate::streams::{Column as ListColumn, placed};

/// A column: its heading, and a function that returns its cell of a row.
struct Column<R> {
    head: Head,
    cell: fn(&R) -> Cell,
}

const fn left<R>(key: &'static str, title: &'static str, cell: fn(&R) -> Cell) -> Column<R> {
    Column { head: Head { key, title, right: false }, cell }
}

const fn right<R>(key: &'static str, title: &'static str, cell: fn(&R) -> Cell) -> Column<R> {
    Column { head: Head { key, title, right: true }, cell }
}

/// Returns the headings of a view. A terminal of 80 columns shows the first ones.
pub(super) fn heads(view: View) -> Vec<Head> {
    fn of<R>(columns: &[Column<R>]) -> Vec<Head> {
        columns.iter().map(|column| column.head).collect()
    }
    match view {
        View::Streams => of(&streams_columns()),
        View::Workers => of(&workers_columns()),
        View::Regions => of(&regions_columns()),
        View::Peers => of(&peers_columns()),
        View::Ports => of(&ports_columns()),
    }
}

/// Returns all rows, unordered. `before`: an earlier sample of the same process.
pub(super) fn table(view: View, now: &Sample, before: Option<&Sample>) -> Table {
    let rows = match view {
        View::Streams => rows(&streams_columns(), &stream_rows(now, before), |row| {
            (row.info.id.to_string(), row.rates.sum())
        }),
        View::Workers => rows(&workers_columns(), &worker_rows(now, before), |row| {
            (format!("{:010}", row.info.id), row.info.busy.unwrap_or(0.0))
        }),
        View::Regions => rows(&regions_columns(), &region_rows(now, before), |row| {
            (row.info.name.clone(), row.placed.unwrap_or(0.0))
        }),
        View::Peers => rows(&peers_columns(), &peer_rows(&stream_rows(now, before)), |row| {
            (row.address.clone(), row.rates.sum())
        }),
        View::Ports => rows(&ports_columns(), &port_rows(now, before), |row| {
            (row.info.name.clone(), row.rates.sum())
        }),
    };
    let of = if view == View::Streams { all_streams(now) } else { rows.len() };
    Table { heads: heads(view), rows, of }
}

/// Returns the number of streams: the list may be truncated.
fn all_streams(now: &Sample) -> usize {
    let listed = now.streams.as_ref().map_or(0, |streams| streams.of.len());
    if listed < MOST_STREAMS { listed } else { listed.max(now.status.streams as usize) }
}

/// Builds the rows. `of` returns an entry's identity, the same in all samples, and its load.
fn rows<R>(columns: &[Column<R>], entries: &[R], of: fn(&R) -> (String, f64)) -> Vec<Row> {
    let row = |entry: &R| {
        let (id, busy) = of(entry);
        Row { id, busy, cells: columns.iter().map(|column| (column.cell)(entry)).collect() }
    };
    entries.iter().map(row).collect()
}

/// Returns the entries of an earlier list by their names, and the time since then.
fn earlier<'a, T>(
    before: Option<&'a Timed<Vec<T>>>,
    now: &Timed<Vec<T>>,
    name: fn(&T) -> String,
) -> (HashMap<String, &'a T>, Duration) {
    let Some(before) = before else { return (HashMap::new(), Duration::ZERO) };
    (before.of.iter().map(|one| (name(one), one)).collect(), now.at - before.at)
}

/// Bytes per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    rx: Option<f64>,
    tx: Option<f64>,
    retransmitted: Option<f64>,
}

impl Rates {
    fn sum(self) -> f64 {
        self.rx.unwrap_or(0.0) + self.tx.unwrap_or(0.0)
    }
}

// --- streams ---

struct StreamRow<'a> {
    info: &'a StreamInfo,
    rates: Rates,
}

fn stream_rows<'a>(now: &'a Sample, before: Option<&Sample>) -> Vec<StreamRow<'a>> {
    let Some(now) = &now.streams else { return Vec::new() };
    let before = before.and_then(|before| before.streams.as_ref());
    let (known, elapsed) = earlier(before, now, |stream| stream.id.to_string());
    let row = |info: &'a StreamInfo| {
        let before = known.get(&info.id.to_string()).map(|stream| &stream.counters);
        let of = |names: &[&str]| rate_of(names, before, &info.counters, elapsed);
        let rates = Rates { rx: of(&PLACED), tx: of(&SENT), retransmitted: of(&RETRANSMITTED) };
        StreamRow { info, rates }
    };
    now.of.iter().map(row).collect()
}

/// Returns the cell that `ddpctl streams list` shows.
fn listed(stream: &StreamRow<'_>, column: ListColumn) -> Cell {
    let text = show::stream_cell(stream.info, column);
    match column.number(stream.info) {
        Some(number) => Cell::number(Some(number), &text),
        None => Cell::word(&text),
    }
}

fn streams_columns<'a>() -> Vec<Column<StreamRow<'a>>> {
    vec![
        left("stream", "STREAM", |row| listed(row, ListColumn::Stream)),
        left("remote", "REMOTE", |row| listed(row, ListColumn::Remote)),
        right("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        right("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        right("rtt_us", "RTT", |row| listed(row, ListColumn::Rtt)),
        left("limited_by", "LIMITED BY", |row| listed(row, ListColumn::LimitedBy)),
        left("state", "STATE", |row| listed(row, ListColumn::State)),
        right("retransmission_rate", "RETRANS bit/s", |row| Cell::rate(row.rates.retransmitted)),
        right("cwnd", "CWND", |row| listed(row, ListColumn::Cwnd)),
        right("in_flight", "IN FLIGHT", |row| listed(row, ListColumn::InFlight)),
        left("listener", "LISTENER", |row| listed(row, ListColumn::Listener)),
        left("over", "OVER", |row| listed(row, ListColumn::Over)),
        right("worker", "WORKER", |row| Cell::count(Some(row.info.worker.into()))),
        right("age_seconds", "AGE", |row| listed(row, ListColumn::Age)),
        right("placed_bytes", "PLACED", |row| listed(row, ListColumn::Placed)),
        right("sent_bytes", "SENT", |row| listed(row, ListColumn::Sent)),
    ]
}

// --- peers ---

/// The streams with one address.
struct PeerRow {
    address: String,
    streams: u64,
    rates: Rates,
    /// Largest round-trip time of its streams.
    rtt_us: Option<u64>,
    placed: u64,
    sent: u64,
    retransmitted: u64,
}

fn peer_rows(streams: &[StreamRow<'_>]) -> Vec<PeerRow> {
    let mut peers: BTreeMap<String, PeerRow> = BTreeMap::new();
    for stream in streams {
        let remote = &stream.info.remote;
        let address = remote.parse::<SocketAddr>().map(|remote| remote.ip().to_string());
        let address = address.unwrap_or_else(|_| remote.clone());
        let peer = peers.entry(address.clone()).or_insert(PeerRow {
            address,
            streams: 0,
            rates: Rates::default(),
            rtt_us: None,
            placed: 0,
            sent: 0,
            retransmitted: 0,
        });
        let counter = |names| sum_of(names, &stream.info.counters).unwrap_or(0);
        let add = |sum: Option<f64>, rate: Option<f64>| match (sum, rate) {
            (Some(sum), Some(rate)) => Some(sum + rate),
            (sum, rate) => sum.or(rate),
        };
        peer.streams += 1;
        peer.rates.rx = add(peer.rates.rx, stream.rates.rx);
        peer.rates.tx = add(peer.rates.tx, stream.rates.tx);
        peer.rates.retransmitted = add(peer.rates.retransmitted, stream.rates.retransmitted);
        peer.rtt_us = peer.rtt_us.max(stream.info.flow.as_ref().and_then(|flow| flow.rtt_us));
        peer.placed += placed(stream.info).unwrap_or(0);
        peer.sent += counter(&SENT);
        peer.retransmitted += counter(&RETRANSMITTED);
    }
    peers.into_values().collect()
}

fn peers_columns() -> Vec<Column<PeerRow>> {
    vec![
        left("peer", "PEER", |row| Cell::word(&row.address)),
        right("streams", "STREAMS", |row| Cell::count(Some(row.streams))),
        right("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        right("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        right("rtt_us", "MAX RTT", |row| {
            let text = row.rtt_us.map(show::time).unwrap_or_default();
            Cell::number(row.rtt_us.map(|us| us as f64), &text)
        }),
        right("placed_bytes", "PLACED", |row| Cell::bytes(Some(row.placed))),
        right("sent_bytes", "SENT", |row| Cell::bytes(Some(row.sent))),
        right("retransmission_rate", "RETRANS bit/s", |row| Cell::rate(row.rates.retransmitted)),
        right("retransmitted_bytes", "RETRANSMITTED", |row| Cell::bytes(Some(row.retransmitted))),
    ]
}

// --- workers ---

struct WorkerRow<'a> {
    info: &'a WorkerInfo,
    rates: Rates,
    /// Frames per second.
    rx: Option<f64>,
    tx: Option<f64>,
    drops: Option<f64>,
}

fn worker_rows<'a>(now: &'a Sample, before: Option<&Sample>) -> Vec<WorkerRow<'a>> {
    let workers = before.map(|before| &before.workers);
    let (known, elapsed) = earlier(workers, &now.workers, |worker| worker.id.to_string());
    let row = |info: &'a WorkerInfo| {
        let before_it = known.get(&info.id.to_string()).map(|worker| &worker.counters);
        let of = |name| rate_of(&[name], before_it, &info.counters, elapsed);
        let dropped = |sample: &Sample| {
            let mine = |worker: &&WorkerStats| worker.worker == info.id;
            let worker = sample.stats.of.workers.iter().find(mine)?;
            Some(worker.drops.values().sum::<u64>())
        };
        let drops = before.and_then(|before| {
            rate(dropped(before)?, dropped(now)?, now.stats.at - before.stats.at)
        });
        let rates = Rates { rx: of("rx_bytes"), tx: of("tx_bytes"), retransmitted: None };
        WorkerRow { info, rates, rx: of("rx_frames"), tx: of("tx_frames"), drops }
    };
    now.workers.of.iter().map(row).collect()
}

fn workers_columns<'a>() -> Vec<Column<WorkerRow<'a>>> {
    vec![
        right("worker", "WORKER", |row| Cell::count(Some(row.info.id.into()))),
        right("core", "CORE", |row| Cell::count(row.info.core.map(u64::from))),
        right("busy", "BUSY", |row| {
            let text = row.info.busy.map(show::share).unwrap_or_default();
            Cell::number(row.info.busy, &text)
        }),
        right("streams", "STREAMS", |row| Cell::count(Some(row.info.streams.into()))),
        right("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        right("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        right("rx_frame_rate", "RX/s", |row| Cell::per_second(row.rx)),
        right("tx_frame_rate", "TX/s", |row| Cell::per_second(row.tx)),
        right("drop_rate", "DROPS/s", |row| Cell::per_second(row.drops)),
        left("idle", "IDLE", |row| Cell::word(&row.info.idle)),
    ]
}

// --- regions ---

struct RegionRow<'a> {
    info: &'a RegionInfo,
    placed: Option<f64>,
    messages: Option<f64>,
}

fn region_rows<'a>(now: &'a Sample, before: Option<&Sample>) -> Vec<RegionRow<'a>> {
    let regions = before.map(|before| &before.regions);
    let (known, elapsed) = earlier(regions, &now.regions, |region| region.name.clone());
    let row = |info: &'a RegionInfo| {
        let before = known.get(&info.name);
        let placed = before.and_then(|before| rate(before.placed, info.placed, elapsed));
        let messages = before.and_then(|before| rate(before.messages, info.messages, elapsed));
        RegionRow { info, placed, messages }
    };
    now.regions.of.iter().map(row).collect()
}

fn regions_columns<'a>() -> Vec<Column<RegionRow<'a>>> {
    vec![
        left("region", "REGION", |row| Cell::word(&row.info.name)),
        right("size", "SIZE", |row| Cell::bytes(Some(row.info.size))),
        left("access", "ACCESS", |row| Cell::word(&row.info.access)),
        right("rx_rate", "RX bit/s", |row| Cell::rate(row.placed)),
        right("message_rate", "MESSAGES/s", |row| Cell::per_second(row.messages)),
        left("bound_to", "BOUND TO", |row| Cell::word(&show::or_dash(row.info.bound_to))),
        right("idle_seconds", "IDLE", |row| duration(row.info.idle_for)),
        right("held_seconds", "HELD", |row| duration(row.info.held_for)),
        right("placed_bytes", "PLACED", |row| Cell::bytes(Some(row.info.placed))),
        right("messages", "MESSAGES", |row| Cell::count(Some(row.info.messages))),
        left("backing", "BACKING", |row| Cell::word(&row.info.backing)),
    ]
}

fn duration(seconds: Option<f64>) -> Cell {
    Cell::number(seconds, &seconds.map(show::seconds).unwrap_or_default())
}

// --- ports ---

struct PortRow<'a> {
    info: &'a PortInfo,
    rates: Rates,
    /// Frames per second.
    rx: Option<f64>,
    tx: Option<f64>,
    drops: Option<f64>,
    dropped: u64,
}

fn port_rows<'a>(now: &'a Sample, before: Option<&Sample>) -> Vec<PortRow<'a>> {
    let ports = before.map(|before| &before.ports);
    let (known, elapsed) = earlier(ports, &now.ports, |port| port.name.clone());
    let row = |info: &'a PortInfo| {
        let before: Option<&Counters> = known.get(&info.name).map(|port| &port.counters);
        let of = |names: &[&str]| rate_of(names, before, &info.counters, elapsed);
        let rates = Rates { rx: of(&["rx_bytes"]), tx: of(&["tx_bytes"]), retransmitted: None };
        let (rx, tx) = (of(&["rx_frames"]), of(&["tx_frames"]));
        let dropped = sum_of(&PORT_DROPS, &info.counters).unwrap_or(0);
        PortRow { info, rates, rx, tx, drops: of(&PORT_DROPS), dropped }
    };
    now.ports.of.iter().map(row).collect()
}

fn ports_columns<'a>() -> Vec<Column<PortRow<'a>>> {
    vec![
        left("port", "PORT", |row| Cell::word(&row.info.name)),
        left("kind", "KIND", |row| Cell::word(&row.info.kind)),
        left("link", "LINK", |row| Cell::word(&show::link(row.info))),
        right("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        right("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        right("rx_frame_rate", "RX/s", |row| Cell::per_second(row.rx)),
        right("tx_frame_rate", "TX/s", |row| Cell::per_second(row.tx)),
        right("drop_rate", "DROPS/s", |row| Cell::per_second(row.drops)),
        right("dropped", "DROPPED", |row| Cell::count(Some(row.dropped))),
        right("mtu", "MTU", |row| Cell::count(Some(row.info.mtu.into()))),
        right("queues", "QUEUES", |row| Cell::count(Some(row.info.queues.into()))),
        left("device", "DEVICE", |row| Cell::word(&row.info.device)),
    ]
}
