//! Bindings of libdpdk as the system has it.
