//! RDMAP streams over TCP: operations, graceful close, and errors that a Terminate reports.

use super::enhanced::{rdmap, revision_two_config};
use super::net::{Fate, Net, Side};
use super::peers::*;
use crate::endpoint::*;
use crate::mpa::{self, Peer};
use base::ErrorNumbers;
use ddp::rdmap::{AtomicOp, ErrorCode, Event as RdmapEvent, Outcome};
use ddp::{Cookie, RegionMemory, Source, TaggedOffset, VecMemory};

fn config(markers: bool) -> EndpointConfig {
    let mut config = revision_two_config(None, Peer::Standard);
    (config.mpa.markers, config.mpa.crc) = (markers, true);
    config
}

fn pair(markers: bool) -> Net<Node, Node> {
    let a = Node::initiator_with_ulp(config(markers), rdmap(4, 4), b"");
    let mut net = Net::new(a, Node::responder_with_ulp(config(markers), rdmap(4, 4)));
    net.run_until(|net| net.a.is_established() && net.b.is_established());
    net
}

fn send(bytes: &[u8], cookie: u64) -> WorkRequest<VecMemory> {
    let source = Source::Bytes(bytes.into());
    WorkRequest::Send { source, solicited: true, invalidate: None, cookie: Cookie::user(cookie) }
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

/// Returns the outcomes of a node's operations, in order of completion.
fn outcomes(node: &Node) -> Vec<(u64, Outcome)> {
    let outcome_of = |event: RdmapEvent| match event {
        RdmapEvent::Completed { cookie, outcome } => {
            Some((cookie.number().expect("a number"), outcome))
        }
        _ => None,
    };
    node.rdmap_events().into_iter().filter_map(outcome_of).collect()
}

/// Runs the streams to their end, which must be a Terminate from `b`. Returns the error numbers at `b`, which found the
/// error, and at `a`.
fn terminate_numbers(mut net: Net<Node, Node>) -> [ErrorNumbers; 2] {
    net.run();
    let numbers = |node: &Node| node.reason().and_then(|reason| reason.numbers()).expect("numbers");
    assert_eq!(net.a.reason().map(|reason| reason.name()), Some("terminated_by_peer"));
    assert!(!net.has_reset(Side::A) && !net.has_reset(Side::B));
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
    [numbers(&net.b), numbers(&net.a)]
}

/// Write, Read, atomic, Immediate and Send complete in order over a path that loses and reorders segments.
#[test]
fn operations_complete_in_order() {
    for markers in [false, true] {
        let mut net = pair(markers).with_fate(|_, n, _| match n % 17 {
            5 => Fate::Drop,
            11 => Fate::Delay(core::time::Duration::from_millis(3)),
            _ => Fate::Pass,
        });
        let bytes: Vec<u8> = (0..60_000_u32).map(|i| (i % 251) as u8).collect();
        net.b.memory.write(100_000, &bytes);
        let ep = net.a.ep();
        ep.post_rdmap(write(STAG, 5, &bytes, 1)).expect("room");
        ep.post_rdmap(read(STAG, 100_000, 300_000, 60_000, 2)).expect("room");
        let (to, op) = (TaggedOffset(800_000), AtomicOp::FetchAdd { add: 5, mask: 0 });
        ep.post_rdmap(WorkRequest::Atomic { op, stag: STAG, to, cookie: Cookie::user(3) })
            .expect("room");
        let immediate = WorkRequest::Immediate {
            data: *b"immediat",
            solicited: false,
            cookie: Cookie::user(4),
        };
        ep.post_rdmap(immediate).expect("room");
        ep.post_rdmap(send(b"done", 5)).expect("room");
        net.run_until(|net| outcomes(&net.a).len() == 5);
        assert_eq!(
            outcomes(&net.a),
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
        let received = RdmapEvent::Received { data, solicited: true, invalidated: None };
        assert!(net.b.rdmap_events().contains(&received));
        assert_eq!(net.b.stats().rdmap.reads_received, 1);
        net.a.ep().shutdown(net.now);
        net.run();
        assert_closed_by_a(&net);
    }
}

/// A graceful close waits for the responses to Reads posted before it.
#[test]
fn shutdown_waits_for_reads() {
    let mut net = pair(true);
    net.b.memory.write(0, &[9; 50_000]);
    let now = net.now;
    net.a.ep().post_rdmap(read(STAG, 0, 500_000, 50_000, 1)).expect("room");
    net.a.ep().shutdown(now);
    let late = net.a.ep().post_rdmap(send(b"late", 2));
    assert_eq!(late, Err(PostError::Closed));
    net.run();
    assert_eq!(outcomes(&net.a), [(1, Outcome::Read { len: 50_000 })]);
    assert_eq!(net.a.memory.to_vec()[500_000..550_000], [9; 50_000]);
    assert_eq!(net.a.reason(), Some(CloseReason::LocalShutdown));
    assert_eq!(net.b.reason(), Some(CloseReason::PeerShutdown));
}

#[test]
fn message_of_the_other_protocol_is_refused() {
    let mut net = pair(true);
    let source = Source::Bytes(b"x"[..].into());
    let message =
        Message::Untagged { qn: Qn(0), rsvd_ulp: [0; 5], source, cookie: Cookie::user(0) };
    assert_eq!(net.a.ep().post(message), Err(PostError::OtherUlp));
    assert_eq!(net.a.ep().post_buffers(Qn(1), 1), Err(PostError::NoSuchQueue(1)));
    let mut plain = established(EndpointConfig::default(), EndpointConfig::default());
    assert_eq!(plain.a.ep().post_rdmap(send(b"x", 1)), Err(PostError::OtherUlp));
}

/// RFC 5040 §7: both ends report the error's layer, type and code.
#[test]
fn rdmap_error_reaches_peer_as_terminate() {
    type InvalidOperation = fn(&mut Node);
    let cases: [(InvalidOperation, ErrorNumbers); 5] = [
        (
            |a| a.ep().post_rdmap(write(Stag(9), 0, b"x", 1)).expect("room"),
            ErrorNumbers::new(1, 1, 0),
        ),
        (
            |a| a.ep().post_rdmap(write(STAG, REGION as u64, b"x", 1)).expect("room"),
            ErrorNumbers::new(1, 1, 1),
        ),
        (
            |a| a.ep().post_rdmap(read(Stag(9), 0, 0, 8, 1)).expect("room"),
            ErrorNumbers::new(0, 1, 0),
        ),
        (
            |a| a.ep().post_rdmap(read(STAG, REGION as u64, 0, 8, 1)).expect("room"),
            ErrorNumbers::new(0, 1, 1),
        ),
        (|a| a.ep().post_rdmap(send(&[0; 5000], 1)).expect("room"), ErrorNumbers::new(1, 2, 5)),
    ];
    for (wrong, expected) in cases {
        let mut net = pair(true);
        wrong(&mut net.a);
        assert_eq!(terminate_numbers(net), [expected; 2]);
    }
}

/// RFC 5040 §7.1: an MPA error has layer 2 and MPA's code.
#[test]
fn wrong_crc_is_sent_as_terminate() {
    let mut net = pair(true).with_fate(|side, n, bytes| match side {
        Side::A if n > 3 && has_data(bytes) => Fate::Corrupt,
        _ => Fate::Pass,
    });
    // The first FPDU must be valid, because a responder may not send a Terminate before it.
    net.a.ep().post_rdmap(send(b"good", 1)).expect("room");
    let mut clean = net.with_fate(|_, _, _| Fate::Pass);
    clean.run_until(|net| !net.b.rdmap_events().is_empty());
    let mut net = clean.with_fate(|side, _, bytes| match side {
        Side::A if has_data(bytes) => Fate::Corrupt,
        _ => Fate::Pass,
    });
    net.a.ep().post_rdmap(send(&[7; 900], 2)).expect("room");
    assert_eq!(terminate_numbers(net), [ErrorNumbers::new(2, 0, 2); 2]);
}

fn has_data(bytes: &[u8]) -> bool {
    super::net::has_payload(bytes)
}

/// If a region is revoked while the peer reads the region, no more of the region's bytes are sent.
#[test]
fn region_revoked_during_read_ends_with_terminate() {
    let mut net = pair(true);
    net.a.ep().post_rdmap(read(STAG, 0, 0, 900_000, 1)).expect("room");
    net.run_until(|net| net.b.stats().rdmap.reads_received == 1);
    net.b.stags.remove(STAG).expect("a live STag");
    let now = net.now;
    assert!(net.b.with_endpoint(|ep, cx| ep.on_stag_revoked(now, STAG, cx)));
    assert_eq!(terminate_numbers(net), [ErrorNumbers::new(0, 1, 0); 2]);
}

/// If the initiator's first FPDU is a Terminate, the responder reports it and closes.
#[test]
fn terminate_as_first_fpdu_closes_the_stream() {
    let a = Node::initiator_with_ulp(
        revision_two_config(
            Some(mpa::RtrSet { send: false, write: false, read: true }),
            Peer::Standard,
        ),
        rdmap(1, 1),
        b"",
    );
    // The responder's IRD is 0, so the initiator's ready-to-receive Read is not possible.
    let mut net = Net::new(
        a,
        Node::responder_with_ulp(revision_two_config(None, Peer::Standard), rdmap(0, 1)),
    );
    net.run();
    assert_eq!(
        net.a.reason(),
        Some(CloseReason::Lower(TcpReason::Startup(mpa::StartupError::NoRtr)))
    );
    let reason = net.b.reason().expect("an ended stream");
    assert_eq!(
        (reason.name(), reason.numbers()),
        ("terminated_by_peer", Some(ErrorNumbers::new(2, 0, 7)))
    );
    assert_eq!(reason.origin(), Origin::Peer);
    assert!(!net.a.is_established() && !net.b.is_established());
}

/// A Terminate that is too short has no error numbers, is not answered, and is not recorded.
#[test]
fn malformed_terminate_is_not_recorded() {
    let mut config = config(false);
    config.mpa.initiate = mpa::Revision::One;
    let a = Node::initiator(config.clone(), b"");
    let mut net = Net::new(a, Node::responder_with_ulp(config, rdmap(4, 4)));
    net.run_until(|net| net.a.is_established() && net.b.is_established());
    // The field that DDP reserves for the ULP contains RDMAP's version and opcode.
    let (qn, rsvd_ulp) = (ddp::Qn(2), [0x47, 0, 0, 0, 0]);
    let source = Source::Bytes([0x11, 0][..].into());
    let message = ddp::Message::Untagged { qn, rsvd_ulp, source, cookie: Cookie::user(1) };
    net.a.ep().post(message).expect("room to post");
    net.run();
    assert_eq!(net.b.reason().map(|reason| reason.name()), Some("invalid_terminate"));
    let kinds = |node: &Node| -> Vec<_> {
        let records = node.ep.as_ref().expect("an endpoint").connection().records().0;
        records.iter().map(tcp::Record::kind).collect()
    };
    let kinds = kinds(&net.b);
    use tcp::RecordKind::*;
    assert!(!kinds.contains(&ErrorFound) && !kinds.contains(&TerminateSent), "{kinds:?}");
}

/// Each close reason has a name for programs and a sentence for people. Errors also have layer, type and code.
#[test]
fn close_reasons_have_names_and_numbers() {
    let llp = CloseReason::Llp { error_type: 0, code: 1 };
    assert_eq!((llp.name(), llp.numbers()), ("llp_error", Some(ErrorNumbers::new(2, 0, 1))));
    let short = CloseReason::InvalidTerminate { len: 2 };
    assert_eq!((short.name(), short.numbers()), ("invalid_terminate", None));
    assert!(short.to_string().contains("2 bytes"));
    let terminate = rdmap::Terminate::new(1, 2, 5);
    let reason = CloseReason::Terminated(Box::new(terminate));
    assert_eq!(reason.numbers(), Some(ErrorNumbers::new(1, 2, 5)));
    assert!(reason.to_string().starts_with("terminated by the peer: "));
    assert_eq!(ErrorCode::CannotInvalidate.code(), 9);
}
