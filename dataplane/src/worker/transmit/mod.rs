//! Transmission: carriers with something to send are served round robin, and their frames leave through the port's
//! outlet.

pub(super) mod appear;
pub(super) mod outlet;
pub(super) mod output;
