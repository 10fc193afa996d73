//! Columns of each view of `ddpctl top`, and rows computed from two samples.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use api::{Counters, PortInfo, ProgramInfo, RegionInfo, StreamInfo, WorkerInfo, WorkerStats};

use super::View;
use super::sample::{
    MOST_STREAMS, PLACED, PORT_DROPS, RETRANSMITTED, SENT, Sample, Timestamped, counter_rate,
    counter_sum, rate,
};
use super::table::{Cell, ColumnHead, Row, Table};
use crate::show;
use crate::streams::{Column as ListColumn, placed_bytes};

/// A column: its heading, and a function that returns the column's cell for a row.
struct Column<R> {
    head: ColumnHead,
    cell: fn(&R) -> Cell,
}

const fn text_column<R>(key: &'static str, title: &'static str, cell: fn(&R) -> Cell) -> Column<R> {
    Column { head: ColumnHead { key, title, is_right_aligned: false }, cell }
}

const fn number_column<R>(
    key: &'static str,
    title: &'static str,
    cell: fn(&R) -> Cell,
) -> Column<R> {
    Column { head: ColumnHead { key, title, is_right_aligned: true }, cell }
}

/// Returns the column headings of a view. A terminal of 80 characters shows only the first columns.
pub(super) fn heads(view: View) -> Vec<ColumnHead> {
    fn heads_of<R>(columns: &[Column<R>]) -> Vec<ColumnHead> {
        columns.iter().map(|column| column.head).collect()
    }
    match view {
        View::Streams => heads_of(&streams_columns()),
        View::Workers => heads_of(&workers_columns()),
        View::Regions => heads_of(&regions_columns()),
        View::Peers => heads_of(&peers_columns()),
        View::Ports => heads_of(&ports_columns()),
        View::Programs => heads_of(&programs_columns()),
    }
}

/// Returns all rows, unordered. `before`: an earlier sample of the same process, for rates.
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
        View::Programs => rows(&programs_columns(), &program_rows(now, before), |row| {
            (format!("{:010}", row.info.id), row.rates.sum())
        }),
    };
    let of = if view == View::Streams { stream_count(now) } else { rows.len() };
    Table { heads: heads(view), rows, total_rows: of }
}

/// Returns the number of all streams, even if the list is truncated to [`MOST_STREAMS`].
fn stream_count(now: &Sample) -> usize {
    let listed = now.streams.as_ref().map_or(0, |streams| streams.value.len());
    if listed < MOST_STREAMS { listed } else { listed.max(now.status.streams as usize) }
}

/// Builds the rows. `of` returns an entry's identity, which is the same in all samples, and its load.
fn rows<R>(columns: &[Column<R>], entries: &[R], of: fn(&R) -> (String, f64)) -> Vec<Row> {
    let row = |entry: &R| {
        let (id, busy) = of(entry);
        Row { id, load: busy, cells: columns.iter().map(|column| (column.cell)(entry)).collect() }
    };
    entries.iter().map(row).collect()
}

/// Indexes an earlier list by name, and returns the time between the two lists. Without an earlier list, the index is
/// empty and the time is zero.
fn index_previous<'a, T>(
    before: Option<&'a Timestamped<Vec<T>>>,
    now: &Timestamped<Vec<T>>,
    name: fn(&T) -> String,
) -> (HashMap<String, &'a T>, Duration) {
    let Some(before) = before else { return (HashMap::new(), Duration::ZERO) };
    (before.value.iter().map(|one| (name(one), one)).collect(), now.taken_at - before.taken_at)
}

/// Rates in bytes per second; `None` if unknown.
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
    let (known, elapsed) = index_previous(before, now, |stream| stream.id.to_string());
    let row = |info: &'a StreamInfo| {
        let before = known.get(&info.id.to_string()).map(|stream| &stream.counters);
        let of = |names: &[&str]| counter_rate(names, before, &info.counters, elapsed);
        let rates = Rates { rx: of(&PLACED), tx: of(&SENT), retransmitted: of(&RETRANSMITTED) };
        StreamRow { info, rates }
    };
    now.value.iter().map(row).collect()
}

