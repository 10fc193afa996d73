//! Packet dialogues against another host: the script is the tester, the other host the implementation under test.
//!
//! The same files and the same comparison as in `sim::dialogue`, which plays them against our own stack in
//! virtual time. Here time is real, the host is behind a port, and it can be neither controlled
//! nor inspected:
//!
//! | a script that | is |
//! |---|---|
//! | needs a local action of the host (`do write`, `do connect`, ...) or another setting of it | skipped, with the reason |
//! | only sends and expects | played; its `event` and `check` lines are not looked at, and counted |
//!
//! [`frames`] knows Ethernet, ARP, ND and IP; [`player`] is a dialogue going on, sans-IO; [`host`] is what is
//! known of the tested host; [`session`] joins them with a port and a clock. Any host that shares a network with
//! the tester's kernel: the tester's address must not be one of the kernel's, which would reset what it does
//! not know.
#![forbid(unsafe_code)]

pub mod frames;
pub mod host;
pub mod player;
pub mod session;
