//! Code shared by TCP and SCTP, mostly by their send halves:
//!
//! - congestion control: [`congestion`], [`prr`], [`pacing`], [`cwnd_usage`];
//! - loss detection: [`rack`], [`mod@detect`], [`tlp`], [`delivery`], [`recovery`];
//! - spurious losses: [`episode`], [`frto`];
//! - [`loss_recovery`], which combines the above;
//! - round-trip times: [`rtt`]; path MTU discovery: [`pmtu`]; growth of receive windows: [`right_sizing`];
//! - causes that limit a sender: [`limits`]; senders without progress: [`stall`];
//! - copies kept for retransmission: [`retransmit_buffer`]; the flight recorder: [`recorder`];
//! - sequence numbers: [`seq`], [`ranges`].
//!
//! A sequence number identifies one byte in TCP and one DATA chunk (TSN) in SCTP. Amounts are bytes in both. Each
//! protocol has its own scoreboard and selects the data to send.
#![forbid(unsafe_code)]

pub mod congestion;
pub mod cwnd_usage;
pub mod delivery;
pub mod detect;
pub mod episode;
pub mod frto;
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
pub mod retransmit_buffer;
pub mod right_sizing;
pub mod rtt;
pub mod seq;
pub mod stall;
pub mod tlp;

pub use congestion::CongestionControl;
pub use parameters::Parameters;
