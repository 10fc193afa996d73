//! The rate limit of the log. Peers and local programs can cause log lines; a peer can do so at any rate.
//!
//! The limit is a layer of the log's subscriber, so log statements need no code for it. Each call site (a `tracing`
//! callsite) writes at most [`LINES_PER_SECOND`]. Excess lines are counted. Once a second, one line reports the
//! number of excess lines and the call site with the most. Events and counters are not limited and contain the same
//! information.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Maximum lines of one call site per second: few enough for a disk, many enough for a start with many ports.
pub const LINES_PER_SECOND: u32 = 50;

/// Period between two reports of suppressed lines.
const PERIOD: Duration = Duration::from_secs(1);

static LIMIT: LazyLock<Limit> = LazyLock::new(|| Limit::new(LINES_PER_SECOND));

/// Number of lines suppressed since the start, at all call sites.
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// The layer of the log's subscriber that suppresses lines.
#[derive(Debug)]
pub struct LogLimit;

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        LIMIT.admit_line(event.metadata(), Instant::now())
    }
}

/// Returns the number of suppressed lines so far.
pub fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Writes the report of suppressed lines if it is due. Returns the time at which the next report is due; `None` if no
/// line was suppressed since the last report.
pub fn report(now: Instant) -> Option<Instant> {
    if let Some(sentence) = LIMIT.sentence(now) {
        tracing::warn!("{sentence}");
    }
    LIMIT.due()
}

/// Rate limit of each call site, and the counts of lines per call site. The map is bounded by the call sites in the
/// source code.
#[derive(Debug)]
struct Limit {
    /// Maximum lines of one call site per second.
    per_second: u32,
    call_sites: Mutex<CallSites>,
}

#[derive(Debug, Default)]
struct CallSites {
    call_sites: HashMap<Identifier, CallSite>,
    /// Lines suppressed since the last report.
    unreported: u64,
    /// Time of the first of these lines.
    since: Option<Instant>,
}

#[derive(Debug)]
struct CallSite {
    target: &'static str,
    line: u32,
    /// Start of the call site's current period.
    since: Instant,
    /// Lines written in this period.
    written: u32,
    /// Lines suppressed since the last report.
    suppressed: u64,
}

impl Limit {
    fn new(per_second: u32) -> Limit {
        Limit { per_second, call_sites: Mutex::default() }
    }

    /// Returns true if this call site may write a line now. Counts the line as written or suppressed.
    fn admit_line(&self, call_site: &'static Metadata<'static>, now: Instant) -> bool {
        let mut sites = self.call_sites.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = sites.call_sites.entry(call_site.callsite()).or_insert_with(|| CallSite {
            target: call_site.target(),
            line: call_site.line().unwrap_or_default(),
            since: now,
            written: 0,
            suppressed: 0,
        });
        if now.saturating_duration_since(entry.since) >= PERIOD {
            (entry.since, entry.written) = (now, 0);
        }
        if entry.written < self.per_second {
            entry.written += 1;
            return true;
        }
        entry.suppressed += 1;
        sites.unreported += 1;
        sites.since.get_or_insert(now);
        SUPPRESSED.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Returns the time at which the report is due, if a line was suppressed.
    fn due(&self) -> Option<Instant> {
        let sites = self.call_sites.lock().unwrap_or_else(PoisonError::into_inner);
        sites.since.map(|since| since + PERIOD)
    }

    /// Returns the report if `PERIOD` has passed since the first suppressed line, and resets the counts.
    fn sentence(&self, now: Instant) -> Option<String> {
        let mut sites = self.call_sites.lock().unwrap_or_else(PoisonError::into_inner);
        let since = sites.since?;
        if now.saturating_duration_since(since) < PERIOD {
            return None;
        }
        let all = core::mem::take(&mut sites.unreported);
        sites.since = None;
        let most = sites.call_sites.values().max_by_key(|site| site.suppressed);
        let most = most.map(|site| (site.target, site.line, site.suppressed));
        sites.call_sites.values_mut().for_each(|site| site.suppressed = 0);
        let (target, line, of_site) = most?;
        Some(format!("{all} log lines suppressed, {of_site} of them of {target}:{line}"))
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Records the written lines.
    #[derive(Clone, Default)]
    struct LineRecorder(std::sync::Arc<Mutex<Vec<String>>>);

    impl std::io::Write for LineRecorder {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A layer that applies its own limit, not the limit of the process, at a fixed time.
    struct FrozenClockLimit(std::sync::Arc<Limit>, Instant);

    impl<S: Subscriber> Layer<S> for FrozenClockLimit {
        fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
            self.0.admit_line(event.metadata(), self.1)
        }
    }

    /// Writes `lines` lines from one call site and one line from another, all at `now`. Returns the number of lines
    /// written from the first call site.
    fn write_lines(limit: &std::sync::Arc<Limit>, now: Instant, lines: usize) -> usize {
        let written = LineRecorder::default();
        let sink = written.clone();
        let writer = tracing_subscriber::fmt::layer().with_writer(move || sink.clone());
        let registry =
            tracing_subscriber::registry().with(FrozenClockLimit(limit.clone(), now)).with(writer);
        tracing::subscriber::with_default(registry, || {
            for n in 0..lines {
                tracing::warn!("stream {n}: a peer's doing");
            }
            tracing::warn!("something else");
        });
        let lines = written.0.lock().unwrap();
        assert!(lines.last().is_some_and(|line| line.contains("something else")));
        lines.len() - 1
    }

    #[test]
    fn excess_lines_of_a_call_site_are_suppressed_and_counted() {
        let (limit, now) = (std::sync::Arc::new(Limit::new(20)), Instant::now());
        let before = suppressed();
        assert_eq!(write_lines(&limit, now, 1000), 20);
        assert!(suppressed() - before >= 980);
        assert_eq!(limit.due(), Some(now + PERIOD));
        assert_eq!(limit.sentence(now), None, "not yet");
        let later = now + PERIOD;
        let sentence = limit.sentence(later).expect("due");
        assert!(sentence.starts_with("980 log lines suppressed, 980 of them of "), "{sentence}");
        assert_eq!((limit.sentence(later + PERIOD), limit.due()), (None, None));
        // The next second has its own budget.
        assert_eq!(write_lines(&limit, later, 5), 5);
        assert_eq!(write_lines(&limit, later, 100), 15);
    }
}
