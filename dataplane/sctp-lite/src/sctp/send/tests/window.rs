//! Amount of data sent (RFC 9260 §6.1, §7.2).

use super::*;
use transport::limits::Limit;

/// Returns the bytes of the DATA chunks in packets.
fn bytes(packets: &[Vec<Sent>]) -> usize {
    packets.iter().flatten().map(|sent| wire::sctp::padded(16 + sent.bytes.len())).sum()
}

// RFC 9260 §7.2.1: initial congestion window. §6.1 B: one packet may exceed it.
#[test]
fn the_initial_window_is_two_to_four_packets() {
    for (packet, packets) in [(512, 4), (1480, 3), (8980, 2)] {
        let mut side = side();
        side.sender = Sender::new(&Arc::new(config()), Tsn(FIRST), ROOM, packet, side.now);
        let pmdcs = packet as u64 - 12;
        assert!(side.sender.cwnd() <= (4 * pmdcs).min(4404.max(2 * pmdcs)));
        side.source.push(100, usize::MAX);
        let sent = side.send();
        assert!(sent.len() == packets || sent.len() == packets + 1, "{packet}: {}", sent.len());
        assert!(bytes(&sent) < side.sender.cwnd() as usize + packet - 12);
    }
}

// RFC 9260 §6.10, §6.1: small messages are bundled in TSN order, up to the packet length.
#[test]
fn small_messages_are_bundled() {
    let mut side = side();
    side.source.push(40, 100);
    let packets = side.send();
    assert_eq!(packets.len(), 4);
    assert_eq!(packets[0].len(), (1480 - 12) / 116);
    let numbers: Vec<_> = packets.concat().iter().map(|sent| sent.n).collect();
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    let mut want = vec![0; 100];
    for sent in packets.concat() {
        source::write(u64::from(sent.n), &mut want);
        assert_eq!((sent.stream, &sent.bytes), ((sent.n % 5) as u16, &want));
    }
}

// RFC 9260 §6.1: the I bit is set on the last message, or if the source requests it.
#[test]
fn last_message_requests_immediate_sack() {
    let mut side = side();
    side.source.push(20, 100);
    let requests: Vec<_> = side.send().concat().iter().map(|sent| sent.immediate).collect();
    assert_eq!(requests.iter().filter(|asked| **asked).count(), 1);
    assert!(requests[19]);
    let mut side = side_with(SendConfig { immediate_sack_at_end: false, ..config() }, ROOM);
    side.source.push(2, 100);
    assert!(side.send().concat().iter().all(|sent| !sent.immediate));
    side.source.immediate = true;
    side.source.push(2, 100);
    assert!(side.send().concat().iter().all(|sent| sent.immediate));
}

// RFC 9260 §6.1: with a congestion window below two packets, every packet requests an immediate SACK.
#[test]
fn small_window_requests_immediate_sacks() {
    let immediate_flags = |cwnd: u64| {
        let mut side = side();
        side.sender.recovery.cc_mut().set_prr_cwnd(cwnd);
        side.source.push(20, 100);
        side.packet().expect("the window is open").iter().all(|sent| sent.immediate)
    };
    assert!(immediate_flags(1468) && immediate_flags(2 * 1468 - 1));
    assert!(!immediate_flags(2 * 1468));
}

// RFC 9260 §6.1 A, §6.2.1 B: new data is limited by the peer's window minus the data in flight.
#[test]
fn peer_window_is_not_exceeded() {
    let mut side = side_with(SendConfig { initial_window: Some(100), ..config() }, 4000);
    side.source.push(100, 1000);
    assert_eq!(side.numbers().len(), 4);
    side.wait(20 * MS);
    // §6.2.1 D ii: outstanding data counts against the peer's window.
    side.try_sack(2, 3500, &[], &[]).unwrap();
    assert_eq!(side.numbers().len(), 1);
    side.try_sack(2, 3500, &[(2, 2)], &[]).unwrap();
    assert_eq!(side.numbers(), [5], "reported chunks need no room in the window");
}

