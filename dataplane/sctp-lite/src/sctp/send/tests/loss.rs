//! What is lost, and sent again (RFC 9260 §6.3.3, §7.2.3, §7.2.4; RFC 8985).

use super::*;

/// `packets` in flight over a path whose round trip is 40 ms.
pub(super) fn measured(packets: usize) -> Side {
    let mut side = side_with(SendConfig { initial_window: Some(100), ..config() }, ROOM);
    side.source.push(1, 100);
    side.send();
    side.wait(40 * MS);
    side.sack(1, &[]);
    side.source.push(packets, usize::MAX);
    assert_eq!(side.send().len(), packets);
    side
}

// RFC 9260 §7.2.4: three packets beyond it: it is sent again at once, whatever the window; the window comes
// down once; the bytes are the same.
#[test]
fn three_packets_beyond_a_gap_are_a_loss() {
    let mut side = measured(10);
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
    // RFC 9260 §7.2.4 (6): more of the same window is not another reason.
    side.sack(2, &[(2, 4), (6, 9)]);
    side.numbers();
    assert_eq!(side.sender.stats().fast_recoveries, 1);
    side.wait(40 * MS);
    side.sack(11, &[]);
    assert!(side.sender.is_idle());
    assert!(side.sender.cwnd() < before && side.sender.cwnd() >= 4 * 1468, "§7.2.3");
}

// RFC 9260 §7.2.4: one chunk beyond a gap, and time: RFC 8985 §6.2's reordering timer.
#[test]
fn what_is_late_for_long_is_lost() {
    let mut side = measured(3);
    side.wait(40 * MS);
    side.sack(1, &[(2, 2)]);
    assert_eq!(side.numbers(), [] as [u32; 0]);
    let start = side.now;
    assert_eq!(side.expire(), Expired::Nothing);
    assert_eq!(side.now, start + 10 * MS, "a quarter of a round trip");
    assert_eq!(side.sender.poll_timeout(), Some(side.now + side.sender.rto()), "and then T3-rtx");
    assert_eq!(side.numbers(), [1]);
}

// RFC 6937 §3: in recovery as many packets leave as have arrived.
#[test]
fn a_recovery_keeps_in_step_with_what_is_delivered() {
    let mut side = measured(10);
    side.source.push(50, usize::MAX);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    assert_eq!(side.numbers(), [1, 11, 12]);
    side.sack(1, &[(2, 5)]);
    assert_eq!(side.numbers(), [13]);
    side.sack(1, &[(2, 7)]);
    assert_eq!(side.numbers(), [14, 15]);
}

// RFC 5682 §2.1 step 2: where the peer's window is full there is no new data to ask with; what is lost goes on.
#[test]
fn after_a_timeout_behind_a_full_window_what_is_lost_goes_again() {
    const WINDOW: u32 = 10 * 1436;
    let config = SendConfig { initial_window: Some(100), tail_loss_probe: false, ..config() };
    let mut side = side_with(config, WINDOW);
    side.source.push(20, usize::MAX);
    assert_eq!(side.numbers().len(), 10);
    assert_eq!(side.expire(), Expired::T3);
    assert_eq!(side.numbers(), [0]);
    side.try_sack(1, WINDOW - 1436, &[], &[]).unwrap();
    assert_eq!(side.numbers(), [1, 2]);
}

// RFC 9260 §7.2.1: packets count, not chunks: three chunks of one packet are one sign.
#[test]
fn chunks_of_one_packet_are_one_sign() {
    let mut side = measured(1);
    side.source.push(10, 100);
    assert_eq!(side.send().len(), 1);
    side.wait(40 * MS);
    side.sack(1, &[(2, 11)]);
    assert_eq!(side.numbers(), [] as [u32; 0], "may be reordered");
}

