//! SCTP transfers for each combination of loss, round-trip time and MTU: `snapshots/sctp.txt`. Also compares their
//! goodput with that of TCP.

use core::time::Duration;
use std::fmt::Write as _;
use std::sync::Arc;

use sim::end::{End, Setup};
use sim::pair::{Config, Pair};
use sim::sctp::SctpConfig;
use sim::snapshot::{columns, parallel_map};
use sim::transfer::{self, Load, Timeouts, Times};

use super::compare;
use super::matrix::{Cell, THREADS, with_duplicates};

/// Length of the common header and the header of one DATA chunk, bytes.
const SCTP_HEADERS: usize = 12 + 16;
/// Number of sessions that share the load.
const SESSIONS: u16 = 4;

impl Cell {
    pub(super) fn sctp(&self, seed: u64) -> Config<SctpConfig> {
        let mut host = SctpConfig {
            mtu: self.mtu,
            region: self.bytes() as usize,
            sessions: SESSIONS,
            ..SctpConfig::default()
        };
        // The windows are large enough that only congestion control limits the bytes in flight.
        let receive = Arc::make_mut(&mut host.sctp.receive);
        receive.window = (4 * self.bdp()).max(4 << 20) as u32;
        Arc::make_mut(&mut host.sctp.send).send_window = 1 << 30;
        Config {
            client: host.clone(),
            server: host,
            forward: self.direction(seed),
            backward: self.direction(!seed),
            icmp: false,
            cost: Default::default(),
        }
    }
}

pub(super) fn run<S: Setup>(cell: &Cell, config: Config<S>, seed: u64) -> (Pair<S>, Times) {
    let bytes = cell.bytes();
    let load =
        |bytes| Load { seed, bytes, max_message: 1 << 20, untagged_every: 0, ..Load::default() };
    let timeouts = Timeouts { transfer: Duration::from_secs(3600), ..Timeouts::default() };
    transfer::run_timed(config, &load(bytes), &load(0), timeouts)
        .unwrap_or_else(|what| panic!("{cell:?}, seed {seed}: {what}"))
}

fn line(cell: &Cell, seed: u64) -> String {
    let (pair, times) = run(cell, cell.sctp(seed), seed);
    let bytes = cell.bytes() as f64;
    let goodput = bytes * 8.0 / times.total.as_secs_f64();
    let steady = bytes * 4.0 / times.second_half.as_secs_f64();
    let limit = cell.limit_for(cell.mtu - sim::packet::IP_HEADER - SCTP_HEADERS);
    let (tx, rx) = (pair.client.totals(), pair.server.totals());
    let endpoint = pair.server.endpoint().expect("an association");
    let duplicates = endpoint.association().receiver().stats().duplicates;
    let mega = |bits: f64| format!("{:.1}", bits / 1e6);
    let cells: [String; 13] = [
        format!("{}", cell.loss_percent),
        format!("{}", cell.rtt.as_micros() as f64 / 1000.0),
        cell.mtu.to_string(),
        mega(cell.rate() as f64),
        format!("{:.1}", bytes / f64::from(1 << 20)),
        mega(goodput),
        mega(steady),
        mega(limit),
        format!("{:.2}", steady / limit),
        tx.retransmitted.to_string(),
        duplicates.to_string(),
        tx.timeouts.to_string(),
        rx.out_of_order_bytes.to_string(),
    ];
    columns(&WIDTHS, &cells)
}

const TITLES: [&str; 13] = [
    "loss %", "rtt ms", "mtu", "link", "MiB", "goodput", "steady", "limit", "ratio", "resent",
    "needless", "rto", "gaps",
];
const WIDTHS: [usize; 13] = [6, 6, 5, 8, 5, 8, 8, 8, 6, 9, 9, 4, 5];

const PREAMBLE: &str = "\
# One transfer per line, one way, over SCTP with four sessions, in virtual time; written by:
# SIM_BLESS=1 cargo test -p sim --test snapshot
#
# resent    DATA chunks sent again            needless  DATA chunks that came though the peer had them
# gaps      most ranges beyond a gap          the rest: as in matrix.txt
#
";

const RTTS_US: [u64; 4] = [100, 1000, 10_000, 100_000];

fn cells(losses: &[f64], rtts_us: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &loss_percent in losses {
        for rtt in rtts_us.iter().copied().map(Duration::from_micros) {
            for mtu in [1500, 9000] {
                cells.push(Cell { loss_percent, rtt, mtu, ..Cell::PLAIN });
            }
        }
    }
    cells
}

fn section(text: &mut String, cells: &[Cell]) {
    for line in parallel_map(THREADS, cells, |n, cell| line(cell, n as u64)) {
        let _ = writeln!(text, "{line}");
    }
}

#[test]
fn sctp_matrix_matches_snapshot() {
    let mut text = format!("{PREAMBLE}#{}\n", &columns(&WIDTHS, &TITLES)[1..]);
    section(&mut text, &cells(&[0.0, 0.1, 1.0, 5.0], &RTTS_US));
    let _ = writeln!(text, "\n# 2 % twice on the way");
    section(&mut text, &with_duplicates(&cells(&[0.0, 1.0], &[1000, 10_000])));
    compare("sctp.txt", &text);
}

// Compares means over several seeds, because a single loss in slow start can change the duration of a run by half.
#[test]
fn sctp_goodput_at_one_percent_loss_is_nine_tenths_of_tcp() {
    const SEEDS: u64 = 5;
    let mut text = String::new();
    let mut slow = 0;
    let goodputs = parallel_map(THREADS, &cells(&[1.0], &RTTS_US), |_, cell| {
        let (mut tcp, mut sctp) = (Duration::ZERO, Duration::ZERO);
        for seed in 0..SEEDS {
            tcp += run(cell, cell.config(seed), seed).1.total;
            sctp += run(cell, cell.sctp(seed), seed).1.total;
        }
        let goodput =
            |time: Duration| (SEEDS * cell.bytes()) as f64 * 8.0 / time.as_secs_f64() / 1e6;
        (*cell, goodput(tcp), goodput(sctp))
    });
    for (Cell { rtt, mtu, .. }, tcp, sctp) in goodputs {
        slow += usize::from(sctp < 0.9 * tcp);
        let _ = writeln!(
            text,
            "rtt {rtt:?}, MTU {mtu}: TCP {tcp:.1}, SCTP {sctp:.1} Mbit/s, {:.2}",
            sctp / tcp
        );
    }
    assert_eq!(slow, 0, "\n{text}");
}
