//! Events of a stream: untagged messages, errors, and actions of its listener's service.
//!
//! A message is delivered to the event log or to a file, or discarded, as configured for its queue. Its receive buffer
//! is reposted after the delivery. Clients and jobs that wait for a message receive it before this module does
//! (`core::effects`).

use std::sync::Arc;

use api::EventKind;
use config::{Delivery, QueueSection};
use dataplane::Command;
use dataplane::memory::Memory;
use ddp::rdmap::{self, Terminate, WorkRequest};
use ddp::{Cookie, MESSAGE_QUEUE, Message, Msn, Qn, Source, StreamId, TaggedOffset};

use super::stream::State;
use super::{Streams, info};
use crate::appliance::env::{Env, api_id};
use crate::appliance::flights::rdmap_code;
use crate::appliance::pending::{AfterPost, Post};
use crate::files::{self, FileId};
use crate::service::{Action, RemoteBuffer};

impl Streams {
    fn queue(&self, id: StreamId, qn: Qn) -> Option<&QueueSection> {
        self.streams.get(&id)?.queues.iter().find(|queue| queue.qn == qn.0)
    }

    /// Returns true if the queue is configured for the stream. The error queue has receive buffers but no
    /// configuration.
    pub(in crate::appliance) fn has_queue(&self, id: StreamId, qn: Qn) -> bool {
        self.queue(id, qn).is_some()
    }

    /// Delivers an untagged message as configured for its queue. Its buffer is reposted after the delivery.
    pub(in crate::appliance) fn on_untagged(
        &mut self,
        env: &mut Env,
        id: StreamId,
        message: UntaggedHeader,
        data: Vec<u8>,
        listener: Destination<'_>,
    ) {
        let UntaggedHeader { qn, rsvd_ulp, .. } = message;
        match self.queue(id, qn).map(|queue| &queue.deliver_to) {
            Some(Delivery::Echo) => {
                let source = Source::Bytes(Arc::from(data));
                // docs/protocol.md §4: an echo is sent to queue 0, which every client has, with the RsvdULP of the
                // message.
                let (cookie, answer) = (Cookie::user(0), MESSAGE_QUEUE);
                let echo = Message::Untagged { qn: answer, rsvd_ulp, source, cookie };
                self.post(env, id, echo, Post::Echo { qn: qn.0 });
            }
            _ => self.deliver(env, id, message, data, listener),
        }
    }

    /// Delivers an RDMAP Send as configured for the stream's first queue.
    pub(in crate::appliance) fn on_send(
        &mut self,
        env: &mut Env,
        id: StreamId,
        number: u32,
        data: Vec<u8>,
        listener: Destination<'_>,
    ) {
        let Some(stream) = self.streams.get(&id) else { return };
        match stream.queues.first().map(|queue| &queue.deliver_to) {
            Some(Delivery::Echo) => {
                let request = WorkRequest::send(Source::Bytes(Arc::from(data)), Cookie::user(0));
                self.post_rdmap(env, id, request, None, Post::Service(AfterPost::RepostBuffer));
            }
            _ => {
                let message =
                    UntaggedHeader { qn: MESSAGE_QUEUE, msn: Msn(number), rsvd_ulp: [0; 5] };
                self.deliver(env, id, message, data, listener);
            }
        }
    }

    /// Counts an RDMAP Send. Returns its number on the stream, from 1. `None` for an unknown stream.
    pub(in crate::appliance) fn count_send(&mut self, id: StreamId) -> Option<u32> {
        let stream = self.streams.get_mut(&id)?;
        stream.received = stream.received.wrapping_add(1);
        Some(stream.received)
    }

    /// Delivers a message to the event log or a file, or discards it. Its receive buffer is reposted afterwards.
    fn deliver(
        &mut self,
        env: &mut Env,
        id: StreamId,
        UntaggedHeader { qn, msn, rsvd_ulp }: UntaggedHeader,
        data: Vec<u8>,
        listener: Destination<'_>,
    ) {
        if !self.streams.contains_key(&id) {
            return;
        }
        match self.queue(id, qn).map_or(Delivery::Discard, |queue| queue.deliver_to.clone()) {
            // Callers handle echoes, so only messages to discard arrive here.
            Delivery::Discard | Delivery::Echo => {
                env.tally.discarded += 1;
                self.repost_buffer(env, id, qn);
            }
            Delivery::Events => {
                let (stream, queue, msn) = (api_id(id), qn.0, msn.0);
                let listener = listener.name.map(str::to_owned);
                let rsvd_ulp = rsvd_ulp.into_iter().fold(0, |all, byte| all << 8 | u64::from(byte));
                env.log.push(EventKind::Message { stream, listener, queue, msn, rsvd_ulp, data });
                self.repost_buffer(env, id, qn);
            }
            Delivery::File { .. } => self.append(env, id, qn, &data, listener.file),
        }
    }

