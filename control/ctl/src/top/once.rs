//! `ddpctl top --once`: takes two samples and prints their tables as text or JSON.

use api::Client;
use serde_json::{Map, Value, json};

use super::sample::Sample;
use super::table::{Sort, Table, bits, sanitize};
use super::{Top, View, columns};
use crate::exit::Failure;
use crate::explain::hint_on_notes;
use crate::{Output, show};

pub(super) fn print_once(
    args: &Top,
    client: &Client,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let views = args.view.map_or_else(|| View::ALL.to_vec(), |view| vec![view]);
    let streams = views.iter().any(|view| view.needs_streams());
    let before = Sample::fetch(client, streams)?;
    std::thread::sleep(args.interval);
    let now = Sample::fetch(client, streams)?;
    let before = Some(before).filter(|before| now.is_same_process(before));
    let tables: Vec<(View, Table)> = views
        .into_iter()
        .map(|view| {
            let mut table = columns::table(view, &now, before.as_ref());
            let column = table.heads.iter().position(|head| head.key == args.sort);
            table.filter_and_sort(Sort { column, reverse: false }, &args.filter);
            (view, table)
        })
        .collect();
    let value = as_json(&now, before.as_ref(), &tables);
    output.print_answer(&value, |_| as_text(&now, before.as_ref(), &tables))
}

fn as_json(now: &Sample, before: Option<&Sample>, tables: &[(View, Table)]) -> Value {
    let totals = now.totals(before);
    let mut members = Map::new();
    members.insert("status".into(), json!(now.status));
    members.insert("rx_rate".into(), json!(totals.rx));
    members.insert("tx_rate".into(), json!(totals.tx));
    members.insert("drop_rate".into(), json!(totals.drops));
    for (view, table) in tables {
        members.insert(view.as_str().into(), table.json());
    }
    Value::Object(members)
}

fn as_text(now: &Sample, before: Option<&Sample>, tables: &[(View, Table)]) -> String {
    let totals = now.totals(before);
    let mut text = sanitize(&headline(now)) + "\n";
    let rate = |rate: Option<f64>| show::text_or_dash(rate.map(bits));
    let drops = show::text_or_dash(totals.drops.map(|drops| format!("{drops:.0}/s")));
    text += &format!("rx {}  tx {}  drops {drops}\n", rate(totals.rx), rate(totals.tx));
    for note in &now.status.notes {
        text += &format!("note: {}\n", sanitize(note));
    }
    text += &hint_on_notes(&now.status.note_kinds);
    for (view, table) in tables {
        text += &format!("\n{}: {}\n", view.as_str(), table.count_text());
        if !table.rows.is_empty() {
            text += &table.text();
        }
    }
    text
}

/// Formats the appliance's name, version, state, uptime and number of streams as one line.
pub(super) fn headline(now: &Sample) -> String {
    let status = &now.status;
    format!(
        "{}  ddpd {}  {}  up {}  {} streams",
        status.name,
        status.version,
        status.state,
        show::format_seconds(status.uptime_seconds),
        status.streams
    )
}
