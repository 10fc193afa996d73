//! TCP connections of a worker: received segments, start and end of connections. Each stream over TCP has a
//! connection of its own.

pub(super) mod accept;
pub(super) mod segment;
mod syn_cookies;
