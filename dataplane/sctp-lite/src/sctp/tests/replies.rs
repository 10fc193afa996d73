//! Replies that a peer, or an attacker who forges its packets, elicits from an association. Each reply fits into one
//! packet. A reply that cannot be sent does not block other packets, and is dropped eventually.

use core::time::Duration;

use wire::sctp::{Cause, Chunk, InitHeader, Packet, Parameter, Tag};

use super::rig::{Batch, PEER_TAG, Rig, STATES, data, packet, peer_header, push_data};
use crate::sctp::pending::Reply;
use crate::sctp::single_chunk::SingleChunkPacket;
use crate::sctp::{
    CloseReason, Config, DropReason, Event, Fault, InputResult, MIN_PACKET, State, Stats,
};

const DDP: Parameter<'_> = Parameter::Adaptation(1);
const COOKIE: Parameter<'_> = Parameter::StateCookie(b"cookie");

/// Returns the bytes of a parameter of type `kind`, `len` bytes with its header.
fn parameter(kind: u16, len: usize) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend((len as u16).to_be_bytes());
    bytes.resize(len, b'a');
    bytes
}

fn stats(rig: &Rig) -> &Stats {
    rig.association.stats()
}

/// Returns the first cause of the first chunk of a packet.
fn cause_of(bytes: &[u8]) -> (u16, Vec<u8>) {
    let raw = Packet::new(bytes).expect("a packet").chunks().next().expect("a chunk");
    let causes = match Chunk::parse(raw.expect("whole")) {
        Ok(Chunk::Abort { causes, .. } | Chunk::Error(causes)) => causes,
        other => panic!("{other:?}"),
    };
    match causes.into_iter().next() {
        Some(Ok(
            cause @ (Cause::UnresolvableAddress(info)
            | Cause::UnrecognizedChunk(info)
            | Cause::UnrecognizedParameters(info)),
        )) => (cause.code(), info.to_vec()),
        other => panic!("{other:?}"),
    }
}

// RFC 9260 §3.3.2.1.4, §3.3.10.5: a forged INIT with a host name of any length is answered with an ABORT that repeats
// the beginning of the name. The association continues.
#[test]
fn a_host_name_of_any_length_suppresses_no_answer() {
    for len in [8, 132, 400, 480, 484, 492, 1000, 3000] {
        let host = parameter(11, len);
        let mut rig = Rig::established();
        let header = InitHeader { tag: Tag(0x5555_5555), ..peer_header() };
        let parameters = [DDP, Parameter::HostName(&host)];
        let result = rig.input_tagged(Tag::NONE, |b| b.init(&header, &parameters).expect("room"));
        assert_eq!(result, Err(DropReason::BadInit));
        let sent = rig.packets();
        assert_eq!(sent.len(), 1, "{len}");
        assert_eq!(rig.describe(&sent[0]), "55555555: ABORT(5)");
        assert!(sent[0].len() <= MIN_PACKET);
        let (code, echoed) = cause_of(&sent[0]);
        assert_eq!((code, &echoed[..4]), (5, &host[..4]), "with type and length");
        assert!(host.starts_with(&echoed));
        rig.input(|b| push_data(b, &data(1), b"data")).expect("as before");
        assert_eq!(rig.sent_packets(), ["P: SACK(1)"]);
        assert_eq!(stats(&rig).unsent, 0);
    }
}

// RFC 9260 §5.1: an INIT ACK with a host name is answered with an ABORT, and the association ends.
#[test]
fn a_host_name_of_any_length_in_an_init_ack_ends_the_attempt() {
    for len in [8, 484, 492, 1000, 3000] {
        let host = parameter(11, len);
        let mut rig = Rig::in_state(State::CookieWait);
        let result = rig.input_init_ack(&peer_header(), &[COOKIE, DDP, Parameter::HostName(&host)]);
        assert_eq!(result, Err(DropReason::BadInit));
        assert_eq!(rig.sent_packets(), ["P: ABORT(5)"], "{len}");
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Fault(Fault::InitAck))));
        assert!(rig.association.is_done());
        assert_eq!(rig.association.poll_timeout(), None);
    }
}

