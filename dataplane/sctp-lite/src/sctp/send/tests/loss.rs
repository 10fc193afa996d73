//! Losses and retransmissions (RFC 9260 §6.3.3, §7.2.3, §7.2.4; RFC 8985).

use super::*;

/// Returns a sender with `packets` packets in flight, at a round-trip time of 40 ms.
pub(super) fn side_with_rtt(packets: usize) -> Side {
    let mut side = side_with(SendConfig { initial_window: Some(100), ..config() }, ROOM);
    side.source.push(1, 100);
    side.send();
    side.wait(40 * MS);
    side.sack(1, &[]);
    side.source.push(packets, usize::MAX);
    assert_eq!(side.send().len(), packets);
    side
}

// RFC 9260 §7.2.4: once three packets beyond a chunk are SACKed, the chunk is retransmitted at once with the same
// bytes, regardless of the congestion window. The window is reduced once.
#[test]
fn three_packets_beyond_a_gap_are_a_loss() {
    let mut side = side_with_rtt(10);
    let before = side.sender.cwnd();
    side.wait(40 * MS);
    side.sack(2, &[(2, 2)]);
    assert_eq!(side.numbers(), [] as [u32; 0]);
    side.sack(2, &[(2, 3)]);
    assert_eq!(side.numbers(), [] as [u32; 0]);
    side.sack(2, &[(2, 4)]);
    let packets = side.send();
    let mut bytes = vec![0; packets[0][0].bytes.len()];
    source::write(2, &mut bytes);
    assert_eq!((packets[0][0].n, &packets[0][0].bytes), (2, &bytes));
    let stats = side.sender.stats();
    assert_eq!((stats.fast_recoveries, stats.retransmitted), (1, 1));
    assert_eq!(stats.bytes_retransmitted, bytes.len() as u64);
    // RFC 9260 §7.2.4 (6): further losses of the same window do not reduce the congestion window again.
    side.sack(2, &[(2, 4), (6, 9)]);
    side.numbers();
    assert_eq!(side.sender.stats().fast_recoveries, 1);
    side.wait(40 * MS);
    side.sack(11, &[]);
    assert!(side.sender.is_idle());
    assert!(side.sender.cwnd() < before && side.sender.cwnd() >= 4 * 1468, "§7.2.3");
}

// RFC 9260 §7.2.4, RFC 8985 §6.2: if only one chunk beyond the gap is SACKed, the reordering timer marks the loss.
#[test]
fn chunk_overdue_by_reordering_timer_is_lost() {
    let mut side = side_with_rtt(3);
    side.wait(40 * MS);
    side.sack(1, &[(2, 2)]);
    assert_eq!(side.numbers(), [] as [u32; 0]);
    let start = side.now;
    assert_eq!(side.expire(), ExpiredTimer::None);
    assert_eq!(side.now, start + 10 * MS, "a quarter of a round trip");
    assert_eq!(side.sender.poll_timeout(), Some(side.now + side.sender.rto()), "and then T3-rtx");
    assert_eq!(side.numbers(), [1]);
}

// RFC 6937 §3: in recovery, each delivered packet permits one packet.
#[test]
fn recovery_sends_as_much_as_was_delivered() {
    let mut side = side_with_rtt(10);
    side.source.push(50, usize::MAX);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    assert_eq!(side.numbers(), [1, 11, 12]);
    side.sack(1, &[(2, 5)]);
    assert_eq!(side.numbers(), [13]);
    side.sack(1, &[(2, 7)]);
    assert_eq!(side.numbers(), [14, 15]);
}

// RFC 5682 §2.1 step 2: with a full peer window, F-RTO has no new data to send, and retransmissions continue.
#[test]
fn timeout_behind_full_window_retransmits_lost_chunks() {
    const WINDOW: u32 = 10 * 1436;
    let config = SendConfig { initial_window: Some(100), tail_loss_probe: false, ..config() };
    let mut side = side_with(config, WINDOW);
    side.source.push(20, usize::MAX);
    assert_eq!(side.numbers().len(), 10);
    assert_eq!(side.expire(), ExpiredTimer::T3);
    assert_eq!(side.numbers(), [0]);
    side.try_sack(1, WINDOW - 1436, &[], &[]).unwrap();
    assert_eq!(side.numbers(), [1, 2]);
}

