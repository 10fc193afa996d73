//! Untagged messages of API clients: post, wait for the acknowledgement, perhaps wait for a message back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp::rdmap::WorkRequest;
use ddp::{Cookie, Message, Qn, Source, StreamId};

use super::connect::Purpose;
use super::core::Core;
use super::env::api_id;
use super::pending::{Post, Then};
use super::streams::State;
use crate::api::{Answer, ApiError, Reply, SendSpec, Sent, Via};

/// A message on its way, or one whose answer from the peer is awaited.
pub(super) struct PendingSend {
    pub answer: Answer,
    data: Arc<[u8]>,
    queue: Qn,
    wait: Option<Duration>,
    /// The stream was opened for it and ends with it.
    opened: bool,
    started: Instant,
    sent: Option<Sent>,
    /// The message from the peer, when it came before the acknowledgement.
    reply: Option<Vec<u8>>,
    deadline: Option<Instant>,
}

impl Core {
    pub(super) fn send(&mut self, spec: SendSpec, answer: Answer, now: Instant) {
        let SendSpec { via, queue, data, wait_reply_us } = spec;
        let mut send = PendingSend {
            answer,
            data: Arc::from(data),
            queue: Qn(queue),
            wait: (wait_reply_us > 0).then(|| Duration::from_micros(wait_reply_us)),
            opened: false,
            started: now,
            sent: None,
            reply: None,
            deadline: None,
        };
        match via {
            Via::Connect(spec) => {
                send.opened = true;
                self.open(spec, Purpose::Send(Box::new(send)), false);
            }
            Via::Stream(id) => {
                let id = StreamId(id.0);
                match self.streams.get(&id).map(|stream| stream.state) {
                    Some(State::Established) => self.post_send(id, send, now),
                    Some(_) => send.answer.send(Err(ApiError::conflict("the stream is not open"))),
                    None => send.answer.send(Err(ApiError::not_found(format!(
                        "there is no stream {}",
                        api_id(id)
                    )))),
                }
            }
        }
    }

    pub(super) fn post_send(&mut self, id: StreamId, mut send: PendingSend, now: Instant) {
        send.started = now;
        let source = Source::Octets(Arc::clone(&send.data));
        if self.streams.get(&id).is_some_and(|stream| stream.rdmap) {
            let request = WorkRequest::send(source, Cookie::of(0));
            return self.post_rdmap(id, request, None, Post::Send(Box::new(send)));
        }
        let message =
            Message::Untagged { qn: send.queue, rsvd_ulp: [0; 5], source, cookie: Cookie::of(0) };
        self.post(id, message, Post::Send(Box::new(send)));
    }

    /// The message was acknowledged, or will not be.
    pub(super) fn send_posted(
        &mut self,
        id: StreamId,
        mut send: PendingSend,
        result: Result<(), ApiError>,
        now: Instant,
    ) {
        if let Err(error) = result {
            let message = format!("not delivered: {}", error.message);
            send.answer.send(Err(ApiError { message, ..error }));
            self.end_if_opened(id, send.opened);
            return;
        }
        let time_us = u64::try_from(now.duration_since(send.started).as_micros());
        let time_us = time_us.unwrap_or(u64::MAX);
        let reply = send.reply.take();
        let sent = Sent { octets: send.data.len() as u64, time_us, reply };
        match send.wait {
            Some(wait) if sent.reply.is_none() => {
                send.sent = Some(sent);
                send.deadline = Some(now + wait);
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.awaiting.push(send);
                }
            }
            _ => {
                send.answer.send(Ok(Reply::Sent(sent)));
                self.end_if_opened(id, send.opened);
            }
        }
    }

    /// Gives a message to the first client that awaits one on its queue; back if nobody does.
    pub(super) fn take_reply(&mut self, id: StreamId, qn: Qn, data: Vec<u8>) -> Option<Vec<u8>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Some(data) };
        if let Some(at) = stream.awaiting.iter().position(|send| send.queue == qn) {
            let send = stream.awaiting.remove(at);
            let sent = send.sent.unwrap_or_default();
            send.answer.send(Ok(Reply::Sent(Sent { reply: Some(data), ..sent })));
            self.end_if_opened(id, send.opened);
            return None;
        }
        // The answer may overtake the acknowledgement of what it answers.
        let mut tickets: Vec<u64> = stream.posts.iter().copied().collect();
        tickets.sort_unstable();
        let awaits = |then: &Then| {
            matches!(then, Then::Posted { post: Post::Send(send), .. }
                if send.queue == qn && send.wait.is_some() && send.reply.is_none())
        };
        let first =
            tickets.into_iter().find(|&t| self.env.tickets.get_mut(t).is_some_and(|t| awaits(t)));
        match first.and_then(|ticket| self.env.tickets.get_mut(ticket)) {
            Some(Then::Posted { post: Post::Send(send), .. }) => {
                send.reply = Some(data);
                None
            }
            _ => Some(data),
        }
    }

    /// When the next client stops waiting.
    pub(super) fn next_send_deadline(&self) -> Option<Instant> {
        let waiting = self.streams.values().flat_map(|stream| &stream.awaiting);
        waiting.filter_map(|send| send.deadline).min()
    }

    pub(super) fn expire_sends(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (&id, stream) in &mut self.streams {
            let late = |send: &mut PendingSend| send.deadline.is_some_and(|at| at <= now);
            for send in stream.awaiting.extract_if(.., late) {
                let sentence = "the message was acknowledged, but no message came back in time";
                send.answer.send(Err(ApiError::timeout(sentence)));
                ended.push((id, send.opened));
            }
        }
        ended.into_iter().for_each(|(id, opened)| self.end_if_opened(id, opened));
    }

    /// An operation is over: a stream that was opened for it ends.
    pub(super) fn end_if_opened(&mut self, id: StreamId, opened: bool) {
        if opened {
            self.hang_up(id, false);
        }
    }
}
