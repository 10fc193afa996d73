//! The state of the screen, changed by keys and samples. This module uses neither the clock nor the terminal.

use std::collections::VecDeque;
use std::time::Duration;

use api::StreamId;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::sample::{Sample, Totals};
use super::table::{Sort, Table, sanitize};
use super::{INTERVALS, View, columns};
use crate::explain::hint_on_notes;

/// Maximum number of samples whose rates the sparklines show.
const HISTORY_LEN: usize = 300;
/// Maximum number of characters in a filter.
const MAX_FILTER_LEN: usize = 60;
/// Sampling intervals that the keys + and - select, milliseconds.
const INTERVAL_STEPS_MS: [u64; 8] = [200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];
/// Number of columns by which an arrow key scrolls text sideways.
const SCROLL_COLUMNS: usize = 8;

const HELP: &[&str] = &[
    "1 2 3 4 5 6    streams, workers, regions, peers, ports, programs",
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

/// Action of the main loop after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Draw the screen.
    Draw,
    /// Draw the screen, and take a sample now.
    Refresh,
    Quit,
}

/// The overlay, which is shown instead of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    Help,
    Notes,
    /// A stream, with its text once received.
    Stream(StreamId, Option<Vec<String>>),
}

/// Settings of one view.
#[derive(Clone, Debug, Default)]
struct ViewState {
    sort: Sort,
    filter: String,
    /// Identity of the selected row; `None` selects the first.
    selected: Option<String>,
    /// Last index of the selected row.
    index: usize,
}