// RFC 8985 §6.2: a loss needs three later packets. Ten SACKed chunks of one packet count as one packet.
#[test]
fn loss_detection_counts_packets_not_chunks() {
    let mut side = side_with_rtt(1);
    side.source.push(10, 100);
    assert_eq!(side.send().len(), 1);
    side.wait(40 * MS);
    side.sack(1, &[(2, 11)]);
    assert_eq!(side.numbers(), [] as [u32; 0], "may be reordered");
}

// RFC 8985: RACK detects the loss of a retransmission.
#[test]
fn lost_retransmission_is_repaired_without_timeout() {
    let mut side = side_with_rtt(10);
    side.wait(40 * MS);
    side.sack(1, &[(2, 6)]);
    side.source.push(10, usize::MAX);
    let first = side.numbers();
    assert_eq!(first[0], 1);
    let new = first.iter().filter(|n| **n > 10).count();
    assert!(new > 0, "new data follows: {first:?}");
    side.wait(41 * MS);
    side.sack(1, &[(2, 10)]);
    let mut retransmitted = side.numbers();
    side.wait(41 * MS);
    side.sack(1, &[(2, 10 + new as u16)]);
    retransmitted.extend(side.numbers());
    assert!(retransmitted.contains(&1), "{retransmitted:?}");
    assert_eq!(side.sender.stats().timeouts, 0);
}

// RFC 8985: RACK detects the loss of several retransmissions, not only of the oldest chunk's retransmission.
#[test]
fn several_lost_retransmissions_are_repaired() {
    let mut side = side_with_rtt(10);
    side.wait(40 * MS);
    side.sack(1, &[(2, 2), (4, 8)]);
    side.source.push(10, usize::MAX);
    let first = side.numbers();
    assert_eq!(first[..2], [1, 3]);
    let new = first.iter().filter(|n| **n > 10).count() as u16;
    assert!(new > 0, "new data follows: {first:?}");
    side.wait(41 * MS);
    side.sack(1, &[(2, 2), (4, 10)]);
    let mut retransmitted = side.numbers();
    side.wait(41 * MS);
    side.sack(1, &[(2, 2), (4, 10 + new)]);
    retransmitted.extend(side.numbers());
    assert!(retransmitted.contains(&1) && retransmitted.contains(&3), "{retransmitted:?}");
    assert_eq!(side.sender.stats().timeouts, 0);
}

// RFC 9260 §6.3.1 C5 (Karn's algorithm): a chunk that was retransmitted gives no sample; a chunk SACKed beyond a gap
// does.
#[test]
fn rtt_samples_exclude_retransmitted_chunks() {
    let srtt = |side: &Side| side.sender.srtt().expect("measured");
    let mut side = side_with_rtt(5);
    let before = srtt(&side);
    side.expire();
    assert_eq!(side.numbers(), [5]);
    side.wait(500 * MS);
    side.sack(6, &[]);
    assert_eq!(srtt(&side), before);
    let mut side = side_with_rtt(5);
    side.wait(100 * MS);
    side.sack(1, &[(2, 3)]);
    assert!(srtt(&side) > before);
}

// RFC 9260 §6.1 C: lost chunks are retransmitted before new data is sent.
#[test]
fn retransmissions_precede_new_data() {
    let mut side = side_with_rtt(10);
    side.source.push(50, 50);
    side.wait(40 * MS);
    side.sack(1, &[(2, 7)]);
    let packets = side.send();
    assert_eq!(packets[0][0].n, 1);
    assert!(packets.iter().skip(1).flatten().all(|sent| sent.n > 10));
}

