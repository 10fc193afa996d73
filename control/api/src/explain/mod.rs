//! Meaning, usual cause and remedy of each name that the appliance counts, reports or notes. The texts come from the
//! declarations of drop reasons, refusals, notes and events, so that `ddpctl explain` needs no running appliance.

mod document;
mod notes;
#[cfg(test)]
mod tests;

use base::explain::Explanation;
use reasons::DropReason;
use serde::Serialize;
use tcp_lite::tcp;

use crate::EventKind;
use crate::refusal::RefusalKind;

pub use document::document;
pub use notes::NoteKind;

/// Maximum edit distance between an unknown name and a name suggested for it.
const MAX_EDIT_DISTANCE: usize = 3;
/// Minimum length of an unknown name, bytes, for which the names that contain it are suggested.
const MIN_PART_LEN: usize = 3;

/// Group of names that appear in the same output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Drops by the network stack and the worker.
    Drop,
    /// Drops by TCP.
    TcpDrop,
    /// Drops by SCTP.
    SctpDrop,
    /// Refusals of streams by the appliance.
    Refusal,
    /// Notes of `/v1/status`.
    Note,
    /// Kinds of events.
    Event,
}

impl Group {
    /// All groups, in the order of the document.
    pub const ALL: [Group; 6] =
        [Group::Drop, Group::TcpDrop, Group::SctpDrop, Group::Refusal, Group::Note, Group::Event];

    /// Returns the heading of the group in `docs/reasons.md`.
    pub fn title(self) -> &'static str {
        match self {
            Group::Drop => "Drops by the network stack and the worker",
            Group::TcpDrop => "Drops by TCP",
            Group::SctpDrop => "Drops by SCTP",
            Group::Refusal => "Refusals of streams",
            Group::Note => "Notes",
            Group::Event => "Events",
        }
    }

    /// Returns a description of the outputs in which the names of the group appear.
    fn place(self) -> &'static str {
        match self {
            Group::Drop | Group::TcpDrop | Group::SctpDrop => {
                "Each worker counts its drops, in frames or segments. The counts are in `dropped` of `ddpctl stats`, in \
                 `drops` of `/v1/stats`, and in the metric `ddpd_drops_total{reason}`. A capture has the reason in the \
                 frame's comment."
            }
            Group::Refusal => {
                "The counts of refusals are in the metric `ddpd_handshake_failures_total`, with the labels \
                 `stage=\"admission\"` and `reason`, and in `failed handshakes` of `ddpctl stats`. The event \
                 `handshake_failed` and the reject to the peer have the reason and a sentence about it."
            }
            Group::Note => {
                "`ddpctl status` shows the notes. `ddpctl top` shows their number and the first note; the key `n` shows \
                 all notes. `/v1/status` has the sentences in `notes`, and their kinds in `note_kinds`. A note \
                 expires when its cause ends."
            }
            Group::Event => "`ddpctl events` and `/v1/events` have these names in `event`.",
        }
    }

    fn explanations(self) -> Vec<&'static Explanation> {
        match self {
            Group::Drop => DropReason::ALL.map(DropReason::explanation).to_vec(),
            Group::TcpDrop => tcp::DropReason::ALL.map(tcp::DropReason::explanation).to_vec(),
            Group::SctpDrop => {
                use sctp_lite::sctp;
                sctp::DropReason::ALL.map(sctp::DropReason::explanation).to_vec()
            }
            Group::Refusal => RefusalKind::ALL.map(RefusalKind::explanation).to_vec(),
            Group::Note => NoteKind::ALL.map(NoteKind::explanation).to_vec(),
            Group::Event => EventKind::EXPLANATIONS.iter().collect(),
        }
    }

    /// Returns the name as it appears in output and metrics.
    fn printed(self, name: &str) -> String {
        match self {
            Group::Drop => format!("net_{name}"),
            _ => name.to_owned(),
        }
    }

    /// Returns the metric or the JSON member in which the name is counted or shown.
    fn counted(self, name: &str) -> String {
        match self {
            Group::Drop | Group::TcpDrop | Group::SctpDrop => {
                format!("ddpd_drops_total{{reason=\"{name}\"}}")
            }
            Group::Refusal => {
                format!("ddpd_handshake_failures_total{{stage=\"admission\",reason=\"{name}\"}}")
            }
            Group::Note => format!("`note_kinds` of `ddpctl --json status`: \"{name}\""),
            Group::Event => format!("`event` of `ddpctl --json events`: \"{name}\""),
        }
    }
}

