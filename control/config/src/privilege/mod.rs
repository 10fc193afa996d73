//! Privileges required by ports and by the process, and those that the process has.
//!
//! `ddpd check`, `ddpd doctor` and the sandbox use the same functions, so that they agree. Nothing
//! here changes anything.

mod capability;
mod needs;
mod process;

pub use capability::{Capabilities, Capability};
pub use needs::{Need, needs, of_process};
pub use process::open_files;
pub use process::{effective, locked_memory};