// RFC 8985: a retransmission that is lost is found without a time-out.
#[test]
fn a_lost_retransmission_is_sent_again() {
    let mut side = measured(10);
    side.wait(40 * MS);
    side.sack(1, &[(2, 6)]);
    side.source.push(10, usize::MAX);
    let first = side.numbers();
    assert_eq!(first[0], 1);
    let new = first.iter().filter(|n| **n > 10).count();
    assert!(new > 0, "new data follows: {first:?}");
    side.wait(41 * MS);
    side.sack(1, &[(2, 10)]);
    let mut again = side.numbers();
    side.wait(41 * MS);
    side.sack(1, &[(2, 10 + new as u16)]);
    again.extend(side.numbers());
    assert!(again.contains(&1), "{again:?}");
    assert_eq!(side.sender.stats().timeouts, 0);
}

// The same of several: none is forgotten for the sake of the oldest.
#[test]
fn lost_retransmissions_are_sent_again() {
    let mut side = measured(10);
    side.wait(40 * MS);
    side.sack(1, &[(2, 2), (4, 8)]);
    side.source.push(10, usize::MAX);
    let first = side.numbers();
    assert_eq!(first[..2], [1, 3]);
    let new = first.iter().filter(|n| **n > 10).count() as u16;
    assert!(new > 0, "new data follows: {first:?}");
    side.wait(41 * MS);
    side.sack(1, &[(2, 2), (4, 10)]);
    let mut again = side.numbers();
    side.wait(41 * MS);
    side.sack(1, &[(2, 2), (4, 10 + new)]);
    again.extend(side.numbers());
    assert!(again.contains(&1) && again.contains(&3), "{again:?}");
    assert_eq!(side.sender.stats().timeouts, 0);
}

// RFC 9260 §6.3.1 C5, Karn's algorithm: what waited for a retransmission is no round trip; what is reported beyond a gap is.
#[test]
fn round_trips_are_measured_by_what_was_sent_once() {
    let srtt = |side: &Side| side.sender.srtt().expect("measured");
    let mut side = measured(5);
    let before = srtt(&side);
    side.expire();
    assert_eq!(side.numbers(), [5]);
    side.wait(500 * MS);
    side.sack(6, &[]);
    assert_eq!(srtt(&side), before);
    let mut side = measured(5);
    side.wait(100 * MS);
    side.sack(1, &[(2, 3)]);
    assert!(srtt(&side) > before);
}

// RFC 9260 §6.1 C: before anything new.
#[test]
fn retransmissions_go_before_new_data() {
    let mut side = measured(10);
    side.source.push(50, 50);
    side.wait(40 * MS);
    side.sack(1, &[(2, 7)]);
    let packets = side.send();
    assert_eq!(packets[0][0].n, 1);
    assert!(packets.iter().skip(1).flatten().all(|sent| sent.n > 10));
}

// RFC 9260 §6.3.3 E1 to E4, §7.2.3: one packet, as many of the earliest as fit; the time-out doubles.
#[test]
fn a_timeout_sends_one_packet() {
    let mut side = side_with(
        SendConfig { initial_window: Some(100), tail_loss_probe: false, ..config() },
        ROOM,
    );
    side.source.push(30, 200);
    assert_eq!(side.send().len(), 5);
    let start = side.now;
    assert_eq!(side.expire(), Expired::T3);
    assert_eq!(side.now, start + Duration::from_secs(1));
    assert_eq!(side.sender.cwnd(), 1468);
    let packets = side.send();
    assert_eq!(packets.len(), 1);
    assert!(packets[0].len() > 1 && packets[0][0].n == 0);
    assert!(packets[0][0].immediate, "its SACK is not to wait");
    let start = side.now;
    assert_eq!(side.expire(), Expired::T3);
    assert_eq!(side.now, start + Duration::from_secs(2));
    let resent: Vec<_> = side.send().concat();
    assert_eq!(resent[0].n, 0);
    for _ in 0..10 {
        side.expire();
        side.send();
    }
    assert_eq!(side.sender.rto(), Duration::from_secs(60), "RTO.Max");
    // The peer answers.
    side.sack(30, &[]);
    assert!(side.sender.is_idle() && side.sender.poll_timeout().is_none());
}

