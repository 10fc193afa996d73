//! Untagged messages of API clients: post, wait for the acknowledgement, then wait for a reply or a confirmation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiError, ErrorKind, Reply, Responder, SendSpec, Sent, Via};
use base::histogram::Durations;
use ddp::{MESSAGE_QUEUE, Qn, Source, StreamId};

use super::job::ERROR_WAIT;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::pending::{Task, stream_ended_error};

/// Sends in progress.
#[derive(Default)]
pub(super) struct Sends {
    pending: BTreeMap<u64, PendingSend>,
    /// Number of the next send.
    next: u64,
    /// Number of posts and acknowledgements so far. Serves as a clock: sends are ordered by the count at their last
    /// step.
    steps: u64,
    /// Times from posting a message to its reply, nanoseconds.
    pub(super) echoes: Durations,
}

/// A send of an API client that is in progress.
struct PendingSend {
    answer: Responder,
    data: Arc<[u8]>,
    queue: Qn,
    /// Time that the client allows for a reply. `None` if it wants no reply.
    wait: Option<Duration>,
    /// True if the stream was opened for this send and ends with it.
    opened: bool,
    started: Instant,
    /// The stream; `None` until the message is posted.
    stream: Option<StreamId>,
    /// Value of [`Sends::steps`] at the post, later at the acknowledgement.
    step: u64,
    /// Result for the client, without the reply. `None` until the message is acknowledged.
    sent: Option<Sent>,
    /// True if the peer's confirmation is awaited instead of a reply.
    confirmation_requested: bool,
    /// Reply that arrived before the acknowledgement.
    reply: Option<Vec<u8>>,
    /// End of the wait for a reply or for the peer's error. `None` before the wait.
    deadline: Option<Instant>,
}

impl Sends {
    /// Starts a send. Returns its number. `usable`: an error if the requested stream cannot be used.
    pub(super) fn request(
        &mut self,
        spec: SendSpec,
        usable: Result<(), ApiError>,
        answer: Responder,
        now: Instant,
        out: &mut Effects,
    ) -> u64 {
        let SendSpec { via, queue, data, wait_reply_us } = spec;
        let send = PendingSend {
            answer,
            data: Arc::from(data),
            queue: Qn(queue),
            wait: (wait_reply_us > 0).then(|| Duration::from_micros(wait_reply_us)),
            opened: matches!(via, Via::Connect(_)),
            started: now,
            stream: None,
            step: 0,
            sent: None,
            confirmation_requested: false,
            reply: None,
            deadline: None,
        };
        let id = self.next;
        self.next += 1;
        match (via, usable) {
            (Via::Connect(spec), _) => {
                self.pending.insert(id, send);
                let (spec, task) = (Box::new(spec), Task::Send(id));
                out.push(Effect::Open { spec, task, start_key: false });
            }
            (Via::Stream(stream), Ok(())) => {
                self.pending.insert(id, send);
                self.begin(id, StreamId(stream.0), now, out);
            }
            (Via::Stream(_), Err(error)) => send.answer.send(Err(error)),
        }
        id
    }

