//! The report in JUnit's XML. Known deviations and inapplicable cases are skipped tests. Inconclusive cases are errors.

use quick_junit::{NonSuccessKind, Report as Junit, TestCase, TestCaseStatus, TestSuite};

use super::{Subject, reason};
use crate::run::Verdict;
use crate::suite::Report;

/// Returns the report as XML text.
///
/// # Errors
/// The document cannot be serialised.
pub fn document(subject: &Subject, reports: &[Report]) -> Result<String, String> {
    let mut junit = Junit::new(format!("iwspec {} {}", subject.service, subject.device));
    let mut groups: Vec<&str> = vec![];
    for r in reports {
        if !groups.contains(&r.case.group.as_str()) {
            groups.push(&r.case.group);
        }
    }
    for group in groups {
        let mut suite = TestSuite::new(group);
        for r in reports.iter().filter(|r| r.case.group == group) {
            let mut case = TestCase::new(r.case.id.clone(), status(r));
            case.set_classname(group).set_time(r.outcome.time);
            case.set_system_out(format!("{}\n{}", r.case.section, r.case.text));
            suite.add_test_case(case);
        }
        junit.add_test_suite(suite);
    }
    junit.to_string().map_err(|e| e.to_string())
}

fn status(report: &Report) -> TestCaseStatus {
    let mut status = match &report.outcome.verdict {
        _ if report.known.is_some() => TestCaseStatus::skipped(),
        Verdict::Pass => return TestCaseStatus::success(),
        Verdict::Fail(_) => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::NotApplicable(_) => TestCaseStatus::skipped(),
        Verdict::Inconclusive(_) => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    status.set_message(reason(report));
    status
}
