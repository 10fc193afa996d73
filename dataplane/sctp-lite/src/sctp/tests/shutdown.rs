//! The shutdown sequence (RFC 9260 §9.2).

use core::time::Duration;

use transport::recorder::{Kind, Record};
use wire::sctp::{Parameter, SackHeader, Tag, chunk_type};

use super::rig::{PEER_TAG, Rig, data, peer_header, push_data};
use crate::sctp::{CloseReason, Config, DropReason, Event, State};

const CLOSED: Option<Event> = Some(Event::Closed(CloseReason::Shutdown));

fn shutdown(rig: &mut Rig) -> Result<(), DropReason> {
    let cumulative = rig.association.identity.local_tsn.sub(1);
    rig.input(|b| b.shutdown(cumulative).expect("room"))
}

fn sack(rig: &mut Rig, n: u32) {
    let cumulative = rig.association.identity.local_tsn.add(n).sub(1);
    let header = SackHeader { cumulative, a_rwnd: 65_536 };
    rig.input(|b| b.sack(header, &[], &[]).expect("room")).expect("new");
}

#[test]
fn local_shutdown_completes() {
    let mut rig = Rig::established();
    rig.input(|b| push_data(b, &data(1), b"data")).expect("taken");
    rig.sent_packets();
    rig.association.shutdown(rig.now);
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN(1)"]);
    assert_eq!(rig.state(), State::ShutdownSent);
    rig.input(|b| b.shutdown_ack().expect("room")).expect("expected");
    assert_eq!((rig.event(), rig.state()), (CLOSED, State::Closed));
    assert!(!rig.association.is_done());
    // §8.5.1 C: the SHUTDOWN COMPLETE has the peer's tag, and no T bit.
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-COMPLETE"]);
    assert!(rig.association.is_done());
    assert_eq!(rig.association.poll_timeout(), None);
}

#[test]
fn peer_shutdown_completes() {
    let mut rig = Rig::established();
    shutdown(&mut rig).expect("expected");
    assert_eq!(rig.event(), Some(Event::PeerShutdown));
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    assert_eq!(rig.state(), State::ShutdownAckSent);
    // A shutdown by the upper layer now has no effect.
    rig.association.shutdown(rig.now);
    assert_eq!((rig.state(), rig.sent_packets().len()), (State::ShutdownAckSent, 0));
    rig.input(|b| b.shutdown_complete(false).expect("room")).expect("expected");
    assert_eq!((rig.event(), rig.sent_packets().len()), (CLOSED, 0));
}

#[test]
fn peer_shutdown_is_recorded_with_its_cumulative_tsn() {
    let mut rig = Rig::established();
    rig.association.record(Record::new(rig.now, Kind::ErrorFound, 1, 2));
    shutdown(&mut rig).expect("expected");
    let record = rig.association.sender().records().0[1];
    let cumulative = rig.association.identity.local_tsn.sub(1).0;
    assert_eq!((record.kind(), record.flags()), (Kind::FinReceived, chunk_type::SHUTDOWN));
    // The cumulative TSN is in the same field as for a SACK.
    assert_eq!((record.number, record.answer), (0, cumulative));
}

// The shutdown sequence starts after all data is acknowledged.
#[test]
fn queued_data_is_acknowledged_before_shutdown() {
    let mut rig = Rig::established();
    rig.upper.queue.extend([(1, 100), (2, 100)]);
    rig.association.shutdown(rig.now);
    assert_eq!(rig.sent_packets(), ["P: DATA(1) DATA(2)"]);
    // A lost chunk is retransmitted first.
    assert_eq!(rig.state(), State::ShutdownPending);
    let sent = rig.wait(Duration::from_secs(5));
    assert!(!sent.is_empty() && sent.iter().all(|(_, words)| words.contains("DATA")), "{sent:?}");
    sack(&mut rig, 1);
    assert_eq!(rig.state(), State::ShutdownPending);
    rig.sent_packets();
    sack(&mut rig, 2);
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN(0)"]);
    assert_eq!(
        (rig.state(), rig.upper.acknowledged.as_slice()),
        (State::ShutdownSent, &[1, 2][..])
    );
}

