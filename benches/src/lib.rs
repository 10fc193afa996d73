//! The benchmark library: the end-to-end rig with its measurements, the limits, the peer programs and the report.
//!
//! DPDK's EAL can start only once per process, so each measurement runs in its own process. `ddp-bench run` starts
//! `ddp-bench task …` for each and merges the rows.
#![forbid(unsafe_code)]

pub mod appliance;
pub mod cell;
pub mod end_config;
pub mod endpoint_pair;
pub mod floods;
pub mod frame_port;
pub mod gcm;
pub mod hot_path;
pub mod instructions;
pub mod interval;
pub mod ipsec;
pub mod kernel;
pub mod limits;
pub mod machine;
pub mod noise;
pub mod peers;
pub mod plan;
pub mod plots;
pub mod report;
pub mod rig;
pub mod rig_config;
pub mod row;
pub mod run;
pub mod sctp_pair;
pub mod single_step;
pub mod stalls;
pub mod targets;
