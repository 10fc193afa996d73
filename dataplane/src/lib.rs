//! What one core runs: worker loop, ports, network stack, memory regions.

pub mod memory;
