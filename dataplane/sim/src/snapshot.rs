//! Texts that are committed and compared: a change of behaviour shows as a diff, to be judged by a person.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The variable that renews snapshots instead of comparing.
pub const BLESS: &str = "SIM_BLESS";

/// Compares `now` with the file at `path`, or writes the file when `SIM_BLESS=1`.
///
/// # Errors
/// What differs, line by line, and how to renew the file; or why the file cannot be read or written.
pub fn compare(path: &Path, now: &str) -> Result<(), String> {
    let name = path.display();
    if std::env::var(BLESS).is_ok_and(|v| v == "1") {
        return fs::write(path, now).map_err(|e| format!("{name}: {e}"));
    }
    let before = fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    match difference(&before, now) {
        Some(diff) => Err(format!(
            "{name} is not what comes out now:\n{diff}\
             If that is meant: {BLESS}=1 cargo test -p sim --test snapshot, and commit the file."
        )),
        None => Ok(()),
    }
}

/// The lines that differ, those of `before` with `-` and those of `now` with `+`, and the last comment
/// line before the first, which names the columns.
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
    fn the_lines_that_differ_are_shown_under_their_columns() {
        let before = "# about\n# a b\n1 2\n3 4\n";
        assert_eq!(difference(before, before), None);
        let diff = difference(before, "# about\n# a b\n1 2\n3 5\n6 7\n").expect("they differ");
        assert_eq!(diff, "  # a b\n- 3 4\n+ 3 5\n+ 6 7\n");
    }

    #[test]
    fn a_snapshot_that_is_missing_is_an_error() {
        let missing = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots/no-such-file.txt");
        // With SIM_BLESS=1 it would be made.
        if std::env::var(BLESS).is_err() {
            assert!(compare(&missing, "").is_err());
        }
    }
}
