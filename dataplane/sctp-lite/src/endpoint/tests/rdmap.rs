//! RDMAP over SCTP: all operations, and several sessions of one association, over a path that loses and reorders
//! packets.

use super::host::{REGION, STAG};
use super::net::{Fate, Net, Node, Setup, Side};
use crate::endpoint::*;
use base::ErrorNumbers;
use core::time::Duration;
use ddp::rdmap::{self, AtomicOp, Event as RdmapEvent, Outcome, WorkRequest};
use ddp::{Cookie, RegionMemory, Source, Stag, StagEntry, TaggedOffset, VecMemory};
use wire::sctp::chunk_type;

fn setup() -> Setup {
    let ulp = rdmap::Config { ird: 4, ord: 4, recv_size: 16 * 1024, ..rdmap::Config::default() };
    Setup { ulp: ulp.into(), ..Setup::default() }
}

fn lossy(net: &mut Net) {
    net.set_fate(|_, n, _| match n % 17 {
        5 => Fate::Drop,
        11 => Fate::Delay(Duration::from_millis(3)),
        13 => Fate::Duplicate,
        _ => Fate::Pass,
    });
}

fn send(bytes: &[u8], invalidate: Option<Stag>, cookie: u64) -> WorkRequest<VecMemory> {
    let source = Source::Bytes(bytes.into());
    WorkRequest::Send { source, solicited: true, invalidate, cookie: Cookie::user(cookie) }
}

fn write(stag: Stag, to: u64, bytes: &[u8], cookie: u64) -> WorkRequest<VecMemory> {
    let source = Source::Bytes(bytes.into());
    WorkRequest::Write { stag, to: TaggedOffset(to), source, cookie: Cookie::user(cookie) }
}

fn read(from: Stag, at: u64, to: u64, len: u32, cookie: u64) -> WorkRequest<VecMemory> {
    let (sink_stag, sink_to, source_to) = (STAG, TaggedOffset(to), TaggedOffset(at));
    WorkRequest::Read {
        sink_stag,
        sink_to,
        source_stag: from,
        source_to,
        len,
        cookie: Cookie::user(cookie),
    }
}

fn rdmap_events(node: &Node, session: SessionId) -> Vec<RdmapEvent> {
    let rdmap_event = |event: &SessionEvent| match event {
        SessionEvent::Rdmap(event) => Some(event.clone()),
        _ => None,
    };
    node.events_of(session).filter_map(rdmap_event).collect()
}

fn completed(node: &Node, session: SessionId) -> Vec<(u64, Outcome)> {
    let completion = |event: RdmapEvent| match event {
        RdmapEvent::Completed { cookie, outcome } => {
            Some((cookie.number().expect("a number"), outcome))
        }
        _ => None,
    };
    rdmap_events(node, session).into_iter().filter_map(completion).collect()
}

/// All operations complete in order over a path that loses, reorders and duplicates packets.
#[test]
fn operations_complete_in_order() {
    let mut net = Net::established(&setup());
    lossy(&mut net);
    let (session, there) = (net.a.session(), net.b.session());
    let bytes: Vec<u8> = (0..60_000_u32).map(|i| (i % 251) as u8).collect();
    net.b.memory.write(100_000, &bytes);
    let spare = Stag(0x0909_0900);
    let entry = StagEntry {
        stag: spare,
        pd: super::host::PD,
        // Only an STag bound to the stream can be invalidated by the peer.
        stream: Some(StreamId(1)),
        base_to: TaggedOffset(0),
        len: 64,
        access: ddp::Access::REMOTE_WRITE,
        memory: net.b.memory.clone(),
        memory_offset: 0,
    };
    net.b.stags.insert(entry).expect("a new STag");
    let ep = net.a.ep();
    let immediate =
        WorkRequest::Immediate { data: *b"immediat", solicited: false, cookie: Cookie::user(4) };
    let (to, op) = (TaggedOffset(800_000), AtomicOp::FetchAdd { add: 5, mask: 0 });
    for request in [
        write(STAG, 5, &bytes, 1),
        read(STAG, 100_000, 300_000, 60_000, 2),
        WorkRequest::Atomic { op, stag: STAG, to, cookie: Cookie::user(3) },
        immediate,
        send(b"done", Some(spare), 5),
    ] {
        ep.post_rdmap(session, request).expect("room");
    }
    net.run_until(|net| completed(&net.a, session).len() == 5);
    assert_eq!(
        completed(&net.a, session),
        [
            (1, Outcome::Written),
            (2, Outcome::Read { len: 60_000 }),
            (3, Outcome::Atomic { original: 0 }),
            (4, Outcome::Sent),
            (5, Outcome::Sent),
        ]
    );
    assert_eq!(net.b.memory.to_vec()[5..60_005], bytes);
    assert_eq!(net.a.memory.to_vec()[300_000..360_000], bytes);
    assert_eq!(net.b.memory.to_vec()[800_000..800_008], 5_u64.to_ne_bytes());
    let data = b"done".to_vec();
    let received = RdmapEvent::Received { data, solicited: true, invalidated: Some(spare) };
    assert!(rdmap_events(&net.b, there).contains(&received), "{:?}", rdmap_events(&net.b, there));
    let now = net.now;
    net.a.ep().shutdown_session(now, session);
    net.run();
    assert_eq!(net.a.reason(session), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.reason(there), Some(CloseReason::PeerShutdown));
    net.a.assert_nothing_left();
    net.b.assert_nothing_left();
}

