//! Random scenarios, one per seed: 400 by default, 10,000 in `scripts/test --long`.
//!
//! `SIM_SEEDS=FROM..TO cargo test -p sim --test scenarios` plays other seeds, or a single seed to repeat a
//! failure.
#![allow(clippy::print_stdout, reason = "long runs say how many and how long")]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;

use sim::end::Setup;
use sim::scenario::{Scenario, Tally};

const DEFAULT: Range<u64> = 0..400;
const THREADS: usize = 2;
/// Names of [`Tally`]'s counters that only ESP increments.
const ESP: [&str; 3] = ["refused by ESP", "replayed", "rekeyed"];

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return DEFAULT };
    let (from, to) = text.split_once("..").expect("SIM_SEEDS=FROM..TO");
    from.parse().expect("FROM")..to.parse().expect("TO")
}

fn play<S: Setup>(scenario: Scenario<S>) -> Result<Tally, String> {
    let seed = scenario.seed;
    let result = catch_unwind(AssertUnwindSafe(|| scenario.play()));
    result.unwrap_or_else(|_| Err("panicked".into())).map_err(|what| {
        format!(
            "seed {seed}: disturbances {:?}: {what}\n\
             again: SIM_SEEDS={seed}..{} cargo test -p sim --test scenarios",
            scenario.disturbances,
            seed + 1
        )
    })
}

#[test]
fn random_tcp_scenarios_hold_all_invariants() {
    play_all("TCP", |seed| play(Scenario::random(seed)), &ESP);
}

#[test]
fn random_sctp_scenarios_hold_all_invariants() {
    // SCTP paths have no middlebox and no hidden damage ("damaged unseen"), and SCTP does not use ECN.
    let never = [&["damaged unseen", "marked", "split", "merged"], &ESP[..]].concat();
    play_all("SCTP", |seed| play(Scenario::random_sctp(seed)), &never);
}

// These counters stay zero: ESP detects damage on the link first, and paths with ESP have no middlebox.
#[test]
fn random_tcp_scenarios_over_esp_hold_all_invariants() {
    let never = ["corrupted", "split", "merged"];
    play_all("TCP under ESP", |seed| play(Scenario::random_over_esp(seed)), &never);
}

#[test]
fn random_sctp_scenarios_over_esp_hold_all_invariants() {
    let never = ["damaged unseen", "corrupted", "marked", "split", "merged"];
    play_all("SCTP under ESP", |seed| play(Scenario::random_sctp_over_esp(seed)), &never);
}

/// Plays all scenarios. `never`: names of the counters that stay zero; all others must increase in some scenario. The
/// names are those of [`Tally::zero_counters`].
fn play_all(name: &str, play: fn(u64) -> Result<Tally, String>, never: &[&str]) {
    let seeds = seeds();
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let outcome = Mutex::new((Tally::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < seeds.end
                {
                    let result = play(seed);
                    let mut outcome = outcome.lock().expect("no thread panics");
                    match result {
                        Ok(tally) => outcome.0 += tally,
                        Err(failure) => outcome.1.push(failure),
                    }
                }
            });
        }
    });
    let (tally, failures) = outcome.into_inner().expect("no thread panics");
    println!("{name}, scenarios {seeds:?} in {:.1} s: {tally}", began.elapsed().as_secs_f64());
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n"));
    let known = Tally::default().zero_counters();
    assert!(never.iter().all(|name| known.contains(name)), "unknown name: {never:?}");
    if seeds.end - seeds.start >= 300 {
        // Each kind of fault must have occurred in some scenario.
        let missing: Vec<_> =
            tally.zero_counters().into_iter().filter(|what| !never.contains(what)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}
