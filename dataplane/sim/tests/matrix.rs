//! Whole TCP transfers over impaired paths, in virtual time: all combinations of the selected losses, reordering,
//! duplication, markers, CRC, MPA revisions and MTUs.

use core::time::Duration;

use link::{Loss, Probability, Reorder};
use sim::host::HostConfig;
use sim::pair::{Config, Pair};
use sim::path;
use sim::transfer::{self, Load, Timeouts};
use tcp_lite::mpa::Revision;

#[derive(Clone, Copy, Debug)]
struct Cell {
    loss_percent: f64,
    reorder: bool,
    duplicate: bool,
    markers: bool,
    crc: bool,
    revision: Revision,
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
    let delay = Duration::from_micros(500);
    let link = link::Config { loss, reorder, duplicate, delay, ..link::Config::seeded(seed) };
    path::Config::new(cell.mtu, link)
}

fn config(cell: &Cell, seed: u64) -> Config {
    let mut host = HostConfig { mtu: cell.mtu, region: 2 << 20, ..HostConfig::default() };
    host.endpoint.mpa.markers = cell.markers;
    host.endpoint.mpa.crc = cell.crc;
    host.endpoint.mpa.initiate = cell.revision;
    // Sequence numbers wrap during the transfer.
    let client = HostConfig { iss: 0xFFFF_0000, ..host.clone() };
    Config {
        client,
        server: host,
        forward: direction(cell, seed),
        backward: direction(cell, seed ^ 0x5555),
        icmp: false,
        cost: Default::default(),
    }
}

fn cells(loss_percent: f64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for bits in 0..32u8 {
        let [reorder, markers, crc, jumbo, duplicate] =
            [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1 == 1);
        for revision in [Revision::Draft, Revision::Zero, Revision::One] {
            let mtu = if jumbo { 9000 } else { 1500 };
            cells.push(Cell { loss_percent, reorder, duplicate, markers, crc, revision, mtu });
        }
    }
    cells
}

/// Checks FPDU alignment at both receivers. The path has no middlebox, so only a sender can move segment boundaries. A
/// sender that lost several segments in a row suspects an MTU black hole and splits its FPDUs (RFC 4821 §7.7); its
/// receiver is not checked.
fn check_alignment(cell: &Cell, pair: &Pair) {
    for (host, sender) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let rx = host.stats().mpa_rx;
        if sender.stats().tcp.path_mtu.black_holes > 0 {
            assert!(cell.loss_percent >= 5.0, "{cell:?}: too few were lost for a black hole");
            continue;
        }
        assert_eq!(rx.alignment_lost, 0, "{cell:?}: {rx:?}");
        if cell.markers {
            // With aligned segments and markers, only bytes with unknown FPDU boundaries are held.
            assert_eq!(rx.held_max, rx.unlocatable_max, "{cell:?}: {rx:?}");
            assert!(rx.held_max < 64 * 1024, "{cell:?}: {rx:?}");
        } else {
            assert_eq!(rx.placed_out_of_order, 0, "{cell:?}: {rx:?}");
        }
    }
}

fn run_all(loss_percent: f64) {
    let mut out_of_order = 0;
    for (n, cell) in cells(loss_percent).iter().enumerate() {
        let load = |seed| Load { seed, bytes: (1 << 20) + 12_345, ..Load::default() };
        let seed = 1000 + n as u64;
        let run = transfer::run(config(cell, seed), &load(seed), &load(!seed), Timeouts::default());
        let pair = run.unwrap_or_else(|what| panic!("{cell:?}, seed {seed}: {what}"));
        check_alignment(cell, &pair);
        out_of_order += pair.server.stats().mpa_rx.placed_out_of_order;
        if !cell.reorder {
            // RFC 3708 §3 A: without reordering, every detected loss is real. Duplicates from the network must not undo
            // the response to it. The longer transfers of the snapshot tests measure the effect on goodput.
            let undone =
                [&pair.client, &pair.server].map(|host| host.stats().tcp.loss.undone_by_d_sack);
            assert_eq!(undone, [0, 0], "{cell:?}");
        }
        if loss_percent == 0.0 && !cell.reorder {
            let tcp = [pair.client.stats().tcp, pair.server.stats().tcp];
            assert!(tcp.iter().all(|t| t.loss.segments_retransmitted == 0), "{cell:?}: {tcp:?}");
        }
    }
    assert!(out_of_order > 100_000, "placed out of order: {out_of_order}");
}

#[test]
fn tcp_transfers_complete_without_loss() {
    run_all(0.0);
}

#[test]
fn tcp_transfers_complete_at_a_tenth_percent_loss() {
    run_all(0.1);
}

#[test]
fn tcp_transfers_complete_at_one_percent_loss() {
    run_all(1.0);
}

#[test]
fn tcp_transfers_complete_at_five_percent_loss() {
    run_all(5.0);
}

/// Transfers at the minimum MSS (48) and above, up to the length of an FPDU with the minimum MULPDU (128 bytes, RFC
/// 5044 §4.5) plus TCP options. An FPDU larger than the MSS takes several segments, and no segment exceeds the
/// announced MSS (RFC 9293 §3.7.1).
#[test]
fn fpdus_larger_than_least_mss_are_transferred() {
    for mss in [48, 49, 87, 88, 128, 148] {
        for (n, markers) in [true, false].into_iter().enumerate() {
            let cell = Cell {
                loss_percent: 0.5,
                reorder: true,
                duplicate: true,
                markers,
                crc: true,
                revision: Revision::One,
                mtu: mss + 40,
            };
            let seed = 4000 + (2 * mss + n) as u64;
            let load = |seed| Load { seed, bytes: 64 << 10, ..Load::default() };
            let (there, back) = (load(seed), load(!seed));
            let run = transfer::run(config(&cell, seed), &there, &back, Timeouts::default());
            let pair = run.unwrap_or_else(|what| panic!("{cell:?}, seed {seed}: {what}"));
            assert_eq!(pair.client.stats().tcp.path_mtu.reductions, 0, "{cell:?}");
        }
    }
}
