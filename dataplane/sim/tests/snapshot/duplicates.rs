//! Duplicated packets do not increase goodput, because they do not undo the congestion response to real loss
//! (RFC 3708 §3).

use core::time::Duration;
use std::fmt::Write as _;

use sim::end::End;
use sim::snapshot::parallel_map;

use super::matrix::{Cell, THREADS};
use super::sctp::run;

const SEEDS: u64 = 8;

/// Tolerated ratio of the goodput with duplicates to the goodput without. With equal seeds, the goodputs differ by less
/// than 1 %. If unrelated changes move the losses, the standard deviation is 14 % for a single run and 5 % for the mean
/// of [`SEEDS`] runs.
const TOLERANCE: f64 = 1.05;

/// Sums over the runs of a cell.
#[derive(Clone, Copy, Default)]
struct Sum {
    time: Duration,
    /// Loss episodes whose congestion response was undone as spurious.
    undone: u64,
    /// Duplicate arrivals that the peer reported.
    reported: u64,
}

impl core::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.time += other.time;
        self.undone += other.undone;
        self.reported += other.reported;
    }
}

fn tcp(cell: &Cell, seed: u64) -> Sum {
    let (pair, times) = run(cell, cell.config(seed), seed);
    let tcp = pair.client.stats().tcp;
    let undone = tcp.loss.undone_by_d_sack + tcp.loss.undone_by_timestamp + tcp.loss.undone_by_frto;
    Sum { time: times.total, undone, reported: tcp.loss.d_sacks_in }
}

fn sctp(cell: &Cell, seed: u64) -> Sum {
    let (pair, times) = run(cell, cell.sctp(seed), seed);
    assert_eq!(pair.client.fault(), None);
    let endpoint = pair.client.endpoint().expect("an association");
    let send = endpoint.association().sender().stats();
    let undone = send.undone_by_duplicates + send.undone_by_frto;
    Sum { time: times.total, undone, reported: send.duplicates_reported }
}

/// Checks paths without reordering and delay spikes, on which every detected loss is real. Duplicates must not undo the
/// response to a loss, and must not increase goodput by more than [`TOLERANCE`].
fn assert_no_gain(run_cell: fn(&Cell, u64) -> Sum) {
    let mut text = String::new();
    let mut failures = 0;
    for (rtt, mtu) in [(10, 1500), (1, 9000)] {
        let plain = Cell { loss_percent: 1.0, rtt: Duration::from_millis(rtt), mtu, ..Cell::PLAIN };
        let cells = [0.0, 2.0, 20.0].map(|duplicate_percent| Cell { duplicate_percent, ..plain });
        let sums = parallel_map(THREADS, &cells, |_, cell| {
            let mut sum = Sum::default();
            (0..SEEDS).for_each(|seed| sum += run_cell(cell, seed));
            sum
        });
        let goodput =
            |sum: &Sum| (SEEDS * plain.bytes()) as f64 * 8.0 / sum.time.as_secs_f64() / 1e6;
        for (cell, sum) in cells.iter().zip(&sums) {
            let rises = goodput(sum) > TOLERANCE * goodput(&sums[0]);
            let seen = (sum.reported > 0) == (cell.duplicate_percent > 0.0);
            failures += u32::from(rises || sum.undone > 0 || !seen);
            let _ = writeln!(
                text,
                "1 % lost, {} % twice, {rtt} ms, MTU {mtu}: {:.1} Mbit/s, {} undone, {} reported",
                cell.duplicate_percent,
                goodput(sum),
                sum.undone,
                sum.reported
            );
        }
    }
    assert_eq!(failures, 0, "\n{text}");
}

#[test]
fn duplicates_do_not_raise_tcp_goodput() {
    assert_no_gain(tcp);
}

#[test]
fn duplicates_do_not_raise_sctp_goodput() {
    assert_no_gain(sctp);
}
