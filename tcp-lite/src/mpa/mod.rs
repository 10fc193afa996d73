//! MPA, the layer that keeps ULPDU boundaries in a TCP stream: RFC 5044, its first draft
//! (draft-culley-iwarp-mpa-03) and revision 2 (RFC 6581).
//!
//! ```text
//!  stream of one direction
//!  | start-up frame | FPDU | FPDU | FPDU ...                    Full Operation
//!                   ^ Framing::start: markers, if the receiver of this direction has
//!                     requested them: here and at every 512th byte after it
//! ```
//!
//! [`Startup`] is the Startup Phase of either role. It negotiates the [`Params`] of a [`Sender`] and a [`Receiver`].
//! All three are independent of TCP: they process bytes at 64-bit stream offsets. All three also work above a kernel
//! socket, which delivers bytes in order only.
//!
//! Not included: IPsec (RFC 5044 §9.4), a layer below TCP.

mod config;
mod error;
mod foreign;
mod framing;
mod peer;
mod receiver;
mod sender;
mod smb_direct;
mod startup;
#[cfg(test)]
pub(crate) mod testing;

pub use config::{BadCrcPolicy, Config, Params, Revision, Revisions};
pub use ddp::HoldBudget;
pub use ddp::enhanced::{Agreement, Depths, Enhanced, Readiness, Rtr};
pub use error::{Fault, MpaError, StartupError};
pub use foreign::ForeignProtocol;
pub use framing::{Framing, looks_like_one_fpdu, mulpdu};
pub use peer::Peer;
pub use receiver::{Receiver, ReceiverStats};
pub use sender::{Sender, SenderStats};
pub use startup::{AcceptError, PrivateDataTooLong, Progress, Request, Startup};
pub use wire::mpa::{EnhancedRepr, MAX_DEPTH, NO_LIMIT, RtrSet};

/// Largest MULPDU, in bytes (RFC 5044 §3).
pub const MAX_MULPDU: usize = 64_768;
