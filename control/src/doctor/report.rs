//! Prints the findings as text, as JSON, or as a shell script.

use std::io::{Result, Write};

use base::plural::counted;

use super::finding::{Finding, Severity};

/// Prints all findings, with reason and remedy unless `ok`, and the number of findings per severity.
pub(super) fn text(findings: &[Finding], out: &mut dyn Write) -> Result<()> {
    for finding in findings {
        writeln!(out, "{}: {}: {}", finding.severity.name(), finding.check, line(&finding.seen))?;
        if finding.severity == Severity::Ok {
            continue;
        }
        writeln!(out, "    why: {}", finding.why)?;
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "    remedy: {}", line(remedy))?;
        }
        if let Some(command) = &finding.command {
            writeln!(out, "    run: {}", line(command))?;
        }
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counts = Severity::ALL.map(|severity| match severity {
        Severity::Ok | Severity::Unknown => format!("{} {}", count(severity), severity.name()),
        _ => counted(count(severity), severity.name()),
    });
    writeln!(out, "{}", counts.join(", "))
}

/// Prints the findings as a JSON array of objects.
pub(super) fn json(findings: &[Finding], out: &mut dyn Write) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, findings)?;
    writeln!(out)
}

/// Prints a POSIX shell script. Every command is commented out; the reader removes the `#` before the commands to run.
pub(super) fn script(findings: &[Finding], out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "#!/bin/sh\n## Remedies of `ddpd doctor`. Nothing is executed: read it, remove the # before the commands that you \
         want,\n## and run it as root. Lines with ## are explanations.\nset -eu"
    )?;
    for finding in findings.iter().filter(|finding| finding.severity != Severity::Ok) {
        writeln!(
            out,
            "\n## {}: {}: {}",
            finding.severity.name(),
            finding.check,
            line(&finding.seen)
        )?;
        writeln!(out, "## {}", finding.why)?;
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "## Remedy: {}", line(remedy))?;
        }
        if let Some(command) = &finding.command {
            writeln!(out, "# {}", line(command))?;
        }
    }
    Ok(())
}

/// Replaces control characters by spaces, so that a path or file contents cannot end the comment line.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::doctor::finding::{Check, quote};

    const CHECK: Check = Check("disk", "A file region is written to its file.");

    fn findings() -> Vec<Finding> {
        let directory = quote("/srv/it's\n; reboot");
        vec![
            CHECK.ok("plenty"),
            CHECK
                .error("full\nrm -rf /")
                .remedy("make room")
                .command(format!("mkdir -p {directory}")),
            CHECK.unknown("no statvfs"),
        ]
    }

    fn print_to_string(print: impl Fn(&[Finding], &mut dyn Write) -> Result<()>) -> String {
        let mut out = Vec::new();
        print(&findings(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_report_has_reason_remedy_and_command() {
        assert_eq!(
            print_to_string(text),
            "ok: disk: plenty\nerror: disk: full rm -rf /\n    why: A file region is written to its file.\n    \
             remedy: make room\n    run: mkdir -p '/srv/it'\\''s ; reboot'\nunknown: disk: no statvfs\n    why: A file \
             region is written to its file.\n1 error, 0 warnings, 1 unknown, 0 notes, 1 ok\n"
        );
    }

    #[test]
    fn json_report_is_a_list_of_objects() {
        let list: serde_json::Value = serde_json::from_str(&print_to_string(json)).unwrap();
        assert_eq!(list.as_array().unwrap().len(), 3);
        assert_eq!(list[1]["severity"], "error");
        assert_eq!(list[1]["check"], "disk");
        assert_eq!(list[1]["seen"], "full\nrm -rf /");
        assert_eq!(list[1]["remedy"], "make room");
        assert!(list[2]["command"].is_null());
    }

    /// The script is valid as printed, and with all commands enabled. As printed it executes nothing.
    #[test]
    fn script_report_is_valid_shell_and_executes_no_command() {
        let script = print_to_string(super::script);
        let mut lines = script.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!((lines.next(), lines.next()), (Some("set -eu"), None), "{script}");
        assert!(script.contains("\n# mkdir -p '/srv/it'\\''s ; reboot'\n"), "{script}");
        let in_force = script.replace("\n# ", "\n");
        for text in [&script, &in_force] {
            assert!(accepts("sh", &["-n"], text).expect("sh"), "{text}");
            // The program may be missing.
            if let Some(accepted) = accepts("shellcheck", &["-"], text) {
                assert!(accepted, "{text}");
            }
        }
    }

    /// Returns true if a program accepts the script on its standard input; `None` if the program is not installed.
    fn accepts(program: &str, args: &[&str], text: &str) -> Option<bool> {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Some(child.wait().unwrap().success())
    }
}