// RFC 9260 §3.2, §3.2.2: unknown chunks and parameters of any length are reported, also in the smallest packet.
#[test]
fn long_unknown_chunks_and_parameters_are_reported() {
    for len in [4, 100, 500, 600, 3000] {
        let mut rig = Rig::established();
        rig.association.set_path_mtu(rig.now, 0);
        rig.input(|b| b.push_chunk(0xfe, 0, &vec![2; len]).expect("room")).expect("skipped");
        let sent = rig.packets();
        assert_eq!(rig.describe(&sent[0]), "P: ERROR(6)", "{len}");
        assert_eq!(cause_of(&sent[0]).1[..4], [0xfe, 0, ((len + 4) >> 8) as u8, (len + 4) as u8]);
        assert!(sent[0].len() <= MIN_PACKET);
    }
    // Short parameters are reported, even after an omitted long parameter.
    let (long, short) = (parameter(0xc0fe, 1000), parameter(0xc0fe, 8));
    let unknown = |bytes| Parameter::Unknown { bytes, skip: true, report: true };
    let parameters = [COOKIE, DDP, unknown(&long), unknown(&short)];
    let mut rig = Rig::in_state(State::CookieWait);
    rig.input_init_ack(&peer_header(), &parameters).expect("acceptable");
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO ERROR(8)"]);
}

// RFC 9260 §3.2.2: unknown parameters are reported in order of arrival, up to a limit of 256 bytes.
#[test]
fn reports_of_unknown_parameters_are_bounded() {
    let (long, short) = (parameter(0xc0fe, 96), parameter(0xc0fe, 40));
    let unknown = |bytes| Parameter::Unknown { bytes, skip: true, report: true };
    let longs = [unknown(&long); 3];
    let mut rig = Rig::in_state(State::CookieWait);
    let parameters = [&[COOKIE, DDP], &longs[..], &[unknown(&short); 2]].concat();
    rig.input_init_ack(&peer_header(), &parameters).expect("acceptable");
    // 100 + 100 + 44 bytes: a parameter that exceeds the limit is omitted, and a shorter parameter after it is
    // reported.
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO ERROR(8,8,8)"]);
}

// RFC 9260 §3.3.3: a cookie longer than `max_cookie` is refused.
#[test]
fn cookie_above_the_bound_is_refused() {
    for (len, answer) in [(100, "P: COOKIE-ECHO"), (101, "P: ABORT(4)"), (1000, "P: ABORT(4)")] {
        let mut rig = Rig::active(Config { max_cookie: 100, ..Config::default() });
        rig.sent_packets();
        let cookie = vec![0xc0; len];
        let result = rig.input_init_ack(&peer_header(), &[Parameter::StateCookie(&cookie), DDP]);
        assert_eq!((result.is_ok(), rig.sent_packets()), (len == 100, vec![answer.to_string()]));
    }
}

// RFC 9260 §3.3.6: a HEARTBEAT ACK repeats the whole value. If it does not fit a packet of the path, it is dropped,
// together with the pending replies after it.
#[test]
fn oversized_heartbeat_ack_is_dropped() {
    let mut rig = Rig::established();
    rig.association.set_path_mtu(rig.now, 0);
    rig.input(|b| b.heartbeat(&[1; 900]).expect("room")).expect("not an error");
    assert_eq!((rig.sent_packets().len(), stats(&rig).unsent), (0, 1));
    rig.input(|b| b.heartbeat(&[1; 100]).expect("room")).expect("not an error");
    assert_eq!(rig.sent_packets(), ["P: HEARTBEAT-ACK"]);
    // One HEARTBEAT exceeds the length limit, and two exceed the number of pending replies.
    rig.input(|b| b.heartbeat(&[1; 2000]).expect("room")).expect("not an error");
    for _ in 0..6 {
        rig.input(|b| b.heartbeat(&[1; 8]).expect("room")).expect("not an error");
    }
    assert_eq!(stats(&rig).unsent, 1 + 1 + 2);
}

