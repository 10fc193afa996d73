//! The process-wide session, and the objects of verbs.

pub mod batch;
pub mod channel;
pub mod completion_queue;
pub mod context;
mod counts;
pub mod device;
pub mod domain;
mod empty_polls;
pub mod events;
pub mod instance;
pub mod memory;
pub mod queue_pair;
pub mod shared_receives;
pub mod window;
