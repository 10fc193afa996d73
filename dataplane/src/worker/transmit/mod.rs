//! Transmission: carriers that have something to send are served round robin. Segments and packets are built in place
//! in the port's buffers.

pub(super) mod appear;
pub(super) mod batch;
pub(super) mod output;
pub(super) mod packets;
pub(super) mod prefetch;
