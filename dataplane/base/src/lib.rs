//! Code that several crates share and that is independent of protocols. For the data path: time, containers that
//! allocate on first use, prefetch of state in several allocations, histograms, and the wake-up flag of a sleeping
//! consumer. For output and configuration: descriptors of counters, explanations of names, plurals, and IP addresses in
//! text. Error numbers identify the errors of all protocol layers.
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
