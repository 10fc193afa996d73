//! Code shared by TCP and SCTP, most of it by their send halves: congestion control ([`congestion`], [`prr`], [`pacing`],
//! [`usage`]), loss detection ([`rack`], [`mod@detect`], [`tlp`], [`delivery`], [`recovery`]), spurious losses
//! ([`episode`], [`frto`]), all of which [`loss_recovery`] puts together, round trips ([`rtt`]), the search for the
//! path's MTU ([`pmtu`]), the size of receive windows ([`right_size`]), what limits a sender ([`limits`]), whether
//! its peer answers ([`stall`]), what it keeps to send it again ([`kept`]), the flight recorder ([`recorder`]), and the numbers all of it counts in ([`seq`], [`ranges`]).
//!
//! A sequence number is a byte for TCP and a DATA chunk (TSN) for SCTP; amounts are bytes for both. The
//! scoreboard and the selection of data to send are in each protocol.
#![forbid(unsafe_code)]

pub mod congestion;
pub mod delivery;
pub mod detect;
pub mod episode;
pub mod frto;
pub mod kept;
pub mod limits;
pub mod loss_recovery;
pub mod pacing;
mod parameters;
pub mod pmtu;
pub mod prr;
pub mod rack;
pub mod ranges;
pub mod recorder;
pub mod recovery;
pub mod right_size;
pub mod rtt;
pub mod seq;
pub mod stall;
pub mod tlp;
pub mod usage;

pub use congestion::CongestionControl;
pub use parameters::Parameters;
