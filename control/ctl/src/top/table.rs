//! Tables of all views: cells with their sort keys, sort order and filter.
//!
//! Cells contain no characters that move the cursor or change the direction of text.

use std::cmp::Ordering;

use serde_json::{Map, Value as Json};

use crate::show;

/// Sort order by load, busiest row first. All other sort orders are names of columns.
pub(super) const SORT_BUSIEST: &str = "busiest";

/// Maximum width of a column, characters.
const MAX_COLUMN_WIDTH: usize = 40;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum SortKey {
    /// Unknown value, sorted last in any order.
    None,
    Number(f64),
    Text(String),
}

/// The text of a cell and its sort key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) value: SortKey,
}

impl Cell {
    pub(super) fn text_cell(text: &str) -> Self {
        let value = if text == "-" { SortKey::None } else { SortKey::Text(text.to_owned()) };
        Self { text: sanitize(text), value }
    }

    /// Returns a cell that shows `text` and sorts by `value`; `-` if the value is unknown.
    pub(super) fn number(value: Option<f64>, text: &str) -> Self {
        match value {
            Some(value) => Self { text: sanitize(text), value: SortKey::Number(value) },
            None => Self { text: "-".into(), value: SortKey::None },
        }
    }

    /// Returns a cell that shows an integer; an empty cell if it is unknown.
    pub(super) fn count(value: Option<u64>) -> Self {
        let text = value.map(|value| value.to_string()).unwrap_or_default();
        Self::number(value.map(|value| value as f64), &text)
    }

    /// Returns a cell that shows a rate per second as a whole number.
    pub(super) fn per_second(value: Option<f64>) -> Self {
        Self::number(value, &format!("{:.0}", value.unwrap_or_default()))
    }

    /// Returns a cell that shows a number of bytes with a unit.
    pub(super) fn bytes(value: Option<u64>) -> Self {
        let text = show::format_bytes(value.unwrap_or_default());
        Self::number(value.map(|value| value as f64), &text)
    }

    /// Returns the cell of a rate in bytes per second, shown in bit/s.
    pub(super) fn rate(value: Option<f64>) -> Self {
        let text = bits(value.unwrap_or_default());
        Self::number(value, text.strip_suffix("bit/s").unwrap_or(&text))
    }

    fn json(&self) -> Json {
        match &self.value {
            SortKey::None => Json::Null,
            SortKey::Text(text) => text.as_str().into(),
            SortKey::Number(number) if number.fract() == 0.0 => (*number as i64).into(),
            SortKey::Number(number) => (*number).into(),
        }
    }
}

/// Formats a rate in bytes per second as bit/s.
pub(super) fn bits(rate: f64) -> String {
    if rate < 0.5 { "0 bit/s".into() } else { show::format_rate(rate as u64) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColumnHead {
    /// Name of the column in JSON and on the command line.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    /// True for a column of numbers, which are aligned at the right.
    pub(super) is_right_aligned: bool,
}

/// A row with its identity and load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Identity of the row, the same in all samples.
    pub(super) id: String,
    /// Load of the row, for the sort order [`SORT_BUSIEST`]; the unit depends on the view.
    pub(super) load: f64,
    pub(super) cells: Vec<Cell>,
}

/// Sort order of a table's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sort {
    /// Index of the column; `None` sorts the busiest first.
    pub(super) column: Option<usize>,
    pub(super) reverse: bool,
}

/// The rows of a view.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    pub(super) heads: Vec<ColumnHead>,
    pub(super) rows: Vec<Row>,
    /// Number of rows before filtering. In the view of streams: number of all streams, even if the list is truncated.
    pub(super) total_rows: usize,
}

impl Table {
    /// Removes the rows that do not match, and sorts the others.
    pub(super) fn filter_and_sort(&mut self, sort: Sort, filter: &str) {
        let filter = filter.to_lowercase();
        let has = |cell: &Cell| cell.text.to_lowercase().contains(&filter);
        self.rows.retain(|row| filter.is_empty() || row.cells.iter().any(has));
        self.rows.sort_by(|a, b| {
            let order = match sort.column {
                None => reverse_if(b.load.total_cmp(&a.load), sort.reverse),
                Some(column) => match (a.cells.get(column), b.cells.get(column)) {
                    (Some(a), Some(b)) => compare(&a.value, &b.value, sort.reverse),
                    _ => Ordering::Equal,
                },
            };
            order.then_with(|| a.id.cmp(&b.id))
        });
    }

    /// Returns the width of each column in characters, including the sort mark after its title.
    pub(super) fn widths(&self) -> Vec<usize> {
        let column = |(i, head): (usize, &ColumnHead)| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(i));
            let widest = cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0);
            widest.clamp(head.title.chars().count() + 1, MAX_COLUMN_WIDTH)
        };
        self.heads.iter().enumerate().map(column).collect()
    }

    /// Returns the number of rows as `12`, or `12 of 300`.
    pub(super) fn count_text(&self) -> String {
        let shown = self.rows.len();
        if shown == self.total_rows {
            shown.to_string()
        } else {
            format!("{shown} of {}", self.total_rows)
        }
    }

    pub(super) fn text(&self) -> String {
        let titles: Vec<&str> = self.heads.iter().map(|head| head.title).collect();
        let row = |row: &Row| row.cells.iter().map(|cell| cell.text.clone()).collect();
        show::table(&titles, self.rows.iter().map(row))
    }

    pub(super) fn json(&self) -> Json {
        let row = |row: &Row| {
            let cells = self.heads.iter().zip(&row.cells);
            let members = cells.map(|(head, cell)| (head.key.to_owned(), cell.json()));
            Json::Object(members.collect::<Map<_, _>>())
        };
        self.rows.iter().map(row).collect()
    }
}

/// Orders numbers descending and text ascending. Unknown values are last, even in reverse order.
fn compare(a: &SortKey, b: &SortKey, reverse: bool) -> Ordering {
    match (a, b) {
        (SortKey::None, SortKey::None) => Ordering::Equal,
        (SortKey::None, _) => Ordering::Greater,
        (_, SortKey::None) => Ordering::Less,
        (SortKey::Number(a), SortKey::Number(b)) => reverse_if(b.total_cmp(a), reverse),
        (SortKey::Text(a), SortKey::Text(b)) => reverse_if(a.cmp(b), reverse),
        (SortKey::Number(_), SortKey::Text(_)) => reverse_if(Ordering::Less, reverse),
        (SortKey::Text(_), SortKey::Number(_)) => reverse_if(Ordering::Greater, reverse),
    }
}

fn reverse_if(order: Ordering, reverse: bool) -> Ordering {
    if reverse { order.reverse() } else { order }
}

/// Replaces characters that control a terminal or the direction of text by U+FFFD.
pub(super) fn sanitize(text: &str) -> String {
    let harmless = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect()
}
