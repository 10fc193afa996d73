//! Reception: frames are parsed in bursts, looked up in the tables of flows, and passed to their stream, association or
//! listener. Unmatched frames are handled last, within a budget.
//!
//! ```text
//!   ports, mesh --input--> arrivals --look-up--> tcp::segment, sctp::input
//!                                     |
//!                                     +--unmatched--> listeners, icmp, host
//! ```

pub(super) mod capture_input;
pub(super) mod host;
pub(super) mod icmp;
pub(super) mod input;
pub(super) mod partial_checksums;
pub(super) mod peer_admission;
pub(super) mod unmatched_budget;