/// Returns the same cell as `ddpctl streams list`.
fn list_cell(stream: &StreamRow<'_>, column: ListColumn) -> Cell {
    let text = show::stream_cell(stream.info, column);
    match column.sort_number(stream.info) {
        Some(number) => Cell::number(Some(number), &text),
        None => Cell::text_cell(&text),
    }
}

fn streams_columns<'a>() -> Vec<Column<StreamRow<'a>>> {
    vec![
        text_column("stream", "STREAM", |row| list_cell(row, ListColumn::Stream)),
        text_column("remote", "REMOTE", |row| list_cell(row, ListColumn::Remote)),
        number_column("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        number_column("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        number_column("rtt_us", "RTT", |row| list_cell(row, ListColumn::Rtt)),
        text_column("limited_by", "LIMITED BY", |row| list_cell(row, ListColumn::LimitedBy)),
        text_column("state", "STATE", |row| list_cell(row, ListColumn::State)),
        number_column("retransmission_rate", "RETRANS bit/s", |row| {
            Cell::rate(row.rates.retransmitted)
        }),
        number_column("cwnd", "CWND", |row| list_cell(row, ListColumn::Cwnd)),
        number_column("in_flight", "IN FLIGHT", |row| list_cell(row, ListColumn::InFlight)),
        text_column("listener", "LISTENER", |row| list_cell(row, ListColumn::Listener)),
        text_column("over", "OVER", |row| list_cell(row, ListColumn::Over)),
        number_column("worker", "WORKER", |row| Cell::count(Some(row.info.worker.into()))),
        number_column("age_seconds", "AGE", |row| list_cell(row, ListColumn::Age)),
        number_column("placed_bytes", "PLACED", |row| list_cell(row, ListColumn::Placed)),
        number_column("sent_bytes", "SENT", |row| list_cell(row, ListColumn::Sent)),
    ]
}

// --- peers ---

/// Totals of all streams of one peer address.
struct PeerRow {
    address: String,
    streams: u64,
    rates: Rates,
    /// Largest round-trip time of the peer's streams, microseconds.
    rtt_us: Option<u64>,
    placed: u64,
    sent: u64,
    retransmitted: u64,
}

/// Adds a rate to a sum; `None` is an unknown rate.
fn add_rate(sum: Option<f64>, rate: Option<f64>) -> Option<f64> {
    match (sum, rate) {
        (Some(sum), Some(rate)) => Some(sum + rate),
        (sum, rate) => sum.or(rate),
    }
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
        let counter = |names| counter_sum(names, &stream.info.counters).unwrap_or(0);
        peer.streams += 1;
        peer.rates.rx = add_rate(peer.rates.rx, stream.rates.rx);
        peer.rates.tx = add_rate(peer.rates.tx, stream.rates.tx);
        peer.rates.retransmitted = add_rate(peer.rates.retransmitted, stream.rates.retransmitted);
        peer.rtt_us = peer.rtt_us.max(stream.info.flow.as_ref().and_then(|flow| flow.rtt_us));
        peer.placed += placed_bytes(stream.info).unwrap_or(0);
        peer.sent += counter(&SENT);
        peer.retransmitted += counter(&RETRANSMITTED);
    }
    peers.into_values().collect()
}

