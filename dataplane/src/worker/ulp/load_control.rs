//! Starts, continues and ends the loads of streams: messages that a worker generates itself. The state of a load is in
//! [`crate::worker::flows::running_load`].

use base::Instant;
use ddp::{PostError, Qn, Stag, StreamId};
use tcp_lite::endpoint::UlpKind;

use crate::api::{Event, Load, LoadReport, PostFailure, Ticket};
use crate::io::PortIo;
use crate::worker::flows::conn::{Conn, Stage, Stream};
use crate::worker::flows::running_load::RunningLoad;
use crate::worker::{Core, Env};

/// Maximum [`PaceTimers`](crate::worker::flows::running_load::PaceTimers) entries processed per turn. The others follow
/// in the next turn, and their latencies include the delay.
const MAX_DUE_POSTS: usize = 256;

impl<Io: PortIo> Core<Io> {
    /// Starts a load. An [`Event::LoadDone`] always follows, even if the load cannot start.
    pub(in crate::worker) fn start_load(
        &mut self,
        stream: StreamId,
        load: Load,
        ticket: Ticket,
        now: Instant,
    ) {
        let started = match self.find(stream) {
            Some((mut stream, env)) => env.begin_load(&mut stream, load, ticket, now),
            None => Err(PostFailure::NoStream),
        };
        if let Err(reason) = started {
            let failed = LoadReport {
                messages: 0,
                bytes: 0,
                nanoseconds: 0,
                latency: None,
                unfinished: 0,
                failure: Some(reason),
            };
            let report = Box::new(failed);
            self.env.control.send(Event::LoadDone { stream, ticket, report });
        }
    }

    /// Stops a stream's load. Outstanding messages complete first.
    pub(in crate::worker) fn stop_load(&mut self, stream: StreamId, now: Instant) {
        if let Some((mut stream, env)) = self.find(stream)
            && let Some(load) = &mut stream.conn.load
        {
            load.stop(now);
            env.continue_load(&mut stream, now);
        }
    }

    /// Stops the loads that read from or write to a region that is being removed.
    pub(in crate::worker) fn stop_loads_on(&mut self, stag: Stag, now: Instant) {
        for slot in self.streams.slots() {
            let Some((mut stream, env)) = self.stream_mut(slot) else { continue };
            if stream.conn.has_load_on(stag)
                && let Some(load) = &mut stream.conn.load
            {
                load.fail(PostFailure::NoRegion);
                env.continue_load(&mut stream, now);
            }
        }
    }

    /// Continues the paced loads whose next message is due, at most [`MAX_DUE_POSTS`]. Returns true if an entry was
    /// due.
    pub(in crate::worker) fn post_due_loads(&mut self, now: Instant) -> bool {
        let mut posted = 0;
        while posted < MAX_DUE_POSTS {
            let Some((at, slot)) = self.env.pace_timers.take_due(now) else { break };
            posted += 1;
            let Some((mut stream, env)) = self.stream_mut(slot) else { continue };
            // The entry is stale if its load has ended. The slot may then have another load.
            if stream.conn.load.as_mut().is_some_and(|load| load.disarm(at)) {
                env.continue_load(&mut stream, now);
            }
        }
        posted > 0
    }
}

impl Conn {
    /// Returns true if a load reads from the region or writes to it.
    pub(in crate::worker) fn has_load_on(&self, stag: Stag) -> bool {
        self.load.as_ref().is_some_and(|load| load.region() == Some(stag))
    }
}

