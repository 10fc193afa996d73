//! TCP transfers over paths with one fault each: `snapshots/paths.txt`.

use core::num::NonZeroU64;
use core::time::Duration;
use std::fmt::Write as _;
use std::sync::Arc;

use base::Instant;
use link::{BlackHole, BurstLoss, Loss, Probability, Rate, Reorder};
use sim::host::HostConfig;
use sim::pair::{Config, Pair};
use sim::path;
use sim::snapshot::{columns, parallel_map};
use sim::transfer::{self, Load, Timeouts, Times};
use tcp_lite::mpa::BadCrcPolicy;
use tcp_lite::tcp::{self, CongestionControl};

use super::{compare, outcome, verify};

const BYTES: u64 = 16 << 20;
const THREADS: usize = 2;

fn percent(p: f64) -> Probability {
    Probability::from_percent(p).expect("a percentage")
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns the instant `ms` milliseconds after the start of the simulation, which is at 1 s.
fn at(ms: u64) -> Instant {
    Instant::from_millis(1000 + ms)
}

fn rate(mega: u64, queue_bytes: u64) -> Option<Rate> {
    NonZeroU64::new(mega * 1_000_000).map(|bits_per_second| Rate { bits_per_second, queue_bytes })
}

/// Returns a configuration without faults: 100 Mbit/s, a round-trip time of 10 ms, and a queue of one BDP.
fn clean(seed: u64) -> Config {
    let direction = |seed| {
        let link =
            link::Config { delay: ms(5), rate: rate(100, 125_000), ..link::Config::seeded(seed) };
        path::Config::new(1500, link)
    };
    let host = HostConfig { region: BYTES as usize, ..HostConfig::default() };
    Config {
        client: host.clone(),
        server: host,
        forward: direction(seed),
        backward: direction(!seed),
        icmp: true,
        cost: Default::default(),
    }
}

/// Name of a fault, and the change of the configuration that causes it.
type Kind = (&'static str, fn(&mut Config));

fn change_both_links(config: &mut Config, change: impl Fn(&mut link::Config)) {
    change(&mut config.forward.link);
    change(&mut config.backward.link);
}

fn change_tcp(config: &mut Config, change: impl Fn(&mut tcp::Config)) {
    for host in [&mut config.client, &mut config.server] {
        change(Arc::make_mut(&mut host.endpoint.tcp));
    }
}

const KINDS: [Kind; 23] = [
    ("nothing", |_| {}),
    ("nothing, NewReno", |c| change_tcp(c, |t| t.congestion = CongestionControl::NewReno)),
    ("queue of 10 frames", |c| c.forward.link.rate = rate(100, 15_000)),
    ("queue of 2 MB", |c| c.forward.link.rate = rate(100, 2_000_000)),
    ("marks from 30 kB on", |c| c.forward.link.mark_bytes = Some(30_000)),
    ("marks, ends without ECN", |c| {
        c.forward.link.mark_bytes = Some(30_000);
        change_tcp(c, |t| t.extensions.ecn = false);
    }),
    ("every 1009th lost", |c| {
        c.forward.link.loss = NonZeroU64::new(1009).map_or(Loss::None, Loss::EveryNth);
    }),
    ("every 101st lost", |c| {
        c.forward.link.loss = NonZeroU64::new(101).map_or(Loss::None, Loss::EveryNth);
    }),
    ("0.1 % lost, no room ahead of gaps", |c| {
        c.forward.link.loss = Loss::Random(percent(0.1));
        c.server.endpoint.mpa.hold_limit = 0;
        c.server.hold = 0;
    }),
    ("bursts of loss, 0.5 %", |c| {
        let model = BurstLoss {
            good_to_bad: percent(0.125),
            bad_to_good: percent(20.0),
            loss_in_good: Probability::NEVER,
            loss_in_bad: percent(80.0),
        };
        c.forward.link.loss = Loss::Burst(model);
    }),
    ("2 % late by 1 ms", |c| {
        c.forward.link.reorder = Reorder { probability: percent(2.0), delay: ms(1) };
    }),
    ("2 % late by 15 ms", |c| {
        c.forward.link.reorder = Reorder { probability: percent(2.0), delay: ms(15) };
    }),
    ("jitter of 5 ms", |c| change_both_links(c, |l| l.jitter = ms(5))),
    ("5 % twice", |c| change_both_links(c, |l| l.duplicate = percent(5.0))),
    ("1 % with a flipped bit", |c| change_both_links(c, |l| l.corrupt = percent(1.0))),
    ("0.1 % flipped, checksum right", |c| {
        c.forward.hidden_damage = percent(0.1);
        c.server.endpoint.mpa.on_bad_crc = BadCrcPolicy::Retransmit;
    }),
    ("black hole of 500 ms", |c| change_both_links(c, |l| l.black_holes = vec![hole(500, None)])),
    ("black hole of 20 ms, 4 a second", |c| {
        change_both_links(c, |l| l.black_holes = vec![hole(20, Some(ms(250)))]);
    }),
    ("back 1 Mbit/s and 40 ms", |c| {
        c.backward.link.rate = rate(1, 30_000);
        c.backward.link.delay = ms(40);
    }),
    ("MTU 1000 after 0.5 s, reported", |c| c.forward.mtu_changes = vec![(at(500), 1000)]),
    ("MTU 1000 after 0.5 s, silent", |c| {
        c.forward.mtu_changes = vec![(at(500), 1000)];
        c.icmp = false;
    }),
    ("MTU 1000 for 0.5 s, silent", |c| {
        c.forward.mtu_changes = vec![(at(500), 1000), (at(1000), 1500)];
        c.icmp = false;
    }),
    ("20 % of the ACKs lost", |c| c.backward.link.loss = Loss::Random(percent(20.0))),
];

fn hole(length: u64, every: Option<Duration>) -> BlackHole {
    BlackHole { start: at(500), length: ms(length), interval: every }
}

const WIDTHS: [usize; 11] = [33, 7, 7, 6, 9, 9, 4, 8, 8, 9, 8];
const TITLES: [&str; 11] = [
    "what the path does",
    "markers",
    "goodput",
    "drops",
    "resent",
    "needless",
    "rto",
    "held",
    "unloc",
    "early",
    "refused",
];

const PREAMBLE: &str = "\
# 16 MiB one way over 100 Mbit/s with 10 ms there and back and a queue of one BDP, MTU 1500, where nothing else
# is said; written by: SIM_BLESS=1 cargo test -p sim --test snapshot
#
# goodput   from the first byte until all is delivered, Mbit/s      drops    segments that the forward path lost
# the rest: as in matrix.txt
#
";

fn run(n: usize, (kind, markers): &(Kind, bool)) -> String {
    let (name, change) = kind;
    let mut config = clean(n as u64);
    change(&mut config);
    config.client.endpoint.mpa.markers = *markers;
    config.server.endpoint.mpa.markers = *markers;
    let load = |bytes| Load {
        seed: n as u64,
        bytes,
        max_message: 1 << 18,
        untagged_every: 0,
        ..Load::default()
    };
    let timeouts = Timeouts { transfer: Duration::from_secs(3600), ..Timeouts::default() };
    transfer::run_timed(config, &load(BYTES), &load(0), timeouts)
        .and_then(|(pair, times)| {
            // `aligned` requires that all held bytes are unlocatable. Two kinds of faults break this rule. After a
            // change of the MTU, a retransmitted segment may begin or end inside an FPDU, so that a located part of the
            // FPDU is held. A flipped bit in the length of a located FPDU can make the FPDU appear incomplete, so that
            // it is held until its CRC can be checked.
            let aligned = !name.starts_with("MTU") && !name.contains("checksum right");
            verify(&pair, aligned)?;
            Ok(line(name, *markers, &pair, times))
        })
        .unwrap_or_else(|what| panic!("{name}, markers {markers}: {what}"))
}

fn line(name: &str, markers: bool, pair: &Pair, times: Times) -> String {
    let path = &pair.forward;
    let drops =
        path.link_counters().total_lost() + path.counters().too_big + path.counters().bad_checksum;
    let run: [String; 4] = [
        name.into(),
        if markers { "on" } else { "off" }.into(),
        format!("{:.1}", BYTES as f64 * 8.0 / times.total.as_secs_f64() / 1e6),
        drops.to_string(),
    ];
    columns(&WIDTHS, &[&run[..], &outcome(pair)].concat())
}

#[test]
fn paths_match_snapshot() {
    // Excludes damage without markers: an FPDU beyond a gap is then acknowledged before its CRC is checked, so a wrong
    // CRC ends the stream (RFC 5044 §8).
    let ends = |name: &str, markers: bool| name.contains("checksum right") && !markers;
    let runs: Vec<(Kind, bool)> = KINDS
        .into_iter()
        .flat_map(|kind| [(kind, true), (kind, false)])
        .filter(|&((name, _), markers)| !ends(name, markers))
        .collect();
    let mut text = format!("{PREAMBLE}#{}\n", &columns(&WIDTHS, &TITLES)[1..]);
    for line in parallel_map(THREADS, &runs, run) {
        let _ = writeln!(text, "{line}");
    }
    compare("paths.txt", &text);
}
