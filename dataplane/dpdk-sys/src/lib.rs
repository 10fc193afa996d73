//! Bindings of libdpdk as the system has it (22.11 up to 25.11), made by bindgen at build time.
//!
//! None of DPDK's structures is here. `c/shim.c` is compiled against the installed headers, wraps their
//! inline functions, and turns their structures into flat ones of ours; the packet buffer's fields come
//! as byte offsets (`DDPD_MBUF_*`). So a new release of DPDK changes this crate and nothing above it.
//!
//! Everything is unsafe and unchecked; the `dpdk` crate is its only user.

#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
