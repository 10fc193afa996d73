//! Configuration errors: one sentence each, with file, line and key.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};

/// An error in the configuration. Displayed as `FILE:LINE: KEY: SENTENCE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// The file's path as given; empty for an API request.
    pub file: PathBuf,
    /// Line in the file, from 1; 0 if the error has no line.
    pub line: u32,
    /// The key with its section, such as `port.mtu`; empty if the error has no key.
    pub key: String,
    /// The error and its remedy, one sentence.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.as_os_str().is_empty() {
            write!(f, "{}:", self.file.display())?;
            if self.line > 0 {
                write!(f, "{}:", self.line)?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// All errors of a configuration, ordered by file and line, then the conflicts between files. Never empty if returned
/// as `Err`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Positions of a section and its keys in the file, for errors found after reading.
#[derive(Clone, Debug, Default)]
pub(super) struct SectionSpan {
    /// The section's name in errors, such as `port`.
    pub(super) path: String,
    /// Byte offset of the section.
    pub(super) offset: usize,
    /// Names and byte offsets of the section's keys.
    pub(super) keys: Vec<(String, usize)>,
}

impl SectionSpan {
    pub(super) fn key_offset(&self, key: &str) -> usize {
        self.keys.iter().find(|(k, _)| k == key).map_or(self.offset, |&(_, at)| at)
    }

    pub(super) fn full_key(&self, key: &str) -> String {
        match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        }
    }
}

/// Collects the errors of one file and converts offsets to lines.
#[derive(Debug)]
pub(super) struct ErrorSink {
    file: PathBuf,
    /// Byte offset of each line's start; empty if there is no file.
    lines: Vec<usize>,
    errors: RefCell<Vec<ConfigError>>,
}

impl ErrorSink {
    /// Creates a sink for a file with this text.
    pub(super) fn new(file: &Path, text: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(newlines).collect();
        Self { file: file.to_owned(), lines, errors: RefCell::default() }
    }

    /// Creates a sink for values without a file.
    pub(super) fn for_values() -> Self {
        Self { file: PathBuf::new(), lines: Vec::new(), errors: RefCell::default() }
    }

    pub(super) fn report_offset(
        &self,
        at: usize,
        key: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.errors.borrow_mut().push(self.error_at(at, key, message));
    }

    pub(super) fn report_key(&self, places: &SectionSpan, key: &str, message: impl Into<String>) {
        self.report_offset(places.key_offset(key), places.full_key(key), message);
    }

    pub(super) fn error_at(
        &self,
        at: usize,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> ConfigError {
        let line = self.lines.partition_point(|&start| start <= at);
        ConfigError {
            file: self.file.clone(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            key: key.into(),
            message: message.into(),
        }
    }

    /// Returns the distinct errors, ordered by line.
    pub(super) fn take_errors(&self) -> Vec<ConfigError> {
        let mut errors = self.errors.take();
        errors.sort();
        errors.dedup();
        errors
    }
}
