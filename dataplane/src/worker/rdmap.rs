//! RDMAP of one stream: what is told to the control thread, and the services that the worker does by
//! itself, without a round trip to it.
//!
//! A service gives the buffer of a message back when it is done with it: when a Sink has counted it, or
//! when the answer of an Echo is posted. Answers that find no room wait here, at most as many as there
//! are buffers.

use std::sync::Arc;

use ddp::rdmap::{Event as Heard, WorkRequest};
use ddp::{MESSAGE_QUEUE, PostError, Source};

use super::Core;
use super::conn::Conn;
use super::report::NO_TICKET;
use crate::api::{Event, PostFailure, Service, Ticket};
use crate::io::PortIo;
use crate::memory::Memory;

impl<Io: PortIo> Core<Io> {
    /// One event of a stream's RDMAP.
    pub(super) fn rdmap(&mut self, slot: u32, event: Heard) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let (stream, service) = (conn.id, conn.service);
        let event = match event {
            Heard::Received { data, solicited, invalidated } => match service {
                Service::Control | Service::Region => {
                    Event::Received { stream, data, solicited, invalidated }
                }
                Service::Echo | Service::Sink => {
                    let source = Source::Octets(Arc::from(data));
                    let answer = WorkRequest::Send {
                        source,
                        solicited,
                        invalidate: None,
                        cookie: NO_TICKET,
                    };
                    self.serve_message(slot, answer);
                    match invalidated {
                        Some(stag) => Event::Invalidated { stream, stag },
                        None => return,
                    }
                }
            },
            Heard::Immediate { data, solicited } => match service {
                Service::Control | Service::Region => Event::Immediate { stream, data, solicited },
                Service::Echo | Service::Sink => {
                    let answer = WorkRequest::Immediate { data, solicited, cookie: NO_TICKET };
                    return self.serve_message(slot, answer);
                }
            },
            Heard::WriteDelivered { stag, to, len } => match service {
                // Without octets nobody has looked at its STag.
                Service::Region if len > 0 => {
                    Event::TaggedDelivered { stream, stag, to, len, rsvd_ulp: 0 }
                }
                _ => return,
            },
            Heard::AtomicServed { stag, to } => match service {
                Service::Region => Event::TaggedDelivered { stream, stag, to, len: 8, rsvd_ulp: 0 },
                _ => return,
            },
            Heard::ReadServed { .. } | Heard::ReadyToReceive => return,
            Heard::Completed { cookie: NO_TICKET, .. } | Heard::Flushed { cookie: NO_TICKET } => {
                return self.post_answers(slot);
            }
            Heard::Completed { cookie, outcome } => {
                self.sent_from(slot, Ticket(cookie));
                Event::Completed { stream, ticket: Ticket(cookie), outcome }
            }
            Heard::Flushed { cookie } => {
                self.sent_from(slot, Ticket(cookie));
                let reason = PostFailure::Flushed;
                Event::PostFailed { stream, ticket: Ticket(cookie), reason }
            }
            Heard::Error(error) => Event::RdmapError { stream, error },
            Heard::Terminated { by_peer, terminate } => {
                Event::Terminated { stream, by_peer, terminate }
            }
            Heard::PeerClosed { incomplete } => Event::PeerClosed { stream, incomplete },
            // The endpoint says itself why it closed.
            Heard::Failed(_) => return,
        };
        self.events.push(event, &self.counters);
    }

    /// A message of a stream that the worker serves itself.
    fn serve_message(&mut self, slot: u32, answer: WorkRequest<Memory>) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.service == Service::Echo {
            conn.answers.push_back(answer);
            return self.post_answers(slot);
        }
        repost(conn);
        self.touch(slot);
    }

    /// Posts the answers of an Echo that the stream takes now.
    fn post_answers(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        while let Some(answer) = conn.answers.pop_front() {
            match conn.endpoint.post_rdmap(answer.clone()) {
                Ok(()) => repost(conn),
                Err(PostError::Full) => {
                    conn.answers.push_front(answer);
                    break;
                }
                // The stream is ending.
                Err(_) => conn.answers.clear(),
            }
        }
        self.touch(slot);
    }
}

/// Gives the buffer of a message back.
fn repost(conn: &mut Conn) {
    // A stream that is ending needs no buffers any more.
    let _ = conn.endpoint.post_buffers(MESSAGE_QUEUE, 1);
}
