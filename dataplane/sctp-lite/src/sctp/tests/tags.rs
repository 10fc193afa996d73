//! Verification tags (RFC 9260 §8.5), unknown chunks (§3.2), and the effect of each chunk in each state.

use transport::recorder::Kind;
use wire::sctp::{Cause, PacketBuilder, Parameter, Tag};

use super::rig::{PEER_TAG, PEER_TSN, Rig, STATES, data, packet, peer_header, push_data};
use crate::sctp::{CloseReason, Config, DropReason, Event, State};

/// Function that writes the chunks of a packet.
type WriteFn<'a> = &'a dyn Fn(&mut PacketBuilder<'_>);
/// Function that writes the chunks of a packet, with values that depend on the association.
type WriteWithRig<'a> = &'a dyn Fn(&Rig, &mut PacketBuilder<'_>);

// RFC 9260 §8.5: in any state, a packet with a wrong tag changes nothing.
#[test]
fn wrong_tag_is_silently_dropped() {
    for state in STATES {
        let chunks: [(&str, WriteFn<'_>); 9] = [
            ("DATA", &|b| push_data(b, &data(1), b"data")),
            ("ABORT", &|b| b.abort(false, &[]).expect("room")),
            ("ABORT T", &|b| b.abort(true, &[]).expect("room")),
            ("SHUTDOWN", &|b| b.shutdown(PEER_TSN).expect("room")),
            ("SHUTDOWN-COMPLETE", &|b| b.shutdown_complete(false).expect("room")),
            ("COOKIE-ACK", &|b| b.cookie_ack().expect("room")),
            ("HEARTBEAT", &|b| b.heartbeat(b"when").expect("room")),
            ("ERROR", &|b| b.error(&[Cause::StaleCookie(1)]).expect("room")),
            ("INIT-ACK", &|b| {
                b.init_ack(
                    &peer_header(),
                    &[Parameter::StateCookie(b"c"), Parameter::Adaptation(1)],
                )
                .expect("room");
            }),
        ];
        for (name, write) in chunks {
            for tag in [Tag(1), Tag::NONE] {
                let mut rig = Rig::in_state(state);
                let timer = rig.association.poll_timeout();
                let result = rig.input_tagged(tag, write);
                assert_eq!(result, Err(DropReason::BadTag), "{name} in {state:?}");
                assert_eq!((rig.state(), rig.event(), rig.sent_packets().len()), (state, None, 0));
                assert_eq!(rig.association.poll_timeout(), timer);
            }
        }
    }
}

// RFC 9260 §8.5.1 B: the T bit of an ABORT indicates whether its tag is this end's or the peer's.
#[test]
fn abort_tag_must_match_its_t_bit() {
    let cases = [
        (false, false, true), // ours, T clear
        (true, true, true),   // the peer's, T set
        (false, true, false), // ours, T set
        (true, false, false), // the peer's, T clear
    ];
    for (peers, reflected, good) in cases {
        let mut rig = Rig::established();
        let tag = if peers { PEER_TAG } else { rig.association.local_tag() };
        let result = rig.input_tagged(tag, |b| {
            b.abort(reflected, &[Cause::UserInitiatedAbort(b"why")]).expect("room");
            push_data(b, &data(1), b"behind an ABORT nothing is looked at");
        });
        // §9.1: an ABORT elicits no reply.
        assert_eq!(rig.sent_packets(), [""; 0]);
        if good {
            assert_eq!(result, Ok(()));
            let (cause, reason) = (Some(12), b"why"[..].into());
            assert_eq!(
                rig.event(),
                Some(Event::Closed(CloseReason::PeerAborted { cause, reason }))
            );
        } else {
            assert!(result.is_err());
            assert_eq!((rig.state(), rig.event()), (State::Established, None));
        }
        assert!(rig.upper.received.len() <= usize::from(!good));
    }
}

// RFC 9260 §3.3.7: an ABORT with a format error is discarded.
#[test]
fn a_broken_abort_is_discarded() {
    let mut rig = Rig::established();
    let result = rig.input(|b| b.push_chunk(6, 0, &[0, 12, 0, 9, 1]).expect("room"));
    assert_eq!(result, Err(DropReason::BadChunk));
    assert_eq!((rig.state(), rig.event()), (State::Established, None));
}

// RFC 9260 §5.1: an ABORT in reply to the INIT means that the peer refuses the association.
#[test]
fn abort_in_cookie_wait_reports_refused() {
    let mut rig = Rig::in_state(State::CookieWait);
    rig.input(|b| b.abort(false, &[]).expect("room")).expect("accepted");
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Refused { cause: None })));
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::Closed, 0));
    assert_eq!(rig.input(|b| b.cookie_ack().expect("room")), Err(DropReason::Closed));
}

// RFC 9260 §9.1, §8.5.1 B: in COOKIE-WAIT the peer has no state, and no ABORT is sent.
#[test]
fn local_abort_is_sent_once_peer_has_state() {
    for state in STATES {
        let mut rig = Rig::in_state(state);
        while rig.event().is_some() {}
        rig.association.abort(rig.now, b"enough");
        let expected: &[&str] = if state == State::CookieWait { &[] } else { &["P: ABORT(12)"] };
        assert_eq!(rig.sent_packets(), expected, "{state:?}");
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Aborted)));
        assert!(rig.association.is_done());
        rig.association.abort(rig.now, b"again");
        assert_eq!((rig.event(), rig.sent_packets().len()), (None, 0));
        // The flight recorder has a record of the ABORT with its cause.
        let records = rig.association.sender().records().0;
        let aborts = records.iter().filter(|record| record.kind() == Kind::ResetSent);
        let causes: Vec<u32> = aborts.map(|record| record.answer).collect();
        assert_eq!(causes, vec![12; expected.len()], "{state:?}");
    }
}

