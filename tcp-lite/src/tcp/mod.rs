//! TCP (RFC 9293) without buffers, below MPA.
//!
//! Received bytes are passed to the upper layer at once, in order or not ([`SpanSink`](crate::seam::SpanSink)). TCP
//! stores only the ranges of bytes that the upper layer accepted. The upper layer writes the bytes to send straight
//! into the packet ([`SegmentSource`](crate::seam::SegmentSource)). TCP stores a record of 16 bytes per segment in
//! flight. For a retransmission it requests the same bytes from the upper layer again.
//!
//! A [`Connection`] is sans-IO. Every call is legal at any time. Per burst the owner calls:
//!
//! ```text
//!  input(now, segment)       for each segment of its four-tuple, checksum verified
//!  handle_timeout(now)       when the time of poll_timeout() has passed
//!  poll_transmit(now, tx)    after a burst of the two above, or when the upper layer has new data or room
//!  poll_event()              until it returns None
//!  poll_timeout()            last: the time of the next handle_timeout()
//! ```
//!
//! The owner keeps the connection until [`Connection::state`] is CLOSED, then calls `poll_transmit` once more, because
//! a reset may be due.
//!
//! Not included:
//! - Nagle's algorithm: MPA decides which data shares a segment.
//! - The urgent mechanism: urgent bytes are ordinary bytes.
//! - Data on a SYN without ACK: ignored, and the peer retransmits it. Data on a SYN-ACK is accepted.

mod acks;
mod challenge;
mod config;
mod connection;
mod cookie;
mod drop_reason;
mod ecn;
mod header_prediction;
mod in_flight;
mod input;
mod isn;
mod loss_timer;
mod output;
mod path_mtu;
mod path_mtu_discovery;
mod peer_window;
mod receiver;
mod record;
mod reset;
mod scoreboard;
mod segment;
mod segment_size;
mod sender;
mod state;
mod stats;
mod syn;
mod timeouts;
mod timers;
mod window;

#[cfg(test)]
mod tests;

pub use config::{
    AckConfig, Config, CongestionControl, Extensions, Keepalive, Limits, PathMtuConfig, Rto,
};
pub use connection::{CloseReason, Connection, Event};
pub use cookie::{Cookie, SynAckOffer, SynCookies};
pub use drop_reason::DropReason;
pub use isn::{FourTuple, InitialNumbers, IsnGenerator};
pub use path_mtu::TooBigOutcome;
pub use reset::reset_for;
pub use segment::{
    Flags, HEADER_LEN, MAX_OPTIONS_LEN, MAX_SACK_BLOCKS, Options, Segment, TIMESTAMPS_LEN,
    Timestamps,
};
pub use state::State;
pub use stats::{Info, LossStats, PathMtuStats, ReceiverStats, Stats};
pub use transport::limits::{Limit, LimitInfo};
pub use transport::recorder::{AwaitedEvent, Kind as RecordKind, MAX_RECORDS, Record};
pub use transport::seq::SeqNumber;
pub use transport::stall::Stall;
