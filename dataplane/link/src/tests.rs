//! Tests each fault alone at its configured rate, and the invariants of any configuration.

use core::num::NonZeroU64;
use core::time::Duration;

use proptest::prelude::*;

use super::*;

fn p(p: f64) -> Probability {
    Probability::new(p).expect("a probability")
}

fn frame(n: u32, len: usize) -> Vec<u8> {
    let mut f = vec![0; len.max(4)];
    f[..4].copy_from_slice(&n.to_be_bytes());
    f
}

fn number(f: &[u8]) -> u32 {
    u32::from_be_bytes(f[..4].try_into().expect("four bytes"))
}

fn us(n: u64) -> Instant {
    Instant::from_micros(n)
}

/// Pushes `n` frames of 100 bytes 1 µs apart, then drains the link. Returns the frames' numbers in order of arrival.
fn run(link: &mut FaultyLink<Vec<u8>>, n: u32) -> Vec<u32> {
    let mut out = Vec::new();
    for i in 0..n {
        let now = us(u64::from(i));
        while let Some(f) = link.pop(now) {
            out.push(number(&f));
        }
        link.push(now, frame(i, 100));
    }
    while let Some(at) = link.next_delivery() {
        out.push(number(&link.pop(at).expect("due")));
    }
    out
}

#[test]
fn perfect_link_delivers_all_frames_at_once() {
    let mut link = FaultyLink::new(Config::default());
    assert_eq!(run(&mut link, 100), (0..100).collect::<Vec<_>>());
    assert_eq!(link.counters().delivered_bytes, 100 * 100);
    assert_eq!(link.counters().total_lost(), 0);
}

#[test]
fn delayed_frame_is_not_delivered_early() {
    let mut link =
        FaultyLink::new(Config { delay: Duration::from_micros(10), ..Config::default() });
    assert_eq!(link.push(us(5), frame(1, 64)), Fate::Queued(us(15)));
    assert_eq!(link.pop(us(14)), None);
    assert_eq!(link.next_delivery(), Some(us(15)));
    assert_eq!(link.pop(us(15)).map(|f| number(&f)), Some(1));
    assert_eq!(link.next_delivery(), None);
}

#[test]
fn random_loss_rate_matches_configuration() {
    let mut link = FaultyLink::new(Config { loss: Loss::Random(p(0.05)), ..Config::seeded(7) });
    let got = run(&mut link, 20_000).len() as u64;
    assert_eq!(got + link.counters().lost, 20_000);
    assert!((800..1200).contains(&link.counters().lost), "{}", link.counters().lost);
}

#[test]
fn every_nth_frame_is_lost_exactly() {
    let nth = Loss::EveryNth(NonZeroU64::new(3).expect("not zero"));
    let mut link = FaultyLink::new(Config { loss: nth, ..Config::default() });
    assert_eq!(run(&mut link, 9), [0, 1, 3, 4, 6, 7]);
}

#[test]
fn burst_loss_has_configured_mean_length() {
    let model = BurstLoss {
        good_to_bad: p(0.01),
        bad_to_good: p(0.2),
        loss_in_good: Probability::NEVER,
        loss_in_bad: Probability::ALWAYS,
    };
    let mut link = FaultyLink::new(Config { loss: Loss::Burst(model), ..Config::seeded(3) });
    let got = run(&mut link, 50_000);
    let bursts = got.windows(2).filter(|w| w[1] != w[0] + 1).count() as f64;
    let mean = link.counters().lost as f64 / bursts;
    assert!((4.0..6.0).contains(&mean), "mean burst {mean}, expected 5");
}

#[test]
fn delayed_frames_are_reordered_without_loss() {
    let reorder = Reorder { probability: p(0.1), delay: Duration::from_micros(20) };
    let mut link = FaultyLink::new(Config { reorder, ..Config::seeded(1) });
    let mut got = run(&mut link, 1000);
    assert!(got.windows(2).any(|w| w[1] < w[0]));
    got.sort_unstable();
    assert_eq!(got, (0..1000).collect::<Vec<_>>());
    assert!((60..140).contains(&link.counters().reordered));
}

#[test]
fn jitter_alone_does_not_reorder() {
    let mut link =
        FaultyLink::new(Config { jitter: Duration::from_micros(50), ..Config::seeded(1) });
    assert_eq!(run(&mut link, 1000), (0..1000).collect::<Vec<_>>());
}

