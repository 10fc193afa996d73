//! All cases against one device. Cases run concurrently; a case whose verdict is uncertain runs again alone.
//!
//! A verdict never depends on the speed of a host: see [`crate::repetition`] for the rule. A deviation that the profile
//! calls intermittent is known, whether or not the device has deviated this time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::case::{Action, Case};
use crate::device::{Setup, Timing};
use crate::message::Kind;
use crate::profile::{Deviation, Profile};
use crate::repetition::{self, REPETITION, decide};
use crate::run::{Outcome, Verdict, execute};
use crate::session::{Session, Stop};
use crate::startup;
use crate::value::Arguments;

/// Time limit for all repetitions together. Later cases whose verdict is uncertain are inconclusive.
const REPETITIONS: Duration = Duration::from_secs(120);

/// Result of a case, for reports.
#[derive(Clone, Debug)]
pub struct Report {
    /// The case that was executed.
    pub case: Case,
    /// Last outcome, with the final verdict.
    pub outcome: Outcome,
    /// Known deviation of the profile that explains the failure.
    pub known: Option<Deviation>,
}

impl Report {
    /// Returns the report of a case whose deviation in the profile is `deviation`.
    fn new(case: &Case, outcome: Outcome, deviation: Option<&Deviation>) -> Report {
        let explains = |d: &&Deviation| match outcome.verdict {
            Verdict::Fail(_) => true,
            Verdict::Pass => d.intermittent,
            Verdict::Inconclusive(_) | Verdict::NotApplicable(_) => false,
        };
        let known = deviation.filter(explains).cloned();
        Report { case: case.clone(), outcome, known }
    }

    /// Returns the verdict's word in reports.
    pub fn verdict(&self) -> &'static str {
        if self.known.is_some() { "known" } else { self.outcome.verdict.name() }
    }

    /// Returns true for a failure that the profile does not explain.
    pub fn is_new_failure(&self) -> bool {
        matches!(self.outcome.verdict, Verdict::Fail(_)) && self.known.is_none()
    }
}

/// Checks that the device performs a correct start-up and the exchange of its service.
///
/// # Errors
/// The reason as one sentence.
pub fn control(setup: &Setup) -> Result<(), String> {
    let mut session = Session::new(setup);
    let words: &[&str] = if setup.revision == 0 { &["draft=on"] } else { &[] };
    let arguments = Arguments::parse(words.iter().copied())?;
    let result = startup::start(&mut session, &arguments, &[]);
    session.flush();
    match result {
        Ok(()) => Ok(()),
        Err(Stop::Inconclusive(why) | Stop::NotApplicable(why)) => Err(why),
        Err(Stop::Fail(failure)) => {
            Err(format!("{} instead of {}", failure.received, failure.expected))
        }
    }
}

/// Executes the cases, at most `jobs` at a time. Calls `progress` for each final verdict, in the order of the cases.
pub fn run(
    cases: &[Case],
    setup: &Setup,
    jobs: usize,
    profile: &Profile,
    progress: &mut dyn FnMut(&Report),
) -> Vec<Report> {
    let clock = Clock::default();
    let skipped = cases.iter().map(|case| profile.skips(&case.id).map(Outcome::skipped));
    let results: Mutex<Vec<Option<Outcome>>> = Mutex::new(skipped.collect());
    std::thread::scope(|scope| {
        scope.spawn(|| clock.watch());
        several(cases, setup, jobs, &clock, &results);
        let first = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        let mut reports = vec![];
        let mut repeated = Duration::ZERO;
        for (case, outcome) in cases.iter().zip(first) {
            let outcome = outcome.unwrap_or_else(|| timed(case, setup, &clock));
            let begin = Instant::now();
            let deviation = profile.explanation(&case.id);
            // A failure that the profile explains as intermittent is final: a pass on repetition would not change the
            // report.
            let outcome = match outcome.verdict {
                Verdict::Fail(_) if deviation.is_some_and(|d| d.intermittent) => outcome,
                _ => decide(
                    outcome,
                    repeated < REPETITIONS,
                    &mut || setup.with_scale(REPETITION, |setup| timed(case, setup, &clock)),
                    &mut || control(setup),
                ),
            };
            repeated += begin.elapsed();
            let report = Report::new(case, outcome, deviation);
            progress(&report);
            reports.push(report);
        }
        clock.stop();
        reports
    })
}

/// Executes the cases that can share the device, `jobs` at a time. Omits cases that have a result, and leaves cases that
/// must run alone to the caller.
fn several(
    cases: &[Case],
    setup: &Setup,
    jobs: usize,
    clock: &Clock,
    results: &Mutex<Vec<Option<Outcome>>>,
) {
    let next = AtomicUsize::new(0);
    let next = &next;
    std::thread::scope(|scope| {
        for lane in 0..jobs.max(1) as u64 {
            scope.spawn(move || {
                let setup = Setup { lane: (lane, jobs.max(1) as u64), ..setup.clone() };
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { break };
                    let skipped =
                        results.lock().unwrap_or_else(PoisonError::into_inner)[at].is_some();
                    if !skipped && !is_alone(case) {
                        let outcome = timed(case, &setup, clock);
                        results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(outcome);
                    }
                }
            });
        }
    });
}

