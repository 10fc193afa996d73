//! The data sink: checks, placement, delivery. Keys are 0, 1, 2, ... in the order of sending.

mod order;
mod pieces;
mod tagged;
mod untagged;
