//! Each frame that a worker receives is counted exactly once, with its outcome. Valid and damaged frames of all kinds
//! arrive while one stream over TCP and one over SCTP are open. [`Net::turn`] compares the sums after each turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use smoltcp::wire::IpProtocol;
use tcp_lite::tcp::Flags;

use super::attacks::floods::arp;
use super::floods::forged_segment;
use super::paths::{fragment, icmp_quoting_frame};
use super::sctp::{PORT as SCTP_PORT, config};
use super::sctp_frames::{init, sctp_frame_in as sctp_frame};
use super::test_host::*;
use crate::api::Limits;
use crate::checksum;
use crate::net::path::{self, IpHeader};

const PORT: u16 = 4791;

/// Deterministic pseudo-random number generator (linear congruential).
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn random_below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
}

/// Builds an IPv4 frame with payload `bytes` from host `from` to host 2.
pub(super) fn ip_packet(from: u8, protocol: IpProtocol, bytes: &[u8]) -> TestFrame {
    let host = Host::new(&Plan::new(from));
    let interface = host.cores[0].env.network.interface(0);
    let mac = [2, 0, 0, 0, 0, 2];
    let header = IpHeader { source: v4(from), destination: v4(2), protocol, hop_limit: 64 };
    let mut out = Vec::new();
    path::write_ip_frame(&mut out, interface, mac, header, bytes.len(), |p| {
        p.copy_from_slice(bytes);
    });
    TestFrame::new(out)
}

pub(super) fn echo_request() -> TestFrame {
    let mut message = [8, 0, 0, 0, 0, 1, 0, 1, 7, 7, 7, 7];
    let sum = !checksum::sum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip_packet(9, IpProtocol::Icmp, &message)
}

/// Source of test frames: prepared frames, and altered copies of frames that the first host has sent.
struct FrameSource {
    fixed: Vec<TestFrame>,
    /// Frames that the first host has sent recently.
    recent: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl FrameSource {
    fn new() -> FrameSource {
        let mut fixed = vec![
            echo_request(),
            ip_packet(9, IpProtocol::Udp, &[0, 7, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4]),
        ];
        for n in 3..40u8 {
            let port = 1000 + u16::from(n);
            let mac = [2, 0, 0, 0, 0, n];
            fixed.push(forged_segment((n, port), PORT, Flags::SYN));
            fixed.push(forged_segment((n, port), 7, Flags::SYN));
            fixed.push(forged_segment(
                (n, port),
                PORT,
                [Flags::ACK, Flags::RST, Flags::FIN][usize::from(n) % 3],
            ));
            fixed.push(arp(1, v4(n), mac, v4(2)));
            fixed.push(arp(2, v4(n), mac, v4(2 + n % 2)));
            fixed.push(sctp_frame(n, 2, (port, SCTP_PORT), 0, &init(u32::from(n)), None));
            fixed.push(sctp_frame(n, 2, (port, 9), u32::from(n), &[3, 0, 0, 4], None));
            if n < 9 {
                let mut host = Host::new(&Plan::new(n));
                fixed.push(TestFrame::new(host.cores[0].env.network.solicitation(v6(2), START)));
            }
        }
        FrameSource { fixed, recent: Rc::default() }
    }

    /// Returns the next frame, and the index of the host that receives it.
    fn next_frame(&self, noise: &mut TestRng) -> (usize, TestFrame) {
        let seen = self.recent.borrow();
        let live = &seen[noise.random_below(seen.len())];
        let (mut to, mut frame) = match noise.random_below(8) {
            0 if live[12..14] == [8, 0] && live.len() > 300 => {
                let (id, len) = (noise.next() as u16 % 64, live.len() - 34);
                let parts = [(0..104, true), (104..200, true), (200..len, false)];
                let (range, more) = parts[noise.random_below(3)].clone();
                (1, fragment(live, id, range, more))
            }
            1 if live[12..14] == [8, 0] => {
                let (kind, code) = [(3, 4), (3, 1), (3, 3), (11, 0)][noise.random_below(4)];
                let mut quoted = live.clone();
                // Changes the source port, the TCP sequence number or SCTP verification tag, or a byte that is not
                // quoted.
                let at = [35, 39, 60][noise.random_below(3)];
                quoted[at.min(live.len() - 1)] ^= 1;
                (0, icmp_quoting_frame(kind, code, 1200 - noise.random_below(40) as u16, &quoted))
            }
            2 => (1, TestFrame::new(live.clone())),
            3 => {
                let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9];
                let len = 2 + noise.random_below(100);
                bytes.extend((0..len).map(|_| noise.next() as u8));
                (1, TestFrame::new(bytes))
            }
            _ => (1, self.fixed[noise.random_below(self.fixed.len())].clone()),
        };
        if noise.random_below(4) == 0 {
            let at = noise.random_below(frame.0.len());
            frame.0[at] ^= 1 << noise.random_below(8);
            to = noise.random_below(2);
        }
        if noise.random_below(32) == 0 {
            frame.0.truncate(14 + noise.random_below(frame.0.len() - 13));
        }
        (to, frame)
    }
}

