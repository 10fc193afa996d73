//! RDMAP events of a stream, translated for the control thread, and the services that the worker itself provides (Sink,
//! Echo) over RDMAP and bare DDP.
//!
//! A service reposts the receive buffer of a message: Sink once it has counted the message, Echo once its answer is
//! posted. When the number of unacknowledged answers reaches the number of receive buffers, Echo reposts each further
//! buffer only when an answer is acknowledged. If the peer acknowledges nothing, this end thus holds at most as many
//! answers as it has receive buffers, besides the buffers themselves. Answers for which the stream has no room wait in
//! the worker; their number is at most the number of receive buffers. After the peer has closed, this end closes once
//! the last answer is posted.

use std::sync::Arc;

use base::Instant;
use ddp::rdmap::{Event as RdmapEvent, WorkRequest};
use ddp::{Cookie, ERROR_QUEUE, MESSAGE_QUEUE, Message, PostError, Poster, Qn, Source};
use tcp_lite::endpoint::UlpConfig;

use crate::api::{Event, RecordKind, Service, Ticket};
use crate::io::PortIo;
use crate::worker::Env;
use crate::worker::control::recorder::record_session_error;
use crate::worker::flows::conn::{Conn, ServiceKind, Stream};
use crate::worker::flows::echo::Answer;
use crate::worker::flows::running_load::SEND_QUEUE;

impl<Io: PortIo> Env<Io> {
    /// Handles an RDMAP event of a stream. The stream's load or service consumes it, or it is reported to the control
    /// thread.
    pub(in crate::worker) fn handle_rdmap_event(
        &mut self,
        stream: &mut Stream<'_>,
        event: RdmapEvent,
        now: Instant,
    ) {
        let (id, service) = (stream.conn.id, stream.conn.service);
        let event = match service {
            ServiceKind::Program => match self.handle_pair_event(stream, event) {
                Some(event) => event,
                None => return,
            },
            _ => event,
        };
        let event = match event {
            RdmapEvent::Received { invalidated: None, .. }
                if self.take_load_answer(stream, SEND_QUEUE, now) =>
            {
                return;
            }
            RdmapEvent::Received { data, solicited, invalidated } => match service {
                ServiceKind::Control | ServiceKind::Region | ServiceKind::Program => {
                    Event::Received { stream: id, data, solicited, invalidated }
                }
                ServiceKind::Echo | ServiceKind::Sink => {
                    self.serve_message(stream, SEND_QUEUE, || {
                        let source = Source::Bytes(Arc::from(data.as_slice()));
                        let (invalidate, cookie) = (None, Cookie::SERVICE);
                        Answer::Rdmap(WorkRequest::Send { source, solicited, invalidate, cookie })
                    });
                    self.tables.recycle(data);
                    match invalidated {
                        Some(stag) => Event::Invalidated { stream: id, stag },
                        None => return,
                    }
                }
            },
            RdmapEvent::Immediate { data, solicited } => match service {
                ServiceKind::Control | ServiceKind::Region | ServiceKind::Program => {
                    Event::Immediate { stream: id, data, solicited }
                }
                ServiceKind::Echo | ServiceKind::Sink => {
                    return self.serve_message(stream, SEND_QUEUE, || {
                        let cookie = Cookie::SERVICE;
                        Answer::Rdmap(WorkRequest::Immediate { data, solicited, cookie })
                    });
                }
            },
            // Only the streams of QPs have posted receives, and `handle_pair_event` consumes their events.
            RdmapEvent::ReceivedInto { .. }
            | RdmapEvent::ImmediateInto { .. }
            | RdmapEvent::ReceiveFlushed { .. } => {
                debug_assert!(false, "an event of a posted receive");
                return;
            }
            RdmapEvent::WriteDelivered { stag, to, len } => match service {
                // The STag of an RDMA Write without payload was not checked, so such a Write is not reported.
                ServiceKind::Region if len > 0 => {
                    Event::TaggedDelivered { stream: id, stag, to, len, rsvd_ulp: 0 }
                }
                _ => return,
            },
            RdmapEvent::AtomicServed { stag, to } => match service {
                ServiceKind::Region => {
                    Event::TaggedDelivered { stream: id, stag, to, len: 8, rsvd_ulp: 0 }
                }
                _ => return,
            },
            RdmapEvent::ReadHeld => Event::ReadHeld { stream: id },
            RdmapEvent::ReadServed { .. } | RdmapEvent::ReadyToReceive => return,
            RdmapEvent::Completed { cookie, outcome } => match cookie.poster() {
                Poster::User(number) => {
                    let ticket = Ticket(number);
                    self.release_post_source(stream, ticket);
                    Event::Completed { stream: id, ticket, outcome }
                }
                Poster::Service => {
                    self.acknowledge_answers(stream, 1);
                    return self.continue_load(stream, now);
                }
                Poster::Load => return self.complete_load_messages(stream, 1, now),
                Poster::Stack | Poster::Response | Poster::Terminate => {
                    return self.continue_load(stream, now);
                }
            },
            RdmapEvent::Flushed { cookie } => return self.handle_flushed(stream, cookie, now),
            RdmapEvent::Error(error) => {
                // An unreadable Terminate of the peer has no layer, error type and code that could be recorded.
                if let Some(terminate) = error.terminate() {
                    let numbers = terminate.numbers();
                    record_session_error(stream, RecordKind::ErrorFound, numbers, now);
                }
                Event::RdmapError { stream: id, error }
            }
            RdmapEvent::Terminated { by_peer, terminate } => {
                let kind = match by_peer {
                    true => RecordKind::TerminateReceived,
                    false => RecordKind::TerminateSent,
                };
                record_session_error(stream, kind, terminate.numbers(), now);
                Event::Terminated { stream: id, by_peer, terminate }
            }
            RdmapEvent::PeerClosed { incomplete } => {
                self.handle_peer_close(stream, now);
                Event::PeerClosed { stream: id, incomplete }
            }
            // The endpoint reports the reason with its close event.
            RdmapEvent::Failed(_) => return,
        };
        self.control.send(event);
    }

