//! Tables and plots of a run, for the terminal and for `docs/load-testing.md`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use api::LatencyInfo;
use benches::plots::{Bar, bars};

use crate::account::Account;
use crate::peer_work::{ECHO_LEN, ECHO_RATE, FILE_LEN, PeerWork};
use crate::rfc2544::{ALLOWED_LOSS, SearchResults, SizeResult};
use crate::run::{Outcome, Results};

/// Path of the published document in the repository.
const DOCUMENT: &str = "docs/load-testing.md";

/// A table in Markdown.
struct Table(String);

impl Table {
    fn new(names: &[&str]) -> Table {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        Table(line(names.to_vec()) + &line(vec!["---"; names.len()]))
    }

    fn row(&mut self, cells: &[String]) {
        self.0 += &format!("| {} |\n", cells.join(" | "));
    }
}

fn case_label(outcome: &Outcome) -> String {
    let sources = if outcome.case.one_source { ", one source" } else { "" };
    format!("`{}`{sources}", outcome.case.profile)
}

fn millions(frames: u64, seconds: f64) -> String {
    format!("{:.2}", frames as f64 / seconds.max(1e-9) * 1e-6)
}

/// Formats the four largest outcomes of at least 0.1 %, with their share of the workers' frames.
fn format_outcome(account: &Account) -> String {
    let mut all: Vec<_> = account.became.iter().collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let share = |n: u64| 100.0 * n as f64 / (account.worker_frames as f64).max(1.0);
    let shown = all.iter().filter(|(_, n)| share(**n) >= 0.1).take(4);
    let words: Vec<String> = shown
        .map(|(name, n)| format!("{} {:.1} %", name.trim_start_matches("drop:"), share(**n)))
        .collect();
    words.join(", ")
}

/// Returns the table of the frames' outcomes.
fn frames_table(results: &Results) -> String {
    let mut table = Table::new(&[
        "profile",
        "offered, million/s",
        "taken, million/s",
        "lost at the full ring",
        "ns per frame taken",
        "outcome of the frames taken",
        "unaccounted",
    ]);
    for outcome in &results.outcomes {
        let (account, seconds) = (&outcome.account, outcome.seconds);
        let mixer = &account.mixer;
        table.row(&[
            case_label(outcome),
            millions(mixer.generator, seconds),
            millions(mixer.generator - mixer.generator_lost, seconds),
            mixer.generator_lost.to_string(),
            format!("{:.0}", account.busy_ns as f64 / (account.worker_frames as f64).max(1.0)),
            format_outcome(account),
            // Frames without a counted outcome, at the workers and between the mixer and the port.
            (account.unaccounted.unsigned_abs() + account.lost_before_port.unsigned_abs())
                .to_string(),
        ]);
    }
    table.0
}

fn format_latency(work: &PeerWork) -> String {
    let micros = |nanos: u64| match nanos as f64 * 1e-3 {
        small if small < 1000.0 => format!("{small:.0}"),
        large => format!("{:.0}", (large * 1e-2).round() * 1e2),
    };
    let shown =
        |times: &LatencyInfo| [times.p50_ns, times.p99_ns, times.p999_ns].map(micros).join(" / ");
    work.latency.as_ref().map_or("none".into(), shown)
}

fn format_goodput(work: &PeerWork) -> String {
    format!("{:.2}", work.file_gbit_per_s)
}

/// Returns the table of the good peers' work, before and during load.
fn peers_table(results: &Results) -> String {
    let mut table = Table::new(&[
        "profile",
        "files, flooded port, before load, Gbit/s",
        "files, flooded port, under load, Gbit/s",
        "echo, flooded port, before load, p50 / p99 / p99.9, us",
        "echo, flooded port, under load, us",
        "echo, other port, before load, us",
        "echo, other port, under load, us",
        "slowest API answer, ms",
    ]);
    for outcome in &results.outcomes {
        let (before, under) = (&outcome.unloaded, &outcome.loaded);
        table.row(&[
            case_label(outcome),
            format_goodput(&before.flooded),
            format_goodput(&under.flooded),
            format_latency(&before.flooded),
            format_latency(&under.flooded),
            format_latency(&before.other),
            format_latency(&under.other),
            format!("{:.1}", under.api_ms.1),
        ]);
    }
    table.0
}