/// Delivers 4000 frames to hosts with a stream over TCP and one over SCTP. `room` is the number of entries of each
/// worker's transmit ring. Returns the hosts.
fn run_flood(workers: u16, limits: Limits, room: usize, seed: u64) -> Net {
    let plan = |n| Plan { workers, limits, rss: Rss::None, ..Plan::new(n) };
    let mut net = Net::new(&[plan(1), plan(2)]);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(SCTP_PORT, 100, 100, config());
    net.run_until_idle();
    let streams = [
        net.open(0, 0, 1, (v4(2), PORT).into()).0,
        net.open_as(0, 0, 1, (v4(2), SCTP_PORT).into(), config()).0,
    ];
    let (frames, mut noise) = (FrameSource::new(), TestRng(seed));
    let seen = frames.recent.clone();
    net.is_lost = Box::new(move |from, frame| {
        let mut seen = seen.borrow_mut();
        if from == 0 && frame.len() >= 60 {
            seen.push(frame.to_vec());
            let len = seen.len();
            seen.drain(..len.saturating_sub(20));
        }
        false
    });
    let ticket = net.hosts[0].send(streams[0], &[3; 4000]);
    net.wait_sent(0, ticket);
    for host in &mut net.hosts {
        host.exhaust_budgets();
        (0..host.cores.len()).for_each(|at| host.cores[at].port_mut(0).room = room);
    }
    for n in 0..4000 {
        let (to, frame) = frames.next_frame(&mut noise);
        net.hosts[to].deliver(frame);
        if n % 50 == 0 {
            net.hosts[0].send(streams[noise.random_below(2)], &[5; 3000]);
        }
        if noise.random_below(20) == 0 {
            net.turn();
            net.now += Duration::from_micros(200);
        }
    }
    net.advance(Duration::from_secs(30));
    net
}

#[test]
fn mixed_traffic_counts_every_frame_exactly_once() {
    let mut seen = Vec::new();
    for (seed, workers) in [(1, 1), (2, 2), (3, 3)] {
        let limits = Limits { mesh: 4, half_open: 8, resets_per_second: 100, ..Limits::default() };
        let net = run_flood(workers, limits, 256, seed);
        for handle in net.hosts.iter().flat_map(|host| &host.handles) {
            handle.counters().for_each(|c, n| seen.extend((n > 0).then_some(c.name)));
            seen.extend(handle.counters().drops.iter().filter(|d| d.count > 0).map(|d| d.reason));
        }
    }
    // Each of these counters and drop reasons is above zero in at least one run.
    for name in [
        "segments",
        "sctp_packets",
        "cookies_sent",
        "sctp_cookies_sent",
        "fragments",
        "reassembled",
        "echo_replies",
        "neighbour_claims",
        "icmp_errors",
        "mesh_out",
        "mesh_in",
        "mesh_news_in",
        "mesh_full",
        "resets_sent",
        "answers_limited",
        "truncated",
        "ether_type",
        "not_our_mac",
        "ip_header",
        "ip_checksum",
        "not_our_address",
        "fragment_duplicate",
        "fragment_overlap",
        "ip_protocol",
        "l4_checksum",
        "arp",
        "neighbour_ignored",
        "icmp_not_in_flight",
        "icmp_no_stream",
        "icmp_ignored",
        "no_stream",
        "no_listener",
        "overload",
        "out_of_the_blue",
        "bad_checksum",
    ] {
        assert!(seen.contains(&name), "{name}");
    }
}