#[test]
fn shutdown_waits_for_reads() {
    let mut net = Net::established(&setup());
    let (session, now) = (net.a.session(), net.now);
    net.b.memory.write(0, &[9; 50_000]);
    net.a.ep().post_rdmap(session, read(STAG, 0, 500_000, 50_000, 1)).expect("room");
    net.a.ep().shutdown_session(now, session);
    let late = net.a.ep().post_rdmap(session, send(b"late", None, 2));
    assert_eq!(late, Err(ddp::PostError::Closed));
    net.run();
    assert_eq!(completed(&net.a, session), [(1, Outcome::Read { len: 50_000 })]);
    assert_eq!(net.a.memory.to_vec()[500_000..550_000], [9; 50_000]);
    assert_eq!(net.a.reason(session), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.reason(net.b.session()), Some(CloseReason::PeerShutdown));
}

/// RFC 5040 §4.8: the STag of a Read is invalidated while its response is being sent. The session ends with an RDMAP
/// Terminate.
#[test]
fn revoked_stag_terminates_the_read() {
    let mut net = Net::established(&setup());
    let (session, there) = (net.a.session(), net.b.session());
    net.a.ep().post_rdmap(session, read(STAG, 0, 500_000, 400_000, 1)).expect("room");
    net.run_for(Duration::from_millis(1));
    let now = net.now;
    assert!(
        !net.b.with_endpoint(|ep, cx| ep.on_stag_revoked(now, there, Stag(9), cx)),
        "no Read is served from it"
    );
    assert!(net.b.with_endpoint(|ep, cx| ep.on_stag_revoked(now, there, STAG, cx)));
    net.run_for(Duration::from_secs(30));
    let (here, there) = (net.a.reason(session), net.b.reason(there));
    let numbers = |reason: Option<CloseReason>| reason.expect("an ended session").numbers();
    assert_eq!([here, there].map(numbers), [Some(ErrorNumbers::new(0, 1, 0)); 2]);
}

/// RFC 5040 §7, RFC 5043 §11.3: the session with the error reports it to the peer in an RDMAP Terminate with layer,
/// type and code. Another session of the association continues.
#[test]
fn errors_reach_the_peer_and_no_other_session() {
    type InvalidPost = fn(&mut Endpoint<VecMemory>, SessionId) -> Result<(), ddp::PostError>;
    let cases: [(InvalidPost, ErrorNumbers); 4] = [
        (|ep, id| ep.post_rdmap(id, write(Stag(9), 0, b"x", 1)), ErrorNumbers::new(1, 1, 0)),
        (
            |ep, id| ep.post_rdmap(id, write(STAG, REGION as u64, b"x", 1)),
            ErrorNumbers::new(1, 1, 1),
        ),
        (|ep, id| ep.post_rdmap(id, read(Stag(9), 0, 0, 8, 1)), ErrorNumbers::new(0, 1, 0)),
        (|ep, id| ep.post_rdmap(id, send(&[1; 20_000], None, 1)), ErrorNumbers::new(1, 2, 5)),
    ];
    for (wrong, numbers) in cases {
        let mut net = Net::established(&setup());
        lossy(&mut net);
        let (first, now) = (net.a.session(), net.now);
        let second = net.a.open(now, b"");
        net.run_until(|net| net.a.is_established(second) && net.b.established() == 2);
        wrong(net.a.ep(), first).expect("room");
        net.a.ep().post_rdmap(second, write(STAG, 64, b"alive", 7)).expect("room");
        net.run_until(|net| net.a.reason(first).is_some());
        let reason = net.a.reason(first).expect("an ended session");
        assert_eq!((reason.name(), reason.numbers()), ("terminated_by_peer", Some(numbers)));
        net.run_for(Duration::from_secs(30));
        let peer_reason = net.b.reason(net.b.session()).expect("an ended session");
        assert_eq!(peer_reason.numbers(), Some(numbers), "{peer_reason}");
        assert_eq!(completed(&net.a, second), [(7, Outcome::Written)]);
        assert_eq!(net.b.memory.to_vec()[64..69], *b"alive");
        assert!(net.a.is_up() && !net.has_sent(Side::B, chunk_type::ABORT));
    }
}

#[test]
fn sessions_share_an_association() {
    let mut net = Net::established(&setup());
    lossy(&mut net);
    let now = net.now;
    let mut sessions = vec![net.a.session()];
    sessions.extend((0..11).map(|_| net.a.open(now, b"")));
    net.run_until(|net| net.a.established() == 12);
    let bytes: Vec<u8> = (0..30_000_u32).map(|i| (i % 253) as u8).collect();
    net.b.memory.write(600_000, &bytes);
    for (i, session) in sessions.iter().enumerate() {
        let at = i as u64 * 40_000;
        net.a.ep().post_rdmap(*session, write(STAG, at, &bytes, 1)).expect("room");
        net.a.ep().post_rdmap(*session, read(STAG, 600_000, at, 30_000, 2)).expect("room");
    }
    let all = |net: &Net| sessions.iter().all(|id| completed(&net.a, *id).len() == 2);
    net.run_until(all);
    assert!(all(&net));
    for i in 0..sessions.len() {
        assert_eq!(net.b.memory.to_vec()[i * 40_000..][..30_000], bytes);
        assert_eq!(net.a.memory.to_vec()[i * 40_000..][..30_000], bytes);
    }
    let now = net.now;
    net.a.ep().shutdown(now);
    net.run();
    assert_eq!(
        (net.a.down_reason(), net.b.down_reason()),
        (Some(CloseReason::LocalShutdown), Some(CloseReason::PeerShutdown),)
    );
    net.a.assert_nothing_left();
    net.b.assert_nothing_left();
}