#[test]
fn rate_limit_spaces_frames_and_tail_drops() {
    // 8 Mbit/s: 1 byte per µs. The queue has space for three frames of 100 bytes.
    let rate = Rate { bits_per_second: NonZeroU64::new(8_000_000).expect("set"), queue_bytes: 300 };
    let mut link = FaultyLink::new(Config { rate: Some(rate), ..Config::default() });
    assert_eq!(link.push(us(0), frame(0, 100)), Fate::Queued(us(100)));
    assert_eq!(link.push(us(0), frame(1, 100)), Fate::Queued(us(200)));
    assert_eq!(link.push(us(0), frame(2, 100)), Fate::Queued(us(300)));
    assert_eq!(link.push(us(0), frame(3, 100)), Fate::TailDrop);
    assert_eq!(link.push(us(100), frame(4, 100)), Fate::Queued(us(400)));
    assert_eq!(link.counters().tail_dropped, 1);
}

/// A frame. The first field is true if the frame supports marks; the second is true once the frame is marked.
#[derive(Debug, PartialEq)]
struct Markable(bool, bool);

impl Frame for Markable {
    fn len(&self) -> usize {
        100
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }
    fn duplicate(&self) -> Option<Self> {
        Some(Markable(self.0, self.1))
    }
    fn mark(&mut self) -> bool {
        self.1 = self.0;
        self.0
    }
}

#[test]
fn long_queue_marks_ect_frames_before_tail_drop() {
    let rate = Rate { bits_per_second: NonZeroU64::new(8_000_000).expect("set"), queue_bytes: 400 };
    let config = Config { rate: Some(rate), mark_bytes: Some(150), ..Config::default() };
    let mut link = FaultyLink::new(config);
    for capable in [true, true, true, false, true] {
        link.push(us(0), Markable(capable, false));
    }
    assert_eq!(link.queued_bytes(us(0)), 400);
    assert_eq!(link.queued_bytes(us(250)), 150);
    let mut marks = Vec::new();
    while let Some(at) = link.next_delivery() {
        marks.push(link.pop(at).expect("due").1);
    }
    // Bytes waiting when each frame arrives: 0, 100, 200, 300, and 400, which leaves no room for the last frame.
    assert_eq!(marks, [false, false, true, false]);
    assert_eq!((link.counters().marked, link.counters().tail_dropped), (1, 1));
}

#[test]
fn burst_loss_rate_matches_gilbert_elliott() {
    // The bad state lasts 0.005 / (0.005 + 0.095) of the time and loses 60 % of its frames: 3 % of all frames.
    let model = BurstLoss {
        good_to_bad: p(0.005),
        bad_to_good: p(0.095),
        loss_in_good: Probability::NEVER,
        loss_in_bad: p(0.6),
    };
    let mut link = FaultyLink::new(Config { loss: Loss::Burst(model), ..Config::seeded(11) });
    let lost = 100_000 - run(&mut link, 100_000).len();
    assert!((2500..3500).contains(&lost), "{lost} of 100000 lost");
}

#[test]
fn duplicate_rate_matches_and_copies_are_equal() {
    let mut link = FaultyLink::new(Config { duplicate: p(0.1), ..Config::seeded(2) });
    let got = run(&mut link, 10_000);
    let twice = got.windows(2).filter(|w| w[0] == w[1]).count() as u64;
    assert_eq!(twice, link.counters().duplicated);
    assert!((800..1200).contains(&twice), "{twice}");
}

#[test]
fn new_config_applies_to_later_frames_only() {
    let slow = Config { delay: Duration::from_micros(100), ..Config::default() };
    let mut link = FaultyLink::new(slow.clone());
    assert_eq!(link.push(us(0), frame(1, 60)), Fate::Queued(us(100)));
    link.set_config(Config { delay: Duration::from_micros(10), ..slow.clone() });
    // With a shorter delay, the second frame still does not overtake the first.
    assert_eq!(link.push(us(1), frame(2, 60)), Fate::Queued(us(100)));
    link.set_config(Config { loss: Loss::Random(Probability::ALWAYS), ..slow });
    assert_eq!(link.push(us(2), frame(3, 60)), Fate::Lost);
    assert_eq!(link.pop(us(100)).map(|f| number(&f)), Some(1));
    assert_eq!(link.pop(us(100)).map(|f| number(&f)), Some(2));
}

#[test]
fn idle_rate_limited_link_accepts_oversized_frame() {
    let rate = Rate { bits_per_second: NonZeroU64::new(8_000_000).expect("set"), queue_bytes: 10 };
    let mut link = FaultyLink::new(Config { rate: Some(rate), ..Config::default() });
    assert_eq!(link.push(us(0), frame(0, 1500)), Fate::Queued(us(1500)));
}

#[test]
fn uncopyable_frame_is_not_duplicated() {
    struct Single;
    impl Frame for Single {
        fn len(&self) -> usize {
            60
        }
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut []
        }
        fn duplicate(&self) -> Option<Self> {
            None
        }
    }
    let always = Probability::ALWAYS;
    let mut link =
        FaultyLink::new(Config { duplicate: always, corrupt: always, ..Config::default() });
    link.push(us(0), Single);
    assert_eq!(link.in_flight(), 1);
    assert_eq!(link.counters().duplicates_refused, 1);
    assert_eq!(link.counters().corrupted, 0);
}

