//! SCTP (RFC 9260), single-homed, without buffers of its own for what it sends.

pub mod receive;
