//! Layout of the memory that a local program shares with the workers of an appliance, a running `ddpd`. Both sides use
//! this crate. The worker side validates everything that it reads. The program side returns an error and does not crash
//! when an appliance violates the layout.
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
//! can cause undefined behaviour in the other. Structures in shared memory contain no pointers to each other. All
//! numbers are in the byte order of the host. Byte strings (inline data, immediate data) are packed into words with the
//! first byte in the lowest bits. On a little-endian host this is their order in memory.
//!
//! Not included: mapping of shared memory, the messages of a session, and checks against memory regions (lkey, rights,
//! bounds).
//!
//! `tests/model.rs` explores the interleavings of both sides with loom
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
