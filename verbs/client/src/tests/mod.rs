//! Tests against a scripted appliance in this process.

mod world;
