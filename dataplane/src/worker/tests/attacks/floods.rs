//! Floods of packets that any host can forge, and of requests that a peer sends from its own address.

use tcp_lite::tcp::{Flags, Options, SeqNumber};

use super::misbehaving_peers::rewrite_segment;
use super::*;
use crate::api::{Command, SynCookieMode};

fn limits() -> Limits {
    Limits {
        streams: 64,
        half_open: 32,
        half_open_per_peer: 8,
        streams_per_peer: 16,
        neighbours: 64,
        ..Limits::default()
    }
}

/// Returns a pseudo-random address that does not answer, on the link or behind the gateway.
fn random_source(scene: &Scene, n: usize) -> IpAddr {
    match scene.noise(n) {
        far if far & 1 == 0 => [198, 51, (far >> 8) as u8, (far >> 16) as u8].into(),
        near => v4(100 + (near >> 8) as u8 % 100),
    }
}

fn syn(port: u16, seq: u32) -> Segment<'static> {
    let options = Options { mss: Some(1460), ..Options::default() };
    let (flags, seq) = (Flags::SYN, SeqNumber(seq));
    Segment {
        src_port: port,
        dst_port: PORT,
        seq,
        flags,
        window: 1000,
        options,
        ..Segment::default()
    }
}

fn forged_syns(scene: &mut Scene) -> Vec<TestFrame> {
    let forge = |n| scene.forge(random_source(scene, n), &syn(1024 + n as u16, scene.noise(n + 5)));
    (0..RATE).map(forge).collect()
}

fn assert_within_bounds(scene: &Scene, limits: &Limits) {
    assert!(scene.count("streams") <= u64::from(limits.streams));
    assert!(scene.count("half_open") <= u64::from(limits.half_open));
    assert!(scene.count("neighbours") <= limits.neighbours as u64);
}

// RFC 4987: legitimate clients can still connect during a SYN flood if SYN cookies are enabled.
#[test]
fn syn_flood_from_random_sources_lets_clients_connect() {
    for mode in [SynCookieMode::Auto, SynCookieMode::Always, SynCookieMode::Never] {
        let limits = Limits { syn_cookies: mode, ..limits() };
        let (mut scene, _) = run_under_attack(|| Scene::new(limits), forged_syns);
        assert_within_bounds(&scene, &limits);
        // No amplification: each SYN gets one cookie. A half-open stream sends its SYN-ACK at most 6 times.
        let answers = scene.count("cookies_sent") + scene.count("half_open") * 6;
        assert!(answers <= scene.steps * RATE as u64 + 32 * 6);
        if mode == SynCookieMode::Never {
            continue;
        }
        assert!(scene.count("cookies_sent") > 1000, "{mode:?}");
        // In this test, the third host is a legitimate client. 400 steps are 40 ms, several round-trip times.
        let ticket = scene.net.hosts[ATTACKER].connect(0, (v4(2), PORT).into());
        for _ in 0..400 {
            for frame in forged_syns(&mut scene) {
                scene.net.hosts[VICTIM].deliver(frame);
            }
            scene.step();
            let incoming = |e: &Event| match e {
                Event::Incoming { stream, .. } => Some(*stream),
                _ => None,
            };
            if let Some(stream) = scene.net.hosts[VICTIM].take_event(incoming) {
                scene.net.accept(VICTIM, stream);
            }
        }
        let established = |e: &Event| match e {
            Event::Established { ticket: t, .. } => (*t == Some(ticket)).then_some(()),
            _ => None,
        };
        assert!(scene.net.hosts[ATTACKER].take_event(established).is_some(), "{mode:?}");
        // With `Always`, the first client's stream was opened by a cookie, too.
        assert_eq!(
            scene.count("cookies_accepted"),
            if mode == SynCookieMode::Auto { 1 } else { 2 }
        );
    }
}

