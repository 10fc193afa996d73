//! Whole transfers over links that lose, reorder and duplicate packets: every message arrives once. Some tests measure
//! goodput.

use core::num::NonZeroU64;

use link::{Loss, Probability, Rate, Reorder};
use proptest::prelude::*;

use super::path::Pair;
use super::*;
use crate::sctp::receive::ReceiveConfig;

fn percent(percent: f64) -> Probability {
    Probability::from_percent(percent).expect("a percentage")
}

/// A path with a loss rate and a round-trip time. Its queue holds one bandwidth-delay product.
struct Cell {
    loss_percent: f64,
    rtt: Duration,
}

impl Cell {
    fn rate(&self) -> u64 {
        match self.rtt.as_millis() {
            0..10 => 10_000_000_000,
            10..100 => 2_500_000_000,
            _ => 250_000_000,
        }
    }

    fn bdp(&self) -> u64 {
        (u128::from(self.rate()) * self.rtt.as_nanos() / 8_000_000_000) as u64
    }

    fn link(&self, seed: u64) -> link::Config {
        let rate = Rate {
            bits_per_second: NonZeroU64::new(self.rate()).expect("not zero"),
            queue_bytes: self.bdp(),
        };
        link::Config {
            loss: Loss::Random(percent(self.loss_percent)),
            delay: self.rtt / 2,
            rate: Some(rate),
            ..link::Config::seeded(seed)
        }
    }

    /// Returns the bytes to send, 4 to 48 MiB: enough for about forty losses, or on a lossless path sixteen
    /// bandwidth-delay products.
    fn bytes(&self) -> u64 {
        let wanted = if self.loss_percent > 0.0 {
            (40.0 / (self.loss_percent / 100.0) * 1436.0) as u64
        } else {
            16 * self.bdp()
        };
        wanted.clamp(4 << 20, 48 << 20)
    }

    /// Runs a transfer. Returns the goodput in bytes per second, and the pair.
    fn run(&self, seed: u64, send: &SendConfig) -> (f64, Pair) {
        let receive = ReceiveConfig {
            window: (4 * self.bdp()).max(4 << 20) as u32,
            ..ReceiveConfig::default()
        };
        let links = [self.link(seed), self.link(!seed)];
        let mut pair = Pair::new(send, &receive, links, PACKET);
        pair.ends[0].source.push((self.bytes() / 1436) as usize, 1436);
        pair.run();
        let took = pair.done[0].expect("done").saturating_since(Instant::ZERO).as_secs_f64();
        (pair.ends[1].sink.bytes as f64 / took, pair)
    }
}

// RFC 9260 §7: at 1 % loss there are few time-outs, and few unnecessary retransmissions.
#[test]
fn loss_of_one_percent_is_repaired_by_fast_recovery() {
    let cell = Cell { loss_percent: 1.0, rtt: 10 * MS };
    for congestion in [transport::CongestionControl::Cubic, transport::CongestionControl::NewReno] {
        let (rate, pair) = cell.run(1, &SendConfig { congestion, ..SendConfig::default() });
        let stats = pair.ends[0].sender.stats();
        assert!(rate > 1_000_000.0, "{congestion:?}: {rate} {stats:?}");
        assert!(stats.retransmitted < stats.chunks / 50, "{stats:?}");
        assert!(stats.fast_recoveries > 5 * stats.timeouts, "{stats:?}");
    }
}

// At 1 % loss and round-trip times of 100 µs to 100 ms, goodput is at least 95 % of the limit of TCP with SACK (Mathis
// et al. 1997).
#[test]
fn goodput_at_one_percent_loss_matches_mathis() {
    for micros in [100, 1_000, 10_000, 100_000] {
        let cell = Cell { loss_percent: 1.0, rtt: Duration::from_micros(micros) };
        let rates: Vec<_> = (1..=3).map(|seed| cell.run(seed, &SendConfig::default()).0).collect();
        let mean = rates.iter().sum::<f64>() / 3.0;
        let limit = 1436.0 * (1.5f64 / 0.01).sqrt() / cell.rtt.as_secs_f64();
        assert!(mean > 0.95 * limit, "{micros} us: {rates:?}, {limit}");
    }
}

