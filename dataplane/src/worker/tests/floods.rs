//! Floods by unknown hosts: state stays within its limits, and established streams continue.

use std::net::IpAddr;
use std::time::Duration;

use ddp::StreamId;
use tcp_lite::tcp::{Flags, Options, Segment, SeqNumber};

use super::sctp;
use super::sctp_frames::{init, sctp_frame_in};
use super::test_host::*;
use crate::api::{Command, ConnectError, Event};
use crate::checksum;
use crate::net::path::{self, IpHeader};
use crate::net::protocol::TCP;
use smoltcp::wire::IpProtocol;

const PORT: u16 = 4791;

/// Builds a segment to host 2, as any host on the link could send it.
pub(super) fn forged_segment(from: (u8, u16), port: u16, flags: Flags) -> TestFrame {
    forged_with_seq(from, port, flags, 7)
}

fn forged_with_seq(from: (u8, u16), port: u16, flags: Flags, seq: u32) -> TestFrame {
    forged_from_address((v4(from.0), from.1), port, flags, seq)
}

/// Builds a TCP segment to host 2 from any IPv4 or IPv6 address.
pub(super) fn forged_from_address(
    from: (IpAddr, u16),
    port: u16,
    flags: Flags,
    seq: u32,
) -> TestFrame {
    let number = match from.0 {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    let host = Host::new(&Plan::new(number));
    let interface = host.cores[0].env.network.interface(0);
    let segment = Segment {
        src_port: from.1,
        dst_port: port,
        seq: SeqNumber(seq),
        ack: SeqNumber(9),
        flags,
        window: 1000,
        options: Options { mss: Some(1460), ..Options::default() },
        payload: &[],
        ce: false,
        text_crc: None,
    };
    let (source, destination) = (from.0, if from.0.is_ipv4() { v4(2) } else { v6(2) });
    let header = IpHeader { source, destination, protocol: IpProtocol::Tcp, hop_limit: 64 };
    let (len, mac) = (segment.wire_len(), [2, 0, 0, 0, 0, 2]);
    let mut out = Vec::new();
    path::write_ip_frame(&mut out, interface, mac, header, len, |p| {
        segment.emit(p);
        let sum = checksum::segment(source, destination, TCP, p);
        p[16..18].copy_from_slice(&sum.to_be_bytes());
    });
    TestFrame::new(out)
}

/// Two hosts with a stream between them. `check` tests that the stream works.
struct EstablishedPair {
    net: Net,
    stream: StreamId,
}

impl EstablishedPair {
    fn new(plan: Plan, credits: u32) -> Self {
        let mut net = Net::new(&[Plan::new(1), plan]);
        net.hosts[1].listen_with(PORT, 100, credits);
        let (stream, _) = net.open(0, 0, 1, (v4(2), PORT).into());
        EstablishedPair { net, stream }
    }

    fn flood(&mut self, frames: impl Iterator<Item = TestFrame>) {
        for (n, frame) in frames.enumerate() {
            self.net.hosts[1].deliver(frame);
            if n % 16 == 15 {
                self.net.turn();
            }
        }
        self.net.run_until_idle();
    }

    /// Exhausts the budget for unmatched frames, as earlier floods do.
    fn with_exhausted_budget(mut self) -> Self {
        self.net.run_until_idle();
        self.net.hosts[1].exhaust_budgets();
        self
    }

    fn check(&mut self) {
        let ticket = self.net.hosts[0].send(self.stream, &[5; 2000]);
        self.net.wait_sent(0, ticket);
    }
}

#[test]
fn syns_beyond_half_open_limits_are_dropped() {
    let mut plan = Plan::new(2);
    plan.limits.half_open = 40;
    plan.limits.syn_cookies = crate::api::SynCookieMode::Never;
    plan.limits.half_open_per_peer = 8;
    let mut e = EstablishedPair::new(plan, 1000);
    e.flood((0..100).map(|n| forged_segment((3, 2000 + n), PORT, Flags::SYN)));
    assert_eq!(e.net.hosts[1].count("half_open"), 8);
    assert_eq!(e.net.hosts[1].count("peer_limit"), 92);
    e.flood((4..104).map(|n| forged_segment((n, 2000), PORT, Flags::SYN)));
    assert_eq!(e.net.hosts[1].count("half_open"), 40);
    assert_eq!(e.net.hosts[1].count("backlog"), 68);
    e.check();
    // The addresses do not answer, so their resolution fails and their streams are removed.
    e.net.advance(Duration::from_secs(4));
    assert_eq!(e.net.hosts[1].count("half_open"), 0);
    assert_eq!(e.net.hosts[1].count("streams"), 1);
    e.check();
}

// RFC 9293 §3.10.7.4, first check: off-path segments outside the window do not affect half-open streams.
#[test]
fn half_open_streams_survive_out_of_window_segments() {
    let mut e = EstablishedPair::new(Plan::new(2), 1000);
    for from in [v4(9), v6(9)] {
        let forged = |flags, seq| forged_from_address((from, 2000), PORT, flags, seq);
        let before = e.net.hosts[1].count("half_open");
        e.net.hosts[1].deliver(forged(Flags::SYN, 7));
        e.net.turn();
        let others = [Flags::SYN, Flags::ACK, Flags::RST, Flags::FIN, Flags::SYN.with(Flags::ACK)];
        for flags in others {
            for seq in [0x1000_0000, 0x9000_0000, 5] {
                e.net.hosts[1].deliver(forged(flags, seq));
                e.net.turn();
            }
        }
        assert_eq!(e.net.hosts[1].count("half_open"), before + 1, "{from}");
    }
    e.check();
}

// All addresses of one IPv6 /64 prefix count as one peer.
#[test]
fn half_open_streams_are_bounded_per_ipv6_prefix() {
    let mut plan = Plan::new(2);
    plan.limits.half_open_per_peer = 8;
    plan.limits.syn_cookies = crate::api::SynCookieMode::Never;
    let mut e = EstablishedPair::new(plan, 1000);
    let from = |prefix: u16, n: u16| {
        let address = IpAddr::from([0x2001, 0xdb8, 0, prefix, 0, 0, 0, n]);
        forged_from_address((address, 2000), PORT, Flags::SYN, 7)
    };
    // These addresses are on the link and need no gateway.
    e.flood((10..60).map(|n| from(0, n)));
    assert_eq!(e.net.hosts[1].count("half_open"), 8);
    assert_eq!(e.net.hosts[1].count("peer_limit"), 42);
    e.check();
}

#[test]
fn connect_without_credit_waits_for_more_credits() {
    let mut e = EstablishedPair::new(Plan::new(2), 2);
    let listener = crate::api::ListenerId(u32::from(PORT));
    let (second, _) = e.net.open(0, 0, 1, (v4(2), PORT).into());
    assert_ne!(second, e.stream);
    let ticket = e.net.hosts[0].connect(0, (v4(2), PORT).into());
    e.net.advance(Duration::from_millis(100));
    assert_eq!(e.net.hosts[1].count("no_credit"), 1);
    e.net.hosts[1].command(0, |_| Command::Credits { listener, additional: 1 });
    e.net.run_until("the next attempt", |net| {
        let incoming = |ev: &Event| matches!(ev, Event::Incoming { .. }).then_some(());
        assert!(
            net.hosts[0]
                .take_event(|ev| {
                    matches!(ev, Event::ConnectFailed { ticket: t, .. } if *t == ticket)
                        .then_some(())
                })
                .is_none()
        );
        net.hosts[1].take_event(incoming)
    });
}

#[test]
fn aborted_handshake_returns_its_credit() {
    let mut e = EstablishedPair::new(Plan::new(2), 2);
    // The host whose address was forged has no such connection and sends a reset.
    for n in 0..5 {
        e.flood(std::iter::once(forged_segment((1, 3000 + n), PORT, Flags::SYN)));
        assert_eq!(e.net.hosts[1].count("half_open"), 0);
    }
    assert_eq!(e.net.hosts[1].count("no_credit"), 0);
    e.net.open(0, 0, 1, (v4(2), PORT).into());
}

#[test]
fn unmatched_segments_are_reset_at_a_bounded_rate() {
    let mut plan = Plan::new(2);
    plan.limits.resets_per_second = 100;
    let mut e = EstablishedPair::new(plan, 100);
    e.flood((0..200).map(|n| forged_segment((3, 2000 + n), 7, Flags::SYN)));
    assert_eq!(e.net.hosts[1].count("no_listener"), 200);
    // The limit is 25 resets per second to one address, and 100 to all addresses together. A burst may contain the
    // resets of a tenth of a second: 2 to one address.
    assert_eq!(e.net.hosts[1].count("resets_sent"), 2);
    assert_eq!(e.net.hosts[1].count("answers_limited"), 198);
    e.flood((4..250).map(|n| forged_segment((n, 2000), 7, Flags::SYN)));
    assert!((6..=20).contains(&e.net.hosts[1].count("resets_sent")));
    e.flood((0..10).map(|n| forged_segment((3, 2000 + n), PORT, Flags::ACK)));
    assert_eq!(e.net.hosts[1].count("no_stream"), 10);
    // RFC 9293 §3.10.7.1: a reset is never answered.
    let resets = e.net.hosts[1].count("resets_sent");
    e.flood((0..10).map(|n| forged_segment((3, 2000 + n), PORT, Flags::RST)));
    assert_eq!(e.net.hosts[1].count("resets_sent"), resets);
    e.check();
}

#[test]
fn connect_beyond_stream_limit_fails() {
    let mut plan = Plan::new(1);
    plan.limits.streams = 3;
    let mut net = Net::new(&[plan, Plan::new(2)]);
    net.hosts[1].listen(PORT);
    for _ in 0..3 {
        net.open(0, 0, 1, (v4(2), PORT).into());
    }
    net.hosts[0].connect(0, (v4(2), PORT).into());
    let reason = net.run_until("a refusal", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::ConnectFailed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    });
    assert_eq!(reason, ConnectError::TooManyStreams);
}

