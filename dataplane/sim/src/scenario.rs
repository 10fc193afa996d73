//! Random scenarios: a seed names the path, the hosts, the load and how it all ends.
//!
//! Whatever a path does, some things must hold: no octet but the right one in a region, nothing outside
//! the messages, no stream that is stuck, nothing left in use. Where the path only loses, delays,
//! reorders, duplicates, damages visibly and cuts up, everything must also arrive.

use core::num::NonZeroU64;
use core::time::Duration;
use std::sync::Arc;

use link::{BlackHole, BurstLoss, Loss, Probability, Rate, Reorder, Rng};
use tcp_lite::mpa::{OnBadCrc, Revision};
use tcp_lite::tcp::{self, CongestionControl};
use wire::Instant;

use crate::host::{Host, HostConfig};
use crate::pair::{Config, Pair};
use crate::transfer::{self, Expected, Load, condition};
use crate::{middlebox, path};

/// Virtual time without anything that moves after which a stream is stuck: longer than TCP's own
/// patience, so that a dead path is noticed by TCP first.
const PATIENCE: Duration = Duration::from_secs(1000);

/// One scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub seed: u64,
    /// Hosts and path.
    pub config: Config,
    /// To the server.
    pub forward: Load,
    /// To the client.
    pub backward: Load,
    /// What else happens.
    pub twist: Twist,
}

/// What happens besides the transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Twist {
    /// Nothing: everything arrives, then the client closes.
    None,
    /// The path damages payload under a right checksum: CRC finds it, or the stream ends by it.
    HiddenDamage,
    /// One side resets after this time.
    Abort(Duration),
    /// One side closes after this time, whatever is on its way.
    Close(Duration),
    /// The path's MTU changes after this time; packets that are too large are reported.
    Mtu(Duration, usize),
    /// Nothing passes from this time on, ever.
    Dead(Duration),
}

impl Scenario {
    /// The scenario that `seed` names.
    pub fn random(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let twist = twist(&mut rng);
        let mtu = [576, 1280, 1500, 1500, 4000, 9000][rng.below(6) as usize];
        let mut config = Config {
            client: host(&mut rng, mtu),
            server: host(&mut rng, mtu),
            forward: direction(&mut rng, mtu),
            backward: direction(&mut rng, mtu),
            icmp: true,
            cost: Default::default(),
        };
        if twist == Twist::HiddenDamage {
            config.forward.hidden_damage = odds(&mut rng, 0.01);
            config.client.endpoint.mpa.crc = true;
        }
        let load = |rng: &mut Rng| Load {
            seed: rng.next_u64(),
            octets: 1 + any_scale(rng, 8..20),
            max_message: 1 << rng.below(18),
            untagged_every: rng.below(5),
            max_untagged: 1 << rng.below(13),
        };
        let (mut forward, backward) = (load(&mut rng), load(&mut rng));
        // Many tiny messages take long and show little.
        forward.octets = forward.octets.min(forward.max_message * 2000);
        let backward = Load { octets: backward.octets.min(backward.max_message * 500), ..backward };
        Scenario { seed, config, forward, backward, twist }
    }

    /// Plays it.
    ///
    /// # Errors
    /// What did not hold, in words.
    pub fn play(&self) -> Result<(), String> {
        let plain = matches!(self.twist, Twist::None | Twist::Mtu(..));
        let mut pair = Pair::new(self.config.clone());
        let expected = [
            transfer::load(&mut pair.client, &self.forward),
            transfer::load(&mut pair.server, &self.backward),
        ];
        pair.client.connect(pair.now).map_err(|e| e.to_string())?;
        self.twist(&mut pair)?;
        let done = pair.run_while_moving(PATIENCE, |pair| {
            expected[0].is_delivered(&pair.server) && expected[1].is_delivered(&pair.client)
                || pair.client.closed().is_some() && pair.server.state().is_none()
                || pair.client.closed().is_some() && pair.server.closed().is_some()
        });
        if plain {
            done.map_err(|stall| format!("transfer: {stall}; {}", condition(&pair)))?;
        }
        pair.client.shutdown(pair.now);
        pair.server.shutdown(pair.now);
        pair.run_while_moving(PATIENCE, |pair| {
            let over = |host: &Host| host.state().is_none() || host.is_done();
            over(&pair.client) && over(&pair.server)
        })
        .map_err(|stall| format!("close: {stall}; {}", condition(&pair)))?;
        self.judge(&pair, &expected, plain)
    }

