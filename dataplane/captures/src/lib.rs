//! Captures for the test of the Wireshark dissector (`configs/wireshark/iwarp.lua`).
//!
//! [`generate`] builds captures with the reference encoder: start-ups of all revisions, markers at all positions, all
//! segmentations, Terminates, atomics, SCTP sessions. [`listing`] prints the messages of any capture with the
//! reference decoder, in the form to which `scripts/check-dissector` converts the output of tshark.
//!
//! The listing omits: streams without captured start-up, IPv6, and IP fragments.
#![forbid(unsafe_code)]

pub mod errors;
pub mod generate;
pub mod listing;
pub mod message;
pub mod packet;
