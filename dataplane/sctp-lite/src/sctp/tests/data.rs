//! Transmission of DATA and SACK by the association, and the effect of missing SACKs (RFC 9260 §6, §8.1).

use core::time::Duration;
use std::sync::Arc;

use wire::sctp::{InitHeader, Parameter, SackHeader, Tag, Tsn};

use super::rig::{Rig, data, peer_header, push_data};
use crate::sctp::receive::ReceiveConfig;
use crate::sctp::{CloseReason, Config, DropReason, Event, State};

/// Passes the association a SACK of all DATA up to this end's `n`th TSN, with ample a_rwnd.
fn sack(rig: &mut Rig, n: u32) -> Result<(), DropReason> {
    let cumulative = rig.association.identity.local_tsn.add(n).sub(1);
    let header = SackHeader { cumulative, a_rwnd: 65_536 };
    rig.input(|b| b.sack(header, &[], &[]).expect("room"))
}

#[test]
fn messages_are_sent_and_acknowledged() {
    let mut rig = Rig::established();
    rig.upper.queue.extend([(1, 100), (2, 200)]);
    assert_eq!(rig.sent_packets(), ["P: DATA(1) DATA(2)"]);
    assert_eq!(sack(&mut rig, 1), Ok(()));
    assert_eq!(rig.upper.acknowledged, [1]);
    assert_eq!(sack(&mut rig, 2), Ok(()));
    assert_eq!(rig.upper.acknowledged, [1, 2]);
    assert_eq!(rig.sent_packets(), [""; 0]);
}

// RFC 9260 §6.1, §6.2: a delayed SACK is bundled with DATA, and precedes it.
#[test]
fn delayed_sack_is_bundled_with_data() {
    let mut rig = Rig::established();
    rig.input(|b| push_data(b, &data(1), b"first")).expect("taken");
    assert_eq!(rig.sent_packets(), ["P: SACK(1)"]);
    rig.input(|b| push_data(b, &data(2), b"second")).expect("taken");
    assert_eq!(rig.sent_packets(), [""; 0]);
    rig.upper.queue.push_back((1, 100));
    assert_eq!(rig.sent_packets(), ["P: SACK(2) DATA(1)"]);
}

// RFC 9260 §6: no DATA is sent before ESTABLISHED, or after SHUTDOWN or SHUTDOWN ACK.
#[test]
fn data_is_sent_only_in_data_states() {
    for state in
        [State::CookieWait, State::CookieEchoed, State::ShutdownSent, State::ShutdownAckSent]
    {
        let mut rig = Rig::in_state(state);
        rig.upper.queue.push_back((1, 100));
        assert_eq!(rig.sent_packets(), [""; 0], "{state:?}");
        assert_eq!(rig.upper.queue.len(), 1);
    }
    let mut rig = Rig::cookie_echoed();
    rig.upper.queue.push_back((1, 100));
    assert_eq!(rig.sent_packets(), [""; 0]);
    rig.input(|b| b.cookie_ack().expect("room")).expect("expected");
    assert_eq!(rig.sent_packets(), ["P: DATA(1)"]);
}

// RFC 9260 §8.1: more than Association.Max.Retrans errors end the association.
#[test]
fn silent_peer_is_unreachable_after_max_retransmits() {
    let mut rig = Rig::with(Config { heartbeat_interval: None, ..Config::default() });
    rig.upper.queue.push_back((1, 100));
    rig.sent_packets();
    let sent = rig.wait(Duration::from_secs(3600));
    assert!(sent.iter().all(|(_, words)| words == "P: DATA(1)"), "{sent:?}");
    assert!((10..=12).contains(&sent.len()), "{sent:?}");
    assert_eq!(rig.event(), Some(Event::Closed(CloseReason::Timeout)));
    // §8.1: no ABORT is sent.
    assert!(rig.association.is_done());
    assert!(rig.upper.acknowledged.is_empty());
}

/// Returns an association with a closed peer window and a long message to send.
fn rig_with_closed_window() -> Rig {
    let mut rig = Rig::with(Config { heartbeat_interval: None, ..Config::default() });
    rig.upper.queue.push_back((1, 100));
    rig.sent_packets();
    close_window(&mut rig).expect("new");
    rig.upper.queue.push_back((2, 1400));
    assert_eq!(rig.sent_packets(), [""; 0]);
    rig
}

/// Passes the association a SACK that acknowledges the first message and closes the peer's window.
fn close_window(rig: &mut Rig) -> Result<(), DropReason> {
    let header = SackHeader { cumulative: rig.association.identity.local_tsn, a_rwnd: 0 };
    rig.input(|b| b.sack(header, &[], &[]).expect("room"))
}

