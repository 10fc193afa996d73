//! ECN (RFC 3168): CE marks of received data reduce the peer's congestion window. The tests also cover DSCP and TTL of
//! sent packets.

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use ddp::{Access, RegionMemory, Stag};

use super::test_host::*;
use crate::api::{Event, IpFields, SynCookieMode};
use crate::checksum;

const PORT: u16 = 4791;
const SINK: Stag = Stag(0x1234);
const SOURCE: Stag = Stag(0x77);
const LEN: usize = 1 << 20;

/// Returns the ECN field of an untagged frame, and the length of its TCP text in bytes.
fn ecn_and_text_len(frame: &[u8]) -> Option<(u8, usize)> {
    let (field, tcp, end) = match frame[12..14] {
        [8, 0] if frame[23] == 6 => {
            (frame[15] & 3, 34, 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]])))
        }
        [0x86, 0xdd] if frame[20] == 6 => {
            (frame[15] >> 4 & 3, 54, 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]])))
        }
        _ => return None,
    };
    Some((field, end - tcp - usize::from(frame[tcp + 12] >> 4) * 4))
}

/// Marks a frame CE, like a router with a long queue.
fn mark_ce(frame: &mut [u8]) {
    if frame[12..14] == [8, 0] {
        frame[15] |= 3;
        frame[24..26].fill(0);
        let sum = !checksum::sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[15] |= 3 << 4;
    }
}

/// Marks a frame CE if it has text and is ECN-capable.
pub(super) fn mark_data(frame: &mut [u8]) {
    if ecn_and_text_len(frame).is_some_and(|(field, text)| field == 0b10 && text > 0) {
        mark_ce(frame);
    }
}

/// Writes 1 MiB through a router that marks data. Returns the number of marked frames, and the number of times that the
/// sender has reduced its congestion window.
fn write_through_marking_router(remote: IpAddr) -> (u64, u64) {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let sink = net.hosts[1].region(SINK.0, LEN, Access::REMOTE_WRITE);
    let source = net.hosts[0].region(SOURCE.0, LEN, Access::NONE);
    source.write(0, &pattern(LEN));
    let (here, _) = net.open(0, 0, 1, (remote, PORT).into());
    net.run_until_idle();
    net.hosts[0].write(here, (SOURCE, &source), SINK, LEN as u32);
    let mut marked = 0;
    for _ in 0..10_000 {
        net.now += std::time::Duration::from_micros(50);
        for from in 0..2 {
            net.hosts[from].cores[0].turn(net.now);
            for mut frame in net.hosts[from].take_sent() {
                if let Some((field, text)) = ecn_and_text_len(&frame.0) {
                    // RFC 3168 §6.1.4: only data segments are ECN-capable.
                    assert_eq!(field, if text > 0 { 0b10 } else { 0 });
                    if text > 0 && from == 0 {
                        mark_ce(&mut frame.0);
                        marked += 1;
                    }
                }
                net.hosts[1 - from].deliver(frame);
            }
        }
        while let Some(event) = net.hosts[1].handles[0].poll() {
            if matches!(event, Event::TaggedDelivered { .. }) {
                assert!(read_memory(&sink) == pattern(LEN));
                let stream = net.hosts[0].cores[0].streams().next().expect("the stream");
                let stats = stream.stats().tcp;
                assert_eq!(stats.loss.segments_retransmitted, 0);
                return (marked, stats.ecn_reductions);
            }
        }
    }
    panic!("never delivered");
}

#[test]
fn ce_marks_reduce_cwnd_over_ipv4_and_ipv6() {
    for remote in [v4(2), v6(2)] {
        let (marked, reductions) = write_through_marking_router(remote);
        assert!(marked > 500, "{marked}");
        // The congestion window is reduced once per round trip, not once per mark.
        assert!(reductions > 3 && reductions < marked / 2, "{reductions} for {marked} marks");
    }
}

/// Returns DSCP and TTL or hop limit of an untagged TCP or SCTP packet.
fn dscp_and_ttl(frame: &[u8]) -> Option<(u8, u8)> {
    match frame[12..14] {
        [8, 0] if matches!(frame[23], 6 | 132) => Some((frame[15] >> 2, frame[22])),
        [0x86, 0xdd] if matches!(frame[20], 6 | 132) => {
            Some(((frame[14] & 15) << 2 | frame[15] >> 6, frame[21]))
        }
        _ => None,
    }
}

// RFC 9293 §3.9.1.9 MUST-48, §3.9.2 MUST-49: all packets of a listener, including answers without state, and of a
// locally opened stream have the configured fields.
#[test]
fn each_end_sends_its_own_dscp_and_ttl() {
    for (remote, over_sctp) in [(v4(2), false), (v6(2), false), (v4(2), true), (v6(2), true)] {
        for mode in [SynCookieMode::Always, SynCookieMode::Never] {
            let mut plan = Plan::new(2);
            plan.limits.syn_cookies = mode;
            let mut net = Net::new(&[Plan::new(1), plan]);
            net.hosts[0].ip = IpFields { dscp: Some(46), ttl: None };
            net.hosts[1].ip = IpFields { dscp: Some(10), ttl: Some(7) };
            let seen = Rc::new(Cell::new([0; 2]));
            let counted = Rc::clone(&seen);
            net.is_lost = Box::new(move |from, frame| {
                if let Some(fields) = dscp_and_ttl(frame) {
                    assert_eq!(fields, [(46, 64), (10, 7)][from], "{remote} {over_sctp} {mode:?}");
                    let mut seen = counted.get();
                    seen[from] += 1;
                    counted.set(seen);
                }
                false
            });
            if over_sctp {
                net.hosts[1].listen_as(PORT, 200, 200, super::sctp::config());
                net.open_as(0, 0, 1, (remote, PORT).into(), super::sctp::config());
            } else {
                net.hosts[1].listen(PORT);
                net.open(0, 0, 1, (remote, PORT).into());
            }
            assert!(seen.get().iter().all(|&packets| packets > 1), "{:?}", seen.get());
        }
    }
}