// RFC 9260 §6.1 A: a closed window is first probed after one RTO, then with exponential backoff. The number of probes
// is unlimited while the peer sends SACKs.
#[test]
fn a_closed_window_is_probed() {
    let mut side = side_with(config(), 0);
    side.source.push(10, 1000);
    assert!(side.send().is_empty());
    let start = side.now;
    assert_eq!(side.sender.poll_timeout(), Some(start + Duration::from_secs(1)));
    side.expire();
    assert_eq!(side.numbers(), [0]);
    let mut waited = Vec::new();
    for _ in 0..5 {
        let start = side.now;
        // The peer drops the probe and sends a SACK (§6.2).
        side.try_sack(0, 0, &[], &[]).unwrap();
        assert_eq!(side.expire(), ExpiredTimer::WindowProbe, "does not count as an error");
        waited.push(side.now.saturating_since(start).as_secs());
        assert_eq!(side.numbers(), [0]);
    }
    assert_eq!(waited, [1, 2, 4, 8, 16]);
    // The peer sends no more SACKs.
    side.expire();
    assert_eq!(side.expire(), ExpiredTimer::T3);
    side.numbers();
    // The window opens.
    side.try_sack(0, 100_000, &[], &[]).unwrap();
    assert_eq!(side.numbers()[0], 0);
    assert_eq!(side.sender.stats().timeouts, 0, "no congestion");
}

// RFC 9260 §6.1 A: data that the peer refuses because its window closed becomes the window probe. While the peer sends
// SACKs, the time-outs count neither as errors nor as congestion nor as a black hole.
#[test]
fn data_refused_by_closed_window_becomes_its_probe() {
    let mut side = in_flight(5);
    side.wait(10 * MS);
    side.try_sack(1, 0, &[], &[]).unwrap();
    let cwnd = side.sender.cwnd();
    let mut waited = Vec::new();
    for _ in 0..8 {
        // The peer refused the last probe, and sent a SACK.
        let start = side.now;
        side.try_sack(1, 0, &[], &[]).unwrap();
        assert_eq!(side.expire(), ExpiredTimer::WindowProbe, "{waited:?}");
        waited.push(side.now.saturating_since(start));
        assert_eq!(side.numbers(), [1]);
    }
    assert!(
        waited[2..].windows(2).all(|two| two[1] > two[0]),
        "the intervals increase: {waited:?}"
    );
    assert_eq!((side.sender.stats().timeouts, side.sender.cwnd()), (0, cwnd));
    assert_eq!(side.sender.stats().window_probes, 8);
    // The peer sends no more SACKs.
    assert_eq!(side.expire(), ExpiredTimer::T3);
    side.numbers();
    // When the window opens, all refused data is retransmitted at once.
    side.try_sack(1, 100_000, &[], &[]).unwrap();
    assert_eq!(side.numbers(), [1, 2, 3, 4]);
    assert_eq!(side.sender.stats().timeouts, 0);
}

// RFC 9260 §6.3.3: if a peer with a closed window sends no SACK, packets were lost or the peer is unreachable. Each
// time-out counts as an error.
#[test]
fn unanswered_peer_with_closed_window_counts_errors() {
    let mut side = in_flight(5);
    side.wait(10 * MS);
    side.try_sack(1, 0, &[], &[]).unwrap();
    // This SACK was the reply to the first probe.
    assert_eq!(side.expire(), ExpiredTimer::WindowProbe);
    side.numbers();
    for _ in 0..4 {
        assert_eq!(side.expire(), ExpiredTimer::T3);
        side.numbers();
    }
}

