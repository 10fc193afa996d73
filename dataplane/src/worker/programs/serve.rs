//! The part of a worker's turn that serves programs, each within its budget: first doorbells, then QPs with
//! descriptors, round robin. Receives are taken before sends, and are not charged to the budget but limited separately
//! ([`MAX_RECEIVES`]).
//!
//! Not included: checks of SGEs ([`request`](super::request)) and completions ([`event`](super::event)).

use std::sync::Arc;

use base::Instant;
use ddp::rdmap::Receive;
use ddp::{PostError, Stag};
use verbs_layout::work::{Operation, ReceiveWork, SendWork, Status};

use super::Program;
use super::completion::CompletionQueues;
use super::pair::{PostedSend, QueuePair};
use super::request::Regions;
use super::shared::Notices;
use super::source::Source;
use super::windows::{BoundPair, Windows};
use crate::api::{Event, ProgramEvent, QueuePairError, WindowId, WindowKind};
use crate::io::PortIo;
use crate::worker::flows::conn::{Stage, Stream};
use crate::worker::{Core, Env};

/// Maximum number of send descriptors taken from a QP before the next QP is served. For an ended QP, the bound applies
/// to the flushed descriptors of both queues.
const QUOTA: u32 = 16;

/// Minimum budget of a program's doorbell scan before a burst of frames. Each doorbell and each word of doorbells
/// counts 1. Each QP adds 4 to the budget.
const MIN_DOORBELLS: u32 = 64;

/// Maximum number of receives of a program that are posted to its streams per turn. While receives remain, the
/// program's sends wait.
const MAX_RECEIVES: u32 = 1024;

impl<Io: PortIo> Core<Io> {
    /// Takes and performs descriptors of all programs, and continues removals. Returns true if there was work.
    #[inline]
    pub(in crate::worker) fn serve_programs(&mut self, now: Instant) -> bool {
        if self.env.programs.is_empty() {
            return false;
        }
        let mut busy = self.continue_revocations();
        let mut has_removed = false;
        self.for_each_program(|core, program| match program.removal {
            None => busy |= core.serve_program(program, now),
            Some(ticket) => {
                busy = true;
                program.is_removed = core.continue_removal(program);
                if program.is_removed {
                    has_removed = true;
                    core.env.control.send(Event::Done { ticket, result: Ok(()) });
                }
            }
        });
        if has_removed {
            self.env.programs.drop_removed();
        }
        busy
    }

    /// Takes the receives that programs have posted. Called between the reception and the processing of a burst of
    /// frames: a message in the burst finds each receive that was posted before the message was sent.
    #[inline]
    pub(in crate::worker) fn take_posted_receives(&mut self, now: Instant) {
        if !self.env.programs.is_empty() {
            self.for_each_program(|core, program| {
                if program.removal.is_none() {
                    core.take_receives_of(program, now);
                }
            });
        }
    }

    #[inline(never)]
    fn take_receives_of(&mut self, program: &mut Program, now: Instant) {
        self.take_late_receives(program, now);
        // Enough for the two doorbells of each QP, with the words that contain them.
        let mut budget = 4 * program.pairs.len() as u32 + MIN_DOORBELLS;
        self.scan_doorbells(program, &mut budget, now);
    }

    /// Queues the QPs whose doorbells were rung to be served, and takes their receives.
    fn scan_doorbells(&mut self, program: &mut Program, budget: &mut u32, now: Instant) {
        while let Some(doorbell) = program.doorbells.next_queue(budget) {
            // Doorbell 2n announces sends of QP n, doorbell 2n + 1 receives. A doorbell without a QP has no effect.
            let number = doorbell / 2;
            program.make_ready(number);
            if doorbell % 2 == 1 {
                self.take_receives_of_pair(program, number, now);
            }
        }
    }

    /// Takes the receives that the previous turn left in the rings.
    fn take_late_receives(&mut self, program: &mut Program, now: Instant) {
        for _ in 0..program.late.len() {
            if program.receives_left == 0 {
                break;
            }
            let Some(number) = program.late.pop_front() else { break };
            if let Some(pair) = program.pair(number) {
                pair.is_late = false;
            }
            self.take_receives_of_pair(program, number, now);
        }
    }

