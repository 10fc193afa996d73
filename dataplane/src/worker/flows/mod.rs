//! Streams and their carriers: tables by slot and flow, the schedule, listeners, and the resources that a new stream
//! takes.

pub(super) mod admission;
pub(super) mod associations;
pub(super) mod by_age;
pub(super) mod carrier;
pub(super) mod conn;
pub(super) mod echo;
pub(super) mod flow_info;
pub(super) mod keep;
pub(super) mod listen;
pub(super) mod load;
pub(super) mod lower;
pub(super) mod reclaim;
pub(super) mod schedule;
pub(super) mod stall;
pub(super) mod streams;
pub(super) mod tables;
