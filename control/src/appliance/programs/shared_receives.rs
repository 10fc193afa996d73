//! Shared receive queues (SRQs) of a program. The worker of a QP takes receives from the QP's SRQ without the control
//! thread. `programs.queue_pairs` limits the number of SRQs too, in a separate table: a program may have that many QPs
//! and that many SRQs.

use std::sync::Arc;

use dataplane::{ProgramId, SharedReceives};
use verbs_session::message::{Answer, Event, Refusal};

use super::prepare::PreparedSharedQueue;
use super::program::SharedQueue;
use super::{Programs, check_unused, limit, one};

impl Programs {
    /// Creates an SRQ. No worker has the SRQ before the program connects one of its QPs.
    pub(super) fn create_shared_queue(
        &mut self,
        id: ProgramId,
        request: u32,
        prepared: PreparedSharedQueue,
    ) -> Result<(), Refusal> {
        let most = self.settings().map_or(0, |settings| settings.queue_pairs);
        let PreparedSharedQueue { pd, ring, receives, descriptor, hold } = prepared;
        let program = self.open(id)?;
        let domain = program.domain(pd)?.id;
        let queue = |number| {
            let shared = SharedReceives::new((id, number), domain, ring, receives.capacity);
            SharedQueue { pd, users: 0, receives: Arc::new(shared), _hold: hold }
        };
        let Some(queue) = program.shared_queues.insert_with(queue) else {
            return Err(limit("queue_pairs", most));
        };
        program.count_domain_user(pd, true);
        let answer = Answer::SharedReceiveQueue { queue, receives };
        program.outbox.reply(request, Ok(answer), one(descriptor));
        Ok(())
    }

    /// Removes an SRQ. Refuses the call while QPs use the SRQ.
    pub(super) fn remove_shared_queue(
        &mut self,
        id: ProgramId,
        request: u32,
        number: u32,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        check_unused(
            program.shared_queue(number)?.users,
            format_args!("QPs use shared receive queue {number}"),
        )?;
        if let Some(removed) = program.shared_queues.remove(number) {
            program.count_domain_user(removed.pd, false);
        }
        program.reply(request, Ok(Answer::Done));
        Ok(())
    }

    /// Requests an event when fewer than `threshold` receives remain in an SRQ. The event is sent at once if fewer
    /// remain already.
    pub(super) fn set_receive_limit(
        &mut self,
        id: ProgramId,
        request: u32,
        number: u32,
        threshold: u32,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let is_low = program.shared_queue(number)?.receives.set_limit(threshold);
        program.reply(request, Ok(Answer::Done));
        if is_low {
            program.outbox.event(Event::SharedReceivesLow { queue: number });
        }
        Ok(())
    }
}
