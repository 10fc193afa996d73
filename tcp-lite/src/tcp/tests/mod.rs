//! Dialogues of packets with virtual time, by section of the specifications, and properties of whole
//! transfers.

mod channel;
mod open;
mod script;
mod upper;
