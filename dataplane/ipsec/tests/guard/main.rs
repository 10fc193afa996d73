//! What a worker does with packets: what comes out of one guard goes into another, and nothing else.

mod hosts;
mod sas;
mod selection;
