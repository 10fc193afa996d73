//! Back-off of servers whose accept(2) fails, and their log line.
//!
//! If the process (`EMFILE`) or the host (`ENFILE`) has no descriptor left, the connection remains
//! in the listener's queue and the listener stays readable. A server that polls it for reading
//! would spin. All servers of the process use this back-off.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Wait after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_millis(10);
/// Longest wait.
const LONGEST: Duration = Duration::from_secs(1);
/// Time between two log lines of one server.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// State of one server's accept loop.
#[derive(Debug)]
pub struct Backoff {
    /// Name of the server in the log.
    server: String,
    wait: Duration,
    until: Option<Instant>,
    logged: Option<Instant>,
    /// Failures without a log line.
    unlogged: u64,
    failures: u64,
}

impl Backoff {
    /// Returns the state of a server that has not failed. `server` is its name in log lines.
    pub fn new(server: impl Into<String>) -> Backoff {
        Backoff {
            server: server.into(),
            wait: FIRST,
            until: None,
            logged: None,
            unlogged: 0,
            failures: 0,
        }
    }

    /// Returns when to accept again; `None` is now.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the number of accept failures that concern the server.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Resets the wait after an accept that succeeded, or that found no connection.
    pub fn succeeded(&mut self) {
        (self.wait, self.until) = (FIRST, None);
    }

    /// Takes an error of accept(2). An error of one connection sets no wait.
    pub fn failed(&mut self, error: &io::Error, now: Instant) {
        if concerns_one_connection(error) {
            return;
        }
        self.failures += 1;
        self.until = Some(now + self.wait);
        self.wait = (self.wait * 2).min(LONGEST);
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_EVERY) {
            self.unlogged += 1;
            return;
        }
        let (server, hint) = (&self.server, hint(error));
        match self.unlogged {
            0 => tracing::warn!("{server}: connections cannot be accepted: {error}{hint}"),
            more => tracing::warn!(
                "{server}: connections cannot be accepted: {error}{hint} ({more} more failures since the last line)"
            ),
        }
        (self.logged, self.unlogged) = (Some(now), 0);
    }
}

/// Returns true for errors of a single connection, which accept(2) passes on from the queue, and
/// for interruptions.
fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
        || Errno::from_io_error(error) == Some(Errno::PROTO)
}

fn hint(error: &io::Error) -> &'static str {
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
    fn failures_double_the_wait_up_to_a_second_and_a_success_resets_it() {
        let (mut backoff, mut now) = (Backoff::new("test"), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..10 {
            backoff.failed(&error(Errno::MFILE), now);
            let until = backoff.until().unwrap();
            waits.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(backoff.failures(), 10);
        backoff.succeeded();
        backoff.failed(&error(Errno::NFILE), now);
        assert_eq!(backoff.until(), Some(now + FIRST));
    }

    #[test]
    fn an_error_of_one_connection_sets_no_wait() {
        let (mut backoff, now) = (Backoff::new("test"), Instant::now());
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::AGAIN, Errno::PROTO] {
            backoff.failed(&error(errno), now);
        }
        assert_eq!((backoff.until(), backoff.failures()), (None, 0));
    }

    #[test]
    fn a_server_logs_one_line_in_ten_seconds() {
        let (mut backoff, start) = (Backoff::new("test"), Instant::now());
        for second in 0..25 {
            let now = start + Duration::from_secs(second);
            backoff.failed(&error(Errno::MFILE), now);
            let logged = start + LOG_EVERY * (second / 10) as u32;
            assert_eq!(backoff.logged, Some(logged), "second {second}");
        }
        assert_eq!((backoff.failures(), backoff.unlogged), (25, 4));
    }
}
