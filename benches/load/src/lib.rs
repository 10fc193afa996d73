//! Library of `scripts/load`.
//!
//! - Frames of each profile, in capture files that Pktgen-DPDK and `dpdk-testpmd` replay.
//! - The mixer, which connects a generator and a good peer to one port of the appliance.
//! - The run, which accounts for every frame.
#![forbid(unsafe_code)]

pub mod account;
pub mod capture;
pub mod frames;
pub mod generator;
pub mod mixer;
pub mod peer_work;
pub mod profile;
pub mod report;
pub mod rfc2544;
pub mod router;
pub mod run;
pub mod stream_watch;
pub mod testbed;