/// Returns a table with a row per chunk and state: the state after the chunk (`=`: unchanged), the drop reason, and the
/// packets sent.
fn table(chunks: &[(&str, WriteWithRig<'_>)]) -> String {
    let mut table = String::new();
    for (name, write) in chunks {
        for state in STATES {
            let mut rig = Rig::in_state(state);
            let tag = rig.association.local_tag();
            let bytes = packet(tag, |b| write(&rig, b));
            let result = rig.input_bytes(&bytes);
            let after = if rig.state() == state { "=" } else { rig.state().name() };
            let sent = rig.sent_packets().join("; ");
            let dropped =
                result.err().map_or(String::new(), |why| format!(" !{}", &why.name()[5..]));
            table += format!("{name:<17} {:<17} {after}{dropped} {sent}", state.name()).trim_end();
            table.push('\n');
        }
    }
    table
}

// RFC 9260 §4, §5.2.3, §5.2.5, §6, §8.3, §8.5.1, §9.2: the effect of legal and illegal chunks in each state.
#[test]
fn chunk_handling_in_each_state_matches_table() {
    let last_of_ours = |rig: &Rig| rig.association.identity.local_tsn.sub(1);
    let seen = table(&[
        ("DATA", &|_, b| push_data(b, &data(1), b"data")),
        ("COOKIE-ACK", &|_, b| b.cookie_ack().expect("room")),
        ("HEARTBEAT", &|_, b| b.heartbeat(b"when").expect("room")),
        ("SHUTDOWN", &|rig, b| b.shutdown(last_of_ours(rig)).expect("room")),
        ("SHUTDOWN-ACK", &|_, b| b.shutdown_ack().expect("room")),
        ("SHUTDOWN-COMPLETE", &|_, b| b.shutdown_complete(false).expect("room")),
        ("ABORT", &|_, b| b.abort(false, &[]).expect("room")),
    ]);
    let expected = include_str!("states.txt");
    assert_eq!(seen, expected, "\n{seen}");
}

// RFC 9260 §3.2, table 2: the two high bits of an unknown chunk's type select whether the chunk is reported, and
// whether the packet's later chunks are processed.
#[test]
fn unknown_chunks_are_handled_by_high_bits() {
    for (kind, reported, rest_seen) in
        [(0x3e, false, false), (0x7e, true, false), (0xbe, false, true), (0xfe, true, true)]
    {
        let mut rig = Rig::established();
        let result = rig.input(|b| {
            b.push_chunk(kind, 0, b"what").expect("room");
            push_data(b, &data(1), b"data");
        });
        let expected = if rest_seen { Ok(()) } else { Err(DropReason::UnknownChunk) };
        assert_eq!(
            (result, rig.upper.received.len()),
            (expected, usize::from(rest_seen)),
            "{kind:x}"
        );
        let answer: Vec<&str> = [(reported, "ERROR(6)"), (rest_seen, "SACK(1)")]
            .iter()
            .filter(|(sent, _)| *sent)
            .map(|(_, words)| *words)
            .collect();
        let answer =
            if answer.is_empty() { vec![] } else { vec![format!("P: {}", answer.join(" "))] };
        assert_eq!(rig.sent_packets(), answer);
    }
    // PAD is a known chunk (RFC 4820).
    let mut rig = Rig::established();
    assert_eq!(rig.input(|b| b.pad(64).expect("room")), Ok(()));
    assert_eq!(rig.sent_packets(), [""; 0]);
}

// RFC 9260 §6.5: DATA on an invalid stream is acknowledged and reported, but not delivered.
#[test]
fn data_on_invalid_stream_is_reported() {
    let mut rig = Rig::established();
    let beyond = wire::sctp::DataHeader { stream: 10, ..data(1) };
    rig.input(|b| push_data(b, &beyond, b"data")).expect("counts as received");
    assert_eq!(rig.sent_packets(), ["P: ERROR(1) SACK(1)"]);
    assert!(rig.upper.received.is_empty());
}

// RFC 9260 §6.10: chunks before a partial chunk are processed; the partial chunk is not.
#[test]
fn partial_chunks_are_dropped() {
    let mut rig = Rig::established();
    let mut bytes = packet(rig.association.local_tag(), |b| {
        push_data(b, &data(1), b"good");
        push_data(b, &data(2), b"partial");
    });
    bytes.truncate(bytes.len() - 4);
    assert_eq!(rig.input_bytes(&bytes), Err(DropReason::BadChunk));
    assert_eq!(rig.sent_packets(), ["P: SACK(1)"]);
    assert_eq!(rig.upper.received, [(0, b"good".to_vec())]);
}

// RFC 9260 §10: an ICMP report is accepted only if the quoted packet has a tag of this association.
#[test]
fn icmp_quoting_own_packet_is_accepted() {
    let mut rig = Rig::in_state(State::CookieWait);
    let ours = rig.association.local_tag();
    assert!(rig.association.is_quoted(Tag::NONE, Some(ours)));
    assert!(!rig.association.is_quoted(Tag::NONE, Some(Tag(1))));
    assert!(!rig.association.is_quoted(Tag::NONE, None));
    rig.association.protocol_unreachable(true);
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Unreachable)));

    let mut rig = Rig::established();
    assert!(rig.association.is_quoted(PEER_TAG, None));
    assert!(!rig.association.is_quoted(rig.association.local_tag(), None));
    // A report about an old INIT has no effect.
    rig.association.protocol_unreachable(true);
    assert_eq!(rig.state(), State::Established);
    rig.association.protocol_unreachable(false);
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Unreachable)));
    assert_eq!(rig.sent_packets(), [""; 0]);
    assert_eq!(Config::default().max_retransmits, 10);
}