    /// Returns true while the send is in progress.
    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.pending.contains_key(&id)
    }

    /// Fails a posted send whose time limit has expired.
    pub(super) fn expire(&mut self, id: u64, time_limit: &str, out: &mut Effects) {
        let Some(stream) = self.pending.get(&id).and_then(|send| send.stream) else { return };
        let Some(send) = self.pending.remove(&id) else { return };
        let awaited = match (&send.sent, send.confirmation_requested) {
            (None, _) => "the peer has not acknowledged the message",
            (Some(_), true) => "the message is acknowledged, and the peer has not confirmed it",
            (Some(_), false) => "the message is acknowledged, and no message came back",
        };
        send.answer
            .send(Err(ApiError::timeout(format!("not done within {time_limit}: {awaited}"))));
        abort_if_opened(stream, send.opened, out);
    }

    /// Posts the message on its stream.
    pub(super) fn begin(&mut self, id: u64, stream: StreamId, now: Instant, out: &mut Effects) {
        self.steps += 1;
        let Some(send) = self.pending.get_mut(&id) else { return };
        send.started = now;
        send.stream = Some(stream);
        send.step = self.steps;
        let (qn, source) = (send.queue, Source::Bytes(Arc::clone(&send.data)));
        out.push(Effect::Send { stream, qn, source, task: Task::Send(id) });
    }

    /// Fails a send whose stream could not be opened.
    pub(super) fn on_refused(&mut self, id: u64, error: ApiError) {
        if let Some(send) = self.pending.remove(&id) {
            send.answer.send(Err(error));
        }
    }

    /// Handles the acknowledgement, confirmation or failure of a message.
    pub(super) fn on_posted(
        &mut self,
        id: u64,
        stream: StreamId,
        result: Result<(), ApiError>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(mut send) = self.pending.remove(&id) else { return };
        if let (true, Ok(()), Some(sent)) = (send.confirmation_requested, &result, &send.sent) {
            send.answer.send(Ok(Reply::Sent(Sent { confirmed: true, ..sent.clone() })));
            return end_if_opened(stream, send.opened, out);
        }
        if let Err(error) = result {
            let message = format!("not delivered: {}", error.message);
            send.answer.send(Err(ApiError { message, ..error }));
            return end_if_opened(stream, send.opened, out);
        }
        let time_us = u64::try_from(now.duration_since(send.started).as_micros());
        let time_us = time_us.unwrap_or(u64::MAX);
        let reply = send.reply.take();
        let confirmed = reply.is_some();
        let sent = Sent { bytes: send.data.len() as u64, time_us, reply, confirmed };
        if confirmed {
            send.answer.send(Ok(Reply::Sent(sent)));
            return end_if_opened(stream, send.opened, out);
        }
        self.steps += 1;
        send.step = self.steps;
        send.sent = Some(sent);
        match send.wait {
            Some(wait) => send.deadline = Some(now + wait),
            None => {
                send.confirmation_requested = true;
                out.push(Effect::Confirm { stream, task: Task::Send(id) });
            }
        }
        self.pending.insert(id, send);
    }

    /// Handles a send whose stream cannot request a confirmation. A stream that was opened for the send is closed; its
    /// graceful end confirms the message. On any other stream an error of the peer is awaited for `ERROR_WAIT`.
    pub(super) fn on_unconfirmable(&mut self, id: u64, now: Instant, out: &mut Effects) {
        let Some(send) = self.pending.get_mut(&id) else { return };
        match send.stream.filter(|_| send.opened) {
            Some(stream) => out.push(Effect::Close { stream, abort: false }),
            None => send.deadline = Some(now + ERROR_WAIT),
        }
    }

    /// Passes a message to the first client that waits for a message on its queue. A message on queue 0 matches all
    /// clients, because echoes arrive there. Returns the message if no client waits.
    pub(super) fn take_reply(
        &mut self,
        stream: StreamId,
        qn: Qn,
        data: Vec<u8>,
        now: Instant,
        out: &mut Effects,
    ) -> Option<Vec<u8>> {
        // A reply may arrive before the acknowledgement of its request. Unacknowledged requests therefore also match,
        // but after acknowledged requests.
        let here = self
            .pending
            .iter()
            .filter(|(_, s)| s.stream == Some(stream) && (s.queue == qn || qn == MESSAGE_QUEUE));
        let awaits = here.filter(|(_, s)| s.wait.is_some() && s.reply.is_none());
        let first = awaits.min_by_key(|(_, s)| (s.sent.is_none(), s.step)).map(|(&id, _)| id);
        let Some(id) = first else { return Some(data) };
        if let Some(send) = self.pending.get(&id) {
            self.echoes.record(now.duration_since(send.started).as_nanos() as u64);
        }
        if let Some(send) = self.pending.get_mut(&id).filter(|send| send.sent.is_none()) {
            send.reply = Some(data);
        } else if let Some(send) = self.pending.remove(&id) {
            let sent = Sent { reply: Some(data), confirmed: true, ..send.sent.unwrap_or_default() };
            send.answer.send(Ok(Reply::Sent(sent)));
            end_if_opened(stream, send.opened, out);
        }
        None
    }

    /// Returns the time at which the next wait for a reply or an error ends. `None` if there is no wait.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.pending.values().filter_map(|send| send.deadline).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Effects) {
        let is_expired =
            |_: &u64, send: &mut PendingSend| send.deadline.is_some_and(|at| at <= now);
        for (_, send) in self.pending.extract_if(.., is_expired) {
            let sentence = "the message was acknowledged, but no message came back in time";
            send.answer.send(match send.sent.filter(|_| send.confirmation_requested) {
                Some(sent) => Ok(Reply::Sent(sent)),
                None => Err(ApiError::timeout(sentence)),
            });
            if let Some(stream) = send.stream {
                end_if_opened(stream, send.opened, out);
            }
        }
    }

    /// Ends the acknowledged sends on a stream that has ended. If a confirmation was requested, a graceful end confirms
    /// the message, and a time-out leaves it unconfirmed. In all other cases the send fails, because no reply can
    /// arrive.
    pub(super) fn on_stream_ended(&mut self, stream: StreamId, graceful: bool, error: &ApiError) {
        let waits =
            |_: &u64, send: &mut PendingSend| send.stream == Some(stream) && send.sent.is_some();
        for (_, send) in self.pending.extract_if(.., waits) {
            let timed_out = error.error == ErrorKind::Timeout;
            send.answer.send(
                match send.sent.filter(|_| send.confirmation_requested && (graceful || timed_out)) {
                    Some(sent) => Ok(Reply::Sent(Sent { confirmed: graceful, ..sent })),
                    None => Err(stream_ended_error(error.clone())),
                },
            );
        }
    }
}

/// Closes the stream of a finished operation if it was opened for this operation.
pub(super) fn end_if_opened(stream: StreamId, opened: bool, out: &mut Effects) {
    if opened {
        out.push(Effect::Close { stream, abort: false });
    }
}

/// Aborts the stream of a failed operation if it was opened for this operation.
pub(super) fn abort_if_opened(stream: StreamId, opened: bool, out: &mut Effects) {
    if opened {
        out.push(Effect::Close { stream, abort: true });
    }
}
