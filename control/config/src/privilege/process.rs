//! Privileges of a process, read from the text of `/proc/PID/status` and `/proc/PID/limits`.

use super::Capabilities;

/// Returns the effective capabilities (`CapEff`) from the text of `/proc/self/status`.
///
/// # Errors
/// The text has no line `CapEff`, or the line has no hexadecimal number. The error is one sentence.
pub fn effective_capabilities(status: &str) -> Result<Capabilities, String> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let hex = line.ok_or("/proc/self/status has no CapEff")?.trim();
    u64::from_str_radix(hex, 16).map(Capabilities).map_err(|_| {
        let shown = hex.chars().take(40).collect::<String>();
        format!("/proc/self/status: CapEff is \"{}\", no hexadecimal", shown.escape_debug())
    })
}

/// Returns the soft limit of locked memory in bytes, from the text of `/proc/self/limits`; `None` for no limit.
///
/// # Errors
/// The text has no limit of locked memory, or the limit is not a number. The error is one sentence.
pub fn locked_memory_limit(limits: &str) -> Result<Option<u64>, String> {
    parse_limit(limits, "Max locked memory", 0)
        .ok_or_else(|| "/proc/self/limits has no number for locked memory".into())
}

/// Returns the hard limit of open files from the text of `/proc/self/limits`; `None` for no limit.
///
/// # Errors
/// The text has no limit of open files, or the limit is not a number. The error is one sentence.
pub fn open_files_limit(limits: &str) -> Result<Option<u64>, String> {
    parse_limit(limits, "Max open files", 1)
        .ok_or_else(|| "/proc/self/limits has no number for open files".into())
}

/// Returns one column of a limit: 0 is the soft, 1 the hard limit. `Some(None)` for no limit.
fn parse_limit(limits: &str, name: &str, column: usize) -> Option<Option<u64>> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(column)? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_limits_are_parsed_from_proc() {
        assert_eq!(
            effective_capabilities("Name:\tx\nCapEff:\t0000000000003000\n").unwrap().0,
            0x3000
        );
        assert_eq!(
            effective_capabilities("Name:\tx\n").unwrap_err(),
            "/proc/self/status has no CapEff"
        );
        assert!(
            effective_capabilities("CapEff:\tno\n")
                .unwrap_err()
                .ends_with("is \"no\", no hexadecimal")
        );
        let limits =
            |value: &str| locked_memory_limit(&format!("Max locked memory   {value}  8  bytes"));
        assert_eq!(limits("65536"), Ok(Some(65536)));
        assert_eq!(limits("unlimited"), Ok(None));
        assert!(limits("many").is_err() && locked_memory_limit("").is_err());
        open_files_are_read();
    }

    fn open_files_are_read() {
        let files = |hard: &str| open_files_limit(&format!("Max open files   1024  {hard}  files"));
        assert_eq!((files("4096"), files("unlimited")), (Ok(Some(4096)), Ok(None)));
        assert!(files("many").is_err() && open_files_limit("").is_err());
    }
}
