//! The state of the screen, and its changes by keys and samples. Nothing here reads a clock or a
//! terminal.

use std::collections::VecDeque;
use std::time::Duration;

use api::StreamId;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::sample::{Sample, Totals};
use super::table::{Sort, Table, clean};
use super::{INTERVALS, View, columns};
use crate::explain::hint_on_notes;

/// Samples whose rates the sparklines show, at most.
const REMEMBERED: usize = 300;
/// Characters of a filter, at most.
const LONGEST_FILTER: usize = 60;
/// Intervals that the keys step through, milliseconds.
const STEPS: [u64; 8] = [200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// Columns by which text moves sideways.
const SIDEWAYS: usize = 8;

const HELP: &[&str] = &[
    "1 2 3 4 5      streams, workers, regions, peers, ports",
    "Tab, arrows    the next view, the one before",
    "s S            order by the next column, the one before; r reverses",
    "/              show only rows with a text; Esc shows all again",
    "up, down       select a row, also PgUp PgDn Home End",
    "Enter          all that is known of the stream",
    "n              the notes of the appliance",
    "Space          pause",
    "+ -            look less often, more often",
    "q, Ctrl-C      quit",
    "",
    "Rates are those between the last two looks. RX: what peers placed here, or a",
    "port received; TX: what was sent. rx and tx above are sums of all ports.",
    "ddpctl why STREAM tells of a stream that has ended, ddpctl explain NAME what a",
    "drop reason, a note or an event means. ddpctl stats has the drops by reason.",
];

/// The loop's action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Draw.
    Draw,
    /// Draw, and take a sample now.
    Look,
    Quit,
}

/// The overlay above the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    Help,
    Notes,
    /// A stream, with its text once it has arrived.
    Stream(StreamId, Option<Vec<String>>),
}

/// Settings of one view.
#[derive(Clone, Debug, Default)]
struct Own {
    sort: Sort,
    filter: String,
    /// Identity of the selected row; `None` selects the first.
    selected: Option<String>,
    /// Last index of the selected row.
    at: usize,
}

/// The whole state of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) view: View,
    pub(super) interval: Duration,
    pub(super) paused: bool,
    /// A filter that is being edited.
    pub(super) editing: Option<String>,
    pub(super) overlay: Option<Overlay>,
    /// The first line and column of the overlay that are shown.
    pub(super) scroll: (usize, usize),
    pub(super) now: Option<Sample>,
    before: Option<Sample>,
    pub(super) totals: Totals,
    pub(super) rx: VecDeque<u64>,
    pub(super) tx: VecDeque<u64>,
    /// Why the last look failed.
    pub(super) trouble: Option<String>,
    /// Time without an answer of the appliance, if long enough to be shown.
    pub(super) silent: Option<Duration>,
    pub(super) table: Table,
    pub(super) widths: Vec<usize>,
    /// Rows that fit; the drawing sets it.
    pub(super) page: usize,
    views: [Own; 5],
}

impl State {
    pub(super) fn new(view: View, interval: Duration) -> Self {
        Self {
            view,
            interval,
            paused: false,
            editing: None,
            overlay: None,
            scroll: (0, 0),
            now: None,
            before: None,
            totals: Totals::default(),
            rx: VecDeque::new(),
            tx: VecDeque::new(),
            trouble: None,
            silent: None,
            table: Table { heads: columns::heads(view), ..Table::default() },
            widths: Vec::new(),
            page: 1,
            views: Default::default(),
        }
    }

    /// Sets order and filter of the first view.
    pub(super) fn begin_with(&mut self, sort: &str, filter: &str) {
        let column = columns::heads(self.view).iter().position(|head| head.key == sort);
        self.own_mut().sort.column = column;
        self.own_mut().filter = filter.chars().take(LONGEST_FILTER).collect();
        self.rebuild();
    }

    pub(super) fn sort(&self) -> Sort {
        self.own().sort
    }

    pub(super) fn filter(&self) -> &str {
        &self.own().filter
    }

    /// Returns the index of the selected row, 0 if there are no rows.
    pub(super) fn selected(&self) -> usize {
        self.own().at.min(self.table.rows.len().saturating_sub(1))
    }