// Slow start overflows the queue and loses every second packet. More than 1000 losses are repaired without a time-out.
#[test]
fn an_overflowing_slow_start_recovers() {
    let cell = Cell { loss_percent: 0.0, rtt: 10 * MS };
    let wide = SendConfig { send_window: 1 << 30, ..SendConfig::default() };
    let (rate, pair) = cell.run(1, &wide);
    let stats = pair.ends[0].sender.stats();
    assert!(stats.lost > 1000 && stats.timeouts == 0, "{stats:?}");
    assert!(rate * 8.0 > 0.45 * cell.rate() as f64, "{rate}");
}

// RFC 9260 §7.2.1: without loss no chunk is sent twice, and slow start fills the window.
#[test]
fn lossless_path_has_no_retransmissions() {
    let link = |seed| link::Config { delay: 5 * MS, ..link::Config::seeded(seed) };
    let receive = ReceiveConfig::default();
    let mut pair = Pair::new(&SendConfig::default(), &receive, [link(1), link(2)], PACKET);
    pair.ends[0].source.push((8 << 20) / 1436, 1436);
    pair.run();
    let stats = pair.ends[0].sender.stats();
    assert_eq!((stats.retransmitted, stats.timeouts), (0, 0), "{stats:?}");
    let took = pair.done[0].expect("done");
    assert!(took < Instant::from_millis(300), "{took:?}");
}

fn any_link() -> impl Strategy<Value = link::Config> {
    let faults = (0.0..25.0f64, 0.0..15.0f64, 0.0..30.0f64);
    let delay = prop_oneof![Just(50u64), Just(1_000), Just(20_000), Just(150_000)];
    (any::<u64>(), faults, delay).prop_map(|(seed, (loss, duplicate, late), micros)| link::Config {
        loss: Loss::Random(percent(loss)),
        duplicate: percent(duplicate),
        reorder: Reorder {
            probability: percent(late),
            delay: Duration::from_micros(micros * 3 / 2),
        },
        delay: Duration::from_micros(micros),
        ..link::Config::seeded(seed)
    })
}

fn any_send() -> impl Strategy<Value = SendConfig> {
    (any::<(bool, bool, bool, bool)>(), 2usize..300, 1u32..8).prop_map(
        |((cubic, pacing, tail_loss_probe, ask_at_end), max_records, max_burst)| SendConfig {
            congestion: match cubic {
                true => transport::CongestionControl::Cubic,
                false => transport::CongestionControl::NewReno,
            },
            pacing,
            tail_loss_probe,
            immediate_sack_at_end: ask_at_end,
            max_records,
            max_burst,
            ..SendConfig::default()
        },
    )
}

fn any_receive() -> impl Strategy<Value = ReceiveConfig> {
    (prop_oneof![Just(1500u32), Just(6_000), Just(60_000), Just(1 << 20)], 1usize..40, 1u8..5)
        .prop_map(|(window, max_gaps, packets_per_sack)| ReceiveConfig {
            window,
            max_gaps,
            packets_per_sack,
            ..ReceiveConfig::default()
        })
}

/// Generates lengths of messages, up to full packets.
fn any_messages() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![8usize..200, 200usize..1436, Just(5000)], 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    // RFC 9260 §6: every message arrives once, in both directions, over any link and with any windows.
    #[test]
    fn every_message_arrives_once(
        links in [any_link(), any_link()],
        send in any_send(),
        receive in any_receive(),
        messages in [any_messages(), any_messages()],
        packet in prop_oneof![Just(576usize), Just(PACKET), Just(8980)],
    ) {
        let mut pair = Pair::new(&send, &receive, links, packet);
        for (end, lens) in pair.ends.iter_mut().zip(&messages) {
            for len in lens {
                end.source.push(1, *len);
            }
        }
        pair.run();
        for (end, lens) in pair.ends.iter().zip(&messages) {
            prop_assert_eq!(end.source.acknowledged, lens.len() as u64);
        }
    }
}
