//! Random scenarios over TCP; a seed determines each.

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use base::Instant;
use link::{BlackHole, BurstLoss, Loss, Probability, Rate, Reorder, Rng};
use tcp_lite::mpa::{BadCrcPolicy, Revision};
use tcp_lite::tcp::{self, CongestionControl};

use super::{Disturbance, Scenario, Side};
use crate::host::HostConfig;
use crate::pair::{Config, Cost};
use crate::transfer::Load;
use crate::{middlebox, path};

impl Scenario {
    /// Returns the TCP scenario of `seed`.
    pub fn random(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let mtu = [576, 1280, 1500, 1500, 4000, 9000, 65_280][rng.next_below(7) as usize];
        let mut config = Config {
            client: host(&mut rng, mtu),
            server: host(&mut rng, mtu),
            forward: direction(&mut rng, mtu),
            backward: direction(&mut rng, mtu),
            icmp: !one_in(&mut rng, 4),
            cost: [cost(&mut rng), cost(&mut rng)],
        };
        for host in [&mut config.client, &mut config.server] {
            // Without ICMP reports, only probes find a reduced path MTU.
            let path_mtu_probing = !config.icmp || one_in(&mut rng, 2);
            Arc::make_mut(&mut host.endpoint.tcp).path_mtu.probing = path_mtu_probing;
        }
        if one_in(&mut rng, 10) {
            // The path damages payload before the TCP checksum is computed. MPA's CRC detects the damage. The stream
            // may then end.
            config.forward.hidden_damage = random_probability(&mut rng, 0.01);
            config.backward.hidden_damage = random_probability(&mut rng, 0.01);
            config.client.endpoint.mpa.crc = true;
            config.server.endpoint.mpa.crc = true;
        }
        let boxes = [&config.forward.middlebox, &config.backward.middlebox];
        if mtu >= 1280 && boxes.iter().all(|b| b.split.is_never()) {
            // SYN cookies require that the MPA request fits into one segment. Otherwise the loss of the first segment
            // would end the connection, because no other segment returns the cookie (RFC 4987 §3.6).
            config.server.syn_cookies = one_in(&mut rng, 3);
        }
        let load = |rng: &mut Rng| Load {
            seed: rng.next_u64(),
            bytes: 1 + any_scale(rng, 8..20),
            max_message: 1 << rng.next_below(18),
            untagged_every: rng.next_below(5),
            max_untagged: 1 << rng.next_below(13),
        };
        let (mut forward, backward) = (load(&mut rng), load(&mut rng));
        // Limits the number of messages: many tiny messages take long to simulate and test little.
        forward.bytes = forward.bytes.min(forward.max_message * 2000);
        let backward = Load { bytes: backward.bytes.min(backward.max_message * 500), ..backward };
        // Without ICMP reports, the path MTU must not be less than the smallest probe (RFC 4821 §7.2).
        let least_mtu = if config.icmp { 400 } else { 576 };
        let twists = random_disturbances(&mut rng, least_mtu, mtu);
        Scenario { seed, config, forward, backward, disturbances: twists }
    }
}

pub(super) fn random_disturbances(
    rng: &mut Rng,
    least_mtu: usize,
    mtu: usize,
) -> Vec<(Duration, Disturbance)> {
    let n = [0, 0, 1, 1, 1, 2, 3][rng.next_below(7) as usize];
    let mut twists: Vec<_> = (0..n)
        .map(|_| {
            (Duration::from_micros(any_scale(rng, 4..21)), random_disturbance(rng, least_mtu, mtu))
        })
        .collect();
    twists.sort_by_key(|(at, _)| *at);
    twists
}

fn random_disturbance(rng: &mut Rng, least_mtu: usize, mtu: usize) -> Disturbance {
    let end = if one_in(rng, 2) { Side::Client } else { Side::Server };
    match rng.next_below(10) {
        0 | 1 => Disturbance::Abort(end),
        2 | 3 => Disturbance::Close(end),
        4 | 5 => {
            let range = (mtu + 100 - least_mtu) as u64;
            Disturbance::Mtu(end, least_mtu + rng.next_below(range) as usize)
        }
        6..9 => Disturbance::Link(end, Box::new(direction(rng, mtu).link)),
        _ => Disturbance::BlackHole,
    }
}

/// Returns a random number below 2^n, for a random n in `bits`.
pub(super) fn any_scale(rng: &mut Rng, bits: core::ops::Range<u64>) -> u64 {
    let n = bits.start + rng.next_below(bits.end - bits.start);
    rng.next_below(1 << n)
}

pub(super) fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.next_below(n) == 0
}

fn random_probability(rng: &mut Rng, max: f64) -> Probability {
    let p = rng.next_below(1 << 20) as f64 / f64::from(1 << 20) * max;
    Probability::new(p).unwrap_or_default()
}

pub(super) fn cost(rng: &mut Rng) -> Cost {
    if !one_in(rng, 4) {
        return Cost::default();
    }
    let nanos = |rng: &mut Rng| Duration::from_nanos(any_scale(rng, 4..14));
    Cost { per_poll: nanos(rng), per_frame: nanos(rng), ..Cost::default() }
}

