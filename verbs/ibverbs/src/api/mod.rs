//! The exported C functions, by topic.
//!
//! Contract of C callers, for all functions: a pointer is NULL, or valid as the manual page of the function requires.
//! Pointers to objects of this library may also be freed or wrong: the functions look them up. Posts and polls do no
//! look-up, like those of other verbs libraries.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the contract of C callers is the manual page")]

pub mod completion;
pub mod context;
pub mod device;
pub mod domain;
pub mod event;
pub mod fork;
pub mod memory;
pub mod poller;
pub mod post;
pub mod query;
pub mod queue_pair;
pub mod shared_receives;
pub mod text;
pub mod unsupported;
pub mod wr;
