//! Results of the checks: severity, observation, consequence and remedy.

use serde::Serialize;

/// Severity of a finding: its impact on the appliance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem.
    Ok,
    /// Information only.
    Note,
    /// The appliance is slower than possible, or works incorrectly under some conditions.
    Warning,
    /// The appliance does not start or does not work.
    Error,
    /// The check could not be performed.
    Unknown,
}

impl Severity {
    /// All severities in the order of the report's last line.
    pub(super) const ALL: [Severity; 5] =
        [Severity::Error, Severity::Warning, Severity::Unknown, Severity::Note, Severity::Ok];

    /// Returns the severity's name in the output.
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

/// Result of one check for one item, such as a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Impact on the appliance.
    pub severity: Severity,
    /// Name of the check, such as `cores` or `pci driver`.
    pub check: &'static str,
    /// Observation, with numbers; for `Unknown` the reason why the check failed.
    pub seen: String,
    /// Consequence for the appliance, one sentence.
    pub why: &'static str,
    /// Remedy, one sentence.
    pub remedy: Option<String>,
    /// Shell command that applies the remedy, one line.
    pub command: Option<String>,
}

impl Finding {
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    pub(super) fn command(mut self, command: impl Into<String>) -> Finding {
        self.command = Some(command.into());
        self
    }
}

/// A check: its name, and the reason why its findings matter.
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
