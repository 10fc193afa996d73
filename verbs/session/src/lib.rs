//! The session of a local program with the appliance: messages, and the socket that carries them. Both sides use this
//! crate. RDMA operations are not messages: programs post them to queues in shared memory (`verbs_layout`).
//!
//! | module | contents |
//! |---|---|
//! | [`message`] | calls, answers and events |
//! | [`socket`] | one message per packet, with descriptors |
#![forbid(unsafe_code)]

pub mod message;
pub mod socket;
