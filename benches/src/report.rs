//! The report: a self-contained HTML page, and separate plots for the documents.

use std::path::Path;

use anyhow::Context as _;
use minijinja::{Environment, context};
use serde::Serialize;

use crate::plots::{Axis, AxisFormat, Bar, Series, bars, lines};
use crate::row::Row;
use crate::run::{
    Results, format_bound, format_number, format_value, format_verdict, typical_ping_pong,
};
use crate::targets::{Kind, Target, Verdict};

const PAGE_TEMPLATE: &str = include_str!("../templates/report.html");
/// Paths of the documents with a generated section, and the template of that section.
const PUBLISHED_DOCUMENTS: [(&str, &str); 2] = [
    ("README.md", include_str!("../templates/readme.md")),
    ("docs/performance.md", include_str!("../templates/performance.md")),
];
/// Line before a generated section. [`END`] is the line after the section.
const BEGIN: &str = "<!-- made by scripts/bench --publish -->";
const END: &str = "<!-- end of what is made -->";
/// Maximum number of unresolved targets of a published run.
const MAX_UNRESOLVED: usize = 2;
/// Targets and figures shown in the README. `docs/performance.md` shows all.
const HEADLINES: [&str; 8] = [
    "goodput of 1 MiB writes, MTU 9000",
    "echo of 64 bytes, p50",
    "goodput, ddpd at MTU 9000 / kernel sockets over lo",
    "round trip, ddpd / kernel sockets over lo",
    "goodput, SCTP / TCP, MTU 9000",
    "goodput, sender keeps a copy / no copy, MTU 9000",
    "goodput, ESP / clear text, MTU 1500",
    "memory of an idle stream, with the flight recorder",
];

/// Writes `report.html` with inline plots into the directory `out`.
pub fn write(results: &Results, out: &Path) -> anyhow::Result<()> {
    let plots = draw_plots(results);
    let mut environment = environment();
    environment.add_template("report.html", PAGE_TEMPLATE)?;
    let page = environment.get_template("report.html")?.render(context! {
        results => results,
        groups => report_sections(results, &plots),
        ping_pong => format_number(typical_ping_pong(results)),
        noisy => results.is_noisy(),
        noisy_ns => crate::noise::NOISY_NS,
        minutes => format_number(results.seconds / 60.0),
        targets => TargetLines::from_results(results),
        met => results.targets.iter().filter(|target| target.verdict == Some(Verdict::Met)).count(),
        judged => results.targets.iter().filter(|target| target.target.is_some()).count(),
    })?;
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("report.html"), page)?;
    Ok(())
}

/// Publishes a whole run in the repository at `root`. Writes the plots into `docs/plots`, the headlines into README.md,
/// and all targets, figures and plots into `docs/performance.md`.
///
/// Quick and partial runs are refused, and runs with more than [`MAX_UNRESOLVED`] unresolved targets. Rows that did not
/// run are published with the reason. If a document lacks the marks of the generated section, no file is written.
pub fn publish(results: &Results, root: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(!results.quick, "a quick run is not published");
    anyhow::ensure!(results.whole, "a run of some groups is not published");
    check_resolved(results)?;
    let plots = draw_plots(results);
    let mut documents = Vec::new();
    for (name, template) in PUBLISHED_DOCUMENTS {
        let path = root.join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let marks =
            || Some((text.split_once(BEGIN)?.0, text.split_once(BEGIN)?.1.split_once(END)?.1));
        let (before, after) = marks()
            .with_context(|| format!("{} lacks the marks `{BEGIN}` and `{END}`", path.display()))?;
        documents
            .push((path, format!("{before}{}{after}", render_section(template, results, &plots)?)));
    }
    let directory = root.join("docs/plots");
    std::fs::create_dir_all(&directory)?;
    for plot in &plots {
        std::fs::write(directory.join(format!("{}.svg", plot.name)), &plot.svg)?;
    }
    for (path, text) in documents {
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// Fails if more than [`MAX_UNRESOLVED`] targets are unresolved. The error lists them with bound and value.
fn check_resolved(results: &Results) -> anyhow::Result<()> {
    let unresolved = results.unresolved();
    let line = |target: &&Target| {
        format!("\n  {} ({}): {}", target.name, format_bound(target), format_value(target))
    };
    anyhow::ensure!(
        unresolved.len() <= MAX_UNRESOLVED,
        "{} targets are unresolved, and a published run may have {MAX_UNRESOLVED}. Repeat the run on a quieter \
         machine:{}",
        unresolved.len(),
        unresolved.iter().map(line).collect::<String>()
    );
    Ok(())
}

/// Renders a generated section, including its first and last line, [`BEGIN`] and [`END`].
fn render_section(template: &str, results: &Results, plots: &[Plot]) -> anyhow::Result<String> {
    let mut environment = environment();
    environment.add_template("section.md", template)?;
    let section = environment.get_template("section.md")?.render(context! {
        results => results,
        targets => TargetLines::from_results(results),
        headlines => headlines(results),
        ping_pong => format_number(typical_ping_pong(results)),
        plots => plots,
    })?;
    Ok(section)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.add_filter("number", |value: f64| format_number(value));
    environment
}

/// A target as a line of a table.
#[derive(Serialize)]
struct TargetLine<'a> {
    name: &'a str,
    bound: String,
    shown: String,
    n: usize,
    verdict: String,
    /// Word of the verdict, without a reason; empty without a verdict.
    class: &'static str,
}

/// Targets with a bound to meet, and figures, which are shown without a verdict.
#[derive(Serialize)]
struct TargetLines<'a> {
    judged: Vec<TargetLine<'a>>,
    figures: Vec<TargetLine<'a>>,
}

