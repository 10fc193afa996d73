//! Back-off after failures of accept(2), with a rate-limited log line.
//!
//! If the process (`EMFILE`) or the host (`ENFILE`) has no descriptors left, the connection remains in the listener's
//! queue and the listener stays readable. Without a back-off, a server that polls the listener would spin. All servers
//! of the process use this back-off.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Wait after the first failure. Each further failure doubles the wait, up to [`MAX_WAIT`].
const INITIAL_WAIT: Duration = Duration::from_millis(10);
/// Upper limit of the doubled wait.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Minimum time between two log lines of one server.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// State of one server's accept loop.
#[derive(Debug)]
pub struct Backoff {
    /// Name of the server in the log.
    server: String,
    wait: Duration,
    retry_at: Option<Instant>,
    last_log: Option<Instant>,
    /// Failures since the last log line.
    suppressed: u64,
    failures: u64,
}

impl Backoff {
    /// Returns the state of a server that has not failed. `server` is its name in log lines.
    pub fn new(server: impl Into<String>) -> Backoff {
        Backoff {
            server: server.into(),
            wait: INITIAL_WAIT,
            retry_at: None,
            last_log: None,
            suppressed: 0,
            failures: 0,
        }
    }

    /// Returns the earliest time of the next accept; `None` if the server need not wait.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Returns the number of failures of accept(2). Errors of a single connection are not counted.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Resets the wait. The server calls this function after an accept that succeeded or found no connection.
    pub fn record_success(&mut self) {
        (self.wait, self.retry_at) = (INITIAL_WAIT, None);
    }

    /// Counts an error of accept(2), sets the next wait, and logs at most one warning per [`LOG_INTERVAL`]. Ignores
    /// errors of a single connection.
    pub fn record_failure(&mut self, error: &io::Error, now: Instant) {
        if is_connection_error(error) {
            return;
        }
        self.failures += 1;
        self.retry_at = Some(now + self.wait);
        self.wait = (self.wait * 2).min(MAX_WAIT);
        if self.last_log.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL)
        {
            self.suppressed += 1;
            return;
        }
        let (server, hint) = (&self.server, accept_hint(error));
        match self.suppressed {
            0 => tracing::warn!("{server}: connections cannot be accepted: {error}{hint}"),
            more => tracing::warn!(
                "{server}: connections cannot be accepted: {error}{hint} ({more} more failures since the last line)"
            ),
        }
        (self.last_log, self.suppressed) = (Some(now), 0);
    }
}

/// Returns true if accept(2) was interrupted, the accept queue is empty, or a single connection failed. accept(2)
/// removes a failed connection from the queue.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
        || Errno::from_io_error(error) == Some(Errno::PROTO)
}

fn accept_hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => {
            "; all file descriptors of the process are in use: raise its limit (LimitNOFILE= of its unit, ulimit -n)"
        }
        Some(Errno::NFILE) => "; all file descriptors of the host are in use: raise fs.file-max",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn failures_double_backoff_up_to_one_second_until_success() {
        let (mut backoff, mut now) = (Backoff::new("test"), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..10 {
            backoff.record_failure(&error(Errno::MFILE), now);
            let until = backoff.retry_at().unwrap();
            waits.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(backoff.failures(), 10);
        backoff.record_success();
        backoff.record_failure(&error(Errno::NFILE), now);
        assert_eq!(backoff.retry_at(), Some(now + INITIAL_WAIT));
    }

    #[test]
    fn error_of_one_connection_causes_no_backoff() {
        let (mut backoff, now) = (Backoff::new("test"), Instant::now());
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::AGAIN, Errno::PROTO] {
            backoff.record_failure(&error(errno), now);
        }
        assert_eq!((backoff.retry_at(), backoff.failures()), (None, 0));
    }

    #[test]
    fn accept_failures_are_logged_once_in_ten_seconds() {
        let (mut backoff, start) = (Backoff::new("test"), Instant::now());
        for second in 0..25 {
            let now = start + Duration::from_secs(second);
            backoff.record_failure(&error(Errno::MFILE), now);
            let logged = start + LOG_INTERVAL * (second / 10) as u32;
            assert_eq!(backoff.last_log, Some(logged), "second {second}");
        }
        assert_eq!((backoff.failures(), backoff.suppressed), (25, 4));
    }
}