// An ABORT or SHUTDOWN COMPLETE for which the batch has no room is dropped after a time-out.
#[test]
fn last_packet_without_room_times_out() {
    let ends: [fn(&mut Rig); 3] = [
        |rig| rig.association.abort(rig.now, b"enough"),
        |rig| {
            rig.association.shutdown(rig.now);
            rig.sent_packets();
            rig.input(|b| b.shutdown_ack().expect("room")).expect("acceptable");
        },
        |rig| {
            let beyond = rig.association.identity.local_tsn.add(1000);
            rig.input(|b| b.shutdown(beyond).expect("room")).expect_err("never sent");
        },
    ];
    for end in ends {
        let mut rig = Rig::established();
        end(&mut rig);
        assert!(matches!(rig.event(), Some(Event::Closed(_))));
        rig.without_room();
        assert!(!rig.association.is_done());
        let took = rig.wait_without_room();
        assert!(took <= Duration::from_secs(5), "{took:?}");
        assert!(rig.association.is_done());
        assert_eq!((rig.sent_packets().len(), stats(&rig).unsent), (0, 1));
        // If the batch has room before the time-out, the last packet is sent and no timer remains.
        let mut rig = Rig::established();
        end(&mut rig);
        rig.event();
        rig.without_room();
        assert_eq!(rig.sent_packets().len(), 1);
        assert!(rig.association.is_done());
        assert_eq!((rig.association.poll_timeout(), stats(&rig).unsent), (None, 0));
    }
}

// An association whose batches are always full ends by the timers that also detect a silent peer: the timers of INIT,
// COOKIE ECHO, HEARTBEAT, data and SHUTDOWN.
#[test]
fn association_without_tx_room_times_out_in_every_state() {
    for state in STATES {
        let mut rig = Rig::in_state(state);
        while rig.event().is_some() {}
        rig.wait_without_room();
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)), "{state:?}");
        assert!(rig.association.is_done(), "{state:?}");
    }
    // The batch has no room even for the first packet.
    let mut rig = Rig::active(Config::default());
    rig.wait_without_room();
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
    assert_eq!(stats(&rig).setup_retransmitted, 0);
    let mut rig = Rig::active(Config::default());
    rig.sent_packets();
    rig.init_ack().expect("acceptable");
    rig.wait_without_room();
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
    // The batch has no room for new data, which is never sent.
    let mut rig = Rig::established();
    rig.upper.queue.push_back((1, 100));
    rig.wait_without_room();
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
}

// A short time without room ends no association, and the due chunks are sent afterwards.
#[test]
fn due_chunks_are_sent_when_room_returns() {
    let mut rig = Rig::active(Config::default());
    rig.without_room();
    rig.now += Duration::from_millis(500);
    assert_eq!(rig.sent_packets(), ["0: INIT"]);
    rig.init_ack().expect("acceptable");
    rig.without_room();
    rig.now += Duration::from_millis(500);
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO"]);
    assert_eq!(stats(&rig).setup_retransmitted, 0);
}

