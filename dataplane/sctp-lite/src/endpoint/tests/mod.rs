//! Sessions above SCTP: alone against scripted messages, in pairs over a lower layer that delivers in any
//! order, and over whole associations in virtual time.

mod arrivals;
mod associations;
mod attacks;
mod conformance;
mod enhanced;
mod half_closed;
mod host;
mod illegal;
mod legal;
mod net;
mod owner_calls;
mod rdmap;
mod segments;
