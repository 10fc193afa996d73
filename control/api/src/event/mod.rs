//! Events: their kinds, the bounded log, which has any number of readers, and the readers' filters.

mod filter;
mod kind;
mod log;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StreamId;

pub use filter::EventFilter;
pub use kind::EventKind;
pub use log::{EventLog, EventPage};

/// An event of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Sequence number, from 1 without gaps.
    pub seq: u64,
    /// Time of the event, microseconds since 1970-01-01 UTC.
    pub time_us: u64,
    /// Severity of the event.
    #[serde(default)]
    pub severity: Severity,
    /// Kind of the event and its members.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// Severity of an event, in ascending order.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Normal operation.
    #[default]
    Info,
    /// A request was refused, or a resource is missing. The appliance continues.
    Warning,
    /// A stream or a job has failed.
    Error,
}

impl Severity {
    /// All severities, with their names.
    pub const ALL: [(&'static str, Severity); 3] =
        [("info", Severity::Info), ("warning", Severity::Warning), ("error", Severity::Error)];

    /// Returns the name of the severity, as in JSON.
    pub fn name(self) -> &'static str {
        Severity::ALL[self as usize].0
    }
}

/// Class of an event. The log keeps each class in its own ring, so that events never overwrite events of another class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// Errors, and warnings that do not belong to another class.
    Errors,
    /// Attempts to open a stream that failed, busy regions, and IPsec drops. Any host that reaches a port can cause
    /// such events.
    Attempts,
    /// Messages that peers delivered, and bytes that jobs fetched.
    Deliveries,
    /// All other events, such as the beginning and the end of streams and jobs.
    Lifecycle,
    /// Start of the appliance, and changes by the operator.
    Changes,
}

impl Ring {
    const ALL: [Ring; 5] =
        [Ring::Errors, Ring::Attempts, Ring::Deliveries, Ring::Lifecycle, Ring::Changes];
}

impl EventKind {
    /// Returns the severity, which depends on the kind, and for some kinds (such as `job_finished`) also on a member.
    pub fn severity(&self) -> Severity {
        match self {
            EventKind::StreamError { .. }
            | EventKind::Terminated { .. }
            | EventKind::ProgramError { .. }
            | EventKind::JobFinished { error: Some(_), .. } => Severity::Error,
            EventKind::StreamRefused { .. }
            | EventKind::HandshakeFailed { .. }
            | EventKind::RegionBusy { .. }
            | EventKind::ProgramRefused { .. }
            | EventKind::StreamStalled { .. }
            | EventKind::LinkChanged { up: false, .. }
            | EventKind::AddressConflict { .. }
            | EventKind::IpsecDropped { .. }
            | EventKind::IpsecNoSa { .. }
            | EventKind::IpsecRefused { .. }
            | EventKind::Warning { .. } => Severity::Warning,
            EventKind::IpsecSa { state, .. } if state == "over" => Severity::Warning,
            _ => Severity::Info,
        }
    }

    /// Returns the class of the event, which determines the ring of the log.
    pub fn ring(&self) -> Ring {
        match self {
            EventKind::StreamRefused { .. }
            | EventKind::HandshakeFailed { .. }
            | EventKind::IpsecDropped { .. }
            | EventKind::IpsecNoSa { .. }
            | EventKind::ProgramRefused { .. }
            | EventKind::RegionBusy { .. } => Ring::Attempts,
            EventKind::TaggedDelivered { .. }
            | EventKind::Message { .. }
            | EventKind::RegionFetched { .. } => Ring::Deliveries,
            EventKind::Started { .. }
            | EventKind::Draining
            | EventKind::Undrained
            | EventKind::Reloaded { .. }
            | EventKind::RegionAccess { .. }
            | EventKind::RegionAdded { .. }
            | EventKind::RegionRemoved { .. }
            | EventKind::ListenerAdded { .. }
            | EventKind::ListenerRemoved { .. } => Ring::Changes,
            _ if self.severity() > Severity::Info => Ring::Errors,
            _ => Ring::Lifecycle,
        }
    }

    /// Returns the stream of the event; `None` if the event names no stream.
    pub fn stream(&self) -> Option<StreamId> {
        match self {
            EventKind::StreamEstablished { stream, .. }
            | EventKind::StreamError { stream, .. }
            | EventKind::Terminated { stream, .. }
            | EventKind::StreamStalled { stream, .. }
            | EventKind::StreamResumed { stream, .. }
            | EventKind::StreamClosed { stream, .. }
            | EventKind::TaggedDelivered { stream, .. }
            | EventKind::Message { stream, .. } => Some(*stream),
            EventKind::RegionBusy { holder, .. } => *holder,
            _ => None,
        }
    }

    /// Returns the listener of the event; `None` if the event names no listener.
    pub fn listener(&self) -> Option<&str> {
        match self {
            EventKind::StreamEstablished { listener, .. }
            | EventKind::StreamRefused { listener, .. }
            | EventKind::HandshakeFailed { listener, .. }
            | EventKind::Message { listener, .. } => listener.as_deref(),
            EventKind::ListenerAdded { listener } | EventKind::ListenerRemoved { listener } => {
                Some(listener)
            }
            _ => None,
        }
    }

    /// Returns the length of the event's message data, bytes; 0 for other kinds than `message`.
    fn byte_cost(&self) -> u64 {
        match self {
            EventKind::Message { data, .. } => data.len() as u64,
            _ => 0,
        }
    }
}
