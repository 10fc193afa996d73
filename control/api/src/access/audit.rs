//! The audit: records of changes and of calls without effect, and the threads that write them. The attach and the end
//! of a local program are recorded as changes, a refused program as a call without effect.
//!
//! Changes are recorded in the audit file. Calls without effect, which have a status from 400 to 499, are recorded in
//! `FILE.refused`. Each file has its own queue, thread and size limit, so that a flood of refusals displaces no record
//! of a change. Lines about calls without effect are also limited in rate ([`LineQuota`]).
//!
//! The API's thread never waits for the disk, because lines pass through bounded queues. A line about a change is
//! counted as lost if the queue is full; any line is counted as lost if it cannot be written. Lines contain no body,
//! query or error message, because these may contain secrets.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use axum::http::{Method, StatusCode};
use config::AuditSection;
use serde::Serialize;

use super::audit_file::AuditFile;
use super::quota::{LineQuota, OmittedCalls};
use super::{Access, AccessTally, Caller, role_name};
use crate::ErrorKind;

/// Maximum number of lines that wait for the disk, per queue.
const QUEUE_DEPTH: usize = 1024;
/// Number of rotated `FILE.refused` files that are kept.
const REFUSED_FILES: u32 = 1;
/// Maximum length of a call's path in a line, bytes. Longer paths are truncated.
const MAX_PATH_LEN: usize = 256;
/// Maximum length of an HTTP method in a line, bytes. Longer methods are truncated.
const MAX_METHOD_LEN: usize = 16;

/// The two files of the audit. Dropping this value writes all queued lines.
#[derive(Debug)]
pub(super) struct Audit {
    changes: AuditWriter,
    refused: AuditWriter,
    quota: Arc<Mutex<LineQuota>>,
    tally: Arc<AccessTally>,
}

impl Audit {
    /// Opens the files and starts their threads.
    pub(super) fn open(
        file: &Path,
        section: &AuditSection,
        tally: Arc<AccessTally>,
    ) -> io::Result<Audit> {
        let changes = AuditFile::open(file, section.max_size, section.keep)?;
        let refused = AuditFile::open(&refused_path(file), section.max_size, REFUSED_FILES)?;
        let quota = Arc::new(Mutex::new(LineQuota::new(Instant::now())));
        Ok(Audit {
            changes: AuditWriter::start("audit", AuditOutput::new(changes, &tally), None)?,
            refused: AuditWriter::start(
                "audit-refused",
                AuditOutput::new(refused, &tally),
                Some(Arc::clone(&quota)),
            )?,
            quota,
            tally,
        })
    }

    /// Records a change.
    fn record_change(&self, line: &impl Serialize) {
        if !self.changes.send(line) {
            self.tally.count_lost_line();
        }
    }

    /// Records a call without effect, or a refused program, of user `uid`. Counts the record as omitted if the user's
    /// quota is used up or the queue is full.
    fn record_refused(&self, uid: u32, line: &impl Serialize) {
        let now = Instant::now();
        let mut quota = lock_quota(&self.quota);
        let admitted = quota.admit(uid, now);
        if admitted && self.refused.send(line) {
            return;
        }
        if admitted {
            quota.count_omitted(uid, now);
        }
        self.tally.count_omitted_line();
    }
}

/// Handle to the audit for records of local programs. The default records nothing.
#[derive(Clone, Debug, Default)]
pub struct AuditLog(pub(super) Option<Arc<Audit>>);

/// A local program whose session begins or ends.
#[derive(Clone, Copy, Debug)]
pub struct AuditedProgram<'a> {
    /// Effective user id.
    pub uid: u32,
    /// Process id; 0 if the process is in another PID namespace.
    pub pid: i32,
    /// Number of the program; `None` if the program was refused before a number was assigned.
    pub program: Option<u32>,
    /// Name that the program sent; empty if the program was refused before it sent a name.
    pub name: &'a str,
}

