//! Tests that bare DDP and RDMAP behave alike towards an LLP.

use super::*;
use crate::lifecycle::FinalError;
use crate::message::Source;
use crate::stag::{Access, StagEntry, StagTable};
use crate::{Msn, QueueConfig, StreamConfig, TaggedOffset, VecMemory, VersionPolicy};

const PD: PdId = PdId(1);
const STAG: Stag = Stag(0x0102_0304);
const SINK: Stag = Stag(0x0a00_0000);
const KINDS: [UlpKind; 2] = [UlpKind::Ddp, UlpKind::Rdmap];

struct End {
    ulp: Ulp<VecMemory>,
    stags: StagTable<VecMemory>,
    pool: BufferPool,
    memory: VecMemory,
    key: u64,
}

fn config(kind: UlpKind) -> UlpConfig {
    let queue = QueueConfig { qn: MESSAGE_QUEUE, buffers: 4, buffer_size: 256 };
    match kind {
        UlpKind::Ddp => StreamConfig {
            queues: vec![queue, QueueConfig::error_queue()],
            version: VersionPolicy::V1,
            ..StreamConfig::default()
        }
        .into(),
        UlpKind::Rdmap => rdmap::Config {
            ord: 1,
            recv_buffers: 4,
            recv_size: 256,
            version: VersionPolicy::V1,
            ..rdmap::Config::default()
        }
        .into(),
    }
}

impl End {
    fn new(kind: UlpKind) -> End {
        let memory = VecMemory::new(4096);
        let mut stags = StagTable::new();
        for (stag, access) in
            [(STAG, Access::REMOTE_READ | Access::REMOTE_WRITE), (SINK, Access::NONE)]
        {
            let (base_to, memory) = (TaggedOffset(0), memory.clone());
            let entry = StagEntry {
                stag,
                pd: PD,
                stream: None,
                base_to,
                len: 4096,
                access,
                memory,
                memory_offset: 0,
            };
            stags.insert(entry).unwrap();
        }
        let mut ulp = Ulp::new(StreamId(9), PdId(0), config(kind));
        ulp.set_pd(PD);
        End { ulp, stags, pool: BufferPool::new(1 << 20), memory, key: 0 }
    }

    fn input(&mut self, segment: &[u8]) -> Disposition {
        let key = OrderKey(self.key);
        self.key += 1;
        let cx = Context { stags: &self.stags, buffers: &mut self.pool };
        self.ulp.sink(cx).ulpdu(key, Ulpdu::new(&[segment]))
    }

    fn post(&mut self, data: &[u8], cookie: u64) -> Result<(), PostError> {
        let (source, cookie) = (Source::Bytes(data.into()), Cookie::user(cookie));
        match self.ulp.kind() {
            UlpKind::Ddp => self.ulp.post(Message::Untagged {
                qn: MESSAGE_QUEUE,
                rsvd_ulp: [0; 5],
                source,
                cookie,
            }),
            UlpKind::Rdmap => self.ulp.post_rdmap(WorkRequest::send(source, cookie)),
        }
    }

    fn next_segment(&mut self) -> (Vec<u8>, UlpduToken, usize) {
        let announced = self.ulp.next_len(1500);
        let out = self.ulp.next(1500).unwrap();
        assert_eq!(announced, Some(out.len()));
        let reframed = self.ulp.reframe(out.token, out.payload_len);
        assert_eq!((reframed.header, reframed.payload_len), (out.header, out.payload_len));
        let mut segment = out.header.bytes().to_vec();
        segment.resize(out.len(), 0);
        self.ulp.read_pieces(out.token, 0, core::iter::once(&mut segment[out.header.len()..]));
        (segment, out.token, out.payload_len)
    }
}

