//! Heartbeats and path failure (RFC 9260 §8.1 to §8.3).

use core::time::Duration;

use transport::recorder::{Kind, Record};
use wire::sctp::{Chunk, Packet};

use super::rig::Rig;
use crate::sctp::{CloseReason, Config, DropReason, Event, State};

fn value_of(bytes: &[u8]) -> Vec<u8> {
    let raw = Packet::new(bytes).expect("a packet").chunks().next().expect("a chunk");
    match Chunk::parse(raw.expect("whole")) {
        Ok(Chunk::Heartbeat(value) | Chunk::HeartbeatAck(value)) => value.to_vec(),
        other => panic!("{other:?} is not a HEARTBEAT"),
    }
}

// RFC 9260 §8.3, §3.3.6: the reply is sent at once and repeats the whole value, other parameters included.
#[test]
fn heartbeats_are_answered() {
    let mut rig = Rig::established();
    let value = [0, 1, 0, 7, 1, 2, 3, 0, 0xc0, 0xff, 0, 4];
    rig.input(|b| b.push_chunk(4, 0, &value).expect("room")).expect("answered");
    let packets = rig.packets();
    assert_eq!(rig.describe(&packets[0]), "P: HEARTBEAT-ACK");
    assert_eq!(value_of(&packets[0]), value);
    assert_eq!(rig.association.stats().heartbeats_in, 1);
}

// RFC 9260 §8.3, §5.1 C: in COOKIE-ECHOED, every packet begins with COOKIE ECHO.
#[test]
fn heartbeat_in_cookie_echoed_is_answered_after_cookie_echo() {
    let mut rig = Rig::cookie_echoed();
    rig.input(|b| b.heartbeat(b"when").expect("room")).expect("answered");
    assert_eq!(rig.sent_packets(), ["P: COOKIE-ECHO HEARTBEAT-ACK"]);
    assert_eq!(rig.sent_packets(), [""; 0]);
}

// RFC 9260 §8.3: an idle peer receives one HEARTBEAT per HB.interval plus RTO, with jitter.
#[test]
fn idle_peer_is_sent_a_heartbeat() {
    let mut rig = Rig::established();
    for round in 1..=5 {
        let from = rig.now;
        let at = rig.association.poll_timeout().expect("a heartbeat to come");
        let silence = at.saturating_since(from);
        let rto = rig.association.sender().rto();
        let interval = Duration::from_secs(30);
        assert!(silence >= interval + rto / 2 && silence <= interval + rto * 3 / 2, "{silence:?}");
        rig.now = at;
        rig.association.handle_timeout(at);
        let packets = rig.packets();
        assert_eq!(rig.describe(&packets[0]), "P: HEARTBEAT");
        rig.now += Duration::from_millis(20);
        let value = value_of(&packets[0]);
        assert_eq!(rig.input(|b| b.heartbeat_ack(&value).expect("room")), Ok(()));
        assert_eq!(rig.association.stats().heartbeats_answered, round);
        // A repeated HEARTBEAT ACK is dropped.
        let second = rig.input(|b| b.heartbeat_ack(&value).expect("room"));
        assert_eq!(second, Err(DropReason::UnexpectedChunk));
    }
    assert_eq!((rig.state(), rig.event()), (State::Established, None));
}

#[test]
fn idle_association_expires_old_records() {
    let mut rig = Rig::established();
    for number in 0..9 {
        rig.association.record(Record::new(rig.now, Kind::ErrorFound, number, 0));
    }
    let begin = rig.now;
    let mut records_left = Vec::new();
    while rig.now.saturating_since(begin) < Duration::from_secs(120) {
        rig.now = rig.association.poll_timeout().expect("a heartbeat to come");
        rig.association.handle_timeout(rig.now);
        let value = value_of(&rig.packets()[0]);
        rig.input(|b| b.heartbeat_ack(&value).expect("room")).expect("answered");
        records_left.push(rig.association.sender().records().0.len());
    }
    assert_eq!(
        (records_left.first(), records_left.last()),
        (Some(&9), Some(&2)),
        "{records_left:?}"
    );
}

