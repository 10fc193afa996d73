//! Whole streams in virtual time: two endpoints, or one and a plain TCP program, over a path that
//! loses, reorders and re-segments as a test says.

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