/// A stall is reported at the tenth unanswered probe, or at the last probe that the association's limit permits. A
/// SACK ends the stall.
#[test]
fn unanswered_probes_of_a_closed_window_are_a_stall() {
    let mut side = in_flight(5);
    side.wait(10 * MS);
    side.try_sack(1, 0, &[], &[]).unwrap();
    assert_eq!(side.expire(), ExpiredTimer::WindowProbe);
    side.send();
    let limit = |side: &Side| side.sender.limits(side.now).limit;
    for unanswered in 1..=10 {
        assert_eq!(side.sender.stall(side.now, false), None, "{unanswered}");
        assert_eq!(side.sender.stall(side.now, true).is_some(), unanswered > 1);
        assert_eq!(limit(&side) == Limit::Path, unanswered > 1);
        side.expire();
        side.send();
    }
    let stall = side.sender.stall(side.now, false).expect("a stall");
    assert_eq!((stall.timeouts, stall.last, limit(&side)), (10, false, Limit::Path));
    assert!(stall.silent > Duration::from_secs(60), "{stall:?}");
    side.try_sack(1, 0, &[], &[]).unwrap();
    side.send();
    assert_eq!(side.sender.stall(side.now, false), None);
    assert_ne!(limit(&side), Limit::Path);
}

// The peer accepted data beyond a gap, so the missing data was lost (RFC 9260 §7.2.3).
#[test]
fn loss_before_window_close_reduces_cwnd() {
    let mut side = in_flight(5);
    side.wait(10 * MS);
    side.try_sack(1, 0, &[(2, 2)], &[]).unwrap();
    while side.expire() != ExpiredTimer::T3 {
        side.numbers();
    }
    assert_eq!(side.sender.stats().timeouts, 1);
}

// A message longer than the remaining window is sent as the window probe.
#[test]
fn window_smaller_than_message_is_probed() {
    let mut side = side_with(config(), 500);
    side.source.push(1, 1000);
    assert!(side.send().is_empty());
    side.expire();
    assert_eq!(side.numbers(), [0]);
}

// RFC 9260 §7.2.1: the congestion window grows by acknowledged bytes, and only while it is fully used.
#[test]
fn sctp_slow_start_grows_by_acknowledged_bytes() {
    let mut side = side();
    side.source.push(3, usize::MAX);
    let sent = bytes(&side.send()) as u64;
    let before = side.sender.cwnd();
    side.wait(10 * MS);
    side.sack(3, &[]);
    assert_eq!(side.sender.cwnd(), before + sent);
    // While little data is sent, the congestion window does not grow.
    let before = side.sender.cwnd();
    for n in 4..30 {
        side.source.push(1, 100);
        side.send();
        side.wait(10 * MS);
        side.sack(n, &[]);
    }
    assert!(side.sender.cwnd() <= before);
}

// RFC 9260 §7.2.1: the congestion window of an idle sender is halved for each RTO, down to four packets.
#[test]
fn an_idle_window_decays() {
    let mut side = in_flight(40);
    side.wait(10 * MS);
    side.sack(40, &[]);
    let before = side.sender.cwnd();
    side.wait(side.sender.rto());
    side.source.push(1, 100);
    side.send();
    assert_eq!(side.sender.cwnd(), before / 2);
    side.sack(41, &[]);
    side.wait(Duration::from_secs(100));
    side.source.push(1, 100);
    side.send();
    assert_eq!(side.sender.cwnd(), 4 * 1468);
}

// RFC 9260 §6.1 D: a burst has Max.Burst packets, and in addition as many as were just acknowledged.
#[test]
fn bursts_are_limited() {
    let limits = SendConfig { initial_window: Some(100), max_burst: 4, ..config() };
    let mut side = side_with(limits, ROOM);
    side.source.push(100, usize::MAX);
    assert_eq!(side.send().len(), 4);
    assert_eq!(side.send().len(), 0);
    side.sack(2, &[]);
    assert_eq!(side.send().len(), 6);
    // Two SACKs before a transmission each release the packets that they acknowledge.
    side.sack(4, &[]);
    side.sack(7, &[]);
    assert_eq!(side.send().len(), 9);
    assert_eq!(side.send().len(), 0);
}

// Pacing spreads the packets that the congestion window permits over the round trip.
#[test]
fn packets_are_paced() {
    let limits = SendConfig { initial_window: Some(50), ..SendConfig::default() };
    let mut side = side_with(limits, ROOM);
    side.sender.on_rtt_sample(50 * MS);
    side.source.push(40, usize::MAX);
    let first = side.send().len();
    assert!((1..10).contains(&first), "{first}");
    let mut sent = first;
    let start = side.now;
    while sent < 40 {
        side.expire();
        sent += side.send().len();
    }
    let took = side.now.saturating_since(start);
    assert!(took > 15 * MS && took < 50 * MS, "{took:?}");
}

