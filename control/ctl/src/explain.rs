//! `ddpctl explain`: the meaning of a drop reason, refusal, note or event, its usual cause and the remedy. Needs no
//! appliance, except for counters: their meanings are in the appliance's metrics.

use api::Client;
use api::explain::{self, Explained, Group};
use serde::Serialize;

use super::Output;
use super::exit::{Exit, Failure};

/// Prefixes that precede a counter's name in the name of its metric.
const OWNERS: [&str; 6] = ["", "worker_", "port_", "control_", "listener_", "region_"];

/// Hint printed below a list of drop reasons.
pub(super) const HINT: &str =
    "`ddpctl explain NAME` says what a reason means, its usual cause and what to do\n";

/// Returns the hint to print below notes of these kinds; empty without notes.
pub(super) fn hint_on_notes(kinds: &[String]) -> String {
    let mut kinds = kinds.to_vec();
    kinds.sort_unstable();
    kinds.dedup();
    match &kinds[..] {
        [] => String::new(),
        _ => format!("`ddpctl explain {}` says more on the notes\n", kinds.join(" ")),
    }
}

/// Prints the explanations of `names`, or lists all names if `names` is empty. `client` connects to an appliance. It is
/// called only for names that have no declared explanation, because these may be counters.
pub(super) fn explain(
    names: &[String],
    client: impl FnOnce() -> Result<Client, Failure>,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    if names.is_empty() {
        return output.print_answer(&explain::all(), |all| format_list(all));
    }
    let mut found: Vec<Explained> = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        match explain::find(name) {
            none if none.is_empty() => unknown.push(name.as_str()),
            meanings => found.extend(meanings),
        }
    }
    let mut answers: Vec<Answer> = found.into_iter().map(Answer::Declared).collect();
    if !unknown.is_empty() {
        let metrics = client().ok().and_then(|client| client.text("/v1/metrics").ok());
        for name in unknown {
            match metrics.as_deref().and_then(|text| find_counter(name, text)) {
                Some(counter) => answers.push(counter),
                None => return Err(not_found(name, metrics.is_some())),
            }
        }
    }
    output.print_answer(&answers, |answers| {
        answers.iter().map(Answer::to_text).collect::<Vec<String>>().join("\n")
    })
}

/// The explanation of one name.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    /// A name with an explanation in [`api::explain`].
    Declared(Explained),
    /// A counter. The help text of its metric is the meaning; cause and remedy are null.
    Counter {
        group: &'static str,
        name: String,
        meaning: String,
        cause: (),
        remedy: (),
        counted: String,
    },
}

impl Answer {
    fn to_text(&self) -> String {
        match self {
            Answer::Declared(explained) => format_explanation(explained),
            Answer::Counter { name, meaning, .. } => format!("{name} (counter)\n{meaning}\n"),
        }
    }
}

/// Returns the error for an unknown name. `asked`: true if the appliance's counters were searched, too.
fn not_found(name: &str, asked: bool) -> Failure {
    let message = format!("there is no drop reason, refusal, note or event \"{name}\"");
    let near = explain::similar(name);
    let hint = match (&near[..], asked) {
        ([], true) => "ddpctl explain lists all names".to_owned(),
        ([], false) => {
            "ddpctl explain lists all names; names of counters need a running appliance (--socket)"
                .to_owned()
        }
        (near, _) => format!("similar names: {}", near.join(", ")),
    };
    let failure = Failure::new(Exit::Failed, message).with_hint(Some(hint));
    Failure { error: "not_found", ..failure }
}

/// Finds a counter's metric and its help text in the OpenMetrics text of an appliance. `None` for an unknown counter.
fn find_counter(name: &str, metrics: &str) -> Option<Answer> {
    // Units are ignored: their position in the name of a counter and of its metric may differ.
    let without_units = |name: &str| {
        let words = name.split('_').filter(|word| {
            !matches!(*word, "bytes" | "nanoseconds" | "seconds" | "total" | "ddpd" | "")
        });
        words.collect::<Vec<_>>().join("_")
    };
    let wanted = without_units(name);
    let helps = metrics.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let mut helps = helps.filter(|_| !wanted.is_empty());
    helps.find_map(|(metric, help)| {
        let known = without_units(metric);
        let is = OWNERS.iter().any(|owner| known.strip_prefix(owner) == Some(wanted.as_str()));
        is.then(|| Answer::Counter {
            group: "counter",
            name: metric.to_owned(),
            meaning: help.to_owned(),
            cause: (),
            remedy: (),
            counted: metric.to_owned(),
        })
    })
}

/// Formats the list of all names by group, one line each.
fn format_list(all: &[Explained]) -> String {
    let mut text = String::new();
    for group in Group::ALL {
        text += &format!("{}{}\n", if text.is_empty() { "" } else { "\n" }, group.title());
        for explained in all.iter().filter(|explained| explained.group == group) {
            text += &format!("  {:<28} {}\n", explained.name, explained.meaning);
        }
    }
    text
}

/// Formats an explanation: name, meaning, usual cause, remedy, and the metric or output that shows the name.
fn format_explanation(explained: &Explained) -> String {
    let Explained { group, name, meaning, cause, remedy, counted } = explained;
    let (group, place) = match group {
        Group::Drop | Group::TcpDrop | Group::SctpDrop => ("drop reason", "counted in"),
        Group::Refusal => ("refusal", "counted in"),
        Group::Note => ("note", "shown as"),
        Group::Event => ("event", "shown as"),
    };
    format!(
        "{name} ({group})\n  meaning: {meaning}\n  usual cause: {cause}\n  remedy: {remedy}\n  {place}: {counted}\n"
    )
}

#[cfg(test)]
mod tests;
