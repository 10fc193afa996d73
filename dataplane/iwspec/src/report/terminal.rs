//! The report for a terminal.

use super::{Summary, reason};
use crate::run::Verdict;
use crate::suite::Report;

/// Returns the lines of one case. Empty for a pass or an inapplicable case, unless `verbose`.
pub fn case(report: &Report, verbose: bool) -> String {
    let verdict = &report.outcome.verdict;
    let plain = matches!(verdict, Verdict::Pass | Verdict::NotApplicable(_));
    if plain && report.known.is_none() && !verbose {
        return String::new();
    }
    let word = report.verdict();
    let case = &report.case;
    let mut out = format!("{word:<15}{:<22} {:<6} {}\n", case.id, case.level.name(), case.text);
    match verdict {
        Verdict::Pass if report.known.is_none() => {}
        Verdict::Fail(f) => {
            out += &format!("    section   {}\n", case.section);
            if let Some(step) = &report.outcome.step {
                out += &format!("    at        {step}\n");
            }
            out += &format!("    expected  {}\n    received  {}\n", f.expected, f.received);
        }
        Verdict::Pass | Verdict::Inconclusive(_) | Verdict::NotApplicable(_) => {
            out += &format!("    because   {}\n", reason(report))
        }
    }
    if let Some(known) = &report.known {
        out += &format!("    known     {} ({})\n", known.because, known.source);
    }
    out
}

/// Returns the report's last line: the number of each verdict.
pub fn summary(s: &Summary) -> String {
    format!(
        "{} passed, {} failed, {} known deviations, {} inconclusive, {} not applicable\n",
        s.pass, s.fail, s.known, s.inconclusive, s.not_applicable
    )
}
