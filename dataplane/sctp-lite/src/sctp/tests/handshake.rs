//! The active open, and packets that collide with it (RFC 9260 §5.1, §5.2).

use core::time::Duration;

use transport::recorder::{Kind, Record};
use wire::sctp::{Cause, Chunk, Init, InitHeader, Packet, Parameter, SackHeader, Tag};

use super::rig::{
    PACKET, PEER_TAG, PEER_TSN, Rig, data, ends, packet, peer_header, push_data, secrets,
};
use crate::sctp::receive::Violation;
use crate::sctp::{Association, CloseReason, Config, DropReason, Event, Fault, State};

const COOKIE: Parameter<'_> = Parameter::StateCookie(b"cookie");
const DDP: Parameter<'_> = Parameter::Adaptation(1);

fn init_of(bytes: &[u8]) -> Init<'_> {
    let raw = Packet::new(bytes).expect("a packet").chunks().next().expect("a chunk");
    match Chunk::parse(raw.expect("whole")) {
        Ok(Chunk::Init(init) | Chunk::InitAck(init)) => init,
        other => panic!("{other:?} is not an INIT"),
    }
}

// RFC 9260 §5.1 A, C, E, RFC 5061 §4.2.6, RFC 5043 §8, §11.1: an active open sends INIT, then COOKIE ECHO. The COOKIE
// ACK completes it.
#[test]
fn active_open_sends_init_then_cookie_echo() {
    let mut rig = Rig::active(Config::default());
    let packets = rig.packets();
    assert_eq!(rig.describe(&packets[0]), "0: INIT");
    let init = init_of(&packets[0]);
    let header = init.header;
    assert_eq!(header.tag, rig.association.local_tag());
    assert!(header.tag != Tag::NONE && header.a_rwnd >= 1500);
    assert_eq!(header.outbound_streams, header.inbound_streams);
    let parameters: Vec<_> = init.parameters().map(|p| p.expect("well formed")).collect();
    assert_eq!(parameters, [Parameter::SupportedAddressTypes(&[0, 5]), DDP]);
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::CookieWait, 0));

    assert_eq!(rig.init_ack(), Ok(()));
    let packets = rig.packets();
    assert_eq!(rig.describe(&packets[0]), "P: COOKIE-ECHO");
    let echo = Packet::new(&packets[0]).expect("a packet").chunks().next().expect("a chunk");
    // §3.3.11: the cookie is returned unchanged.
    assert_eq!(echo.expect("whole").value(), b"cookie");
    assert_eq!((rig.event(), rig.state()), (None, State::CookieEchoed));

    assert_eq!(rig.input(|b| b.cookie_ack().expect("room")), Ok(()));
    // §5.1.1, RFC 5043 §8: the number of streams is the minimum of 256 and the peer's 10, in both directions.
    assert_eq!(rig.event(), Some(Event::Up { streams: 10 }));
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::Established, 0));
    assert_eq!(rig.association.peer_tag(), PEER_TAG);
    // A second COOKIE ACK has no effect (§5.2.5).
    assert_eq!(rig.input(|b| b.cookie_ack().expect("room")), Err(DropReason::UnexpectedChunk));
    assert_eq!((rig.event(), rig.sent_packets().len()), (None, 0));
}

// RFC 9260 §5.1: the first DATA chunk is acknowledged without delay.
#[test]
fn the_first_data_is_acknowledged_at_once() {
    let mut rig = Rig::established();
    rig.input(|b| push_data(b, &data(1), b"first")).expect("taken");
    assert_eq!(rig.sent_packets(), ["P: SACK(1)"]);
    assert_eq!(rig.upper.received, [(0, b"first".to_vec())]);
}

