//! RDMAP (RFC 5040) and its extensions (RFC 7306) above DDP: Sends, Writes, Reads, atomics, Immediate
//! Data and the Terminate that ends a stream.
//!
//! Sans-IO like DDP, and independent of the LLP: a [`Stream`] wraps a DDP stream and has the same interface to the LLP.
//! Its ULP posts [`WorkRequest`]s and polls [`Event`]s. After every call from the LLP, call [`Stream::poll_event`]
//! until it returns `None`.
//!
//! ```text
//!   ULP --post--> operations --ORD--+                      +--> events --> ULP
//!                                   +--> DDP source         |
//!   peer's requests --> responses --+        DDP sink --> messages --> requests, completions
//! ```
//!
//! Messages of a stream are never interleaved. This end's operations and responses alternate, message by message, as
//! the LLP requests the next message. A long Read Response delays the later messages of its stream, but no other
//! stream. Operations complete in the order in which they were posted (RFC 5040 §5.5 (15)).
//!
//! Not included: the negotiation of IRD and ORD (the LLP's start-up), and the decision which program may post which
//! operation.

mod access_checks;
mod checks;
mod config;
mod counters;
mod error;
mod message;
mod operations;
mod responses;
mod stream;
#[cfg(test)]
mod tests;

pub use crate::config::ReceiveMode;
pub use crate::receive::{Receive, ReceiveSource};
use checks::Checks;
pub use config::Config;
pub use counters::Counters;
pub use error::{Error, ErrorCode, RdmapError};
pub use message::{Event, Outcome, WorkRequest};
pub(crate) use stream::terminate_message;
pub use stream::{Sink, Stream};
pub use wire::rdmap::AtomicOp;
pub use wire::rdmap::terminate::{Layout, TerminateRepr as Terminate};