    fn append(&mut self, env: &mut Env, id: StreamId, qn: Qn, data: &[u8], file: Option<FileId>) {
        let tag = env.allocate_number();
        match file {
            Some(file) if env.writer.append(file, files::frame(data), tag) => {
                env.record_write(id, file);
                self.appending.insert(tag, id, qn);
            }
            // A reload has removed the queue's file.
            _ => {
                env.tally.discarded += 1;
                self.fail_stores(env, [id], "its queue has no file any more");
            }
        }
    }

    /// Reposts the buffer of a message that was appended to its file.
    pub(in crate::appliance) fn on_appended(&mut self, env: &mut Env, tag: u64) {
        if let Some((stream, qn)) = self.appending.remove(tag) {
            self.repost_buffer(env, stream, qn);
            self.close_if_answered(env, stream);
        }
    }

    /// Posts one receive buffer to the queue, unless the stream has ended.
    pub(in crate::appliance) fn repost_buffer(&self, env: &mut Env, stream: StreamId, qn: Qn) {
        if self.streams.contains_key(&stream) {
            env.send_command(stream.worker(), Command::PostBuffers { stream, qn, buffers: 1 });
        }
    }

    /// Handles the peer's last message, which contains the reason why the stream ends.
    pub(in crate::appliance) fn on_last_message(
        &mut self,
        env: &mut Env,
        id: StreamId,
        data: &[u8],
    ) {
        let (code, reason) = info::last_message(data);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.end.peer_error = Some(reason.clone());
        }
        let (stream, layer) = (api_id(id), "ddp".to_owned());
        env.log.push(EventKind::StreamError { stream, layer, code, reason });
    }

    /// Handles an RDMAP Terminate, received from the peer or sent by the worker.
    pub(in crate::appliance) fn on_terminated(
        &mut self,
        env: &mut Env,
        id: StreamId,
        by_peer: bool,
        terminate: &Terminate,
    ) {
        let reason = terminate.to_string();
        if by_peer && let Some(stream) = self.streams.get_mut(&id) {
            stream.end.peer_error = Some(format!("terminated by the peer: {reason}"));
        }
        let stream = api_id(id);
        let code = terminate.numbers().to_string();
        env.log.push(EventKind::Terminated { stream, by_peer, code, reason });
    }

    /// Performs an action that the listener's service requested for the stream.
    pub(in crate::appliance) fn perform(&mut self, env: &mut Env, id: StreamId, action: Action) {
        let Some(stream) = self.streams.get(&id) else { return };
        let own = stream.slot.as_ref().map(|taken| (taken.slot, taken.memory.clone()));
        let cookie = Cookie::user(0);
        match (action, own) {
            (Action::RepostBuffer, _) => self.repost_buffer(env, id, MESSAGE_QUEUE),
            (Action::Send { bytes, answers }, _) => {
                let request = WorkRequest::send(Source::Bytes(Arc::from(bytes)), cookie);
                let after = if answers { AfterPost::RepostBuffer } else { AfterPost::Ignore };
                self.post_rdmap(env, id, request, None, Post::Service(after));
            }
            (Action::WriteBytes { bytes, destination: at }, _) => {
                let source = Source::Bytes(Arc::from(bytes));
                let request = write_request(source, at);
                self.post_rdmap(env, id, request, None, Post::Service(AfterPost::Write));
            }
            (Action::Write { len, destination: at }, Some((slot, memory))) => {
                let source = Source::Region { memory, offset: slot.to, len };
                let request = write_request(source, at);
                let region = Some(slot.stag);
                self.post_rdmap(env, id, request, region, Post::Service(AfterPost::Ignore));
            }
            (Action::Read { len, source: from }, Some((slot, _))) => {
                let request = WorkRequest::Read {
                    sink_stag: slot.stag,
                    sink_to: TaggedOffset(slot.to),
                    source_stag: from.stag,
                    source_to: TaggedOffset(from.to),
                    len,
                    cookie,
                };
                let region = Some(slot.stag);
                self.post_rdmap(env, id, request, region, Post::Service(AfterPost::Read));
            }
            (Action::Write { .. } | Action::Read { .. }, None) => {
                self.end_service(env, id, "the stream has no memory of its own".into());
            }
            (Action::AllowSend, _) => {
                env.send_command(id.worker(), Command::PeerReady { stream: id });
            }
            (Action::End(reason), _) => self.end_service(env, id, reason),
        }
    }

    /// Ends a stream after a failed operation of its service.
    pub(in crate::appliance) fn fail_service(
        &mut self,
        env: &mut Env,
        id: StreamId,
        reason: String,
    ) {
        if self.streams.get(&id).is_some_and(|s| s.state() == State::Established) {
            self.end_service(env, id, reason);
        }
    }

    /// Closes a stream whose service cannot continue, and logs the reason.
    fn end_service(&mut self, env: &mut Env, id: StreamId, reason: String) {
        if self.streams.get(&id).is_none_or(|stream| stream.state() == State::Closing) {
            return;
        }
        let (stream, layer, code) = (api_id(id), "service".to_owned(), String::new());
        env.log.push(EventKind::StreamError { stream, layer, code, reason });
        self.close(env, id, false);
    }
}

