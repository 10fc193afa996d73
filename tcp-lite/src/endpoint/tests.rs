//! Tests of whole streams in virtual time, between two endpoints or between an endpoint and a plain TCP program. The
//! path loses, reorders and re-segments as the test requires.

mod captured;
mod conformance;
mod enhanced;
mod half_closed;
mod leaks;
mod net;
mod peers;
mod rdmap;
mod rdmap_paths;
mod startup;
mod streams;
mod teardown;
