//! The DDP adaptation (RFC 5043): DDP stream sessions on like-numbered pairs of SCTP streams.
//!
//! ```text
//!  user message    | DDP-SSN | DDP segment ...                    PPID 16
//!                  | DDP-SSN | function code | private data ...   PPID 17
//!
//!  stream n, out   | Initiate | segment | segment | ... | Terminate |
//!  stream n, in    | Accept   | segment | ...           | Terminate |
//!    DDP-SSN         0          1 ...
//! ```
//!
//! [`Session`] orders the messages of one session in both directions, independent of the ULP. Received segments are
//! passed to a [`UlpduSink`](ddp::llp::UlpduSink) on arrival, with the DDP-SSN as order key. Segments to send come from
//! a [`UlpduSource`](ddp::llp::UlpduSource) when SCTP may send. [`Message`] is a parsed user message.
//!
//! Not implemented: ULP-specific sequences (RFC 5043 §6.5).

mod config;
mod data;
mod error;
mod machine;
mod message;
mod sender;
mod ssn_order;

pub use config::Config;
pub use data::{PrivateDataTooLong, SessionData};
pub use error::SessionError;
pub use machine::{ArrivalResult, Session, SessionChange, Stats, UnmatchedMessage};
pub use message::Message;
pub use sender::{Sender, SenderStats, mulpdu};
pub use ssn_order::{MAX_OUTSTANDING, SsnOrder};
