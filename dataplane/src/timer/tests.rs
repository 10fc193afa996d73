//! Compares the timer wheel with a sorted map, and tests its limits.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Set(u32, u64),
    Clear(u32),
    Advance(u64),
}

fn delay() -> impl Strategy<Value = u64> {
    // Delays of all orders of magnitude, up to the span of the wheel (2^52 ns).
    (0u32..53).prop_flat_map(|bits| 0..=(1u64 << bits))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u32..24, delay()).prop_map(|(t, d)| Op::Set(t, d)),
        1 => (0u32..24).prop_map(Op::Clear),
        3 => delay().prop_map(Op::Advance),
    ]
}

proptest! {
    #[test]
    fn timer_wheel_agrees_with_sorted_map(start in delay(), ops in prop::collection::vec(op(), 1..200)) {
        let mut now = start;
        let mut wheel = TimerWheel::new(Instant::from_nanos(now));
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Set(token, delay) => {
                    wheel.set(token, Instant::from_nanos(now + delay));
                    model.insert(token, (now + delay).div_ceil(1 << TICK_BITS));
                }
                Op::Clear(token) => {
                    wheel.clear(token);
                    model.remove(&token);
                }
                Op::Advance(by) => {
                    now += by;
                    let tick = now >> TICK_BITS;
                    let mut fired = BTreeSet::new();
                    while let Some(token) = wheel.pop(Instant::from_nanos(now)) {
                        prop_assert!(fired.insert(token));
                    }
                    let due: BTreeSet<u32> =
                        model.iter().filter(|&(_, &at)| at <= tick).map(|(&t, _)| t).collect();
                    prop_assert_eq!(&fired, &due);
                    model.retain(|_, at| *at > tick);
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            for token in 0..24 {
                let at = wheel.deadline(token).map(|d| d.as_nanos() >> TICK_BITS);
                prop_assert_eq!(at, model.get(&token).copied());
            }
            match (wheel.next_expiry(), model.values().min()) {
                (None, None) => {}
                (Some(next), Some(&first)) => prop_assert!(next.as_nanos() >> TICK_BITS <= first),
                (next, first) => prop_assert!(false, "next {next:?}, model {first:?}"),
            }
        }
    }
}

#[test]
fn sleeping_until_next_expires_every_timer() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    let deadline = Instant::from_millis(86_400_000);
    wheel.set(3, deadline);
    let mut naps = 0;
    let fired = loop {
        let next = wheel.next_expiry().unwrap();
        naps += 1;
        if let Some(token) = wheel.pop(next) {
            break (token, next);
        }
    };
    assert_eq!(fired.0, 3);
    assert!(fired.1 >= deadline && fired.1 - deadline < core::time::Duration::from_nanos(1 << 16));
    assert!(naps <= LEVELS, "{naps} naps");
}

#[test]
fn timer_in_the_past_expires_at_once() {
    let mut wheel = TimerWheel::new(Instant::from_millis(10));
    wheel.set(0, Instant::from_millis(3));
    assert_eq!(wheel.next_expiry(), Some(Instant::from_nanos(10_000_000 >> 16 << 16)));
    assert_eq!(wheel.pop(Instant::from_millis(10)), Some(0));
    assert_eq!(wheel.pop(Instant::from_millis(10)), None);
}

#[test]
fn timer_at_end_of_time_does_not_expire() {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    wheel.set(0, Instant::from_nanos(u64::MAX));
    for now in [Instant::ZERO, Instant::from_millis(10), Instant::from_millis(86_400_000)] {
        assert_eq!(wheel.pop(now), None);
    }
    assert_eq!(wheel.len(), 1);
    assert!(wheel.deadline(0).is_some_and(|at| at > Instant::from_nanos(u64::MAX >> 1)));
}
