//! The data sink, rule by rule. Keys are 0, 1, 2, ... in the order of sending.

mod order;
mod pieces;
mod tagged;
mod untagged;
