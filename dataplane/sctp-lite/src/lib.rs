//! SCTP and its DDP adaptation: the second lower layer (LLP) for DDP.
//!
//! `sctp` is a single-homed SCTP (RFC 9260) that delivers every DATA chunk on arrival. `session` (RFC 5043)
//! runs DDP stream sessions on pairs of its streams. `endpoint` joins both to DDP streams; a worker holds one
//! endpoint per association.
//!
//! Sans-IO: no clock, no random numbers, no system call.
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod sctp;
pub mod seam;
pub mod session;