// RFC 9260 §3.3.4: the default limit of records is the reach of Gap Ack Blocks, 65,535 TSNs.
#[test]
fn records_suffice_for_the_send_window() {
    let limits = SendConfig {
        initial_window: Some(1 << 20),
        send_window: 1 << 30,
        pacing: false,
        max_burst: u32::MAX,
        ..config()
    };
    let mut side = side_with(limits, 1 << 30);
    side.source.push(70_000, 10);
    let bursts = std::iter::from_fn(|| Some(side.numbers().len()).filter(|&chunks| chunks > 0));
    assert_eq!(bursts.sum::<usize>(), 65_535);
}

#[test]
fn chunk_records_are_bounded() {
    let limits = SendConfig { initial_window: Some(1000), max_records: 50, ..config() };
    let mut side = side_with(limits, ROOM);
    side.source.push(100, 10);
    assert_eq!(side.numbers().len(), 50);
    side.sack(10, &[]);
    assert_eq!(side.numbers().len(), 10);
    assert_eq!(side.source.waiting(), 40);
}

// The peer has a window of 1 GiB and SACKs all but the first chunk, so the congestion window never fills. The send
// window still bounds the unacknowledged data.
#[test]
fn sacked_chunks_are_bounded_by_the_send_window() {
    const WINDOW: u64 = 100_000;
    let limits = SendConfig { initial_window: Some(20), send_window: WINDOW, ..config() };
    let mut side = side_with(limits, 1 << 30);
    side.source.push(1000, 1436);
    let mut sent = side.numbers().len();
    for _ in 0..100 {
        side.wait(MS);
        let last = u16::try_from(sent).expect("few");
        side.try_sack(0, 1 << 30, &[(2, last)], &[]).expect("a valid SACK");
        sent = side.sender.next_tsn().distance_from(Tsn(FIRST)) as usize;
        sent += side.numbers().iter().filter(|n| **n as usize >= sent).count();
        assert!(side.sender.board.flight() <= WINDOW, "{}", side.sender.board.flight());
    }
    assert!(side.sender.board.flight() > WINDOW - 1480, "the window was not used");
    // Transmission resumes as soon as the first chunk is acknowledged.
    side.try_sack(sent as u32, 1 << 30, &[], &[]).expect("a valid SACK");
    assert!(!side.numbers().is_empty());
}

// RFC 9260 §7.2.1: the time since the transmission of data still in flight does not count as idle.
#[test]
fn a_window_with_data_in_flight_does_not_decay() {
    let limits = SendConfig { initial_window: Some(100), tail_loss_probe: false, ..config() };
    let mut side = side_with(limits, ROOM);
    side.sender.on_rtt_sample(40 * MS);
    side.source.push(5, usize::MAX);
    assert_eq!(side.send().len(), 5);
    let sent_at = side.now;
    side.wait(150 * MS);
    side.sack(1, &[]);
    let before = side.sender.cwnd();
    side.wait(100 * MS);
    assert!(side.now.saturating_since(sent_at) > side.sender.rto());
    assert!(side.sender.poll_timeout() > Some(side.now), "T3-rtx was restarted");
    side.source.push(1, 100);
    assert_eq!(side.numbers(), [5]);
    assert_eq!(side.sender.cwnd(), before);
}

// RFC 9260 §6.1 D: Max.Burst packets may be sent whenever no packet is in the network.
#[test]
fn max_burst_is_allowed_with_empty_pipe() {
    let limits = SendConfig { initial_window: Some(100), max_burst: 4, ..config() };
    let mut side = side_with(limits, ROOM);
    side.source.push(4, usize::MAX);
    assert_eq!(side.numbers().len(), 4);
    side.sender.set_packet_len(1000);
    assert_eq!(side.numbers(), [0, 1, 2, 3], "all messages are too long for the path");
}