// RFC 9260 §6.3.2 R3: what acknowledges the earliest restarts the timer; nothing else does.
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
    assert_eq!(side.sender.poll_timeout(), Some(side.now + 100 * MS), "R1: it runs already");
    side.sack(1, &[]);
    assert_eq!(side.sender.poll_timeout(), Some(side.now + side.sender.rto()));
}

// RFC 8985 §7.2: and the time of the probe.
#[test]
fn progress_puts_the_probe_off() {
    let mut side = measured(5);
    let first = side.sender.poll_timeout().unwrap();
    side.wait(20 * MS);
    side.sack(3, &[]);
    assert!(side.sender.poll_timeout() > Some(first + 10 * MS));
}

// RFC 8985 §7: overdue acknowledgements are asked for, by new data or the last again.
#[test]
fn a_tail_is_probed() {
    let mut side = measured(5);
    assert_eq!(side.expire(), Expired::Nothing);
    let sent = side.send().concat();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].n, 5);
    assert_eq!(side.sender.stats().tail_loss_probes, 1);
    // The peer had all but the last: the probe has repaired it, and that counts as a loss (§7.4).
    let before = side.sender.cwnd();
    side.sack(5, &[]);
    side.wait(40 * MS);
    side.sack(6, &[]);
    side.source.push(1, 100);
    side.send();
    side.sack(7, &[]);
    assert_eq!(side.sender.stats().tail_losses_repaired, 1);
    assert!(side.sender.cwnd() < before);
    // New data is the better probe.
    let mut side = measured(5);
    let window = side.sender.cwnd();
    side.source.push(1, 100);
    side.now = side.sender.poll_timeout().unwrap();
    side.sender.handle_timeout(side.now);
    assert_eq!(side.numbers(), [6]);
    assert_eq!(side.sender.cwnd(), window);
}