// RFC 9260 §6.3.3 E1 to E4, §7.2.3: after a time-out, one packet has as many of the earliest chunks as fit, and the RTO
// doubles.
#[test]
fn a_timeout_sends_one_packet() {
    let mut side = side_with(
        SendConfig { initial_window: Some(100), tail_loss_probe: false, ..config() },
        ROOM,
    );
    side.source.push(30, 200);
    assert_eq!(side.send().len(), 5);
    let start = side.now;
    assert_eq!(side.expire(), ExpiredTimer::T3);
    assert_eq!(side.now, start + Duration::from_secs(1));
    assert_eq!(side.sender.cwnd(), 1468);
    let packets = side.send();
    assert_eq!(packets.len(), 1);
    assert!(packets[0].len() > 1 && packets[0][0].n == 0);
    assert!(packets[0][0].immediate, "the I bit requests an immediate SACK");
    let start = side.now;
    assert_eq!(side.expire(), ExpiredTimer::T3);
    assert_eq!(side.now, start + Duration::from_secs(2));
    let resent: Vec<_> = side.send().concat();
    assert_eq!(resent[0].n, 0);
    for _ in 0..10 {
        side.expire();
        side.send();
    }
    assert_eq!(side.sender.rto(), Duration::from_secs(60), "RTO.Max");
    // The peer acknowledges all data.
    side.sack(30, &[]);
    assert!(side.sender.is_idle() && side.sender.poll_timeout().is_none());
}

// RFC 9260 §6.3.2 R1, R3: further data does not restart T3-rtx. An acknowledgement of the oldest chunk does.
#[test]
fn progress_restarts_the_timer() {
    let mut side = side_with(
        SendConfig { initial_window: Some(100), tail_loss_probe: false, ..config() },
        ROOM,
    );
    side.source.push(4, usize::MAX);
    side.send();
    side.wait(900 * MS);
    side.source.push(1, usize::MAX);
    side.send();
    assert_eq!(side.sender.poll_timeout(), Some(side.now + 100 * MS), "R1: the timer already runs");
    side.sack(1, &[]);
    assert_eq!(side.sender.poll_timeout(), Some(side.now + side.sender.rto()));
}

// RFC 8985 §7.2: an acknowledgement of new data restarts the tail loss probe timer.
#[test]
fn progress_restarts_the_tail_probe_timer() {
    let mut side = side_with_rtt(5);
    let first = side.sender.poll_timeout().unwrap();
    side.wait(20 * MS);
    side.sack(3, &[]);
    assert!(side.sender.poll_timeout() > Some(first + 10 * MS));
}

// RFC 8985 §7: new data or a retransmission of the last chunk elicits overdue acknowledgements.
#[test]
fn overdue_tail_is_probed() {
    let mut side = side_with_rtt(5);
    assert_eq!(side.expire(), ExpiredTimer::None);
    let sent = side.send().concat();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].n, 5);
    assert_eq!(side.sender.stats().tail_loss_probes, 1);
    // §7.4: the peer had all but the last chunk, so the probe repaired a loss, which reduces the window.
    let before = side.sender.cwnd();
    side.sack(5, &[]);
    side.wait(40 * MS);
    side.sack(6, &[]);
    side.source.push(1, 100);
    side.send();
    side.sack(7, &[]);
    assert_eq!(side.sender.stats().tail_losses_repaired, 1);
    assert!(side.sender.cwnd() < before);
    // If new data is available, the probe sends the new data.
    let mut side = side_with_rtt(5);
    let window = side.sender.cwnd();
    side.source.push(1, 100);
    side.now = side.sender.poll_timeout().unwrap();
    side.sender.handle_timeout(side.now);
    assert_eq!(side.numbers(), [6]);
    assert_eq!(side.sender.cwnd(), window);
}

// RFC 3708: duplicates of all retransmissions prove that no chunk was lost. The congestion window is restored.
#[test]
fn duplicate_reports_undo_spurious_recovery() {
    let mut side = side_with_rtt(10);
    let before = side.sender.cwnd();
    side.wait(40 * MS);
    side.sack(1, &[(2, 5)]);
    assert_eq!(side.numbers()[0], 1);
    assert!(side.sender.cwnd() < before);
    side.wait(10 * MS);
    side.sack(6, &[]);
    side.wait(30 * MS);
    side.try_sack(11, ROOM, &[], &[1]).unwrap();
    assert_eq!(side.sender.stats().undone_by_duplicates, 1);
    assert!(side.sender.cwnd() >= before);
}

