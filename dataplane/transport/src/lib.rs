//! What the send halves of TCP and SCTP share: congestion control ([`congestion`], [`prr`], [`pacing`],
//! [`usage`]), loss detection ([`rack`], [`mod@detect`], [`tlp`], [`delivery`], [`recovery`]), the reaction to
//! losses that were none ([`episode`], [`frto`]), round trips ([`rtt`]), the search for the path's MTU
//! ([`pmtu`]), and the numbers all of it counts in ([`seq`], [`ranges`]).
//!
//! A sequence number is an octet for TCP and a DATA chunk (TSN) for SCTP; amounts are octets for both. What
//! is in flight, and what to send next, is the business of each protocol.
#![forbid(unsafe_code)]

pub mod congestion;
pub mod delivery;
pub mod detect;
pub mod episode;
pub mod frto;
pub mod pacing;
mod parameters;
pub mod pmtu;
pub mod prr;
pub mod rack;
pub mod ranges;
pub mod recovery;
pub mod rtt;
pub mod seq;
pub mod tlp;
pub mod usage;

pub use congestion::CongestionControl;
pub use parameters::Parameters;