/// Returns the table of state that remains after each load: memory, events, log, gauges.
fn residue_table(results: &Results) -> String {
    let mut table =
        Table::new(&["profile", "memory growth, KiB", "events", "log, bytes", "risen gauges"]);
    for outcome in &results.outcomes {
        let gauges =
            outcome.gauges.iter().map(|(name, then, now)| format!("{name} {then} to {now}"));
        let gauges: Vec<String> = gauges.collect();
        table.row(&[
            case_label(outcome),
            format!("{:+}", outcome.memory / 1024),
            outcome.events.to_string(),
            outcome.log_bytes.to_string(),
            if gauges.is_empty() { "none".into() } else { gauges.join(", ") },
        ]);
    }
    table.0
}

/// Returns the table of the highest rates by frame size.
pub fn rates_table(rates: &[SizeResult]) -> String {
    let some_loss = format!("at most {} % lost", ALLOWED_LOSS * 100.0);
    let mut table = Table::new(&[
        "bytes of a frame",
        "no loss, million/s",
        "no loss, Gbit/s",
        &format!("{some_loss}, million/s"),
        &format!("{some_loss}, Gbit/s"),
        "limited by",
    ]);
    for rate in rates {
        // Preamble, start delimiter and interframe gap take 20 bytes per frame.
        let gbit = |frames: f64| format!("{:.2}", frames * f64::from(rate.size + 20) * 8e-9);
        table.row(&[
            rate.size.to_string(),
            format!("{:.3}", rate.no_loss * 1e-6),
            gbit(rate.no_loss),
            format!("{:.3}", rate.some_loss * 1e-6),
            gbit(rate.some_loss),
            if rate.generator_bound { "generator" } else { "appliance" }.into(),
        ]);
    }
    table.0
}

/// Returns the summary of a run for the terminal: generator, duration and all tables.
pub fn format_tables(results: &Results) -> String {
    let generator = results.generator.name();
    let seconds = results.seconds;
    format!("Load by {generator}, {seconds} s per profile.\n\n{}", tables(results))
}

/// Returns all tables, for the terminal and for the document.
fn tables(results: &Results) -> String {
    [frames_table(results), peers_table(results), residue_table(results)].join("\n")
}

fn format_machine(machine: &BTreeMap<String, String>) -> String {
    let value = |name: &str| machine.get(name).map_or("unknown", String::as_str);
    format!(
        "Measured {}, commit {}, {}, {} of memory, {}, {}, {}. Hugepages: {}. Load average at the start: {}",
        value("date"),
        value("commit"),
        value("CPU"),
        value("memory"),
        value("kernel"),
        value("DPDK"),
        value("rustc"),
        value("hugepages"),
        value("load average")
    )
}

/// Publishes the results of a complete run in the document of the repository at `root`, and its plots in `docs/plots`.
/// Fails without writing a file if the run is not complete, a profile failed or the document lacks the marks.
pub fn publish(results: &Results, root: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(results.whole, "only a run of all profiles of at least 5 s each is published");
    let failed = results.outcomes.iter().filter(|outcome| !outcome.failures.is_empty()).count();
    anyhow::ensure!(failed == 0, "{failed} profiles failed: not published");
    let plots = draw_plots(results)?;
    let mut section = format_section(results);
    for (name, _) in &plots {
        section += &format!("![{name}](plots/{name}.svg)\n");
    }
    let document = with_section(root, "scripts/load --publish", &section)?;
    for (name, svg) in plots {
        std::fs::write(root.join(format!("docs/plots/{name}.svg")), svg)?;
    }
    Ok(std::fs::write(root.join(DOCUMENT), document)?)
}