// RFC 3708 §3 A.4: duplicates of chunks sent once are copies made by the network. Such duplicates prove nothing about
// the retransmissions.
#[test]
fn network_duplicates_undo_no_sctp_recovery() {
    let mut side = side_with_rtt(10);
    let before = side.sender.cwnd();
    side.wait(40 * MS);
    side.sack(1, &[(2, 5)]);
    assert_eq!(side.numbers()[0], 1);
    side.wait(10 * MS);
    for n in [2, 3, 4, 5, 0] {
        side.try_sack(1, ROOM, &[(2, 5)], &[n]).unwrap();
    }
    side.wait(30 * MS);
    side.sack(6, &[]);
    side.try_sack(11, ROOM, &[], &[6, 7, 8]).unwrap();
    assert_eq!(side.sender.stats().undone_by_duplicates, 0);
    assert!(side.sender.cwnd() < before);
}

// RFC 3708 §3 A.4: the chunk was first reported as received a round trip after its retransmission, so the
// retransmission was necessary. A later report of a duplicate proves nothing.
#[test]
fn duplicate_of_needed_retransmission_keeps_recovery() {
    let mut side = side_with_rtt(10);
    let before = side.sender.cwnd();
    side.wait(40 * MS);
    side.sack(1, &[(2, 5)]);
    assert_eq!(side.numbers()[0], 1);
    // This SACK reports the chunk as missing and as duplicated. The retransmission cannot have arrived yet.
    side.try_sack(1, ROOM, &[(2, 5)], &[1]).unwrap();
    side.wait(40 * MS);
    side.try_sack(6, ROOM, &[], &[1]).unwrap();
    side.try_sack(11, ROOM, &[], &[1]).unwrap();
    assert_eq!(side.sender.stats().undone_by_duplicates, 0);
    assert!(side.sender.cwnd() < before);
}

// RFC 8985 §6.2 step 4: copies of chunks sent once do not widen the reordering window.
#[test]
fn network_duplicates_leave_reordering_window_unchanged() {
    let mut side = side_with_rtt(3);
    side.wait(40 * MS);
    side.try_sack(1, ROOM, &[(2, 2)], &[2]).unwrap();
    side.try_sack(1, ROOM, &[(2, 2)], &[0, 2]).unwrap();
    assert_eq!(side.numbers(), [] as [u32; 0]);
    let start = side.now;
    assert_eq!(side.expire(), ExpiredTimer::None);
    assert_eq!(side.now, start + 10 * MS, "a quarter of a round trip");
    assert_eq!(side.numbers(), [1]);
}

// RFC 8985 §7.4.2: only a duplicate of the probe's chunk proves the probe unnecessary, also among other duplicates.
#[test]
fn only_probe_duplicate_proves_probe_needless() {
    let repaired = |duplicates: &[u32]| {
        let mut side = side_with_rtt(5);
        side.expire();
        assert_eq!(side.numbers(), [5]);
        side.sack(5, &[]);
        side.wait(40 * MS);
        side.try_sack(6, ROOM, &[], duplicates).unwrap();
        side.source.push(1, 100);
        side.send();
        side.try_sack(7, ROOM, &[], duplicates).unwrap();
        side.sender.stats().tail_losses_repaired
    };
    assert_eq!(repaired(&[4]), 1);
    assert_eq!(repaired(&[]), 1);
    assert_eq!(repaired(&[5]), 0);
    assert_eq!(repaired(&[4, 5, 3]), 0);
}

// RFC 5682: acknowledgements of the original chunks after a time-out prove that the time-out was spurious.
#[test]
fn a_spurious_timeout_is_undone() {
    let mut side = side_with_rtt(10);
    let before = side.sender.cwnd();
    while side.expire() != ExpiredTimer::T3 {
        side.send();
    }
    assert_eq!(side.numbers(), [1]);
    side.source.push(10, usize::MAX);
    side.sack(2, &[]);
    let sent = side.numbers();
    assert!(sent.iter().all(|n| *n > 10), "F-RTO sends new data: {sent:?}");
    side.sack(4, &[]);
    assert_eq!(side.sender.stats().undone_by_frto, 1);
    assert!(side.sender.cwnd() >= before);
}