// RFC 9260 §5.1.1: the peer's limit applies in each direction. RFC 5043 §8: both directions have the same number of
// streams.
#[test]
fn stream_count_is_the_minimum_of_both_ends() {
    for (outbound_streams, inbound_streams, agreed) in [(3, 9, 3), (9, 3, 3), (65_535, 65_535, 256)]
    {
        let mut rig = Rig::active(Config::default());
        rig.sent_packets();
        let header = InitHeader { outbound_streams, inbound_streams, ..peer_header() };
        rig.input_init_ack(&header, &[COOKIE, DDP]).expect("acceptable");
        rig.input(|b| b.cookie_ack().expect("room")).expect("acceptable");
        assert_eq!(rig.event(), Some(Event::Up { streams: agreed }));
    }
}

// RFC 9260 §4 notes 2 and 3, §5.1.6: INIT or COOKIE ECHO is retransmitted with backoff, then the setup fails.
#[test]
fn unanswered_init_and_cookie_echo_back_off_and_time_out() {
    for state in [State::CookieWait, State::CookieEchoed] {
        let mut rig = Rig::in_state(state);
        let tag = rig.association.local_tag();
        let sent = rig.wait(Duration::from_secs(600));
        let expected = if state == State::CookieWait { "0: INIT" } else { "P: COOKIE-ECHO" };
        assert_eq!(sent.len(), 8); // Max.Init.Retransmits
        assert!(sent.iter().all(|(_, text)| text == expected), "{sent:?}");
        let gaps: Vec<_> = sent.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.is_sorted() && *gaps.last().expect("several") <= 60, "{gaps:?}");
        assert_eq!(rig.association.local_tag(), tag);
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
        assert_eq!((rig.state(), rig.association.poll_timeout()), (State::Closed, None));
        assert!(rig.association.is_done());
    }
}

// RFC 9260 §6.3.1: the handshake yields RTT samples, unless a chunk was retransmitted.
#[test]
fn handshake_round_trips_are_rtt_samples() {
    let rtt = Duration::from_millis(30);
    let mut rig = Rig::active(Config::default());
    rig.sent_packets();
    rig.now += rtt;
    rig.init_ack().expect("acceptable");
    rig.sent_packets();
    assert_eq!(rig.association.sender().srtt(), Some(rtt));
    assert!(rig.association.sender().rto() < Duration::from_secs(1));
    // T1-cookie uses the sample.
    assert_eq!(rig.wait(Duration::from_millis(900)).len(), 2);
    let mut rig = Rig::active(Config::default());
    rig.sent_packets();
    rig.wait(Duration::from_millis(1500));
    rig.init_ack().expect("acceptable");
    assert_eq!(rig.association.sender().srtt(), None);
}

// RFC 9260 §5.1.4: an INIT ACK continues the setup, whether it answers the first or the retransmitted INIT.
#[test]
fn init_ack_to_either_init_continues_the_setup() {
    let mut rig = Rig::active(Config::default());
    rig.sent_packets();
    assert_eq!(rig.wait(Duration::from_secs(2)), [(1, "0: INIT".into())]);
    rig.init_ack().expect("acceptable");
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO"]);
    assert_eq!(rig.association.stats().setup_retransmitted, 1);
    // The second INIT ACK is dropped (§5.2.3).
    assert_eq!(rig.init_ack(), Err(DropReason::UnexpectedChunk));
    assert_eq!(rig.sent_packets(), [""; 0]);
}

// RFC 5043 §7.1, §11.1: without the DDP adaptation indication, no association is established.
#[test]
fn init_ack_without_ddp_adaptation_is_refused() {
    for (sent, seen) in [(None, None), (Some(Parameter::Adaptation(2)), Some(2))] {
        let mut rig = Rig::in_state(State::CookieWait);
        let parameters: Vec<_> = sent.into_iter().chain([COOKIE]).collect();
        let dropped = rig.input_init_ack(&peer_header(), &parameters);
        assert_eq!(dropped, Err(DropReason::OtherAdaptation));
        let cause = if seen.is_some() { "13" } else { "2" };
        assert_eq!(rig.sent_packets(), [format!("P: ABORT({cause})")]);
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::OtherAdaptation { seen })));
    }
}

