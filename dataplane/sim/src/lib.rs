//! Tests only: virtual time, pairs of endpoints over a faulty link, packet dialogues.
//!
//! Everything here is deterministic: one seed is one run.
#![forbid(unsafe_code)]

pub mod dialogue;
pub mod dumbbell;
pub mod host;
pub mod middlebox;
pub mod oracle;
pub mod packet;
pub mod pair;
pub mod path;
pub mod scenario;
pub mod segment;
pub mod snapshot;
pub mod transfer;
