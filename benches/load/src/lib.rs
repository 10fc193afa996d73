//! Library of `scripts/load`: the frames of each profile, in capture files that Pktgen-DPDK and
//! `dpdk-testpmd` replay; the mixer, which joins such a generator and a good peer into one port;
//! and the run, which accounts for every frame.
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