impl AuditLog {
    /// Records that a program has attached.
    pub fn program_attached(&self, program: AuditedProgram<'_>) {
        self.record(ProgramLine::new(program, "attach", None));
    }

    /// Records that a program has ended, whether by itself or because an operator ended it.
    pub fn program_ended(&self, program: AuditedProgram<'_>) {
        self.record(ProgramLine::new(program, "end", None));
    }

    /// Records that a program was refused.
    pub fn program_refused(&self, program: AuditedProgram<'_>, reason: &str) {
        self.record(ProgramLine::new(program, "refuse", Some(reason)));
    }

    fn record(&self, line: ProgramLine<'_>) {
        match (&self.0, line.reason) {
            (Some(audit), None) => audit.record_change(&line),
            (Some(audit), Some(_)) => audit.record_refused(line.uid, &line),
            (None, _) => {}
        }
    }
}

/// Line that records the beginning, the refusal or the end of a local program.
#[derive(Debug, Serialize)]
struct ProgramLine<'e> {
    /// Time, RFC 3339.
    time: String,
    uid: u32,
    pid: i32,
    /// `attach`, `refuse` or `end`.
    action: &'static str,
    program: Option<u32>,
    name: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'e str>,
}

impl<'e> ProgramLine<'e> {
    fn new(program: AuditedProgram<'e>, action: &'static str, reason: Option<&'e str>) -> Self {
        let AuditedProgram { uid, pid, program, name } = program;
        let time = rfc3339(SystemTime::now());
        ProgramLine { time, uid, pid, action, program, name, reason }
    }
}

/// Returns the path of the file for calls without effect: `FILE.refused`.
pub(super) fn refused_path(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".refused");
    path.into()
}

fn lock_quota(quota: &Mutex<LineQuota>) -> std::sync::MutexGuard<'_, LineQuota> {
    quota.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue of a file and the thread that writes the file. Dropping this value waits until the thread has written all
