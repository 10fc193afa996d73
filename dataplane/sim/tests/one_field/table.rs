//! Table of the outcomes of all values of all fields, as lines of `tcp.txt` and `sctp.txt`.

use std::collections::BTreeMap;

/// Values of each conversation and field, grouped by outcome.
type Outcomes = BTreeMap<(&'static str, &'static str), BTreeMap<String, Vec<u64>>>;

/// Returns true if the last message of the conversation was delivered.
pub(crate) fn has_last_message(events: &[String]) -> bool {
    let text = format!("{:?}", b"last");
    events.iter().any(|event| event.contains(&text))
}

#[derive(Default)]
pub(crate) struct Table {
    /// Conversations in order of first appearance.
    order: Vec<&'static str>,
    outcomes: Outcomes,
    /// Setting that last produced each combination of conversation, field, value and outcome.
    known: BTreeMap<(&'static str, &'static str, u64, String), &'static str>,
    pub(crate) conversations: usize,
}

impl Table {
    pub(crate) fn record(
        &mut self,
        conversation: &'static str,
        setting: &'static str,
        field: &'static str,
        value: u64,
        outcome: String,
    ) {
        self.conversations += 1;
        if !self.order.contains(&conversation) {
            self.order.push(conversation);
        }
        let key = (conversation, field, value, outcome.clone());
        if self.known.insert(key, setting).is_some() {
            return;
        }
        let outcomes = self.outcomes.entry((conversation, field)).or_default();
        outcomes.entry(outcome).or_default().push(value);
    }

    /// Returns one line per conversation, field and outcome. The line lists the values if the field has several
    /// outcomes.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for conversation in &self.order {
            for ((of, field), outcomes) in &self.outcomes {
                if of != conversation {
                    continue;
                }
                for (outcome, values) in outcomes {
                    let mut line = format!("{conversation} | {field} | {outcome}");
                    if outcomes.len() > 1 {
                        let mut values = values.clone();
                        values.sort_unstable();
                        values.dedup();
                        let values: Vec<_> = values.iter().map(|v| format!("{v:x}")).collect();
                        line += &format!(" | {}", values.join(" "));
                    }
                    lines.push(line);
                }
            }
        }
        lines
    }
}
