//! Packet dialogues with another host: the script plays the tester, the host is the implementation under test.
//!
//! The crate uses the files and the comparison of `sim::dialogue`, which plays them against this project's stack in
//! virtual time. Here time is real. The host is reached through a port, and its state can be neither controlled nor
//! inspected:
//!
//! | script | treatment |
//! |---|---|
//! | needs a local action of the host (`do write`, `do connect`, ...) or another setting of it | skipped, with the reason |
//! | only sends and expects | played; its `event` and `check` lines are skipped and counted |
//!
//! [`frames`] implements Ethernet, ARP, ND and IP; [`player`] plays a dialogue, sans-IO; [`host`] describes the
//! tested host; [`session`] connects them with a port and a clock. Any host on a network of the tester can be tested.
//! The tester's address must not be one of the kernel's, because the kernel would reset connections that it did not
//! open.
#![forbid(unsafe_code)]

pub mod frames;
pub mod host;
pub mod player;
pub mod session;
