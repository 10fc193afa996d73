//! Lines about changes and refusals, and the thread that writes them.
//!
//! The API's thread never waits for the disk: lines pass a bounded queue. A line that finds it full, or that cannot be written,
//! is counted as lost. A line has no body, query or message of an error: what a client sent may be secret.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use axum::http::{Method, StatusCode};
use serde::Serialize;

use super::audit_file::AuditFile;
use super::{Access, AccessTally, Caller, word};
use crate::api::ErrorKind;
use crate::config::AuditSection;

/// Lines that may wait for the disk.
const DEPTH: usize = 1024;
/// Most bytes of a path in a line.
const PATH: usize = 256;
/// Most bytes of a method.
const METHOD: usize = 16;

/// The audit file. Dropped, it is complete: the lines that wait are written.
#[derive(Debug)]
pub(super) struct Audit {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
    tally: Arc<AccessTally>,
}

impl Audit {
    /// Opens the file and starts the thread.
    pub(super) fn open(
        file: &Path,
        section: &AuditSection,
        tally: Arc<AccessTally>,
    ) -> io::Result<Audit> {
        let file = AuditFile::open(file, section.max_size, section.keep)?;
        let (sender, receiver) = sync_channel(DEPTH);
        let counted = Arc::clone(&tally);
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(file, &receiver, &counted))?;
        Ok(Audit { lines: Some(sender), thread: Some(thread), tally })
    }

    fn record(&self, line: &Line<'_>) {
        let text = serde_json::to_string(line).ok();
        let line = text.zip(self.lines.as_ref());
        if line.is_none_or(|(text, lines)| lines.try_send(text + "\n").is_err()) {
            self.tally.lose_line();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the audit file panicked");
        }
    }
}

/// Writes lines until the sender is gone. The log has a line when writing begins to fail, and one when it works again.
fn write_all(mut file: AuditFile, lines: &Receiver<String>, tally: &AccessTally) {
    let mut failing = false;
    for line in lines {
        let written = file.write(line.as_bytes());
        match &written {
            Err(error) => {
                tally.lose_line();
                if !failing {
                    let path = file.path().display();
                    tracing::error!("{path}: a line of the audit file is lost: {error}");
                }
            }
            Ok(()) if failing => {
                tracing::warn!("{}: the audit file is written again", file.path().display());
            }
            Ok(()) => {}
        }
        failing = written.is_err();
    }
}

/// One call.
#[derive(Debug, Serialize)]
struct Line<'e> {
    /// When it came, RFC 3339.
    time: String,
    uid: u32,
    gid: u32,
    pid: i32,
    role: &'static str,
    method: &'e str,
    path: &'e str,
    /// `None`: the client hung up before the answer.
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorKind>,
}

/// A call under way. Dropped, it is recorded if it is to be.
#[derive(Debug)]
pub(super) struct Entry {
    access: Arc<Access>,
    caller: Caller,
    method: String,
    path: String,
    came: SystemTime,
    recorded: bool,
    status: Option<u16>,
    error: Option<ErrorKind>,
}

impl Entry {
    pub(super) fn new(access: &Arc<Access>, caller: Caller, method: &Method, path: &str) -> Entry {
        Entry {
            access: Arc::clone(access),
            caller,
            method: start_of(method.as_str(), METHOD),
            path: start_of(path, PATH),
            came: SystemTime::now(),
            recorded: false,
            status: None,
            error: None,
        }
    }

    pub(super) fn record_if_dropped(&mut self, recorded: bool) {
        self.recorded = recorded;
    }

    pub(super) fn answered(mut self, status: StatusCode, error: Option<ErrorKind>) {
        (self.status, self.error) = (Some(status.as_u16()), error);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let (true, Some(audit)) = (self.recorded, &self.access.audit) else { return };
        let Caller { uid, gid, pid, role } = self.caller;
        audit.record(&Line {
            time: humantime::format_rfc3339_millis(self.came).to_string(),
            uid,
            gid,
            pid,
            role: word(role),
            method: &self.method,
            path: &self.path,
            status: self.status,
            error: self.error,
        });
    }
}

/// At most `most` bytes; `…` stands for the rest.
fn start_of(text: &str, most: usize) -> String {
    match text.len() > most {
        true => format!("{}…", &text[..text.floor_char_boundary(most)]),
        false => text.to_owned(),
    }
}
