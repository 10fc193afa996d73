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

/// Pops all timers that have expired, in as many rounds as the moves take.
fn pop_all(wheel: &mut TimerWheel, now: Instant) -> Vec<u32> {
    let mut fired = Vec::new();
    loop {
        fired.extend(core::iter::from_fn(|| wheel.pop(now)));
        if wheel.next_expiry().is_none_or(|next| next > now) {
            return fired;
        }
    }
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
                    for token in pop_all(&mut wheel, Instant::from_nanos(now)) {
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

/// Returns a wheel in which timers 0 to `timers` share a slot of a higher level, and the begin of that slot. Timer `n`
/// expires `n` ticks later.
fn wheel_with_full_slot(timers: u32) -> (TimerWheel, u64) {
    let mut wheel = TimerWheel::new(Instant::ZERO);
    let begin = 1 << (3 * SLOT_BITS);
    for token in 0..timers {
        wheel.set(token, Instant::from_nanos((begin + u64::from(token)) << TICK_BITS));
    }
    (wheel, begin)
}

/// Returns the number of timers that are not in the slot from which they are moved.
fn moved(wheel: &TimerWheel) -> usize {
    let left = |node: &&Node| Some(node.place) == wheel.moving;
    wheel.nodes.len() - wheel.nodes.iter().filter(left).count()
}

#[test]
fn one_call_moves_a_bounded_number_of_timers() {
    let timers = 10 * MAX_MOVES;
    let (mut wheel, begin) = wheel_with_full_slot(timers);
    let at = |tick: u64| Instant::from_nanos(tick << TICK_BITS);
    let mut fired = Vec::new();
    let mut rounds = 0;
    while wheel.next_expiry().is_some_and(|next| next <= at(begin)) {
        let before = moved(&wheel) * usize::from(wheel.moving.is_some());
        fired.extend(wheel.pop(at(begin)));
        if wheel.moving.is_some() {
            assert!(moved(&wheel) - before <= MAX_MOVES as usize + 1);
        }
        rounds += 1;
    }
    assert_eq!(fired, [0]);
    assert!(rounds >= 10, "{rounds}");
    // Each fires at its tick.
    for tick in 1..u64::from(timers) {
        assert_eq!(pop_all(&mut wheel, at(begin + tick)), [tick as u32]);
    }
    assert!(wheel.is_empty());
}

#[test]
fn timers_are_set_and_cleared_while_a_slot_is_moved() {
    let timers = 4 * MAX_MOVES;
    let (mut wheel, begin) = wheel_with_full_slot(timers);
    let at = |tick: u64| Instant::from_nanos(tick << TICK_BITS);
    assert_eq!(wheel.pop(at(begin)), None, "the first of many rounds");
    let mut expected: BTreeSet<u32> = (0..timers).collect();
    for token in (0..timers).step_by(3) {
        wheel.clear(token);
        expected.remove(&token);
    }
    for token in (0..timers).step_by(7) {
        wheel.set(token, at(begin + 2));
        expected.insert(token);
    }
    let fired = pop_all(&mut wheel, at(begin + u64::from(timers)));
    assert_eq!(fired.len(), expected.len());
    assert_eq!(fired.into_iter().collect::<BTreeSet<u32>>(), expected);
    assert!(wheel.is_empty() && wheel.next_expiry().is_none());
}
