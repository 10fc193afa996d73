//! State that the threads of all sessions share.

use std::sync::mpsc::Sender;

use config::ProgramsSection;

use crate::appliance::budget::Budget;
use crate::waker::Waker;

/// Settings, memory budget and handles to the control thread, shared by the threads of all sessions.
#[derive(Debug)]
pub(in crate::appliance) struct Shared {
    pub(super) settings: ProgramsSection,
    pub(super) budget: Budget,
    pub(super) workers: u16,
    /// Receives the keys of memory regions whose memory is free.
    pub(super) freed: Sender<u64>,
    /// Wakes the control thread.
    pub(super) waker: Waker,
}
