//! Generates `docs/reasons.md`, the explanations of all names.

use super::{Group, of_group};

const BEGINNING: &str = "\
# Drop reasons, notes and events

This page has the meaning, usual cause and remedy of each drop reason, refusal, note and event of `ddpd`.
`ddpctl explain NAME` prints the same text and needs no appliance. It accepts a name in each form in which it is printed:
`ip_checksum`, `net_ip_checksum`, `reason=\"net_ip_checksum\"`. To find the name for a symptom, see
[operations.md](operations.md). This page is generated from the program's declarations.
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