#[test]
fn arp_flood_keeps_neighbours_in_use() {
    let mut plan = Plan::new(2);
    plan.limits.neighbours = 32;
    let mut e = EstablishedPair::new(plan, 100);
    let question = |n: u8| {
        let mut host = Host::new(&Plan::new(n));
        TestFrame::new(host.cores[0].env.network.solicitation(v4(2), START))
    };
    e.flood((3..253).map(question));
    assert!(e.net.hosts[1].count("neighbour_answers") >= 250);
    assert!(e.net.hosts[1].count("neighbours") <= 32);
    e.check();
}

#[test]
fn damaged_frames_are_counted_and_open_no_stream() {
    let mut e = EstablishedPair::new(Plan::new(2), 100);
    let good = forged_segment((3, 2000), PORT, Flags::SYN).0;
    let before = e.net.hosts[1].handles[0].counters().drops.total();
    let damaged = (14..good.len()).map(|at| {
        let mut frame = good.clone();
        frame[at] ^= 0x10;
        TestFrame::new(frame)
    });
    let damaged: Vec<_> = damaged.collect();
    let n = damaged.len() as u64;
    e.flood(damaged.into_iter());
    // Each frame is dropped by a checksum or header check, and opens no stream.
    assert_eq!(e.net.hosts[1].handles[0].counters().drops.total() - before, n);
    assert_eq!(e.net.hosts[1].count("streams"), 1);
    e.check();
}

