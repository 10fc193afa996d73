//! SCTP and its DDP adaptation: the second lower layer (LLP) for DDP.
//!
//! `sctp` is a single-homed SCTP (RFC 9260) that hands every DATA chunk upward when it arrives;
//! `session` (RFC 5043) keeps DDP stream sessions on pairs of its streams; `endpoint` joins both to DDP
//! streams and is what a worker holds per association.
//!
//! Sans-IO: no clock, no random numbers, no system call.
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod sctp;
pub mod seam;
pub mod session;
