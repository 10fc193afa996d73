//! Queues from the sessions' threads to the control thread: inputs, and keys of memory regions whose memory is free.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use config::ProgramsSection;
use dataplane::ProgramId;

use super::prepare::Prepared;
use super::refused::Refused;
use super::shared::Shared;
use crate::appliance::budget::Budget;
use crate::waker::Waker;

/// Maximum number of inputs that wait for the control thread. A session's thread blocks while the queue is full.
const MAX_WAITING_INPUTS: usize = 256;

/// An input from a session to the control thread.
#[derive(Debug)]
pub(in crate::appliance) struct Input {
    pub program: ProgramId,
    pub kind: InputKind,
}

#[derive(Debug)]
pub(in crate::appliance) enum InputKind {
    /// A call, with the number of the request to answer.
    Call { request: u32, call: Prepared },
    /// A refusal that the session's thread has sent to the program.
    Refused(Refused),
    /// The session has ended. No other input of the program follows.
    HungUp,
}

/// The sessions' end of the queues.
#[derive(Clone, Debug)]
pub(in crate::appliance) struct SessionQueues {
    shared: Arc<Shared>,
    inputs: SyncSender<Input>,
}

/// The control thread's end of the queues.
#[derive(Debug)]
pub(in crate::appliance) struct Inbox {
    pub(super) inputs: Receiver<Input>,
    /// Keys of memory regions whose memory is free.
    pub(super) freed: Receiver<u64>,
    pub(super) settings: ProgramsSection,
}

/// Creates the queues. Each input wakes the control thread with `waker`.
pub(in crate::appliance) fn queues(
    settings: ProgramsSection,
    budget: Budget,
    workers: u16,
    waker: Waker,
) -> (SessionQueues, Inbox) {
    let (input_sender, input_receiver) = sync_channel(MAX_WAITING_INPUTS);
    let (freed_sender, freed_receiver) = channel();
    let shared = Shared { settings: settings.clone(), budget, workers, freed: freed_sender, waker };
    let queues = SessionQueues { shared: Arc::new(shared), inputs: input_sender };
    (queues, Inbox { inputs: input_receiver, freed: freed_receiver, settings })
}

impl SessionQueues {
    pub(in crate::appliance) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(super) fn settings(&self) -> &ProgramsSection {
        &self.shared.settings
    }

    /// Passes an input to the control thread. Blocks while the queue is full. Returns false if the control thread has
    /// ended.
    pub(in crate::appliance) fn forward(&self, program: ProgramId, kind: InputKind) -> bool {
        let sent = self.inputs.send(Input { program, kind });
        self.shared.waker.wake();
        sent.is_ok()
    }
}
