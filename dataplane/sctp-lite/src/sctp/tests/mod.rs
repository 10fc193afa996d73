//! Dialogues of packets with an association, in virtual time. The tests check every packet that the association sends.

mod attacks;
mod data;
mod fast_path;
mod handshake;
mod heartbeat;
mod listener;
mod pair;
mod replies;
mod rig;
mod shutdown;
mod tags;
