//! Filter of a reader of the event log.

use super::{Event, EventKind, Ring, Severity};
use crate::StreamId;

/// Filter of a reader of the event log. An event matches if it meets all conditions. `None` and default values match
/// all events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Minimum severity.
    pub severity: Severity,
    /// Selects events about this stream.
    pub stream: Option<StreamId>,
    /// Selects events of the listener with this name and of its streams.
    pub listener: Option<String>,
    /// Earliest time, microseconds since 1970-01-01 UTC.
    pub since_us: u64,
    /// True to select only untagged messages.
    pub messages: bool,
    /// Selects untagged messages of this queue number.
    pub queue: Option<u32>,
}

impl EventFilter {
    /// Returns true if the ring can contain matching events. A reader does not search other rings, and events lost from
    /// other rings are not reported to this reader.
    pub(super) fn may_match_ring(&self, ring: Ring) -> bool {
        match ring {
            Ring::Errors => !self.messages,
            Ring::Attempts => !self.messages && self.severity <= Severity::Warning,
            Ring::Deliveries => self.severity == Severity::Info,
            Ring::Lifecycle | Ring::Changes => !self.messages && self.severity == Severity::Info,
        }
    }

    /// Returns true if the event matches. `listener` is the listener of the event's stream, if known.
    pub(super) fn matches(&self, event: &Event, listener: Option<&str>) -> bool {
        let is_message = |queue: Option<u32>| match &event.kind {
            EventKind::Message { queue: of, .. } => queue.is_none_or(|wanted| wanted == *of),
            _ => false,
        };
        event.severity >= self.severity
            && event.time_us >= self.since_us
            && self.stream.is_none_or(|wanted| event.kind.stream() == Some(wanted))
            && self.listener.as_deref().is_none_or(|wanted| {
                event.kind.listener().or(listener).is_some_and(|name| name == wanted)
            })
            && (!self.messages && self.queue.is_none() || is_message(self.queue))
    }
}
