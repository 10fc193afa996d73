//! The report as one HTML page without external parts.

use minijinja::{Environment, context};
use serde::Serialize;

use super::{Subject, Summary, hex_dump, reason};
use crate::case::Unseen;
use crate::link::{Side, What};
use crate::run::Verdict;
use crate::suite::Report;

/// Maximum number of transcript events shown for a failed case. The last events are shown, because they contain the
/// failure.
const MAX_EVENTS: usize = 60;

#[derive(Serialize)]
struct Row {
    id: String,
    level: &'static str,
    section: String,
    text: String,
    verdict: &'static str,
    class: &'static str,
    reason: String,
    failure: Option<Detail>,
}

#[derive(Serialize)]
struct Detail {
    expected: String,
    received: String,
    step: String,
    bytes: String,
    script: String,
    events: Vec<Line>,
    known: Option<crate::profile::Deviation>,
}

#[derive(Serialize)]
struct Line {
    at: String,
    from: &'static str,
    text: String,
}

#[derive(Serialize)]
struct Section {
    name: String,
    rows: Vec<Row>,
}

/// Returns the report as HTML text.
///
/// # Errors
/// The template fails.
pub fn document(
    subject: &Subject,
    reports: &[Report],
    unseen: &[Unseen],
) -> Result<String, String> {
    let mut sections: Vec<Section> = vec![];
    for r in reports {
        // Groups the requirements by specification.
        let name = r.case.section.split('§').next().unwrap_or("").trim().to_string();
        let at = sections.iter().position(|s| s.name == name).unwrap_or_else(|| {
            sections.push(Section { name, rows: vec![] });
            sections.len() - 1
        });
        sections[at].rows.push(row(r));
    }
    sections.sort_by(|a, b| a.name.cmp(&b.name));
    let mut environment = Environment::new();
    environment
        .add_template("report.html", include_str!("report.html"))
        .map_err(|e| e.to_string())?;
    let template = environment.get_template("report.html").map_err(|e| e.to_string())?;
    let summary = Summary::of(reports);
    template.render(context! { subject, summary, sections, unseen }).map_err(|e| e.to_string())
}

fn row(r: &Report) -> Row {
    let failure = match &r.outcome.verdict {
        Verdict::Fail(f) => Some(Detail {
            expected: f.expected.clone(),
            received: f.received.clone(),
            step: r.outcome.step.clone().unwrap_or_default(),
            bytes: hex_dump(&f.bytes),
            script: r.case.show(),
            events: events(r),
            known: r.known.clone(),
        }),
        _ => None,
    };
    let class = match &r.outcome.verdict {
        _ if r.known.is_some() => "known",
        Verdict::Pass => "pass",
        Verdict::Fail(_) => "fail",
        Verdict::Inconclusive(_) => "open",
        Verdict::NotApplicable(_) => "na",
    };
    Row {
        id: r.case.id.clone(),
        level: r.case.level.name(),
        section: r.case.section.clone(),
        text: r.case.text.clone(),
        verdict: if class == "known" { "known deviation" } else { r.outcome.verdict.name() },
        class,
        reason: if failure.is_none() { reason(r) } else { String::new() },
        failure,
    }
}

fn events(r: &Report) -> Vec<Line> {
    let line = |e: &crate::link::Event| {
        let text = match &e.what {
            What::Opened { local, peer } => format!("connection from {local} to {peer}"),
            What::Bound { local, peer } => format!("SCTP in UDP from {local} to {peer}"),
            What::Packet(bytes) => format!("SCTP packet of {} bytes", bytes.len()),
            What::Segment(bytes) => format!("IP packet of {} bytes", bytes.len()),
            What::Note(text) => text.clone(),
            What::Bytes(bytes) => format!("{} bytes", bytes.len()),
            What::Fin => "FIN".into(),
            What::Reset => "RST".into(),
        };
        let from = match e.from {
            Side::Tester => "tester",
            Side::Device => "device",
        };
        Line { at: format!("{:.4}", e.at.as_secs_f64()), from, text }
    };
    let events = &r.outcome.transcript.events;
    events.iter().skip(events.len().saturating_sub(MAX_EVENTS)).map(line).collect()
}
