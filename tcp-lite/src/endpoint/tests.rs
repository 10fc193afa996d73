//! Whole streams in virtual time: two endpoints, or an endpoint and a plain TCP program. The path between them loses,
//! reorders and re-segments as the test requires.

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
