//! What every crate may use, and what belongs to no protocol: time, containers that allocate on first use,
//! the prefetch of state that is spread over several allocations, the flag of a consumer that sleeps, and descriptors of
//! counters.
#![forbid(unsafe_code)]

mod doorbell;
pub mod histogram;
mod lazy;
pub mod metric;
pub mod plural;
mod prefetch;
mod time;

pub use doorbell::Doorbell;
pub use lazy::{Blank, Lazy, LazyDeque};
pub use prefetch::Prefetch;
pub use time::{Instant, MaybeInstant, Nanos};