    /// Returns what the next sample must include: the list of streams, and a single stream.
    pub(super) fn wants(&self) -> (bool, Option<StreamId>) {
        let stream = match self.overlay {
            Some(Overlay::Stream(id, _)) => Some(id),
            _ => None,
        };
        (self.view.of_streams(), stream)
    }

    // --- samples ---

    /// Handles a sample, or the reason of its failure.
    pub(super) fn on_sample(&mut self, sample: Result<Sample, String>) {
        let sample = match sample {
            Ok(sample) => sample,
            Err(message) => {
                self.trouble = Some(clean(&message));
                return;
            }
        };
        (self.trouble, self.silent) = (None, None);
        self.before = self.now.take().filter(|before| sample.continues(before));
        self.totals = sample.totals(self.before.as_ref());
        for (rates, rate) in [(&mut self.rx, self.totals.rx), (&mut self.tx, self.totals.tx)] {
            if let Some(rate) = rate {
                rates.push_back(rate as u64);
            }
            while rates.len() > REMEMBERED {
                rates.pop_front();
            }
        }
        self.now = Some(sample);
        self.rebuild();
    }

    /// Handles the text of a requested stream.
    pub(super) fn on_stream(&mut self, stream: StreamId, text: &str) {
        if let Some(Overlay::Stream(id, lines)) = &mut self.overlay
            && *id == stream
        {
            *lines = Some(text.lines().map(clean).collect());
        }
    }

    /// Builds the view's table in its order; the selection follows its row.
    fn rebuild(&mut self) {
        let own = &self.views[self.view as usize];
        self.table = match &self.now {
            Some(now) => columns::table(self.view, now, self.before.as_ref()),
            None => Table { heads: columns::heads(self.view), ..Table::default() },
        };
        self.table.arrange(own.sort, &own.filter);
        self.widths = self.table.widths();
        let place =
            own.selected.as_ref().map(|id| self.table.rows.iter().position(|r| r.id == *id));
        match place {
            None => self.own_mut().at = 0,
            Some(Some(at)) => self.own_mut().at = at,
            // The selected row has disappeared: keep its index.
            Some(None) => {}
        }
    }

    // --- keys ---