/// queued lines.
#[derive(Debug)]
struct AuditWriter {
    sender: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl AuditWriter {
    fn start(
        name: &str,
        output: AuditOutput,
        quota: Option<Arc<Mutex<LineQuota>>>,
    ) -> io::Result<AuditWriter> {
        let (sender, receiver) = sync_channel(QUEUE_DEPTH);
        let write = move || match quota {
            None => write_all(output, &receiver),
            Some(quota) => write_within_quota(output, &receiver, &quota),
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(write)?;
        Ok(AuditWriter { sender: Some(sender), thread: Some(thread) })
    }

    /// Queues a line. Returns false if the queue is full or the thread has ended.
    fn send(&self, line: &impl Serialize) -> bool {
        let text = serde_json::to_string(line).ok();
        let line = text.zip(self.sender.as_ref());
        line.is_some_and(|(text, sender)| sender.try_send(text + "\n").is_ok())
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of the audit file panicked");
        }
    }
}

/// Writes lines until the sender is dropped.
fn write_all(mut output: AuditOutput, lines: &Receiver<String>) {
    for line in lines {
        output.write(&line);
    }
}

/// Writes lines until the sender is dropped. Also writes the quota's reports of omitted calls, when they are due and at
/// the end.
fn write_within_quota(mut output: AuditOutput, lines: &Receiver<String>, quota: &Mutex<LineQuota>) {
    loop {
        // `None`: no bucket is in use, so no report is pending. The line about the next call without effect ends the
        // wait.
        let due = lock_quota(quota).report_due();
        let received = match due {
            None => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => lines.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match received {
            Ok(line) => output.write(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let left_out = lock_quota(quota).report(Instant::now());
        output.report(left_out);
    }
    let left_out = lock_quota(quota).report_all(Instant::now());
    output.report(left_out);
}

/// A file of the audit. One log line reports that writing has begun to fail, and one that it succeeds again.
#[derive(Debug)]
struct AuditOutput {
    file: AuditFile,
    failing: bool,
    tally: Arc<AccessTally>,
}

impl AuditOutput {
    fn new(file: AuditFile, tally: &Arc<AccessTally>) -> AuditOutput {
        AuditOutput { file, failing: false, tally: Arc::clone(tally) }
    }

    fn write(&mut self, line: &str) {
        let written = self.file.write(line.as_bytes());
        let path = self.file.path().display();
        match &written {
            Err(error) => {
                self.tally.count_lost_line();
                if !self.failing {
                    tracing::error!("{path}: a line of the audit file is lost: {error}");
                }
            }
            Ok(()) if self.failing => {
                tracing::warn!("{path}: the audit file is written again");
            }
            Ok(()) => {}
        }
        self.failing = written.is_err();
    }

    fn report(&mut self, left_out: Vec<OmittedCalls>) {
        for OmittedCalls { uid, calls } in left_out {
            let line = OmissionLine { time: rfc3339(SystemTime::now()), uid, left_out: calls };
            match serde_json::to_string(&line) {
                Ok(text) => self.write(&(text + "\n")),
                Err(_) => self.tally.count_lost_line(),
            }
        }
    }
}

/// Line that reports the number of a user's omitted calls.
#[derive(Debug, Serialize)]
struct OmissionLine {
    /// Time of the report, RFC 3339.
    time: String,
    /// User id; `None` for all users that share a bucket.
    uid: Option<u32>,
    /// Number of omitted calls since the last report.
    left_out: u64,
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// Line that records one call.
#[derive(Debug, Serialize)]
struct AuditLine<'e> {
    /// Time of the call, RFC 3339.
    time: String,
    uid: u32,
    gid: u32,
    pid: i32,
    role: &'static str,
    method: &'e str,
    path: &'e str,
    /// HTTP status; `None` if the client disconnected before the answer.
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorKind>,
}

impl AuditLine<'_> {
    /// Returns true for a refused or invalid call, which changed nothing: status 400 to 499. A call without an answer,
    /// or with an error of the appliance, may have changed state.
    fn is_without_effect(&self) -> bool {
        self.status.is_some_and(|status| (400..500).contains(&status))
    }
}

/// A call in progress. Dropping it records the call if [`set_recorded`](PendingCall::set_recorded) requires a record.
#[derive(Debug)]
pub(super) struct PendingCall {
    access: Arc<Access>,
    caller: Caller,
    method: String,
    path: String,
    received_at: SystemTime,
    recorded: bool,
    status: Option<u16>,
    error: Option<ErrorKind>,
}

impl PendingCall {
    pub(super) fn new(
        access: &Arc<Access>,
        caller: Caller,
        method: &Method,
        path: &str,
    ) -> PendingCall {
        PendingCall {
            access: Arc::clone(access),
            caller,
            method: truncated(method.as_str(), MAX_METHOD_LEN),
            path: truncated(path, MAX_PATH_LEN),
            received_at: SystemTime::now(),
            recorded: false,
            status: None,
            error: None,
        }
    }

    pub(super) fn set_recorded(&mut self, recorded: bool) {
        self.recorded = recorded;
    }

    pub(super) fn finish(mut self, status: StatusCode, error: Option<ErrorKind>) {
        (self.status, self.error) = (Some(status.as_u16()), error);
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let (true, Some(audit)) = (self.recorded, &self.access.audit) else { return };
        let Caller { uid, gid, pid, role } = self.caller;
        let line = AuditLine {
            time: rfc3339(self.received_at),
            uid,
            gid,
            pid,
            role: role_name(role),
            method: &self.method,
            path: &self.path,
            status: self.status,
            error: self.error,
        };
        match line.is_without_effect() {
            true => audit.record_refused(uid, &line),
            false => audit.record_change(&line),
        }
    }
}

/// Returns `text`, or its first `most` bytes and `…` if `text` is longer. Cuts at a character boundary.
fn truncated(text: &str, most: usize) -> String {
    match text.len() > most {
        true => format!("{}…", &text[..text.floor_char_boundary(most)]),
        false => text.to_owned(),
    }
}
