//! The appliance's control side: configuration, control thread, management API and command line.
#![forbid(unsafe_code)]
