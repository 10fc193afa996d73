//! Code that several crates share and that belongs to no protocol. The data path uses time, containers that allocate on
//! first use, the prefetch of state in several allocations, histograms, and the wake-up flag of a sleeping consumer.
//! Output and configuration use descriptors of counters, explanations of names, plurals, and addresses in text. Error
//! numbers identify the errors of all protocol layers.
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