#[test]
fn corruption_flips_one_bit() {
    let mut link = FaultyLink::new(Config { corrupt: Probability::ALWAYS, ..Config::seeded(9) });
    link.push(us(0), vec![0; 100]);
    let f = link.pop(us(0)).expect("due");
    assert_eq!(f.iter().map(|o| o.count_ones()).sum::<u32>(), 1);
    assert_eq!(link.counters().corrupted, 1);
}

#[test]
fn black_hole_repeats_at_its_interval() {
    let hole = BlackHole {
        start: us(10),
        length: Duration::from_micros(5),
        interval: Some(Duration::from_micros(20)),
    };
    let mut link = FaultyLink::new(Config { black_holes: vec![hole], ..Config::default() });
    let lost: Vec<u64> =
        (0..60).filter(|&t| link.push(us(t), frame(0, 60)) == Fate::BlackHole).collect();
    assert_eq!(lost, [10, 11, 12, 13, 14, 30, 31, 32, 33, 34, 50, 51, 52, 53, 54]);
    let once = BlackHole { interval: None, ..hole };
    assert!(once.contains(us(14)) && !once.contains(us(15)) && !once.contains(us(30)));
}

#[test]
fn probabilities_outside_0_to_1_are_refused() {
    for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(Probability::new(bad).is_err(), "{bad}");
    }
    assert_eq!(Probability::from_percent(5.0), Probability::new(0.05));
}

fn any_config() -> impl Strategy<Value = Config> {
    let loss = prop_oneof![
        Just(Loss::None),
        (0.0..0.5f64).prop_map(|x| Loss::Random(p(x))),
        (1..9u64).prop_map(|n| Loss::EveryNth(NonZeroU64::new(n).expect("not zero"))),
        (0.0..0.5f64, 0.1..1.0f64).prop_map(|(a, b)| Loss::Burst(BurstLoss {
            good_to_bad: p(a),
            bad_to_good: p(b),
            loss_in_good: Probability::NEVER,
            loss_in_bad: p(0.9),
        })),
    ];
    let rate = proptest::option::of((1_000_000..10_000_000_000u64, 0..100_000u64).prop_map(
        |(bits, queue_bytes)| Rate {
            bits_per_second: NonZeroU64::new(bits).expect("not zero"),
            queue_bytes,
        },
    ));
    let times = (0..200u64, 0..50u64, 0..100u64);
    let odds = (0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64);
    (any::<u64>(), loss, rate, times, odds, 1..64usize).prop_map(
        |(seed, loss, rate, (delay, jitter, late), (reorder, duplicate, corrupt), max_frames)| {
            Config {
                seed,
                loss,
                reorder: Reorder { probability: p(reorder), delay: Duration::from_micros(late) },
                delay: Duration::from_micros(delay),
                jitter: Duration::from_micros(jitter),
                rate,
                duplicate: p(duplicate),
                corrupt: p(corrupt),
                black_holes: Vec::new(),
                mark_bytes: Some(20_000),
                max_frames,
            }
        },
    )
}

proptest! {
    #[test]
    fn all_frames_are_counted_within_frame_limit(config in any_config(), n in 1..300u32) {
        let mut link = FaultyLink::new(config.clone());
        let got = run(&mut link, n).len() as u64;
        let c = *link.counters();
        prop_assert_eq!(c.offered, u64::from(n));
        prop_assert_eq!(c.offered + c.duplicated, got + c.total_lost());
        prop_assert_eq!(c.delivered, got);
        prop_assert!(c.frames_max <= config.max_frames as u64);
        prop_assert_eq!(link.in_flight(), 0);
    }

    #[test]
    fn same_seed_repeats_same_run(config in any_config(), n in 1..300u32) {
        let first = run(&mut FaultyLink::new(config.clone()), n);
        prop_assert_eq!(first, run(&mut FaultyLink::new(config), n));
    }

    #[test]
    fn delivery_times_never_decrease(config in any_config(), n in 1..200u32) {
        let mut link = FaultyLink::new(config);
        for i in 0..n {
            link.push(us(u64::from(i)), frame(i, 60));
        }
        let mut last = Instant::ZERO;
        while let Some(at) = link.next_delivery() {
            prop_assert!(at >= last);
            last = at;
            prop_assert!(link.pop(at).is_some());
        }
    }

    #[test]
    fn link_without_reordering_keeps_order(config in any_config(), n in 1..300u32) {
        let config = Config { reorder: Reorder::default(), corrupt: Probability::NEVER, ..config };
        let got = run(&mut FaultyLink::new(config), n);
        prop_assert!(got.windows(2).all(|w| w[0] <= w[1]));
    }
}
