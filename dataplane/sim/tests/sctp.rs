//! Whole SCTP transfers over impaired paths, in virtual time: all combinations of the selected losses, reordering,
//! duplication, round-trip times, MTUs and numbers of sessions.

use core::time::Duration;

use link::{Loss, Probability, Reorder};
use sim::end::End;
use sim::pair::Config;
use sim::path;
use sim::sctp::SctpConfig;
use sim::transfer::{self, Load, Timeouts};

#[derive(Clone, Copy, Debug)]
struct Cell {
    loss_percent: f64,
    reorder: bool,
    duplicate: bool,
    rtt: Duration,
    sessions: u16,
    mtu: usize,
}

fn percent(p: f64) -> Probability {
    Probability::from_percent(p).expect("a percentage")
}

fn direction(cell: &Cell, seed: u64) -> path::Config {
    let loss =
        if cell.loss_percent > 0.0 { Loss::Random(percent(cell.loss_percent)) } else { Loss::None };
    let reorder = if cell.reorder {
        Reorder { probability: percent(2.0), delay: Duration::from_micros(700) }
    } else {
        Reorder::default()
    };
    let duplicate = if cell.duplicate { percent(2.0) } else { Probability::NEVER };
    let delay = cell.rtt / 2;
    let link = link::Config { loss, reorder, duplicate, delay, ..link::Config::seeded(seed) };
    path::Config::new(cell.mtu, link)
}

fn config(cell: &Cell, seed: u64) -> Config<SctpConfig> {
    let mut host = SctpConfig {
        mtu: cell.mtu,
        region: 2 << 20,
        sessions: cell.sessions,
        ..SctpConfig::default()
    };
    // The client requests all sessions at once.
    host.endpoint.session.max_pending = cell.sessions;
    Config {
        client: SctpConfig { key: [seed as u8; 16], ..host.clone() },
        server: host,
        forward: direction(cell, seed),
        backward: direction(cell, seed ^ 0x5555),
        icmp: false,
        cost: Default::default(),
    }
}

fn cells(loss_percent: f64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (reorder, duplicate) in [(false, false), (true, false), (false, true), (true, true)] {
        for rtt in [100, 1000, 20_000].map(Duration::from_micros) {
            for sessions in [1, 3, 200] {
                for mtu in [1500, 9000] {
                    cells.push(Cell { loss_percent, reorder, duplicate, rtt, sessions, mtu });
                }
            }
        }
    }
    cells
}

fn run_all(loss_percent: f64) {
    let mut gaps = 0;
    for (n, cell) in cells(loss_percent).iter().enumerate() {
        let load = |seed| Load { seed, bytes: (1 << 20) + 12_345, ..Load::default() };
        let seed = 2000 + n as u64;
        let run = transfer::run(config(cell, seed), &load(seed), &load(!seed), Timeouts::default());
        let pair = run.unwrap_or_else(|what| panic!("{cell:?}, seed {seed}: {what}"));
        gaps += pair.server.totals().out_of_order_bytes;
        if loss_percent == 0.0 && !cell.reorder {
            let resent = [pair.client.totals().retransmitted, pair.server.totals().retransmitted];
            assert_eq!(resent, [0, 0], "{cell:?}");
        }
        if !cell.reorder {
            // RFC 3708 §3 A: without reordering, every detected loss is real. Duplicates from the network must not undo
            // the response to it. The longer transfers of the snapshot tests measure the effect on goodput.
            let undone = [&pair.client, &pair.server].map(|host| {
                let endpoint = host.endpoint().expect("an association");
                endpoint.association().sender().stats().undone_by_duplicates
            });
            assert_eq!(undone, [0, 0], "{cell:?}");
        }
        for host in [&pair.client, &pair.server] {
            assert_eq!(host.fault(), None, "{cell:?}");
        }
    }
    assert!(gaps > 20, "ranges beyond gaps: {gaps}");
}

#[test]
fn sctp_transfers_complete_without_loss() {
    run_all(0.0);
}

#[test]
fn sctp_transfers_complete_at_a_tenth_percent_loss() {
    run_all(0.1);
}

#[test]
fn sctp_transfers_complete_at_one_percent_loss() {
    run_all(1.0);
}

#[test]
fn sctp_transfers_complete_at_five_percent_loss() {
    run_all(5.0);
}
