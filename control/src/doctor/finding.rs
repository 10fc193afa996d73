//! The result of a check.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The host fits.
    Ok,
    /// For information only.
    Note,
    /// Slower than it could be, or wrong under some conditions.
    Warning,
    /// The appliance does not start or does not work.
    Error,
    /// The host could not be examined.
    Unknown,
}

impl Severity {
    /// All severities, the worst first.
    pub(super) const ALL: [Severity; 5] =
        [Severity::Error, Severity::Warning, Severity::Unknown, Severity::Note, Severity::Ok];

    /// Returns the severity as the output names it.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
            Severity::Unknown => "unknown",
        }
    }
}

/// The result of one examination of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Impact on the appliance.
    pub severity: Severity,
    /// Name of the check, such as `cores` or `pci driver`.
    pub check: &'static str,
    /// Observation, with numbers, or the reason why the check failed.
    pub seen: String,
    /// Consequence for the appliance, one sentence.
    pub why: &'static str,
    /// The remedy, one sentence.
    pub remedy: Option<String>,
    /// The shell command that applies the remedy, one line.
    pub command: Option<String>,
}

impl Finding {
    /// Adds the remedy.
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds the shell command that applies the remedy.
    pub(super) fn command(mut self, command: impl Into<String>) -> Finding {
        self.command = Some(command.into());
        self
    }
}

/// A check: its name, and the consequence of its findings.
pub(super) struct Check(pub(super) &'static str, pub(super) &'static str);

impl Check {
    pub(super) fn finding(&self, severity: Severity, seen: impl Into<String>) -> Finding {
        let seen = seen.into();
        Finding { severity, check: self.0, seen, why: self.1, remedy: None, command: None }
    }

    pub(super) fn ok(&self, seen: impl Into<String>) -> Finding {
        self.finding(Severity::Ok, seen)
    }

    pub(super) fn note(&self, seen: impl Into<String>) -> Finding {
        self.finding(Severity::Note, seen)
    }

    pub(super) fn warning(&self, seen: impl Into<String>) -> Finding {
        self.finding(Severity::Warning, seen)
    }

    pub(super) fn error(&self, seen: impl Into<String>) -> Finding {
        self.finding(Severity::Error, seen)
    }

    pub(super) fn unknown(&self, why: impl Into<String>) -> Finding {
        self.finding(Severity::Unknown, why)
    }
}

/// Quotes a word for a shell command, if necessary.
pub(super) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+,-".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_metacharacters_are_quoted() {
        assert_eq!(quote("/run/ddpd.sock"), "/run/ddpd.sock");
        assert_eq!(quote("a b; c"), "'a b; c'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }
}
