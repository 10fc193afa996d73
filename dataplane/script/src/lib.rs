//! Packet dialogues against another host: the script is the tester, the other host the implementation under test.
//!
//! Uses the files and the comparison of `sim::dialogue`, which plays them against our own stack in virtual
//! time. Here time is real, and the host is behind a port and can be neither controlled nor inspected:
//!
//! | a script that | is |
//! |---|---|
//! | needs a local action of the host (`do write`, `do connect`, ...) or another setting of it | skipped, with the reason |
//! | only sends and expects | played; its `event` and `check` lines are not looked at, and counted |
//!
//! [`frames`] implements Ethernet, ARP, ND and IP; [`player`] plays a dialogue, sans-IO; [`host`] describes the
//! tested host; [`session`] joins them with a port and a clock. The host may be any that shares a network with
//! the tester's kernel. The tester's address must not be one of the kernel's, which would reset connections
//! that it did not open.
#![forbid(unsafe_code)]

pub mod frames;
pub mod host;
pub mod player;
pub mod session;
