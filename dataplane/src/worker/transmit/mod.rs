//! Transmission. Carriers (TCP connections and SCTP associations) that have something to send are served round robin.
//! Segments and packets are built in place in the buffers of the port.

pub(super) mod announce;
pub(super) mod output;
pub(super) mod packet_batch;
pub(super) mod prefetch;
pub(super) mod segment_batch;