fn received(kind: UlpKind, data: &[u8]) -> UlpEvent {
    let data = data.to_vec();
    match kind {
        UlpKind::Ddp => UlpEvent::Ddp(Event::UntaggedDelivered {
            qn: MESSAGE_QUEUE,
            msn: Msn(1),
            data,
            rsvd_ulp: [0; 5],
        }),
        UlpKind::Rdmap => {
            UlpEvent::Rdmap(rdmap::Event::Received { data, solicited: false, invalidated: None })
        }
    }
}

#[test]
fn message_is_delivered_to_the_other_end() {
    for kind in KINDS {
        let (mut a, mut b) = (End::new(kind), End::new(kind));
        assert_eq!(
            (a.ulp.kind(), UlpKind::from_config(&config(kind)), kind.name()),
            match kind {
                UlpKind::Ddp => (kind, kind, "ddp"),
                UlpKind::Rdmap => (kind, kind, "rdmap"),
            }
        );
        assert_eq!((a.ulp.id(), a.ulp.version()), (StreamId(9), Some(DdpVersion::V1)));
        assert_eq!(a.ulp.as_ddp_mut().is_some(), kind == UlpKind::Ddp);
        assert_eq!(a.ulp.rdmap_counters().is_some(), kind == UlpKind::Rdmap);
        let idle = |ulp: &Ulp<VecMemory>| {
            (
                ulp.next_len(1500),
                ulp.has_unsent(),
                ulp.outstanding(),
                ulp.pending_events(),
                ulp.next_is_stable(),
            )
        };
        assert_eq!(idle(&a.ulp), (None, false, 0, 0, true), "{kind:?}");
        assert!(a.ulp.next(1500).is_none());

        a.post(b"hello", 1).unwrap();
        assert_eq!(idle(&a.ulp), (Some(18 + 5), true, 1, 0, true), "{kind:?}");
        let (segment, token, len) = a.next_segment();
        assert_eq!((a.ulp.has_unsent(), a.ulp.outstanding()), (false, 1), "{kind:?}");
        assert_eq!(b.input(&segment), Disposition::Placed(5));
        assert_eq!(
            (b.ulp.pending_events(), b.ulp.counters().untagged_delivered),
            (1, 1),
            "{kind:?}"
        );
        assert_eq!(b.ulp.poll_event(), Some(received(kind, b"hello")));
        assert_eq!((b.ulp.pending_events(), b.ulp.poll_event()), (0, None));
        a.ulp.on_acknowledged(token, len);
        assert_eq!(a.ulp.outstanding(), 0, "{kind:?}");
        assert!(a.ulp.poll_event().is_some(), "{kind:?}: its completion");
        b.ulp.release(&mut b.pool);
        assert_eq!(b.pool.in_use(), 0);
    }
}

#[test]
fn changeable_source_is_reported_unstable() {
    for kind in KINDS {
        let mut a = End::new(kind);
        let source = Source::Region { memory: a.memory.clone(), offset: 0, len: 7 };
        let cookie = Cookie::user(1);
        let (stag, to) = (STAG, TaggedOffset(0));
        match kind {
            UlpKind::Ddp => a.ulp.post(Message::Tagged { stag, to, rsvd_ulp: 0, source, cookie }),
            UlpKind::Rdmap => a.ulp.post_rdmap(WorkRequest::Write { stag, to, source, cookie }),
        }
        .unwrap();
        assert!(!a.ulp.next_is_stable(), "{kind:?}");
        assert!(!a.ulp.next(1500).unwrap().stable);
    }
}

