//! The JSON objects that show the state of the appliance in replies of the API.
//!
//! The JSON is stable: members may be added, but are never renamed or removed. The unit of sizes is the byte. The unit
//! of a time is in the name of its member or in its description.

mod counters;
mod job;
mod port;
mod program;
mod region;
mod stats;
mod status;
mod stream;

pub use self::counters::*;
pub use self::job::*;
pub use self::port::*;
pub use self::program::*;
pub use self::region::*;
pub use self::stats::*;
pub use self::status::*;
pub use self::stream::*;
