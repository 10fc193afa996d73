//! Actions of the endpoint's owner: posts, receive buffers, pauses, removal of a region, path MSS, and ends of the
//! stream.

use std::sync::Arc;

use ddp::rdmap::{AtomicOp, WorkRequest};
use ddp::{Cookie, Message, Qn, Source, Stag, TaggedOffset};
use tcp_lite::endpoint::Context;

use super::{End, OPEN, OWN, SECRET, SINK};

impl End {
    pub(super) fn post(&mut self, parameter: u8, bytes: &[u8]) {
        let source = Source::Bytes(Arc::from(bytes));
        let (stag, to, cookie) = (Stag(1), TaggedOffset(0), Cookie::user(1));
        let read = (SINK, TaggedOffset(16 * (self.reads % 16)));
        // A post may be refused: before Full Operation, after the end, for the other ULP, or with full queues.
        let _ = match parameter & 7 {
            0 => self.endpoint.post(Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie }),
            1 => {
                let rsvd_ulp = [0; 5];
                self.endpoint.post(Message::Untagged { qn: Qn(0), rsvd_ulp, source, cookie })
            }
            2 => {
                let (solicited, invalidate) = (false, None);
                self.endpoint.post_rdmap(WorkRequest::Send {
                    source,
                    solicited,
                    invalidate,
                    cookie,
                })
            }
            3 => self.endpoint.post_rdmap(WorkRequest::Write { stag, to, source, cookie }),
            4 => {
                self.reads += 1;
                self.endpoint.post_rdmap(WorkRequest::Read {
                    sink_stag: read.0,
                    sink_to: read.1,
                    source_stag: stag,
                    source_to: to,
                    len: 16,
                    cookie,
                })
            }
            _ => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                self.endpoint.post_rdmap(WorkRequest::Atomic { op, stag, to, cookie })
            }
        };
        self.poll();
    }

    pub(super) fn act_as_owner(&mut self, parameter: u8, value: u8) {
        let End { endpoint, stags, pool, hold, .. } = self;
        let cx = &mut Context { stags, buffers: pool, hold };
        match parameter & 7 {
            0 => {
                let _ = endpoint.post_buffers(Qn(u32::from(value & 1)), u32::from(value >> 1 & 3));
            }
            1 => {
                self.paused = value & 1 != 0;
                endpoint.pause(self.paused.then_some(u32::from(value >> 1)));
            }
            2 => endpoint.shutdown(self.now),
            3 => {
                let stag = [OPEN, OWN, SINK, SECRET][usize::from(value) % 4];
                stags.remove(stag);
                let cx = &mut Context { stags, buffers: pool, hold };
                endpoint.on_stag_revoked(self.now, stag, cx);
            }
            4 => endpoint.set_path_mss(self.now, u16::from(value) * 8),
            5 => endpoint.shrink(self.now),
            6 => endpoint.fail(self.now, cx),
            _ => endpoint.set_peer_ready(),
        }
        self.poll();
    }
}
