//! Decisions of a worker's guard on packets: a guard accepts the packets that its peer's guard sends, and no others.

mod hosts;
mod sas;
mod selection;