/// Loses the client's data segments, and returns the first `n` of them.
fn take_text_frames(e: &mut EstablishedPair, n: usize) -> Vec<TestFrame> {
    let lost = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let recorder = lost.clone();
    e.net.is_lost = Box::new(move |from, frame| {
        let text = from == 0 && frame.len() > 1000;
        if text {
            recorder.borrow_mut().push(TestFrame::new(frame.to_vec()));
        }
        text
    });
    e.net.hosts[0].send(e.stream, &vec![7; 4000]);
    for _ in 1..n.div_ceil(3) {
        e.net.hosts[0].send(e.stream, &vec![7; 4000]);
    }
    e.net.run_until_idle();
    e.net.is_lost = Box::new(|_, _| false);
    let mut frames = lost.borrow().clone();
    assert!(frames.len() >= n, "{} frames", frames.len());
    frames.truncate(n);
    frames
}

/// Successive segments of a flow are handled in one run, but each is verified separately.
#[test]
fn damaged_segment_in_a_run_is_dropped_alone() {
    for damaged in [0, 2, 5] {
        let mut e = EstablishedPair::new(Plan::new(2), 100);
        let mut frames = take_text_frames(&mut e, 6);
        let end = frames[damaged].0.len();
        frames[damaged].0[end - 9] ^= 1;
        let count = |e: &EstablishedPair, name: &str| e.net.hosts[1].count(name);
        let before = (count(&e, "segments"), count(&e, "l4_checksum"));
        frames.into_iter().for_each(|frame| e.net.hosts[1].deliver(frame));
        let now = e.net.now;
        e.net.hosts[1].cores[0].turn(now);
        e.net.hosts[1].assert_all_accounted();
        let after = (count(&e, "segments") - before.0, count(&e, "l4_checksum") - before.1);
        assert_eq!(after, (5, 1), "number {damaged}");
        e.net.advance(Duration::from_secs(2));
        e.check();
    }
}

