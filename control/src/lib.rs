//! The appliance's control side: configuration, control thread, management API and command line.
//!
//! `config`, `api`, `ctl`, `advert` and `metrics` know nothing of the data plane or of DPDK, so that
//! `ddpctl` builds on hosts that have none (`--no-default-features`).
#![forbid(unsafe_code)]

mod accept;
pub mod advert;
pub mod api;
pub mod beneath;
mod build_info;
pub mod config;
pub mod ctl;
pub mod daemon;
mod file_end;
pub mod kernel;
pub mod metrics;
mod plural;
mod privilege;
pub mod refusal;
mod text;
mod transport;

pub use transport::Transport;

#[cfg(feature = "appliance")]
pub mod appliance;
#[cfg(feature = "appliance")]
pub mod descriptors;
#[cfg(feature = "appliance")]
pub mod doctor;
#[cfg(feature = "appliance")]
mod dpdk_runtime;
#[cfg(feature = "appliance")]
pub mod files;
#[cfg(feature = "appliance")]
mod host;
#[cfg(feature = "appliance")]
pub mod log_limit;
#[cfg(feature = "appliance")]
pub mod logging;
#[cfg(feature = "appliance")]
pub mod notify;
#[cfg(feature = "appliance")]
pub mod sandbox;
#[cfg(feature = "appliance")]
pub mod service;
#[cfg(feature = "appliance")]
pub mod shm;
