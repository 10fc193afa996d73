//! MPA start-up over TCP: order and timing of frames, and errors.

use super::net::{Net, Side};
use super::peers::*;
use crate::endpoint::*;
use crate::mpa::testing::Stream;
use crate::mpa::{self, ForeignProtocol, Revision, StartupError};
use base::ErrorNumbers;
use core::time::Duration;
use ddp::Cookie;
use ddp::DdpVersion;

fn mpa() -> mpa::Config {
    mpa::Config::default()
}

pub(super) fn request(flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    frame(b"MPA ID Req Frame", flags, rev, private_data)
}

pub(super) fn reply(flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    frame(b"MPA ID Rep Frame", flags, rev, private_data)
}

fn frame(key: &[u8; 16], flags: u8, rev: u8, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = key.to_vec();
    bytes.extend([flags, rev]);
    bytes.extend((private_data.len() as u16).to_be_bytes());
    bytes.extend(private_data);
    bytes
}

/// Returns a tagged DDP segment, the last of its message, for the test region.
pub(super) fn tagged(version: DdpVersion, to: u64, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0xc0 | version.bits(), 0];
    segment.extend(STAG.0.to_be_bytes());
    segment.extend(to.to_be_bytes());
    segment.extend(payload);
    segment
}

/// Returns FPDUs with markers and CRC, one per ULPDU.
pub(super) fn fpdus(ulpdus: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Stream::new(true, true);
    for ulpdu in ulpdus {
        stream.fpdu(ulpdu);
    }
    stream.bytes
}

/// Checks three start-up forms with all combinations of markers per direction and of CRC per end.
#[test]
fn every_startup_form_carries_data_both_ways() {
    for initiate in [Revision::Draft, Revision::Zero, Revision::One] {
        for bits in 0..16_u8 {
            let bit = |n: u8| bits >> n & 1 == 1;
            let a = with_mpa(mpa::Config { initiate, markers: bit(0), crc: bit(1), ..mpa() });
            let b = with_mpa(mpa::Config { markers: bit(2), crc: bit(3), ..mpa() });
            let mut net = established(a, b);
            let bytes: Vec<u8> = (0..20_000_u32).map(|i| (i / 3) as u8).collect();
            net.a.write(5, &bytes, 1);
            net.b.write(7, &bytes, 2);
            net.a.send(b"hello", 3);
            net.run_until(|net| net.a.ddp_events().len() >= 3 && net.b.ddp_events().len() >= 3);
            assert_eq!(net.b.memory.to_vec()[5..20_005], bytes);
            assert_eq!(net.a.memory.to_vec()[7..20_007], bytes);
            assert_eq!(net.b.messages(), [(Qn(0), b"hello".to_vec())]);
            let (here, there) = (net.a.params().expect("a"), net.b.params().expect("b"));
            assert_eq!((here.revision, there.revision), (initiate, initiate));
            assert_eq!((here.markers_rx, here.markers_tx), (bit(0), bit(2)));
            assert_eq!((there.markers_rx, there.markers_tx), (bit(2), bit(0)));
            assert_eq!((here.crc, there.crc), (bit(1) || bit(3), bit(1) || bit(3)));
            let version = if initiate == Revision::Draft { DdpVersion::V0 } else { DdpVersion::V1 };
            assert_eq!(here.ddp_version, Some(version));
            assert_eq!(net.b.ep().params().and_then(|p| p.ddp_version), Some(version));
            net.a.ep().shutdown(net.now);
            net.run();
            assert_closed_by_a(&net);
        }
    }
}

/// Each ULP receives the private data of the other end. The responder's ULP also receives the
/// revision of the request.
#[test]
fn private_data_reaches_both_ulps() {
    let a = Node::initiator(EndpointConfig::default(), b"from a");
    let mut net = Net::new(a, Node::responder(EndpointConfig::default()));
    net.b.policy = Policy::Accept(b"from b".to_vec());
    net.run_until(|net| net.a.is_established());
    let private_data = b"from a".to_vec();
    let revision = Revision::One;
    let request = Event::MpaRequest { private_data, revision, enhanced: None };
    assert_eq!(net.b.events[0], request);
    let Event::Established { private_data, .. } = &net.a.events[0] else { panic!("established") };
    assert_eq!(private_data, b"from b");
}

/// RFC 5044 §7.1.2 (2), (3): the initiator's ULP receives the private data of the reject, and both ends close.
#[test]
fn reject_closes_both_ends_with_private_data() {
    let mut net = pair(EndpointConfig::default(), EndpointConfig::default());
    net.b.policy = Policy::Reject(b"no room".to_vec());
    net.run();
    let private_data = b"no room".to_vec();
    assert_eq!(net.a.reason(), Some(CloseReason::RejectedByPeer { private_data, enhanced: None }));
    assert_eq!(net.b.reason(), Some(CloseReason::RejectedHere));
    assert!(!net.has_reset(Side::A) && !net.has_reset(Side::B));
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}

