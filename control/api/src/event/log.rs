//! The event log: one ring buffer for each class of events, and one sequence number for all events.
//!
//! | ring | contents | grows with |
//! |---|---|---|
//! | changes | changes by the operator | the operator |
//! | errors | errors, and warnings that are not attempts | streams that fail |
//! | attempts | failed attempts to open a stream, busy regions, IPsec drops | any host that reaches the port |
//! | deliveries | tagged and untagged messages, fetched bytes | peers with a stream, jobs |
//! | lifecycle | all other events | streams and jobs |
//!
//! Each ring keeps at most `max_events` events. A flood of one class therefore does not overwrite events of another
//! class. Only events of the class deliveries contain message data.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{Event, EventFilter, EventKind, Ring};
use crate::StreamId;

/// A page of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventPage {
    /// Events, oldest first.
    pub events: Vec<Event>,
    /// Value of `after` for the next page.
    pub next: u64,
    /// Number of events that were overwritten before this page was read. If the filter selects only some classes of
    /// events, an upper bound for these classes.
    pub lost: u64,
}

/// Handle of the event log, cheap to clone. Appending an event never waits for readers.
#[derive(Clone, Debug)]
pub struct EventLog {
    inner: Arc<Mutex<LogState>>,
    last: watch::Sender<u64>,
}

#[derive(Debug)]
struct LogState {
    /// One ring for each class, in the order of [`Ring::ALL`].
    rings: [EventRing; Ring::ALL.len()],
    last: u64,
    /// Listener of each live stream that a listener accepted, for events that name only the stream.
    listeners: HashMap<StreamId, Arc<str>>,
}

/// The newest events of one class, within the bounds that [`EventLog::new`] describes.
#[derive(Debug)]
struct EventRing {
    events: VecDeque<StoredEvent>,
    /// Message data in `events`, bytes.
    bytes: u64,
    max_events: usize,
    max_bytes: u64,
    /// Number of overwritten events, and the sequence number of the newest of them.
    overwritten: u64,
    newest_overwritten: u64,
}

/// An event, and the listener of its stream if the event itself does not name the listener.
#[derive(Debug)]
struct StoredEvent {
    event: Event,
    listener: Option<Arc<str>>,
}

