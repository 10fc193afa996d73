//! What every crate may use, and what belongs to no protocol: time, containers that allocate on first use,
//! the prefetch of state that is spread over several allocations, the flag of a consumer that sleeps, descriptors of
//! counters, and addresses in text.
#![forbid(unsafe_code)]

pub mod address;
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
