//! What happened: a bounded log that many readers follow.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::StreamId;
use super::spec::bytes;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts from 1 without gaps.
    pub seq: u64,
    /// Microseconds since 1970-01-01 UTC.
    pub time_us: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What can happen. In JSON the member `event` names the kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The appliance serves.
    Started {
        /// Its name.
        appliance: String,
    },
    /// It takes no new streams and waits for the others to end.
    Draining,
    /// The configuration was applied again.
    Reloaded {
        /// What changed, one sentence each.
        changes: Vec<String>,
    },
    /// A stream is ready for messages.
    StreamEstablished {
        /// The stream.
        stream: StreamId,
        /// Its listener; none if it was opened from here.
        listener: Option<String>,
        /// Address and port of the peer.
        remote: String,
    },
    /// A peer wanted an exclusive region that another stream has: it is advertised as busy to it.
    RegionBusy {
        /// The region.
        region: String,
        /// The stream that has it; none while one is being opened.
        holder: Option<StreamId>,
        /// Whole seconds since that stream was bound or last wrote.
        idle_for: u64,
        /// Address and port of the peer that wanted it.
        remote: String,
    },
    /// A peer was not accepted, or an active open failed.
    StreamRefused {
        /// The listener; none for an active open.
        listener: Option<String>,
        /// Address and port of the peer.
        remote: String,
        /// Why, one sentence.
        reason: String,
    },
    /// A protocol error: layer, code, field, expected and seen are in the sentence.
    StreamError {
        /// The stream.
        stream: StreamId,
        /// `tcp`, `mpa`, `ddp`, `rdmap`, or `service` where a peer's program is not the one it should be.
        layer: String,
        /// The code as the layer's document writes it, such as `1/02`.
        code: String,
        /// What was expected and what was seen.
        reason: String,
    },
    /// RDMAP's Terminate was sent or received: the stream ends.
    Terminated {
        /// The stream.
        stream: StreamId,
        /// It came from the peer.
        by_peer: bool,
        /// Layer, type and code in hexadecimal, such as `1/1/00`.
        code: String,
        /// What it says.
        reason: String,
    },
    /// A peer has invalidated a region's STag; the region has another one from now on.
    StagInvalidated {
        /// The region.
        region: String,
    },
    /// A job (`get`) has brought bytes of a peer into a region.
    RegionFetched {
        /// The region.
        region: String,
        /// The first byte, from the region's start.
        offset: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A stream has ended.
    StreamClosed {
        /// The stream.
        stream: StreamId,
        /// Why, one sentence.
        reason: String,
        /// Bytes placed in regions and buffers.
        placed: u64,
        /// Bytes sent and acknowledged.
        sent: u64,
    },
    /// A tagged message was delivered.
    TaggedDelivered {
        /// The stream.
        stream: StreamId,
        /// The region.
        region: String,
        /// Tagged offset of its first byte.
        to: u64,
        /// Its bytes.
        len: u64,
    },
    /// An untagged message was delivered to a queue with `deliver_to = "events"`.
    Message {
        /// The stream.
        stream: StreamId,
        /// The listener; none if the stream was opened from here.
        listener: Option<String>,
        /// Queue number.
        queue: u32,
        /// Message sequence number.
        msn: u32,
        /// The peer's RsvdULP, 40 bits, not interpreted; 0 over RDMAP, to which it belongs.
        #[serde(default)]
        rsvd_ulp: u64,
        /// The bytes, in base64.
        #[serde(with = "bytes")]
        data: Vec<u8>,
    },
    /// What peers may do with a region was changed, on every worker.
    RegionAccess {
        /// Its name.
        region: String,
        /// What they may do now.
        access: String,
    },
    /// A region was added.
    RegionAdded {
        /// Its name.
        region: String,
    },
    /// A region was removed: no byte can be placed in it any more.
    RegionRemoved {
        /// Its name.
        region: String,
    },
    /// A listener was added.
    ListenerAdded {
        /// Its name.
        listener: String,
    },
    /// A listener was removed.
    ListenerRemoved {
        /// Its name.
        listener: String,
    },
    /// A port's link went up or down.
    LinkChanged {
        /// The port.
        port: String,
        /// The new state.
        up: bool,
    },
    /// A bench has begun to load its streams.
    BenchStarted {
        /// Its job.
        job: u64,
        /// `write`, `read`, `send`, `echo` or `connect`.
        load: String,
        /// Address and port of the peer.
        remote: String,
        /// Streams.
        streams: u32,
    },
    /// A job (`put`, `get`, `bench`) ended.
    JobFinished {
        /// The job.
        job: u64,
        /// What went wrong; none if it succeeded.
        error: Option<String>,
    },
    /// Something the operator should know, such as a file that cannot be written.
    Warning {
        /// One sentence.
        message: String,
    },
}

/// What a reader gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Pass this as `after` to read on.
    pub next: u64,
    /// Events that were overwritten before this reader asked for them.
    pub lost: u64,
}

/// The log; a handle that is cheap to clone. Appending never blocks on readers.
#[derive(Clone, Debug)]
pub struct EventLog {
    inner: Arc<Mutex<Inner>>,
    last: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    events: VecDeque<Event>,
    /// Bytes of message data in `events`.
    bytes: u64,
    last: u64,
    max_events: usize,
    max_bytes: u64,
}

impl EventLog {
    /// A log of at most `max_events` events with at most `max_bytes` bytes of message data; the
    /// oldest go first. The newest is always kept.
    pub fn new(max_events: usize, max_bytes: u64) -> Self {
        let inner = Inner {
            events: VecDeque::new(),
            bytes: 0,
            last: 0,
            max_events: max_events.max(1),
            max_bytes,
        };
        Self { inner: Arc::new(Mutex::new(inner)), last: watch::Sender::new(0) }
    }

    /// Appends; the time is now. Returns the sequence number.
    pub fn push(&self, kind: EventKind) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let seq = self.lock().push(time_us, kind);
        self.last.send_replace(seq);
        seq
    }

    /// Sequence number of the newest event, 0 if there was none.
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    /// At most `limit` events after sequence number `after`, of those that `wanted` takes.
    pub fn read(&self, after: u64, limit: usize, wanted: impl Fn(&Event) -> bool) -> EventPage {
        let inner = self.lock();
        let first = inner.events.front().map_or(inner.last + 1, |event| event.seq);
        let mut page = EventPage {
            events: Vec::new(),
            next: after.min(inner.last),
            lost: first.saturating_sub(after.saturating_add(1)),
        };
        let skip =
            usize::try_from(after.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        for event in inner.events.iter().skip(skip) {
            if page.events.len() == limit {
                break;
            }
            page.next = event.seq;
            if wanted(event) {
                page.events.push(event.clone());
            }
        }
        page
    }

    /// Waits until there is an event after `after`.
    pub async fn wait(&self, after: u64) {
        let mut last = self.last.subscribe();
        // The sender lives in `self`, so this cannot fail.
        drop(last.wait_for(|&last| last > after).await);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing between lock and unlock can panic halfway through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn push(&mut self, time_us: u64, kind: EventKind) -> u64 {
        self.last += 1;
        self.bytes += weight(&kind);
        self.events.push_back(Event { seq: self.last, time_us, kind });
        while self.events.len() > 1
            && (self.events.len() > self.max_events || self.bytes > self.max_bytes)
        {
            if let Some(old) = self.events.pop_front() {
                self.bytes -= weight(&old.kind);
            }
        }
        self.last
    }
}

fn weight(kind: &EventKind) -> u64 {
    match kind {
        EventKind::Message { data, .. } => data.len() as u64,
        _ => 0,
    }
}
