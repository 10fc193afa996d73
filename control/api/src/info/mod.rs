//! The JSON objects of replies that show the state of the appliance.
//!
//! The JSON is stable: members may be added, never renamed or removed. Sizes are bytes, times
//! microseconds unless the name says otherwise.

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
