//! Layout of the memory that a local program shares with the workers of an appliance. Both sides use this crate: the
//! worker side trusts nothing that it reads, and the program side ends in an error, not in a crash, when an appliance
//! does not keep to the layout.
//!
//! ```text
//!              program                  shared memory                     worker
//!   post send/receive  --> ring::Producer      SQ, RQ, SRQ      ring::Consumer -->  checks, RDMAP
//!   poll, notification <-- completion::Consumer     CQ    completion::Producer <--  completions
//!   after a post       --> doorbell::Ringer      bitmap      doorbell::Scanner -->  queues to visit
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`version`] | versions of the layout and their negotiation |
//! | [`session`] | header of an area of shared memory, with the sizes that its writer uses |
//! | [`ring`] | single-producer single-consumer ring of 64-byte units, program to worker |
//! | [`completion`] | completion queue, worker to program, with requests for a notification |
//! | [`doorbell`] | bitmap of queues with new descriptors, and the flag of a sleeping worker |
//! | [`work`] | descriptors as checked values |
//!
//! Shared memory is a slice of [`Word`]s and is accessed only by atomic loads and stores of whole words. Neither side
//! can cause undefined behaviour in the other. All numbers are in the byte order of the host; bytes in words (inline
//! data, immediate data) are little-endian, which on a little-endian host is their order in memory. There are no
//! pointers in shared memory.
//!
//! Not included: the mapping itself, the session's messages, and checks against memory regions (lkey, rights, bounds).
//!
//! `tests/model.rs` tries the interleavings of both sides
//! (`RUSTFLAGS="--cfg loom" cargo test -p verbs-layout --test model`).
#![forbid(unsafe_code)]

pub mod completion;
pub mod doorbell;
pub mod ring;
pub mod session;
mod shared;
mod unit;
pub mod version;
pub mod work;

pub use shared::{CapacityError, LINE_WORDS, Word};
pub use unit::{MAX_UNITS, UNIT_WORDS, Unit, Units};
