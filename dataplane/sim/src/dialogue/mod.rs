//! Packet dialogues: what a peer sends and what the stack must answer, one behaviour per text file.
//! `dialogues/README.md` describes the form.

pub mod script;
pub mod streams;