/// Returns the lines of the README's table, in the order of [`HEADLINES`].
fn headlines(results: &Results) -> Vec<TargetLine<'_>> {
    let found = |name: &&str| results.targets.iter().find(|target| target.name == *name);
    HEADLINES.iter().filter_map(found).map(line).collect()
}

fn line(target: &Target) -> TargetLine<'_> {
    TargetLine {
        name: &target.name,
        bound: format_bound(target),
        shown: format_value(target),
        n: target.samples.len(),
        verdict: format_verdict(target),
        class: target.verdict.map_or("", Verdict::name),
    }
}

impl<'a> TargetLines<'a> {
    fn from_results(results: &'a Results) -> TargetLines<'a> {
        let (figures, judged): (Vec<&Target>, Vec<&Target>) =
            results.targets.iter().partition(|target| target.kind == Kind::Figure);
        let lines = |some: Vec<&'a Target>| some.into_iter().map(line).collect();
        TargetLines { judged: lines(judged), figures: lines(figures) }
    }
}

#[derive(Serialize)]
struct Plot {
    group: &'static str,
    name: &'static str,
    svg: String,
}

#[derive(Serialize)]
struct Section<'a> {
    name: &'a str,
    title: &'a str,
    plots: Vec<&'a Plot>,
    rows: Vec<&'a Row>,
    /// Names of parameters that differ between the rows, shown as columns.
    columns: Vec<&'a str>,
    /// Names of secondary numbers, shown as columns.
    extras: Vec<&'a str>,
}

fn report_sections<'a>(results: &'a Results, plots: &'a [Plot]) -> Vec<Section<'a>> {
    let sections = results.groups.iter().map(|(name, title)| {
        let rows: Vec<&Row> = results.rows.iter().filter(|row| row.group == *name).collect();
        Section {
            name,
            title,
            plots: plots.iter().filter(|plot| plot.group == name).collect(),
            columns: varying_parameters(&rows),
            extras: nonzero_extras(&rows),
            rows,
        }
    });
    sections.collect()
}

/// Returns the names of the parameters that differ between the rows.
fn varying_parameters<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut names: Vec<&str> =
        rows.iter().flat_map(|row| row.parameters.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let differs = |name: &str| {
        let mut values = rows.iter().filter_map(|row| row.parameters.get(name));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    names.into_iter().filter(|name| differs(name)).collect()
}

/// Returns the names of the secondary numbers that are not zero in at least one row.
fn nonzero_extras<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let some = rows.iter().flat_map(|row| row.extra.iter());
    let mut names: Vec<&str> =
        some.filter(|(_, value)| **value != 0.0).map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

struct RowSet<'a>(&'a [Row]);