    /// Handles an untagged message of bare DDP. Returns its data if the message is for the control thread.
    pub(in crate::worker) fn handle_untagged(
        &mut self,
        stream: &mut Stream<'_>,
        qn: Qn,
        data: Vec<u8>,
        rsvd_ulp: [u8; 5],
        now: Instant,
    ) -> Option<Vec<u8>> {
        if self.take_load_answer(stream, qn, now) {
            self.tables.recycle(data);
            return None;
        }
        let service = stream.conn.service;
        if !matches!(service, ServiceKind::Echo | ServiceKind::Sink) || qn == ERROR_QUEUE {
            return Some(data);
        }
        self.serve_message(stream, qn, || {
            let source = Source::Bytes(Arc::from(data.as_slice()));
            // docs/protocol.md §4: answers are sent on the message queue.
            let (to, cookie) = (MESSAGE_QUEUE, Cookie::SERVICE);
            Answer::Ddp(qn, Message::Untagged { qn: to, rsvd_ulp, source, cookie })
        });
        self.tables.recycle(data);
        None
    }

    /// Serves a message of an Echo or Sink stream. `answer` is called only for Echo.
    fn serve_message(&mut self, stream: &mut Stream<'_>, qn: Qn, answer: impl FnOnce() -> Answer) {
        if stream.conn.service == ServiceKind::Echo {
            stream.conn.transient.answers.push_back(answer());
            return self.post_answers(stream);
        }
        stream.post_buffers(qn, 1);
        self.make_ready(stream);
    }

    /// Handles the peer's close of its direction. A stream with the service `Echo` or `Sink` is closed once its answers
    /// are posted (RFC 5041 §6.2.1). The control thread closes other streams.
    #[cold]
    pub(in crate::worker) fn handle_peer_close(&mut self, stream: &mut Stream<'_>, now: Instant) {
        if !matches!(stream.conn.service, ServiceKind::Echo | ServiceKind::Sink) {
            return;
        }
        if !stream.conn.transient.answers.is_empty() {
            stream.conn.transient.closing = true;
        } else if let Some(mut lower) = stream.lower() {
            lower.shutdown(now);
        }
        self.make_ready(stream);
    }

    /// Handles the acknowledgement of the oldest `answers` answers of an Echo stream: reposts the receive buffers
    /// withheld for them.
    pub(in crate::worker) fn acknowledge_answers(&mut self, stream: &mut Stream<'_>, answers: u32) {
        for _ in 0..answers {
            let Some(pending) = stream.conn.transient.get_mut() else { break };
            pending.echo_count.remove_answer();
            if let Some(qn) = pending.withheld.pop_front() {
                stream.post_buffers(qn, 1);
            }
        }
        self.post_answers(stream);
    }

    /// Posts the answers that the stream accepts now.
    pub(in crate::worker) fn post_answers(&mut self, stream: &mut Stream<'_>) {
        let Stream { conn, association, .. } = stream;
        let Conn { lower, transient: pending, .. } = &mut **conn;
        if let Some(mut lower) = lower.as_mut(association.as_deref_mut())
            && let Some(pending) = pending.get_mut()
        {
            while let Some(answer) = pending.answers.pop_front() {
                let (qn, posted) = match answer.clone() {
                    Answer::Rdmap(request) => (MESSAGE_QUEUE, lower.post_rdmap(request)),
                    Answer::Ddp(qn, message) => (qn, lower.post(message)),
                };
                match posted {
                    Ok(()) => {
                        if pending.echo_count.add_answer() {
                            // A stream that is ending refuses buffers, which is harmless.
                            let _ = lower.post_buffers(qn, 1);
                        } else {
                            pending.withheld.push_back(qn);
                        }
                    }
                    Err(PostError::Full) => {
                        pending.answers.push_front(answer);
                        break;
                    }
                    // The stream is ending: its answers are no longer needed.
                    Err(_) => pending.answers.clear(),
                }
            }
            if pending.closing && pending.answers.is_empty() {
                pending.closing = false;
                lower.shutdown(self.now);
            }
        }
        self.make_ready(stream);
    }
}

impl Service {
    /// Disables the tagged delivery events of bare DDP for Echo and Sink, which do not use them.
    pub(in crate::worker) fn configure(self, ulp: &mut UlpConfig) {
        if let (Service::Echo | Service::Sink, UlpConfig::Ddp(config)) = (self, ulp) {
            config.tagged_events = false;
        }
    }
}
