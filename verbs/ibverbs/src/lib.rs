//! Replacement of `libibverbs.so.1`: unmodified verbs programs use an appliance as their RDMA device.
//!
//! ```text
//!  program ── ibv_* (api/) ── objects with the layout of infiniband/verbs.h ── verbs-client ── appliance
//!                                  │
//!                             Registry: pointers of the program to objects
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`api`] | the exported C functions, by topic |
//! | [`boundary`] | wrappers of exported functions, and checked access to the program's pointers |
//! | [`bindings`] | structures and constants of the system's `infiniband/verbs.h` |
//! | [`objects`] | the process-wide session, the thread that reads its events, and all objects: C structure first |
//! | [`registry`] | all live objects, by the address of their C structure |
//! | [`dispatcher`] | delivery of connection events to the connection manager (`rdmacm`) |
//! | [`errno`] | error numbers of verbs, and their mapping from native errors |
//! | [`report`] | messages to the user on stderr: the reasons of refusals |
//! | `gate` | a lock that one C function takes and another one releases |
//!
//! Pointers of the program enter through [`api`] only. Other modules receive references, checked by [`boundary`], or
//! addresses that they do not dereference, such as the begin of a memory region.
//!
//! An object is an `Arc` whose first field is the C structure. Functions off the data path look pointers up in a
//! [`registry`], so a pointer that was freed or never valid causes `EINVAL`. Posts and polls trust their pointers, as
//! the inline functions of the header do.
//!
//! The library does not support features that iWARP lacks: UD, XRC, multicast, address handles, RC without a connection
//! manager. Functions for these features fail with the errno of their manual pages.
#![deny(unsafe_code)]

pub mod api;
pub mod bindings;
pub mod boundary;
pub mod dispatcher;
pub mod errno;
mod gate;
pub mod objects;
pub mod registry;
pub mod report;

pub use objects::{
    channel, completion_queue, context, device, domain, events, instance, memory, queue_pair,
    shared_receives, window,
};
