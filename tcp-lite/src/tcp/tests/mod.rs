//! Tests of TCP: dialogues of segments in virtual time, grouped by topic, and properties of whole transfers.

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