#[test]
fn full_burst_serves_streams_first_and_few_unmatched_frames() {
    let mut plan = Plan::new(2);
    plan.limits.syn_cookies = crate::api::SynCookieMode::Always;
    let mut e = EstablishedPair::new(plan, 100);
    let (text, burst, few) = (take_text_frames(&mut e, 8), crate::io::BURST, 8);
    let mut e = e.with_exhausted_budget();
    let before = e.net.hosts[1].count("segments");
    let syns =
        (0..burst - text.len()).map(|n| forged_segment((3, 2000 + n as u16), PORT, Flags::SYN));
    let n = syns.len() as u64;
    syns.chain(text).for_each(|frame| e.net.hosts[1].deliver(frame));
    let now = e.net.now;
    e.net.hosts[1].cores[0].turn(now);
    e.net.hosts[1].assert_all_accounted();
    let sent = e.net.hosts[1].take_sent();
    // The eighth segment is acknowledged at once, before the SYNs that arrived earlier are answered.
    assert_eq!(sent[0].0[5], 1, "the first frame is for the client");
    assert!(sent[1..].iter().filter(|frame| frame.0[5] == 3).count() == few);
    assert_eq!(e.net.hosts[1].count("segments") - before, 8);
    assert_eq!(e.net.hosts[1].count("overload"), n - few as u64);
    // All SYNs of a burst that is not full are answered.
    let cookies = e.net.hosts[1].count("cookies_sent");
    e.flood((0..16).map(|n| forged_segment((4, 2000 + n), PORT, Flags::SYN)));
    assert_eq!(e.net.hosts[1].count("cookies_sent") - cookies, 16);
    assert_eq!(e.net.hosts[1].count("overload"), n - few as u64);
    e.check();
}

/// Delivers these frames together. Returns the number dropped as overload, and the number that the first turn received.
fn deliver_burst(e: &mut EstablishedPair, frames: Vec<TestFrame>) -> (u64, u64) {
    let host = |e: &EstablishedPair, name| e.net.hosts[1].count(name);
    let (overload, taken) = (host(e, "overload"), host(e, "rx_frames"));
    frames.into_iter().for_each(|frame| e.net.hosts[1].deliver(frame));
    e.net.turn();
    let first = host(e, "rx_frames") - taken;
    e.net.run_until_idle();
    e.net.hosts[1].assert_all_accounted();
    (host(e, "overload") - overload, first)
}

