//! Sessions above SCTP: one end with scripted messages; two ends over a lower layer that delivers in any order; and
//! whole associations in virtual time.

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
