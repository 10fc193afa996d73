//! What a worker does with SCTP associations. A stream over SCTP is a session of an association: its [`Conn`] is as that
//! of a stream over TCP, its packets go through the association's [`Carrier`], which the sessions share.
//!
//! ```text
//!   INIT ---> (nothing kept: a cookie goes back) ---COOKIE ECHO---> association ---Initiate---> stream
//!   connect: a session of an association that there is to that peer, with the same configuration and
//!            room, else of a new one
//! ```
//!
//! Bounds: as many associations as streams; a peer's associations that have no session yet count as its half-open
//! streams, those that have none any more or shut down as its streams, and each session takes a credit of its
//! listener as a TCP connection does. Nothing is remembered of an INIT.
//!
//! [`Carrier`]: super::carrier::Carrier
//! [`Conn`]: super::conn::Conn

mod attempts;
mod idle;
mod input;
mod open;
mod output;
mod report;
