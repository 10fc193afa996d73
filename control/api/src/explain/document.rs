//! Generates `docs/reasons.md`, the explanations of all names.

use super::{Group, of_group};

const BEGINNING: &str = "\
# Drop reasons, notes and events

Meaning, usual cause and remedy of each name that `ddpd` counts, reports or notes. `ddpctl explain NAME` prints the same without an
appliance. It accepts a name in every printed form: `ip_checksum`, `net_ip_checksum`, `reason=\"net_ip_checksum\"`. This file is
generated from the program's declarations; [operations.md](operations.md) leads from a symptom to a name.
";

/// Returns the text of `docs/reasons.md`, in Markdown.
pub fn document() -> String {
    let mut text = BEGINNING.to_owned();
    for group in Group::ALL {
        text += &format!("\n## {}\n\n{}\n\n", group.title(), group.place());
        text += "| name | meaning | usual cause | remedy |\n|---|---|---|---|\n";
        for explained in of_group(group) {
            let cells = [explained.meaning, explained.cause, explained.remedy].map(cell);
            let [meaning, cause, remedy] = cells;
            text += &format!("| `{}` | {meaning} | {cause} | {remedy} |\n", explained.name);
        }
    }
    text
}

/// Returns the text as a cell of a Markdown table. Links of rustdoc become plain names.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("[`", "`").replace("`]", "`")
}
