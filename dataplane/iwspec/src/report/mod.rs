//! Reports: terminal, JSON, JUnit, HTML, and a pcapng file for each failed case.

pub mod html;
pub mod json;
pub mod junit;
pub mod pcapng;
pub mod terminal;

use crate::run::Verdict;
use crate::suite::Report;

/// The tested device and its service, for the heading of each report.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Subject {
    /// Address of the device, or of the tester's listener.
    pub device: String,
    /// Name of the service on the device.
    pub service: String,
    /// Role of the device: responder or initiator.
    pub role: String,
    /// Name of the device in the profile; empty without a profile.
    pub profile: String,
}

/// Number of cases per verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Summary {
    /// Number of passed cases.
    pub pass: usize,
    /// Failed cases that the profile does not explain.
    pub fail: usize,
    /// Cases with a deviation that the profile explains.
    pub known: usize,
    /// Cases with an inconclusive result: neither passed nor failed.
    pub inconclusive: usize,
    /// Cases that do not apply.
    pub not_applicable: usize,
}

impl Summary {
    /// Counts the cases of each verdict.
    pub fn of(reports: &[Report]) -> Summary {
        let mut s = Summary::default();
        for r in reports {
            match &r.outcome.verdict {
                _ if r.known.is_some() => s.known += 1,
                Verdict::Pass => s.pass += 1,
                Verdict::Fail(_) => s.fail += 1,
                Verdict::Inconclusive(_) => s.inconclusive += 1,
                Verdict::NotApplicable(_) => s.not_applicable += 1,
            }
        }
        s
    }
}

/// Returns the reason of a verdict in one line; empty for a passed case without a known deviation.
fn reason(report: &Report) -> String {
    match &report.outcome.verdict {
        Verdict::Pass if report.known.is_some() => "passed this time".into(),
        Verdict::Pass => String::new(),
        Verdict::Fail(f) => format!("expected {}; received {}", f.expected, f.received),
        Verdict::Inconclusive(why) | Verdict::NotApplicable(why) => why.clone(),
    }
}

/// Returns bytes as lines of offset, hexadecimal digits and text.
fn hex_dump(bytes: &[u8]) -> String {
    const SHOWN: usize = 512;
    let mut out = String::new();
    for (line, chunk) in bytes.iter().take(SHOWN).collect::<Vec<_>>().chunks(16).enumerate() {
        let digits: Vec<String> = chunk.iter().map(|b| format!("{b:02x}")).collect();
        let text: String =
            chunk.iter().map(|&&b| if (32..127).contains(&b) { b as char } else { '.' }).collect();
        out += &format!("{:04x}  {:<47}  {text}\n", line * 16, digits.join(" "));
    }
    if bytes.len() > SHOWN {
        out += &format!("... {} bytes in all\n", bytes.len());
    }
    out
}
