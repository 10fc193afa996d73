//! Comparison of the anti-replay window with a naive model, and inference of the high half of ESN.
use std::collections::HashSet;
use std::num::NonZeroU16;

use ipsec::replay::{ReplayError, Window};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn window(size: u16) -> Window {
    Window::new(NonZeroU16::new(size).expect("not zero")).expect("in range")
}

#[test]
fn sizes_outside_the_range_are_refused() {
    for (size, good) in
        [(1, false), (63, false), (64, true), (100, true), (4096, true), (4097, false)]
    {
        assert_eq!(Window::new(NonZeroU16::new(size).expect("not zero")).is_some(), good, "{size}");
    }
}

#[test]
fn replay_window_matches_naive_model() {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[17; 32]);
    let mut runner =
        TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    let steps = proptest::collection::vec((-300i64..400, 0u8..20), 1..400);
    runner
        .run(&(64u16..300, 0u64..1 << 40, steps), |(size, start, steps)| {
            let mut window = window(size);
            let (mut seen, mut top) = (HashSet::new(), 0u64);
            let mut at = start;
            for (step, jump) in steps {
                let far = if jump == 0 { 5000 } else { 0 };
                at = at.saturating_add_signed(step + far);
                let want = if at == 0 {
                    Err(ReplayError::Impossible)
                } else if at <= top && top - at >= u64::from(size) {
                    Err(ReplayError::TooOld)
                } else if seen.contains(&at) {
                    Err(ReplayError::Duplicate)
                } else {
                    Ok(())
                };
                let before = window.clone();
                prop_assert_eq!(window.check(at), want);
                prop_assert_eq!(&window, &before);
                if want.is_ok() {
                    window.update(at);
                    seen.insert(at);
                    top = top.max(at);
                }
                prop_assert_eq!(window.top(), top);
            }
            Ok(())
        })
        .expect("equal to the model");
}

// RFC 4303 appendix A2.2: sequence numbers in the window, or at most 2^32 - size above its top, are inferred exactly.
#[test]
fn esn_is_inferred_across_the_wrap() {
    for size in [64u16, 100, 4096] {
        for top in [
            0u64,
            1,
            63,
            64,
            5000,
            (1 << 32) - 1,
            1 << 32,
            (1 << 32) + 10,
            (3 << 32) - 5,
            (3 << 32) + 4096,
        ] {
            let mut window = window(size);
            if top > 0 {
                window.update(top);
            }
            let low = top.saturating_sub(u64::from(size) - 1);
            let ahead = [top + 1, top + 64, top + (1 << 31), top + (1 << 32) - u64::from(size)];
            for seq in (low..=top).chain(ahead) {
                assert_eq!(window.extend(seq as u32, true), Ok(seq), "size {size}, top {top}");
            }
        }
    }
}

#[test]
fn resumed_window_accepts_only_new_numbers() {
    for top in [1u64, 63, 64, 1000, 1 << 33] {
        let mut window = window(64);
        window.resume(top);
        assert_eq!(window.check(top), Err(ReplayError::Duplicate));
        for seq in top + 1..top + 300 {
            assert_eq!(window.check(seq), Ok(()), "{seq} after {top}");
        }
        window.update(top + 2);
        assert_eq!(window.check(top + 1), Ok(()));
        assert_eq!(window.check(top), Err(ReplayError::Duplicate));
    }
}

/// A resized window refuses each number that the original refuses. The resized window accepts each number that the
/// original accepts, unless the number is below the resized window.
#[test]
fn resized_window_accepts_numbers_in_both_ranges() {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[18; 32]);
    let mut runner =
        TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    let numbers = proptest::collection::vec(1u64..600, 0..200);
    runner
        .run(&(64u16..300, 64u16..300, 0u64..1 << 40, numbers), |(size, other, start, numbers)| {
            let mut before = window(size);
            for number in numbers {
                let number = start + number;
                if before.check(number).is_ok() {
                    before.update(number);
                }
            }
            let after =
                before.resized(NonZeroU16::new(other).expect("not zero")).expect("in range");
            prop_assert_eq!((after.top(), after.size()), (before.top(), other));
            for number in start..start + 1000 {
                let room = number > before.top() || before.top() - number < other.into();
                let taken = before.check(number).is_ok() && room;
                prop_assert_eq!(after.check(number).is_ok(), taken, "{}", number);
            }
            Ok(())
        })
        .expect("the windows agree");
}