// RFC 9260 §7.3, §6.9: a message sent before the path MTU fell is retransmitted in a packet that IP must fragment. New
// messages fit the path.
#[test]
fn message_sent_before_path_shrinks_is_retransmitted_whole() {
    let mut side = side_with_rtt(3);
    side.source.push(20, usize::MAX);
    side.sender.set_packet_len(1000);
    assert!(side.sender.packet_len() > 1000);
    let packets = side.send();
    let sizes: Vec<_> = packets.iter().map(|p| (p[0].n, p[0].bytes.len())).collect();
    assert_eq!(sizes[..3], [(1, 1436), (2, 1436), (3, 1436)]);
    assert!(sizes[3..].iter().all(|(_, len)| *len == 956), "{sizes:?}");
    assert_eq!(side.source.max_len, 956);
    side.sack(4, &[]);
    assert_eq!(side.sender.packet_len(), 1000);
}

// RFC 9260 §6.9, §6.1 A: a window probe that retransmits a message from before the path MTU fell is also fragmented by
// IP.
#[test]
fn window_probe_longer_than_shrunk_path_is_sent_whole() {
    let mut side = side_with_rtt(1);
    side.source.push(1, usize::MAX);
    side.try_sack(2, 0, &[], &[]).unwrap();
    side.send();
    side.expire();
    assert_eq!((side.send().len(), side.sender.stats().window_probes), (1, 1));
    side.sender.set_packet_len(1000);
    let mut retransmissions = 0;
    for _ in 0..6 {
        retransmissions += side.send().iter().filter(|p| p[0].bytes.len() == 1436).count();
        side.try_sack(2, 0, &[], &[]).unwrap();
        assert_ne!(side.expire(), ExpiredTimer::T3, "the peer answers");
    }
    assert!(retransmissions > 2, "{retransmissions}");
}

// Packets that begin with new messages fit the reduced path MTU. Packets that begin with a retransmission are not
// checked.
#[test]
fn new_messages_fit_the_shrunk_path() {
    let mut side = side_with_rtt(6);
    side.source.push(100, 100);
    side.sender.set_packet_len(1000);
    for _ in 0..20 {
        for packet in side.send() {
            let len: usize = packet.iter().map(|sent| 16 + sent.bytes.len()).sum();
            assert!(packet[0].n <= 6 || 12 + len <= 1000, "{packet:?}");
        }
        side.expire();
    }
}

// RFC 8899 §4.4: a chunk that is lost and too long for the path is retransmitted once. Chunk 1 is lost; chunks 5 and 6
// are in flight and too long.
#[test]
fn lost_chunk_too_long_for_shrunk_path_counts_once() {
    let mut side = side_with_rtt(6);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    side.sender.set_packet_len(1000);
    assert_eq!(side.numbers(), [1, 5, 6]);
}

// RFC 8899 §4.4: chunks too long for the path are marked lost without a congestion signal. A later SACK does not signal
// congestion for them either.
#[test]
fn path_shrink_is_not_a_congestion_signal() {
    let mut side = side_with_rtt(10);
    side.wait(40 * MS);
    let before = side.sender.cwnd();
    side.sender.set_packet_len(1000);
    side.sack(1, &[(5, 8)]);
    let stats = side.sender.stats();
    assert_eq!((stats.lost, stats.fast_recoveries, side.sender.cwnd()), (0, 0, before));
}

// RFC 9260 §6.2.1 D iii: a time-out does not discard SACK reports while the oldest chunk is missing.
#[test]
fn timeout_keeps_sack_reports_beyond_the_gap() {
    let mut side = side_with_rtt(5);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    while side.expire() != ExpiredTimer::T3 {
        side.numbers();
    }
    assert_eq!((side.sender.stats().timeouts, side.sender.stats().reneged), (1, 0));
    assert_eq!(side.sender.board.sacked_packets(), 3);
}