impl<Io: PortIo> Env<Io> {
    fn begin_load(
        &mut self,
        stream: &mut Stream<'_>,
        load: Load,
        ticket: Ticket,
        now: Instant,
    ) -> Result<(), PostFailure> {
        let params = stream.lower().and_then(|lower| lower.params());
        if stream.conn.load.is_some() {
            return Err(PostFailure::LoadRunning);
        }
        let params = params.filter(|_| stream.conn.stage == Stage::Established);
        let params = params.ok_or(PostFailure::Refused(PostError::Closed))?;
        let rdmap = params.ulp() != UlpKind::Ddp;
        let (memory, offset) = match load.kind.window() {
            None => (None, 0),
            Some(window) => {
                let entry = self.tables.stag(window.local).ok_or(PostFailure::NoRegion)?;
                let at = window.base.0.checked_sub(entry.base_to.0);
                let end = at.and_then(|at| at.checked_add(window.bytes));
                let (Some(at), Some(_)) = (at, end.filter(|&end| end <= entry.len)) else {
                    let (offset, len) = (window.base.0, entry.len);
                    let end = offset.saturating_add(window.bytes);
                    let error = PostError::OutOfBounds { offset, end, len };
                    return Err(PostFailure::Refused(error));
                };
                let source = (Some(entry.memory.clone()), entry.memory_offset + at);
                self.tables.add_source(window.local);
                source
            }
        };
        let seed = u64::from(stream.slot) + 1;
        stream.conn.load =
            Some(Box::new(RunningLoad::new(ticket, load, rdmap, memory, offset, seed, now)));
        self.continue_load(stream, now);
        Ok(())
    }

    /// Records the completion of `messages` messages of the stream's load, and posts the next messages.
    pub(in crate::worker) fn complete_load_messages(
        &mut self,
        stream: &mut Stream<'_>,
        messages: u32,
        now: Instant,
    ) {
        if let Some(load) = &mut stream.conn.load {
            let bytes = load.record_completions(messages, now);
            let counters = self.control.counters();
            counters.run.load_messages.add(messages.into());
            counters.run.load_bytes.add(bytes);
            self.continue_load(stream, now);
        }
    }

    /// Stops the stream's load, because one of its messages will never complete.
    pub(in crate::worker) fn handle_load_flush(&mut self, stream: &mut Stream<'_>, now: Instant) {
        if let Some(load) = &mut stream.conn.load {
            load.handle_flush(now);
            self.continue_load(stream, now);
        }
    }

    /// Counts an untagged message as the answer that the stream's load awaits, and reposts its receive buffer. Returns
    /// false if the load awaits no answer.
    pub(in crate::worker) fn take_load_answer(
        &mut self,
        stream: &mut Stream<'_>,
        qn: Qn,
        now: Instant,
    ) -> bool {
        if !stream.conn.load.as_ref().is_some_and(|load| load.awaits_answer()) {
            return false;
        }
        stream.post_buffers(qn, 1);
        self.complete_load_messages(stream, 1, now);
        true
    }

    /// Posts all messages that the load may post now. Ends the load if it is finished.
    pub(in crate::worker) fn continue_load(&mut self, stream: &mut Stream<'_>, now: Instant) {
        let Some(mut load) = stream.conn.load.take() else { return };
        let Some(mut lower) = stream.lower() else { return };
        load.post_all(&mut lower, now);
        if load.is_finished() {
            self.end_load(stream.conn.id, *load);
        } else {
            if let Some(at) = load.arm(now) {
                self.pace_timers.push(at, stream.slot);
            }
            stream.conn.load = Some(load);
        }
        self.make_ready(stream);
    }

    /// Ends the load of a stream that has ended.
    pub(in crate::worker) fn abandon_load(&mut self, conn: &mut Conn) {
        if let Some(mut load) = conn.load.take() {
            load.abandon(self.now);
            self.end_load(conn.id, *load);
        }
    }

    fn end_load(&mut self, stream: StreamId, load: RunningLoad) {
        if let Some(stag) = load.region() {
            self.tables.release_source(stag);
        }
        let (ticket, report) = (load.ticket(), Box::new(load.into_report()));
        self.control.send(Event::LoadDone { stream, ticket, report });
        self.tables.finish_removals(&mut self.control);
    }
}
