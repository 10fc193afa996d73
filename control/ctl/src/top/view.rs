//! Draws the [state](State): three lines about the appliance, the tabs, the table or an overlay, the keys. Supports any
//! terminal size.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table as Rows};

use super::once::headline;
use super::state::{Overlay, State};
use super::table::{Table, bits, sanitize};
use super::{View, table};
use crate::show;

/// Width of a rate before its sparkline, characters.
const RATE_WIDTH: u16 = 16;

const KEYS: &str =
    "q quit  ? help  1-6 Tab view  s r order  / filter  Enter stream  Space pause  +-";
const OVERLAY_KEYS: &str = "Esc back  arrows PgUp PgDn scroll  Ctrl-C quit";

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let [top, rates, notes, tabs, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_top(frame, top, state);
    draw_rates(frame, rates, state);
    draw_notes(frame, notes, state);
    draw_tabs(frame, tabs, state);
    if state.overlay.is_some() {
        state.page = usize::from(body.height);
        draw_overlay(frame, body, state);
    } else {
        state.page = usize::from(body.height.saturating_sub(1));
        draw_table(frame, body, state);
    }
    draw_keys(frame, keys, state);
}

/// Draws a line with a right-aligned part, which is dropped if it does not fit.
fn draw_left_right(frame: &mut Frame<'_>, area: Rect, left: Line<'_>, right: Line<'_>) {
    let wide = u16::try_from(right.width()).unwrap_or(u16::MAX);
    let fits = left.width() + 2 + right.width() <= usize::from(area.width);
    let wide = if fits { wide } else { 0 };
    let parts = Layout::horizontal([Constraint::Min(0), Constraint::Length(wide)]);
    let [first, last] = parts.areas(area);
    frame.render_widget(left, first);
    frame.render_widget(right.alignment(Alignment::Right), last);
}

fn draw_top(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let left = match &state.current {
        Some(now) => sanitize(&headline(now)),
        None => "ddpctl top".into(),
    };
    let right = match state.paused {
        true => Line::from("PAUSED".bold().yellow()),
        false => Line::from(format!("every {}", humantime::format_duration(state.interval))),
    };
    draw_left_right(frame, area, Line::from(left.bold()), right);
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]);
    let [rx, tx] = halves.areas(area);
    draw_rate(frame, rx, "rx", state.totals.rx, &state.rx);
    draw_rate(frame, tx, "tx", state.totals.tx, &state.tx);
}

fn draw_rate(
    frame: &mut Frame<'_>,
    area: Rect,
    name: &str,
    rate: Option<f64>,
    history: &VecDeque<u64>,
) {
    let parts = [Constraint::Length(RATE_WIDTH), Constraint::Min(0), Constraint::Length(1)];
    let [text, line, _] = Layout::horizontal(parts).areas(area);
    frame.render_widget(format!("{name} {}", show::text_or_dash(rate.map(bits))), text);
    let skip = history.len().saturating_sub(usize::from(line.width));
    let data: Vec<u64> = history.iter().skip(skip).copied().collect();
    // The newest value is at the right end.
    let free = line.width.saturating_sub(u16::try_from(data.len()).unwrap_or(u16::MAX));
    let line = Rect { x: line.x + free, width: line.width - free, ..line };
    frame.render_widget(Sparkline::default().data(data).style(Color::Green), line);
}

fn draw_notes(frame: &mut Frame<'_>, area: Rect, state: &State) {
    if state.error.is_some() || state.silent_for.is_some() {
        return frame.render_widget(error_text(state).bold().red(), area);
    }
    let drops = show::text_or_dash(state.totals.drops.map(|drops| format!("{drops:.0}/s")));
    let mut spans = vec![Span::raw(format!("drops {drops}  "))];
    let notes = state.current.as_ref().map(|now| now.status.notes.as_slice()).unwrap_or_default();
    match notes {
        [] => spans.push(Span::raw("no notes")),
        [note] => spans.push(format!("1 note: {}", sanitize(note)).yellow()),
        [note, ..] => spans.push(format!("{} notes (n): {}", notes.len(), sanitize(note)).yellow()),
    }
    frame.render_widget(Line::from(spans), area);
}

