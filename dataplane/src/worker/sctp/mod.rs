//! SCTP associations of a worker. A stream over SCTP is a session of an association. Its [`Conn`] is the same as over
//! TCP. Its packets pass through the [`Carrier`] of the association, which all sessions of the association share.
//!
//! ```text
//!   INIT ---> (stateless: a cookie is returned) ---COOKIE ECHO---> association ---Initiate---> stream
//!   connect: a session of an existing association to that peer, if it has the same configuration and
//!            room, else of a new association
//! ```
//!
//! Limits: a worker has at most `Limits::streams` associations. A peer's associations that have not had a session yet
//! count as its half-open streams. An association without sessions counts as a stream of its peer if its last session
//! has ended, or if it shuts down before its first session. Each session takes a credit of its listener, as a TCP
//! connection does. An INIT creates no state.
//!
//! [`Carrier`]: crate::worker::flows::carrier::Carrier
//! [`Conn`]: crate::worker::flows::conn::Conn

mod eviction;
mod handshake_reports;
mod input;
mod open;
mod output;
mod report;
