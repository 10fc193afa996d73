//! SCTP (RFC 9260), single-homed, without a send buffer, below the DDP adaptation.
//!
//! Messages are delivered on arrival, even if earlier messages are missing ([`MessageSink`](crate::seam::MessageSink)).
//! The receive half keeps only TSNs and the fragments of incomplete messages. For transmission, the upper layer writes
//! messages directly into the packet ([`MessageSource`](crate::seam::MessageSource)). For a retransmission it writes
//! the same bytes again.
//!
//! A [`Listener`] answers INITs without keeping state. An [`Association`] is sans-IO; the `upper` argument of its calls
//! is both sink and source. Every call is legal at any time. The owner calls:
//!
//! ```text
//!  input(now, packet, upper)        for each packet between its two ends, checksum verified
//!  handle_timeout(now)              when the time returned by poll_timeout() is reached
//!  poll_transmit(now, upper, tx)    after a burst of the above, or when the upper layer has data or room
//!  poll_event()                     until it returns None
//!  poll_timeout()                   last, for the time of the next call
//! ```
//!
//! After the end, [`Association::state`] is `Closed`, and `poll_transmit` may still send a last chunk. The owner calls
//! `poll_transmit` until [`Association::is_done`] is true.
//!
//! A multihomed peer is tolerated, but only one of its addresses is used: the source of its first packet, or the
//! destination of the active open. Addresses in its INIT and INIT ACK are ignored.
//!
//! Not implemented: multiple paths (and so path verification and failover), ordered delivery, and fragmentation on
//! send. The only extensions implemented are the adaptation layer indication (RFC 5061 §4.2.6) and PAD (RFC 4820),
//! which probes the path.

mod association;
mod config;
mod cookie;
mod drop_reason;
mod error_causes;
mod fast_path;
mod handshake;
mod heartbeat;
mod input;
mod listener;
mod liveness;
mod negotiate;
mod output;
mod path_mtu;
mod path_mtu_discovery;
mod pending;
pub mod receive;
mod secrets;
pub mod send;
mod single_chunk;
mod state;
mod stats;
mod timeouts;
mod timers;

#[cfg(test)]
mod tests;

pub use association::{Association, CloseReason, Event, Fault};
pub use config::{Config, MIN_PACKET};
pub use cookie::{COOKIE_LEN, Cookie};
pub use drop_reason::DropReason;
pub use input::InputResult;
pub use listener::{Listener, ListenerResult, handle_out_of_the_blue};
pub use secrets::{Ends, Secrets};
pub use state::State;
pub use stats::Stats;