    /// Takes the receives of a QP. If the turn has taken [`MAX_RECEIVES`] of the program, the rest follows in the next
    /// turn.
    fn take_receives_of_pair(&mut self, program: &mut Program, number: u32, now: Instant) {
        let Program { pairs, completions, windows, notices, receives_left, .. } = program;
        let Some(Some(pair)) = pairs.get_mut(number as usize) else { return };
        if pair.ended {
            return;
        }
        let Some((mut stream, env)) = pair.stream.and_then(|stream| self.find(stream)) else {
            return;
        };
        let queues = &mut Queues { completions, windows, notices, receives_left };
        if let Err(reason) = env.take_receives(pair, &mut stream, queues) {
            env.fail_pair(pair, &mut stream, reason, now);
        }
        pair.receives.release();
        if program.receives_left == 0 {
            program.make_late(number);
        }
    }

    fn serve_program(&mut self, program: &mut Program, now: Instant) -> bool {
        let mut budget = program.budget;
        program.receives_left = MAX_RECEIVES;
        self.fail_pairs_of_failed_queues(program, now);
        self.report_shared_receives(program, now);
        self.take_late_receives(program, now);
        self.scan_doorbells(program, &mut budget, now);
        // Sends wait until all receives that were posted before them are taken. A peer that answers a Send therefore
        // finds these receives.
        if !program.late.is_empty() {
            return true;
        }
        // A QP is queued again only if it has used up its quota, so the budget bounds the number of visits with sends.
        while budget > 0
            && let Some(number) = program.ready.pop_front()
        {
            let Program { pairs, completions, windows, notices, receives_left, .. } = program;
            let Some(Some(pair)) = pairs.get_mut(number as usize) else { continue };
            pair.queued = false;
            let mut quota = QUOTA.min(budget);
            budget -= quota;
            let queues = &mut Queues { completions, windows, notices, receives_left };
            let more = self.serve_pair(pair, queues, &mut quota, now);
            budget += quota;
            if more {
                program.make_ready(number);
            }
            if program.receives_left == 0 {
                program.make_late(number);
                break;
            }
        }
        self.fail_pairs_of_failed_queues(program, now);
        budget < program.budget
    }

    /// Serves a QP until its rings are empty, its queues are full, a fence waits or `quota` is 0. Returns true if
    /// `quota` is 0, or the receives of the turn are used up: descriptors may remain.
    fn serve_pair(
        &mut self,
        pair: &mut QueuePair,
        queues: &mut Queues<'_>,
        quota: &mut u32,
        now: Instant,
    ) -> bool {
        if !pair.ended
            && let Some(stream) = pair.stream
            && let Some((mut stream, env)) = self.find(stream)
        {
            let mut served = env.take_receives(pair, &mut stream, queues);
            if served.is_ok() && *queues.receives_left > 0 {
                served = env.take_sends(pair, &mut stream, queues, quota, now);
            }
            if let Err(reason) = served {
                env.fail_pair(pair, &mut stream, reason, now);
            }
            env.make_ready(&mut stream);
        }
        if pair.ended {
            pair.flush_rings(queues.completions, quota);
        }
        pair.sends.ring.release();
        pair.receives.release();
        *quota == 0 || *queues.receives_left == 0
    }

    /// Reports CQs that have failed, and fails the QPs that use them. Visits each QP once, regardless of the number of
    /// CQs.
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
            self.fail_pair(pair, QueuePairError::CompletionQueue, now);
        }
    }

    /// Ends a QP because of an error of the program. Reports the error if the QP has a stream.
    pub(super) fn fail_pair(&mut self, pair: &mut QueuePair, reason: QueuePairError, now: Instant) {
        match pair.stream.and_then(|stream| self.find(stream)) {
            Some((mut stream, env)) => env.fail_pair(pair, &mut stream, reason, now),
            None => pair.ended = true,
        }
    }
}