#[test]
fn ack_and_rst_flood_gets_rate_limited_resets() {
    let attack = |scene: &mut Scene| {
        let flags = [Flags::ACK, Flags::RST, Flags::SYN.with(Flags::ACK), Flags::FIN];
        let segment = |n: usize| Segment { flags: flags[n % 4], ..syn(7, scene.noise(n)) };
        (0..RATE).map(|n| scene.forge(random_source(scene, n), &segment(n))).collect()
    };
    let limits = limits();
    let (scene, time) = run_under_attack(|| Scene::new(limits), attack);
    assert_within_bounds(&scene, &limits);
    // The rate limit allows 1000 resets per second, with a burst of 100. The bound adds a margin: 1500 per second and
    // 250.
    let max_resets = 1000.0 * time.as_secs_f64() * 1.5 + 250.0;
    assert!(scene.count("resets_sent") as f64 <= max_resets, "{}", scene.count("resets_sent"));
}

/// Opens a stream from the attacker's own address in every fifth step.
fn connect_at_interval(scene: &mut Scene) {
    if scene.steps.is_multiple_of(5) {
        scene.net.hosts[ATTACKER].connect(0, (v4(2), PORT).into());
    }
}

fn take_incoming(scene: &mut Scene) -> Option<StreamId> {
    scene.net.hosts[VICTIM].take_event(|e| match e {
        Event::Incoming { stream, .. } => Some(*stream),
        _ => None,
    })
}

#[test]
fn handshakes_without_mpa_request_are_bounded_per_peer() {
    // The TCP handshake is complete, but the MPA request never arrives.
    let make = || {
        let mut scene = Scene::new(limits());
        scene.mangle = Box::new(|from, frame| match from {
            ATTACKER => vec![rewrite_segment(&frame, |s| s.payload = &[])],
            _ => vec![frame],
        });
        scene
    };
    let (scene, _) = run_under_attack(make, |scene| {
        connect_at_interval(scene);
        no_attack(scene)
    });
    assert_within_bounds(&scene, &limits());
    assert!(scene.count("half_open") <= 8, "one peer is limited to its share");
    assert!(scene.count("peer_limit") > 0);
    // Most SYNs beyond the share are not answered with a cookie, which would only let the attacker fill its share
    // again.
    assert!(scene.count("cookies_sent") < scene.count("peer_limit"));
}

#[test]
fn rejected_streams_recycle_time_wait_slots() {
    let limits = Limits { half_open_per_peer: 64, streams_per_peer: 64, ..limits() };
    let (scene, _) = run_under_attack(
        || Scene::new(limits),
        |scene| {
            connect_at_interval(scene);
            // The victim closes a rejected connection first, so its end enters TIME-WAIT.
            if let Some(stream) = take_incoming(scene) {
                let reject = Command::Reject { stream, private_data: Vec::new() };
                scene.net.hosts[VICTIM].command(0, |_| reject);
            }
            no_attack(scene)
        },
    );
    assert_within_bounds(&scene, &limits);
    assert!(scene.count("time_wait_recycled") > 10, "{}", scene.count("time_wait_recycled"));
    assert_eq!(scene.count("stream_limit"), 0);
}

#[test]
fn repeated_opens_stop_at_the_peer_stream_limit() {
    let (scene, _) = run_under_attack(
        || Scene::new(limits()),
        |scene| {
            connect_at_interval(scene);
            if let Some(stream) = take_incoming(scene) {
                scene.net.accept(VICTIM, stream);
            }
            no_attack(scene)
        },
    );
    assert_within_bounds(&scene, &limits());
    // Sixteen streams of the peer, and one of the client.
    assert_eq!(scene.count("streams"), 17);
    assert!(scene.count("peer_streams") > 0);
}

/// Builds an ARP frame to host 2: `operation` 1 is a request, 2 a reply. In an announcement, `sender` equals `target`.
pub(in crate::worker::tests) fn arp(
    operation: u16,
    sender: IpAddr,
    mac: [u8; 6],
    target: IpAddr,
) -> TestFrame {
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    let mut frame = [[2, 0, 0, 0, 0, 2], mac].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(mac);
    frame.extend(bytes(sender));
    frame.extend([2, 0, 0, 0, 0, 2]);
    frame.extend(bytes(target));
    TestFrame::new(frame)
}

