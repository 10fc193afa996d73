//! Reception. Frames are parsed in bursts, looked up in the flow tables, and passed to their stream or association.
//! Unmatched frames, which may be for a listener or the host's kernel, are processed last and within a budget.
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
pub(super) mod looped;
pub(super) mod partial_checksums;
pub(super) mod peer_admission;
pub(super) mod unmatched_budget;
