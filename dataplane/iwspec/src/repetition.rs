//! The rule by which a case without a certain verdict is repeated. Pure functions: the caller executes the case.
//!
//! - A pass at the first execution is final.
//! - A failure is final after a second failure. A time-out also requires that the device answers a correct start-up.
//! - A pass after a time-out or after an inconclusive execution is final. A pass after another failure is inconclusive,
//!   because two executions differ.
//! - All other executions are repeated, at most [`MAX_REPETITIONS`] times. The case is then inconclusive.
//! - An execution during which this host was late is inconclusive.

use std::time::Duration;

use crate::run::{Outcome, Verdict};
use crate::session::Failure;

/// Factor by which a repeated case's time limits and pauses are longer.
pub const REPETITION: u32 = 3;
/// Maximum number of repetitions of a case.
pub const MAX_REPETITIONS: usize = 3;
/// Scheduling delay of this host above which a time-out is inconclusive.
const MAX_LATENESS: Duration = Duration::from_millis(250);
/// Scheduling delay of this host above which silence of the device is inconclusive.
const MAX_LATENESS_OF_SILENCE: Duration = Duration::from_millis(100);
/// Scheduling delay of this host above which any failure is inconclusive, because a time-out of the device may have
/// expired. The time-outs of devices do not become longer in a repetition.
const MAX_LATENESS_OF_DEVICE: Duration = Duration::from_secs(1);

/// Decides a case after its first execution. `repeat` executes it again, alone and with longer times. `control` returns
/// the reason for which the device does not answer a correct start-up. Without `time_left` nothing is executed.
pub fn decide(
    first: Outcome,
    time_left: bool,
    repeat: &mut dyn FnMut() -> Outcome,
    control: &mut dyn FnMut() -> Result<(), String>,
) -> Outcome {
    let repetitions = if time_left { MAX_REPETITIONS } else { 0 };
    let mut failures: Vec<Failure> = vec![];
    let mut last = first;
    for execution in 0.. {
        match &last.verdict {
            Verdict::NotApplicable(_) => return last,
            Verdict::Pass => {
                if let Some(failure) = failures.iter().find(|f| !f.timed_out) {
                    last.verdict = inconclusive("two executions differ", failure);
                }
                return last;
            }
            Verdict::Fail(failure) => {
                failures.push(failure.clone());
                if failures.len() == 2 {
                    break;
                }
            }
            Verdict::Inconclusive(_) => {}
        }
        if execution == repetitions {
            break;
        }
        last = repeat();
    }
    match (&last.verdict, &failures[..]) {
        (Verdict::Fail(last_failure), [_, _]) => {
            let answer = if last_failure.timed_out { control() } else { Ok(()) };
            if let Err(why) = answer {
                last.verdict = Verdict::Inconclusive(format!(
                    "the device does not answer a correct start-up either: {why}"
                ));
            }
        }
        (Verdict::Fail(_), [failure]) if !time_left => {
            last.verdict = inconclusive("the time for repetitions is used up", failure);
        }
        (Verdict::Inconclusive(why), [failure]) => last.verdict = inconclusive(why, failure),
        (Verdict::Fail(_), [failure]) => {
            last.verdict = inconclusive("the other executions have no verdict", failure);
        }
        _ => {}
    }
    last
}

/// Returns the verdict on a case that failed in one execution and has no certain verdict.
fn inconclusive(why: &str, failure: &Failure) -> Verdict {
    let Failure { received, expected, .. } = failure;
    Verdict::Inconclusive(format!("{why}; one execution received {received} instead of {expected}"))
}