    fn twist(&self, pair: &mut Pair) -> Result<(), String> {
        let at = match self.twist {
            Twist::None | Twist::HiddenDamage => return Ok(()),
            Twist::Abort(at) | Twist::Close(at) | Twist::Mtu(at, _) | Twist::Dead(at) => at,
        };
        pair.run_for(at).map_err(|stall| format!("before the twist: {stall}"))?;
        let client = self.seed.is_multiple_of(2);
        let host = if client { &mut pair.client } else { &mut pair.server };
        match self.twist {
            Twist::Abort(_) => host.abort(),
            Twist::Close(_) => host.shutdown(pair.now),
            Twist::Mtu(_, mtu) => {
                pair.forward.set_mtu(mtu);
                pair.backward.set_mtu(mtu);
            }
            Twist::Dead(_) => {
                let dead = link::Config {
                    loss: Loss::Random(Probability::ALWAYS),
                    ..link::Config::default()
                };
                pair.forward.set_link(dead.clone());
                pair.backward.set_link(dead);
            }
            Twist::None | Twist::HiddenDamage => {}
        }
        Ok(())
    }

    fn judge(&self, pair: &Pair, expected: &[Expected; 2], plain: bool) -> Result<(), String> {
        let sides = [
            ("server", &pair.client, &pair.server, &expected[0]),
            ("client", &pair.server, &pair.client, &expected[1]),
        ];
        for (name, sender, receiver, expected) in sides {
            let wrong = |what: String| format!("to the {name}: {what}; {}", condition(pair));
            expected.no_wrong_octet(receiver).map_err(wrong)?;
            if plain {
                expected.verify(sender, receiver).map_err(wrong)?;
            }
            if receiver.in_use() != (0, 0) {
                return Err(wrong(format!("in use: {:?}", receiver.in_use())));
            }
            let (held, budget) = (receiver.stats().mpa_rx.held_max, receiver.config().hold);
            // One FPDU in order may always be held besides.
            let limit = budget + u64::from(receiver.config().endpoint.mpa.max_fpdu);
            if held > limit {
                return Err(wrong(format!("{held} octets held, budget {budget}")));
            }
        }
        for path in [&pair.forward, &pair.backward] {
            if path.counters().malformed > 0 {
                return Err("malformed segments were sent".into());
            }
        }
        Ok(())
    }
}

fn twist(rng: &mut Rng) -> Twist {
    let soon = Duration::from_micros(rng.below(50_000));
    match rng.below(12) {
        0 => Twist::HiddenDamage,
        1 => Twist::Abort(soon),
        2 => Twist::Close(soon),
        3 => Twist::Mtu(soon, 400 + rng.below(1100) as usize),
        4 => Twist::Dead(soon),
        _ => Twist::None,
    }
}

/// A number whose magnitude is as random as itself: below 2^n for an n in `bits`.
fn any_scale(rng: &mut Rng, bits: core::ops::Range<u64>) -> u64 {
    let n = bits.start + rng.below(bits.end - bits.start);
    rng.below(1 << n)
}

fn odds(rng: &mut Rng, most: f64) -> Probability {
    let p = rng.below(1 << 20) as f64 / f64::from(1 << 20) * most;
    Probability::new(p).unwrap_or_default()
}

