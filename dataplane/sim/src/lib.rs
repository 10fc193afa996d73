//! Tests only: virtual time, hosts over faulty links, packet dialogues.
//!
//! Everything here is deterministic: one seed is one run, on every machine.
//!
//! | what | where | how |
//! |---|---|---|
//! | one behaviour, packet by packet | [`dialogue`], `dialogues/` (its README describes the format) | `cargo test -p sim --test dialogues` |
//! | every combination of loss, reordering, markers, CRC, revision and MTU arrives | [`transfer`] | `--test matrix` |
//! | the same over SCTP: loss, reordering, round trips, sessions, MTU | [`sctp`], [`transfer`] | `--test sctp` |
//! | goodput, bytes sent again and held, pinned | [`snapshot`], `snapshots/` | `--test snapshot` |
//! | DCTCP over a queue that marks, a controller by rate | [`dumbbell`] | `--test controllers -- --nocapture` |
//! | shares of a slow link | [`dumbbell`] | `--test fairness -- --nocapture` |
//! | receivers that acknowledge many segments at once | [`stretch`] | `--test slow_start -- --nocapture` |
//! | a lossless ring between two cores | [`pair::Cost`] | `--test ring -- --nocapture` |
//! | a source that changes while it is sent | | `--test changing_source` |
//! | one field wrong, for every field of every header | | `--test one_field` |
//! | anything at once, by seed | [`scenario`] | `--test scenarios` |
//!
//! **Snapshots.** When a change moves the figures, the test fails with the lines that differ. If that is
//! meant: `SIM_BLESS=1 cargo test -p sim --test snapshot`, and commit the files with the change.
//!
//! **Scenarios.** A few hundred seeds run by default, ten thousand in `scripts/test --long`, others with
//! `SIM_SEEDS=FROM..TO` (in release: `SIM_SEEDS=0..100000 cargo test --release -p sim --test scenarios`). A
//! failure prints the command that plays its seed again, both ends' state and the last segments. A seed
//! produces another scenario once the code that draws scenarios has changed.
//!
//! The pieces: a [`host::Host`] or [`sctp::SctpHost`] is an endpoint and the worker's state that it borrows. A
//! [`path::Path`] is one direction with MTU, [`middlebox`], [`stretch`] and faulty link; the two directions may
//! differ in everything. A [`pair::Pair`] is two hosts, two paths and the clock.
#![forbid(unsafe_code)]

pub mod dialogue;
pub mod dumbbell;
pub mod end;
pub mod esp;
pub mod host;
pub mod middlebox;
pub mod oracle;
pub mod packet;
pub mod pair;
pub mod path;
pub mod scenario;
pub mod sctp;
pub mod segment;
pub mod snapshot;
pub mod stretch_ack;
pub mod transfer;