    pub(super) fn on_key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control {
            let quits = key.code == KeyCode::Char('c');
            return if quits { Action::Quit } else { Action::Draw };
        }
        if self.editing.is_some() {
            self.edit(key.code);
            return Action::Draw;
        }
        match self.overlay {
            Some(_) => self.in_overlay(key.code),
            None => self.in_table(key.code),
        }
    }

    fn edit(&mut self, key: KeyCode) {
        let Some(text) = &mut self.editing else { return };
        match key {
            KeyCode::Char(c) if text.chars().count() < LONGEST_FILTER => text.push(c),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Esc => self.editing = None,
            KeyCode::Enter => {
                let text = std::mem::take(text);
                self.editing = None;
                self.filter_by(text);
            }
            _ => {}
        }
    }

    fn filter_by(&mut self, text: String) {
        self.own_mut().filter = text;
        self.own_mut().selected = None;
        self.rebuild();
    }

    fn in_overlay(&mut self, key: KeyCode) -> Action {
        let page = self.page.max(1);
        let (down, across) = &mut self.scroll;
        match key {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?' | 'n') => self.overlay = None,
            KeyCode::Up | KeyCode::Char('k') => *down = down.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *down += 1,
            KeyCode::PageUp => *down = down.saturating_sub(page),
            KeyCode::PageDown => *down += page,
            KeyCode::Home => (*down, *across) = (0, 0),
            KeyCode::Left => *across = across.saturating_sub(SIDEWAYS),
            KeyCode::Right => *across += SIDEWAYS,
            _ => {}
        }
        let lines = self.overlay_lines();
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        self.scroll.0 = self.scroll.0.min(lines.len().saturating_sub(1));
        self.scroll.1 = self.scroll.1.min(widest.saturating_sub(1));
        Action::Draw
    }

    /// Returns the lines of the overlay.
    pub(super) fn overlay_lines(&self) -> Vec<String> {
        match &self.overlay {
            None => Vec::new(),
            Some(Overlay::Help) => HELP.iter().map(|&line| line.to_owned()).collect(),
            Some(Overlay::Notes) => {
                let notes = self.now.as_ref().map(|now| now.status.notes.as_slice());
                let notes = notes.unwrap_or_default();
                let mut lines: Vec<String> = notes.iter().map(|note| clean(note)).collect();
                let kinds = self.now.as_ref().map(|now| now.status.note_kinds.as_slice());
                let hint = hint_on_notes(kinds.unwrap_or_default());
                lines.extend(hint.lines().map(clean));
                if lines.is_empty() { vec!["the appliance has no notes".into()] } else { lines }
            }
            Some(Overlay::Stream(_, Some(lines))) => lines.clone(),
            Some(Overlay::Stream(id, None)) => vec![format!("{id}: asking")],
        }
    }

    fn in_table(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Tab | KeyCode::Right => return self.step_view(1),
            KeyCode::BackTab | KeyCode::Left => return self.step_view(View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => {
                return self.show(View::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Enter => return self.show_stream(),
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                return if self.paused { Action::Draw } else { Action::Look };
            }
            KeyCode::Char('s') => self.step_sort(1),
            KeyCode::Char('S') => self.step_sort(self.table.heads.len()),
            KeyCode::Char('r') => {
                self.own_mut().sort.reverse ^= true;
                self.rebuild();
            }
            KeyCode::Char('/') => self.editing = Some(self.filter().to_owned()),
            KeyCode::Esc => self.filter_by(String::new()),
            KeyCode::Char('+') => self.step_interval(true),
            KeyCode::Char('-') => self.step_interval(false),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.lay(Overlay::Help),
            KeyCode::Char('n') => self.lay(Overlay::Notes),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(|at, _| at + 1),
            KeyCode::PageUp => self.select(|at, page| at.saturating_sub(page)),
            KeyCode::PageDown => self.select(|at, page| at + page),
            KeyCode::Home => self.select(|_, _| 0),
            KeyCode::End => self.select(|_, _| usize::MAX),
            _ => {}
        }
        Action::Draw
    }

    fn lay(&mut self, overlay: Overlay) {
        self.overlay = Some(overlay);
        self.scroll = (0, 0);
    }

    fn step_view(&mut self, by: usize) -> Action {
        self.show(View::ALL[(self.view as usize + by) % View::ALL.len()])
    }

    /// Takes a sample at once if the last one lacks the view's data.
    fn show(&mut self, view: View) -> Action {
        self.view = view;
        self.rebuild();
        let lacks = self.now.as_ref().is_none_or(|now| now.streams.is_none());
        if view.of_streams() && lacks { Action::Look } else { Action::Draw }
    }

    fn show_stream(&mut self) -> Action {
        let row = self.table.rows.get(self.selected());
        let stream = row.filter(|_| self.view == View::Streams).and_then(|row| row.id.parse().ok());
        let Some(stream) = stream else { return Action::Draw };
        self.lay(Overlay::Stream(stream, None));
        Action::Look
    }

    /// Selects the next order: the busiest first, then each column.
    fn step_sort(&mut self, by: usize) {
        let orders = self.table.heads.len() + 1;
        let sort = &mut self.own_mut().sort;
        let next = (sort.column.map_or(0, |column| column + 1) + by) % orders;
        *sort = Sort { column: next.checked_sub(1), reverse: false };
        self.rebuild();
    }

    fn step_interval(&mut self, longer: bool) {
        let mut steps = STEPS.into_iter().map(Duration::from_millis);
        let next = match longer {
            true => steps.find(|step| *step > self.interval),
            false => steps.rfind(|step| *step < self.interval),
        };
        let [least, most] = INTERVALS;
        self.interval = next.unwrap_or(self.interval).clamp(least, most);
    }

    fn select(&mut self, to: impl Fn(usize, usize) -> usize) {
        let last = self.table.rows.len().saturating_sub(1);
        let at = to(self.selected(), self.page.max(1)).min(last);
        let id = self.table.rows.get(at).map(|row| row.id.clone());
        let own = self.own_mut();
        (own.at, own.selected) = (at, id);
    }

    fn own(&self) -> &Own {
        &self.views[self.view as usize]
    }

    fn own_mut(&mut self) -> &mut Own {
        &mut self.views[self.view as usize]
    }
}
