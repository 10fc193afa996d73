//! TCP transfers for each combination of loss, round-trip time, MTU and markers: `snapshots/matrix.txt`.

use core::num::NonZeroU64;
use core::time::Duration;
use std::fmt::Write as _;
use std::sync::Arc;

use link::{Loss, Probability, Rate};
use sim::host::HostConfig;
use sim::packet::{ETHERNET, IP_HEADER};
use sim::pair::{Config, Pair};
use sim::snapshot::{columns, parallel_map};
use sim::transfer::{self, Load, Timeouts, Times};
use sim::{middlebox, path};
use tcp_lite::tcp;

use super::{compare, outcome, verify};

/// Length of the TCP header with timestamps, bytes.
const TCP_HEADER: usize = 32;
pub(super) const THREADS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) loss_percent: f64,
    /// Percentage of packets that the path duplicates, in both directions.
    pub(super) duplicate_percent: f64,
    pub(super) rtt: Duration,
    pub(super) mtu: usize,
    pub(super) markers: bool,
    /// True if a middlebox on the path splits and merges segments.
    pub(super) resegmented: bool,
}

impl Cell {
    /// A path without faults: 10 ms, MTU 1500, markers.
    pub(super) const PLAIN: Cell = Cell {
        loss_percent: 0.0,
        duplicate_percent: 0.0,
        rtt: Duration::from_millis(10),
        mtu: 1500,
        markers: true,
        resegmented: false,
    };

    /// Returns the bit rate of the link in bits per second. Longer round-trip times have lower rates, to keep runs
    /// short.
    pub(super) fn rate(&self) -> u64 {
        match self.rtt.as_millis() {
            0..10 => 10_000_000_000,
            10..100 => 2_500_000_000,
            _ => 250_000_000,
        }
    }

    /// Returns the bandwidth-delay product, bytes.
    pub(super) fn bdp(&self) -> u64 {
        (u128::from(self.rate()) * self.rtt.as_nanos() / 8_000_000_000) as u64
    }

    fn mss(&self) -> usize {
        self.mtu - IP_HEADER - TCP_HEADER
    }

    /// Returns the bytes of a transfer that outlasts slow start, 4 to 48 MiB. With loss: enough for about 40 losses.
    /// Without loss: 16 bandwidth-delay products.
    pub(super) fn bytes(&self) -> u64 {
        let wanted = if self.loss_percent > 0.0 {
            (40.0 / (self.loss_percent / 100.0) * self.mss() as f64) as u64
        } else {
            16 * self.bdp()
        };
        wanted.clamp(4 << 20, 48 << 20)
    }

    /// Returns the maximum goodput of a flow in bits per second: the goodput at the rate of the link or the limit by
    /// random loss, whichever is less. The loss limit is the larger of Reno's (Mathis et al. 1997) and CUBIC's (RFC
    /// 9438 §5.1).
    fn limit(&self) -> f64 {
        self.limit_for(self.mss())
    }

    /// Returns the maximum goodput in bits per second, as [`limit`](Self::limit) does, for packets with `mss` bytes of
    /// data.
    pub(super) fn limit_for(&self, mss: usize) -> f64 {
        let payload = mss as f64 / (self.mtu + ETHERNET) as f64;
        let line = self.rate() as f64 * payload;
        if self.loss_percent <= 0.0 {
            return line;
        }
        let (p, rtt) = (self.loss_percent / 100.0, self.rtt.as_secs_f64());
        let reno = (1.5 / p).sqrt();
        let cubic = 1.054 * (rtt / p).powf(0.75);
        line.min(reno.max(cubic) * mss as f64 * 8.0 / rtt)
    }

    pub(super) fn direction(&self, seed: u64) -> path::Config {
        let percent = |p| Probability::from_percent(p).expect("a percentage");
        let rate = Rate {
            bits_per_second: NonZeroU64::new(self.rate()).expect("not zero"),
            queue_bytes: self.bdp(),
        };
        let link = link::Config {
            loss: Loss::Random(percent(self.loss_percent)),
            duplicate: percent(self.duplicate_percent),
            delay: self.rtt / 2,
            rate: Some(rate),
            ..link::Config::seeded(seed)
        };
        let mut config = path::Config::new(self.mtu, link);
        if self.resegmented {
            config.middlebox = middlebox::Config {
                split: percent(30.0),
                min_piece: 100,
                merge: percent(30.0),
                max_payload: 30_000,
                hold: Duration::from_micros(20),
            };
        }
        config
    }

    pub(super) fn config(&self, seed: u64) -> Config {
        let mut host =
            HostConfig { mtu: self.mtu, region: self.bytes() as usize, ..HostConfig::default() };
        host.endpoint.mpa.markers = self.markers;
        // The receive window is large enough never to limit the sender.
        let receive_window = (4 * self.bdp()).max(4 << 20) as u32;
        // The send window is large enough that only congestion control limits the bytes in flight.
        let windows =
            tcp::Config { receive_window, send_window: 1 << 30, ..tcp::Config::default() };
        host.endpoint.tcp = Arc::new(windows);
        Config {
            client: host.clone(),
            server: host,
            forward: self.direction(seed),
            backward: self.direction(!seed),
            icmp: false,
            cost: Default::default(),
        }
    }