/// Returns the verdict on an execution during which this host was late by `lateness`. `silent`: the case requires silence
/// of the device. `scale`: factor on the times of the execution.
pub fn with_lateness(verdict: Verdict, silent: bool, lateness: Duration, scale: u32) -> Verdict {
    // A repetition waits longer, so that it permits a longer delay.
    let limit = match &verdict {
        Verdict::Fail(failure) if failure.timed_out => MAX_LATENESS * scale,
        Verdict::Fail(_) => MAX_LATENESS_OF_DEVICE,
        Verdict::Pass if silent => MAX_LATENESS_OF_SILENCE * scale,
        Verdict::Pass | Verdict::Inconclusive(_) | Verdict::NotApplicable(_) => return verdict,
    };
    if lateness <= limit {
        return verdict;
    }
    Verdict::Inconclusive(format!("this host is busy: it was {} ms late", lateness.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(received: &str, timed_out: bool) -> Verdict {
        let (expected, received) = ("fin".into(), received.into());
        Verdict::Fail(Failure { expected, received, bytes: vec![], timed_out })
    }

    fn wrong() -> Verdict {
        failure("reset", false)
    }

    fn time_out() -> Verdict {
        failure("nothing", true)
    }

    fn no_verdict() -> Verdict {
        Verdict::Inconclusive("no connection".into())
    }

    /// Decides a case whose executions have these verdicts, and of which none more may be executed. Returns the verdict,
    /// and the number of controls.
    fn decided(
        executions: &[Verdict],
        time_left: bool,
        control: Result<(), &str>,
    ) -> (Verdict, usize) {
        let outcome =
            |verdict: &Verdict| Outcome { verdict: verdict.clone(), ..Outcome::skipped("") };
        let mut rest = executions[1..].iter();
        let mut controls = 0;
        let outcome = decide(
            outcome(&executions[0]),
            time_left,
            &mut || outcome(rest.next().expect("an execution of the script")),
            &mut || {
                controls += 1;
                control.map_err(Into::into)
            },
        );
        assert_eq!(rest.len(), 0, "all executions of the script are needed: {executions:?}");
        (outcome.verdict, controls)
    }

    #[track_caller]
    fn assert_decided(executions: &[Verdict], expected: &Verdict) {
        let (verdict, controls) = decided(executions, true, Ok(()));
        assert_eq!(&verdict, expected);
        let controlled = matches!(&verdict, Verdict::Fail(f) if f.timed_out);
        assert_eq!(controls, usize::from(controlled), "only a final time-out needs a control");
    }

    #[track_caller]
    fn assert_inconclusive(executions: &[Verdict], reason: &str) {
        assert_decided(executions, &Verdict::Inconclusive(reason.into()));
    }

    #[test]
    fn first_pass_and_inapplicable_case_are_final() {
        let inapplicable = Verdict::NotApplicable("no memory".into());
        assert_decided(&[Verdict::Pass], &Verdict::Pass);
        assert_decided(std::slice::from_ref(&inapplicable), &inapplicable);
        assert_decided(&[no_verdict(), inapplicable.clone()], &inapplicable);
    }

    #[test]
    fn pass_after_executions_without_verdict_is_final() {
        for repetitions in 1..=MAX_REPETITIONS {
            let mut executions = vec![no_verdict(); repetitions];
            executions.push(Verdict::Pass);
            assert_decided(&executions, &Verdict::Pass);
        }
    }

    #[test]
    fn case_without_verdict_is_inconclusive_after_all_repetitions() {
        assert_decided(&vec![no_verdict(); 1 + MAX_REPETITIONS], &no_verdict());
    }

    #[test]
    fn second_failure_is_final() {
        assert_decided(&[wrong(), wrong()], &wrong());
        assert_decided(&[wrong(), failure("data", false)], &failure("data", false));
        assert_decided(&[no_verdict(), wrong(), wrong()], &wrong());
        assert_decided(&[wrong(), no_verdict(), no_verdict(), wrong()], &wrong());
        assert_decided(&[time_out(), wrong()], &wrong());
    }

    #[test]
    fn only_failure_is_inconclusive() {
        let seen = "one execution received reset instead of fin";
        let reason = format!("no connection; {seen}");
        assert_inconclusive(&[wrong(), no_verdict(), no_verdict(), no_verdict()], &reason);
        assert_inconclusive(&[no_verdict(), wrong(), no_verdict(), no_verdict()], &reason);
        let reason = format!("the other executions have no verdict; {seen}");
        assert_inconclusive(&[no_verdict(), no_verdict(), no_verdict(), wrong()], &reason);
    }

    #[test]
    fn failure_and_pass_are_inconclusive_unless_the_failure_is_a_time_out() {
        let reason = "two executions differ; one execution received reset instead of fin";
        assert_inconclusive(&[wrong(), Verdict::Pass], reason);
        assert_inconclusive(&[no_verdict(), wrong(), Verdict::Pass], reason);
        assert_inconclusive(&[wrong(), no_verdict(), Verdict::Pass], reason);
        assert_decided(&[time_out(), Verdict::Pass], &Verdict::Pass);
        assert_decided(&[no_verdict(), time_out(), Verdict::Pass], &Verdict::Pass);
    }

    #[test]
    fn time_out_is_a_failure_only_if_the_device_answers_a_start_up() {
        assert_decided(&[time_out(), time_out()], &time_out());
        let reason = "the device does not answer a correct start-up either: refused";
        let (verdict, controls) = decided(&[time_out(), time_out()], true, Err("refused"));
        assert_eq!((verdict, controls), (Verdict::Inconclusive(reason.into()), 1));
        // A wrong message is one, whether or not the device answers later.
        assert_eq!(decided(&[time_out(), wrong()], true, Err("refused")), (wrong(), 0));
    }

    #[test]
    fn without_time_for_repetitions_nothing_is_executed() {
        let seen = |received| {
            format!(
                "the time for repetitions is used up; one execution received {received} instead of fin"
            )
        };
        for (first, expected) in [
            (Verdict::Pass, Verdict::Pass),
            (no_verdict(), no_verdict()),
            (wrong(), Verdict::Inconclusive(seen("reset"))),
            (time_out(), Verdict::Inconclusive(seen("nothing"))),
        ] {
            assert_eq!(decided(&[first], false, Ok(())), (expected, 0));
        }
    }

    #[test]
    fn busy_host_makes_an_execution_inconclusive_never_a_failure() {
        let ms = Duration::from_millis;
        let busy =
            |late| Verdict::Inconclusive(format!("this host is busy: it was {late} ms late"));
        for (verdict, silent, limit, grows) in [
            (time_out(), false, 250, true),
            (wrong(), false, 1000, false),
            (Verdict::Pass, true, 100, true),
        ] {
            let longer = if grows { REPETITION } else { 1 };
            for (scale, limit) in [(1, limit), (REPETITION, limit * u64::from(longer))] {
                let at = |late| with_lateness(verdict.clone(), silent, ms(late), scale);
                assert_eq!(at(limit), verdict);
                assert_eq!(at(limit + 1), busy(limit + 1));
            }
        }
        // Verdicts that no delay can have caused.
        for verdict in [Verdict::Pass, no_verdict(), Verdict::NotApplicable("".into())] {
            assert_eq!(with_lateness(verdict.clone(), false, ms(60_000), 1), verdict);
        }
    }

    #[test]
    fn case_of_a_busy_host_is_inconclusive_after_all_repetitions() {
        let busy = |_| with_lateness(time_out(), false, Duration::from_secs(2), REPETITION);
        let executions: Vec<Verdict> = (0..=MAX_REPETITIONS).map(busy).collect();
        assert_inconclusive(&executions, "this host is busy: it was 2000 ms late");
    }
}
