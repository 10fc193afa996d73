//! The link to the control thread: its commands, the events for it, and the lists and recordings that it requests.

pub(super) mod command;
pub(super) mod credit;
pub(super) mod event;
pub(super) mod flow_info;
pub(super) mod link;
pub(super) mod listing;
pub(super) mod recorder;
pub(super) mod report;
