//! SCTP and its DDP adaptation: a lower layer protocol (LLP) for DDP, as an alternative to MPA over TCP.
//!
//! `sctp` is a single-homed SCTP (RFC 9260) that delivers every message on arrival. `session` (RFC 5043) runs DDP
//! stream sessions on pairs of SCTP streams. `endpoint` joins both to DDP streams; a worker holds one endpoint per
//! association.
//!
//! Sans-IO: no clock, no random numbers, no system call.
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod sctp;
pub mod seam;
pub mod session;
