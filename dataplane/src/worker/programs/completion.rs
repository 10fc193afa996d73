//! The completion queues (CQs) of a program at this worker. A CQ into which a completion cannot be written has failed
//! for the rest of its lifetime; the QPs that use it then end.

use std::sync::Arc;

use verbs_layout::completion::CompletionError;
use verbs_layout::work::Completion;

use crate::api::{CommandError, CompletionQueueConfig};
use crate::memory::CompletionProducer;
use crate::signal::Signal;

/// Maximum number of CQs of a program.
const MAX_QUEUES: usize = 1 << 14;

#[derive(Default)]
pub(super) struct CompletionQueues {
    queues: Vec<Option<CompletionQueue>>,
    /// CQs with completions since the last [`notify`](CompletionQueues::notify), without duplicates.
    dirty: Vec<u32>,
    /// CQs that have failed since the last [`take_failed`](CompletionQueues::take_failed).
    failed: Vec<(u32, CompletionError)>,
}

struct CompletionQueue {
    queue: CompletionProducer,
    channel: Option<Arc<Signal>>,
    dirty: bool,
    failed: bool,
    /// Number of send and receive queues whose completions the CQ receives.
    users: u32,
}

impl CompletionQueues {
    /// Adds a CQ.
    ///
    /// # Errors
    /// The number of the CQ is in use or too high.
    pub(super) fn add(&mut self, config: CompletionQueueConfig) -> Result<(), CommandError> {
        let CompletionQueueConfig { program: _, number, queue, channel } = config;
        let at = number as usize;
        if at >= MAX_QUEUES || self.queues.get(at).is_some_and(Option::is_some) {
            return Err(CommandError::CompletionQueue);
        }
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        let (dirty, failed, users) = (false, false, 0);
        self.queues[at] = Some(CompletionQueue { queue, channel, dirty, failed, users });
        Ok(())
    }

    /// Removes a CQ that no QP uses.
    ///
    /// # Errors
    /// The CQ does not exist or is in use.
    pub(super) fn remove(&mut self, number: u32) -> Result<(), CommandError> {
        match self.queues.get_mut(number as usize) {
            Some(entry) if entry.as_ref().is_some_and(|queue| queue.users == 0) => {
                *entry = None;
                Ok(())
            }
            _ => Err(CommandError::CompletionQueue),
        }
    }

    /// Adds the send and the receive queue of a QP to the users of their CQs.
    ///
    /// # Errors
    /// A CQ does not exist or has failed. Then the counts do not change.
    pub(super) fn acquire(&mut self, numbers: [u32; 2]) -> Result<(), CommandError> {
        let exists = |number: &u32| {
            let queue = self.queues.get(*number as usize).and_then(Option::as_ref);
            queue.is_some_and(|queue| !queue.failed)
        };
        if !numbers.iter().all(exists) {
            return Err(CommandError::CompletionQueue);
        }
        for number in numbers {
            if let Some(queue) = self.get(number) {
                queue.users += 1;
            }
        }
        Ok(())
    }

    /// Removes a QP from the users of its send and receive CQ.
    pub(super) fn release(&mut self, numbers: [u32; 2]) {
        for number in numbers {
            if let Some(queue) = self.get(number) {
                queue.users -= 1;
            }
        }
    }

    /// Writes a completion. If the CQ has no room or is corrupt, the CQ fails and accepts no further completions.
    pub(super) fn push(&mut self, number: u32, completion: &Completion) {
        let Some(Some(queue)) = self.queues.get_mut(number as usize) else { return };
        if queue.failed {
            return;
        }
        if let Err(error) = queue.queue.push(completion) {
            queue.failed = true;
            self.failed.push((number, error));
        }
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(number);
        }
    }

    /// Notifies the channels of CQs with new completions for which the program has requested a notification.
    pub(super) fn notify(&mut self) {
        for number in self.dirty.drain(..) {
            let Some(Some(queue)) = self.queues.get_mut(number as usize) else { continue };
            queue.dirty = false;
            if let Some(channel) = &queue.channel
                && queue.queue.must_signal()
            {
                channel.notify();
            }
        }
    }

    /// Returns true if a CQ has failed since the last [`take_failed`](Self::take_failed).
    pub(super) fn have_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Returns the CQs that have failed since the last call, with the cause.
    pub(super) fn take_failed(&mut self) -> Vec<(u32, CompletionError)> {
        std::mem::take(&mut self.failed)
    }

    pub(super) fn has_failed(&self, number: u32) -> bool {
        let queue = self.queues.get(number as usize).and_then(Option::as_ref);
        queue.is_some_and(|queue| queue.failed)
    }

    fn get(&mut self, number: u32) -> Option<&mut CompletionQueue> {
        self.queues.get_mut(number as usize)?.as_mut()
    }
}
