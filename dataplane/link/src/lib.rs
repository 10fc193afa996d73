//! What a frame suffers on its way: seeded loss, reordering, duplication, damage.
#![forbid(unsafe_code)]