// Data that waits for the peer's window causes no packet, and no early transmission of a delayed SACK.
#[test]
fn closed_window_sends_no_data_and_no_early_sack() {
    let mut rig = rig_with_closed_window();
    rig.input(|b| push_data(b, &data(1), b"first")).expect("taken");
    assert_eq!(rig.sent_packets(), ["P: SACK(1)"]);
    rig.input(|b| push_data(b, &data(2), b"second")).expect("taken");
    assert_eq!(rig.sent_packets(), [""; 0]);
    assert_eq!(rig.association.stats().unsent, 0);
}

// RFC 8899 §4.3, RFC 9260 §6.1 A: window probes may be too long for the path. After the detection of a black hole, IP
// fragments them, so the association does not fail.
#[test]
fn oversized_window_probes_are_fragmented_before_failure() {
    let mut rig = rig_with_closed_window();
    let rto = rig.association.sender().rto();
    let mut sent = Vec::new();
    while rig.association.stats().path_mtu_black_holes == 0 {
        assert_eq!(rig.state(), State::Established);
        sent.extend(rig.wait(Duration::from_millis(20)));
    }
    assert_eq!((rig.association.errors, rig.association.path_len()), (0, 1180));
    assert_eq!(rig.association.confirmed_path_len(), None, "an unconfirmed size");
    assert_eq!(
        rig.association.sender().rto(),
        rto,
        "shorter packets need not wait for the backoff"
    );
    // Six window probes were sent. A path MTU probe was not sent, because it needs a SACK first. The SACK that closed
    // the window counts as the reply to the first window probe.
    assert_eq!(sent.len(), 6);
    assert!(sent.iter().all(|(_, words)| words == "P: DATA(2)"), "{sent:?}");
    sack(&mut rig, 2).expect("a SACK of the fragmented probe");
    assert_eq!(rig.association.errors, 0);
    rig.upper.queue.push_back((3, 1100));
    assert_eq!(rig.sent_packets(), ["P: DATA(3)", "P: HEARTBEAT PAD"]);
}

// RFC 9260 §8.1, RFC 8899 §4.3: an interrupted path looks like a black hole, so shorter packets are sent at once. The
// shorter packets must not use up Association.Max.Retrans: the association fails no sooner than without path MTU
// probing.
#[test]
fn suspected_black_hole_does_not_use_up_retransmits() {
    for max_retransmits in [1, 3, 5, 10] {
        let lasts = |path_mtu_probing: bool| {
            let config = Config {
                max_retransmits,
                path_mtu_probing,
                heartbeat_interval: None,
                ..Config::default()
            };
            let mut rig = Rig::with(config);
            let began = rig.now;
            rig.upper.queue.push_back((1, 1400));
            assert_eq!(rig.sent_packets(), ["P: DATA(1)"]);
            while rig.state() == State::Established {
                rig.now = rig.association.poll_timeout().expect("a timer runs");
                rig.association.handle_timeout(rig.now);
                rig.packets();
            }
            assert_eq!(rig.association.stats().path_mtu_black_holes > 0, path_mtu_probing);
            rig.now.saturating_since(began)
        };
        let (with, without) = (lasts(true), lasts(false));
        assert!(with >= without && with < 3 * without, "{max_retransmits}: {with:?}, {without:?}");
    }
}

// RFC 8899 §6.2.1.2: an unanswered path MTU probe is not an error, and is repeated with later data.
#[test]
fn lost_path_probe_does_not_count_as_error() {
    let mut rig = Rig::with(Config { heartbeat_interval: None, ..Config::default() });
    rig.association.set_path_mtu(rig.now, 1180);
    rig.now += Config::default().path_mtu_raise;
    for n in 1..=2 {
        rig.upper.queue.push_back((n, 100));
        assert_eq!(rig.sent_packets(), [format!("P: DATA({n})").as_str(), "P: HEARTBEAT PAD"]);
        sack(&mut rig, n as u32).expect("new");
        assert_eq!(rig.wait(Duration::from_secs(60)), []);
        let stats = rig.association.stats();
        assert_eq!((stats.path_mtu_probes, stats.path_mtu_probes_lost), (n, n));
        assert_eq!((rig.association.errors, rig.association.path_len()), (0, 1180));
    }
}