impl RowSet<'_> {
    fn find(&self, name: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.name == name)
    }

    /// Returns a line through the values of the rows whose names are `prefix` and a number, which is x.
    fn series(&self, name: &str, prefix: &str) -> Series {
        let number = |row: &Row| -> Option<f64> { row.name.strip_prefix(prefix)?.parse().ok() };
        let points = self.0.iter().filter_map(|row| Some((number(row)?, row.value?)));
        Series { name: name.to_owned(), points: ascending(points.collect()) }
    }

    fn bar(&self, name: &str, row: &str, colour: usize) -> Option<Bar> {
        let value = self.find(row)?.value?;
        Some(Bar { name: name.to_owned(), value, colour })
    }

    /// Returns the latencies of a row, microseconds. For quantile q, x is 1 / (1 - q), at most 100,000.
    fn quantiles(&self, name: &str, row: &str) -> Series {
        let row = self.find(row);
        let latency = row.map(|row| row.latency.as_slice()).unwrap_or_default();
        let mut points: Vec<(f64, f64)> =
            latency.iter().map(|&(q, ns)| (1.0 / (1.0 - q), ns as f64 * 1e-3)).collect();
        points.retain(|&(x, _)| (1.0..=1e5).contains(&x));
        Series { name: name.to_owned(), points }
    }
}

/// Sorts points by x. The rows of a group may be in another order.
fn ascending(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn axis(name: &str, log: bool, style: AxisFormat) -> Axis {
    Axis { name: name.to_owned(), log, style }
}

fn draw_plots(results: &Results) -> Vec<Plot> {
    let rows = RowSet(&results.rows);
    let drawn = [
        bulk_plot(&rows, 1500),
        bulk_plot(&rows, 9000),
        veth_plot(&rows),
        sizes_plot(&rows),
        rdmap_plot(&rows),
        latency_plot(&rows),
        streams_plot(&rows),
        loss_plot(&rows),
        memory_plot(&rows),
    ];
    drawn.into_iter().flatten().collect()
}

fn bulk_plot(rows: &RowSet<'_>, mtu: u16) -> Option<Plot> {
    let (group, name) = match mtu {
        1500 => ("bulk-1500", "goodput-1500"),
        _ => ("bulk-9000", "goodput-9000"),
    };
    let ours = |what: &str, suffix: &str| rows.bar(what, &format!("write-{mtu}{suffix}"), 0);
    let bars_of = [
        rows.bar("hand-off (limit)", &format!("handoff-{mtu}"), 1),
        ours("writes", ""),
        ours("sender keeps a copy", "-unstable"),
        ours("no TCP checksum", "-trusted"),
        ours("markers", "-markers"),
        ours("no CRC", "-no-crc"),
        rows.bar("MTU 65 280", "write-65280", 0),
        rows.bar("UCX put, TCP over lo", "ucx-put-bw", 2),
        rows.bar("UCX put, its own choice", "ucx-put-bw-auto", 2),
        rows.bar("kernel sockets over lo", "sockets-crc-copy", 2),
    ];
    // The last four bars are only in the plot of MTU 9000: the bar of MTU 65 280, and the peers' bars, which have no
    // MTU.
    let many = if mtu == 9000 { bars_of.len() } else { bars_of.len() - 4 };
    let bars_of: Vec<Bar> = bars_of.into_iter().take(many).flatten().collect();
    let title = format!("Goodput of 1 MiB writes, one core to one core, ring, MTU {mtu}");
    Some(Plot { group, name, svg: bars(&title, "Gbit/s", &bars_of, None)? })
}

fn sizes_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let svg = lines(
        "Goodput by message size",
        &axis("bytes of a write", true, AxisFormat::Binary),
        &axis("Gbit/s", true, AxisFormat::Plain),
        &[
            rows.series("MTU 1500", "size-1500-"),
            rows.series("MTU 1500, markers", "size-1500-markers-"),
            rows.series("MTU 9000", "size-9000-"),
            rows.series("MTU 9000, markers", "size-9000-markers-"),
        ],
    )?;
    Some(Plot { group: "sizes", name: "goodput-by-size", svg })
}

fn latency_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let svg = lines(
        "Round trips by quantile",
        &axis("quantile", true, AxisFormat::Nines),
        &axis("microseconds", true, AxisFormat::Plain),
        &[
            rows.quantiles("echo", "echo"),
            rows.quantiles("write, then echo", "write-notify"),
            rows.quantiles("RDMAP Send echo", "rdmap-send-echo"),
            rows.quantiles("RDMAP Read", "rdmap-read"),
        ],
    )?;
    Some(Plot { group: "latency", name: "latency", svg })
}

fn streams_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let svg = lines(
        "Goodput with many active streams",
        &axis("streams", true, AxisFormat::Plain),
        &axis("Gbit/s, sum of the streams", false, AxisFormat::Plain),
        &[rows.series("writes of 16 KiB into one region", "streams-")],
    )?;
    Some(Plot { group: "streams", name: "goodput-by-streams", svg })
}

