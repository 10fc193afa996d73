//! Library of `scripts/red-team` and `scripts/soak`.
//!
//! - The red team attacks a live appliance with raw frames and hostile streams while good peers
//!   transfer. Each attack has a verdict that can fail.
//! - The soak opens and closes streams of all kinds under faults, after which all resources must be
//!   back at their initial values.
#![forbid(unsafe_code)]

mod attacks;
mod bed;
mod cable;
mod field;
mod good;
mod guarded;
mod lossy;
mod passed;
mod protected;
mod raw_sctp;
mod raw_tcp;
pub mod red_team;
mod sample;
mod section;
pub mod soak;
mod socket;
mod station;
mod ulp;
mod verdict;
