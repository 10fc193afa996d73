//! The worker's link to the control thread: command ring, event ring, counters and reports of failed handshakes.

pub(super) mod control;
pub(super) mod event_queue;
pub(super) mod handshake_failures;
