//! Untagged messages that streams deliver: to the log, a file, back, or nowhere.

use std::sync::Arc;

use dataplane::Command;
use ddp::{Cookie, Message, Msn, Qn, Source, StreamId};

use super::core::Core;
use super::env::api_id;
use super::pending::Post;
use super::render;
use crate::api::EventKind;
use crate::config::Delivery;
use crate::files;

impl Core {
    /// An untagged message goes where its queue says; its buffer goes back when it has got there.
    pub(super) fn on_untagged(&mut self, id: StreamId, qn: Qn, msn: Msn, data: Vec<u8>) {
        self.env.tally.untagged_messages += 1;
        self.env.tally.untagged_octets += data.len() as u64;
        let Some(stream) = self.streams.get(&id) else { return };
        let queue = stream.queues.iter().find(|queue| queue.qn == qn.0);
        let Some(queue) = queue.cloned() else {
            // Only the error queue is posted without being configured.
            self.on_last_message(id, &data);
            return;
        };
        let data = match self.take_reply(id, qn, data) {
            Some(data) => data,
            None => return self.give_back(id, qn),
        };
        match queue.deliver_to {
            Delivery::Echo => {
                let source = Source::Octets(Arc::from(data));
                let message =
                    Message::Untagged { qn, rsvd_ulp: [0; 5], source, cookie: Cookie::of(0) };
                self.post(id, message, Post::Echo { qn: qn.0 });
            }
            _ => self.deliver_untagged(id, qn, msn, data),
        }
    }

    /// To the log, a file, or nowhere; the buffer goes back.
    pub(super) fn deliver_untagged(&mut self, id: StreamId, qn: Qn, msn: Msn, data: Vec<u8>) {
        let Some(stream) = self.streams.get(&id) else { return };
        let queue = stream.queues.iter().find(|queue| queue.qn == qn.0);
        match queue.map_or(Delivery::Discard, |queue| queue.deliver_to.clone()) {
            // An echo has been sent back by whoever knows how.
            Delivery::Discard | Delivery::Echo => {
                self.env.tally.discarded += 1;
                self.give_back(id, qn);
            }
            Delivery::Events => {
                let listener = self.listener_name(id);
                let (stream, queue, msn) = (api_id(id), qn.0, msn.0);
                self.env.log.push(EventKind::Message { stream, listener, queue, msn, data });
                self.give_back(id, qn);
            }
            Delivery::File { .. } => self.append(id, qn, &data),
        }
    }

    fn append(&mut self, id: StreamId, qn: Qn, data: &[u8]) {
        let listener = self.streams.get(&id).and_then(|stream| stream.listener);
        let file = listener.and_then(|listener| self.listeners.file_of(listener, qn.0));
        let tag = self.env.number();
        match file {
            Some(file) if self.env.writer.append(file, files::frame(data), tag) => {
                self.appending.insert(tag, (id, qn.0));
            }
            _ => {
                self.env.tally.discarded += 1;
                self.give_back(id, qn);
            }
        }
    }

    pub(super) fn on_appended(&mut self, tag: u64) {
        if let Some((stream, qn)) = self.appending.remove(&tag) {
            self.give_back(stream, Qn(qn));
        }
    }

    /// The peer says why it ends the stream.
    fn on_last_message(&mut self, id: StreamId, data: &[u8]) {
        let (code, reason) = render::last_message(data);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.peer_error = Some(reason.clone());
        }
        let stream = api_id(id);
        let layer = "ddp".to_owned();
        self.env.log.push(EventKind::StreamError { stream, layer, code, reason });
    }

    pub(super) fn give_back(&mut self, stream: StreamId, qn: Qn) {
        if self.streams.contains_key(&stream) {
            self.env.tell(stream.worker(), Command::PostBuffers { stream, qn, buffers: 1 });
        }
    }
}