/// Returns true for a case that must not run beside others: it needs the exact bounds of the device's memory, or lowers
/// the path MTU to the tester's address, which the device then applies to all connections.
fn is_alone(case: &Case) -> bool {
    case.needs.iter().any(|n| n.capability == "exact")
        || case.steps.iter().any(|step| matches!(step.action, Action::Path(_)))
}

/// Executes a case. The verdict is inconclusive if it depends on time and this host's scheduling delay was too long.
fn timed(case: &Case, setup: &Setup, clock: &Clock) -> Outcome {
    let begin = Instant::now();
    let mut outcome = execute(case, setup);
    let lateness = clock.worst_since(begin);
    let silent = case.steps.iter().any(|s| match &s.action {
        Action::Expect(alternatives) => alternatives.iter().any(|e| e.kind == Kind::Quiet),
        _ => false,
    });
    let scale = setup.timing.scale;
    outcome.verdict = repetition::with_lateness(outcome.verdict, silent, lateness, scale);
    outcome
}

/// Measures the scheduling delay of threads of this host.
#[derive(Debug, Default)]
struct Clock {
    stopped: AtomicBool,
    /// Delays of more than 20 ms, with the time at which each was measured.
    late: Mutex<Vec<(Instant, Duration)>>,
}

impl Clock {
    const TICK: Duration = Duration::from_millis(10);
    const MAX_ENTRIES: usize = 10_000;

    fn watch(&self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let begin = Instant::now();
            std::thread::sleep(Clock::TICK);
            let lateness = begin.elapsed().saturating_sub(Clock::TICK);
            let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
            if lateness > Duration::from_millis(20) && late.len() < Clock::MAX_ENTRIES {
                late.push((Instant::now(), lateness));
            }
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn worst_since(&self, begin: Instant) -> Duration {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.iter()
            .filter(|(at, _)| *at >= begin)
            .map(|&(_, lateness)| lateness)
            .max()
            .unwrap_or_default()
    }
}

/// Returns the default times for a device that is `factor` times slower than usual.
pub fn timing(factor: f64) -> Timing {
    let default = Timing::default();
    Timing {
        connect: default.connect.mul_f64(factor),
        step: default.step.mul_f64(factor),
        restart: default.restart.mul_f64(factor),
        scale: 1,
        case: default.case.mul_f64(factor),
        settle: default.settle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::parse;
    use crate::session::Failure;

    /// A path MTU learnt in `mpa/4.5-11` would change the boundaries of retransmissions in `mpa/A.1-1`.
    #[test]
    fn cases_that_change_the_device_run_alone() {
        let cases = crate::catalogue::Catalogue::built_in().expect("good files").cases;
        let alone = |id: &str| is_alone(cases.iter().find(|c| c.id == id).expect("a case"));
        assert!(alone("mpa/4.5-11"));
        assert!(!alone("mpa/A.1-1"));
        let exact = |c: &Case| c.needs.iter().any(|n| n.capability == "exact");
        assert!(cases.iter().filter(|c| exact(c)).all(is_alone));
    }

    #[test]
    fn intermittent_deviation_is_known_after_a_pass_too() {
        let text = "case a/1 MUST\nsection none\ntext none\nopen\nexpect close\n";
        let case = parse("a/x", text).expect("a case").cases.remove(0);
        let failure =
            Failure { expected: "a".into(), received: "b".into(), bytes: vec![], timed_out: false };
        let deviation = |intermittent| Deviation {
            case: "a/1".into(),
            because: "b".into(),
            source: "c".into(),
            skip: false,
            intermittent,
        };
        let word = |verdict: Verdict, deviation: Option<Deviation>| {
            let outcome = Outcome { verdict, ..Outcome::skipped("") };
            let report = Report::new(&case, outcome, deviation.as_ref());
            (report.verdict(), report.is_new_failure())
        };
        let (sometimes, always) = (Some(deviation(true)), Some(deviation(false)));
        assert_eq!(word(Verdict::Pass, sometimes.clone()), ("known", false));
        assert_eq!(word(Verdict::Fail(failure.clone()), sometimes.clone()), ("known", false));
        assert_eq!(word(Verdict::Inconclusive("".into()), sometimes), ("inconclusive", false));
        assert_eq!(word(Verdict::Pass, always.clone()), ("pass", false));
        assert_eq!(word(Verdict::Fail(failure.clone()), always), ("known", false));
        assert_eq!(word(Verdict::Fail(failure), None), ("fail", true));
    }
}