// RFC 6951 §5.4, RFC 9260 §8.5: only this end's tag or a valid cookie proves that the peer sent a packet.
#[test]
fn init_packet_is_not_verified() {
    let mut rig = Rig::established();
    let ours = rig.association.local_tag();
    let mut accepted = |bytes: &[u8]| -> InputResult {
        let accepted = rig.accept_bytes(bytes);
        rig.sent_packets();
        accepted
    };
    let init = |tag| packet(tag, |b| b.init(&peer_header(), &[DDP]).expect("room"));
    let host = parameter(11, 600);
    let refused = packet(Tag::NONE, |b| {
        b.init(&peer_header(), &[Parameter::HostName(&host)]).expect("room");
    });
    let seen = accepted(&init(Tag::NONE));
    assert_eq!(seen, InputResult { verified: false, reply_pending: true, result: Ok(()) });
    let seen = accepted(&refused);
    assert_eq!((seen.verified, seen.reply_pending, seen.result.is_err()), (false, true, true));
    let blind: [Vec<u8>; 5] = [
        init(ours),
        init(Tag(1)),
        packet(Tag(1), |b| push_data(b, &data(1), b"data")),
        packet(Tag(1), |b| b.abort(false, &[]).expect("room")),
        packet(ours, |b| b.cookie_echo(&[7; 64]).expect("room")),
    ];
    for bytes in &blind {
        let seen = accepted(bytes);
        assert_eq!((seen.verified, seen.reply_pending), (false, false));
    }
    // Packets with this end's tag are verified, even if they are dropped.
    let own = [
        (packet(ours, |b| push_data(b, &data(1), b"data")), true),
        (packet(ours, |b| push_data(b, &data(1), b"data")), true),
        (packet(ours, |b| b.push_chunk(0x3e, 0, b"what").expect("room")), false),
        (packet(ours, |b| b.shutdown_complete(false).expect("room")), false),
    ];
    for (bytes, used) in &own {
        let seen = accepted(bytes);
        assert_eq!((seen.verified, seen.result.is_ok()), (true, *used));
    }
    // An ABORT that reflects the peer's tag is not verified: the peer may have lost its state. Nevertheless, the ABORT
    // ends the association.
    assert!(!accepted(&packet(PEER_TAG, |b| b.abort(true, &[]).expect("room"))).verified);
}

// The reply to a packet that is not verified can be sent alone. If the batch has no room, the reply is dropped, because
// later packets may come from another source address.
#[test]
fn reply_is_written_alone_or_dropped_without_room() {
    let mut rig = Rig::established();
    rig.upper.queue.push_back((1, 100));
    let init = packet(Tag::NONE, |b| b.init(&peer_header(), &[DDP]).expect("room"));
    assert!(rig.accept_bytes(&init).reply_pending);
    assert!(!rig.accept_bytes(&init).reply_pending, "a reply is already pending");
    let mut batch = Batch::new();
    rig.association.poll_reply(rig.now, &mut batch);
    assert_eq!(batch.packets.len(), 1);
    assert_eq!(rig.describe(&batch.packets[0]), "P: INIT-ACK");
    assert!(rig.accept_bytes(&init).reply_pending);
    let mut full = Batch::new();
    full.room = 0;
    rig.association.poll_reply(rig.now, &mut full);
    assert_eq!(rig.sent_packets(), ["P: DATA(1)"]);
    assert_eq!((stats(&rig).inits_answered, stats(&rig).unsent), (2, 2));
}

#[test]
fn dropped_reply_is_counted_and_not_sent() {
    let mut rig = Rig::established();
    let init = packet(Tag::NONE, |b| b.init(&peer_header(), &[DDP]).expect("room"));
    assert!(rig.accept_bytes(&init).reply_pending);
    rig.association.drop_reply();
    assert_eq!((rig.sent_packets().len(), stats(&rig).unsent), (0, 1));
    rig.association.drop_reply();
    assert_eq!(stats(&rig).unsent, 1, "no reply was pending");
}

// A chunk that fits no packet is dropped and counted, and does not prevent the transmission of data.
#[test]
fn oversized_chunk_is_dropped_and_does_not_block_others() {
    let mut rig = Rig::established();
    let from = stats(&rig).packets_out;
    rig.association.pending_replies.reply =
        Some(Box::new(Reply::Chunk(SingleChunkPacket::too_long())));
    rig.upper.queue.push_back((1, 100));
    assert_eq!(rig.sent_packets(), ["P: DATA(1)"]);
    assert_eq!((stats(&rig).unsent, stats(&rig).packets_out - from), (1, 1));
    rig.association.abort(rig.now, b"enough");
    rig.association.pending_replies.last_packet = Some(Box::new(SingleChunkPacket::too_long()));
    assert_eq!(rig.sent_packets(), [""; 0]);
    assert_eq!((stats(&rig).unsent, stats(&rig).packets_out - from), (2, 1));
    rig.event();
    assert!(rig.association.is_done());
}
