//! Entry point of ddpctl.
fn main() {}
