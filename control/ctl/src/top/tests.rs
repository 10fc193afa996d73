//! Tests of `ddpctl top` without a terminal: samples, keys and drawn frames.

mod keys;
mod once;
mod rates;
mod views;

use std::time::{Duration, Instant};

use api::{
    Counters, PortInfo, PortStats, ProgramInfo, RegionInfo, Stats, Status, StreamId, StreamInfo,
    WorkerInfo, WorkerStats, fake,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sample::{Sample, Timestamped};
use super::state::{Action, State};
use super::*;

fn counters(list: &[(&str, u64)]) -> Counters {
    list.iter().map(|&(name, value)| (name.into(), value)).collect()
}

/// Returns a stream with counters of the bytes `placed` by and `sent` to the peer.
fn stream(id: u64, remote: &str, placed: u64, sent: u64) -> StreamInfo {
    let list = [
        ("placed_in_order_bytes", placed),
        ("placed_out_of_order_bytes", 0),
        ("sent_bytes", sent),
        ("retransmitted_bytes", 0),
    ];
    StreamInfo {
        id: StreamId(id),
        remote: remote.into(),
        program: Some(3),
        counters: counters(&list),
        ..fake::stream()
    }
}

/// Returns a sample `second` seconds after the first sample; counters rise at constant rates.
fn sample(start: Instant, second: u64) -> Sample {
    let at = start + Duration::from_secs(second);
    let frames = [
        ("rx_bytes", second * 125_000_000),
        ("tx_bytes", second * 1_250_000),
        ("rx_frames", second * 90_000),
        ("tx_frames", second * 1_000),
        ("tx_dropped", second),
    ];
    let port = PortInfo {
        name: "p0".into(),
        kind: "ring".into(),
        device: "demo".into(),
        up: true,
        mtu: 1500,
        queues: 1,
        counters: counters(&frames),
        ..PortInfo::default()
    };
    let worker = WorkerInfo {
        core: Some(2),
        idle: "adaptive".into(),
        streams: 3,
        busy: Some(0.25),
        counters: counters(&frames),
        ..WorkerInfo::default()
    };
    let region = RegionInfo {
        name: "inbox".into(),
        size: 64 << 20,
        backing: "anonymous".into(),
        access: "w".into(),
        bound_to: Some(StreamId(0x0100_0000)),
        held_for: Some(90.0),
        idle_for: Some(0.0),
        placed: second << 20,
        messages: 12 * second,
        ..RegionInfo::default()
    };
    let worker_stats = WorkerStats {
        drops: counters(&[("net_no_listener", 3 * second)]),
        ..WorkerStats::default()
    };
    let port_stats = PortStats { port: "p0".into(), counters: counters(&frames) };
    Sample {
        status: Status {
            name: "left".into(),
            version: "0.1.0".into(),
            state: "running".into(),
            pid: 7,
            uptime_seconds: 3600.0 + second as f64,
            streams: 3,
            notes: vec!["no hugepages: ordinary pages are used".into()],
            ..Status::default()
        },
        stats: Timestamped {
            taken_at: at,
            value: Stats {
                workers: vec![worker_stats],
                ports: vec![port_stats],
                ..Stats::default()
            },
        },
        workers: Timestamped { taken_at: at, value: vec![worker] },
        regions: Timestamped { taken_at: at, value: vec![region] },
        ports: Timestamped { taken_at: at, value: vec![port] },
        programs: vec![ProgramInfo {
            id: 3,
            name: "ping_pong".into(),
            state: "attached".into(),
            connections: 1,
            memory: 16384,
            ..ProgramInfo::default()
        }],
        streams: Some(Timestamped {
            taken_at: at,
            value: vec![
                stream(0x0100_0000, "10.77.0.2:40001", second * 1_000_000, 0),
                stream(0x0200_0000, "10.77.0.2:40002", 0, second * 2_000_000),
                stream(0x0300_0000, "[fd77::2]:40003", 0, 0),
            ],
        }),
    }
}

/// Returns the state after `count` samples, one second apart.
fn state_after_samples(count: u64) -> State {
    let (mut state, start) = (State::new(View::Streams, Duration::from_secs(1)), Instant::now());
    (0..count).for_each(|second| state.handle_sample(Ok(sample(start, second))));
    state
}

fn press(state: &mut State, code: KeyCode) -> Action {
    state.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(state: &mut State, text: &str) -> Action {
    text.chars().map(|c| press(state, KeyCode::Char(c))).last().unwrap()
}

/// Returns the lines of a drawn frame.
fn frame(state: &mut State, columns: u16, lines: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| view::draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..lines).map(|y| line(y).trim_end().to_owned()).collect()
}

/// Returns the identities of the rows.
fn ids(state: &State) -> Vec<&str> {
    state.table.rows.iter().map(|row| row.id.as_str()).collect()
}
