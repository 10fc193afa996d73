//! Dialogues of segments in virtual time, by section of the specifications, and properties of whole transfers.

mod channel;
mod close;
mod data;
mod header_prediction;
mod hostile;
mod limits;
mod loss;
mod open;
mod options;
mod recorder;
mod reset;
mod runs;
mod script;
mod segments;
mod spurious;
mod timeouts;
pub(super) mod upper;
mod window;