// RFC 9260 §3.3.3, §3.3.2.1.4, §5.1: an INIT ACK with an illegal value ends the attempt with an ABORT.
#[test]
fn invalid_init_acks_are_refused() {
    let header = peer_header();
    let refused = Some(Event::Closed(CloseReason::Fault(Fault::InitAck)));
    let all = [COOKIE, DDP];
    let host = [COOKIE, DDP, Parameter::HostName(&[0, 11, 0, 6, b'h', 0])];
    let short =
        [COOKIE, DDP, Parameter::Unknown { bytes: &[0x80, 9, 0, 3], skip: true, report: false }];
    let cases: [(InitHeader, &[Parameter<'_>], &str); 6] = [
        // The ABORT has the T bit, because no tag of the peer is known.
        (InitHeader { tag: Tag::NONE, ..header }, &all, "L: ABORT(7) T"),
        (InitHeader { outbound_streams: 0, ..header }, &all, "P: ABORT(7)"),
        (InitHeader { inbound_streams: 0, ..header }, &all, "P: ABORT(7)"),
        (header, &[DDP], "P: ABORT(2)"),
        (header, &host, "P: ABORT(5)"),
        (header, &short, "P: ABORT(13)"),
    ];
    for (header, parameters, answer) in cases {
        let mut rig = Rig::in_state(State::CookieWait);
        assert_eq!(rig.input_init_ack(&header, parameters), Err(DropReason::BadInit), "{answer}");
        assert_eq!(rig.sent_packets(), [answer]);
        assert_eq!(rig.event(), refused);
    }
    // An a_rwnd below 1500 bytes elicits an ABORT, but the association is unchanged.
    let mut rig = Rig::in_state(State::CookieWait);
    let small = InitHeader { a_rwnd: 1499, ..header };
    assert_eq!(rig.input_init_ack(&small, &all), Err(DropReason::BadInit));
    assert_eq!(rig.sent_packets(), ["P: ABORT(7)"]);
    assert_eq!((rig.state(), rig.event()), (State::CookieWait, None));
    assert_eq!(rig.init_ack(), Ok(()));
    // §3: an INIT ACK with another chunk in its packet is dropped.
    let mut rig = Rig::in_state(State::CookieWait);
    let bundled = rig.input(|b| {
        b.init_ack(&header, &all).expect("room");
        b.cookie_ack().expect("room");
    });
    assert_eq!(bundled, Err(DropReason::UnexpectedChunk));
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::CookieWait, 0));
}

// RFC 9260 §3.3.3: a large cookie is accepted if its COOKIE ECHO fits a packet.
#[test]
fn large_cookie_is_accepted_if_returnable() {
    let cookie = vec![0xc0; PACKET];
    for (len, fits) in [(PACKET - 16, true), (PACKET - 15, false)] {
        let mut rig = Rig::in_state(State::CookieWait);
        let result =
            rig.input_init_ack(&peer_header(), &[Parameter::StateCookie(&cookie[..len]), DDP]);
        let answer = if fits { "P: COOKIE-ECHO" } else { "P: ABORT(4)" };
        assert_eq!(result.is_ok(), fits);
        assert_eq!(rig.sent_packets(), [answer]);
    }
}

// RFC 9260 §3.2.1, §3.2.2: the two high bits of an unknown parameter's type decide whether it is reported and whether
// parsing continues. The report is an ERROR after the COOKIE ECHO.
#[test]
fn unknown_init_ack_parameters_are_reported_by_high_bits() {
    for (kind, reported, rest_seen) in
        [(0x00u16, false, false), (0x40, true, false), (0x80, false, true), (0xc0, true, true)]
    {
        let bytes = [kind as u8, 0xfe, 0, 4];
        let unknown = Parameter::Unknown { bytes: &bytes, skip: false, report: false };
        // The cookie is last: it is read only if parsing continues.
        let mut rig = Rig::in_state(State::CookieWait);
        let result = rig.input_init_ack(&peer_header(), &[DDP, unknown, COOKIE]);
        assert_eq!(result.is_ok(), rest_seen, "{kind:x}");
        if rest_seen {
            let error = if reported { " ERROR(8)" } else { "" };
            assert_eq!(rig.sent_packets(), [format!("P: COOKIE-ECHO{error}")]);
        }
        let mut rig = Rig::in_state(State::CookieWait);
        rig.input_init_ack(&peer_header(), &[DDP, COOKIE, unknown]).expect("acceptable");
        let error = if reported { " ERROR(8)" } else { "" };
        assert_eq!(rig.sent_packets(), [format!("P: COOKIE-ECHO{error}")]);
    }
}

