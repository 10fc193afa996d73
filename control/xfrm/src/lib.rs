//! A mirror of the Linux kernel's IPsec policies and SAs (XFRM) for the data plane, sans-IO.
//!
//! IKE daemons such as strongSwan install policies and SAs in the kernel, but only the data plane encrypts and sends
//! packets. A [`Mirror`] reads the messages of a netlink socket (protocol `NETLINK_XFRM`, groups SA, POLICY, EXPIRE and
//! MIGRATE) and turns them into [`Event`]s. The mirror also sends requests for missing SAs, and reports of the use and
//! the end of SAs, to the kernel, which notifies the daemons.
//!
//! ```text
//!   kernel -- input -------->          -- poll_event ------------------> data plane
//!          <- poll_transmit -- Mirror <-- acquire, report_usage, reserve_sequence, expire --
//! ```
//!
//! After each call, the caller calls [`Mirror::poll_transmit`] and [`Mirror::poll_event`] until both return `None`. All
//! requests are sent to one socket, which only this mirror uses for its lifetime.
//!
//! Not supported: AH, IPComp, BEET and IPTFS; XFRM interfaces, devices, marks and security labels; SAs offloaded to a
//! network card. SAs with such a property are not used. A policy with such a property drops the packets that it
//! selects, or is omitted if it cannot select a packet of the data plane (see [`Event::Refused`]). Policies for
//! forwarded packets and for single sockets are ignored. Packets are checked against the selector of the policy, not
//! against the selector of the SA. The kernel enforces lifetimes in seconds. Lifetimes of policies in packets or bytes
//! are ignored.
//!
//! Keys are stored in the messages about SAs, in the mirror while the kernel has the SA, and in [`Event::AddSa`]. All
//! copies are wiped when they are freed, and `Debug` does not print them.
#![forbid(unsafe_code)]

mod ages;
mod algorithm;
mod event;
mod message;
mod mirror;
mod policies;
mod policy;
mod protections;
mod request;
mod sa;
mod sas;

pub use event::{Event, PolicyInfo, ProtectionInfo, RefusedKind, SaId, SaInfo, SequenceState};
pub use mirror::{Mirror, MirrorConfig, MirrorCounters};
pub use sas::MOST_SAS;
