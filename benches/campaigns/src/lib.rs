//! What `scripts/red-team` and `scripts/soak` run: attacks on a live appliance with raw frames and hostile streams while
//! good peers transfer, each with a verdict that can fail; and streams of all kinds that come and go with faults, after
//! which everything is back where it was.
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