// RFC 9260 §5.2.6: after a report of a stale cookie, a new INIT requests a longer cookie lifetime.
#[test]
fn stale_cookie_restarts_with_preservative() {
    let mut rig = Rig::cookie_echoed();
    rig.now += Duration::from_millis(250);
    let stale = |rig: &mut Rig| rig.input(|b| b.error(&[Cause::StaleCookie(9)]).expect("room"));
    assert_eq!(stale(&mut rig), Ok(()));
    let packets = rig.packets();
    assert_eq!(rig.describe(&packets[0]), "0: INIT");
    let preservative = Parameter::CookiePreservative(1250);
    assert!(init_of(&packets[0]).parameters().any(|p| p == Ok(preservative)));
    assert_eq!(rig.state(), State::CookieWait);
    rig.init_ack().expect("acceptable");
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO"]);
    rig.input(|b| b.cookie_ack().expect("room")).expect("acceptable");
    assert_eq!(rig.event(), Some(Event::Up { streams: 10 }));
    // In ESTABLISHED the error is ignored.
    assert_eq!(stale(&mut rig), Ok(()));
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::Established, 0));
}

// RFC 9260 §5.2.6: the number of INITs after stale cookies is limited.
#[test]
fn repeated_stale_cookies_fail_the_setup() {
    let mut rig = Rig::cookie_echoed();
    for _ in 0..8 {
        rig.input(|b| b.error(&[Cause::StaleCookie(9)]).expect("room")).expect("accepted");
        assert_eq!(rig.sent_packets(), ["0: INIT"]);
        rig.init_ack().expect("acceptable");
        assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO"]);
    }
    rig.input(|b| b.error(&[Cause::StaleCookie(9)]).expect("room")).expect("accepted");
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
    assert_eq!(rig.sent_packets(), [""; 0]);
}

// RFC 9260 §5.2.1: an INIT during an open is answered with the values of this end's INIT, and has no other effect.
#[test]
fn crossing_init_is_answered_with_own_init_values() {
    for state in [State::CookieWait, State::CookieEchoed] {
        let mut rig = Rig::in_state(state);
        let timer = rig.association.poll_timeout();
        let init = InitHeader { tag: Tag(0x5555_5555), ..peer_header() };
        let result = rig.input_tagged(Tag::NONE, |b| b.init(&init, &[DDP]).expect("room"));
        assert_eq!(result, Ok(()));
        let packets = rig.packets();
        assert_eq!(rig.describe(&packets[0]), "55555555: INIT-ACK");
        let answer = init_of(&packets[0]).header;
        assert_eq!(answer, rig.association.init_header());
        assert_eq!((rig.state(), rig.association.poll_timeout()), (state, timer));
        assert_eq!(packets.len(), 1);
    }
}

/// Passes an INIT with tag `tag` to the association. Returns tag and cookie of the INIT ACK.
fn issue_cookie(rig: &mut Rig, tag: Tag) -> (Tag, Vec<u8>) {
    let init = InitHeader { tag, ..peer_header() };
    rig.input_tagged(Tag::NONE, |b| b.init(&init, &[DDP]).expect("room")).expect("acceptable");
    let packets = rig.packets();
    let answer = init_of(&packets[0]);
    let cookie = answer.parameters().find_map(|p| match p {
        Ok(Parameter::StateCookie(cookie)) => Some(cookie.to_vec()),
        _ => None,
    });
    (answer.header.tag, cookie.expect("a cookie"))
}