/// The whole state of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) view: View,
    pub(super) interval: Duration,
    pub(super) paused: bool,
    /// The filter that is being edited, if any.
    pub(super) editing: Option<String>,
    pub(super) overlay: Option<Overlay>,
    /// First visible line and column of the overlay.
    pub(super) scroll: (usize, usize),
    pub(super) current: Option<Sample>,
    previous: Option<Sample>,
    pub(super) totals: Totals,
    pub(super) rx: VecDeque<u64>,
    pub(super) tx: VecDeque<u64>,
    /// Reason why the last sample failed.
    pub(super) error: Option<String>,
    /// Time since the appliance's last answer, if long enough to be shown.
    pub(super) silent_for: Option<Duration>,
    pub(super) table: Table,
    pub(super) widths: Vec<usize>,
    /// Number of rows that fit on the screen, set by `view::draw`.
    pub(super) page: usize,
    views: [ViewState; View::ALL.len()],
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
            current: None,
            previous: None,
            totals: Totals::default(),
            rx: VecDeque::new(),
            tx: VecDeque::new(),
            error: None,
            silent_for: None,
            table: Table { heads: columns::heads(view), ..Table::default() },
            widths: Vec::new(),
            page: 1,
            views: Default::default(),
        }
    }

    /// Sets the sort order and the filter of the first view.
    pub(super) fn set_initial(&mut self, sort: &str, filter: &str) {
        let column = columns::heads(self.view).iter().position(|head| head.key == sort);
        self.view_state_mut().sort.column = column;
        self.view_state_mut().filter = filter.chars().take(MAX_FILTER_LEN).collect();
        self.rebuild_table();
    }

    pub(super) fn sort(&self) -> Sort {
        self.view_state().sort
    }

    pub(super) fn filter(&self) -> &str {
        &self.view_state().filter
    }

    /// Returns the index of the selected row; 0 if there are no rows.
    pub(super) fn selected(&self) -> usize {
        self.view_state().index.min(self.table.rows.len().saturating_sub(1))
    }

    /// Returns the contents of the next request: true for the list of streams, and the stream of the overlay, if any.
    pub(super) fn requested_data(&self) -> (bool, Option<StreamId>) {
        let stream = match self.overlay {
            Some(Overlay::Stream(id, _)) => Some(id),
            _ => None,
        };
        (self.view.needs_streams(), stream)
    }

    // --- samples ---

    /// Handles a sample, or the error of a failed sample.
    pub(super) fn handle_sample(&mut self, sample: Result<Sample, String>) {
        let sample = match sample {
            Ok(sample) => sample,
            Err(message) => {
                self.error = Some(sanitize(&message));
                return;
            }
        };
        (self.error, self.silent_for) = (None, None);
        self.previous = self.current.take().filter(|before| sample.is_same_process(before));
        self.totals = sample.totals(self.previous.as_ref());
        for (rates, rate) in [(&mut self.rx, self.totals.rx), (&mut self.tx, self.totals.tx)] {
            if let Some(rate) = rate {
                rates.push_back(rate as u64);
            }
            while rates.len() > HISTORY_LEN {
                rates.pop_front();
            }
        }
        self.current = Some(sample);
        self.rebuild_table();
    }

    /// Stores the text of a requested stream if the overlay still shows that stream.
    pub(super) fn handle_stream(&mut self, stream: StreamId, text: &str) {
        if let Some(Overlay::Stream(id, lines)) = &mut self.overlay
            && *id == stream
        {
            *lines = Some(text.lines().map(sanitize).collect());
        }
    }

    /// Builds the filtered and sorted table of the view. The selection stays on its row.
    fn rebuild_table(&mut self) {
        let own = &self.views[self.view as usize];
        self.table = match &self.current {
            Some(now) => columns::table(self.view, now, self.previous.as_ref()),
            None => Table { heads: columns::heads(self.view), ..Table::default() },
        };
        self.table.filter_and_sort(own.sort, &own.filter);
        self.widths = self.table.widths();
        let place =
            own.selected.as_ref().map(|id| self.table.rows.iter().position(|r| r.id == *id));
        match place {
            None => self.view_state_mut().index = 0,
            Some(Some(at)) => self.view_state_mut().index = at,
            // The selected row has disappeared: its index is kept.
            Some(None) => {}
        }
    }

    // --- keys ---

    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control {
            let quits = key.code == KeyCode::Char('c');
            return if quits { Action::Quit } else { Action::Draw };
        }
        if self.editing.is_some() {
            self.edit_filter(key.code);
            return Action::Draw;
        }
        match self.overlay {
            Some(_) => self.handle_overlay_key(key.code),
            None => self.handle_table_key(key.code),
        }
    }

    fn edit_filter(&mut self, key: KeyCode) {
        let Some(text) = &mut self.editing else { return };
        match key {
            KeyCode::Char(c) if text.chars().count() < MAX_FILTER_LEN => text.push(c),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Esc => self.editing = None,
            KeyCode::Enter => {
                let text = std::mem::take(text);
                self.editing = None;
                self.set_filter(text);
            }
            _ => {}
        }
    }

    fn set_filter(&mut self, text: String) {
        self.view_state_mut().filter = text;
        self.view_state_mut().selected = None;
        self.rebuild_table();
    }

    fn handle_overlay_key(&mut self, key: KeyCode) -> Action {
        let page = self.page.max(1);
        let (down, across) = &mut self.scroll;
        match key {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?' | 'n') => self.overlay = None,
            KeyCode::Up | KeyCode::Char('k') => *down = down.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => *down += 1,
            KeyCode::PageUp => *down = down.saturating_sub(page),
            KeyCode::PageDown => *down += page,
            KeyCode::Home => (*down, *across) = (0, 0),
            KeyCode::Left => *across = across.saturating_sub(SCROLL_COLUMNS),
            KeyCode::Right => *across += SCROLL_COLUMNS,
            _ => {}
        }
        let lines = self.overlay_lines();
        let widest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        self.scroll.0 = self.scroll.0.min(lines.len().saturating_sub(1));
        self.scroll.1 = self.scroll.1.min(widest.saturating_sub(1));
        Action::Draw
    }

    pub(super) fn overlay_lines(&self) -> Vec<String> {
        match &self.overlay {
            None => Vec::new(),
            Some(Overlay::Help) => HELP.iter().map(|&line| line.to_owned()).collect(),
            Some(Overlay::Notes) => {
                let notes = self.current.as_ref().map(|now| now.status.notes.as_slice());
                let notes = notes.unwrap_or_default();
                let mut lines: Vec<String> = notes.iter().map(|note| sanitize(note)).collect();
                let kinds = self.current.as_ref().map(|now| now.status.note_kinds.as_slice());
                let hint = hint_on_notes(kinds.unwrap_or_default());
                lines.extend(hint.lines().map(sanitize));
                if lines.is_empty() { vec!["the appliance has no notes".into()] } else { lines }
            }
            Some(Overlay::Stream(_, Some(lines))) => lines.clone(),
            Some(Overlay::Stream(id, None)) => vec![format!("{id}: asking")],
        }
    }

    fn handle_table_key(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Tab | KeyCode::Right => return self.step_view(1),
            KeyCode::BackTab | KeyCode::Left => return self.step_view(View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='6') => {
                return self.show_view(View::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Enter => return self.show_stream(),
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                return if self.paused { Action::Draw } else { Action::Refresh };
            }
            KeyCode::Char('s') => self.step_sort(1),
            KeyCode::Char('S') => self.step_sort(self.table.heads.len()),
            KeyCode::Char('r') => {
                self.view_state_mut().sort.reverse ^= true;
                self.rebuild_table();
            }
            KeyCode::Char('/') => self.editing = Some(self.filter().to_owned()),
            KeyCode::Esc => self.set_filter(String::new()),
            KeyCode::Char('+') => self.step_interval(true),
            KeyCode::Char('-') => self.step_interval(false),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.open_overlay(Overlay::Help),
            KeyCode::Char('n') => self.open_overlay(Overlay::Notes),
            KeyCode::Up | KeyCode::Char('k') => self.select_row(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select_row(|at, _| at + 1),
            KeyCode::PageUp => self.select_row(|at, page| at.saturating_sub(page)),
            KeyCode::PageDown => self.select_row(|at, page| at + page),
            KeyCode::Home => self.select_row(|_, _| 0),
            KeyCode::End => self.select_row(|_, _| usize::MAX),
            _ => {}
        }
        Action::Draw
    }

    fn open_overlay(&mut self, overlay: Overlay) {
        self.overlay = Some(overlay);
        self.scroll = (0, 0);
    }

    fn step_view(&mut self, by: usize) -> Action {
        self.show_view(View::ALL[(self.view as usize + by) % View::ALL.len()])
    }

    /// Shows another view. Takes a sample at once if the last one lacks the view's data.
    fn show_view(&mut self, view: View) -> Action {
        self.view = view;
        self.rebuild_table();
        let lacks = self.current.as_ref().is_none_or(|now| now.streams.is_none());
        if view.needs_streams() && lacks { Action::Refresh } else { Action::Draw }
    }

    fn show_stream(&mut self) -> Action {
        let row = self.table.rows.get(self.selected());
        let stream = row.filter(|_| self.view == View::Streams).and_then(|row| row.id.parse().ok());
        let Some(stream) = stream else { return Action::Draw };
        self.open_overlay(Overlay::Stream(stream, None));
        Action::Refresh
    }

    /// Moves `by` steps in the cycle of sort orders: busiest first, then each column.
    fn step_sort(&mut self, by: usize) {
        let orders = self.table.heads.len() + 1;
        let sort = &mut self.view_state_mut().sort;
        let next = (sort.column.map_or(0, |column| column + 1) + by) % orders;
        *sort = Sort { column: next.checked_sub(1), reverse: false };
        self.rebuild_table();
    }

    fn step_interval(&mut self, longer: bool) {
        let mut steps = INTERVAL_STEPS_MS.into_iter().map(Duration::from_millis);
        let next = match longer {
            true => steps.find(|step| *step > self.interval),
            false => steps.rfind(|step| *step < self.interval),
        };
        let [least, most] = INTERVALS;
        self.interval = next.unwrap_or(self.interval).clamp(least, most);
    }

    fn select_row(&mut self, to: impl Fn(usize, usize) -> usize) {
        let last = self.table.rows.len().saturating_sub(1);
        let at = to(self.selected(), self.page.max(1)).min(last);
        let id = self.table.rows.get(at).map(|row| row.id.clone());
        let own = self.view_state_mut();
        (own.index, own.selected) = (at, id);
    }

    fn view_state(&self) -> &ViewState {
        &self.views[self.view as usize]
    }

    fn view_state_mut(&mut self) -> &mut ViewState {
        &mut self.views[self.view as usize]
    }
}