fn peers_columns() -> Vec<Column<PeerRow>> {
    vec![
        text_column("peer", "PEER", |row| Cell::text_cell(&row.address)),
        number_column("streams", "STREAMS", |row| Cell::count(Some(row.streams))),
        number_column("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        number_column("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        number_column("rtt_us", "MAX RTT", |row| {
            let text = row.rtt_us.map(show::format_time).unwrap_or_default();
            Cell::number(row.rtt_us.map(|us| us as f64), &text)
        }),
        number_column("placed_bytes", "PLACED", |row| Cell::bytes(Some(row.placed))),
        number_column("sent_bytes", "SENT", |row| Cell::bytes(Some(row.sent))),
        number_column("retransmission_rate", "RETRANS bit/s", |row| {
            Cell::rate(row.rates.retransmitted)
        }),
        number_column("retransmitted_bytes", "RETRANSMITTED", |row| {
            Cell::bytes(Some(row.retransmitted))
        }),
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
    let (known, elapsed) = index_previous(workers, &now.workers, |worker| worker.id.to_string());
    let row = |info: &'a WorkerInfo| {
        let before_it = known.get(&info.id.to_string()).map(|worker| &worker.counters);
        let of = |name| counter_rate(&[name], before_it, &info.counters, elapsed);
        let dropped = |sample: &Sample| {
            let mine = |worker: &&WorkerStats| worker.worker == info.id;
            let worker = sample.stats.value.workers.iter().find(mine)?;
            Some(worker.drops.values().sum::<u64>())
        };
        let drops = before.and_then(|before| {
            rate(dropped(before)?, dropped(now)?, now.stats.taken_at - before.stats.taken_at)
        });
        let rates = Rates { rx: of("rx_bytes"), tx: of("tx_bytes"), retransmitted: None };
        WorkerRow { info, rates, rx: of("rx_frames"), tx: of("tx_frames"), drops }
    };
    now.workers.value.iter().map(row).collect()
}

fn workers_columns<'a>() -> Vec<Column<WorkerRow<'a>>> {
    vec![
        number_column("worker", "WORKER", |row| Cell::count(Some(row.info.id.into()))),
        number_column("core", "CORE", |row| Cell::count(row.info.core.map(u64::from))),
        number_column("busy", "BUSY", |row| {
            let text = row.info.busy.map(show::format_percent).unwrap_or_default();
            Cell::number(row.info.busy, &text)
        }),
        number_column("streams", "STREAMS", |row| Cell::count(Some(row.info.streams.into()))),
        number_column("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        number_column("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        number_column("rx_frame_rate", "RX/s", |row| Cell::per_second(row.rx)),
        number_column("tx_frame_rate", "TX/s", |row| Cell::per_second(row.tx)),
        number_column("drop_rate", "DROPS/s", |row| Cell::per_second(row.drops)),
        text_column("idle", "IDLE", |row| Cell::text_cell(&row.info.idle)),
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
    let (known, elapsed) = index_previous(regions, &now.regions, |region| region.name.clone());
    let row = |info: &'a RegionInfo| {
        let before = known.get(&info.name);
        let placed = before.and_then(|before| rate(before.placed, info.placed, elapsed));
        let messages = before.and_then(|before| rate(before.messages, info.messages, elapsed));
        RegionRow { info, placed, messages }
    };
    now.regions.value.iter().map(row).collect()
}

fn regions_columns<'a>() -> Vec<Column<RegionRow<'a>>> {
    vec![
        text_column("region", "REGION", |row| Cell::text_cell(&row.info.name)),
        number_column("size", "SIZE", |row| Cell::bytes(Some(row.info.size))),
        text_column("access", "ACCESS", |row| Cell::text_cell(&row.info.access)),
        number_column("rx_rate", "RX bit/s", |row| Cell::rate(row.placed)),
        number_column("message_rate", "MESSAGES/s", |row| Cell::per_second(row.messages)),
        text_column("bound_to", "BOUND TO", |row| {
            Cell::text_cell(&show::text_or_dash(row.info.bound_to))
        }),
        number_column("idle_seconds", "IDLE", |row| duration(row.info.idle_for)),
        number_column("held_seconds", "HELD", |row| duration(row.info.held_for)),
        number_column("placed_bytes", "PLACED", |row| Cell::bytes(Some(row.info.placed))),
        number_column("messages", "MESSAGES", |row| Cell::count(Some(row.info.messages))),
        text_column("backing", "BACKING", |row| Cell::text_cell(&row.info.backing)),
    ]
}

fn duration(seconds: Option<f64>) -> Cell {
    Cell::number(seconds, &seconds.map(show::format_seconds).unwrap_or_default())
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
    let (known, elapsed) = index_previous(ports, &now.ports, |port| port.name.clone());
    let row = |info: &'a PortInfo| {
        let before: Option<&Counters> = known.get(&info.name).map(|port| &port.counters);
        let of = |names: &[&str]| counter_rate(names, before, &info.counters, elapsed);
        let rates = Rates { rx: of(&["rx_bytes"]), tx: of(&["tx_bytes"]), retransmitted: None };
        let (rx, tx) = (of(&["rx_frames"]), of(&["tx_frames"]));
        let dropped = counter_sum(&PORT_DROPS, &info.counters).unwrap_or(0);
        PortRow { info, rates, rx, tx, drops: of(&PORT_DROPS), dropped }
    };
    now.ports.value.iter().map(row).collect()
}

fn ports_columns<'a>() -> Vec<Column<PortRow<'a>>> {
    vec![
        text_column("port", "PORT", |row| Cell::text_cell(&row.info.name)),
        text_column("kind", "KIND", |row| Cell::text_cell(&row.info.kind)),
        text_column("link", "LINK", |row| Cell::text_cell(&show::link(row.info))),
        number_column("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        number_column("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        number_column("rx_frame_rate", "RX/s", |row| Cell::per_second(row.rx)),
        number_column("tx_frame_rate", "TX/s", |row| Cell::per_second(row.tx)),
        number_column("drop_rate", "DROPS/s", |row| Cell::per_second(row.drops)),
        number_column("dropped", "DROPPED", |row| Cell::count(Some(row.dropped))),
        number_column("mtu", "MTU", |row| Cell::count(Some(row.info.mtu.into()))),
        number_column("queues", "QUEUES", |row| Cell::count(Some(row.info.queues.into()))),
        text_column("device", "DEVICE", |row| Cell::text_cell(&row.info.device)),
    ]
}

// --- programs ---

/// A local program with the total rates of its streams.
struct ProgramRow<'a> {
    info: &'a ProgramInfo,
    rates: Rates,
}

fn program_rows<'a>(now: &'a Sample, before: Option<&Sample>) -> Vec<ProgramRow<'a>> {
    let streams = stream_rows(now, before);
    let row = |info: &'a ProgramInfo| {
        let mut rates = Rates::default();
        for stream in streams.iter().filter(|stream| stream.info.program == Some(info.id)) {
            rates.rx = add_rate(rates.rx, stream.rates.rx);
            rates.tx = add_rate(rates.tx, stream.rates.tx);
        }
        ProgramRow { info, rates }
    };
    now.programs.iter().map(row).collect()
}