// RFC 4821 §7.6.2: after a lost path MTU probe, the next probe waits as many round trips as the congestion window has
// packets.
#[test]
fn lost_path_probe_delays_the_next_probe() {
    const MS: Duration = Duration::from_millis(1);
    let mut rig = Rig::active(Config { heartbeat_interval: None, ..Config::default() });
    rig.sent_packets();
    rig.now += 100 * MS;
    rig.init_ack().expect("acceptable");
    rig.sent_packets();
    rig.input(|b| b.cookie_ack().expect("room")).expect("acceptable");
    rig.association.set_path_mtu(rig.now, 1180);
    rig.now += Config::default().path_mtu_raise;
    rig.upper.queue.push_back((1, 100));
    assert_eq!(rig.sent_packets(), ["P: DATA(1)", "P: HEARTBEAT PAD"]);
    rig.now += 100 * MS;
    sack(&mut rig, 1).expect("new");
    while rig.association.stats().path_mtu_probes_lost == 0 {
        rig.now = rig.association.poll_timeout().expect("the probe's timer");
        rig.association.handle_timeout(rig.now);
    }
    let sender = rig.association.sender();
    let packets = u32::try_from(sender.cwnd() / 1180).expect("few");
    assert!(packets > 1);
    rig.now += sender.srtt().expect("measured") * packets - MS;
    rig.upper.queue.push_back((2, 100));
    assert_eq!(rig.sent_packets(), ["P: DATA(2)"]);
    rig.now += MS;
    rig.upper.queue.push_back((3, 100));
    assert_eq!(rig.sent_packets(), ["P: DATA(3)", "P: HEARTBEAT PAD"]);
}

// RFC 9260 §6.2: duplicate DATA chunks are counted, and their packets are not dropped.
#[test]
fn duplicate_data_is_counted() {
    let mut rig = Rig::established();
    for _ in 0..4 {
        rig.input(|b| push_data(b, &data(1), b"once")).expect("of this association");
    }
    let stats = rig.association.receiver.stats();
    assert_eq!((stats.chunks, stats.duplicates), (1, 3));
}

// The minimum path MTU is a size of IP packets, so it includes the headers in front of SCTP.
#[test]
fn minimum_path_mtu_includes_headers() {
    let mut rig = Rig::established();
    assert_eq!(rig.association.min_path_len(), 576 - 20);
    rig.association.set_headers(20 + 8);
    assert_eq!(rig.association.min_path_len(), 576 - 20 - 8);
}

// RFC 9260 §6.1 A: a peer that sends SACKs has received the window probes, although its window stays closed.
#[test]
fn answered_window_probes_are_not_a_black_hole() {
    let mut rig = rig_with_closed_window();
    for _ in 0..30 {
        close_window(&mut rig).expect("nothing new");
        rig.wait(rig.association.sender().rto());
    }
    assert!(rig.association.sender().stats().window_probes >= 10);
    assert_eq!(rig.association.stats().path_mtu_black_holes, 0);
    assert_eq!((rig.association.path_len(), rig.association.errors), (super::rig::PACKET, 0));
    assert!(!rig.association.is_timing_out());
}

// RFC 9260 §8.1: the error count restarts with each acknowledgement of DATA.
#[test]
fn acknowledgement_resets_the_error_count() {
    let mut rig = Rig::with(Config { heartbeat_interval: None, ..Config::default() });
    for n in 1..=5 {
        rig.upper.queue.push_back((u64::from(n), 100));
        rig.sent_packets();
        while rig.association.errors < 8 {
            rig.wait(Duration::from_secs(1));
            assert_eq!(rig.state(), State::Established);
        }
        sack(&mut rig, n).expect("new");
        assert_eq!(rig.association.errors, 0);
    }
}

// RFC 9260 §5.2.4 action A: a restart of the peer discards data in flight, and TSNs start anew.
#[test]
fn restart_discards_data_in_flight() {
    let mut rig = Rig::established();
    rig.upper.queue.push_back((1, 100));
    assert_eq!(rig.sent_packets(), ["P: DATA(1)"]);
    restart(&mut rig);
    rig.upper.queue.push_back((2, 100));
    // `sent_packets` shows TSNs relative to the initial TSN: the first TSN of the new association is 1.
    assert_eq!(rig.sent_packets(), ["55555555: COOKIE-ACK DATA(1)"]);
    sack(&mut rig, 1).expect("new");
    assert_eq!(rig.upper.acknowledged, [2]);
    assert_eq!(rig.wait(Duration::from_secs(20)), []);
}