/// Draws the plots of a run. Returns their names and SVG texts. Fails if there is nothing to plot.
fn draw_plots(results: &Results) -> anyhow::Result<[(&'static str, String); 2]> {
    let bar = |outcome: &Outcome, value: f64| Bar {
        name: case_label(outcome).replace('`', ""),
        value,
        colour: 0,
    };
    let taken: Vec<Bar> = results
        .outcomes
        .iter()
        .map(|outcome| {
            let mixer = &outcome.account.mixer;
            bar(outcome, (mixer.generator - mixer.generator_lost) as f64 / outcome.seconds * 1e-6)
        })
        .collect();
    let p99: Vec<Bar> = results
        .outcomes
        .iter()
        .filter_map(|outcome| {
            let times = outcome.loaded.flooded.latency.as_ref()?;
            Some(bar(outcome, times.p99_ns as f64 * 1e-6))
        })
        .collect();
    let taken = bars("Frames taken", "million/s", &taken, None).context("nothing to plot")?;
    let echo = bars("Echo p99 on the flooded port", "ms", &p99, None).context("nothing to plot")?;
    Ok([("load-taken", taken), ("load-echo", echo)])
}

/// Returns the text of the document's section about a run, without the plots.
fn format_section(results: &Results) -> String {
    format!(
        "Load by {}, {} s per profile. The good peers send files of {} KiB, and {ECHO_RATE} messages of {ECHO_LEN} \
         bytes a second.\n{}.\n\n{}\n",
        results.generator.name(),
        results.seconds,
        FILE_LEN >> 10,
        format_machine(&results.machine),
        tables(results)
    )
}

/// Publishes the results of a search in the document.
pub fn publish_rates(found: &SearchResults, root: &Path) -> anyhow::Result<()> {
    let section = format!(
        "Load by {}, trials of {} s. {}.\n\n{}",
        found.generator.name(),
        found.seconds,
        format_machine(&found.machine),
        rates_table(&found.rates)
    );
    let document = with_section(root, "scripts/load rfc2544 --publish", &section)?;
    Ok(std::fs::write(root.join(DOCUMENT), document)?)
}

/// Returns the document with `section` between the HTML comments `made by {maker}` and `end of what is made`. Fails if
/// the document lacks these marks.
fn with_section(root: &Path, maker: &str, section: &str) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(root.join(DOCUMENT))?;
    let (begin, end) = (format!("<!-- made by {maker} -->"), "<!-- end of what is made -->");
    let marks = || {
        let (before, rest) = text.split_once(&begin)?;
        Some((before, rest.split_once(end)?.1))
    };
    let (before, after) = marks().with_context(|| format!("{DOCUMENT} lacks the mark {begin}"))?;
    Ok(format!("{before}{begin}\n\n{}\n\n{end}{after}", section.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_section_replaces_previous_section() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        let file = root.path().join(DOCUMENT);
        std::fs::write(&file, "a\n<!-- made by x -->\nold\n<!-- end of what is made -->\nb\n")
            .unwrap();
        let text = with_section(root.path(), "x", "new\n").unwrap();
        assert_eq!(text, "a\n<!-- made by x -->\n\nnew\n\n<!-- end of what is made -->\nb\n");
        assert!(
            with_section(root.path(), "y", "new")
                .unwrap_err()
                .to_string()
                .contains("lacks the mark")
        );
    }

    #[test]
    fn a_table_has_a_cell_for_each_name() {
        let rate = SizeResult {
            size: 64,
            no_loss: 1e6,
            some_loss: 2e6,
            generator_bound: false,
            trials: Vec::new(),
        };
        let text = rates_table(&[rate]);
        assert!(text.ends_with("| 64 | 1.000 | 0.67 | 2.000 | 1.34 | appliance |\n"), "{text}");
        let cells: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells, [7, 7, 7]);
    }
}
