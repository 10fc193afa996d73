//! Snapshot files: tables of test results in the repository. A change of behaviour shows as a diff for review.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// Environment variable. The value `1` rewrites the snapshot files instead of comparing with them.
pub const BLESS: &str = "SIM_BLESS";

/// Compares `actual` with the file at `path`, or writes the file if `SIM_BLESS=1`.
///
/// # Errors
/// The differing lines and the command that rewrites the file, or the reason why the file cannot be read or written.
pub fn compare(path: &Path, actual: &str) -> Result<(), String> {
    let name = path.display();
    if std::env::var(BLESS).is_ok_and(|v| v == "1") {
        return fs::write(path, actual).map_err(|e| format!("{name}: {e}"));
    }
    let before = fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    match difference(&before, actual) {
        Some(diff) => Err(format!(
            "{name} differs from the current results:\n{diff}\
             If that is meant: {BLESS}=1 cargo test -p sim --test snapshot, and commit the file."
        )),
        None => Ok(()),
    }
}

/// Formats `cells` as one line: right-aligned columns of these widths, each after a space.
pub fn columns<T: AsRef<str>>(widths: &[usize], cells: &[T]) -> String {
    let mut line = String::new();
    for (cell, &width) in cells.iter().zip(widths) {
        let _ = write!(line, " {:>width$}", cell.as_ref());
    }
    line
}

/// Returns `f(index, item)` for each item, in the order of `items`. `threads` threads share the work.
///
/// # Panics
/// Panics if `f` panics.
pub fn parallel_map<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    f: impl Fn(usize, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let n = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(item) = items.get(n)
                {
                    let result = f(n, item);
                    done.lock().unwrap_or_else(|e| e.into_inner()).push((n, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the differing lines: lines of `before` with `-`, lines of `now` with `+`; `None` if there are none. The
/// last comment line of `now`, which names the columns, precedes the differing lines.
fn difference(before: &str, now: &str) -> Option<String> {
    if before == now {
        return None;
    }
    let mut text = String::new();
    if let Some(columns) = now.lines().rfind(|line| line.starts_with('#')) {
        let _ = writeln!(text, "  {columns}");
    }
    let (mut old, mut new) = (before.lines(), now.lines());
    loop {
        let (a, b) = (old.next(), new.next());
        if a.is_none() && b.is_none() {
            return Some(text);
        }
        if a != b {
            for (sign, line) in [('-', a), ('+', b)] {
                if let Some(line) = line {
                    let _ = writeln!(text, "{sign} {line}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_lines_are_shown_with_column_titles() {
        let before = "# about\n# a b\n1 2\n3 4\n";
        assert_eq!(difference(before, before), None);
        let diff = difference(before, "# about\n# a b\n1 2\n3 5\n6 7\n").expect("they differ");
        assert_eq!(diff, "  # a b\n- 3 4\n+ 3 5\n+ 6 7\n");
    }

    #[test]
    fn parallel_map_keeps_item_order() {
        let items: Vec<usize> = (0..100).collect();
        assert!(
            parallel_map(3, &items, |n, &item| (n, item)).into_iter().eq((0..100).map(|n| (n, n)))
        );
        assert_eq!(columns(&[3, 5], &["a", "bc"]), "   a    bc");
    }

    #[test]
    fn missing_snapshot_is_an_error() {
        let missing = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots/no-such-file.txt");
        // With `SIM_BLESS=1`, `compare` would create the file.
        if std::env::var(BLESS).is_err() {
            assert!(compare(&missing, "").is_err());
        }
    }
}