/// Restarts the peer: its new INIT and COOKIE ECHO replace the association.
fn restart(rig: &mut Rig) {
    let header = InitHeader { tag: Tag(0x5555_5555), initial_tsn: Tsn(70), ..peer_header() };
    rig.input_tagged(Tag::NONE, |b| b.init(&header, &[Parameter::Adaptation(1)]).expect("room"))
        .expect("answered");
    let answer = rig.packets().remove(0);
    let (ours, cookie) = super::listener::parse_init_ack(&answer);
    rig.input_tagged(ours.tag, |b| b.cookie_echo(&cookie).expect("room")).expect("a restart");
    assert_eq!(rig.event(), Some(Event::Restarted { streams: 10 }));
    assert_eq!(rig.association.identity.local_tsn, ours.initial_tsn);
}

// RFC 8899 §5.1.1: the restarted peer does not answer an earlier path MTU probe. The unanswered probe does not block
// later probes.
#[test]
fn restart_cancels_the_path_probe() {
    let mut rig = Rig::with(Config { heartbeat_interval: None, ..Config::default() });
    rig.association.set_path_mtu(rig.now, 1180);
    rig.now += Config::default().path_mtu_raise;
    rig.upper.queue.push_back((1, 100));
    assert_eq!(rig.sent_packets(), ["P: DATA(1)", "P: HEARTBEAT PAD"]);
    restart(&mut rig);
    rig.upper.queue.push_back((2, 100));
    let sent = rig.packets();
    assert_eq!(rig.describe(&sent[0]), "55555555: COOKIE-ACK DATA(1)");
    assert_eq!(rig.describe(&sent[1]), "55555555: HEARTBEAT PAD");
    // The peer answers the new probe, and the packet size increases again.
    let answer = super::rig::packet(rig.association.local_tag(), |b| {
        b.heartbeat_ack(&sent[1][16..28]).expect("room");
    });
    rig.input_bytes(&answer).expect("answers the probe");
    assert_eq!(rig.association.path_len(), 1260);
}

// RFC 9260 §6, §6.2.1: an outdated SACK, or a SACK in a state without data, has no effect.
#[test]
fn outdated_sack_has_no_effect() {
    let mut rig = Rig::established();
    rig.upper.queue.extend([(1, 100), (2, 100)]);
    rig.sent_packets();
    sack(&mut rig, 2).expect("new");
    assert_eq!(sack(&mut rig, 1), Err(DropReason::BadSack));
    let mut rig = Rig::in_state(State::ShutdownSent);
    assert_eq!(sack(&mut rig, 0), Err(DropReason::UnexpectedChunk));
    assert_eq!(rig.state(), State::ShutdownSent);
}

/// Receives 1 kB every 200 µs at a round-trip time of 10 ms: 50 kB per round trip. Returns the resulting receive
/// window, and the window requests to the upper layer.
fn measure_window_growth(window: u32, set: impl FnOnce(&mut Rig)) -> (u32, Vec<(u64, u64)>) {
    let receive = ReceiveConfig { window, window_limit: 1 << 20, ..ReceiveConfig::default() };
    let mut rig = Rig::active(Config { receive: Arc::new(receive), ..Config::default() });
    rig.sent_packets();
    rig.now += Duration::from_millis(10);
    rig.init_ack().expect("acceptable");
    rig.sent_packets();
    rig.input(|b| b.cookie_ack().expect("room")).expect("acceptable");
    set(&mut rig);
    for n in 1..=1000 {
        rig.now += Duration::from_micros(200);
        rig.input(|b| push_data(b, &data(n), &[7; 1000])).expect("taken");
        rig.sent_packets();
    }
    (rig.association.receiver.max_window(), rig.upper.window_requests)
}

// Dynamic right-sizing: the receive window grows while more than half of it arrives per round trip. The upper layer
// must have free space and grant the memory.
#[test]
fn receive_window_grows_while_half_used_per_rtt() {
    const K: u32 = 1024;
    let steps = vec![(0, 32 << 10), (32 << 10, 64 << 10)];
    assert_eq!(measure_window_growth(32 * K, |_| {}), (128 * K, steps));
    assert_eq!(
        measure_window_growth(256 * K, |_| {}),
        (256 * K, vec![]),
        "less than half of the window is used"
    );
    let (window, asked) = measure_window_growth(32 * K, |rig| rig.upper.grows_window = false);
    assert_eq!((window, asked[0]), (32 * K, (0, 32 << 10)));
    assert_eq!(
        measure_window_growth(32 * K, |rig| rig.upper.room = 63 * K),
        (32 * K, vec![]),
        "no room"
    );
    let exactly = measure_window_growth(32 * K, |rig| rig.upper.room = 64 * K);
    assert_eq!(exactly, (64 * K, vec![(0, 32 << 10)]));
}
