//! What the benchmarks share: the end-to-end rig and its measurements, the limits and the peers that they
//! stand beside, and the report of it all.
//!
//! DPDK's environment starts once in a process, so that each measurement is a process of its own:
//! `ddp-bench run` starts `ddp-bench cell …` and the like, and puts their rows together.
#![forbid(unsafe_code)]

pub mod appliance;
pub mod cell;
pub mod floods;
pub mod gcm;
pub mod instructions;
pub mod interval;
pub mod kernel;
pub mod limits;
pub mod machine;
pub mod pairing;
pub mod peers;
pub mod plan;
pub mod plots;
pub mod product;
pub mod protected;
pub mod quiet;
pub mod report;
pub mod rig;
pub mod row;
pub mod run;
pub mod sctp_pairing;
pub mod setup;
pub mod stalls;
pub mod targets;
