//! Verdict of an attack. The tests show that each rule can fail.

use serde::Serialize;

use crate::attacker_port::Traffic;
use crate::good_peers::{PeerWork, STALL_TIMEOUT_MS};
use crate::sample::CounterMap;

/// Maximum growth of the target's memory during an attack, bytes.
pub(crate) const MAX_MEMORY_GROWTH: i64 = 16 << 20;
/// Maximum log output of the target during an attack, bytes.
pub(crate) const MAX_LOG_BYTES: u64 = 64 << 10;
/// Bytes of answers allowed regardless of the bytes sent.
pub(crate) const FREE_ANSWER_BYTES: u64 = 16 << 10;

/// Expected outcome of an attack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectation {
    /// Counters that account for the attack's frames. A name that ends with `*` is a prefix.
    pub(crate) explained_by: &'static [&'static str],
    /// Minimum share of attempts that `explained_by` and lost frames must account for, 0 to 1.
    pub(crate) min_share: f64,
    /// Counters, each with its maximum growth.
    pub(crate) max_growth: &'static [(&'static str, u64)],
    /// Maximum bytes of answers per byte sent, above [`FREE_ANSWER_BYTES`].
    pub(crate) amplification: f64,
}

/// Observations of one attack.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Observations {
    /// Duration, seconds.
    pub(crate) seconds: f64,
    /// Attempts: raw frames sent, or streams opened and messages sent if the attack opens streams.
    pub(crate) attempts: u64,
    /// Raw frames sent by the attacker.
    pub(crate) sent: Traffic,
    /// The target's frames to the attacker.
    pub(crate) answers: Traffic,
    /// Growth of the target's counters, by name.
    pub(crate) counted: CounterMap,
    /// Received frames without a counted outcome; 0 unless there is a defect.
    pub(crate) unaccounted: i64,
    /// Frames of any sender lost by the kernel on the link to the target.
    pub(crate) lost: u64,
    /// The target's memory before the attack, bytes.
    pub(crate) memory_before: u64,
    /// The target's memory after the attack, bytes.
    pub(crate) memory_after: u64,
    /// Growth of the target's log, bytes.
    pub(crate) log: u64,
    /// Work of the good peers during the attack.
    pub(crate) good: Vec<PeerWork>,
    /// Bounded gauges: name, value after the attack, bound.
    pub(crate) bounds: Vec<(&'static str, u64, u64)>,
    /// Names of guard regions whose contents changed.
    pub(crate) changed: Vec<String>,
    /// Violations found by the attack itself: a wrong error code, or a missing error.
    pub(crate) findings: Vec<String>,
}

impl Observations {
    /// Returns the sum of the counters in `names`. A name that ends with `*` is a prefix.
    pub(crate) fn explained_count(&self, names: &[&str]) -> u64 {
        let is_one = |counter: &str| {
            names.iter().any(|name| match name.strip_suffix('*') {
                Some(begin) => counter.starts_with(begin),
                None => counter == *name,
            })
        };
        self.counted.iter().filter(|(name, _)| is_one(name)).map(|(_, n)| n).sum()
    }
}

/// Returns the violations of `rule` and of the general rules; empty if the attack passes.
pub(crate) fn judge(rule: &Expectation, seen: &Observations) -> Vec<String> {
    let mut wrong = seen.findings.clone();
    for done in &seen.good {
        judge_good_peer(done, &mut wrong);
    }
    for region in &seen.changed {
        wrong.push(format!("the region {region} was changed"));
    }
    let explained = seen.explained_count(rule.explained_by);
    let (share, lost) = (rule.min_share * seen.attempts as f64, seen.lost.min(seen.sent.frames));
    if seen.attempts == 0 {
        wrong.push("nothing was sent".into());
    } else if 2 * lost > seen.attempts {
        wrong.push(format!(
            "{lost} of {} frames did not arrive: the attack proves nothing",
            seen.attempts
        ));
    } else if ((explained + lost) as f64) < share {
        wrong.push(format!(
            "only {explained} of {} attempts are explained by {}",
            seen.attempts,
            rule.explained_by.join(", ")
        ));
    }
    for (name, most) in rule.max_growth {
        if let Some(n) = seen.counted.get(*name).filter(|n| *n > most) {
            wrong.push(format!("{name} grew by {n}"));
        }
    }
    if seen.unaccounted != 0 {
        wrong.push(format!("{} frames have no counted outcome", seen.unaccounted));
    }
    let growth = seen.memory_after as i64 - seen.memory_before as i64;
    if growth > MAX_MEMORY_GROWTH {
        wrong.push(format!("memory grew by {} KiB", growth >> 10));
    }
    if seen.log > MAX_LOG_BYTES {
        wrong.push(format!("{} KiB were logged", seen.log >> 10));
    }
    let most = FREE_ANSWER_BYTES as f64 + rule.amplification * seen.sent.bytes as f64;
    if seen.answers.bytes as f64 > most {
        wrong.push(format!("{} bytes of answers to {} bytes", seen.answers.bytes, seen.sent.bytes));
    }
    for (name, most, bound) in &seen.bounds {
        if most > bound {
            wrong.push(format!("{name} was {most}, its bound is {bound}"));
        }
    }
    wrong
}