impl EventLog {
    /// Creates a log that keeps at most `max_events` events and `max_bytes` bytes of message data per class. The oldest
    /// events of a class are overwritten first. The newest event of a class is always kept.
    pub fn new(max_events: usize, max_bytes: u64) -> Self {
        let inner = LogState {
            rings: Ring::ALL.map(|_| EventRing::new(max_events.max(1), max_bytes)),
            last: 0,
            listeners: HashMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)), last: watch::Sender::new(0) }
    }

    /// Appends an event with the current time. Returns its sequence number.
    pub fn push(&self, kind: EventKind) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.push_with_time(u64::try_from(now.as_micros()).unwrap_or(u64::MAX), kind)
    }

    /// Appends an event with the time `time_us`, microseconds since 1970-01-01 UTC. Returns its sequence number.
    pub(super) fn push_with_time(&self, time_us: u64, kind: EventKind) -> u64 {
        let mut state = self.lock();
        let seq = state.push(time_us, kind);
        // Sent with the lock held. Otherwise a slower caller could replace a newer sequence number by its older one.
        self.last.send_replace(seq);
        seq
    }

    /// Returns the sequence number of the newest event; 0 if the log had no event yet.
    pub fn last_seq(&self) -> u64 {
        self.lock().last
    }

    /// Returns at most `limit` matching events with a sequence number above `after`.
    pub fn read(&self, after: u64, limit: usize, filter: &EventFilter) -> EventPage {
        self.lock().read(after, limit, filter)
    }

    /// Waits until an event with a sequence number above `after` exists.
    pub async fn wait(&self, after: u64) {
        let mut last = self.last.subscribe();
        // The sender belongs to `self`, so waiting cannot fail.
        drop(last.wait_for(|&last| last > after).await);
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        // Poison is ignored: a panic while the lock is held leaves no change incomplete.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogState {
    fn push(&mut self, time_us: u64, kind: EventKind) -> u64 {
        self.last += 1;
        let listener = self.event_listener(&kind);
        let (severity, ring) = (kind.severity(), kind.ring());
        let event = Event { seq: self.last, time_us, severity, kind };
        self.rings[ring as usize].push(StoredEvent { event, listener });
        self.last
    }

    /// Returns the listener of the event's stream, if it is known and the event itself does not name it. Records the
    /// listener of a new stream, and removes the listener of an ended stream.
    fn event_listener(&mut self, kind: &EventKind) -> Option<Arc<str>> {
        match kind {
            EventKind::StreamEstablished { stream, listener: Some(listener), .. } => {
                self.listeners.insert(*stream, Arc::from(listener.as_str()));
                None
            }
            EventKind::StreamClosed { stream, .. } => self.listeners.remove(stream),
            _ => kind.stream().and_then(|stream| self.listeners.get(&stream).cloned()),
        }
    }

    fn read(&self, after: u64, limit: usize, filter: &EventFilter) -> EventPage {
        let mut page = EventPage { events: Vec::new(), next: self.last, lost: 0 };
        if after >= self.last {
            return page;
        }
        let wanted = || Ring::ALL.into_iter().filter(|ring| filter.may_match_ring(*ring));
        let mut rings: Vec<_> =
            wanted().map(|ring| self.rings[ring as usize].events_after(after).peekable()).collect();
        // Takes the oldest remaining event of all searched rings in each iteration.
        while let Some((_, at)) = (0..rings.len())
            .filter_map(|at| rings[at].peek().map(|kept| (kept.event.seq, at)))
            .min()
        {
            if page.events.len() == limit {
                let read = page.events.last().map_or(after, |event: &Event| event.seq);
                page.next = read;
                break;
            }
            if let Some(kept) = rings[at].next()
                && filter.matches(&kept.event, kept.listener.as_deref())
            {
                page.events.push(kept.event.clone());
            }
        }
        page.lost = self.count_lost(after, page.next, wanted());
        page
    }

    /// Returns the number of overwritten events in the `wanted` rings with sequence numbers above `from`, up to and
    /// including `to`. The number is exact if no other ring lost events in this range, else an upper bound.
    fn count_lost(&self, from: u64, to: u64, wanted: impl Iterator<Item = Ring>) -> u64 {
        let kept = self.rings.iter().map(|ring| ring.count_between(from, to)).sum::<u64>();
        let of_all = (to - from).saturating_sub(kept);
        let rings = wanted.map(|ring| &self.rings[ring as usize]);
        let of_wanted = rings.filter(|ring| ring.newest_overwritten > from);
        of_all.min(of_wanted.map(|ring| ring.overwritten).sum())
    }
}

impl EventRing {
    fn new(max_events: usize, max_bytes: u64) -> Self {
        EventRing {
            events: VecDeque::new(),
            bytes: 0,
            max_events,
            max_bytes,
            overwritten: 0,
            newest_overwritten: 0,
        }
    }

    fn push(&mut self, kept: StoredEvent) {
        self.bytes += kept.event.kind.byte_cost();
        self.events.push_back(kept);
        while self.events.len() > 1
            && (self.events.len() > self.max_events || self.bytes > self.max_bytes)
        {
            if let Some(old) = self.events.pop_front() {
                self.bytes -= old.event.kind.byte_cost();
                self.overwritten += 1;
                self.newest_overwritten = old.event.seq;
            }
        }
    }

    /// Iterates over the events with a sequence number above `seq`, the oldest first.
    fn events_after(&self, seq: u64) -> impl Iterator<Item = &StoredEvent> {
        self.events.iter().skip(self.index_after(seq))
    }

    /// Returns the number of kept events with sequence numbers above `from`, up to and including `to`.
    fn count_between(&self, from: u64, to: u64) -> u64 {
        (self.index_after(to) - self.index_after(from)) as u64
    }

    /// Returns the index of the first kept event with a sequence number above `seq`.
    fn index_after(&self, seq: u64) -> usize {
        self.events.partition_point(|kept| kept.event.seq <= seq)
    }
}
