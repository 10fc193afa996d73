//! Replacement of `librdmacm.so.1`: unmodified verbs programs connect through an appliance.
//!
//! ```text
//!  program ── rdma_* (api/) ── ids, event channels ── ibverbs ── verbs-client ── appliance
//!                                  ^                     │
//!                                  └──── events ── dispatcher
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`api`] | the exported C functions, by topic |
//! | [`bindings`] | structures and constants of the system's `rdma/rdma_cma.h` |
//! | [`id`] | `rdma_cm_id`: addresses and routes, connection requests, connections, and objects such as QPs |
//! | [`id::channel`], [`id::event`] | `rdma_event_channel` and `rdma_cm_event` |
//!
//! Locks are taken in this order: state of an id, listeners, queue of a channel.
//!
//! The library does not support features that iWARP lacks: the port spaces other than `RDMA_PS_TCP`, multicast, IB
//! paths. rsockets are not implemented. Functions for all of these fail with the errno of their manual pages.
#![deny(unsafe_code)]

mod address;
pub mod api;
pub mod bindings;
mod boundary;
pub mod id;
#[cfg(test)]
mod tests;
