//! Reception: frames are parsed in bursts, looked up in the tables of flows, and passed to their stream, association or
//! listener. Unmatched frames are handled last, within a budget.
//!
//! ```text
//!   ports, mesh --input--> arrivals --look-up--> tcp::segment, sctp::input
//!                                     |
//!                                     +--unmatched--> listeners, icmp, host
//! ```

pub(super) mod backlog;
pub(super) mod host;
pub(super) mod icmp;
pub(super) mod input;
pub(super) mod peers;
pub(super) mod unfinished;
pub(super) mod watch;
