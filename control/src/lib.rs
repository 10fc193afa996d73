//! The parts of `ddpd` outside the data plane: the control thread and its helper threads, files, and privileges.
//!
//! Configuration (`config`) and management API (`api`) are separate crates. The program `ddpd` uses this crate.
#![forbid(unsafe_code)]

pub mod appliance;
pub mod descriptors;
pub mod doctor;
mod dpdk_runtime;
pub mod files;
pub mod host;
pub mod log_limit;
pub mod logging;
pub mod notify;
pub mod sandbox;
pub mod service;
pub mod shm;
pub mod waker;