fn memory_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let busy = |row: &Row| {
        let n: f64 = row.name.strip_prefix("memory-")?.parse().ok()?;
        Some((n, *row.extra.get("busy_bytes_per_stream")?))
    };
    let busy = ascending(rows.0.iter().filter_map(busy).collect());
    let svg = lines(
        "Heap per stream",
        &axis("streams", true, AxisFormat::Plain),
        &axis("bytes", true, AxisFormat::Plain),
        &[
            rows.series("idle", "memory-"),
            Series { name: "with two writes of 16 KiB in flight".to_owned(), points: busy },
        ],
    )?;
    Some(Plot { group: "memory", name: "memory-by-streams", svg })
}

fn loss_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let names = ["0", "0.1", "1"];
    let bar = |percent: &str, suffix: &str, what: &str, colour| {
        rows.bar(&format!("{percent} %, {what}"), &format!("loss-{percent}{suffix}"), colour)
    };
    let on = names.iter().filter_map(|n| bar(n, "", "markers", 0));
    let off = names.iter().filter_map(|n| bar(n, "-no-markers", "no markers", 1));
    let all: Vec<Bar> = on.chain(off).collect();
    let title = "Goodput under loss, round trip 100 µs, MTU 1500";
    Some(Plot {
        group: "loss",
        name: "goodput-under-loss",
        svg: bars(title, "Gbit/s", &all, None)?,
    })
}

fn rdmap_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let svg = lines(
        "RDMAP: goodput by message size",
        &axis("bytes of a message", true, AxisFormat::Binary),
        &axis("Gbit/s", true, AxisFormat::Plain),
        &[
            rows.series("Write, MTU 1500", "rdmap-write-1500-"),
            rows.series("Write, MTU 9000", "rdmap-write-9000-"),
            rows.series("Read, MTU 1500", "rdmap-read-1500-"),
            rows.series("Read, MTU 9000", "rdmap-read-9000-"),
            rows.series("Send, MTU 1500", "rdmap-send-1500-"),
            rows.series("Send, MTU 9000", "rdmap-send-9000-"),
        ],
    )?;
    Some(Plot { group: "rdmap", name: "rdmap-by-size", svg })
}