// RFC 9260 §5.2.4 action B: one association results, whichever cookie arrives first.
#[test]
fn cookie_during_open_results_in_one_association() {
    for state in [State::CookieWait, State::CookieEchoed] {
        let mut rig = Rig::in_state(state);
        let tag = Tag(0x5555_5555);
        let (ours, cookie) = issue_cookie(&mut rig, tag);
        assert_eq!(ours, rig.association.local_tag());
        let result = rig.input_tagged(ours, |b| {
            b.cookie_echo(&cookie).expect("room");
            push_data(b, &data(1), b"early");
        });
        assert_eq!(result, Ok(()));
        assert_eq!(rig.event(), Some(Event::Up { streams: 10 }));
        assert_eq!(rig.state(), State::Established);
        assert_eq!(rig.association.peer_tag(), tag);
        // §5.1 D: COOKIE ACK is first. §5.1.5 step 7: bundled DATA is acknowledged at once.
        assert_eq!(rig.sent_packets(), ["55555555: COOKIE-ACK SACK(1)"]);
        // T1 has stopped.
        assert_eq!(rig.wait(Duration::from_secs(20)), []);
    }
}

// RFC 9260 §6.3.1: the time from this end's INIT to the peer's COOKIE ECHO is not a round trip.
#[test]
fn collision_gives_no_rtt_sample() {
    let mut rig = Rig::in_state(State::CookieWait);
    rig.now += Duration::from_millis(900);
    let (ours, cookie) = issue_cookie(&mut rig, PEER_TAG);
    rig.input_tagged(ours, |b| b.cookie_echo(&cookie).expect("room")).expect("acceptable");
    assert_eq!((rig.state(), rig.association.sender().srtt()), (State::Established, None));
}

// RFC 9260 §5.2.4 action D: the COOKIE ACK was lost, and the peer retransmits its COOKIE ECHO.
#[test]
fn duplicate_cookie_is_answered_with_cookie_ack() {
    let mut rig = Rig::in_state(State::CookieWait);
    let (ours, cookie) = issue_cookie(&mut rig, PEER_TAG);
    let echo = packet(ours, |b| b.cookie_echo(&cookie).expect("room"));
    for _ in 0..3 {
        assert_eq!(rig.input_bytes(&echo), Ok(()));
        assert_eq!(rig.sent_packets(), ["P: COOKIE-ACK"]);
    }
    assert_eq!((rig.event(), rig.event()), (Some(Event::Up { streams: 10 }), None));
    // §5.2.4 step 3: the COOKIE ACK is repeated even after the cookie has expired.
    rig.now += Duration::from_secs(3600);
    assert_eq!(rig.input_bytes(&echo), Ok(()));
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ACK"]);
    assert_eq!((rig.event(), rig.state()), (None, State::Established));
}

// RFC 9260 §5.2.4 action B in ESTABLISHED: the peer's new tag is adopted if no DATA was sent or received with the old
// tag. Otherwise the cookie is ignored.
#[test]
fn late_collision_leaves_the_association_established() {
    for (received, sent, taken) in
        [(false, false, true), (true, false, false), (false, true, false)]
    {
        let mut rig = Rig::in_state(State::CookieWait);
        let tag = Tag(0x5555_5555);
        let (ours, cookie) = issue_cookie(&mut rig, tag);
        rig.init_ack().expect("acceptable");
        rig.sent_packets();
        rig.input(|b| b.cookie_ack().expect("room")).expect("acceptable");
        if received {
            rig.input(|b| push_data(b, &data(1), b"data")).expect("taken");
        }
        if sent {
            rig.upper.queue.push_back((1, 100));
            rig.sent_packets();
            let header =
                SackHeader { cumulative: rig.association.identity.local_tsn, a_rwnd: 65_536 };
            rig.input(|b| b.sack(header, &[], &[]).expect("room")).expect("new");
        }
        rig.sent_packets();
        let result = rig.input_tagged(ours, |b| b.cookie_echo(&cookie).expect("room"));
        assert_eq!(result.is_ok(), taken);
        let (tag, answer) =
            if taken { (tag, vec!["55555555: COOKIE-ACK"]) } else { (PEER_TAG, vec![]) };
        assert_eq!(rig.association.peer_tag(), tag);
        assert_eq!(rig.sent_packets(), answer);
        assert_eq!((rig.event(), rig.event()), (Some(Event::Up { streams: 10 }), None));
    }
}