    /// Runs the transfer. Returns its line of the snapshot, or the violated invariant.
    fn run(&self, seed: u64) -> Result<String, String> {
        let load = |bytes| Load {
            seed,
            bytes,
            max_message: 1 << 20,
            untagged_every: 0,
            ..Load::default()
        };
        let timeouts = Timeouts { transfer: Duration::from_secs(3600), ..Timeouts::default() };
        let (pair, times) =
            transfer::run_timed(self.config(seed), &load(self.bytes()), &load(0), timeouts)?;
        verify(&pair, !self.resegmented)?;
        Ok(self.line(&pair, times))
    }

    fn line(&self, pair: &Pair, times: Times) -> String {
        let goodput = self.bytes() as f64 * 8.0 / times.total.as_secs_f64();
        let steady = self.bytes() as f64 * 4.0 / times.second_half.as_secs_f64();
        let mega = |bits: f64| format!("{:.1}", bits / 1e6);
        let link: [String; 10] = [
            format!("{}", self.loss_percent),
            format!("{}", self.rtt.as_micros() as f64 / 1000.0),
            self.mtu.to_string(),
            if self.markers { "on" } else { "off" }.into(),
            mega(self.rate() as f64),
            format!("{:.1}", self.bytes() as f64 / f64::from(1 << 20)),
            mega(goodput),
            mega(steady),
            mega(self.limit()),
            format!("{:.2}", steady / self.limit()),
        ];
        columns(&WIDTHS, &[&link[..], &outcome(pair)].concat())
    }
}

const TITLES: [&str; 17] = [
    "loss %", "rtt ms", "mtu", "markers", "link", "MiB", "goodput", "steady", "limit", "ratio",
    "resent", "needless", "rto", "held", "unloc", "early", "refused",
];
const WIDTHS: [usize; 17] = [6, 6, 5, 7, 8, 5, 8, 8, 8, 6, 9, 9, 4, 7, 7, 9, 9];

const PREAMBLE: &str = "\
# One transfer per line, one way, in virtual time; written by: SIM_BLESS=1 cargo test -p sim --test snapshot
#
# loss      random, in both directions        link      rate of the link, Mbit/s; its queue holds one BDP
# MiB       bytes written to the peer         goodput   from the first byte until all is delivered, Mbit/s
# steady    the same for the second half of the bytes, when slow start is over; ratio: steady / limit
# limit     goodput that the link, or the congestion window at this loss (Reno by Mathis, CUBIC by
#           RFC 9438 section 5.1, the larger one), lets through, Mbit/s
# resent    bytes sent again                  needless  bytes that came though the peer had them
# rto       retransmission time-outs          held      most bytes held ahead of gaps or unfinished
# unloc     most that cannot be located       early     bytes placed while something before was missing
# refused   bytes not taken for want of room to hold them
";

fn cells(resegmented: bool, losses: &[f64], rtts_us: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &loss_percent in losses {
        for &rtt in rtts_us {
            for mtu in [1500, 9000] {
                for markers in [true, false] {
                    let rtt = Duration::from_micros(rtt);
                    cells.push(Cell {
                        loss_percent,
                        rtt,
                        mtu,
                        markers,
                        resegmented,
                        ..Cell::PLAIN
                    });
                }
            }
        }
    }
    cells
}

/// Returns a copy of each cell with 2 % of the packets duplicated.
pub(super) fn with_duplicates(cells: &[Cell]) -> Vec<Cell> {
    cells.iter().map(|cell| Cell { duplicate_percent: 2.0, ..*cell }).collect()
}

fn section(text: &mut String, title: &str, cells: &[Cell]) {
    let _ = writeln!(text, "\n# {title}\n#{}", &columns(&WIDTHS, &TITLES)[1..]);
    let run = |n: usize, cell: &Cell| {
        cell.run(n as u64).unwrap_or_else(|what| panic!("{cell:?}: {what}"))
    };
    for line in parallel_map(THREADS, cells, run) {
        let _ = writeln!(text, "{line}");
    }
}

#[test]
fn tcp_matrix_matches_snapshot() {
    let losses = [0.0, 0.1, 1.0, 5.0];
    let mut text = PREAMBLE.to_owned();
    section(&mut text, "segments as sent", &cells(false, &losses, &[100, 1000, 10_000, 100_000]));
    section(&mut text, "cut and joined on the way", &cells(true, &[0.0, 1.0], &[1000, 100_000]));
    section(
        &mut text,
        "2 % twice on the way",
        &with_duplicates(&cells(false, &[0.0, 1.0], &[1000, 10_000])),
    );
    compare("matrix.txt", &text);
}