/// A name with its explanation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Explained {
    /// Group of the name.
    pub group: Group,
    /// The name as it appears in output and metrics.
    pub name: String,
    /// Meaning of the reason, note or event, in whole sentences.
    pub meaning: &'static str,
    /// Usual cause, in whole sentences.
    pub cause: &'static str,
    /// Remedy for the operator.
    pub remedy: &'static str,
    /// Metric or JSON member in which the name is counted or shown.
    pub counted: String,
}

/// Returns all names, in the order of their groups and declarations.
pub fn all() -> Vec<Explained> {
    Group::ALL.into_iter().flat_map(of_group).collect()
}

fn of_group(group: Group) -> impl Iterator<Item = Explained> {
    group.explanations().into_iter().map(move |explanation| {
        let Explanation { name, meaning, cause, remedy } = *explanation;
        let name = group.printed(name);
        let counted = group.counted(&name);
        Explained { group, name, meaning, cause, remedy, counted }
    })
}

/// Returns all explanations of a name. The same name can be a reason, a note and an event. The name is accepted in
/// every printed form: with or without its layer, in a metric's series or label, or in the comment of a captured frame.
pub fn find(text: &str) -> Vec<Explained> {
    let name = bare(text);
    let mut found = all();
    found.retain(|explained| explained.name == name || short(explained) == name);
    found
}

/// Returns at most eight names similar to `text`, the most similar first.
pub fn similar(text: &str) -> Vec<String> {
    let name = bare(text);
    let distance = |explained: &Explained| {
        let distance_to = |known: &str| match known.contains(name) && name.len() >= MIN_PART_LEN {
            true => 0,
            false => strsim::osa_distance(name, known),
        };
        distance_to(&explained.name).min(distance_to(short(explained)))
    };
    let near = all().into_iter().map(|explained| (distance(&explained), explained.name));
    let mut near: Vec<(usize, String)> =
        near.filter(|(distance, _)| *distance <= MAX_EDIT_DISTANCE).collect();
    near.sort();
    near.dedup_by(|a, b| a.1 == b.1);
    near.into_iter().map(|(_, name)| name).take(8).collect()
}

/// Returns the name without its layer, for example `vlan` for `net_vlan`. Only drops have a layer in their name.
fn short(explained: &Explained) -> &str {
    let layer = match explained.group {
        Group::Drop => "net_",
        Group::TcpDrop => "tcp_",
        Group::SctpDrop => "sctp_",
        Group::Refusal | Group::Note | Group::Event => "",
    };
    explained.name.strip_prefix(layer).unwrap_or(&explained.name)
}

/// Extracts the name from a series (`ddpd_drops_total{worker="0",reason="net_vlan"}`), from a label
/// (`reason="net_vlan"`, `reason=net_vlan`) or from a frame's comment (`dropped: net_vlan`).
fn bare(text: &str) -> &str {
    let after = |text: &'_ str, mark: &str| text.find(mark).map(|at| at + mark.len());
    let marks = ["reason=", "event=", "dropped: "];
    let begin = marks.iter().find_map(|mark| after(text, mark)).unwrap_or(0);
    let text = text[begin..].trim().trim_start_matches('"');
    text.split(['"', ',', '}', ':', ' ']).next().unwrap_or_default()
}