// RFC 9260 §5.2.2, §5.2.4 action A, §5.2.4.1: a cookie of the restarted peer restarts the association.
#[test]
fn peer_restart_cookie_restarts_the_association() {
    for state in
        [State::Established, State::ShutdownPending, State::ShutdownSent, State::ShutdownReceived]
    {
        let mut rig = Rig::in_state(state);
        let before = rig.association.local_tag();
        let tag = Tag(0x5555_5555);
        let (ours, cookie) = issue_cookie(&mut rig, tag);
        // §5.2.2: the INIT ACK has a new tag, and the association is still unchanged.
        assert_ne!(ours, before);
        assert_eq!((rig.state(), rig.association.local_tag()), (state, before));
        let result = rig.input_tagged(ours, |b| {
            b.cookie_echo(&cookie).expect("room");
            push_data(b, &data(1), b"again");
        });
        assert_eq!(result, Ok(()), "{state:?}");
        assert_eq!(rig.event(), Some(Event::Restarted { streams: 10 }));
        assert_eq!((rig.state(), rig.association.local_tag()), (State::Established, ours));
        assert_eq!(rig.sent_packets(), ["55555555: COOKIE-ACK SACK(1)"]);
        // Packets of the old association are dropped.
        let old = rig.input_tagged(before, |b| push_data(b, &data(1), b"old"));
        assert_eq!(old, Err(DropReason::BadTag));
    }
}

// The restart ends the sessions of the earlier association. The flight records explain this end, so they are kept.
#[test]
fn peer_restart_keeps_flight_records() {
    let mut rig = Rig::established();
    rig.association.record(Record::new(rig.now, Kind::ErrorFound, 3, 4));
    let (ours, cookie) = issue_cookie(&mut rig, Tag(0x5555_5555));
    rig.input_tagged(ours, |b| b.cookie_echo(&cookie).expect("room")).expect("a restart");
    assert_eq!(rig.event(), Some(Event::Restarted { streams: 10 }));
    let records = rig.association.sender().records().0;
    let seen: Vec<_> = records.iter().map(|r| (r.kind(), r.number, r.answer)).collect();
    assert_eq!(seen, [(Kind::ErrorFound, 3, 4)]);
}

// RFC 9260 §9.2, §5.2.4 action A: in SHUTDOWN-ACK-SENT, a restart is refused and the SHUTDOWN ACK is repeated.
#[test]
fn restart_in_shutdown_ack_sent_is_refused() {
    let mut rig = Rig::established();
    let (ours, cookie) = issue_cookie(&mut rig, Tag(0x5555_5555));
    let cumulative = rig.association.identity.local_tsn.sub(1);
    rig.input(|b| b.shutdown(cumulative).expect("room")).expect("acceptable");
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    assert_eq!(rig.event(), Some(Event::PeerShutdown));
    let restart = rig.input_tagged(ours, |b| b.cookie_echo(&cookie).expect("room"));
    assert_eq!(restart, Err(DropReason::UnexpectedChunk));
    assert_eq!(rig.sent_packets(), ["P: ERROR(10) SHUTDOWN-ACK"]);
    // The only reply to an INIT is the SHUTDOWN ACK.
    let init = rig.input_tagged(Tag::NONE, |b| b.init(&peer_header(), &[DDP]).expect("room"));
    assert_eq!(init, Err(DropReason::UnexpectedChunk));
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    // For the restarted peer the SHUTDOWN ACK is out of the blue. The peer's SHUTDOWN COMPLETE reflects the tag.
    let complete = rig.input_tagged(PEER_TAG, |b| b.shutdown_complete(true).expect("room"));
    assert_eq!((complete, rig.event()), (Ok(()), Some(Event::Closed(CloseReason::Shutdown))));
}

