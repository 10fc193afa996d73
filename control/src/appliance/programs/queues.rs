//! Channels, completion queues (CQs) and queue pairs (QPs) of a program: creation and removal.
//!
//! A CQ exists at all workers. A QP exists only at the worker of its connection, once the connection is started
//! (`connections`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use dataplane::{Command, CompletionQueueConfig, ProgramId, QueuePairId, Receives, Signal};
use verbs_session::message::{Answer, Depths, Refusal, RefusalKind};

use super::prepare::{PreparedPair, PreparedQueue};
use super::program::{Channel, Pair, PairState, Queue, Start};
use super::{Programs, StreamAction, StreamUse, check_unused, limit, one, refusal};
use crate::appliance::env::Env;
use crate::appliance::pending::{Continuation, ProgramStep};

impl Programs {
    pub(super) fn create_channel(
        &mut self,
        id: ProgramId,
        request: u32,
        signal: Signal,
        descriptor: OwnedFd,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let channel = Channel { signal: Arc::new(signal), users: 0 };
        let Some(number) = program.channels.insert(channel) else {
            return Err(refusal(RefusalKind::Limit, "the program has all channels"));
        };
        program.outbox.reply(request, Ok(Answer::Created { number }), one(descriptor));
        Ok(())
    }

    pub(super) fn remove_channel(
        &mut self,
        id: ProgramId,
        request: u32,
        number: u32,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        check_unused(
            program.channel(number)?.users,
            format_args!("completion queues use channel {number}"),
        )?;
        program.channels.remove(number);
        program.reply(request, Ok(Answer::Done));
        Ok(())
    }

    /// Adds a CQ at all workers.
    pub(super) fn create_queue(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        prepared: PreparedQueue,
    ) -> Result<(), Refusal> {
        let most = self.settings().map_or(0, |settings| settings.completion_queues);
        let program = self.open(id)?;
        let signal = match prepared.channel {
            None => None,
            Some(number) => Some(Arc::clone(&program.channel(number)?.signal)),
        };
        if program.queues.is_full() {
            return Err(limit("completion_queues", most));
        }
        let answer = prepared.answer(0);
        let PreparedQueue { channel, producers, descriptor, hold, .. } = prepared;
        let queue = Queue {
            channel,
            users: 0,
            is_active: false,
            answer: Some((answer, descriptor)),
            _hold: hold,
        };
        let Some(number) = program.queues.insert(queue) else {
            return Err(limit("completion_queues", most));
        };
        if let Some(channel) = channel.and_then(|number| program.channels.get_mut(number)) {
            channel.users += 1;
        }
        let step = ProgramStep::QueueAdded { queue: number, request };
        let ticket = env.issue_to(producers.len(), Continuation::Program(id, step));
        for (worker, queue) in (0..).zip(producers) {
            let channel = signal.clone();
            let queue = CompletionQueueConfig { program: id, number, queue, channel };
            let queue = Box::new(queue);
            env.send_command(worker, Command::AddCompletionQueue { queue, ticket });
        }
        Ok(())
    }

    pub(super) fn on_queue_added(
        &mut self,
        id: ProgramId,
        number: u32,
        request: u32,
        result: Result<(), String>,
    ) {
        let Ok(program) = self.open(id) else { return };
        let Some(queue) = program.queues.get_mut(number) else { return };
        let Some((answer, descriptor)) = queue.answer.take() else { return };
        // If a worker has failed, others may have the CQ. Its number therefore stays allocated until the program ends.
        let result = match result {
            Ok(()) => Ok(answer),
            Err(reason) => Err(refusal(RefusalKind::NoMemory, reason)),
        };
        queue.is_active = result.is_ok();
        let result = result.map(|answer| match answer {
            Answer::CompletionQueue { capacity, offsets, .. } => {
                Answer::CompletionQueue { queue: number, capacity, offsets }
            }
            other => other,
        });
        let descriptors = if result.is_ok() { one(descriptor) } else { Vec::new() };
        program.outbox.reply(request, result, descriptors);
    }

    pub(super) fn remove_queue(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        number: u32,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let queue = program.queue(number)?;
        check_unused(queue.users, format_args!("QPs use completion queue {number}"))?;
        queue.is_active = false;
        let then = Continuation::Program(id, ProgramStep::QueueRemoved { queue: number, request });
        let program = id;
        env.broadcast(then, |ticket| Command::RemoveCompletionQueue { program, number, ticket });
        Ok(())
    }