/// MPA's first draft has no reject, so the responder closes without a reply.
#[test]
fn start_key_reject_closes_without_reply() {
    let a = with_mpa(mpa::Config { initiate: Revision::Draft, ..mpa() });
    let mut net = pair(a, EndpointConfig::default());
    net.b.policy = Policy::Reject(Vec::new());
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::Lower(TcpReason::Startup(StartupError::Closed))));
    assert_eq!(net.b.reason().map(|r| r.name()), Some("rejected_here"));
    assert_eq!(net.payloads(Side::B), [&[][..]; 0]);
    net.a.assert_no_state_left();
    net.b.assert_no_state_left();
}

/// RFC 5044 §7.1.2 (4): a responder sends neither an FPDU nor a marker before it has verified an FPDU.
#[test]
fn responder_waits_for_the_first_fpdu() {
    let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
    net.a.send_bytes(&request(0xc0, 1, &[]));
    net.run_until(|net| net.b.is_established());
    net.b.write(0, b"answer", 1);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.a.up.received, reply(0xc0, 1, &[]), "the reply and nothing else");
    let first = fpdus(&[tagged(DdpVersion::V1, 0, b"x")]);
    // An incomplete FPDU does not allow the responder to send.
    net.a.send_bytes(&first[..first.len() - 1]);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.a.up.received.len(), 20);
    net.a.send_bytes(&first[first.len() - 1..]);
    net.run_for(Duration::from_secs(2));
    let answer = fpdus(&[tagged(DdpVersion::V1, 0, b"answer")]);
    assert_eq!(net.a.up.received[20..], answer);
}

/// RFC 5044 §7.1.2 (3): the initiator sends nothing between its request and the reply.
#[test]
fn initiator_waits_for_the_reply() {
    let a = Node::initiator(EndpointConfig::default(), b"pd");
    let mut net = Net::new(a, Raw::listen());
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.b.up.received, request(0xc0, 1, b"pd"));
    let source = ddp::Source::Bytes(b"early"[..].into());
    let message =
        Message::Untagged { qn: Qn(0), rsvd_ulp: [0; 5], source, cookie: Cookie::user(0) };
    assert_eq!(net.a.ep().post(message), Err(PostError::Closed));
    net.b.send_bytes(&reply(0xc0, 1, &[]));
    net.run_until(|net| net.a.is_established());
    net.a.write(1, b"now", 1);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.b.up.received[22..], fpdus(&[tagged(DdpVersion::V1, 1, b"now")]));
}

/// FPDUs in the segment of the request are placed once the ULP accepts the request.
#[test]
fn fpdus_behind_the_request_wait_for_accept() {
    let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
    net.b.policy = Policy::Wait;
    let mut bytes = request(0xc0, 1, &[]);
    bytes.extend(fpdus(&[
        tagged(DdpVersion::V1, 10, b"first"),
        tagged(DdpVersion::V1, 20, &[7; 900]),
    ]));
    net.a.send_bytes(&bytes);
    net.run_until(|net| net.b.state() == Some(State::Deciding));
    assert_eq!(net.b.memory.to_vec()[10..15], [0; 5], "nothing is placed before the decision");
    let now = net.now;
    net.b
        .with_endpoint(|ep, cx| ep.mpa_accept(now, PD, &[], stream_config(), cx))
        .expect("a request");
    assert_eq!(net.b.memory.to_vec()[10..15], *b"first");
    assert_eq!(net.b.memory.to_vec()[20..920], [7; 900]);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.a.up.received, reply(0xc0, 1, &[]));
}

#[test]
fn fpdus_in_the_segment_of_the_reply_are_placed() {
    let mut net = Net::new(Node::initiator(EndpointConfig::default(), b""), Raw::listen());
    let mut bytes = reply(0x40, 1, b"pd");
    bytes.extend(fpdus(&[tagged(DdpVersion::V1, 10, b"first")]));
    net.b.send_bytes(&bytes);
    net.run_until(|net| net.a.is_established());
    assert_eq!(net.a.memory.to_vec()[10..15], *b"first");
}

/// RFC 5044 appendix C: a responder to a revision 0 request adopts the DDP version of the first FPDU.
#[test]
fn revision_zero_adopts_the_ddp_version() {
    for version in [DdpVersion::V0, DdpVersion::V1] {
        let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
        net.a.send_bytes(&request(0xc0, 0, &[]));
        net.run_until(|net| net.b.is_established());
        assert_eq!(net.b.params().map(|p| p.ddp_version), Some(None));
        net.a.send_bytes(&fpdus(&[tagged(version, 0, b"x")]));
        net.b.write(0, b"y", 1);
        net.run_for(Duration::from_secs(1));
        assert_eq!(net.b.ep().params().and_then(|p| p.ddp_version), Some(version));
        assert_eq!(net.a.up.received[20..], fpdus(&[tagged(version, 0, b"y")]));
    }
}

