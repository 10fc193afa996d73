//! The appliance's control thread and what it keeps.
pub mod limits;
pub mod stags;
pub mod tickets;
