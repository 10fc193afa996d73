//! Library of `scripts/red-team` and `scripts/soak`.
//!
//! - The red team attacks a live appliance with raw frames and hostile streams while good peers transfer. Each attack
//!   has a verdict.
//! - The soak opens and closes streams of all kinds under faults. Afterwards no resource may exceed its initial value
//!   by more than its allowance.
#![forbid(unsafe_code)]

mod attack_context;
mod attacker_port;
mod attacks;
mod cable;
mod esp;
mod frame_log;
mod good_peers;
mod guarded_target;
mod listener_section;
mod lossy_cable;
pub mod programs;
mod raw_sctp;
mod raw_tcp;
pub mod red_team;
mod sample;
mod segments;
pub mod soak;
mod socket;
mod testbed;
mod verdict;
