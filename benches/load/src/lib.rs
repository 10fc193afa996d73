//! Library of `scripts/load`.
//!
//! - Frames of each profile, in capture files that Pktgen-DPDK and `dpdk-testpmd` replay.
//! - The mixer, which joins such a generator and a good peer into one port.
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
