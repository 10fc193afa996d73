//! Events for the data plane, and what operators see.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use ipsec::guard::Protection;
pub use ipsec::guard::SaId;
use ipsec::policy::{Action, Direction, Policy, Selector, Unselected};
use ipsec::sa::Parameters;

/// Warnings that wait at most; what comes then is only counted.
const WARNINGS: usize = 64;

/// A protection that policies ask for. In one list of policies its number stands for one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectionInfo {
    /// Its number. It is kept while a policy asks for it.
    pub protection: Protection,
    /// The request id that its policies and SAs share.
    pub reqid: u32,
    /// Tunnel mode; else transport mode.
    pub tunnel: bool,
    /// Our end.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

impl std::fmt::Display for ProtectionInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = if self.tunnel { "tunnel" } else { "transport" };
        write!(f, "{mode} {} - {}, reqid {}", self.local, self.remote, self.reqid)
    }
}

/// The sequence numbers that a new SA begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Those that may be used; more by [`Mirror::reserve`](crate::Mirror::reserve).
    Outbound {
        /// The first.
        first: u64,
        /// How many from there.
        numbers: u64,
    },
    /// What was received before.
    Inbound {
        /// The highest number; 0 if there is none. All up to it count as received.
        top: u64,
        /// Packets of the anti-replay window, 64 to 4096.
        window: u16,
    },
}

/// What is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A policy. What it protects is dropped, or it is not in the list: see the reason.
    Policy,
    /// An SA.
    Sa,
}

/// A change that the data plane applies, or that an operator should know. SAs are removed before the policies change, and
/// added after that, the oldest first.
#[derive(Clone, Debug)]
pub enum Event {
    /// The policies, whenever they have changed.
    Policies {
        /// All of them, in the kernel's order of both directions.
        list: Vec<Policy<Protection>>,
        /// What becomes of packets that none of them selects.
        unselected: Unselected,
        /// Those that the list asks for, by number.
        protections: Vec<ProtectionInfo>,
    },
    /// There is a new SA.
    AddSa {
        /// Its name.
        id: SaId,
        /// Which way it carries packets.
        direction: Direction,
        /// Whose it is.
        protection: Protection,
        /// What was agreed on.
        parameters: Arc<Parameters>,
        /// The sequence numbers that it begins with.
        sequence: Sequence,
    },
    /// This outbound SA sends again, although another was added after it.
    SelectSa {
        /// The SA.
        id: SaId,
    },
    /// There is it no more.
    RemoveSa {
        /// The SA.
        id: SaId,
    },
    /// More sequence numbers of an outbound SA may be used.
    Reserved {
        /// The SA.
        id: SaId,
        /// The last of them.
        last: u64,
    },
    /// A policy or SA cannot be served as the kernel has it. Sent once for each reason.
    Refused {
        /// Which of them.
        what: Refusal,
        /// Its selector, or its SPI and addresses.
        name: String,
        /// Why.
        reason: String,
    },
    /// Something failed that an operator should know.
    Warning(String),
}

/// A policy as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Direction, addresses, protocol and ports as the kernel has them.
    pub selector: String,
    /// The same as we have it; `None` if it is not in our list.
    pub fits: Option<Selector>,
    /// Its direction.
    pub direction: Direction,
    /// What we do with its packets; `None` if it is not in our list.
    pub action: Option<Action<Protection>>,
    /// The request id of its template.
    pub reqid: Option<u32>,
    /// Lower ones come first.
    pub priority: u32,
    /// The kernel's number of it.
    pub index: u32,
    /// The SAs that it asks for; empty if for none.
    pub templates: String,
    /// Why it is not served as the kernel has it.
    pub refused: Option<String>,
}

/// An SA as operators see it: no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaInfo {
    /// Its name, while the data plane has it.
    pub id: Option<SaId>,
    /// Its direction and protection; `None` while no policy asks for it.
    pub serves: Option<(Direction, Protection)>,
    /// Its name at its receiver.
    pub spi: u32,
    /// Where its packets come from.
    pub source: Option<IpAddr>,
    /// Where they go.
    pub destination: Option<IpAddr>,
    /// The request id that it shares with its policies.
    pub reqid: u32,
    /// Tunnel mode.
    pub tunnel: bool,
    /// Its algorithms as the kernel names them.
    pub algorithm: String,
    /// Why it is not used.
    pub refused: Option<String>,
}

/// Events that wait. Warnings are bounded; of the others each is caused by a message or call.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    warnings: usize,
    /// Warnings that were not kept.
    pub(crate) lost: u64,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    pub(crate) fn warn(&mut self, warning: String) {
        if self.warnings < WARNINGS {
            self.warnings += 1;
            self.queue.push_back(Event::Warning(warning));
        } else {
            self.lost += 1;
        }
    }

    /// Reports a refusal unless it was reported before. Returns the reason that is reported now.
    pub(crate) fn refuse(
        &mut self,
        what: Refusal,
        name: impl std::fmt::Display,
        told: Option<String>,
        reason: Option<&str>,
    ) -> Option<String> {
        let reason = reason?;
        if told.as_deref() != Some(reason) {
            let (name, reason) = (name.to_string(), reason.to_owned());
            self.push(Event::Refused { what, name, reason });
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