/// RFC 5044 §8, code 4: the connection is reset at once.
#[test]
fn invalid_startup_bytes_close_the_connection() {
    let mut too_long = request(0xc0, 1, &[]);
    too_long[18..20].copy_from_slice(&600_u16.to_be_bytes());
    let cases: [(&[u8], StartupError); 5] = [
        (b"GET / HTTP/1.1\r\n", StartupError::Foreign(ForeignProtocol::Http)),
        (b"MPA ID Reg Frame", StartupError::BadKey { at: 9 }),
        (&request(0xc0, 9, &[]), StartupError::Revision { seen: 9 }),
        (&reply(0xc0, 1, &[]), StartupError::BothResponders),
        (&too_long, StartupError::PrivateData { seen: 600 }),
    ];
    for (bytes, error) in cases {
        let mut net = Net::new(Raw::connect(), Node::responder(EndpointConfig::default()));
        net.a.send_bytes(bytes);
        net.run();
        assert_eq!(net.b.reason(), Some(CloseReason::Lower(TcpReason::Startup(error))));
        assert_eq!(net.b.reason().and_then(|r| r.numbers()), Some(ErrorNumbers::new(2, 0, 4)));
        assert!(net.has_reset(Side::B));
        assert_eq!(net.a.up.received, []);
        net.b.assert_no_state_left();
    }
}

/// RFC 5044 §7.1.2 (8): an initiator that receives a request closes the connection.
#[test]
fn two_initiators_detect_each_other() {
    let mut net = Net::new(Node::initiator(EndpointConfig::default(), b""), Raw::listen());
    net.b.send_bytes(&request(0xc0, 1, &[]));
    net.run();
    let error = StartupError::BothInitiators;
    assert_eq!(net.a.reason(), Some(CloseReason::Lower(TcpReason::Startup(error))));
}

/// RFC 5044 §7.1.2 (8), (10): the time-out applies to a silent or slow initiator, an undecided ULP, and a missing
/// reply.
#[test]
fn startup_times_out() {
    let config = || with_mpa(mpa::Config { startup_timeout: Duration::from_secs(3), ..mpa() });
    let late = Some(CloseReason::Lower(TcpReason::Startup(StartupError::Timeout)));
    let mut silent = Net::new(Raw::connect(), Node::responder(config()));
    silent.run();
    assert_eq!(silent.b.reason(), late);
    assert_eq!(silent.b.reason().and_then(|r| r.numbers()), Some(ErrorNumbers::new(2, 0, 1)));
    let mut slow = Net::new(Raw::connect(), Node::responder(config()));
    for byte in request(0xc0, 1, &[]) {
        slow.a.send_bytes(&[byte]);
        slow.run_for(Duration::from_millis(400));
    }
    slow.run();
    assert_eq!(slow.b.reason(), late);
    let mut undecided = pair(EndpointConfig::default(), config());
    undecided.b.policy = Policy::Wait;
    undecided.run();
    assert_eq!(undecided.b.reason(), late);
    assert_eq!(undecided.a.reason(), Some(CloseReason::Lower(TcpReason::PeerReset)));
    let mut unanswered = Net::new(Node::initiator(config(), b""), Raw::listen());
    let began = unanswered.now;
    unanswered.run_until(|net| net.a.reason().is_some());
    assert_eq!(unanswered.a.reason(), late);
    let took = unanswered.now - began;
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(4));
}

/// The path loses the third segment of each side and cuts all others.
#[test]
fn startup_survives_cut_and_lost_frames() {
    use super::net::Fate;
    for cut in 1..26 {
        let a = Node::initiator(EndpointConfig::default(), b"hello!");
        let mut net = Net::new(a, Node::responder(EndpointConfig::default()))
            .with_fate(move |_, n, _| if n == 3 { Fate::Drop } else { Fate::Split(vec![cut]) });
        net.run_until(|net| net.a.is_established() && net.b.is_established());
        assert!(net.a.is_established() && net.b.is_established(), "cut at {cut}");
    }
}

/// Without a listener the peer's host resets the connection. Over a path that loses all segments the connect times out.
#[test]
fn connect_without_listener_is_refused_or_times_out() {
    let mut net =
        Net::new(Node::initiator(EndpointConfig::default(), b""), Node::without_listener());
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::ConnectRefused));
    net.a.assert_no_state_left();
    use super::net::Fate;
    let mut net =
        pair(EndpointConfig::default(), EndpointConfig::default()).with_fate(|_, _, _| Fate::Drop);
    net.run();
    assert_eq!(net.a.reason(), Some(CloseReason::Lower(TcpReason::TcpTimeout)));
    net.a.assert_no_state_left();
}

/// A request can be answered only once. An initiator has no request to answer.
#[test]
fn answer_without_pending_request_is_an_error() {
    let mut net = established(EndpointConfig::default(), EndpointConfig::default());
    let now = net.now;
    let again = net.b.with_endpoint(|ep, cx| ep.mpa_accept(now, PD, &[], stream_config(), cx));
    assert_eq!(again, Err(AnswerError::NoRequest));
    assert_eq!(net.a.ep().mpa_reject(now, &[]), Err(AnswerError::NoRequest));
}
