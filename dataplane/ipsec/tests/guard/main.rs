//! Packets between two guards, called as a worker calls them: the output of one is the input of the other.

mod hosts;
mod sas;
mod selection;