impl<Io: PortIo> Env<Io> {
    /// Posts the receives of the RQ to the stream, once the stream has a ULP. Receives are not charged to the budget of
    /// doorbells and sends: if that budget could delay them, a message could arrive before its receive is posted.
    fn take_receives(
        &mut self,
        pair: &mut QueuePair,
        stream: &mut Stream<'_>,
        Queues { completions, windows, notices, receives_left }: &mut Queues<'_>,
    ) -> Result<(), QueuePairError> {
        let (stags, pd, id) = (self.tables.stags(), pair.pd, stream.conn.id);
        let regions = Regions { stags, pd, stream: id, windows: Some(windows) };
        let Some(mut lower) = stream.lower().filter(|lower| lower.has_ulp()) else { return Ok(()) };
        if let Some(source) =
            pair.receives.shared.as_mut().and_then(|shared| Source::new(shared, id, notices))
        {
            // An error means that the stream is ending. Its end flushes the QP.
            let _ = lower.set_receive_source(Arc::new(source));
        }
        while pair.receives.has_room() && **receives_left > 0 {
            let Some(work) = pair.receives.pop().map_err(QueuePairError::ReceiveQueue)? else {
                return Ok(());
            };
            **receives_left -= 1;
            self.control.counters().programs.program_receives.add(1);
            let work = work.map_err(QueuePairError::ReceiveDescriptor)?;
            match regions.sink(&work.buffers) {
                Ok(spans) => match lower.post_receive(Receive { cookie: work.wr_id, spans }) {
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

    /// Performs the requests of the SQ, if the stream is established.
    fn take_sends(
        &mut self,
        pair: &mut QueuePair,
        stream: &mut Stream<'_>,
        queues: &mut Queues<'_>,
        quota: &mut u32,
        now: Instant,
    ) -> Result<(), QueuePairError> {
        if stream.conn.stage != Stage::Established {
            return Ok(());
        }
        while *quota > 0 && pair.sends.has_room() && pair.sends.binding.is_none() {
            let work = match pair.sends.waiting.take() {
                Some(work) => *work,
                None => {
                    let popped = pair.sends.ring.pop_with(SendWork::decode);
                    let popped = popped.map_err(QueuePairError::SendQueue)?;
                    let Some(work) = popped else { return Ok(()) };
                    work.map_err(QueuePairError::SendDescriptor)?
                }
            };
            if work.fence && pair.sends.has_requests() {
                // The completion of the last Read or atomic resumes the queue.
                pair.sends.waiting = Some(Box::new(work));
                return Ok(());
            }
            *quota -= 1;
            self.control.counters().programs.program_sends.add(1);
            let performed = match &work.operation {
                Operation::LocalInvalidate { .. } | Operation::BindWindow(_) => {
                    self.change_windows(pair, stream, queues.windows, &work, now)
                }
                _ => self.post_request(pair, stream, queues.windows, &work),
            };
            let posted = performed.unwrap_or_else(|status| PostedSend::failed(&work, status));
            let status = posted.status;
            let performed = pair.push_send(posted, queues.completions);
            self.control.counters().programs.program_sends_completed.add(performed);
            match status {
                Status::Success | Status::Flushed => {}
                Status::LocalProtection => return Err(QueuePairError::SendProtection),
                Status::WindowBind => return Err(QueuePairError::Window),
                _ => return Err(QueuePairError::Operation),
            }
        }
        Ok(())
    }

    /// Posts a request to the stream. Returns the request's record for the send queue. The record has status `Flushed`
    /// if the stream is ending, and `LocalQpOperation` if the stream refuses the request.
    ///
    /// # Errors
    /// The status with which the request completes, if nothing was posted.
    fn post_request(
        &self,
        pair: &QueuePair,
        stream: &mut Stream<'_>,
        windows: &Windows,
        work: &SendWork,
    ) -> Result<PostedSend, Status> {
        let regions = Regions {
            stags: self.tables.stags(),
            pd: pair.pd,
            stream: stream.conn.id,
            windows: Some(windows),
        };
        let mut posted = PostedSend::success(work);
        let post = |stream: &mut Stream<'_>, request| {
            let Some(mut lower) = stream.lower() else { return Err(Status::Flushed) };
            lower.post_rdmap(request).map_err(|error| match error {
                PostError::Closed => Status::Flushed,
                _ => Status::LocalQpOperation,
            })
        };
        if let Operation::Read { remote, sinks } = &work.operation {
            posted.byte_len = sinks.total_len();
            for request in regions.reads(remote, sinks)? {
                match post(stream, request) {
                    Ok(()) => posted.parts += 1,
                    Err(status) => {
                        posted.status = status;
                        break;
                    }
                }
            }
            return Ok(posted);
        }
        let request = regions.translate(work, &mut posted)?;
        match post(stream, request) {
            Ok(()) => posted.parts = 1,
            Err(status) => posted.status = status,
        }
        Ok(posted)
    }

    /// Performs a request that binds or invalidates a memory window, at once or, for a type 1 window, at all workers.
    /// Returns its record for the send queue.
    ///
    /// # Errors
    /// The status with which the request completes.
    fn change_windows(
        &mut self,
        pair: &mut QueuePair,
        stream: &mut Stream<'_>,
        windows: &mut Windows,
        work: &SendWork,
        now: Instant,
    ) -> Result<PostedSend, Status> {
        let tables = &mut self.tables;
        let mut posted = PostedSend::success(work);
        match &work.operation {
            Operation::LocalInvalidate { stag } => {
                let stag = Stag(*stag);
                windows.invalidate(stag, pair.pd, pair.id.number, tables)?;
                if let Some(mut lower) = stream.lower() {
                    lower.revoke_stag(now, stag, &mut tables.context());
                }
            }
            Operation::BindWindow(bind) => {
                let window = windows.find(WindowId::of(Stag(bind.window)));
                let (_, kind) = window.ok_or(Status::WindowBind)?;
                if kind == WindowKind::Two {
                    let pair_of = BoundPair { number: pair.id.number, stream: stream.conn.id };
                    windows.bind(bind, pair.pd, Some(pair_of), tables)?;
                } else {
                    windows.check(bind, pair.pd, None, tables)?;
                    let (id, sequence, bind) = (pair.id, windows.next_sequence(), *bind);
                    let event = ProgramEvent::BindWindow { id, sequence, bind };
                    self.control.send(Event::Program(event));
                    (posted.parts, pair.sends.binding) = (1, Some(sequence));
                }
            }
            _ => return Err(Status::LocalQpOperation),
        }
        Ok(posted)
    }

    /// Ends a QP because of an error of the program, and reports the error. The peer receives a Terminate or a reset.
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
        self.make_ready(stream);
    }
}

/// Parts of a program that the requests of its QPs use.
struct Queues<'a> {
    completions: &'a mut CompletionQueues,
    windows: &'a mut Windows,
    notices: &'a Notices,
    /// Receives of the program that may still be taken in this turn.
    receives_left: &'a mut u32,
}

impl QueuePair {
    /// Completes the descriptors of an ended QP as flushed, after its earlier posts.
    fn flush_rings(&mut self, completions: &mut CompletionQueues, quota: &mut u32) {
        if let Some(work) = self.sends.waiting.take() {
            self.push_send(PostedSend::failed(&work, Status::Flushed), completions);
        }
        while *quota > 0
            && self.sends.has_room()
            && let Some(work) = self.sends.ring.pop_unless_broken(SendWork::decode)
        {
            *quota -= 1;
            // An invalid descriptor has no completion, because its `wr_id` is not known.
            if let Ok(work) = work {
                self.push_send(PostedSend::failed(&work, Status::Flushed), completions);
            }
        }
        while *quota > 0
            && self.receives.has_room()
            && let Some(ring) = &mut self.receives.ring
            && let Some(work) = ring.pop_unless_broken(ReceiveWork::decode)
        {
            *quota -= 1;
            if let Ok(work) = work {
                self.push_receive(work.wr_id, Some(Status::Flushed), completions);
            }
        }
    }
}
