//! Untagged messages of API clients: post, wait for the acknowledgement, perhaps wait for a message back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::histogram::Durations;
use ddp::{MESSAGE_QUEUE, Qn, Source, StreamId};

use super::job::ERROR_WAIT;
use crate::appliance::effect::{Effect, Effects};
use crate::appliance::pending::{Task, has_ended};
use api::{Answer, ApiError, ErrorKind, Reply, SendSpec, Sent, Via};

/// Messages on their way, and those whose answer from the peer is awaited.
#[derive(Default)]
pub(super) struct Sends {
    pending: BTreeMap<u64, PendingSend>,
    next: u64,
    /// Messages posted and acknowledged so far: their order.
    steps: u64,
    /// From the post of a message to the one that comes back, nanoseconds.
    pub(super) echoes: Durations,
}

struct PendingSend {
    answer: Answer,
    data: Arc<[u8]>,
    queue: Qn,
    wait: Option<Duration>,
    /// The stream was opened for it and ends with it.
    opened: bool,
    started: Instant,
    /// Since it was posted.
    stream: Option<StreamId>,
    /// When it was posted, and later when it was acknowledged, in [`Sends::steps`].
    step: u64,
    sent: Option<Sent>,
    /// No message is awaited, but whether the peer has this one.
    asked: bool,
    /// The message from the peer, when it came before the acknowledgement.
    reply: Option<Vec<u8>>,
    deadline: Option<Instant>,
}

impl Sends {
    /// `usable`: whether the stream can take a message, where it names one.
    pub(super) fn request(
        &mut self,
        spec: SendSpec,
        usable: Result<(), ApiError>,
        answer: Answer,
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
            asked: false,
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

    /// It is not at its end.
    pub(super) fn goes_on(&self, id: u64) -> bool {
        self.pending.contains_key(&id)
    }

    /// A message has taken as long as it may.
    pub(super) fn expire(&mut self, id: u64, within: &str, out: &mut Effects) {
        let Some(stream) = self.pending.get(&id).and_then(|send| send.stream) else { return };
        let Some(send) = self.pending.remove(&id) else { return };
        let awaited = match (&send.sent, send.asked) {
            (None, _) => "the peer has not acknowledged the message",
            (Some(_), true) => "the message is acknowledged, and the peer has not confirmed it",
            (Some(_), false) => "the message is acknowledged, and no message came back",
        };
        send.answer.send(Err(ApiError::timeout(format!("not done within {within}: {awaited}"))));
        abort_if_opened(stream, send.opened, out);
    }

    /// The stream is there: posts the message.
    pub(super) fn begin(&mut self, id: u64, stream: StreamId, now: Instant, out: &mut Effects) {
        self.steps += 1;
        let Some(send) = self.pending.get_mut(&id) else { return };
        send.started = now;
        send.stream = Some(stream);
        send.step = self.steps;
        let (qn, source) = (send.queue, Source::Bytes(Arc::clone(&send.data)));
        out.push(Effect::Send { stream, qn, source, task: Task::Send(id) });
    }

    /// Its stream could not be opened.
    pub(super) fn on_refused(&mut self, id: u64, error: ApiError) {
        if let Some(send) = self.pending.remove(&id) {
            send.answer.send(Err(error));
        }
    }

    /// The message was acknowledged, or will not be.
    pub(super) fn on_posted(
        &mut self,
        id: u64,
        stream: StreamId,
        result: Result<(), ApiError>,
        now: Instant,
        out: &mut Effects,
    ) {
        let Some(mut send) = self.pending.remove(&id) else { return };
        if let (true, Ok(()), Some(sent)) = (send.asked, &result, &send.sent) {
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
                send.asked = true;
                out.push(Effect::Confirm { stream, task: Task::Send(id) });
            }
        }
        self.pending.insert(id, send);
    }

    /// The peer cannot be asked whether it has the message. On a stream of the message's own its end tells, else an error
    /// of the peer is awaited.
    pub(super) fn on_unconfirmable(&mut self, id: u64, now: Instant, out: &mut Effects) {
        let Some(send) = self.pending.get_mut(&id) else { return };
        match send.stream.filter(|_| send.opened) {
            Some(stream) => out.push(Effect::Close { stream, abort: false }),
            None => send.deadline = Some(now + ERROR_WAIT),
        }
    }

    /// Passes a message to the first client that awaits one on its queue, or on queue 0, where echoes come; returns it
    /// if no client does.
    pub(super) fn take_reply(
        &mut self,
        stream: StreamId,
        qn: Qn,
        data: Vec<u8>,
        now: Instant,
        out: &mut Effects,
    ) -> Option<Vec<u8>> {
        // The answer may overtake the acknowledgement of what it answers: those come second.
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

    /// When the next client stops waiting.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.pending.values().filter_map(|send| send.deadline).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Effects) {
        let late = |_: &u64, send: &mut PendingSend| send.deadline.is_some_and(|at| at <= now);
        for (_, send) in self.pending.extract_if(.., late) {
            let sentence = "the message was acknowledged, but no message came back in time";
            send.answer.send(match send.sent.filter(|_| send.asked) {
                Some(sent) => Ok(Reply::Sent(sent)),
                None => Err(ApiError::timeout(sentence)),
            });
            if let Some(stream) = send.stream {
                end_if_opened(stream, send.opened, out);
            }
        }
    }

    /// A stream has ended: no message will come back on it. An end in order says that the peer has what was sent.
    pub(super) fn on_stream_ended(&mut self, stream: StreamId, in_order: bool, error: &ApiError) {
        let waits =
            |_: &u64, send: &mut PendingSend| send.stream == Some(stream) && send.sent.is_some();
        for (_, send) in self.pending.extract_if(.., waits) {
            let unheard = error.error == ErrorKind::Timeout;
            send.answer.send(match send.sent.filter(|_| send.asked && (in_order || unheard)) {
                Some(sent) => Ok(Reply::Sent(Sent { confirmed: in_order, ..sent })),
                None => Err(has_ended(error.clone())),
            });
        }
    }
}

/// An operation is over: a stream that was opened for it ends.
pub(super) fn end_if_opened(stream: StreamId, opened: bool, out: &mut Effects) {
    if opened {
        out.push(Effect::Close { stream, abort: false });
    }
}

/// An operation is given up: a stream that was opened for it is aborted.
pub(super) fn abort_if_opened(stream: StreamId, opened: bool, out: &mut Effects) {
    if opened {
        out.push(Effect::Close { stream, abort: true });
    }
}