fn host(rng: &mut Rng, mtu: usize) -> HostConfig {
    let mut host = HostConfig {
        mtu,
        iss: rng.next_u64() as u32,
        hold: [0, 10_000, 1 << 20][rng.below(3) as usize],
        private_data: vec![0x5A; rng.below(513) as usize],
        ..HostConfig::default()
    };
    let mpa = &mut host.endpoint.mpa;
    mpa.markers = rng.below(3) > 0;
    mpa.crc = rng.below(2) == 0;
    mpa.initiate =
        [Revision::Draft, Revision::Zero, Revision::One, Revision::One][rng.below(4) as usize];
    mpa.hold_limit = [0, 5_000, 256 * 1024][rng.below(3) as usize];
    mpa.startup_timeout = Duration::from_secs(200);
    mpa.on_bad_crc = if rng.below(2) == 0 { OnBadCrc::Error } else { OnBadCrc::Retransmit };
    if mpa.initiate == Revision::Draft {
        host.private_data.clear();
    }
    let mut tcp = tcp::Config {
        sack: rng.below(4) > 0,
        timestamps: rng.below(3) > 0,
        window_scale: rng.below(4) > 0,
        receive_window: 1 << (12 + rng.below(11)),
        min_path_mtu: 68,
        max_ranges: [4, 256][rng.below(2) as usize],
        retransmission_limit: Duration::from_secs(800),
        ..tcp::Config::default()
    };
    if rng.below(3) == 0 {
        tcp.congestion = CongestionControl::NewReno;
    }
    host.endpoint.tcp = Arc::new(tcp);
    // A burst of losses on a quiet path takes long.
    host.endpoint.teardown_timeout = Duration::from_secs(700);
    host
}

fn direction(rng: &mut Rng, mtu: usize) -> path::Config {
    let loss = match rng.below(5) {
        0 | 1 => Loss::None,
        2 => Loss::Random(odds(rng, 0.05)),
        3 => NonZeroU64::new(20 + rng.below(1000)).map_or(Loss::None, Loss::EveryNth),
        _ => Loss::Burst(BurstLoss {
            good_to_bad: odds(rng, 0.01),
            bad_to_good: Probability::new(0.5).unwrap_or_default(),
            loss_in_good: Probability::NEVER,
            loss_in_bad: Probability::new(0.8).unwrap_or_default(),
        }),
    };
    let mut link = link::Config { loss, ..link::Config::seeded(rng.next_u64()) };
    link.delay = Duration::from_micros(1 + any_scale(rng, 0..16));
    if rng.below(2) == 0 {
        let delay = Duration::from_micros(rng.below(3000));
        link.reorder = Reorder { probability: odds(rng, 0.1), delay };
    }
    if rng.below(3) == 0 {
        link.jitter = Duration::from_micros(rng.below(2000));
    }
    if rng.below(3) == 0 {
        link.duplicate = odds(rng, 0.05);
    }
    if rng.below(3) == 0 {
        link.corrupt = odds(rng, 0.02);
    }
    if rng.below(3) == 0 {
        link.rate = NonZeroU64::new(1_000_000 << rng.below(10)).map(|bits_per_second| Rate {
            bits_per_second,
            queue_octets: 20_000 + rng.below(200_000),
        });
    }
    if rng.below(6) == 0 {
        link.black_holes.push(BlackHole {
            start: Instant::from_millis(1000 + rng.below(100)),
            length: Duration::from_millis(rng.below(1500)),
            every: None,
        });
    }
    let mut config = path::Config::new(mtu, link);
    if rng.below(3) == 0 {
        config.middlebox = middlebox::Config {
            split: odds(rng, 0.5),
            min_piece: 1 + rng.below(300) as usize,
            merge: odds(rng, 0.5),
            max_payload: 1 + rng.below(60_000) as usize,
            hold: Duration::from_micros(rng.below(200)),
        };
    }
    config
}
