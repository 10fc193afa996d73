//! What `scripts/load` needs: the frames of each profile, written to capture files.
#![forbid(unsafe_code)]

pub mod mixer;
pub mod router;
pub mod watch;
pub mod account;
pub mod bed;
pub mod generator;
pub mod work;
pub mod profile;
pub mod rfc2544;
pub mod run;
