//! Events: their kinds, the bounded log with many readers, and the readers' filters.

mod filter;
mod log;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StreamId;
use super::spec::bytes;

pub use filter::EventFilter;
pub use log::{EventLog, EventPage};

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Counts from 1 without gaps.
    pub seq: u64,
    /// Microseconds since 1970-01-01 UTC.
    pub time_us: u64,
    /// How much it matters.
    #[serde(default)]
    pub severity: Severity,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What can happen. In JSON the member `event` names the kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// It takes new streams again.
    Undrained,
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
    /// A stream could not be opened from here.
    StreamRefused {
        /// None.
        listener: Option<String>,
        /// Address and port of the peer.
        remote: String,
        /// Why, one sentence.
        reason: String,
        /// What the operator can do.
        #[serde(default)]
        hint: Option<String>,
    },
    /// A peer connected and did not become a stream: its handshake failed, or it was refused. Not all of a flood are
    /// here; the counters have all.
    HandshakeFailed {
        /// The listener; none where nothing listens.
        listener: Option<String>,
        /// `tcp` or `sctp`.
        transport: String,
        /// Our address and port.
        local: String,
        /// Address and port of the peer.
        remote: String,
        /// The layer at which it ended: `tcp`, `mpa`, `sctp`, `session`, `ddp`, `rdmap`, or `admission` where this end
        /// refused.
        stage: String,
        /// Why, a word that the counter has too.
        reason: String,
        /// What was expected and seen, one sentence.
        detail: String,
        /// What the operator can do.
        hint: Option<String>,
        /// Failures since the last of these events that have none.
        unreported: u64,
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
    /// A stream makes no progress: its tenth time-out in a row, or the last one before its limits end it. Once, until it
    /// makes progress again.
    StreamStalled {
        /// The stream.
        stream: StreamId,
        /// Address and port of the peer.
        remote: String,
        /// Time-outs in a row.
        timeouts: u32,
        /// Seconds since the peer acknowledged something new.
        seconds: u64,
        /// What is awaited, one sentence.
        reason: String,
        /// What the operator can do.
        hint: String,
    },
    /// A stream that had stalled makes progress again.
    StreamResumed {
        /// The stream.
        stream: StreamId,
        /// Address and port of the peer.
        remote: String,
        /// Seconds without progress.
        seconds: u64,
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
        #[schemars(with = "crate::schema_shapes::Base64")]
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
    /// Another host uses an address of ours. Told every ten seconds for as long as it does.
    AddressConflict {
        /// The interface.
        interface: String,
        /// The address.
        address: String,
        /// The other host's link-layer address.
        other: String,
    },
    /// A packet was dropped by IPsec in a way that RFC 4301 and RFC 4303 call auditable. At most 16 a second of each worker
    /// are told; the counters have all.
    IpsecDropped {
        /// Why: `unprotected`, `wrong_protection`, `policy_discarded`, `no_policy`, `unknown_spi`, `too_old`, `duplicate`,
        /// `integrity`, `fragment`.
        why: String,
        /// The SPI, if it came by ESP.
        spi: Option<u32>,
        /// The sequence number as it stands in the packet, if it came by ESP.
        sequence: Option<u32>,
        /// Where it went; with the port, if there is one.
        local: String,
        /// Where it came from.
        remote: String,
    },
    /// A packet is to be protected, and there is no SA for it. Told once a second at most for each policy.
    IpsecNoSa {
        /// The policy.
        policy: String,
        /// The peer.
        remote: String,
    },
    /// The lifetime of an SA.
    IpsecSa {
        /// Its SPI.
        spi: u32,
        /// `in` or `out`.
        direction: String,
        /// Its name in the configuration; empty if it does not stand there.
        name: String,
        /// `added` and `removed`, of those of the kernel; `soft`: it is to be replaced soon; `over`: it takes nothing more.
        state: String,
    },
    /// A policy or an SA of the kernel is not served as it stands there. What such a policy protects is dropped.
    IpsecRefused {
        /// `policy` or `sa`.
        what: String,
        /// Its selector, or its SPI and addresses.
        name: String,
        /// Why.
        reason: String,
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

/// How much an event matters, the least first.
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
    /// It is as it should be.
    #[default]
    Info,
    /// Something was refused or is missing; the appliance goes on.
    Warning,
    /// A stream or a job has failed.
    Error,
}

impl Severity {
    /// All of them, as operators write them.
    pub const ALL: [(&'static str, Severity); 3] =
        [("info", Severity::Info), ("warning", Severity::Warning), ("error", Severity::Error)];

    /// Returns the severity's word.
    pub fn name(self) -> &'static str {
        Severity::ALL[self as usize].0
    }
}

/// The ring of the log that keeps an event. Events of one ring never overwrite those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// Errors and warnings.
    Errors,
    /// Peers that did not become streams: any host that reaches the port can cause them.
    Attempts,
    /// Messages that peers and jobs placed or sent.
    Deliveries,
    /// The life of streams and jobs.
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
            | EventKind::JobFinished { error: Some(_), .. } => Severity::Error,
            EventKind::StreamRefused { .. }
            | EventKind::HandshakeFailed { .. }
            | EventKind::RegionBusy { .. }
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

    /// Returns the bytes of message data in the event.
    fn byte_cost(&self) -> u64 {
        match self {
            EventKind::Message { data, .. } => data.len() as u64,
            _ => 0,
        }
    }
}
