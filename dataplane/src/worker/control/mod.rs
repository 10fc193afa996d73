//! Operations for the control thread: commands, lists, recordings, and the events of endpoints translated for it.

pub(super) mod command;
pub(super) mod event_credit;
pub(super) mod listing;
pub(super) mod recorder;
pub(super) mod report;
