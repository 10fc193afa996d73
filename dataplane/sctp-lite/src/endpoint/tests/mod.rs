//! Sessions above SCTP: alone against scripted messages, in pairs over a lower layer that delivers in any
//! order, and over whole associations in virtual time.

mod arrivals;
mod attacks;
mod enhanced;
mod host;
mod illegal;
mod legal;