/// Formats the time since the appliance's last answer, and the reason of the failure.
fn error_text(state: &State) -> String {
    let silent =
        state.silent_for.map(|time| format!(" for {}", show::format_seconds(time.as_secs_f64())));
    let why = state.error.as_ref().map(|why| format!(": {why}"));
    format!("no answer{}{}", silent.unwrap_or_default(), why.unwrap_or_default())
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let mut spans = Vec::new();
    for (i, view) in View::ALL.into_iter().enumerate() {
        let tab = Span::raw(format!("{}:{}", i + 1, view.as_str()));
        spans.extend((i > 0).then(|| Span::raw(" ")));
        spans.push(if view == state.view { tab.reversed() } else { tab });
    }
    let left = Line::from(spans);
    let room = usize::from(area.width).saturating_sub(left.width() + 2);
    let mut right = state.table.count_text();
    if !state.filter().is_empty() {
        right += &format!(", with {:?}", sanitize(state.filter()));
    }
    let order = if state.sort().reverse { "idlest" } else { table::SORT_BUSIEST };
    let order = format!(", {order} first");
    // The sort order is omitted if it does not fit next to the filter.
    if state.sort().column.is_none() && right.chars().count() + order.len() <= room {
        right += &order;
    }
    let right: String = right.chars().take(room).collect();
    draw_left_right(frame, area, left, Line::from(right));
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let table = &state.table;
    let columns =
        fitting_columns(table, &state.widths, state.sort().column, usize::from(area.width));
    let heads = columns.iter().map(|&i| {
        let head = table.heads[i];
        let mark = match (state.sort().column == Some(i), state.sort().reverse) {
            (false, _) => "",
            (true, false) => "▼",
            (true, true) => "▲",
        };
        aligned_cell(format!("{}{mark}", head.title), head.is_right_aligned)
    });
    let (selected, page) = (state.selected(), state.page.max(1));
    let first = selected - selected % page;
    let rows = table.rows.iter().enumerate().skip(first).take(page).map(|(i, row)| {
        let cells = columns.iter().map(|&column| {
            let text = row.cells.get(column).map(|cell| cell.text.clone()).unwrap_or_default();
            aligned_cell(text, table.heads[column].is_right_aligned)
        });
        let modifier = if i == selected { Modifier::REVERSED } else { Modifier::empty() };
        Row::new(cells).style(Style::new().add_modifier(modifier))
    });
    let wide = |&i: &usize| Constraint::Length(u16::try_from(state.widths[i]).unwrap_or(u16::MAX));
    let header = Row::new(heads).style(Style::new().bold().cyan());
    let rows = Rows::new(rows, columns.iter().map(wide)).column_spacing(1).header(header);
    frame.render_widget(rows, area);
    if table.rows.is_empty() && area.height > 1 {
        let text = match (&state.current, state.filter()) {
            (None, _) => "asking",
            (Some(_), "") => "none",
            (Some(_), _) => "none with this text: Esc shows all",
        };
        frame.render_widget(text, Rect { y: area.y + 1, height: 1, ..area });
    }
}

fn aligned_cell(text: String, right: bool) -> Cell<'static> {
    let text = Text::from(text);
    Cell::from(if right { text.right_aligned() } else { text })
}

/// Selects the columns that fit: the first column, the sort column, then the others from the left.
fn fitting_columns(
    table: &Table,
    widths: &[usize],
    sort: Option<usize>,
    mut room: usize,
) -> Vec<usize> {
    let mut columns = Vec::new();
    let order = [Some(0), sort].into_iter().flatten().chain(0..table.heads.len());
    for column in order {
        let Some(width) = widths.get(column) else { continue };
        let needed = width + usize::from(!columns.is_empty());
        if !columns.contains(&column) && (needed <= room || columns.is_empty()) {
            columns.push(column);
            room = room.saturating_sub(needed);
        }
    }
    columns.sort_unstable();
    columns
}

fn draw_overlay(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let (down, across) = state.scroll;
    let line = |line: &String| Line::from(line.chars().skip(across).collect::<String>());
    let lines: Vec<Line<'_>> =
        state.overlay_lines().iter().skip(down).take(usize::from(area.height)).map(line).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let style = Style::new().add_modifier(Modifier::DIM);
    let line = match (&state.editing, &state.overlay) {
        (Some(text), _) => {
            let help = Span::styled("  Enter filters, Esc leaves it as it was", style);
            Line::from(vec![format!("filter: {}_", sanitize(text)).bold(), help])
        }
        (None, Some(Overlay::Stream(id, _))) => {
            Line::styled(format!("stream {id}  {OVERLAY_KEYS}"), style)
        }
        (None, Some(_)) => Line::styled(OVERLAY_KEYS, style),
        (None, None) => Line::styled(KEYS, style),
    };
    frame.render_widget(line, area);
}
