//! Dialogues of packets with an association, in virtual time.
