//! Streams and what carries them: tables by slot and flow, carriers and their schedule, listeners and the resources
//! that a new stream takes.

pub(super) mod admission;
pub(super) mod by_age;
pub(super) mod carrier;
pub(super) mod conn;
pub(super) mod handshakes;
pub(super) mod keep;
pub(super) mod listen;
pub(super) mod lower;
pub(super) mod reclaim;
pub(super) mod schedule;
pub(super) mod stall;
pub(super) mod streams;
pub(super) mod tables;
