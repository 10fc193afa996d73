//! The worker's side of the control interface: commands, lists, recordings, and endpoint events translated for the
//! control thread.

pub(super) mod command;
pub(super) mod event_credit;
pub(super) mod listing;
pub(super) mod recorder;
pub(super) mod report;
