//! Dialogues of packets with an association, in virtual time. Every packet that it sends must be expected.

mod answers;
mod attacks;
mod data;
mod handshake;
mod heartbeat;
mod listener;
mod pair;
mod predict;
mod rig;
mod shutdown;
mod tags;
