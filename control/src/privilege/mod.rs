//! Which privileges ports and the process need, and which the process has.
//!
//! `ddpd check`, `ddpd doctor` and the sandbox ask here, so that they agree. Nothing here changes anything.

mod capability;
mod needs;
mod process;
pub(crate) mod report;

pub(crate) use capability::{Capabilities, Capability};
pub(crate) use needs::{Need, needs, of_process};
#[cfg(feature = "appliance")]
pub(crate) use process::open_files;
pub(crate) use process::{effective, locked_memory};