fn veth_plot(rows: &RowSet<'_>) -> Option<Plot> {
    let all = [
        rows.bar("ddpd, af_packet", "af_packet-write-1500", 0),
        rows.bar("ddpd, af_xdp", "af_xdp-write-1500", 0),
        rows.bar("kernel TCP, GSO off", "iperf3-veth-gso-off", 2),
        rows.bar("kernel TCP, GSO on", "iperf3-veth-gso-on", 2),
        rows.bar("kernel TCP, lo", "iperf3-lo", 2),
    ];
    let all: Vec<Bar> = all.into_iter().flatten().collect();
    let title = "Goodput over a veth pair, MTU 1500, beside the kernel's TCP";
    Some(Plot { group: "veth", name: "goodput-veth", svg: bars(title, "Gbit/s", &all, None)? })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn ratio(value: Option<f64>) -> Target {
        Target {
            name: "goodput, SCTP / TCP, MTU 9000".to_owned(),
            kind: Kind::Ratio,
            target: Some(0.45),
            at_most: false,
            unit: String::new(),
            samples: value.map_or(Vec::new(), |value| vec![value; 7]),
            value,
            low: value.map(|value| value - 0.02),
            high: value.map(|value| value + 0.02),
            verdict: value.map(|value| match value - 0.02 >= 0.45 {
                true => Verdict::Met,
                false => Verdict::Missed,
            }),
            why: value.is_none().then(|| "a tool is missing".to_owned()),
            noisy: false,
        }
    }

    fn results(quick: bool, value: Option<f64>) -> Results {
        let figure = Target {
            name: "writes".to_owned(),
            kind: Kind::Figure,
            target: None,
            unit: "Gbit/s".to_owned(),
            verdict: None,
            ..ratio(Some(40.0))
        };
        let machine = BTreeMap::from([("CPU".to_owned(), "of this test".to_owned())]);
        let (groups, rows, targets) = (Vec::new(), Vec::new(), vec![ratio(value), figure]);
        Results {
            machine,
            quick,
            whole: true,
            seconds: 1.0,
            ping_pong_ns: vec![90.0],
            copy_gb_per_s: vec![100.0],
            groups,
            targets,
            rows,
        }
    }

    #[test]
    fn run_with_more_than_two_unresolved_targets_is_refused_and_lists_them() {
        let root = repository(&format!("{BEGIN}\n{END}"));
        let run = |unresolved: usize| {
            let target = |n| Target {
                name: format!("row {n}"),
                verdict: Some(Verdict::Unresolved),
                ..ratio(Some(0.45))
            };
            let mut run = results(false, Some(0.3));
            run.targets.extend((0..unresolved).map(target));
            run
        };
        let refusal = publish(&run(3), root.path()).unwrap_err().to_string();
        assert!(refusal.starts_with("3 targets are unresolved"), "{refusal}");
        for n in 0..3 {
            let line = format!("\n  row {n} (≥ 0.45): 0.45 [0.43, 0.47]");
            assert!(refusal.contains(&line), "{refusal}");
        }
        assert!(!refusal.contains("SCTP / TCP"), "{refusal}");
        assert_eq!(documents(&root), [format!("{BEGIN}\n{END}"), format!("{BEGIN}\n{END}")]);
        publish(&run(2), root.path()).unwrap();
        let [readme, performance] = documents(&root);
        assert!(readme.contains("*unresolved*"), "{readme}");
        assert!(performance.contains("n = 7 | unresolved |"), "{performance}");
    }

    /// Returns a repository whose documents contain `text`.
    fn repository(text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        for (name, _) in PUBLISHED_DOCUMENTS {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        root
    }

    /// Returns the current text of README and docs/performance.md.
    fn documents(root: &tempfile::TempDir) -> [String; 2] {
        PUBLISHED_DOCUMENTS
            .map(|(name, _)| std::fs::read_to_string(root.path().join(name)).unwrap())
    }

    #[test]
    fn published_run_replaces_previous_run_only() {
        let root = repository(&format!("before\n{BEGIN}\nold\n{END}\nafter\n"));
        for value in [0.3, 0.41] {
            publish(&results(false, Some(value)), root.path()).unwrap();
        }
        let [readme, performance] = documents(&root);
        let line =
            "| goodput, SCTP / TCP, MTU 9000 | ≥ 0.45 | 0.41 [0.39, 0.43], n = 7 | **missed** |";
        for text in [&readme, &performance] {
            assert!(text.contains(line), "{text}");
            assert!(text.starts_with(&format!("before\n{BEGIN}\n")), "{text}");
            assert!(text.ends_with(&format!("{END}\nafter\n")), "{text}");
            assert!(!text.contains("old") && !text.contains("0.30"), "{text}");
        }
        let line = "| writes | 40.0 Gbit/s (40.0 to 40.0) |";
        assert!(performance.contains(line), "{performance}");
    }

    #[test]
    fn headlines_are_target_names() {
        let names: Vec<String> =
            crate::targets::targets(&[]).into_iter().map(|target| target.name).collect();
        for headline in HEADLINES {
            assert!(names.iter().any(|name| name == headline), "{headline}");
        }
    }

    #[test]
    fn points_are_sorted_by_x() {
        assert_eq!(ascending(vec![(3.0, 1.0), (1.0, 2.0)]), [(1.0, 2.0), (3.0, 1.0)]);
    }

    #[test]
    fn skipped_row_is_published_with_reason() {
        let root = repository(&format!("{BEGIN}\n{END}"));
        publish(&results(false, None), root.path()).unwrap();
        let [text, _] = documents(&root);
        let line = "| goodput, SCTP / TCP, MTU 9000 | ≥ 0.45 | — | not run: a tool is missing |";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn partial_run_or_missing_marker_is_refused() {
        let root = repository("no marks\n");
        let refusal = |results| publish(&results, root.path()).unwrap_err().to_string();
        assert!(refusal(results(true, Some(1.0))).contains("quick"));
        let some = Results { whole: false, ..results(false, Some(1.0)) };
        assert!(refusal(some).contains("some groups"));
        assert!(refusal(results(false, Some(1.0))).contains("marks"));
        // Marks in only one document do not suffice.
        std::fs::write(root.path().join("README.md"), format!("{BEGIN}{END}")).unwrap();
        assert!(refusal(results(false, Some(1.0))).contains("performance.md lacks the marks"));
        assert_eq!(documents(&root), [format!("{BEGIN}{END}"), "no marks\n".to_owned()]);
    }
}
