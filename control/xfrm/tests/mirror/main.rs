//! Dialogues of the mirror with a model of the kernel.
#![forbid(unsafe_code)]

mod kernel;
mod policies;
mod properties;
mod requests;
mod sa_changes;
mod sas;