// RFC 9260 §5.2.4 action C and combinations not in table 12, §5.1.5: damaged, foreign and stale cookies are discarded.
#[test]
fn foreign_or_unmatched_cookies_are_discarded() {
    let mut rig = Rig::established();
    let (ours, cookie) = issue_cookie(&mut rig, Tag(0x5555_5555));
    let mut changed = cookie.clone();
    changed[20] ^= 1;
    for (tag, bytes) in
        [(ours, &changed), (PEER_TAG, &cookie), (rig.association.local_tag(), &cookie)]
    {
        let result = rig.input_tagged(tag, |b| b.cookie_echo(bytes).expect("room"));
        assert_eq!(result, Err(DropReason::BadCookie));
    }
    assert_eq!(rig.sent_packets(), [""; 0]);
    // §5.2.4 step 3: the cookie has expired.
    rig.now += Duration::from_secs(61);
    let result = rig.input_tagged(ours, |b| b.cookie_echo(&cookie).expect("room"));
    assert_eq!(result, Err(DropReason::StaleCookie));
    assert_eq!(rig.sent_packets(), ["55555555: ERROR(3)"]);
    assert_eq!((rig.state(), rig.event()), (State::Established, None));
    // Cookie of another association between the same ends: its tie tags do not match.
    let config = std::sync::Arc::new(Config::default());
    let other = Association::connect(config, secrets(), ends(), PACKET, rig.now);
    let mut second = Rig { now: rig.now, association: other, upper: super::rig::Upper::new() };
    second.sent_packets();
    let (tag, cookie) = issue_cookie(&mut second, Tag(0x6666_6666));
    let result = rig.input_tagged(tag, |b| b.cookie_echo(&cookie).expect("room"));
    assert_eq!(result, Err(DropReason::BadCookie));
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::Established, 0));
}

// RFC 9260 §3.3.2: an INIT with an illegal value is refused, and does not affect the existing association.
#[test]
fn unacceptable_inits_leave_the_association_unchanged() {
    let mut rig = Rig::established();
    let header = InitHeader { tag: Tag(0x5555_5555), ..peer_header() };
    let cases: [(InitHeader, &[Parameter<'_>], &[&str]); 5] = [
        (InitHeader { tag: Tag::NONE, ..header }, &[DDP], &[]),
        (InitHeader { a_rwnd: 1499, ..header }, &[DDP], &["55555555: ABORT(7)"]),
        (InitHeader { outbound_streams: 0, ..header }, &[DDP], &["55555555: ABORT(7)"]),
        (header, &[DDP, Parameter::HostName(&[0, 11, 0, 6, b'h', 0])], &["55555555: ABORT(5)"]),
        (header, &[], &["55555555: ABORT(2)"]),
    ];
    for (header, parameters, answer) in cases {
        let result = rig.input_tagged(Tag::NONE, |b| b.init(&header, parameters).expect("room"));
        assert!(result.is_err());
        assert_eq!(rig.sent_packets(), answer);
        assert_eq!(rig.state(), State::Established);
    }
}

// RFC 9260 §6.2, §3.3.10.9: a DATA chunk without user data is answered with an ABORT.
#[test]
fn data_chunk_without_user_data_aborts() {
    let mut rig = Rig::established();
    let result = rig.input(|b| {
        let tsn = PEER_TSN.0.to_be_bytes();
        b.push_chunk(0, 7, &[&tsn[..], &[0; 8]].concat()).expect("room");
        push_data(b, &data(2), b"not looked at");
    });
    assert_eq!(result, Err(DropReason::Violation));
    assert_eq!(rig.sent_packets(), ["P: ABORT(9)"]);
    let fault = Fault::Data(Violation::NoUserData);
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Fault(fault))));
    assert!(rig.upper.received.is_empty());
}
