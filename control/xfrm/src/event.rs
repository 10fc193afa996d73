//! Events for the data plane, and the types that operators see.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use ipsec::guard::Protection;
pub use ipsec::guard::SaId;
use ipsec::policy::{Action, Direction, Policy, Selector, Unmatched};
use ipsec::sa::Parameters;

/// Maximum number of waiting warnings; further warnings are only counted.
const WARNINGS: usize = 64;

/// A protection: a set-up for ESP (mode, addresses, request ID) that policies require.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectionInfo {
    /// Number of the protection, constant while a policy requires it.
    pub protection: Protection,
    /// Request id of its policies and SAs.
    pub reqid: u32,
    /// True for tunnel mode, false for transport mode.
    pub tunnel: bool,
    /// Our address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}

impl std::fmt::Display for ProtectionInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = if self.tunnel { "tunnel" } else { "transport" };
        write!(f, "{mode} {} - {}, reqid {}", self.local, self.remote, self.reqid)
    }
}

/// The first sequence numbers of a new SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// Sequence numbers that may be sent. [`Mirror::reserve_sequence`](crate::Mirror::reserve_sequence) requests more.
    Outbound {
        /// First sequence number that may be sent.
        first: u64,
        /// Number of sequence numbers, beginning with `first`.
        numbers: u64,
    },
    /// Sequence numbers already received.
    Inbound {
        /// Highest number; 0 if none was received. All numbers up to it are considered received.
        highest: u64,
        /// Size of the anti-replay window, packets, 64 to 4096.
        window: u16,
    },
}

/// The kind of a refused entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusedKind {
    /// A policy. The reason states whether its packets are dropped or the data plane's list does not contain it.
    Policy,
    /// An SA.
    Sa,
}

/// A change for the data plane, or a report to the operator. SAs are removed before the policies change. New SAs are
/// added after the policies, the oldest first. An outbound SA is added once the kernel has reserved its first sequence
/// numbers.
#[derive(Clone, Debug)]
pub enum Event {
    /// The policies have changed.
    Policies {
        /// All policies of both directions, in the kernel's order.
        list: Vec<Policy<Protection>>,
        /// Treatment of packets that match no policy.
        unselected: Unmatched,
        /// Protections that the list requires, by number.
        protections: Vec<ProtectionInfo>,
    },
    /// A new SA.
    AddSa {
        /// Identifier of the SA.
        id: SaId,
        /// Direction of the SA's packets.
        direction: Direction,
        /// Protection that the SA belongs to.
        protection: Protection,
        /// Negotiated parameters.
        parameters: Arc<Parameters>,
        /// The first sequence numbers.
        sequence: SequenceState,
    },
    /// An outbound SA is selected for sending again, although another SA was added after it.
    SelectSa {
        /// Identifier of the SA.
        id: SaId,
    },
    /// An SA has ended.
    RemoveSa {
        /// Identifier of the SA.
        id: SaId,
    },
    /// More sequence numbers of an outbound SA are reserved.
    Reserved {
        /// Identifier of the SA.
        id: SaId,
        /// The last permitted sequence number.
        last: u64,
    },
    /// A policy or SA cannot be applied as the kernel has it. Reported once, and again if the reason changes.
    Refused {
        /// Kind of the refused entry.
        kind: RefusedKind,
        /// Selector of the policy, or SPI and addresses of the SA.
        name: String,
        /// Reason of the refusal.
        reason: String,
    },
    /// A failure that the operator should see.
    Warning(String),
}

/// A policy, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Direction, addresses, protocol and ports as the kernel has them.
    pub selector: String,
    /// Selector in the data plane's list; `None` if the policy is not in it.
    pub translated_selector: Option<Selector>,
    /// Direction of the packets.
    pub direction: Direction,
    /// Action in the data plane's list; `None` if the policy is not in it.
    pub action: Option<Action<Protection>>,
    /// Request id of the policy's template.
    pub reqid: Option<u32>,
    /// Priority; the lowest number is matched first.
    pub priority: u32,
    /// Index of the policy in the kernel.
    pub index: u32,
    /// Required SAs; empty if none are required.
    pub templates: String,
    /// Reason why the policy is not applied as in the kernel, if any.
    pub refused: Option<String>,
}

/// An SA without its keys, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaInfo {
    /// Identifier in the data plane; `None` while the data plane does not have the SA.
    pub id: Option<SaId>,
    /// Direction and protection; `None` while no policy requires the SA.
    pub service: Option<(Direction, Protection)>,
    /// SPI, which identifies the SA at its receiver.
    pub spi: u32,
    /// Source address of the SA's packets.
    pub source: Option<IpAddr>,
    /// Destination address of the SA's packets.
    pub destination: Option<IpAddr>,
    /// Request id that the SA and its policies share.
    pub reqid: u32,
    /// True for tunnel mode, false for transport mode.
    pub tunnel: bool,
    /// Algorithms, as the kernel names them.
    pub algorithm: String,
    /// Reason why the SA is not used, if any.
    pub refused: Option<String>,
}

/// Waiting events. At most [`WARNINGS`] of them are warnings. Other events are not limited here, because each results
/// from a message of the kernel or a call.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    queue: VecDeque<Event>,
    /// Number of warnings in `queue`.
    warnings: usize,
    /// Warnings dropped because too many were waiting.
    pub(crate) lost_warnings: u64,
}

impl EventQueue {
    pub(crate) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    pub(crate) fn warn(&mut self, warning: String) {
        if self.warnings < WARNINGS {
            self.warnings += 1;
            self.queue.push_back(Event::Warning(warning));
        } else {
            self.lost_warnings += 1;
        }
    }

    /// Reports a refusal unless the same reason was reported before. Returns the current reason, if any.
    pub(crate) fn report_refusal(
        &mut self,
        what: RefusedKind,
        name: impl std::fmt::Display,
        reported: Option<String>,
        reason: Option<&str>,
    ) -> Option<String> {
        let reason = reason?;
        if reported.as_deref() != Some(reason) {
            let (name, reason) = (name.to_string(), reason.to_owned());
            self.push(Event::Refused { kind: what, name, reason });
        }
        Some(reason.to_owned())
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front();
        if matches!(event, Some(Event::Warning(_))) {
            self.warnings -= 1;
        }
        event
    }
}