    pub(super) fn on_queue_removed(&mut self, id: ProgramId, number: u32, request: u32) {
        let Ok(program) = self.open(id) else { return };
        let removed = program.queues.remove(number);
        let channel = removed.and_then(|queue| queue.channel);
        if let Some(channel) = channel.and_then(|number| program.channels.get_mut(number)) {
            channel.users = channel.users.saturating_sub(1);
        }
        program.reply(request, Ok(Answer::Done));
    }

    /// Creates a QP. No worker has the QP before the program connects it.
    pub(super) fn create_pair(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        prepared: PreparedPair,
    ) -> Result<(), Refusal> {
        let most = self.settings().map_or(0, |settings| settings.queue_pairs);
        let program = self.open(id)?;
        program.domain(prepared.pd)?;
        for number in [prepared.send_queue, prepared.receive_queue] {
            program.queue(number)?;
        }
        let PreparedPair { sends, receives, descriptor, shared_queue, .. } = prepared;
        let (send_ring, receive_ring) = prepared.rings;
        let receives_of_worker = match (shared_queue, receive_ring) {
            (Some(number), _) => {
                Receives::Shared(Arc::clone(&program.shared_queue(number)?.receives))
            }
            (None, Some(ring)) => Receives::Own(ring),
            (None, None) => return Err(super::invalid("the QP has no receive queue")),
        };
        let pair = Pair {
            serial: env.allocate_number(),
            pd: prepared.pd,
            send_queue: prepared.send_queue,
            receive_queue: prepared.receive_queue,
            max_sends: prepared.max_sends,
            max_receives: prepared.max_receives,
            copy_sources: prepared.copy_sources,
            shared_queue,
            rings: Some((send_ring, receives_of_worker)),
            worker: None,
            depths: Depths { ird: 0, ord: 0 },
            state: PairState::New,
            _hold: prepared.hold,
        };
        let (pd, queues) = (pair.pd, pair.queues());
        let Some(number) = program.pairs.insert(pair) else {
            return Err(limit("queue_pairs", most));
        };
        program.count_domain_user(pd, true);
        program.count_queue_users(queues, true);
        program.count_shared_user(shared_queue, true);
        let answer = Pair::answer(number, sends, receives);
        program.outbox.reply(request, Ok(answer), one(descriptor));
        Ok(())
    }

    /// Removes a QP, and resets its connection.
    pub(super) fn remove_pair(
        &mut self,
        env: &mut Env,
        id: ProgramId,
        request: u32,
        number: u32,
        actions: &mut Vec<StreamAction>,
    ) -> Result<(), Refusal> {
        let program = self.open(id)?;
        let pair = program.pair(number)?;
        let stream = pair.stream();
        let worker = pair.worker;
        let before = std::mem::replace(&mut pair.state, PairState::Removing);
        if let PairState::Starting { start, request } = before {
            let sentence = match start {
                Start::Connect { .. } => "the QP was removed before its connection was opened",
                Start::Accept { .. } => "the QP was removed before the connection was accepted",
                Start::End => "the QP was removed before it was ended",
            };
            program.reply(request, Err(super::invalid(sentence)));
        }
        if let Some(stream) = stream
            && self.streams.remove(&stream) == Some(StreamUse::Pair { program: id, pair: number })
        {
            actions.push(StreamAction::Abort(stream, "the program has removed its QP"));
        }
        let pair = QueuePairId { program: id, number };
        match worker {
            None => self.on_pair_removed(id, number, request),
            Some(worker) => {
                let step = ProgramStep::PairRemoved { pair: number, request };
                let ticket = env.issue(Continuation::Program(id, step));
                env.send_command(worker.0, Command::RemoveQueuePair { id: pair, ticket });
            }
        }
        Ok(())
    }

    pub(super) fn on_pair_removed(&mut self, id: ProgramId, number: u32, request: u32) {
        let Ok(program) = self.open(id) else { return };
        if let Some(pair) = program.pairs.remove(number) {
            program.count_domain_user(pair.pd, false);
            program.count_queue_users(pair.queues(), false);
            program.count_shared_user(pair.shared_queue, false);
        }
        program.reply(request, Ok(Answer::Done));
    }
}
