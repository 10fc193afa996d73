//! MPA-aware TCP: the first lower layer (LLP) for DDP.
//!
//! - [`tcp`] is a TCP (RFC 9293) whose segments begin with an FPDU. It passes out-of-order bytes to MPA on arrival.
//! - [`mpa`] (RFC 5044 and its first draft) performs the start-up of streams, and frames ULPDUs.
//! - [`endpoint`] joins both with a DDP stream. A worker holds one endpoint per connection.
//!
//! Sans-IO: no clock, no random numbers, no system call.
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod mpa;
pub mod seam;
pub mod tcp;