#[test]
fn posts_for_the_other_ulp_are_refused() {
    let (mut ddp, mut rdmap) = (End::new(UlpKind::Ddp), End::new(UlpKind::Rdmap));
    let bytes = || Source::Bytes(b"x".as_slice().into());
    let cookie = Cookie::user(1);
    assert_eq!(ddp.ulp.post_rdmap(WorkRequest::send(bytes(), cookie)), Err(PostError::OtherUlp));
    let message =
        || Message::Untagged { qn: MESSAGE_QUEUE, rsvd_ulp: [0; 5], source: bytes(), cookie };
    assert_eq!(rdmap.ulp.post(message()), Err(PostError::OtherUlp));
    let borrowed = || {
        let (rsvd_ulp, source) = ([0; 5], Source::Bytes(b"x".as_slice().into()));
        Message::Untagged { qn: MESSAGE_QUEUE, rsvd_ulp, source, cookie }
    };
    assert_eq!(rdmap.ulp.post_borrowed(borrowed()), Err(PostError::OtherUlp));
    assert_eq!((ddp.ulp.post_borrowed(borrowed()), ddp.ulp.outstanding()), (Ok(()), 1));
    for end in [&mut ddp, &mut rdmap] {
        assert_eq!(end.ulp.post_buffers(MESSAGE_QUEUE, 1), Ok(()));
        assert_eq!(end.ulp.post_buffers(Qn(77), 1), Err(PostError::NoSuchQueue(77)));
    }
}

#[test]
fn read_awaits_response_until_its_stag_is_revoked() {
    let (mut a, mut b) = (End::new(UlpKind::Rdmap), End::new(UlpKind::Rdmap));
    assert!(!a.ulp.awaits_response());
    let request = WorkRequest::Read {
        sink_stag: SINK,
        sink_to: TaggedOffset(0),
        source_stag: STAG,
        source_to: TaggedOffset(0),
        len: 8,
        cookie: Cookie::user(1),
    };
    a.ulp.post_rdmap(request).unwrap();
    let (segment, ..) = a.next_segment();
    assert!(a.ulp.awaits_response());
    let _ = b.input(&segment);
    assert!(!b.ulp.awaits_response());
    assert!(!b.ulp.on_stag_revoked(SINK) && b.ulp.error().is_none());
    assert!(b.ulp.on_stag_revoked(STAG) && b.ulp.error().is_some());
    let mut ddp = End::new(UlpKind::Ddp);
    assert!(!ddp.ulp.awaits_response() && !ddp.ulp.on_stag_revoked(STAG));
}

// RFC 5041 §7.1, RFC 5040 §4.8: an error in a segment is reported to the peer.
#[test]
fn error_is_reported_at_both_ends() {
    for kind in KINDS {
        let (mut a, mut b) = (End::new(kind), End::new(kind));
        a.post(b"x", 1).unwrap();
        let (mut segment, ..) = a.next_segment();
        segment[0] |= 3;
        let _ = b.input(&segment);
        assert!(b.ulp.error().is_some(), "{kind:?}");
        assert_eq!(b.ulp.terminated_by_peer(), None);
        FinalError::Ulp.post(&mut b.ulp, true);
        assert!(b.ulp.has_unsent(), "{kind:?}");
        let (last, ..) = b.next_segment();
        let _ = a.input(&last);
        assert_eq!(a.ulp.terminated_by_peer().is_some(), kind == UlpKind::Rdmap);
        assert!(a.ulp.pending_events() > 0, "{kind:?}");
    }
}

#[test]
fn close_and_failure_are_final_for_both_ulps() {
    for kind in KINDS {
        let mut a = End::new(kind);
        assert!(!a.ulp.is_closed() && a.ulp.failure().is_none());
        a.post(b"x", 1).unwrap();
        a.ulp.close();
        assert!(
            a.ulp.is_closed() && a.ulp.has_unsent(),
            "{kind:?}: posted messages are still sent"
        );
        assert_eq!(a.post(b"y", 2), Err(PostError::Closed));
        a.ulp.close_now();
        assert!(!a.ulp.has_unsent(), "{kind:?}");
        a.ulp.fail(Failure::LlpLost);
        assert_eq!(a.ulp.failure(), Some(Failure::LlpLost), "{kind:?}");

        let mut b = End::new(kind);
        b.ulp.on_peer_closed();
        assert_eq!(b.ulp.pending_events(), 1, "{kind:?}");
        assert!(b.ulp.poll_event().is_some());
    }
}
