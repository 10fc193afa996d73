//! Entry point of ddpd.
fn main() {}
