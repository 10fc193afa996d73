//! SCTP associations of one worker. A stream over SCTP is a session of an association; its [`Conn`] is an
//! ordinary one, and what several of them share is here: the packets' way, the timer, the place in line.
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
//! [`Conn`]: super::conn::Conn

mod idle;
mod input;
mod open;
mod output;
mod report;
