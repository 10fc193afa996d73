//! The DDP adaptation (RFC 5043): DDP stream sessions on like-numbered pairs of SCTP streams.

mod config;
mod error;

pub use config::Config;
pub use error::SessionError;
