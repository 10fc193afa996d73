//! Random scenarios by seed. `SIM_SEEDS=FROM..TO` plays others, for long runs and to repeat one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::scenario::Scenario;

fn seeds() -> core::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_SEEDS") else { return 0..300 };
    let (from, to) = text.split_once("..").expect("SIM_SEEDS=FROM..TO");
    from.parse().expect("FROM")..to.parse().expect("TO")
}

#[test]
fn nothing_is_wrong_stuck_or_left_over() {
    let mut failures = Vec::new();
    for seed in seeds() {
        let scenario = Scenario::random(seed);
        let result = catch_unwind(AssertUnwindSafe(|| scenario.play()));
        let failure = match result {
            Ok(Ok(())) => continue,
            Ok(Err(what)) => what,
            Err(_) => "panicked".into(),
        };
        failures.push(format!("seed {seed}: {:?}: {failure}", scenario.twist));
    }
    assert!(failures.is_empty(), "{} failed\n{}", failures.len(), failures.join("\n"));
}
