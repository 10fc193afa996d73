//! The part of a worker's turn that serves programs, each within its budget: first doorbells, then QPs with
//! descriptors, round robin.

use base::Instant;
use ddp::PostError;
use ddp::rdmap::Receive;
use verbs_layout::work::{ReceiveWork, SendWork, Status};

use super::Program;
use super::completion::CompletionQueues;
use super::pair::{PostedSend, QueuePair};
use super::request::Regions;
use crate::api::{Event, ProgramEvent, QueuePairError};
use crate::io::PortIo;
use crate::worker::flows::conn::{Stage, Stream};
use crate::worker::{Core, Env};

/// Maximum number of send descriptors taken from a QP before the next QP is served. For an ended QP, the bound applies
/// to the flushed descriptors of both queues.
const QUOTA: u32 = 16;

/// Maximum number of doorbells, and of words that contain them, processed before a burst of frames. Each QP adds four.
const MIN_DOORBELLS: u32 = 64;

impl<Io: PortIo> Core<Io> {
    /// Takes and performs descriptors of all programs. Returns true if there were any.
    #[inline]
    pub(in crate::worker) fn serve_programs(&mut self, now: Instant) -> bool {
        if self.env.programs.is_empty() {
            return false;
        }
        let mut busy = false;
        for place in 0..self.env.programs.programs.len() {
            // A program is taken out of the table while it is served, because its posts borrow the rest of the worker.
            let Some(mut program) = self.env.programs.take(place) else { continue };
            busy |= self.serve_program(&mut program, now);
            self.env.programs.restore(place, program);
        }
        busy
    }

    /// Takes the receives that programs have posted. Called after a burst of frames is received and before it is
    /// processed, so that a message sent after its receive was posted finds the receive.
    #[inline]
    pub(in crate::worker) fn take_posted_receives(&mut self, now: Instant) {
        if !self.env.programs.is_empty() {
            self.take_receives_of_all(now);
        }
    }

    #[inline(never)]
    fn take_receives_of_all(&mut self, now: Instant) {
        for place in 0..self.env.programs.programs.len() {
            let Some(mut program) = self.env.programs.take(place) else { continue };
            self.take_receives_of(&mut program, now);
            self.env.programs.restore(place, program);
        }
    }

    fn take_receives_of(&mut self, program: &mut Program, now: Instant) {
        // Enough for the two doorbells of each QP, with the words that contain them.
        let mut budget = 4 * program.pairs.len() as u32 + MIN_DOORBELLS;
        while let Some(doorbell) = program.doorbells.next_queue(&mut budget) {
            let number = doorbell / 2;
            program.make_ready(number);
            let Some(Some(pair)) = program.pairs.get_mut(number as usize) else { continue };
            if doorbell == pair.id.receive_doorbell()
                && !pair.ended
                && let Some((mut stream, env)) = pair.stream.and_then(|stream| self.find(stream))
            {
                let taken = env.take_receives(pair, &mut stream, &mut program.completions);
                if let Err(reason) = taken {
                    env.fail_pair(pair, &mut stream, reason, now);
                    env.make_ready(&mut stream);
                }
                pair.receives.ring.release();
            }
        }
    }

    fn serve_program(&mut self, program: &mut Program, now: Instant) -> bool {
        let mut budget = program.budget;
        self.fail_pairs_of_failed_queues(program, now);
        while let Some(doorbell) = program.doorbells.next_queue(&mut budget) {
            // A doorbell without a QP has no effect.
            program.make_ready(doorbell / 2);
        }
        for _ in 0..program.ready.len() {
            if budget == 0 {
                break;
            }
            let Some(number) = program.ready.pop_front() else { break };
            let Some(Some(pair)) = program.pairs.get_mut(number as usize) else { continue };
            pair.queued = false;
            let mut quota = QUOTA.min(budget);
            budget -= quota;
            let more = self.serve_pair(pair, &mut program.completions, &mut quota, now);
            budget += quota;
            if more {
                program.make_ready(number);
            }
        }
        self.fail_pairs_of_failed_queues(program, now);
        budget < program.budget
    }

    /// Serves a QP until its rings are empty, its queues are full, a fence waits or `quota` is 0. Returns true if
    /// `quota` is 0: descriptors may remain.
    fn serve_pair(
        &mut self,
        pair: &mut QueuePair,
        completions: &mut CompletionQueues,
        quota: &mut u32,
        now: Instant,
    ) -> bool {
        if !pair.ended
            && let Some(stream) = pair.stream
            && let Some((mut stream, env)) = self.find(stream)
        {
            let served = env.take_receives(pair, &mut stream, completions);
            let served =
                served.and_then(|()| env.take_sends(pair, &mut stream, completions, quota));
            if let Err(reason) = served {
                env.fail_pair(pair, &mut stream, reason, now);
            }
            env.make_ready(&mut stream);
        }
        if pair.ended {
            pair.flush_rings(completions, quota);
        }
        pair.sends.ring.release();
        pair.receives.ring.release();
        *quota == 0
    }