#[test]
fn mass_connect_loses_nothing_and_endless_flood_is_dropped() {
    let from = |n: u16| 3 + (n % 200) as u8;
    let syn = |n: u16| forged_segment((from(n), 2000 + n), PORT, Flags::SYN);
    let init = |n: u16| {
        sctp_frame_in(from(n), 2, (2000 + n, sctp::PORT), 0, &init(u32::from(n) + 1), None)
    };
    type Kind<'a> = &'a dyn Fn(u16) -> TestFrame;
    for (workers, make) in [(1, &syn as Kind<'_>), (1, &init), (2, &syn), (2, &init)] {
        let mut plan = Plan { workers, rss: Rss::None, ..Plan::new(2) };
        plan.limits.syn_cookies = crate::api::SynCookieMode::Always;
        let mut e = EstablishedPair::new(plan, 100);
        e.net.hosts[1].listen_as(sctp::PORT, 100, 100, sctp::config());
        let burst = crate::io::BURST as u64;
        for _ in 0..3 {
            let (lost, first) = deliver_burst(&mut e, (0..500).map(make).collect());
            assert_eq!(lost, 0);
            // A turn receives one burst of the frames. With two workers, some frames are forwarded.
            assert!(first == burst || workers == 2, "{first} frames");
            e.net.advance(Duration::from_millis(100));
        }
        // In a longer flood, eight frames of each burst are examined. The rate limit admits a thousand more.
        let (lost, _) = deliver_burst(&mut e, (0..3200).map(make).collect());
        assert!(lost > 0);
        if workers == 1 {
            assert_eq!(lost, 3200 / burst * (burst - 8) - 1000);
        }
        e.check();
    }
}

#[test]
fn flooded_port_is_polled_several_times_per_turn() {
    let (mut e, burst) = (EstablishedPair::new(Plan::new(2), 100), crate::io::BURST);
    e.net.run_until_idle();
    let text = take_text_frames(&mut e, 2);
    let unmatched = |n: usize| forged_segment((3, 2000 + n as u16), PORT, Flags::RST);
    let before = e.net.hosts[1].count("rx_frames");
    // Five bursts of unmatched frames. The fourth ends with two segments of the stream.
    let flood = (0..4 * burst - 2).map(unmatched).chain(text).chain((0..burst).map(unmatched));
    flood.for_each(|frame| e.net.hosts[1].deliver(frame));
    let (now, segments) = (e.net.now, e.net.hosts[1].count("segments"));
    e.net.hosts[1].cores[0].turn(now);
    e.net.hosts[1].assert_all_accounted();
    assert_eq!(e.net.hosts[1].count("rx_frames") - before, 4 * burst as u64);
    assert_eq!(e.net.hosts[1].count("segments") - segments, 2);
    // One acknowledgement covers both segments.
    assert_eq!(e.net.hosts[1].take_sent().len(), 1);
    e.check();
    // If a burst has many segments of streams, the streams are served before the next burst.
    let mut e = EstablishedPair::new(Plan::new(2), 100);
    e.net.run_until_idle();
    let text = super::floods::take_text_frames(&mut e, 8);
    let before = e.net.hosts[1].count("rx_frames");
    let flood = (0..burst - 8).map(unmatched).chain(text).chain((0..burst).map(unmatched));
    flood.for_each(|frame| e.net.hosts[1].deliver(frame));
    let now = e.net.now;
    e.net.hosts[1].cores[0].turn(now);
    assert_eq!(e.net.hosts[1].count("rx_frames") - before, burst as u64);
}

#[test]
fn stream_opened_in_a_burst_receives_its_later_segments() {
    let mut e = EstablishedPair::new(Plan::new(2), 100).with_exhausted_budget();
    let unmatched = |from: u16, n: usize| {
        (0..n as u16).map(move |n| forged_segment((3, from + n), PORT, Flags::SYN))
    };
    // These frames exhaust the budget. The first frame has opened a stream, whose next segment is therefore processed.
    let first = forged_segment((4, 2000), PORT, Flags::SYN);
    let rest = std::iter::once(first).chain(unmatched(3000, crate::io::BURST - 2));
    let frames: Vec<_> = rest.chain([forged_with_seq((4, 2000), PORT, Flags::RST, 8)]).collect();
    let before = e.net.hosts[1].count("segments");
    frames.into_iter().for_each(|frame| e.net.hosts[1].deliver(frame));
    e.net.turn();
    assert_eq!(e.net.hosts[1].count("segments") - before, 9);
    assert_eq!((e.net.hosts[1].count("overload"), e.net.hosts[1].count("no_stream")), (23, 0));
    e.check();
}

#[test]
fn new_syn_reopens_a_time_wait_connection() {
    // RFC 9293 §3.6.1 MAY-2: a SYN beyond the last received sequence number may reopen the connection.
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let ticket = net.hosts[0].connect(0, (v4(2), PORT).into());
    let there = net.run_until("a request", |net| {
        net.hosts[1].take_event(|e| match e {
            Event::Incoming { stream, .. } => Some(*stream),
            _ => None,
        })
    });
    net.accept(1, there);
    let local = net.run_until("a stream", |net| {
        net.hosts[0].take_event(|e| match e {
            Event::Established { ticket: t, local, .. } if *t == Some(ticket) => Some(*local),
            _ => None,
        })
    });
    // Records the client's last sequence number on the wire.
    let last = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = last.clone();
    // Records the second host's sequence numbers in order.
    let numbers = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let noted = numbers.clone();
    net.is_lost = Box::new(move |from, frame| {
        if frame.len() >= 54 && frame[23] == 6 {
            let seq = u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]);
            match from {
                0 => seen.set(seq),
                _ => noted.borrow_mut().push(SeqNumber(seq)),
            }
        }
        false
    });
    net.hosts[1].command(0, |_| Command::Close { stream: there, abort: false });
    net.run_until("its end", |net| {
        net.hosts[1].take_event(|e| matches!(e, Event::Closed { .. }).then_some(()))
    });
    net.run_until_idle();
    assert_eq!(net.hosts[1].count("streams"), 1, "in TIME-WAIT");
    let old = forged_with_seq((1, local.port()), PORT, Flags::SYN, last.get().wrapping_sub(1000));
    net.hosts[1].deliver(old);
    net.turn();
    assert_eq!(net.hosts[1].count("half_open"), 0, "an old SYN changes nothing");
    let new = forged_with_seq((1, local.port()), PORT, Flags::SYN, last.get().wrapping_add(1000));
    net.hosts[1].deliver(new);
    net.turn();
    assert_eq!((net.hosts[1].count("half_open"), net.hosts[1].count("streams")), (1, 1));
    // RFC 9293 §3.6.1: the new ISS is beyond the sequence numbers of the old connection.
    let numbers = numbers.borrow();
    let [.., before, anew] = numbers[..] else { panic!("{numbers:?}") };
    assert!(anew.after(before), "{before:?} {anew:?}");
}