fn programs_columns<'a>() -> Vec<Column<ProgramRow<'a>>> {
    vec![
        number_column("program", "PROGRAM", |row| Cell::count(Some(row.info.id.into()))),
        text_column("name", "NAME", |row| Cell::text_cell(&row.info.name)),
        text_column("state", "STATE", |row| Cell::text_cell(&row.info.state)),
        number_column("connections", "CONNECTED", |row| {
            Cell::count(Some(row.info.connections.into()))
        }),
        number_column("rx_rate", "RX bit/s", |row| Cell::rate(row.rates.rx)),
        number_column("tx_rate", "TX bit/s", |row| Cell::rate(row.rates.tx)),
        number_column("memory", "MEMORY", |row| Cell::bytes(Some(row.info.memory))),
        number_column("queue_pairs", "QPS", |row| Cell::count(Some(row.info.queue_pairs.into()))),
        number_column("memory_regions", "REGIONS", |row| {
            Cell::count(Some(row.info.memory_regions.into()))
        }),
        number_column("requests", "REQUESTS", |row| Cell::count(Some(row.info.requests.into()))),
        number_column("pid", "PID", |row| Cell::count(u64::try_from(row.info.pid).ok())),
        number_column("uid", "UID", |row| Cell::count(Some(row.info.uid.into()))),
        number_column("age_seconds", "AGE", |row| duration(Some(row.info.seconds))),
    ]
}
