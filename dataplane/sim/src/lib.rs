//! Tests only: virtual time, pairs of endpoints over a faulty link, packet dialogues.
#![forbid(unsafe_code)]