// The peer's SHUTDOWN acknowledges data; the SHUTDOWN ACK follows once all data is acknowledged (§4 note 6).
#[test]
fn queued_data_is_acknowledged_before_shutdown_ack() {
    let mut rig = Rig::established();
    rig.upper.queue.extend([(1, 100), (2, 1400)]);
    assert_eq!(rig.sent_packets(), ["P: DATA(1)", "P: DATA(2)"]);
    shutdown(&mut rig).expect("expected");
    assert_eq!((rig.event(), rig.state()), (Some(Event::PeerShutdown), State::ShutdownReceived));
    assert_eq!(rig.sent_packets(), [""; 0]);
    let sent = rig.wait(Duration::from_secs(5));
    assert!(!sent.is_empty() && sent.iter().all(|(_, words)| words.contains("DATA")), "{sent:?}");
    sack(&mut rig, 1);
    rig.sent_packets();
    assert_eq!(rig.state(), State::ShutdownReceived);
    let cumulative = rig.association.identity.local_tsn.add(1);
    rig.input(|b| b.shutdown(cumulative).expect("room")).expect("expected");
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    assert_eq!(rig.upper.acknowledged, [1, 2]);
}

// Both ends shut down at the same time.
#[test]
fn crossing_shutdowns_complete() {
    let mut rig = Rig::in_state(State::ShutdownSent);
    shutdown(&mut rig).expect("expected");
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    assert_eq!(rig.state(), State::ShutdownAckSent);
    rig.input(|b| b.shutdown_ack().expect("room")).expect("expected");
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-COMPLETE"]);
    assert_eq!(rig.event(), CLOSED);
}

#[test]
fn repeated_shutdown_is_answered_again() {
    let mut rig = Rig::in_state(State::ShutdownAckSent);
    for _ in 0..3 {
        shutdown(&mut rig).expect("expected");
        assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    }
    assert_eq!(rig.event(), None);
}

// T2-shutdown backs off. After Association.Max.Retrans retransmissions the association ends.
#[test]
fn unanswered_shutdown_backs_off_and_times_out() {
    for (state, words) in
        [(State::ShutdownSent, "P: SHUTDOWN(0)"), (State::ShutdownAckSent, "P: SHUTDOWN-ACK")]
    {
        let mut rig = Rig::in_state(state);
        // T5-shutdown-guard would end the shutdown before T2-shutdown has expired often enough.
        rig.association.timers.stop(crate::sctp::timers::Timer::Guard);
        let sent = rig.wait(Duration::from_secs(1200));
        assert_eq!(sent.len(), 10);
        assert!(sent.iter().all(|(_, text)| text == words), "{sent:?}");
        let gaps: Vec<_> = sent.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(gaps.is_sorted() && *gaps.last().expect("several") <= 60, "{gaps:?}");
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
        assert_eq!(rig.association.stats().shutdown_retransmitted, 11);
    }
}

// T5-shutdown-guard ends the shutdown even if the peer keeps sending data.
#[test]
fn shutdown_guard_aborts_an_endless_shutdown() {
    let guard = Duration::from_secs(20);
    let mut rig = Rig::with(Config { shutdown_guard: guard, ..Config::default() });
    rig.association.shutdown(rig.now);
    rig.sent_packets();
    for n in 1..=19 {
        rig.input(|b| push_data(b, &data(n), b"more")).expect("taken");
        // §9.2: DATA is answered at once by a SHUTDOWN.
        assert_eq!(rig.sent_packets(), [format!("P: SACK({n}) SHUTDOWN({n})")]);
        rig.wait(Duration::from_secs(1));
    }
    assert_eq!(rig.state(), State::ShutdownSent);
    let sent = rig.wait(Duration::from_secs(2));
    assert_eq!(sent.last().map(|(_, words)| words.as_str()), Some("P: ABORT(12)"));
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
}