#[test]
fn simultaneous_neighbour_failures_free_all_half_open_streams() {
    let mut e = EstablishedPair::new(Plan::new(2), 1000);
    // Many addresses without a host are resolved at the same time.
    e.flood((4..103).map(|n| forged_segment((n, 2000), PORT, Flags::SYN)));
    assert_eq!(e.net.hosts[1].count("half_open"), 99);
    e.net.advance(Duration::from_secs(5));
    assert_eq!(e.net.hosts[1].count("half_open"), 0);
    assert_eq!(e.net.hosts[1].count("streams"), 1);
    assert_eq!(e.net.hosts[1].count("neighbour_failures"), 99);
    e.check();
}

#[test]
fn segments_during_address_resolution_do_not_block_streams() {
    let mut e = EstablishedPair::new(Plan::new(2), 1000);
    // No host has this address: the stream waits for address resolution and sends nothing.
    let syn = std::iter::once(forged_segment((9, 2000), PORT, Flags::SYN));
    e.flood(syn.chain((0..600).map(|_| forged_segment((9, 2000), PORT, Flags::ACK))));
    e.check();
}

#[test]
fn stream_ended_and_replaced_in_one_burst_is_reported() {
    let mut net = Net::new(&[Plan::new(1), Plan::new(2)]);
    net.hosts[1].listen(PORT);
    let (_, there) = net.open(0, 0, 1, (v4(2), PORT).into());
    let fin = std::rc::Rc::new(std::cell::RefCell::new(None));
    let held = fin.clone();
    net.is_lost = Box::new(move |from, frame| {
        let is_fin = from == 0 && frame[23] == 6 && frame[47] & 1 != 0;
        if is_fin {
            *held.borrow_mut() = Some(TestFrame::new(frame.to_vec()));
        }
        is_fin
    });
    net.hosts[1].command(0, |_| Command::Close { stream: there, abort: false });
    let frame = net.run_until("the peer's FIN", |_| fin.borrow_mut().take());
    let read_u32 = |at: usize| <[u8; 4]>::try_from(&frame.0[at..at + 4]).unwrap();
    let port = u16::from_be_bytes([frame.0[34], frame.0[35]]);
    let seq = u32::from_be_bytes(read_u32(38)).wrapping_add(1000);
    net.hosts[1].deliver(frame);
    net.hosts[1].deliver(forged_with_seq((1, port), PORT, Flags::SYN, seq));
    net.turn();
    assert_eq!(net.hosts[1].count("half_open"), 1, "the new stream has taken its place");
    let closed = |e: &Event| matches!(e, Event::Closed { stream, .. } if *stream == there);
    assert!(net.hosts[1].events.iter().any(|(_, e)| closed(e)));
}

#[test]
fn time_wait_streams_are_evicted_for_new_ones() {
    let mut plan = Plan::new(2);
    plan.limits.streams = 3;
    let mut net = Net::new(&[Plan::new(1), plan]);
    net.hosts[1].listen(PORT);
    for _ in 0..3 {
        let (_, there) = net.open(0, 0, 1, (v4(2), PORT).into());
        net.hosts[1].command(0, |_| Command::Close { stream: there, abort: false });
        net.run_until("its end", |net| {
            net.hosts[1].take_event(|e| matches!(e, Event::Closed { .. }).then_some(()))
        });
    }
    net.run_until_idle();
    assert_eq!(net.hosts[1].count("streams"), 3, "in TIME-WAIT");
    let streams: Vec<_> = (0..3).map(|_| net.open(0, 0, 1, (v4(2), PORT).into())).collect();
    assert_eq!(net.hosts[1].count("stream_limit"), 0);
    // Established streams are not evicted.
    net.hosts[0].connect(0, (v4(2), PORT).into());
    net.advance(Duration::from_millis(100));
    assert_eq!(net.hosts[1].count("stream_limit"), 1);
    for (here, _) in streams {
        let ticket = net.hosts[0].send(here, b"still here");
        net.wait_sent(0, ticket);
    }
}
