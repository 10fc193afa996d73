//! Events: their kinds, the bounded log for any number of readers, and the readers' filters.

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

    /// Returns the severity's name.
    pub fn name(self) -> &'static str {
        Severity::ALL[self as usize].0
    }
}

/// The ring of the log that keeps an event. Events of one ring never overwrite those of another ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// Errors and warnings.
    Errors,
    /// Connection attempts that did not become streams; any host that reaches the port can cause them.
    Attempts,
    /// Messages that peers and jobs placed or sent.
    Deliveries,
    /// Beginning, changes and end of streams and jobs.
    Lifecycle,
    /// Changes by the operator.
    Changes,
}

impl Ring {
    const ALL: [Ring; 5] =
        [Ring::Errors, Ring::Attempts, Ring::Deliveries, Ring::Lifecycle, Ring::Changes];
}

impl EventKind {
    /// Returns the severity.
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

    /// Returns the ring that keeps the event.
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

    /// Returns the event's stream, if it names one.
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

    /// Returns the event's listener, if it names one.
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

    /// Returns the length of the event's message data, bytes.
    fn byte_cost(&self) -> u64 {
        match self {
            EventKind::Message { data, .. } => data.len() as u64,
            _ => 0,
        }
    }
}
