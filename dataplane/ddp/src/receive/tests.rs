//! Tests of the data sink: checks, placement, delivery. Order keys are 0, 1, 2, ... in the order of sending, unless a
//! test sets others.

mod order;
mod pieces;
mod tagged;
mod untagged;
