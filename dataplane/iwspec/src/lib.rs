//! Conformance test for iWARP implementations: MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040, RFC 7306).
//!
//! The program and the device under test are the two ends of a connection. The `oracle` crate and this crate encode and
//! decode all protocols above TCP and SCTP, and share no code with the project's stack. SCTP itself is the project's
//! `sctp-lite`.
//!
//! | part | module |
//! |---|---|
//! | cases: text format, list, selection | [`case`], [`catalogue`], files below `cases/` |
//! | numbers, payloads, arguments of a step | [`value`] |
//! | frames to send, received messages | [`encode`], [`decode`], [`message`] |
//! | connection with deadlines, transcript | [`link`], [`stream`] |
//! | SCTP in UDP | [`sctp`] |
//! | TCP segments that the test builds itself, on an AF_PACKET socket | [`raw`] |
//! | packet dialogues with another host | [`play`] |
//! | the device: address, service, times | [`device`] |
//! | one case: steps, expectations, facts about the device | [`session`], [`startup`], [`run`] |
//! | programs on the device | [`service`] |
//! | all cases: concurrency, repetition, known deviations | [`suite`], [`repetition`], [`profile`] |
//! | reports | [`report`] |
//! | the deliberately wrong peer, for tests | [`peer`] |
#![forbid(unsafe_code)]

pub mod case;
pub mod catalogue;
pub mod decode;
pub mod device;
pub mod encode;
pub mod link;
pub mod message;
pub mod peer;
pub mod play;
pub mod profile;
pub mod raw;
pub mod repetition;
pub mod report;
pub mod run;
pub mod sctp;
pub mod service;
pub mod session;
pub mod startup;
pub mod stream;
pub mod suite;
pub mod value;