/// Header fields of a delivered untagged message.
#[derive(Clone, Copy, Debug)]
pub(in crate::appliance) struct UntaggedHeader {
    pub qn: Qn,
    pub msn: Msn,
    /// RsvdULP as sent by the peer.
    pub rsvd_ulp: [u8; 5],
}

/// Listener of a stream, and file to which a queue of the listener delivers.
#[derive(Clone, Copy)]
pub(in crate::appliance) struct Destination<'a> {
    /// Name of the listener, if the stream has one.
    pub name: Option<&'a str>,
    /// File of the queue, if it delivers to a file.
    pub file: Option<FileId>,
}

fn write_request(source: Source<Memory>, destination: RemoteBuffer) -> WorkRequest<Memory> {
    WorkRequest::Write {
        stag: destination.stag,
        to: TaggedOffset(destination.to),
        source,
        cookie: Cookie::user(0),
    }
}

/// Version 1 of RDMAP. The version is in the upper two bits of the RDMAP control byte, which is the first byte of DDP's
/// RsvdULP field (RFC 5040 §4.1).
const RDMAP_VERSION: u8 = 1;

/// Logs a DDP error that ended a stream.
pub(in crate::appliance) fn on_ddp_error(env: &mut Env, id: StreamId, error: &ddp::DdpError) {
    let code = format!("{}/{:02}", error.code.error_type(), error.code.code());
    let rdmap = error.header.get(1).is_some_and(|control| control >> 6 == RDMAP_VERSION);
    let hint =
        if rdmap { "; the peer seems to speak RDMAP, and this stream is bare DDP" } else { "" };
    on_error(env, id, "ddp", code, format!("{error}{hint}"));
}

/// Logs an error that ended an RDMAP stream.
pub(in crate::appliance) fn on_rdmap_error(env: &mut Env, id: StreamId, error: &rdmap::Error) {
    let (layer, numbers) = rdmap_code(error);
    let code = format!("{}/{:02x}", numbers.0, numbers.1);
    // Bare DDP sets the byte with RDMAP's version to zero (docs/protocol.md §3, §4).
    let bare = matches!(error, rdmap::Error::Rdmap(error)
        if error.code == rdmap::ErrorCode::InvalidVersion
            && error.header.get(1).is_some_and(|control| *control == 0));
    let hint =
        if bare { "; the peer seems to speak bare DDP, and this stream is RDMAP" } else { "" };
    on_error(env, id, layer, code, format!("{error}{hint}"));
}

fn on_error(env: &mut Env, id: StreamId, layer: &str, code: String, reason: String) {
    env.tally.stream_errors += 1;
    let (stream, layer) = (api_id(id), layer.to_owned());
    tracing::warn!("stream {stream}: {reason}");
    env.log.push(EventKind::StreamError { stream, layer, code, reason });
}
