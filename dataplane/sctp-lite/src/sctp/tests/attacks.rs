//! Attacks on an association by an off-path attacker or a hostile peer.

use core::time::Duration;

use proptest::prelude::*;
use wire::sctp::{Cause, Packet, Parameter, Ports, Tag, Tsn};

use super::rig::{PEER_TAG, PEER_TSN, Rig, STATES, data, ends, packet, peer_header, push_data};
use crate::sctp::{DropReason, State};

/// Generates a chunk of any type, with any flags and value.
fn any_chunk() -> impl Strategy<Value = (u8, u8, Vec<u8>)> {
    let kind = prop_oneof![4 => 0u8..15, 1 => any::<u8>()];
    (kind, any::<u8>(), prop::collection::vec(any::<u8>(), 0..64))
}

proptest! {
    // Arbitrary chunks with a valid tag cause no panic, and the number of packets sent is bounded.
    #[test]
    fn arbitrary_chunks_with_valid_tag_never_panic(
        state in 0..STATES.len(),
        packets in prop::collection::vec(prop::collection::vec(any_chunk(), 1..6), 1..12),
        tag in 0..3,
    ) {
        let mut rig = Rig::in_state(STATES[state]);
        for chunks in packets {
            let tag = [rig.association.local_tag(), PEER_TAG, Tag::NONE][tag as usize];
            // This test does not check the drop reason.
            let _ = rig.input_tagged(tag, |b| {
                for (kind, flags, value) in &chunks {
                    b.push_chunk(*kind, *flags, value).expect("room");
                }
            });
            prop_assert!(rig.packets().len() < 20);
            rig.wait(Duration::from_secs(2));
        }
    }

    // Arbitrary bytes after a valid common header cause no panic, and the number of packets sent is bounded.
    #[test]
    fn arbitrary_bytes_with_valid_tag_never_panic(state in 0..STATES.len(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut rig = Rig::in_state(STATES[state]);
        let mut packet = packet(rig.association.local_tag(), |_| {});
        packet.extend(bytes);
        let _ = rig.input_bytes(&packet);
        prop_assert!(rig.packets().len() < 20);
    }
}

// RFC 9260 §8.5: packets with guessed tags elicit no reply and change no state.
#[test]
fn guessed_tags_have_no_effect() {
    let mut rig = Rig::established();
    let timer = rig.association.poll_timeout();
    for guess in 1..10_000 {
        let tag = Tag(guess);
        assert_eq!(
            rig.input_tagged(tag, |b| b.abort(false, &[]).expect("room")),
            Err(DropReason::BadTag)
        );
        assert_eq!(
            rig.input_tagged(tag, |b| push_data(b, &data(guess), b"data")),
            Err(DropReason::BadTag)
        );
    }
    assert_eq!(
        (rig.state(), rig.sent_packets().len(), rig.association.poll_timeout()),
        (State::Established, 0, timer)
    );
    assert!(rig.upper.received.is_empty());
}

// INITs that arrive before the next transmission elicit a single INIT ACK. The association is unchanged.
#[test]
fn init_burst_elicits_one_init_ack() {
    let mut rig = Rig::established();
    for i in 0..1000 {
        let header = wire::sctp::InitHeader { tag: Tag(i + 1), ..peer_header() };
        rig.input_tagged(Tag::NONE, |b| {
            b.init(&header, &[Parameter::Adaptation(1)]).expect("room")
        })
        .expect("answered");
    }
    assert_eq!(rig.sent_packets(), ["1: INIT-ACK"]);
    assert_eq!(rig.sent_packets(), [""; 0]);
    assert_eq!((rig.state(), rig.event()), (State::Established, None));
    rig.input(|b| push_data(b, &data(1), b"data")).expect("as before");
}

// RFC 9260 §5.2.1, §5.2.2, §3.3.2: an INIT, valid or not, changes no state, tag or timer of an association in any
// state. A handshake in progress continues.
#[test]
fn init_in_any_state_leaves_the_association_unchanged() {
    let good = wire::sctp::InitHeader { tag: Tag(0x5555_5555), ..peer_header() };
    let adaptation: &[Parameter<'_>] = &[Parameter::Adaptation(1)];
    let inits: [(_, &[Parameter<'_>]); 6] = [
        (good, adaptation),
        (wire::sctp::InitHeader { tag: Tag::NONE, ..good }, adaptation),
        (wire::sctp::InitHeader { a_rwnd: 0, ..good }, adaptation),
        (wire::sctp::InitHeader { outbound_streams: 0, ..good }, adaptation),
        (wire::sctp::InitHeader { inbound_streams: 0, ..good }, adaptation),
        (good, &[]),
    ];
    for state in STATES {
        let mut rig = Rig::in_state(state);
        let timer = rig.association.poll_timeout();
        for (header, parameters) in inits {
            let _ = rig.input_tagged(Tag::NONE, |b| b.init(&header, parameters).expect("room"));
            let _ = rig.sent_packets();
            assert_eq!((rig.state(), rig.event()), (state, None), "{header:?}");
            assert_eq!(rig.association.poll_timeout(), timer, "{header:?} in {state:?}");
        }
        if state == State::CookieEchoed {
            rig.input(|b| b.cookie_ack().expect("room")).expect("the awaited COOKIE ACK");
            assert_eq!(rig.state(), State::Established);
        }
    }
}

// A packet full of chunks that each request a reply elicits a single packet of bounded length.
#[test]
fn packet_of_requesting_chunks_elicits_one_bounded_answer() {
    let mut rig = Rig::established();
    rig.input(|b| {
        while b.remaining() > 600 {
            b.heartbeat(&[1; 8]).expect("room");
            b.push_chunk(0xfe, 0, &[2; 40]).expect("room");
            b.push_chunk(0xc1, 0, &[]).expect("room");
        }
    })
    .expect("skipped unknown chunks");
    let sent: usize = rig.packets().iter().map(Vec::len).sum();
    assert!(sent <= 1480, "{sent} bytes");
    assert_eq!(rig.sent_packets(), [""; 0]);
}

// A HEARTBEAT with a value of up to 1024 bytes, parameter header included, is answered. A longer HEARTBEAT is
// dropped.
#[test]
fn longest_heartbeat_is_answered_or_dropped() {
    for len in [900, 1020, 1500, 3000] {
        let mut rig = Rig::established();
        rig.input(|b| b.heartbeat(&vec![1; len]).expect("room")).expect("not an error");
        let answered = rig.packets().len();
        assert_eq!(answered, usize::from(len <= 1020), "{len}");
        assert_eq!(rig.sent_packets(), [""; 0]);
    }
}

// RFC 9260 §9.2: any number of SHUTDOWNs elicit one SHUTDOWN ACK per call of `poll_transmit`. T5-shutdown-guard ends
// the association.
#[test]
fn shutdown_flood_is_ended_by_the_guard_timer() {
    let mut rig = Rig::in_state(State::ShutdownAckSent);
    for _ in 0..1000 {
        let cumulative = rig.association.identity.local_tsn.sub(1);
        rig.input(|b| b.shutdown(cumulative).expect("room")).expect("answered");
    }
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    rig.wait(Duration::from_secs(301));
    assert_eq!(rig.state(), State::Closed);
}

#[test]
fn shutdown_acknowledging_unsent_data_aborts() {
    let mut rig = Rig::established();
    let beyond = rig.association.identity.local_tsn.add(1000);
    let result = rig.input(|b| b.shutdown(beyond).expect("room"));
    assert_eq!(result, Err(DropReason::Violation));
    assert_eq!(rig.sent_packets(), ["P: ABORT(13)"]);
}

// A SACK of data that was never sent ends the association with an ABORT.
#[test]
fn impossible_sacks_are_dropped() {
    let mut rig = Rig::established();
    let beyond = rig.association.identity.local_tsn.add(1000);
    let header = wire::sctp::SackHeader { cumulative: beyond, a_rwnd: 0 };
    assert_eq!(rig.input(|b| b.sack(header, &[], &[]).expect("room")), Err(DropReason::Violation));
    assert_eq!(rig.sent_packets(), ["P: ABORT(13)"]);
}

#[test]
fn init_or_cookie_echo_not_first_is_dropped() {
    let mut rig = Rig::established();
    let result = rig.input(|b| {
        b.cookie_ack().expect("room");
        b.init(&peer_header(), &[Parameter::Adaptation(1)]).expect("room");
    });
    assert_eq!(result, Err(DropReason::UnexpectedChunk));
    let result = rig.input(|b| {
        push_data(b, &data(1), b"data");
        b.cookie_echo(b"cookie").expect("room");
    });
    assert_eq!(result, Err(DropReason::UnexpectedChunk));
    assert_eq!(rig.sent_packets(), ["P: SACK(1)"]);
    // An INIT with this end's tag instead of zero is dropped, even as the first chunk.
    let first = rig.input(|b| b.init(&peer_header(), &[Parameter::Adaptation(1)]).expect("room"));
    assert_eq!(first, Err(DropReason::BadTag));
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::Established, 0));
}

// ERRORs elicit no reply, regardless of their causes.
#[test]
fn errors_are_not_answered() {
    let mut rig = Rig::established();
    let causes = [Cause::InvalidStream(1), Cause::StaleCookie(1), Cause::NoUserData(Tsn(1))];
    for _ in 0..100 {
        rig.input(|b| b.error(&causes).expect("room")).expect("counted");
    }
    assert_eq!(
        rig.input(|b| b.push_chunk(9, 0, &[0, 4, 0, 3]).expect("room")),
        Err(DropReason::BadChunk)
    );
    assert_eq!((rig.sent_packets().len(), rig.association.stats().errors_in), (0, 300));
}

// DATA with arbitrary TSNs uses bounded memory, and elicits one SACK that fits a packet.
#[test]
fn arbitrary_tsns_use_bounded_memory() {
    let mut rig = Rig::established();
    let mut refused = 0;
    for n in 0..5000u32 {
        let header = wire::sctp::DataHeader { tsn: PEER_TSN.add(n * 7919), ..data(1) };
        refused += u32::from(rig.input(|b| push_data(b, &header, b"data")).is_err());
    }
    assert!(refused > 4000, "{refused}");
    let sent = rig.packets();
    assert!(sent.len() == 1 && sent[0].len() <= 1480);
}

// RFC 9260 §3.1: the owner's flow table excludes packets with other ports. The association itself checks only the
// tag.
#[test]
fn packets_with_other_ports_are_judged_by_tag() {
    let rig = Rig::established();
    assert_eq!(rig.association.ends().ports(), Ports { source: 9899, destination: 4000 });
    let bytes = packet(Tag(1), |_| {});
    let ports = Packet::new(&bytes).expect("a packet").ports();
    assert_eq!(ports, ends().ports().reversed());
}
