//! TCP connections of a worker: received segments, and the start and end of connections. Each stream over TCP has its
//! own connection.

pub(super) mod accept;
pub(super) mod segment;
mod syn_cookies;
