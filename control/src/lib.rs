//! The control side of the appliance: its control thread, and its threads, files and privileges
//! outside of the data plane.
//!
//! Configuration and management API are crates below this one (`config`, `api`); the programs
//! `ddpd` and `ddpctl` are above.
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