    /// Reports CQs that have failed, and fails the QPs that use them. Visits each QP once, whatever the number of CQs.
    fn fail_pairs_of_failed_queues(&mut self, program: &mut Program, now: Instant) {
        let failed = program.completions.take_failed();
        if failed.is_empty() {
            return;
        }
        let Program { id, pairs, completions, .. } = program;
        for (number, reason) in failed {
            let event = ProgramEvent::CompletionQueueFailed { program: *id, number, reason };
            self.env.control.send(Event::Program(event));
        }
        for pair in pairs.iter_mut().flatten() {
            let has_failed = |number: u32| completions.has_failed(number);
            if pair.ended || !pair.completion_queues().into_iter().any(has_failed) {
                continue;
            }
            match pair.stream.and_then(|stream| self.find(stream)) {
                Some((mut stream, env)) => {
                    let reason = QueuePairError::CompletionQueue;
                    env.fail_pair(pair, &mut stream, reason, now);
                    env.make_ready(&mut stream);
                }
                None => pair.ended = true,
            }
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Posts the receives of the RQ to the stream, once it has a ULP. Receives are not charged to the budget, because a
    /// waiting receive could be missing when its message arrives. The QP's maximum bounds their number.
    fn take_receives(
        &mut self,
        pair: &mut QueuePair,
        stream: &mut Stream<'_>,
        completions: &mut CompletionQueues,
    ) -> Result<(), QueuePairError> {
        let regions = Regions { tables: &self.tables, pd: pair.pd, stream: stream.conn.id };
        let Some(mut lower) = stream.lower().filter(|lower| lower.has_ulp()) else { return Ok(()) };
        while pair.receives.has_room() {
            let Some(units) = pair.receives.ring.pop().map_err(QueuePairError::ReceiveQueue)?
            else {
                return Ok(());
            };
            self.control.counters().programs.program_receives.add(1);
            let work = ReceiveWork::decode(&units).map_err(QueuePairError::ReceiveDescriptor)?;
            match regions.sink(&work.buffers) {
                Ok(spans) => match lower.post_receive(Receive { cookie: 0, spans }) {
                    Ok(()) => pair.push_receive(work.wr_id, None, completions),
                    // The stream is ending. Its end flushes the QP.
                    Err(_) => {
                        pair.push_receive(work.wr_id, Some(Status::Flushed), completions);
                    }
                },
                Err(status) => {
                    pair.push_receive(work.wr_id, Some(status), completions);
                    return Err(QueuePairError::ReceiveProtection);
                }
            }
        }
        Ok(())
    }

    /// Posts the requests of the SQ to the stream, if it is established.
    fn take_sends(
        &mut self,
        pair: &mut QueuePair,
        stream: &mut Stream<'_>,
        completions: &mut CompletionQueues,
        quota: &mut u32,
    ) -> Result<(), QueuePairError> {
        if stream.conn.stage != Stage::Established {
            return Ok(());
        }
        let regions = Regions { tables: &self.tables, pd: pair.pd, stream: stream.conn.id };
        let Some(mut lower) = stream.lower() else { return Ok(()) };
        while *quota > 0 && pair.sends.has_room() {
            let work = match pair.sends.waiting.take() {
                Some(work) => work,
                None => match pop_send(pair)? {
                    Some(work) => work,
                    None => return Ok(()),
                },
            };
            if work.fence && pair.sends.has_requests() {
                // The completion of the last Read or atomic resumes the queue.
                pair.sends.waiting = Some(work);
                return Ok(());
            }
            *quota -= 1;
            self.control.counters().programs.program_sends.add(1);
            let (requests, mut posted) = match regions.translate(&work) {
                Ok(translated) => translated,
                Err(status) => {
                    pair.push_send(PostedSend::failed(&work, status), completions);
                    return Err(match status {
                        Status::LocalProtection => QueuePairError::SendProtection,
                        _ => QueuePairError::Operation,
                    });
                }
            };
            let mut refused = None;
            for request in requests {
                match lower.post_rdmap(request) {
                    Ok(()) => posted.parts += 1,
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            posted.status = match refused {
                None => Status::Success,
                Some(PostError::Closed) => Status::Flushed,
                Some(_) => Status::LocalQpOperation,
            };
            let failed = posted.status == Status::LocalQpOperation;
            pair.push_send(posted, completions);
            if failed {
                return Err(QueuePairError::Operation);
            }
        }
        Ok(())
    }

    /// Ends a QP because of an error of the program, and reports that. The peer receives a Terminate or a reset.
    fn fail_pair(
        &mut self,
        pair: &mut QueuePair,
        stream: &mut Stream<'_>,
        reason: QueuePairError,
        now: Instant,
    ) {
        pair.ended = true;
        self.control.counters().programs.queue_pairs_failed.add(1);
        let event = ProgramEvent::QueuePairFailed { id: pair.id, reason };
        self.control.send(Event::Program(event));
        if let Some(mut lower) = stream.lower() {
            lower.fail_ulp(now, &mut self.tables.context());
        }
    }
}

/// Takes the next request of the SQ, if there is one.
fn pop_send(pair: &mut QueuePair) -> Result<Option<SendWork>, QueuePairError> {
    let Some(units) = pair.sends.ring.pop().map_err(QueuePairError::SendQueue)? else {
        return Ok(None);
    };
    SendWork::decode(&units).map(Some).map_err(QueuePairError::SendDescriptor)
}

impl QueuePair {
    /// Completes the descriptors of an ended QP as flushed, after its earlier posts.
    fn flush_rings(&mut self, completions: &mut CompletionQueues, quota: &mut u32) {
        if let Some(work) = self.sends.waiting.take() {
            self.push_send(PostedSend::failed(&work, Status::Flushed), completions);
        }
        while *quota > 0
            && self.sends.has_room()
            && let Some(units) = self.sends.ring.pop_unless_broken()
        {
            *quota -= 1;
            // An invalid descriptor has no completion, because its `wr_id` is not known.
            if let Ok(work) = SendWork::decode(&units) {
                self.push_send(PostedSend::failed(&work, Status::Flushed), completions);
            }
        }
        while *quota > 0
            && self.receives.has_room()
            && let Some(units) = self.receives.ring.pop_unless_broken()
        {
            *quota -= 1;
            if let Ok(work) = ReceiveWork::decode(&units) {
                self.push_receive(work.wr_id, Some(Status::Flushed), completions);
            }
        }
    }
}
