//! TCP connections of a worker: received segments, the start and end of connections, and segments to send. A stream
//! over TCP has a connection of its own.

pub(super) mod accept;
pub(super) mod batch;
pub(super) mod cookies;
pub(super) mod prefetch;
pub(super) mod segment;
