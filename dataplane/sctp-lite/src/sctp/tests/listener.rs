//! Packets without an association (RFC 9260 §5.1, §8.4).

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Arc;

use base::Instant;
use wire::sctp::{Cause, Chunk, InitHeader, Packet, PacketBuilder, Parameter, Tag};

use super::rig::{
    Batch, PACKET, PEER_TAG, Rig, Upper, data, ends, packet, peer_header, push_data, secrets,
};
use crate::sctp::{
    Association, COOKIE_LEN, Config, DropReason, Event, Listener, ListenerResult, State,
    handle_out_of_the_blue,
};

const DDP: Parameter<'_> = Parameter::Adaptation(1);

fn listener() -> Listener {
    Listener::new(Arc::new(Config::default()), secrets())
}

fn input_at(listener: &Listener, now: Instant, bytes: &[u8]) -> (ListenerResult, Vec<Vec<u8>>) {
    let mut batch = Batch::new();
    let packet = Packet::new(bytes).expect("a common header");
    let arrived = listener.input(now, &ends(), &packet, &mut batch);
    (arrived, batch.packets)
}

fn describe(bytes: &[Vec<u8>]) -> Vec<String> {
    let rig = Rig::active(Config::default());
    bytes.iter().map(|bytes| rig.describe(bytes)).collect()
}