#[test]
fn full_transmit_ring_counts_lost_answers() {
    let limits = Limits {
        syn_cookies: crate::api::SynCookieMode::Always,
        resets_per_second: 1_000_000,
        ..Limits::default()
    };
    let net = run_flood(1, limits, 1, 4);
    assert!(net.hosts[1].count("answers_lost") > 0);
    assert!(net.hosts[1].count("tx_full") > 0);
    assert!(net.hosts[1].count("no_listener") > 0);
}

/// Returns the gauges of a host without the gauges of its bounded caches (neighbours, path MTUs).
fn gauges(host: &Host) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    host.handles[0].counters().for_each(|c, n| {
        let remembered = ["neighbours", "path_mtus"].contains(&c.name);
        all.extend((c.kind == base::metric::Kind::Gauge && !remembered).then_some((c.name, n)));
    });
    all
}

/// Returns the cost of a message of several segments: the frames that each host sends, and the time.
fn message_cost(net: &mut Net, stream: ddp::StreamId) -> (u64, u64, Duration) {
    let sent = |net: &Net| [0, 1].map(|host: usize| net.hosts[host].count("tx_frames"));
    let (before, begin) = (sent(net), net.now);
    let ticket = net.hosts[0].send(stream, &[7; 4000]);
    net.wait_sent(0, ticket);
    let after = sent(net);
    (after[0] - before[0], after[1] - before[1], net.now - begin)
}

#[test]
fn flood_leaves_gauges_and_message_cost_unchanged() {
    let limits = Limits { reassembly_packets: 32, neighbours: 32, ..Limits::default() };
    let mut net = Net::new(&[Plan::new(1), Plan { limits, ..Plan::new(2) }]);
    net.hosts[1].listen(PORT);
    net.hosts[1].listen_as(SCTP_PORT, 100, 100, config());
    net.run_until_idle();
    let streams = [
        net.open(0, 0, 1, (v4(2), PORT).into()).0,
        net.open_as(0, 0, 1, (v4(2), SCTP_PORT).into(), config()).0,
    ];
    for stream in streams {
        // The first messages measure the round-trip time and open the congestion window.
        for _ in 0..20 {
            message_cost(&mut net, stream);
        }
    }
    net.advance(Duration::from_secs(60));
    let alone = streams.map(|stream| message_cost(&mut net, stream));
    net.advance(Duration::from_secs(1));
    let (before, events) = (gauges(&net.hosts[1]), net.hosts[1].events.len());
    let (frames, mut noise) = (FrameSource::new(), TestRng(9));
    for n in 0..20_000 {
        let mut frame = frames.fixed[noise.random_below(frames.fixed.len())].clone();
        if n % 4 == 0 {
            let at = noise.random_below(frame.0.len());
            frame.0[at] ^= 1 << noise.random_below(8);
        }
        net.hosts[1].deliver(frame);
        if n % 40 == 0 {
            net.turn();
            net.now += Duration::from_micros(10);
        }
    }
    net.run_until_idle();
    // Unsolicited frames cause no events, except rate-limited reports of refused connections.
    let is_report = |e: &crate::api::Event| matches!(e, crate::api::Event::HandshakeFailed(_));
    let reports = net.hosts[1].events[events..].iter().filter(|(_, e)| is_report(e)).count();
    assert!(reports <= 8, "{reports}");
    net.hosts[1].events.retain(|(_, e)| !is_report(e));
    assert_eq!(net.hosts[1].events.len(), events);
    assert!(net.hosts[1].count("neighbours") <= 32);
    assert!(net.hosts[1].count("half_open") > 0);
    net.advance(Duration::from_secs(1));
    let after = streams.map(|stream| message_cost(&mut net, stream));
    assert_eq!(after, alone, "a second after");
    // After a minute, all state that the flood created has expired: the gauges are as before.
    net.advance(Duration::from_secs(60));
    assert_eq!(gauges(&net.hosts[1]), before);
    let is_unexpected = |e: &crate::api::Event| !matches!(e, crate::api::Event::Untagged { .. });
    let late: Vec<_> =
        net.hosts[1].events[events..].iter().filter(|(_, e)| is_unexpected(e)).collect();
    assert!(late.is_empty(), "{late:?}");
}