fn judge_good_peer(done: &PeerWork, wrong: &mut Vec<String>) {
    let name = done.name;
    wrong.extend(done.failures.iter().map(|failure| format!("good peer {name}: {failure}")));
    if done.longest_ms > STALL_TIMEOUT_MS {
        wrong.push(format!("good peer {name} stalled for {} ms", done.longest_ms));
    }
    if done.bytes == 0 {
        wrong.push(format!("good peer {name} transferred nothing"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Expectation = Expectation {
        explained_by: &["drop:tcp_*", "cookies_sent"],
        min_share: 0.9,
        max_growth: &[("path_mtu_updates", 1)],
        amplification: 1.0,
    };

    fn clean_observations() -> Observations {
        let counted = [("drop:tcp_blind_reset", 60), ("cookies_sent", 35), ("segments", 1000)];
        Observations {
            seconds: 1.0,
            attempts: 100,
            sent: Traffic { frames: 100, bytes: 6000 },
            answers: Traffic { frames: 10, bytes: 600 },
            counted: counted.iter().map(|&(name, n)| (name.to_owned(), n)).collect(),
            memory_before: 100 << 20,
            memory_after: 101 << 20,
            good: vec![PeerWork {
                name: "tcp",
                bytes: 500_000,
                transfers: 2,
                longest_ms: 400,
                failures: Vec::new(),
            }],
            bounds: vec![("held_bytes", 10, 20)],
            ..Observations::default()
        }
    }

    /// Returns the only violation after `spoil` changes clean observations.
    fn only_violation(spoil: impl FnOnce(&mut Observations)) -> String {
        let mut seen = clean_observations();
        spoil(&mut seen);
        let mut wrong = judge(&RULE, &seen);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        wrong.remove(0)
    }

    #[test]
    fn clean_run_has_no_findings() {
        assert_eq!(judge(&RULE, &clean_observations()), Vec::<String>::new());
    }

    #[test]
    fn failed_or_stalled_good_peer_is_reported() {
        let failure =
            only_violation(|seen| seen.good[0].failures.push("the region tcp differs".into()));
        assert!(failure.contains("differs"), "{failure}");
        assert!(
            only_violation(|seen| seen.good[0].longest_ms = STALL_TIMEOUT_MS + 1)
                .contains("stalled for")
        );
        assert!(only_violation(|seen| seen.good[0].bytes = 0).contains("transferred nothing"));
        // A slow peer that makes progress is not a violation.
        let mut seen = clean_observations();
        (seen.good[0].longest_ms, seen.good[0].bytes) = (STALL_TIMEOUT_MS, 1);
        assert_eq!(judge(&RULE, &seen), Vec::<String>::new());
    }

    #[test]
    fn changed_guard_region_is_reported() {
        assert!(only_violation(|seen| seen.changed.push("nobodys".into())).contains("nobodys"));
    }

    #[test]
    fn attempts_without_counter_are_reported() {
        assert!(only_violation(|seen| seen.attempts = 106).contains("only 95 of 106"));
        assert!(only_violation(|seen| seen.unaccounted = 1).contains("no counted outcome"));
        assert!(only_violation(|seen| seen.unaccounted = -1).contains("no counted outcome"));
        assert!(only_violation(|seen| seen.attempts = 0).contains("nothing was sent"));
        // Lost frames need no counter, up to half of the attempts: above that, the attack proves nothing.
        let mut seen = clean_observations();
        (seen.attempts, seen.lost) = (106, 5);
        assert_eq!(judge(&RULE, &seen), Vec::<String>::new());
        assert!(only_violation(|seen| seen.lost = 51).contains("did not arrive"));
        // A name without `*` matches exactly.
        let mut seen = clean_observations();
        seen.counted.remove("cookies_sent");
        seen.counted.insert("cookies_sent_too".into(), 100);
        assert_eq!(judge(&RULE, &seen).len(), 1);
    }

    #[test]
    fn counter_above_its_bound_is_reported() {
        let moved = only_violation(|seen| {
            seen.counted.insert("path_mtu_updates".into(), 2);
        });
        assert_eq!(moved, "path_mtu_updates grew by 2");
        let mut seen = clean_observations();
        seen.counted.insert("path_mtu_updates".into(), 1);
        assert_eq!(judge(&RULE, &seen), Vec::<String>::new());
    }

    #[test]
    fn memory_growth_log_answers_and_bounds_are_reported() {
        assert!(only_violation(|seen| seen.memory_after += 16 << 20).contains("memory"));
        assert!(only_violation(|seen| seen.log = MAX_LOG_BYTES + 1).contains("logged"));
        assert!(
            only_violation(|seen| seen.answers.bytes = FREE_ANSWER_BYTES + 6001)
                .contains("answers")
        );
        assert!(only_violation(|seen| seen.bounds[0].1 = 21).contains("held_bytes"));
    }

    #[test]
    fn findings_of_the_attack_are_reported() {
        assert_eq!(
            only_violation(|seen| seen.findings.push("no Terminate".into())),
            "no Terminate"
        );
    }
}