// RFC 3708: duplicates of all that was sent again: nothing was lost, the window is as before.
#[test]
fn duplicates_undo_what_was_no_loss() {
    let mut side = measured(10);
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

// RFC 3708 §3 A.4: duplicates of what was sent once are copies that the network made: no credit for what was sent
// again.
#[test]
fn duplicates_of_the_network_undo_nothing() {
    let mut side = measured(10);
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

// RFC 3708 §3 A.4: nor does a copy of a retransmission that was needed, or a peer that claims one: the
// first report of the chunk came a round trip after the retransmission.
#[test]
fn a_duplicate_of_a_needed_retransmission_undoes_nothing() {
    let mut side = measured(10);
    let before = side.sender.cwnd();
    side.wait(40 * MS);
    side.sack(1, &[(2, 5)]);
    assert_eq!(side.numbers()[0], 1);
    // Before it can have arrived: the report contradicts itself.
    side.try_sack(1, ROOM, &[(2, 5)], &[1]).unwrap();
    side.wait(40 * MS);
    side.try_sack(6, ROOM, &[], &[1]).unwrap();
    side.try_sack(11, ROOM, &[], &[1]).unwrap();
    assert_eq!(side.sender.stats().undone_by_duplicates, 0);
    assert!(side.sender.cwnd() < before);
}

// RFC 8985 §6.2 step 4: the window for reordering stays what it is, whatever copies there are of what was sent
// once.
#[test]
fn duplicates_of_the_network_delay_no_recovery() {
    let mut side = measured(3);
    side.wait(40 * MS);
    side.try_sack(1, ROOM, &[(2, 2)], &[2]).unwrap();
    side.try_sack(1, ROOM, &[(2, 2)], &[0, 2]).unwrap();
    assert_eq!(side.numbers(), [] as [u32; 0]);
    let start = side.now;
    assert_eq!(side.expire(), Expired::Nothing);
    assert_eq!(side.now, start + 10 * MS, "a quarter of a round trip");
    assert_eq!(side.numbers(), [1]);
}

// RFC 8985 §7.4.2: a duplicate of anything but the probe does not prove the probe needless; of the probe it
// does, among others, too.
#[test]
fn only_a_duplicate_of_the_probe_is_about_the_probe() {
    let repaired = |duplicates: &[u32]| {
        let mut side = measured(5);
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

// RFC 5682: acknowledgements of the originals after a time-out: it was spurious.
#[test]
fn a_spurious_timeout_is_undone() {
    let mut side = measured(10);
    let before = side.sender.cwnd();
    while side.expire() != Expired::T3 {
        side.send();
    }
    assert_eq!(side.numbers(), [1]);
    side.source.push(10, usize::MAX);
    side.sack(2, &[]);
    let asked = side.numbers();
    assert!(asked.iter().all(|n| *n > 10), "new data asks: {asked:?}");
    side.sack(4, &[]);
    assert_eq!(side.sender.stats().undone_by_frto, 1);
    assert!(side.sender.cwnd() >= before);
}

// RFC 9260 §7.3, §6.9: what was sent before the path shrank goes again whole, in a packet that IP has to
// fragment; what is new fits.
#[test]
fn a_smaller_path() {
    let mut side = measured(3);
    side.source.push(20, usize::MAX);
    side.sender.set_packet_len(1000);
    assert!(side.sender.packet_len() > 1000);
    let packets = side.send();
    let sizes: Vec<_> = packets.iter().map(|p| (p[0].n, p[0].bytes.len())).collect();
    assert_eq!(sizes[..3], [(1, 1436), (2, 1436), (3, 1436)]);
    assert!(sizes[3..].iter().all(|(_, len)| *len == 956), "{sizes:?}");
    assert_eq!(side.source.most, 956);
    side.sack(4, &[]);
    assert_eq!(side.sender.packet_len(), 1000);
}

// RFC 9260 §6.9, §6.1 A: also the probe of a window that closed before the path shrank.
#[test]
fn a_smaller_path_behind_a_closed_window() {
    let mut side = measured(1);
    side.source.push(1, usize::MAX);
    side.try_sack(2, 0, &[], &[]).unwrap();
    side.send();
    side.expire();
    assert_eq!((side.send().len(), side.sender.stats().window_probes), (1, 1));
    side.sender.set_packet_len(1000);
    let mut again = 0;
    for _ in 0..6 {
        again += side.send().iter().filter(|p| p[0].bytes.len() == 1436).count();
        side.try_sack(2, 0, &[], &[]).unwrap();
        assert_ne!(side.expire(), Expired::T3, "the peer answers");
    }
    assert!(again > 2, "{again}");
}

// What is new never fills the room of what goes again.
#[test]
fn new_messages_keep_to_the_smaller_path() {
    let mut side = measured(6);
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

// RFC 8899 §4.4: what was lost and is too long for the path as well is lost once, and goes again.
#[test]
fn what_is_lost_stays_lost_on_a_smaller_path() {
    let mut side = measured(6);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    side.sender.set_packet_len(1000);
    assert_eq!(side.numbers(), [1, 5, 6]);
}

// RFC 8899 §4.4: what is too long for the path is lost, but that is no congestion, nor is it when a SACK comes.
#[test]
fn a_smaller_path_is_no_congestion() {
    let mut side = measured(10);
    side.wait(40 * MS);
    let before = side.sender.cwnd();
    side.sender.set_packet_len(1000);
    side.sack(1, &[(5, 8)]);
    let stats = side.sender.stats();
    assert_eq!((stats.lost, stats.fast_recoveries, side.sender.cwnd()), (0, 0, before));
}

// RFC 9260 §6.2.1 D iii: a time-out says nothing about what was reported beyond the gap.
#[test]
fn a_timeout_does_not_forget_what_was_reported() {
    let mut side = measured(5);
    side.wait(40 * MS);
    side.sack(1, &[(2, 4)]);
    while side.expire() != Expired::T3 {
        side.numbers();
    }
    assert_eq!((side.sender.stats().timeouts, side.sender.stats().reneged), (1, 0));
    assert_eq!(side.sender.board.sacked_packets(), 3);
}