#[test]
fn arp_flood_keeps_neighbour_entry_and_bounds_answers() {
    let attack = |scene: &mut Scene| {
        let mac = |n: usize| [2, 9, scene.noise(n) as u8, (scene.noise(n) >> 8) as u8, 1, 1];
        let frame = |n: usize| match n % 3 {
            0 => arp(1, v4(scene.noise(n + 3) as u8), mac(n), v4(2)),
            1 => arp(2, v4(scene.noise(n + 3) as u8), mac(n), v4(2)),
            // The attacker claims the client's address, in requests and in replies.
            _ => arp(1 + (n / 3 % 2) as u16, v4(1), mac(n), v4(1)),
        };
        (0..RATE).map(frame).collect()
    };
    let limits = limits();
    let (scene, time) = run_under_attack(|| Scene::new(limits), attack);
    assert_within_bounds(&scene, &limits);
    let answers = scene.count("neighbour_answers") as f64;
    // The rate limit allows 1000 answers at once and 10,000 a second. The bound includes the announcement with which
    // the victim defends its address.
    assert!(answers <= 1001.0 + 10_000.0 * time.as_secs_f64(), "{answers} in {time:?}");
    let interface = scene.net.hosts[VICTIM].cores[0].env.network.interface(0);
    assert_eq!(interface.neighbours.get(v4(1)), Some([2, 0, 0, 0, 0, 1]));
}

#[test]
fn neighbour_solicitation_flood_gets_bounded_answers() {
    // Each frame is a valid solicitation from a different host.
    let questions: Vec<TestFrame> = (10..250)
        .map(|n| {
            let mut host = Host::new(&Plan::new(n));
            TestFrame::new(host.cores[0].env.network.solicitation(v6(2), START))
        })
        .collect();
    let limits = limits();
    let (scene, time) = run_under_attack(
        || Scene::with_victim(limits, v6(2)),
        |scene| {
            let begin = scene.steps as usize * RATE;
            (begin..begin + RATE).map(|n| questions[n % questions.len()].clone()).collect()
        },
    );
    assert_within_bounds(&scene, &limits);
    let answers = scene.count("neighbour_answers") as f64;
    assert!(answers > 100.0 && answers <= 1000.0 + 10_000.0 * time.as_secs_f64(), "{answers}");
}

// RFC 5927: an ICMP error about a segment that is not in flight has no effect.
#[test]
fn forged_icmp_flood_changes_no_path_mtu_or_stream() {
    let attack = |scene: &mut Scene| {
        let message = |n: usize| {
            // Type and code: fragmentation needed (with an MTU of 600), port unreachable, protocol unreachable, time
            // exceeded, source quench.
            let (kind, code) = [(3, 4), (3, 3), (3, 2), (11, 0), (4, 0)][n % 5];
            let mut message = vec![kind, code, 0, 0, 0, 0, 2, 88];
            message
                .extend([0x45, 0, 5, 0xdc, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
            message.extend(PORT.to_be_bytes());
            message.extend(scene.last_segment.port.to_be_bytes());
            message.extend(scene.noise(n).to_be_bytes());
            let sum = !checksum::sum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            message
        };
        let frame = |n: usize| {
            let message = message(n);
            scene.packet(random_source(scene, n), IpProtocol::Icmp, message.len(), |p| {
                p.copy_from_slice(&message);
            })
        };
        (0..RATE).map(frame).collect()
    };
    let limits = limits();
    let (scene, _) = run_under_attack(|| Scene::new(limits), attack);
    assert_eq!(scene.count("path_mtu_updates"), 0);
    assert_eq!(scene.count("streams"), 1);
    assert_within_bounds(&scene, &limits);
}

#[test]
fn fragment_flood_stays_within_reassembly_bounds() {
    let attack = |scene: &mut Scene| {
        let frame = |n: usize| {
            let mut frame =
                scene.packet(random_source(scene, n), IpProtocol::Tcp, 1400, |p| p.fill(9));
            let ip = &mut frame.0[14..34];
            ip[4..6].copy_from_slice(&(scene.noise(n) as u16).to_be_bytes());
            // First, middle and last fragments of packets that are never complete.
            let field = [0x2000u16, 0x2000 + 175 * (n as u16 % 30), 175 * 4][n % 3];
            ip[6..8].copy_from_slice(&field.to_be_bytes());
            ip[10..12].fill(0);
            let sum = !checksum::sum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame
        };
        (0..RATE).map(frame).collect()
    };
    let limits = limits();
    let (scene, _) = run_under_attack(|| Scene::new(limits), attack);
    assert_within_bounds(&scene, &limits);
}