fn host(rng: &mut Rng, mtu: usize) -> HostConfig {
    let mut host = HostConfig {
        mtu,
        iss: rng.next_u64() as u32,
        hold: [0, 10_000, 1 << 20][rng.next_below(3) as usize],
        private_data: vec![0x5A; rng.next_below(513) as usize],
        ..HostConfig::default()
    };
    let mpa = &mut host.endpoint.mpa;
    mpa.markers = !one_in(rng, 3);
    mpa.crc = one_in(rng, 2);
    mpa.initiate =
        [Revision::Draft, Revision::Zero, Revision::One, Revision::One][rng.next_below(4) as usize];
    mpa.hold_limit = [0, 5_000, 256 * 1024][rng.next_below(3) as usize];
    mpa.startup_timeout = Duration::from_secs(200);
    mpa.on_bad_crc = if one_in(rng, 2) { BadCrcPolicy::Error } else { BadCrcPolicy::Retransmit };
    if mpa.initiate == Revision::Draft {
        host.private_data.clear();
    }
    host.endpoint.tcp = Arc::new(tcp(rng));
    // Long time-out: recovery from a burst of losses takes many retransmission time-outs if little data is in flight.
    host.endpoint.policy.teardown_timeout = Duration::from_secs(700);
    host
}

fn tcp(rng: &mut Rng) -> tcp::Config {
    tcp::Config {
        extensions: tcp::Extensions {
            sack: !one_in(rng, 4),
            timestamps: !one_in(rng, 3),
            window_scale: !one_in(rng, 4),
            ecn: one_in(rng, 2),
        },
        pacing: one_in(rng, 2),
        receive_window: 1 << (10 + rng.next_below(13)),
        path_mtu: tcp::PathMtuConfig {
            min: 68,
            raise: Duration::from_millis(any_scale(rng, 4..20)),
            ..tcp::PathMtuConfig::default()
        },
        max_ranges: [4, 256][rng.next_below(2) as usize],
        limits: tcp::Limits { retransmission: Duration::from_secs(800), ..tcp::Limits::default() },
        congestion: if one_in(rng, 3) {
            CongestionControl::NewReno
        } else {
            CongestionControl::Cubic
        },
        acks: tcp::AckConfig {
            delay: Duration::from_millis([0, 1, 40, 200][rng.next_below(4) as usize]),
            ..tcp::AckConfig::default()
        },
        ..tcp::Config::default()
    }
}

pub(super) fn direction(rng: &mut Rng, mtu: usize) -> path::Config {
    let mut link = link::Config { loss: loss(rng), ..link::Config::seeded(rng.next_u64()) };
    link.delay = Duration::from_micros(1 + any_scale(rng, 0..16));
    if one_in(rng, 2) {
        let delay = Duration::from_micros(rng.next_below(3000));
        link.reorder = Reorder { probability: random_probability(rng, 0.1), delay };
    }
    if one_in(rng, 3) {
        link.jitter = Duration::from_micros(rng.next_below(2000));
    }
    if one_in(rng, 3) {
        link.duplicate = random_probability(rng, 0.05);
    }
    if one_in(rng, 3) {
        link.corrupt = random_probability(rng, 0.02);
    }
    if one_in(rng, 3) {
        link.rate = NonZeroU64::new(1_000_000 << rng.next_below(10)).map(|bits_per_second| Rate {
            bits_per_second,
            queue_bytes: 20_000 + rng.next_below(200_000),
        });
        link.mark_bytes = one_in(rng, 2).then(|| rng.next_below(50_000));
    }
    if one_in(rng, 6) {
        link.black_holes = black_holes(rng);
    }
    let mut config = path::Config::new(mtu, link);
    if one_in(rng, 3) {
        config.middlebox = middlebox::Config {
            split: random_probability(rng, 0.5),
            min_piece: 1 + rng.next_below(300) as usize,
            merge: random_probability(rng, 0.5),
            max_payload: 1 + rng.next_below(60_000) as usize,
            hold: Duration::from_micros(rng.next_below(200)),
        };
    }
    config
}

fn loss(rng: &mut Rng) -> Loss {
    match rng.next_below(5) {
        0 | 1 => Loss::None,
        2 => Loss::Random(random_probability(rng, 0.05)),
        3 => NonZeroU64::new(20 + rng.next_below(1000)).map_or(Loss::None, Loss::EveryNth),
        _ => Loss::Burst(BurstLoss {
            good_to_bad: random_probability(rng, 0.01),
            bad_to_good: Probability::new(0.5).unwrap_or_default(),
            loss_in_good: Probability::NEVER,
            loss_in_bad: Probability::new(0.8).unwrap_or_default(),
        }),
    }
}

/// Returns one to four periods of total loss. Each period starts after 1 s, the virtual time at which a simulation
/// begins. The periods do not repeat: otherwise every retransmission at the maximum time-out could fall into such a
/// period.
fn black_holes(rng: &mut Rng) -> Vec<BlackHole> {
    let n = 1 + rng.next_below(4);
    let hole = |rng: &mut Rng| BlackHole {
        start: Instant::from_millis(1000 + any_scale(rng, 4..14)),
        length: Duration::from_millis(rng.next_below(1500)),
        interval: None,
    };
    (0..n).map(|_| hole(rng)).collect()
}