// §9.2: a SHUTDOWN cannot report DATA beyond a gap, so a SACK precedes it.
#[test]
fn shutdown_with_gaps_is_bundled_with_a_sack() {
    let mut rig = Rig::in_state(State::ShutdownSent);
    rig.input(|b| push_data(b, &data(2), b"second")).expect("taken");
    assert_eq!(rig.sent_packets(), ["P: SACK(0) SHUTDOWN(0)"]);
    rig.input(|b| push_data(b, &data(1), b"first")).expect("taken");
    assert_eq!(rig.sent_packets(), ["P: SACK(2) SHUTDOWN(2)"]);
    rig.input(|b| push_data(b, &data(2), b"second")).expect("a duplicate");
    assert_eq!(rig.sent_packets(), ["P: SACK(2) SHUTDOWN(2)"]);
    assert_eq!(rig.upper.received.len(), 2);
}

// §9.2, §8.5.1 E: the SHUTDOWN ACK belongs to an earlier association.
#[test]
fn shutdown_ack_during_setup_gets_shutdown_complete() {
    for state in [State::CookieWait, State::CookieEchoed] {
        let mut rig = Rig::in_state(state);
        let timer = rig.association.poll_timeout();
        let result = rig.input_tagged(Tag(0x4444_4444), |b| b.shutdown_ack().expect("room"));
        assert_eq!(result, Err(DropReason::OutOfTheBlue));
        assert_eq!(rig.sent_packets(), ["44444444: SHUTDOWN-COMPLETE T"]);
        // T1 continues.
        assert_eq!((rig.state(), rig.association.poll_timeout()), (state, timer));
    }
}

// §9.2: the SHUTDOWN COMPLETE was lost, and the peer opens again.
#[test]
fn init_in_shutdown_ack_sent_resends_shutdown_ack() {
    let mut rig = Rig::in_state(State::ShutdownAckSent);
    let result = rig.input_tagged(Tag::NONE, |b| {
        b.init(&peer_header(), &[Parameter::Adaptation(1)]).expect("room");
    });
    assert_eq!(result, Err(DropReason::UnexpectedChunk));
    assert_eq!(rig.sent_packets(), ["P: SHUTDOWN-ACK"]);
    // §8.4 rule 5: the peer reflects the tag of the SHUTDOWN ACK.
    rig.input_tagged(PEER_TAG, |b| b.shutdown_complete(true).expect("room")).expect("expected");
    assert_eq!(rig.event(), CLOSED);
}

// §8.4 (8): the SHUTDOWN COMPLETE was lost. The peer has no association any more, and answers an old packet with an
// ABORT that reflects the packet's tag. An ABORT with this end's tag comes from a peer that still has the association,
// so the close is not graceful.
#[test]
fn abort_in_shutdown_ack_sent_completes_the_shutdown() {
    let mut rig = Rig::in_state(State::ShutdownAckSent);
    rig.input_tagged(PEER_TAG, |b| b.abort(true, &[]).expect("room")).expect("expected");
    assert_eq!(rig.event(), CLOSED);
    let mut rig = Rig::in_state(State::ShutdownAckSent);
    rig.input(|b| b.abort(false, &[]).expect("room")).expect("expected");
    assert!(matches!(rig.event(), Some(Event::Closed(CloseReason::PeerAborted { .. }))));
}

#[test]
fn shutdown_during_setup_aborts() {
    for (state, sent) in [(State::CookieWait, &[][..]), (State::CookieEchoed, &["P: ABORT(12)"])] {
        let mut rig = Rig::in_state(state);
        rig.association.shutdown(rig.now);
        assert_eq!(rig.sent_packets(), sent);
        assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Aborted)));
    }
}