fn init(header: &InitHeader, parameters: &[Parameter<'_>]) -> Vec<u8> {
    packet(Tag::NONE, |b| b.init(header, parameters).expect("room"))
}

/// Returns header and cookie of an INIT ACK.
pub(super) fn parse_init_ack(bytes: &[u8]) -> (InitHeader, Vec<u8>) {
    let raw = Packet::new(bytes).expect("a packet").chunks().next().expect("a chunk");
    let Ok(Chunk::InitAck(init)) = Chunk::parse(raw.expect("whole")) else { panic!("an INIT ACK") };
    let cookie = init.parameters().find_map(|p| match p {
        Ok(Parameter::StateCookie(cookie)) => Some(cookie.to_vec()),
        _ => None,
    });
    (init.header, cookie.expect("a cookie"))
}

// RFC 9260 §5.1 B, D, §5.1.5: the listener keeps no state. The COOKIE ECHO returns the state in the cookie, and DATA
// may be bundled after it.
#[test]
fn cookie_echo_creates_the_association() {
    let listener = listener();
    let mut now = Instant::from_millis(5);
    let (arrived, sent) = input_at(&listener, now, &init(&peer_header(), &[DDP]));
    assert_eq!((arrived, describe(&sent)), (ListenerResult::Answered, vec!["P: INIT-ACK".into()]));
    let (ours, cookie) = parse_init_ack(&sent[0]);
    assert_eq!(cookie.len(), COOKIE_LEN);
    // RFC 5043 §8: no more streams than the peer requested, and the same number in both directions.
    assert_eq!((ours.outbound_streams, ours.inbound_streams), (10, 10));
    assert!(ours.tag != Tag::NONE && ours.a_rwnd >= 1500);

    now += Duration::from_secs(59);
    let echo = packet(ours.tag, |b| {
        b.cookie_echo(&cookie).expect("room");
        push_data(b, &data(1), b"bundled");
    });
    let (arrived, sent) = input_at(&listener, now, &echo);
    let ListenerResult::Accept(cookie) = arrived else { panic!("a good cookie: {arrived:?}") };
    assert!(sent.is_empty());
    let config = Arc::new(Config::default());
    let association = Association::accept(config, secrets(), ends(), PACKET, &cookie, now);
    let mut rig = Rig { now, association, upper: Upper::new() };
    assert_eq!(rig.input_bytes(&echo), Ok(()));
    assert_eq!(rig.event(), Some(Event::Up { streams: 10 }));
    assert_eq!(rig.event(), None);
    // §5.1 D: COOKIE ACK is first. §5.1.5 step 7: bundled DATA is acknowledged at once.
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ACK SACK(1)"]);
    assert_eq!(rig.upper.received, [(0, b"bundled".to_vec())]);
    assert_eq!((rig.state(), rig.association.local_tag()), (State::Established, ours.tag));
    assert_eq!(rig.association.identity.local_tsn, ours.initial_tsn);
}

// RFC 9260 §5.1 B, §5.3.1: each INIT ACK has a different tag.
#[test]
fn init_flood_leaves_no_state() {
    let listener = listener();
    let mut tags = HashSet::new();
    for i in 0..10_000u32 {
        let header = InitHeader { tag: Tag(i + 1), ..peer_header() };
        let bytes = init(&header, &[DDP]);
        let (arrived, sent) = input_at(&listener, Instant::from_micros(u64::from(i)), &bytes);
        assert_eq!((arrived, sent.len()), (ListenerResult::Answered, 1));
        // The INIT ACK is at most three times as long as the INIT, without the headers below SCTP.
        assert!(sent[0].len() <= 3 * bytes.len(), "{} for {}", sent[0].len(), bytes.len());
        tags.insert(parse_init_ack(&sent[0]).0.tag.0);
    }
    assert!(tags.len() > 9990);
}

// RFC 9260 §3.3.2, §5.1, §8.4 rule 3: the ABORT has the Initiate Tag and no T bit.
#[test]
fn invalid_inits_are_aborted_or_dropped() {
    let listener = listener();
    let header = peer_header();
    let host = [DDP, Parameter::HostName(&[0, 11, 0, 6, b'h', 0])];
    let short = [DDP, Parameter::Unknown { bytes: &[0x80, 9, 0, 3], skip: true, report: false }];
    let cases: [(InitHeader, &[Parameter<'_>], DropReason, &[&str]); 8] = [
        (InitHeader { tag: Tag::NONE, ..header }, &[DDP], DropReason::BadInit, &[]),
        (InitHeader { a_rwnd: 1499, ..header }, &[DDP], DropReason::BadInit, &["P: ABORT(7)"]),
        (
            InitHeader { outbound_streams: 0, ..header },
            &[DDP],
            DropReason::BadInit,
            &["P: ABORT(7)"],
        ),
        (
            InitHeader { inbound_streams: 0, ..header },
            &[DDP],
            DropReason::BadInit,
            &["P: ABORT(7)"],
        ),
        (header, &host, DropReason::BadInit, &["P: ABORT(5)"]),
        (header, &short, DropReason::BadInit, &["P: ABORT(13)"]),
        // RFC 5043 §7.1: an INIT without the DDP adaptation indication, or with another indication, is refused.
        (header, &[], DropReason::OtherAdaptation, &["P: ABORT(2)"]),
        (header, &[Parameter::Adaptation(7)], DropReason::OtherAdaptation, &["P: ABORT(13)"]),
    ];
    for (header, parameters, reason, answer) in cases {
        let (arrived, sent) = input_at(&listener, Instant::ZERO, &init(&header, parameters));
        assert_eq!(arrived, ListenerResult::Dropped(reason));
        assert_eq!(describe(&sent), answer);
    }
    // §8.5.1 A: an INIT with a tag, or with other chunks in its packet, is dropped.
    let tagged = packet(Tag(1), |b| b.init(&header, &[DDP]).expect("room"));
    let bundled = packet(Tag::NONE, |b| {
        b.init(&header, &[DDP]).expect("room");
        b.cookie_ack().expect("room");
    });
    for bytes in [tagged, bundled] {
        let (arrived, sent) = input_at(&listener, Instant::ZERO, &bytes);
        assert_eq!(arrived, ListenerResult::Dropped(DropReason::OutOfTheBlue));
        assert!(sent.is_empty());
    }
}

// RFC 9260 §3.2.1, §3.2.2, §5.1.2: the two high bits of an unknown parameter's type decide whether it is reported and
// whether parsing continues. Addresses and other known parameters have no effect.
#[test]
fn unknown_init_parameters_are_reported_by_high_bits() {
    let listener = listener();
    let unknown =
        |kind: &'static [u8; 4]| Parameter::Unknown { bytes: kind, skip: false, report: false };
    let (stop, stop_told) = (unknown(&[0, 0xfe, 0, 4]), unknown(&[0x40, 0xfe, 0, 4]));
    let (skip, skip_told) = (unknown(&[0x80, 0xfe, 0, 4]), unknown(&[0xc0, 0xfe, 0, 4]));
    let reported = |parameters: &[Parameter<'_>]| -> usize {
        let (arrived, sent) = input_at(&listener, Instant::ZERO, &init(&peer_header(), parameters));
        assert_eq!(arrived, ListenerResult::Answered);
        let raw = Packet::new(&sent[0]).expect("a packet").chunks().next().expect("a chunk");
        let Ok(Chunk::InitAck(init)) = Chunk::parse(raw.expect("whole")) else {
            panic!("INIT ACK")
        };
        init.parameters().filter(|p| matches!(p, Ok(Parameter::Unrecognized(_)))).count()
    };
    assert_eq!(reported(&[DDP, stop, skip_told]), 0);
    assert_eq!(reported(&[DDP, stop_told, skip_told]), 1);
    assert_eq!(reported(&[DDP, skip, skip_told]), 1);
    assert_eq!(reported(&[DDP, skip_told, skip_told]), 2);
    // After a parameter that stops the processing, the adaptation indication is not read.
    let (arrived, _) = input_at(&listener, Instant::ZERO, &init(&peer_header(), &[stop, DDP]));
    assert_eq!(arrived, ListenerResult::Dropped(DropReason::OtherAdaptation));
    let known = [
        Parameter::Ipv4([10, 0, 0, 9]),
        Parameter::Ipv6([1; 16]),
        Parameter::SupportedAddressTypes(&[0, 6, 0, 11]),
        Parameter::EcnCapable,
        Parameter::SupportedExtensions(&[0xc1, 0x80]),
        Parameter::CookiePreservative(u32::MAX),
        DDP,
    ];
    assert_eq!(reported(&known), 0);
    // The report is bounded: a long INIT does not get a long INIT ACK.
    let many = [&[DDP; 1][..], &[skip_told; 200]].concat();
    assert!(reported(&many) <= 32);
}

/// An INIT of usrsctp with the adaptation indication. This INIT offers ECN, partial reliability, authentication and
/// address reconfiguration, none of which the listener supports.
const USRSCTP_INIT: &[u8] = &[
    0x17, 0x70, 0x12, 0xb7, 0x00, 0x00, 0x00, 0x00, 0xec, 0x76, 0x8a, 0xb3, 0x01, 0x00, 0x00, 0x6a,
    0xcf, 0x0b, 0x10, 0xeb, 0x00, 0x02, 0x00, 0x00, 0x00, 0x10, 0x00, 0x10, 0xa6, 0xb7, 0xdf, 0xf2,
    0xc0, 0x06, 0x00, 0x08, 0x00, 0x00, 0x00, 0x01, 0x80, 0x00, 0x00, 0x04, 0xc0, 0x00, 0x00, 0x04,
    0x80, 0x08, 0x00, 0x09, 0xc0, 0x0f, 0xc1, 0x80, 0x82, 0x00, 0x00, 0x00, 0x80, 0x02, 0x00, 0x24,
    0x98, 0x44, 0x62, 0x6c, 0xbe, 0xc6, 0xb7, 0x4d, 0x7f, 0xb6, 0x4e, 0x1c, 0x03, 0x6f, 0x7e, 0x7f,
    0x5f, 0xbc, 0x4c, 0xb7, 0xb7, 0x36, 0x5e, 0x38, 0x40, 0x5f, 0xc6, 0x5a, 0x1a, 0x1f, 0xbe, 0xfe,
    0x80, 0x04, 0x00, 0x06, 0x00, 0x01, 0x00, 0x00, 0x80, 0x03, 0x00, 0x06, 0x80, 0xc1, 0x00, 0x00,
    0x00, 0x0c, 0x00, 0x06, 0x00, 0x05, 0x00, 0x00,
];

// RFC 9260 §3.2.1, §3.2.2: the parameter of partial reliability must be reported; other unknown parameters are skipped.
#[test]
fn usrsctp_init_is_answered_with_reports() {
    assert!(Packet::new(USRSCTP_INIT).expect("a packet").checksum_ok());
    let (arrived, sent) = input_at(&listener(), Instant::ZERO, USRSCTP_INIT);
    assert_eq!(arrived, ListenerResult::Answered);
    let raw = Packet::new(&sent[0]).expect("a packet").chunks().next().expect("a chunk");
    let Ok(Chunk::InitAck(init)) = Chunk::parse(raw.expect("whole")) else { panic!("INIT ACK") };
    assert_eq!((init.header.outbound_streams, init.header.inbound_streams), (16, 16));
    let unknown = Parameter::Unrecognized(&[0xc0, 0, 0, 4]);
    assert_eq!(
        init.parameters().filter(|p| matches!(p, Ok(Parameter::Unrecognized(_)))).count(),
        1
    );
    assert!(init.parameters().any(|p| p == Ok(unknown)));
}

// RFC 9260 §3.3.2.1.3: a longer cookie lifetime is granted up to a limit. §5.1.5 step 4: an expired cookie is refused.
#[test]
fn cookie_life_is_extended_within_bounds() {
    let listener = listener();
    let start = Instant::from_millis(5);
    for (longer, life) in [(0, 60_000), (3000, 63_000), (u32::MAX, 70_000)] {
        let (_, sent) = input_at(
            &listener,
            start,
            &init(&peer_header(), &[DDP, Parameter::CookiePreservative(longer)]),
        );
        let (ours, cookie) = parse_init_ack(&sent[0]);
        let echo = packet(ours.tag, |b| b.cookie_echo(&cookie).expect("room"));
        let last = start + Duration::from_millis(life);
        assert!(matches!(input_at(&listener, last, &echo).0, ListenerResult::Accept(_)));
        let (arrived, sent) = input_at(&listener, last + Duration::from_millis(7), &echo);
        assert_eq!(arrived, ListenerResult::Dropped(DropReason::StaleCookie));
        assert_eq!(describe(&sent), ["P: ERROR(3)"]);
        let raw = Packet::new(&sent[0]).expect("a packet").chunks().next().expect("a chunk");
        let Ok(Chunk::Error(causes)) = Chunk::parse(raw.expect("whole")) else { panic!("ERROR") };
        assert!(causes.into_iter().eq([Ok(Cause::StaleCookie(7000))]));
    }
}

// RFC 9260 §5.1.5 steps 2 and 3: a cookie is discarded if the packet's tag, its length or its authentication is wrong.
#[test]
fn foreign_cookies_are_silently_discarded() {
    let listener = listener();
    let (_, sent) = input_at(&listener, Instant::ZERO, &init(&peer_header(), &[DDP]));
    let (ours, cookie) = parse_init_ack(&sent[0]);
    let silent = |listener: &Listener, bytes: &[u8]| {
        let (arrived, sent) = input_at(listener, Instant::ZERO, bytes);
        assert_eq!((arrived, sent.len()), (ListenerResult::Dropped(DropReason::BadCookie), 0));
    };
    silent(&listener, &packet(Tag(5), |b| b.cookie_echo(&cookie).expect("room")));
    silent(&listener, &packet(ours.tag, |b| b.cookie_echo(&cookie[1..]).expect("room")));
    silent(&listener, &packet(ours.tag, |b| b.cookie_echo(&[]).expect("room")));
    let other_secret = Arc::new(crate::sctp::Secrets::new([8; 16]));
    let other = Listener::new(Arc::new(Config::default()), other_secret);
    silent(&other, &packet(ours.tag, |b| b.cookie_echo(&cookie).expect("room")));
}

// RFC 9260 §8.4, §8.5.1 A: packets that match each rule, in the order of the rules.
#[test]
fn out_of_the_blue_packets_follow_rfc_9260_8_4() {
    let tag = Tag(0x7777_7777);
    let answer = |bytes: &[u8]| {
        let mut batch = Batch::new();
        let packet = Packet::new(bytes).expect("a common header");
        let reason = handle_out_of_the_blue(&ends(), &packet, &mut batch);
        (reason, describe(&batch.packets))
    };
    let at_tag = |write: &dyn Fn(&mut PacketBuilder<'_>)| answer(&packet(tag, write)).1;
    let nothing: [&str; 0] = [];
    // Rule 2: a packet with an ABORT in any position is dropped.
    assert_eq!(at_tag(&|b| b.abort(false, &[]).expect("room")), nothing);
    let bundled = |b: &mut PacketBuilder<'_>| {
        b.shutdown_ack().expect("room");
        b.abort(true, &[]).expect("room");
    };
    assert_eq!(at_tag(&bundled), nothing);
    // Rule 3: an INIT to a port without a listener.
    assert_eq!(answer(&init(&peer_header(), &[])).1, ["P: ABORT()"]);
    assert_eq!(answer(&init(&InitHeader { tag: Tag::NONE, ..peer_header() }, &[])).1, nothing);
    assert_eq!(at_tag(&|b| b.init(&peer_header(), &[]).expect("room")), nothing);
    // Rules 5, 6 and 7: SHUTDOWN ACK, SHUTDOWN COMPLETE, COOKIE ACK, and an ERROR that reports a stale cookie.
    assert_eq!(at_tag(&|b| b.shutdown_ack().expect("room")), ["77777777: SHUTDOWN-COMPLETE T"]);
    assert_eq!(at_tag(&|b| b.shutdown_complete(true).expect("room")), nothing);
    assert_eq!(at_tag(&|b| b.cookie_ack().expect("room")), nothing);
    assert_eq!(at_tag(&|b| b.error(&[Cause::StaleCookie(1)]).expect("room")), nothing);
    // Rule 8: all other chunks, including an ERROR with another cause, elicit an ABORT.
    let abort = ["77777777: ABORT() T"];
    assert_eq!(at_tag(&|b| push_data(b, &data(1), b"data")), abort);
    assert_eq!(at_tag(&|b| b.error(&[Cause::OutOfResource]).expect("room")), abort);
    assert_eq!(at_tag(&|b| b.cookie_echo(b"nobody listens").expect("room")), abort);
    assert_eq!(at_tag(&|b| b.shutdown(PEER_TSN_BEFORE).expect("room")), abort);
    assert_eq!(at_tag(&|b| b.push_chunk(0xfe, 0, &[]).expect("room")), abort);
    // Only an INIT may have a tag of zero.
    assert_eq!(
        answer(&packet(Tag::NONE, |b| b.shutdown_ack().expect("room"))).0,
        DropReason::BadTag
    );
    // A packet without chunks, with a malformed chunk or with port 0 is dropped.
    assert_eq!(answer(&packet(tag, |_| {})), (DropReason::BadHeader, vec![]));
    let mut broken = packet(tag, |b| b.heartbeat(b"when").expect("room"));
    broken[15] = 200;
    assert_eq!(answer(&broken), (DropReason::BadChunk, vec![]));
    let mut port = packet(tag, |b| b.shutdown_ack().expect("room"));
    port[..2].fill(0);
    assert_eq!(answer(&port), (DropReason::BadHeader, vec![]));
    assert_eq!(PEER_TAG, peer_header().tag);
}

const PEER_TSN_BEFORE: wire::sctp::Tsn = wire::sctp::Tsn(u32::MAX - 2);

// RFC 9260 §8.4: replies elicit no replies, so two ends without an association cannot loop.
#[test]
fn aborts_and_replies_elicit_no_answer() {
    let tag = Tag(0x7777_7777);
    let listener = listener();
    let questions = [
        packet(tag, |b| push_data(b, &data(1), b"data")),
        packet(tag, |b| b.shutdown_ack().expect("room")),
        init(&peer_header(), &[]),
        init(&peer_header(), &[DDP]),
    ];
    for question in questions {
        let (_, answers) = input_at(&listener, Instant::ZERO, &question);
        assert_eq!(answers.len(), 1);
        let (arrived, more) = input_at(&listener, Instant::ZERO, &answers[0]);
        assert!(matches!(arrived, ListenerResult::Dropped(DropReason::OutOfTheBlue)));
        // An unexpected INIT ACK elicits one reply, and the exchange ends.
        for bytes in more {
            assert_eq!(input_at(&listener, Instant::ZERO, &bytes).1.len(), 0);
        }
    }
}

// A full batch drops the INIT ACK, as the network might.
#[test]
fn full_batch_drops_the_init_ack() {
    let mut batch = Batch::new();
    batch.room = 0;
    let bytes = init(&peer_header(), &[DDP]);
    let packet = Packet::new(&bytes).expect("a packet");
    let arrived = listener().input(Instant::ZERO, &ends(), &packet, &mut batch);
    assert!(matches!(arrived, ListenerResult::Dropped(_)));
    assert!(batch.packets.is_empty());
}
