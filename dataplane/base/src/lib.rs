//! Code common to all crates that belongs to no protocol: time, containers that allocate on first use, and the
//! prefetch of state in several allocations. Also the wake-up flag of a sleeping consumer, descriptors of
//! counters, explanations of names, addresses in text, and the error numbers that all layers report.
#![forbid(unsafe_code)]

pub mod address;
mod doorbell;
mod error_numbers;
pub mod explain;
pub mod histogram;
mod lazy;
pub mod metric;
mod offloads;
pub mod plural;
mod prefetch;
mod time;

pub use doorbell::Doorbell;
pub use error_numbers::ErrorNumbers;
pub use lazy::{Blank, Lazy, LazyDeque};
pub use prefetch::Prefetch;
pub use time::{Instant, MaybeInstant, Nanos};