// RFC 9260 §8.1, §8.3: each unanswered HEARTBEAT is an error. Above Association.Max.Retrans the association ends.
#[test]
fn unanswered_heartbeats_make_the_peer_unreachable() {
    let mut rig = Rig::established();
    let sent = rig.wait(Duration::from_secs(7200));
    assert_eq!(sent.len(), 11);
    assert!(sent.iter().all(|(_, words)| words == "P: HEARTBEAT"), "{sent:?}");
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
    assert!(rig.association.is_done());
}

// RFC 9260 §8.3, §6.3.3 E2: the time-out doubles with each unanswered HEARTBEAT, up to RTO.Max. §3.3.5: each HEARTBEAT
// has a different nonce.
#[test]
fn an_unanswered_heartbeat_doubles_the_time_for_the_next() {
    let mut rig = Rig::established();
    let (rto, max) = (rig.association.sender().rto(), rig.association.config.send.max_rto);
    let mut values = Vec::new();
    for unanswered in 0..9 {
        while values.len() == unanswered {
            rig.now = rig.association.poll_timeout().expect("a heartbeat to come");
            rig.association.handle_timeout(rig.now);
            values.extend(rig.packets().iter().map(|packet| value_of(packet)));
        }
        let until = rig.association.poll_timeout().expect("time for an answer");
        let time = (rto * (1 << unanswered.min(6))).min(max);
        assert_eq!(until.saturating_since(rig.now), time, "{unanswered}");
    }
    values.sort();
    values.dedup();
    assert_eq!(values.len(), 9);
}

// RFC 9260 §8.1, §8.3: even a late HEARTBEAT ACK restarts the error count.
#[test]
fn any_heartbeat_ack_resets_the_error_count() {
    let mut rig = Rig::established();
    for _ in 0..3 {
        let mut last = None;
        for _ in 0..10 {
            let packets = loop {
                let at = rig.association.poll_timeout().expect("a heartbeat to come");
                rig.now = at;
                rig.association.handle_timeout(at);
                let packets = rig.packets();
                if !packets.is_empty() {
                    break packets;
                }
            };
            last = Some(value_of(&packets[0]));
        }
        // The HEARTBEAT ACK arrives after its time-out.
        rig.now += Duration::from_secs(10);
        rig.association.handle_timeout(rig.now);
        let value = last.expect("sent");
        assert_eq!(rig.input(|b| b.heartbeat_ack(&value).expect("room")), Ok(()));
        assert_eq!(rig.association.errors, 0);
    }
    assert_eq!(rig.state(), State::Established);
}

// RFC 9260 §3.3.5, §5.4: only a host that received the HEARTBEAT can answer it.
#[test]
fn heartbeat_ack_with_wrong_nonce_is_ignored() {
    let mut rig = Rig::established();
    rig.wait(Duration::from_secs(40));
    let errors = rig.association.errors;
    for value in [&[][..], &[0, 1, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0], &[0, 1, 0, 4], &[0, 1, 0, 200]] {
        let result = rig.input(|b| b.heartbeat_ack(value).expect("room"));
        assert_eq!(result, Err(DropReason::UnexpectedChunk));
    }
    assert_eq!(rig.association.errors, errors);
    assert_eq!(rig.association.stats().heartbeats_answered, 0);
}

// RFC 9260 §8.3: HEARTBEATs stop if they are disabled, and after a SHUTDOWN was sent.
#[test]
fn heartbeats_stop_when_disabled_or_shutting_down() {
    let rig = Rig::with(Config { heartbeat_interval: None, ..Config::default() });
    assert_eq!(rig.association.poll_timeout(), None);
    let mut rig = Rig::in_state(State::ShutdownSent);
    let sent = rig.wait(Duration::from_secs(120));
    assert!(
        !sent.is_empty() && sent.iter().all(|(_, words)| words == "P: SHUTDOWN(0)"),
        "{sent:?}"
    );
    assert_eq!(
        rig.input(|b| b.heartbeat(b"when").expect("room")),
        Err(DropReason::UnexpectedChunk)
    );
}
