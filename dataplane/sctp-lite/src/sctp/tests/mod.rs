//! Dialogues of packets with an association, in virtual time. The tests expect every packet that it sends.

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
