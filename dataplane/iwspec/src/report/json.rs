//! The report in JSON: one object per case, and the requirements without a case.

use serde::Serialize;

use super::{Subject, Summary, reason};
use crate::case::{Level, Unseen};
use crate::profile::Deviation;
use crate::run::Verdict;
use crate::session::Failure;
use crate::suite::Report;

#[derive(Serialize)]
struct Document<'a> {
    subject: &'a Subject,
    summary: Summary,
    cases: Vec<Entry<'a>>,
    unseen: &'a [Unseen],
}

#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    group: &'a str,
    level: Level,
    section: &'a str,
    text: &'a str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<&'a Deviation>,
    seconds: f64,
}

/// Returns the report as JSON text.
///
/// # Errors
/// The document cannot be serialised.
pub fn document(
    subject: &Subject,
    reports: &[Report],
    unseen: &[Unseen],
) -> Result<String, String> {
    let document = Document {
        subject,
        summary: Summary::of(reports),
        cases: reports.iter().map(entry).collect(),
        unseen,
    };
    serde_json::to_string_pretty(&document).map_err(|e| e.to_string())
}

fn entry(r: &Report) -> Entry<'_> {
    let Report { case, outcome, known } = r;
    Entry {
        id: &case.id,
        group: &case.group,
        level: case.level,
        section: &case.section,
        text: &case.text,
        verdict: r.verdict(),
        reason: reason(r),
        step: outcome.step.as_deref(),
        failure: if let Verdict::Fail(f) = &outcome.verdict { Some(f) } else { None },
        known: known.as_ref(),
        seconds: outcome.time.as_secs_f64(),
    }
}
