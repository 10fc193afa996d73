//! Plots as SVG: lines with linear or logarithmic axes, and bars.
//!
//! Elements have literal colours for light mode. Their CSS classes override these colours in dark mode. CSS variables
//! are not used, because librsvg draws them black.
//!
//! Coordinates of a plot with lines:
//!
//! ```text
//!              LEFT            RIGHT
//!    y labels   | plot ......... |  TOP
//!               | .............. |  BOTTOM
//!                 x labels, name of the x axis, legend
//! ```

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 274.0;

/// Colours of series in light mode; `STYLE` has the colours of dark mode. Red-blind readers can distinguish the
/// colours of each mode.
const COLOURS: [&str; 6] = ["#0b63ce", "#d9730d", "#16866a", "#a03ba8", "#8a6d00", "#5a6672"];

/// Style sheet of each plot. The classes `f0` to `f5` and `s0` to `s5` are fill and stroke of a series in dark mode.
const STYLE: &str = "
svg{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
.paper{fill:#ffffff}.title{font-size:15px;font-weight:600;fill:#1f2933}
.label{font-size:11px;fill:#66717d}.name{font-size:12px;fill:#1f2933}
.grid{stroke:#e3e7eb;stroke-width:1}.axis{stroke:#66717d;stroke-width:1}
.target{stroke:#1f2933;stroke-width:1.2;stroke-dasharray:2 4}
@media (prefers-color-scheme:dark){.paper{fill:#14191f}.title,.name{fill:#e6eaee}.label{fill:#9aa5b1}
.grid{stroke:#2c343c}.axis{stroke:#9aa5b1}.target{stroke:#e6eaee}
.f0{fill:#62a8ff}.f1{fill:#ff9f4a}.f2{fill:#4fd1a9}.f3{fill:#d98be0}.f4{fill:#e0c14a}.f5{fill:#a4b0bc}
.s0{stroke:#62a8ff}.s1{stroke:#ff9f4a}.s2{stroke:#4fd1a9}.s3{stroke:#d98be0}.s4{stroke:#e0c14a}
.s5{stroke:#a4b0bc}}";

/// Returns attributes that fill an element with the colour of series `n`.
fn fill(n: usize) -> String {
    let n = n % COLOURS.len();
    format!("class=\"f{n}\" fill=\"{}\"", COLOURS[n])
}

/// Returns attributes that stroke an element with the colour of series `n`.
fn stroke(n: usize) -> String {
    let n = n % COLOURS.len();
    format!("class=\"s{n}\" stroke=\"{}\"", COLOURS[n])
}

/// An axis of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Quantity and unit.
    pub name: String,
    /// True for a logarithmic axis.
    pub log: bool,
    /// Format of the labels.
    pub style: AxisFormat,
}

/// Format of an axis' labels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxisFormat {
    /// 1, 2.5, 10 k, 3 M.
    Plain,
    /// 64, 4 Ki, 1 Mi.
    Binary,
    /// The label of x is 1 - 1/x: 90 % at 10, 99 % at 100, 99.9 % at 1000.
    Nines,
}

/// A line through points.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Pairs of x and y, in ascending order of x.
    pub points: Vec<(f64, f64)>,
}

/// A horizontal bar.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    /// Label of the bar.
    pub name: String,
    /// Length of the bar, in the plot's unit.
    pub value: f64,
    /// Colour by role: 0 for `ddpd`, 1 for a limit, 2 for a peer program.
    pub colour: usize,
}

/// Returns an SVG of lines. A series of at most 16 points also has dots. `None` if no series has a point.
pub fn lines(title: &str, x: &Axis, y: &Axis, series: &[Series]) -> Option<String> {
    let series: Vec<&Series> = series.iter().filter(|s| !s.points.is_empty()).collect();
    let points = || series.iter().flat_map(|s| s.points.iter());
    points().next()?;
    let xs = Scale::new(x, points().map(|p| p.0), LEFT, RIGHT);
    let ys = Scale::new(y, points().map(|p| p.1), BOTTOM, TOP);
    let mut out = svg_head(title);
    frame(&mut out, x, y, &xs, &ys);
    for (n, line) in series.iter().enumerate() {
        let dash = if n % 2 == 1 { " stroke-dasharray=\"6 3\"" } else { "" };
        let at: Vec<(f64, f64)> =
            line.points.iter().map(|&(a, b)| (xs.position(a), ys.position(b))).collect();
        let path: Vec<String> = at.iter().map(|(a, b)| format!("{a:.1},{b:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" {} stroke-width=\"2\"{dash}/>",
            path.join(" "),
            stroke(n)
        );
        if at.len() <= 16 {
            for (a, b) in at {
                let fill = fill(n);
                let _ = writeln!(out, "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3\" {fill}/>");
            }
        }
    }
    let names: Vec<(&str, usize)> =
        series.iter().enumerate().map(|(n, s)| (s.name.as_str(), n)).collect();
    legend(&mut out, &names);
    Some(out + "</svg>\n")
}

/// Returns an SVG of horizontal bars with their values and a dotted line at `target`. `None` without bars or if all
/// values and the target are at most 0.
pub fn bars(title: &str, unit: &str, bars: &[Bar], target: Option<f64>) -> Option<String> {
    let most = bars.iter().map(|bar| bar.value).chain(target).fold(0.0, f64::max);
    if bars.is_empty() || most <= 0.0 {
        return None;
    }
    let (left, right, step) = (210.0, 630.0, 27.0);
    let bottom = TOP + step * bars.len() as f64;
    let mut out = svg_head_with_height(title, bottom + 56.0);
    let place = |value: f64| left + (right - left) * value / most;
    for tick in round_ticks(0.0, most, 5) {
        let x = place(tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text class=\"label\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            plain_label(tick)
        );
    }
    for (n, bar) in bars.iter().enumerate() {
        let y = TOP + step * n as f64 + 4.0;
        let width = (place(bar.value) - left).max(1.0);
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{left}\" y=\"{y}\" width=\"{width:.1}\" height=\"18\" rx=\"2\" \
             {}/><text class=\"name\" x=\"{:.1}\" y=\"{}\">{}</text>",
            left - 8.0,
            y + 13.0,
            escape(&bar.name),
            fill([0, 5, 1][bar.colour.min(2)]),
            left + width + 6.0,
            y + 13.0,
            crate::run::format_number(bar.value)
        );
    }
    if let Some(target) = target {
        let x = place(target);
        let _ = writeln!(
            out,
            "<line class=\"target\" x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text class=\"label\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">target</text>",
            TOP - 4.0,
            TOP - 8.0
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (left + right) / 2.0,
        bottom + 36.0,
        escape(unit)
    );
    Some(out + "</svg>\n")
}

fn svg_head(title: &str) -> String {
    svg_head_with_height(title, HEIGHT)
}

fn svg_head_with_height(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\"><style>{STYLE}</style>\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\
         <text class=\"title\" x=\"20\" y=\"26\">{title}</text>\n",
        title = escape(title)
    )
}

fn frame(out: &mut String, x: &Axis, y: &Axis, xs: &Scale, ys: &Scale) {
    for tick in ys.ticks() {
        let at = ys.position(tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"label\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            axis_label(y, tick)
        );
    }
    for tick in xs.ticks() {
        let at = xs.position(tick);
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{BOTTOM}\" x2=\"{at:.1}\" y2=\"{}\"/>\
             <text class=\"label\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 5.0,
            BOTTOM + 19.0,
            axis_label(x, tick)
        );
    }
    let (middle_x, middle_y) = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
    let _ = writeln!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{BOTTOM}\" x2=\"{RIGHT}\" y2=\"{BOTTOM}\"/>\
         <text class=\"label\" x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
         <text class=\"label\" x=\"18\" y=\"{middle_y}\" text-anchor=\"middle\" \
         transform=\"rotate(-90 18 {middle_y})\">{}</text>",
        BOTTOM + 38.0,
        escape(&x.name),
        escape(&y.name)
    );
}

fn legend(out: &mut String, names: &[(&str, usize)]) {
    let (mut at, mut y) = (LEFT, BOTTOM + 58.0);
    for (name, n) in names {
        let width = 34.0 + name.chars().count() as f64 * 6.6;
        if at + width > RIGHT && at > LEFT {
            (at, y) = (LEFT, y + 17.0);
        }
        let dash = if n % 2 == 1 { " stroke-dasharray=\"6 3\"" } else { "" };
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{:.1}\" y2=\"{}\" {} \
             stroke-width=\"3\"{dash}/><text class=\"name\" x=\"{:.1}\" y=\"{y}\">{}</text>",
            y - 4.0,
            at + 18.0,
            y - 4.0,
            stroke(*n),
            at + 24.0,
            escape(name)
        );
        at += width + 14.0;
    }
}

/// Mapping of values from `low` to `high` to SVG coordinates from `start` to `end`.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    style: AxisFormat,
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        if axis.log {
            low = low.max(1e-9);
            // Factor of the margin at both ends.
            let room = if axis.style == AxisFormat::Binary { 1.4 } else { 1.15 };
            (low, high) = (low / room, (high * room).max(low * 2.0));
        } else {
            (low, high) = (0.0_f64.min(low), if high > 0.0 { high * 1.08 } else { 1.0 });
        }
        Scale { log: axis.log, low, high, start: from, end: to, style: axis.style }
    }

    fn position(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.start + (self.end - self.start) * share
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.log {
            return round_ticks(self.low, self.high, 5);
        }
        let base: f64 = if self.style == AxisFormat::Binary { 4.0 } else { 10.0 };
        let powers = |step: f64| {
            let first = (self.low.ln() / step.ln()).ceil() as i32;
            let last = (self.high.ln() / step.ln()).floor() as i32;
            (first..=last).map(|n| step.powi(n)).collect::<Vec<_>>()
        };
        let few = powers(base);
        if few.len() >= 3 || self.style == AxisFormat::Nines {
            return few;
        }
        // A short axis contains fewer than three powers. Its ticks are at 1, 2 and 5 of each decade.
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .flat_map(|n| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(n)))
            .filter(|&tick| tick >= self.low && tick <= self.high)
            .collect()
    }
}

/// Returns at most `about + 1` multiples of a round step, from `low` to `high`.
fn round_ticks(low: f64, high: f64, about: u32) -> Vec<f64> {
    let raw = (high - low) / f64::from(about);
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power);
    let step = step.into_iter().find(|&step| step >= raw).unwrap_or(power * 10.0);
    let first = (low / step).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

fn axis_label(axis: &Axis, value: f64) -> String {
    match axis.style {
        AxisFormat::Plain => plain_label(value),
        AxisFormat::Binary if value >= f64::from(1 << 20) => {
            format!("{} Mi", plain_label(value / f64::from(1 << 20)))
        }
        AxisFormat::Binary if value >= 1024.0 => format!("{} Ki", plain_label(value / 1024.0)),
        AxisFormat::Binary => plain_label(value),
        AxisFormat::Nines => {
            let percent = 100.0 * (1.0 - 1.0 / value);
            let digits = (value.log10().round() as usize).saturating_sub(2);
            format!("{percent:.digits$} %")
        }
    }
}

fn plain_label(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 1e9 => (value * 1e-9, " G"),
        v if v >= 1e6 => (value * 1e-6, " M"),
        v if v >= 1e4 => (value * 1e-3, " k"),
        _ => (value, ""),
    };
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(round_ticks(0.0, 9.3, 5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(round_ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn axis_labels_are_human_readable() {
        let axis = |style| Axis { name: String::new(), log: true, style };
        assert_eq!(axis_label(&axis(AxisFormat::Binary), 4096.0), "4 Ki");
        assert_eq!(axis_label(&axis(AxisFormat::Plain), 2_500_000.0), "2.5 M");
        assert_eq!(axis_label(&axis(AxisFormat::Nines), 10.0), "90 %");
        assert_eq!(axis_label(&axis(AxisFormat::Nines), 1000.0), "99.9 %");
    }

    #[test]
    fn plots_have_literal_colours() {
        let axis = Axis { name: String::new(), log: false, style: AxisFormat::Plain };
        let series = Series { name: "a".into(), points: vec![(1.0, 2.0), (2.0, 3.0)] };
        let bar = Bar { name: "b".into(), value: 1.0, colour: 2 };
        for svg in [lines("t", &axis, &axis, &[series]), bars("t", "u", &[bar], None)] {
            let svg = svg.unwrap();
            assert!(!svg.contains("var(") && svg.contains("fill=\"#"), "{svg}");
        }
    }

    #[test]
    fn empty_series_gives_no_plot() {
        let axis = Axis { name: String::new(), log: false, style: AxisFormat::Plain };
        assert_eq!(lines("t", &axis, &axis, &[]), None);
        assert_eq!(bars("t", "u", &[], None), None);
    }
}
