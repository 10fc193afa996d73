//! The link to the control thread: command ring, event ring and counters.

pub(super) mod control;
pub(super) mod event_queue;
pub(super) mod handshake_failures;
