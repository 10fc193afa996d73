//! Simulation for tests: hosts over faulty links in virtual time, and packet dialogues.
//!
//! All simulations are deterministic: a seed determines a run, on every machine.
//!
//! | subject | module, files | command |
//! |---|---|---|
//! | one behaviour, packet by packet | [`dialogue`], `dialogues/` (its README describes the format) | `cargo test -p sim --test dialogues` |
//! | transfers: combinations of loss, reordering, markers, CRC, revision, MTU | [`transfer`] | `--test matrix` |
//! | transfers over SCTP: loss, reordering, round-trip times, sessions, MTU | [`sctp`], [`transfer`] | `--test sctp` |
//! | goodput, retransmitted and held bytes, compared with stored figures | [`snapshot`], `snapshots/` | `--test snapshot` |
//! | DCTCP over a marking queue; a rate-based controller | [`dumbbell`] | `--test controllers -- --nocapture` |
//! | fairness on a slow link | [`dumbbell`] | `--test fairness -- --nocapture` |
//! | receivers that acknowledge many segments at once | [`stretch_ack`] | `--test slow_start -- --nocapture` |
//! | a lossless ring between two cores | [`pair::Cost`] | `--test ring -- --nocapture` |
//! | a source that changes during transmission | | `--test changing_source` |
//! | one wrong field, for every field of every header | | `--test one_field` |
//! | random combinations of faults, by seed | [`scenario`] | `--test scenarios` |
//!
//! **Snapshots.** When a change affects the figures, the test fails with the lines that differ. If the difference is
//! intended, run `SIM_BLESS=1 cargo test -p sim --test snapshot` and commit the files with the change.
//!
//! **Scenarios.** A few hundred seeds run by default, ten thousand in `scripts/test --long`, others with
//! `SIM_SEEDS=FROM..TO` (in release: `SIM_SEEDS=0..100000 cargo test --release -p sim --test scenarios`). A failure
//! prints the command that repeats its seed, the state of both ends and the last segments. After a change of the code
//! that draws scenarios, a seed yields another scenario.
//!
//! **Parts.** A [`host::Host`] or [`sctp::SctpHost`] is an endpoint and the worker's state that it borrows. A
//! [`path::Path`] is one direction with MTU, [`middlebox`], [`stretch_ack`] and faulty link; the two directions are
//! configured independently. A [`pair::Pair`] is two hosts, two paths and the clock.
#![forbid(unsafe_code)]

pub use ::dialogue::segment;
pub use oracle;

pub mod dialogue;
pub mod dumbbell;
pub mod end;
pub mod esp;
pub mod host;
pub mod middlebox;
pub mod packet;
pub mod pair;
pub mod path;
pub mod scenario;
pub mod sctp;
pub mod snapshot;
pub mod stretch_ack;
pub mod transfer;
