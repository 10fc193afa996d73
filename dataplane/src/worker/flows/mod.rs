//! Streams and their carriers: tables by slot and by flow, the transmission schedule, listeners, and a worker's
//! budgets.

pub(super) mod admission;
pub(super) mod age_queue;
pub(super) mod associations;
pub(super) mod carrier;
pub(super) mod conn;
pub(super) mod echo;
pub(super) mod flow_info;
pub(super) mod keep_budget;
pub(super) mod listeners;
pub(super) mod lower_layer;
pub(super) mod reclaim;
pub(super) mod running_load;
pub(super) mod schedule;
pub(super) mod stall;
pub(super) mod streams;
pub(super) mod tables;
